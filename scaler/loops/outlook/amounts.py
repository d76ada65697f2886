"""Amounts of quota as JSON: numbers in the resource's own unit, CPU in cores. Pure."""

from scaler.core.quota.amounts import CPU


def number(resource: str, amount: int) -> int | float:
    """The amount as a number: 8 GPUs are 8, 500 milli-cores are 0.5."""
    if resource != CPU or amount % 1000 == 0:
        return amount // 1000 if resource == CPU else amount
    return amount / 1000


def number_or_none(resource: str, amount: int | None) -> int | float | None:
    return None if amount is None else number(resource, amount)
