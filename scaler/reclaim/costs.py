"""What does it cost to suspend a workload? Worked-for hours lost, priority, annoyance, and the way back.

    cost = (gpus + gpuHoursLost × GPU-hours worked since its start
                 + priority × gpus × max(0, priority) / 1000
                 + reclaimedBefore × gpus × times reclaimed already
                 + timeToResume × gpus × hours it takes to come back) / (1 + idleTime × hours idle)

Each word is a weight that operators set; 0 leaves the part out. The first `gpus` has no weight: of two plans that are
alike otherwise, the one that stops fewer GPUs is better. Costs are whole thousandths, so that they add up exactly.

Why worked-for hours: a suspended process loses what it has in memory, and what it took to get there is what its owner
has to spend again. Time that it sat idle is no such loss; it makes the suspension cheaper.

Worked example with all weights 1: 8 GPUs that worked 2 h, idle 1 h, priority 0, never reclaimed, back in 6 min:
(8 + 16 + 0 + 0 + 0.8) / 2 = 12.4 → 12,400. The same, idle for 3 h: (24.8) / 4 = 6,200.
"""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """How much each part counts, from 0."""

    gpu_hours_lost: float = 1.0
    idle_time: float = 1.0
    priority: float = 1.0
    reclaimed_before: float = 1.0
    time_to_resume: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A cost with its parts, in thousandths."""

    total: int
    parts: tuple[tuple[str, int], ...]
    """Parts of the cost by the weight's name, as far as they count, before idle time is divided out."""
    idle_divisor: float

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {amount / 1000:g}" for name, amount in self.parts if amount)
        return f"{self.total / 1000:g} = ({parts}) / {self.idle_divisor:.2f} for being idle"


_HOUR = timedelta(hours=1)
_RESUME = timedelta(minutes=5)
"""Time to resume of a workload that never came back."""


def cost_of(
    weights: CostWeights,
    *,
    gpus: int,
    worked: timedelta,
    idle: timedelta,
    priority: int = 0,
    times_reclaimed: int = 0,
    resume: timedelta = _RESUME,
) -> Cost:
    """What it costs to suspend a workload: at least one thousandth.

    `worked` is from when it ran until its GPUs last worked, or may have worked unseen; `resume` from when it was
    activated the last time until all its GPU pods ran.
    """
    parts = {
        "gpus": float(gpus),
        "gpuHoursLost": weights.gpu_hours_lost * gpus * _hours(worked),
        "priority": weights.priority * gpus * max(0, priority) / 1000,
        "reclaimedBefore": weights.reclaimed_before * gpus * times_reclaimed,
        "timeToResume": weights.time_to_resume * gpus * _hours(resume),
    }
    divisor = 1 + weights.idle_time * _hours(idle)
    shown = tuple((name, round(1000 * part)) for name, part in parts.items())
    return Cost(total=max(1, round(1000 * sum(parts.values()) / divisor)), parts=shown, idle_divisor=divisor)


def _hours(duration: timedelta) -> float:
    return max(0.0, duration / _HOUR)
