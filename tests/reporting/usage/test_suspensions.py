"""What is seen of suspensions, of returns and of what was given, in the watches of a small cluster."""

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import ACTIVE, IDLE, INACTIVE, NOON, WorkloadJson, a_target, at, decision, minutes, verdict
from loops_builders import MemoryCluster, scalable_workload, stamp

from scaler.decision.decision import Answer, Inactive
from scaler.decision.target_state import Phase
from scaler.idleness.reasons import DecisionReason
from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.kueue_workloads import Workload
from scaler.quota.watch import NotSynced
from scaler.reporting.pending_workloads import QueueNames
from scaler.reporting.usage.gpu_states import GpuState
from scaler.reporting.usage.gpu_usage import FleetUsage, TargetLabels, TargetUsage
from scaler.reporting.usage.suspensions import (
    QuotaTransfer,
    Restarted,
    Resumed,
    ScaledDown,
    Suspended,
    SuspensionEvent,
    SuspensionWatch,
)

IDLE_SINCE = at(-1800)


class Town:
    """A cluster whose watches tell of every change."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster()
        self.events: list[SuspensionEvent] = []
        self.watch = SuspensionWatch(
            cluster=self.cluster.read(),
            queues=QueueNames(quota=lambda: NotSynced("nobody looks")),
            observe=self.events.append,
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

    def drops(self, name: str) -> None:
        old = self.cluster.workloads.get("demo", name)
        self.cluster.workloads.drop(name)
        self.watch.workload_heard(Change(("demo", name), old, None))

    # ---- one giver of 2 GPUs, `a`

    def runs(self) -> None:
        self.scalable(scalable_workload("a", workload="a-w"))
        self.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).admitted())

    def suspends(self, *, when: datetime = NOON, reason: str = "GPUsIdle") -> None:
        self.workload(suspended(when, reason), when=when)

    def wakes(self, *, when: datetime) -> None:
        self.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).waiting(""), when=when)

    def in_use(self) -> list[QuotaTransfer]:
        return [*self.watch.transfers()]

    def of(self, kind: type[SuspensionEvent]) -> list[Any]:
        return [each for each in self.events if isinstance(each, kind)]


def suspended(when: datetime, reason: str = "GPUsIdle") -> WorkloadJson:
    cause = {"at": stamp(when), "reason": reason, "idleSince": stamp(IDLE_SINCE)}
    noted = WorkloadJson("a-w", pods=1, gpus_per_pod=2).with_annotations({"idlegpu.io/suspended": json.dumps(cause)})
    return noted.waiting("").deactivated()


@pytest.fixture
def town() -> Town:
    found = Town()
    found.runs()
    return found


def test_a_suspension_tells_why_how_much_and_after_how_long(town: Town) -> None:
    town.suspends()
    assert town.events == [
        Suspended(namespace="demo", reason="GPUsIdle", gpus=2, idle_for=timedelta(minutes=30)),
    ]


def test_whom_somebody_scaled_to_zero_was_not_found_idle(town: Town) -> None:
    town.suspends(reason="ScaledToZero")
    assert town.events == [Suspended(namespace="demo", reason="ScaledToZero", gpus=2, idle_for=None)]
    town.wakes(when=at(60))
    [resumed] = town.of(Resumed)
    assert not resumed.was_found_idle


def test_what_somebody_else_deactivates_is_not_ours(town: Town) -> None:
    town.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).deactivated())
    assert town.events == []


def test_one_that_kueue_made_anew_is_not_suspended_twice(town: Town) -> None:
    town.suspends()
    town.scalable(scalable_workload("a", workload="a-w", replicas=0, suspendedAt=stamp(NOON)))
    town.drops("a-w")
    town.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).waiting(""), when=at(5))
    town.suspends(when=at(6))
    assert len(town.of(Suspended)) == 1


def test_a_return_tells_how_long_it_slept_and_how_long_it_took_to_run(town: Town) -> None:
    town.suspends()
    town.wakes(when=at(600))
    assert town.of(Resumed) == [Resumed(namespace="demo", reason="GPUsIdle", after=timedelta(minutes=10))]
    town.now = at(660)
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.STARTING))
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.RUNNING))
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.STARTING))
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.RUNNING))
    assert town.of(Restarted) == [Restarted(after=timedelta(minutes=1))]


def test_a_note_that_somebody_else_wrote_makes_no_label(town: Town) -> None:
    town.suspends(reason="Whatever-4711")
    assert [each.reason for each in town.of(Suspended)] == [""]
    town.wakes(when=at(60))
    assert [each.reason for each in town.of(Resumed)] == [""]


def test_a_garbled_note_says_nothing_wrong(town: Town) -> None:
    noted = WorkloadJson("a-w", pods=1, gpus_per_pod=2).with_annotations({"idlegpu.io/suspended": "{{"})
    town.workload(noted.waiting("").deactivated())
    town.wakes(when=at(600))
    assert town.of(Suspended) == [Suspended(namespace="demo", reason="", gpus=2, idle_for=None)]
    assert town.of(Resumed) == [Resumed(namespace="demo", reason="", after=None)]


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


def reclaims(town: Town) -> None:
    town.scalable(granted("Reclaimable"))
    town.suspends(reason="Reclaimed")
    town.scalable(granted("Releasing", releasingAt=NOON))


def test_what_a_plan_took_is_given_as_its_ledger_says(town: Town) -> None:
    reclaims(town)
    town.workload(gang().admitted(), when=at(20))
    assert town.of(QuotaTransfer) == []
    town.scalable(granted("Admitted", releasingAt=NOON, admittedAt=at(20)))
    town.scalable(granted("Admitted", with_grant=False, releasingAt=NOON, admittedAt=at(20)))
    assert town.of(QuotaTransfer) == [TRANSFER]
    assert town.in_use() == [TRANSFER]
    town.workload(gang().admitted().condition("Finished", True))
    assert town.in_use() == []


def test_a_workload_that_is_resumed_has_given_nothing_any_more(town: Town) -> None:
    reclaims(town)
    town.workload(gang().admitted(), when=at(20))
    entry_of_it = entry("Admitted", releasingAt=NOON, admittedAt=at(20))
    town.scalable(scalable_workload("a", workload="a-w", replicas=1, reallocation=entry_of_it))
    assert town.of(QuotaTransfer) == [TRANSFER]
    assert town.in_use() == []


@pytest.mark.parametrize("stage", ["Reclaimable", "Releasing", "Cancelled"])
def test_only_a_gang_that_was_admitted_has_been_given_something(town: Town, stage: str) -> None:
    town.workload(gang().admitted(), when=at(20))
    town.scalable(granted(stage, releasingAt=NOON))
    assert town.of(QuotaTransfer) == town.in_use() == []


def test_a_new_process_knows_what_is_in_use_and_does_not_count_it_again() -> None:
    town = Town()
    town.workload(gang().admitted())
    town.workload(suspended(NOON, "Reclaimed"))
    town.scalable(granted("Admitted", with_grant=False, releasingAt=NOON, admittedAt=at(20)))
    assert town.events == []
    assert town.in_use() == [TRANSFER]


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
    return TargetUsage(title=TargetLabels("team-a", "", kind, "serve"), decision=made, states=states, peaks={})


def told(*steps: tuple[float, TargetUsage]) -> tuple[ScaledDown, list[SuspensionEvent]]:
    following = ScaledDown()
    events = [event for t, each in steps for event in following.follow(FleetUsage(at=at(t), workloads=[each]))]
    return following, events


def test_one_that_was_told_to_go_and_went_was_suspended() -> None:
    following, events = told(
        (0, seen(INACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)), (90, seen(ASLEEP, replicas=0))
    )
    assert events == [Suspended(namespace="team-a", reason="GPUsIdle", gpus=4, idle_for=minutes(31))]
    assert following.gpus() == {("team-a", ""): 4}


def test_one_that_somebody_scaled_down_while_it_worked_was_not_found_idle() -> None:
    _, events = told((0, seen(ACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)))
    assert events == [Suspended(namespace="team-a", reason="ScaledToZero", gpus=4, idle_for=None)]


def test_one_that_comes_back_tells_how_long_it_slept() -> None:
    following, events = told(
        (0, seen(INACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)), (360, seen(ACTIVE, gpus=0)), (390, seen(ACTIVE))
    )
    assert events[1:] == [Resumed(namespace="team-a", reason="GPUsIdle", after=timedelta(minutes=5))]
    assert following.gpus() == {}


def test_what_slept_when_we_began_is_nobodys_suspension() -> None:
    following, events = told((0, seen(ASLEEP, replicas=0, gpus=0)), (60, seen(ACTIVE)))
    assert (events, following.gpus()) == ([], {})


def test_pods_that_cannot_be_seen_for_a_moment_are_not_forgotten() -> None:
    _, events = told((0, seen(INACTIVE)), (30, seen(INACTIVE, gpus=0)), (60, seen(ASLEEP, replicas=0, gpus=0)))
    assert [each.gpus for each in events if isinstance(each, Suspended)] == [4]


def test_of_scalable_workloads_their_workloads_tell() -> None:
    kind = "ScalableWorkload"
    _, events = told((0, seen(INACTIVE, kind=kind)), (60, seen(ASLEEP, replicas=0, gpus=0, kind=kind)))
    assert events == []


def test_one_that_is_deleted_while_it_sleeps_saves_nothing_any_more() -> None:
    following, _ = told((0, seen(INACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)))
    following.follow(FleetUsage(at=at(90)))
    assert following.gpus() == {}


def test_one_that_is_deleted_while_it_runs_is_not_suspended_by_being_made_anew_at_0() -> None:
    following, _ = told((0, seen(INACTIVE)))
    following.follow(FleetUsage(at=at(30)))
    assert following.follow(FleetUsage(at=at(60), workloads=[seen(ASLEEP, replicas=0, gpus=0)])) == []


def test_another_leader_begins_anew() -> None:
    following, _ = told((0, seen(INACTIVE)))
    following.forget()
    assert following.follow(FleetUsage(at=at(60), workloads=[seen(ASLEEP, replicas=0, gpus=0)])) == []
