"""What does a GPU of this model cost?

Exporters write `NVIDIA A100-SXM4-80GB`, node labels `NVIDIA-A100-SXM4-80GB`: blanks and dashes are the same here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from scaler.idleness.policy import is_any_of

SECONDS_PER_HOUR = 3600


def normalized_model(model: str) -> str:
    return "-".join(model.split())


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of one GPU for one hour, by model or by how a model's name begins (`NVIDIA-H100*`)."""

    by_model: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    currency: str = "USD"

    def __bool__(self) -> bool:
        return bool(self.by_model)

    @cached_property
    def _patterns(self) -> list[tuple[str, float]]:
        """The longest first, and a whole name before the same one as a beginning."""
        spelt = ((normalized_model(pattern), price) for pattern, price in self.by_model.items())
        return sorted(spelt, key=lambda each: (-len(each[0].removesuffix("*")), each[0].endswith("*")))

    def of(self, model: str) -> float | None:
        """Price per GPU-hour; None for a model that has none."""
        name = normalized_model(model)
        return next((price for pattern, price in self._patterns if is_any_of(name, (pattern,))), None)

    def cost(self, model: str, gpu_seconds: float) -> float | None:
        """What that much GPU time costs; None for a model without a price.

        Worked example: 8 GPUs at 4.20 an hour, idle for 30 minutes, are 8 × 1800 s × 4.20 / 3600 s = 16.80.
        """
        price = self.of(model)
        return None if price is None else gpu_seconds * price / SECONDS_PER_HOUR
