"""A gang as its objects in the Kubernetes API show it, and the entries of a timeline. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    """The figures in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One Job or RayCluster, its Workload and its pods."""

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
    """The pods that the object of this name owns."""
    return [pod for pod in pods if any(each["name"] == owner for each in pod["metadata"].get("ownerReferences") or ())]


def _held_because(workload: Json) -> str:
    if not has(workload, "QuotaReserved") or has(workload, "Admitted"):
        return ""
    checks = workload["status"].get("admissionChecks") or ()
    return next((str(check.get("message", "")) for check in checks if check["state"] != "Ready"), "")


def _is_running(pod: Json) -> bool:
    is_terminating = pod["metadata"].get("deletionTimestamp") is not None
    return (pod.get("status") or {}).get("phase") == "Running" and not is_terminating
