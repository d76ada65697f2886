"""Suspensions, resumptions and transfers, as the watches of a small cluster report them."""

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

import pytest
from builders import ACTIVE, IDLE, INACTIVE, NOON, WorkloadJson, a_target, at, decision, minutes, verdict
from loops_builders import MemoryCluster, scalable_workload, stamp

from scaler.decision.decision import Answer, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.kueue_workloads import Workload
from scaler.quota.watch import NotSynced
from scaler.reporting.pending_workloads import QueueNames
from scaler.reporting.usage.fleet_metrics import FleetMetrics, QuotaTransfer
from scaler.reporting.usage.gpu_states import GpuState
from scaler.reporting.usage.gpu_usage import FleetUsage, TargetLabels, TargetUsage
from scaler.reporting.usage.suspensions import ScaledDown, SuspensionWatch
from scaler.targets.target_state import Phase

IDLE_SINCE = at(-1800)


class Suspended(NamedTuple):
    namespace: str
    reason: str
    gpus: int
    idle_for: timedelta | None


class Resumed(NamedTuple):
    namespace: str
    reason: str
    after: timedelta | None


class Counted(list[Any]):
    """In place of `FleetMetrics`: what is counted, in order."""

    def suspended(self, namespace: str, reason: str, *, gpus: int, idle_for: timedelta | None) -> None:
        self.append(Suspended(namespace, reason, gpus, idle_for))

    def resumed(self, namespace: str, reason: str, *, after: timedelta | None) -> None:
        self.append(Resumed(namespace, reason, after))

    def transferred(self, transfer: QuotaTransfer) -> None:
        self.append(transfer)


class Watched:
    """A cluster whose watches report every change."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster()
        self.counted = Counted()
        self.watch = SuspensionWatch(
            cluster=self.cluster.read(),
            queues=QueueNames(quota=lambda: NotSynced("not watched")),
            metrics=cast(FleetMetrics, self.counted),
            clock=lambda: self.now,
        )

    def workload(self, given: WorkloadJson | Workload, *, when: datetime | None = None) -> Workload:
        self.now = when or self.now
        new = given.decoded() if isinstance(given, WorkloadJson) else given
        old = self.cluster.workloads.get(*new.metadata.key)
        self.cluster.workloads.put(new)
        self.watch.workload_heard(Change(new.metadata.key, old, new))
        return new

    def scalable(self, new: ScalableWorkload) -> None:
        old = self.cluster.scalable_workloads.get(*new.metadata.key)
        self.cluster.scalable_workloads.put(new)
        self.watch.scalable_heard(Change(new.metadata.key, old, new))

    def drop(self, name: str) -> None:
        old = self.cluster.workloads.get("demo", name)
        self.cluster.workloads.drop(name)
        self.watch.workload_heard(Change(("demo", name), old, None))

    # ---- one donor of 2 GPUs, `a`

    def run(self) -> None:
        self.scalable(scalable_workload("a", workload="a-w"))
        self.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).admitted())

    def suspend(self, *, when: datetime = NOON, reason: str = "GPUsIdle") -> None:
        self.workload(suspended(when, reason), when=when)

    def resume(self, *, when: datetime) -> None:
        self.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).waiting(""), when=when)

    def in_use(self) -> list[QuotaTransfer]:
        return [*self.watch.transfers()]

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.counted if isinstance(each, kind)]


def suspended(when: datetime, reason: str = "GPUsIdle") -> WorkloadJson:
    cause = {"at": stamp(when), "reason": reason, "idleSince": stamp(IDLE_SINCE)}
    noted = WorkloadJson("a-w", pods=1, gpus_per_pod=2).with_annotations({"idlegpu.io/suspended": json.dumps(cause)})
    return noted.waiting("").deactivated()


@pytest.fixture
def cluster() -> Watched:
    found = Watched()
    found.run()
    return found


NOTES: dict[str, tuple[str, str, timedelta | None]] = {
    # the reason in the annotation, that of the events, and for how long it was idle
    "found idle": ("GPUsIdle", "GPUsIdle", minutes(30)),
    "taken by a plan": ("Reclaimed", "Reclaimed", minutes(30)),
    "scaled to zero by a user": ("ScaledToZero", "ScaledToZero", None),
    "a reason that others wrote, which must not become a label": ("Whatever-4711", "", None),
}


@pytest.mark.parametrize(("reason", "label", "idle_for"), NOTES.values(), ids=NOTES)
def test_a_suspension_and_its_end_are_events(
    cluster: Watched, reason: str, label: str, idle_for: timedelta | None
) -> None:
    cluster.suspend(reason=reason)
    cluster.resume(when=at(600))
    resumed = Resumed(namespace="demo", reason=label, after=minutes(10))
    assert cluster.counted == [Suspended(namespace="demo", reason=label, gpus=2, idle_for=idle_for), resumed]


def test_what_others_deactivate_is_not_ours(cluster: Watched) -> None:
    cluster.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).deactivated())
    assert cluster.counted == []


def test_a_workload_that_kueue_recreated_is_not_suspended_twice(cluster: Watched) -> None:
    cluster.suspend()
    cluster.scalable(scalable_workload("a", workload="a-w", replicas=0, suspendedAt=stamp(NOON)))
    cluster.drop("a-w")
    cluster.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).waiting(""), when=at(5))
    cluster.suspend(when=at(6))
    assert len(cluster.of(Suspended)) == 1


def test_an_annotation_that_cannot_be_read_makes_no_label(cluster: Watched) -> None:
    noted = WorkloadJson("a-w", pods=1, gpus_per_pod=2).with_annotations({"idlegpu.io/suspended": "{{"})
    cluster.workload(noted.waiting("").deactivated())
    cluster.resume(when=at(600))
    assert cluster.of(Suspended) == [Suspended(namespace="demo", reason="", gpus=2, idle_for=None)]
    assert cluster.of(Resumed) == [Resumed(namespace="demo", reason="", after=None)]


# ---- by a plan

TRANSFER = QuotaTransfer("demo", "demo", "cluster-queue", 2)
GRANT = {
    "plan": "p1",
    "workload": "demo/gang",
    "workloadUID": "g",
    "victims": ["demo/a"],
    "grantedAt": stamp(NOON),
    "expiresAt": stamp(at(300)),
}


def gang() -> WorkloadJson:
    return WorkloadJson("gang", pods=1, gpus_per_pod=2)


def entry(stage: str, **times: datetime) -> dict[str, Any]:
    stamps = {name: stamp(when) for name, when in times.items()}
    return {"plan": "p1", "workload": "demo/gang", "gpus": 2, "stage": stage, "reclaimableAt": stamp(NOON), **stamps}


def granted(stage: str, *, with_grant: bool = True, **times: datetime) -> ScalableWorkload:
    status: dict[str, Any] = {"reallocation": entry(stage, **times)} | ({"grant": GRANT} if with_grant else {})
    return scalable_workload("a", workload="a-w", replicas=0, **status)


def reclaims(cluster: Watched) -> None:
    cluster.scalable(granted("Reclaimable"))
    cluster.suspend(reason="Reclaimed")
    cluster.scalable(granted("Releasing", releasingAt=NOON))


def test_a_transfer_is_what_the_ledger_says(cluster: Watched) -> None:
    reclaims(cluster)
    cluster.workload(gang().admitted(), when=at(20))
    assert cluster.of(QuotaTransfer) == []
    cluster.scalable(granted("Admitted", releasingAt=NOON, admittedAt=at(20)))
    cluster.scalable(granted("Admitted", with_grant=False, releasingAt=NOON, admittedAt=at(20)))
    assert cluster.of(QuotaTransfer) == [TRANSFER]
    assert cluster.in_use() == [TRANSFER]
    cluster.workload(gang().admitted().condition("Finished", True))
    assert cluster.in_use() == []


def test_a_resumed_workload_gives_nothing_any_more(cluster: Watched) -> None:
    reclaims(cluster)
    cluster.workload(gang().admitted(), when=at(20))
    entry_of_it = entry("Admitted", releasingAt=NOON, admittedAt=at(20))
    cluster.scalable(scalable_workload("a", workload="a-w", replicas=1, reallocation=entry_of_it))
    assert cluster.of(QuotaTransfer) == [TRANSFER]
    assert cluster.in_use() == []


@pytest.mark.parametrize("stage", ["Reclaimable", "Releasing", "Cancelled"])
def test_only_an_admitted_gang_was_given_gpus(cluster: Watched, stage: str) -> None:
    cluster.workload(gang().admitted(), when=at(20))
    cluster.scalable(granted(stage, releasingAt=NOON))
    assert cluster.of(QuotaTransfer) == cluster.in_use() == []


def test_a_new_process_knows_what_is_in_use_and_does_not_count_it_again() -> None:
    cluster = Watched()
    cluster.workload(gang().admitted())
    cluster.workload(suspended(NOON, "Reclaimed"))
    cluster.scalable(granted("Admitted", with_grant=False, releasingAt=NOON, admittedAt=at(20)))
    assert cluster.counted == []
    assert cluster.in_use() == [TRANSFER]


# ------------------------------------------------------------------------------------------ what KEDA scales itself

ASLEEP = Inactive(reason=DecisionReason.SUSPENDED, message="")


def seen(answer: Answer, *, replicas: int = 1, gpus: int = 4, kind: str = "Deployment") -> TargetUsage:
    made = decision(
        answer,
        target=a_target(desired_replicas=replicas, phase=Phase.RUNNING if replicas else Phase.SUSPENDED),
        verdict=verdict(IDLE),
        idle_since=NOON - minutes(30) if answer is INACTIVE else None,
    )
    states = Counter({GpuState.IDLE: gpus} if gpus else {})
    title = TargetLabels("team-a", "", kind, "serve")
    return TargetUsage(title=title, decision=made, states=states, peaks={}, at=NOON)


def notebook(answer: Answer, **seen_as: Any) -> TargetUsage:
    return replace(seen(answer, kind="ScalableWorkload", **seen_as), is_switched=True)


AT_ZERO = seen(ASLEEP, replicas=0, gpus=0)
SCALED_DOWN = {
    # idle for 30 min when it was last seen, and for 31 when it was at 0
    "with KEDA answered 0: it was found idle": (
        [(0, seen(INACTIVE)), (60, AT_ZERO), (90, AT_ZERO)],
        [Suspended(namespace="team-a", reason="GPUsIdle", gpus=4, idle_for=minutes(31))],
        4,
    ),
    "while it worked: a user scaled it down": (
        [(0, seen(ACTIVE)), (60, AT_ZERO)],
        [Suspended(namespace="team-a", reason="ScaledToZero", gpus=4, idle_for=None)],
        4,
    ),
    "and up again": (
        [(0, seen(INACTIVE)), (60, AT_ZERO), (360, seen(ACTIVE, gpus=0)), (390, seen(ACTIVE))],
        [
            Suspended(namespace="team-a", reason="GPUsIdle", gpus=4, idle_for=minutes(31)),
            Resumed(namespace="team-a", reason="GPUsIdle", after=minutes(5)),
        ],
        0,
    ),
    "before this process began: nothing is known": ([(0, AT_ZERO), (60, seen(ACTIVE))], [], 0),
    "while its pods could not be seen for a moment": (
        [(0, seen(INACTIVE)), (30, seen(INACTIVE, gpus=0)), (60, AT_ZERO)],
        [Suspended(namespace="team-a", reason="GPUsIdle", gpus=4, idle_for=minutes(31))],
        4,
    ),
    "and deleted: it would hold nothing": (
        [(0, seen(INACTIVE)), (60, AT_ZERO), (90, None)],
        [Suspended(namespace="team-a", reason="GPUsIdle", gpus=4, idle_for=minutes(31))],
        0,
    ),
    "when it was created anew: it is another one": ([(0, seen(INACTIVE)), (30, None), (60, AT_ZERO)], [], 0),
    "a ScalableWorkload: its Workload shows it": (
        [(0, seen(INACTIVE, kind="ScalableWorkload")), (60, seen(ASLEEP, replicas=0, kind="ScalableWorkload"))],
        [],
        0,
    ),
    "a Notebook: only its ScalableWorkload shows it": (
        [(0, notebook(INACTIVE)), (60, notebook(ASLEEP, replicas=0, gpus=0)), (360, notebook(ACTIVE))],
        [
            Suspended(namespace="team-a", reason="GPUsIdle", gpus=4, idle_for=minutes(31)),
            Resumed(namespace="team-a", reason="GPUsIdle", after=minutes(5)),
        ],
        0,
    ),
}


@pytest.mark.parametrize(("steps", "events", "gpus"), SCALED_DOWN.values(), ids=SCALED_DOWN)
def test_what_keda_scales_to_zero(
    steps: list[tuple[float, TargetUsage | None]], events: list[Suspended | Resumed], gpus: int
) -> None:
    following, counted = ScaledDown(), Counted()
    for t, each in steps:
        following.count(FleetUsage(at=at(t), workloads=[each] if each else []), cast(FleetMetrics, counted))
    assert counted == events
    assert following.gpus() == ({("team-a", ""): gpus} if gpus else {})


def test_another_leader_begins_anew() -> None:
    following, counted = ScaledDown(), Counted()
    following.count(FleetUsage(at=NOON, workloads=[seen(INACTIVE)]), cast(FleetMetrics, counted))
    following.forget()
    following.count(FleetUsage(at=at(60), workloads=[AT_ZERO]), cast(FleetMetrics, counted))
    assert counted == []
