"""Amounts of quota: whole numbers, CPU in milli-cores and every other resource in its own unit, as Kueue counts them.

Laws:

* Text is read once, at the border; fractions are rounded up, so that a request never looks smaller than it is.
* Sums are exact: Python's integers neither overflow nor round, so nothing saturates. A quota beyond what Kueue can hold
  is UNLIMITED there and, being far above any request, behaves as such here.

Source: Kueue, pkg/resources/amount.go (AmountFromQuantity).
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

CPU = "cpu"
UNLIMITED = 2**63 - 1


Requests = Mapping[str, int]
"""Amounts by resource name."""


@lru_cache(maxsize=8192)
def shared(items: tuple[tuple[str, int], ...]) -> Requests:
    """One mapping for all that ask for the same: of fifty thousand Workloads, and of their pods, most are alike."""
    return MappingProxyType(dict(items))


_QUANTITY = re.compile(
    r"([+-]?)(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_SUFFIXES = (
    {"": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": Fraction(1000)}
    | {letter: Fraction(1000) ** power for power, letter in enumerate("MGTPE", start=2)}
    | {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
)


@lru_cache(maxsize=4096)
def amount(resource: str, quantity: str | int) -> int:
    """The quantity as an amount of that resource.

    Raises: ValueError for what is no quantity.
    Source: apimachinery, pkg/api/resource (MilliValue, Value: both round up).
    """
    return rounded(resource, exact(quantity))


def exact(quantity: str | int) -> Fraction:
    """The quantity as it is written, for sums: Kubernetes adds quantities first and rounds the sum.

    Raises: ValueError for what is no quantity.
    """
    return _read(quantity)[0]


def _read(quantity: str | int) -> tuple[Fraction, str]:
    """The value, and how it is written: `e` with an exponent, `i` with a binary suffix, otherwise empty."""
    found = _QUANTITY.fullmatch(str(quantity).strip())
    if not found:
        raise ValueError(f"{quantity!r} is not a resource quantity; write for example '8', '500m' or '64Gi'")
    sign, number, exponent, suffix = found.groups()
    value = Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])
    return -value if sign == "-" else value, "e" if exponent else "i" if (suffix or "").endswith("i") else ""


@lru_cache(maxsize=4096)
def canonical(quantity: str | int) -> str:
    """The one text for all quantities that Kubernetes writes alike, whatever their owners wrote.

    `1000m` is alike `1`, and `1024Mi` is alike `1Gi`; `1073741824` is not. One with an exponent is alike itself only.

    Raises: ValueError for what is no quantity.
    Source: apimachinery, pkg/api/resource (ParseQuantity, CanonicalizeBytes).
    """
    value, notation = _read(quantity)
    if notation == "e":
        return str(quantity).strip()
    is_binary = notation == "i" and abs(value) >= 1024 and value.denominator == 1
    base, power = 1024 if is_binary else 1000, 0
    while value and value % base == 0:
        value, power = value / base, power + 1
    while value.denominator != 1:
        value, power = value * base, power - 1
    return f"{value}{'Ki' if is_binary else 'k'}{power}" if power else f"{value}"


def rounded(resource: str, value: Fraction) -> int:
    """The value as an amount of that resource, rounded up."""
    scaled = value * 1000 if resource == CPU else value
    return min(-(-scaled.numerator // scaled.denominator), UNLIMITED)


def as_text(resource: str, amount: int) -> str:
    """The amount as its owner would write it: `500m` and `2` of CPU, `64Gi`, `8`."""
    if amount >= UNLIMITED:
        return "unlimited"
    if resource == CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    for power, letter in ((4, "Ti"), (3, "Gi"), (2, "Mi")):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{letter}"
    return str(amount)


def as_number(resource: str, amount: int) -> int | float:
    """The amount in the resource's own unit: 8 GPUs are 8, 500 milli-cores are 0.5."""
    if resource != CPU or amount % 1000 == 0:
        return amount // 1000 if resource == CPU else amount
    return amount / 1000
