"""Amounts of quota as Kueue writes them into statuses and messages: `2`, `1500m`, `64Gi`, `2k`.

Source: Kueue, pkg/resources/requests.go (ResourceQuantity); apimachinery's canonical form of quantities.
"""

from collections.abc import Mapping

from scaler.core.quota.amounts import CPU

_IN_BYTES = ("memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"


def as_quantity(resource: str, amount: int) -> str:
    """The amount as the API shows it: CPU in cores, bytes in powers of 1024, all else in powers of 1000."""
    if resource == CPU:
        return f"{amount}m" if amount % 1000 else _scaled(amount // 1000, 1000, "kMGTPE")
    if resource in _IN_BYTES or resource.startswith(_HUGE_PAGES):
        scaled = _scaled(amount, 1024, "KMGTPE")
        return f"{scaled}i" if scaled[-1].isalpha() else scaled
    return _scaled(amount, 1000, "kMGTPE")


def as_quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """All of them, by resource."""
    return {resource: as_quantity(resource, amount) for resource, amount in sorted(amounts.items())}


def _scaled(number: int, base: int, letters: str) -> str:
    """The number with the greatest suffix that leaves it whole."""
    suffix = ""
    for letter in letters:
        if not number or number % base:
            break
        number, suffix = number // base, letter
    return f"{number}{suffix}"
