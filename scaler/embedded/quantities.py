"""Resource quantities as integers of thousandths, so that 500m of CPU and 1 GPU add up without rounding."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from scaler.embedded.kinds import Json
from scaler.errors import ScalerError

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d+)?|[+-]?\.\d+)([a-zA-Z]*)")
_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
}

Amounts = dict[str, int]
"""Thousandths by resource name."""


def thousandths(quantity: str | int | float) -> int:
    """The quantity in thousandths of its unit. Raises: ScalerError for what is no quantity."""
    match = _QUANTITY.fullmatch(str(quantity))
    if not match or match[2] not in _SUFFIXES:
        raise ScalerError(f"{quantity!r} is not a resource quantity; write for example '2', '500m' or '64Gi'")
    return int(Decimal(match[1]) * _SUFFIXES[match[2]] * 1000)


def as_quantity(amount: int) -> str:
    """Thousandths as the API writes them: `2`, `1500m`."""
    whole, rest = divmod(amount, 1000)
    return f"{amount}m" if rest else str(whole)


def requests_of(pod_spec: Json) -> Amounts:
    """What one pod requests, limits standing in where there is no request, as the API server defaults them.

    Init containers count as far as one of them needs more than all containers together.
    """
    running = total(container_requests(container) for container in pod_spec.get("containers") or ())
    for init in pod_spec.get("initContainers") or ():
        for resource, amount in container_requests(init).items():
            running[resource] = max(running.get(resource, 0), amount)
    return running


def container_requests(container: Json) -> Amounts:
    """What one container requests."""
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: thousandths(quantity) for name, quantity in wanted.items()}


def total(amounts: Iterable[Mapping[str, int]]) -> Amounts:
    """The sum, resource by resource."""
    result: Amounts = {}
    for each in amounts:
        for resource, amount in each.items():
            result[resource] = result.get(resource, 0) + amount
    return result
