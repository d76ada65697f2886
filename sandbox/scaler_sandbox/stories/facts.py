"""What can be seen of the story's two gangs, and what is news in it. Facts come from the Kubernetes API alone. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scaler.idleness.reasons import DecisionReason
from scaler_sandbox.conditions import has, message_of
from scaler_sandbox.kinds import Json


class News(NamedTuple):
    """One line of a timeline."""

    event: str
    object: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEntry:
    """One line of the timeline, `t` in seconds since it began."""

    t: float
    news: News


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOutcome:
    """How an act ended."""

    ok: bool
    problem: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What was measured, as the last line of JSON has it."""
    summary: str = ""
    """The same in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One RayCluster, its Workload and its pods."""

    name: str
    exists: bool = False
    has_workload: bool = False
    active: bool = True
    admitted: bool = False
    waits_because: str = ""
    reserved: bool = False
    held_because: str = ""
    """What the first of its AdmissionChecks that is not Ready says, while it has its quota and may not start."""
    pods: int = 0
    running: int = 0

    @property
    def is_running(self) -> bool:
        """Whether the whole gang runs."""
        return self.admitted and self.running == self.pods > 0


class Row(NamedTuple):
    """One gang as a picture shows it."""

    name: str
    asked: int
    """Replicas that are asked for."""
    gang: Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A ScalableWorkload."""

    desired: int = 1
    phase: str = ""
    reason: str = ""
    message: str = ""
    warned_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    first: Gang
    second: Gang
    scaled: Scaled = Scaled()


def gang(name: str, *, cluster: Json | None, workload: Json | None, pods: list[Json]) -> Gang:
    """The gang as its objects show it."""
    if cluster is None:
        return Gang(name=name, pods=len(pods))
    if workload is None:
        return Gang(name=name, exists=True, pods=len(pods))
    return Gang(
        name=name,
        exists=True,
        has_workload=True,
        active=workload["spec"].get("active", True),
        admitted=has(workload, "Admitted"),
        waits_because=message_of(workload, "QuotaReserved") if has(workload, "QuotaReserved", "False") else "",
        reserved=has(workload, "QuotaReserved"),
        held_because=_held_because(workload),
        pods=len(pods),
        running=sum(_is_running(pod) for pod in pods),
    )


def pods_of(pods: Iterable[Json], owner: str) -> list[Json]:
    """Those that the object of this name owns."""
    return [pod for pod in pods if any(each["name"] == owner for each in pod["metadata"].get("ownerReferences") or ())]


def _held_because(workload: Json) -> str:
    if not has(workload, "QuotaReserved") or has(workload, "Admitted"):
        return ""
    checks = workload["status"].get("admissionChecks") or ()
    return next((str(check.get("message", "")) for check in checks if check["state"] != "Ready"), "")


def _is_running(pod: Json) -> bool:
    is_terminating = pod["metadata"].get("deletionTimestamp") is not None
    return (pod.get("status") or {}).get("phase") == "Running" and not is_terminating


def scaled(body: Json | None) -> Scaled:
    """The ScalableWorkload as it shows itself."""
    if body is None:
        return Scaled()
    status = body.get("status") or {}
    return Scaled(
        desired=body["spec"].get("replicas", 1),
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        warned_at=status.get("warnedAt", ""),
    )


def news(before: Facts, after: Facts) -> Iterator[News]:
    """What has happened between the two looks, in the order of cause and effect."""
    yield from _scaled_news(before.scaled, after.scaled, f"ScalableWorkload/{after.first.name}")
    gangs = (before.first, after.first), (before.second, after.second)
    for pair in gangs:
        yield from _given_up(*pair)
    for pair in gangs:
        yield from _gained(*pair)


_VERDICTS = {
    DecisionReason.GPUS_BUSY: "Busy",
    DecisionReason.GPUS_IDLE: "Idle",
    DecisionReason.WAKING: "Waking",
    DecisionReason.WARMING_UP: "WarmingUp",
}


def _scaled_news(before: Scaled, after: Scaled, where: str) -> Iterator[News]:
    if after.reason != before.reason and after.reason in _VERDICTS:
        yield News(_VERDICTS[DecisionReason(after.reason)], where, after.reason, after.message)
    if after.warned_at and after.warned_at != before.warned_at:
        yield News("SuspendSoon", where, "SuspendSoon", "its owner is warned by an Event")
    if after.desired != before.desired:
        event = "ScaledToZero" if after.desired == 0 else "ScaledToOne"
        yield News(event, where, "Scaled", f"KEDA sets replicas to {after.desired}")


def _given_up(before: Gang, after: Gang) -> Iterator[News]:
    where = f"RayCluster/{after.name}"
    if before.exists and not after.exists:
        yield News("Ended", where, "Deleted", "its owner has deleted it")
    if before.active and not after.active:
        yield News("Deactivated", where, "Deactivated", "its Workload is inactive: Kueue takes the quota back")
    if before.pods and not after.pods:
        yield News("PodsGone", where, "PodsGone", "its GPUs are really free")


def _gained(before: Gang, after: Gang) -> Iterator[News]:
    where = f"RayCluster/{after.name}"
    if after.active and not before.active:
        yield News("Reactivated", where, "Reactivated", "its Workload is active again")
    if after.waits_because and not before.waits_because and after.active:
        yield News("Waiting", where, "WaitingForQuota", after.waits_because)
    if after.admitted and not before.admitted:
        yield News("Admitted", where, "Admitted", "Kueue admits the whole gang")
    if after.is_running and not before.is_running:
        yield News("Running", where, "PodsRunning", f"{after.running} of {after.pods} pods run")
