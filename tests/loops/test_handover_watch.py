"""What is seen of suspensions, of returns and of what was given, in the watches of a small cluster."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import NOON, WorkloadJson, at
from loops_builders import MemoryCluster, scalable_workload, stamp

from scaler.core.handovers import Flow, Gift, Through
from scaler.core.suspension import Phase
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import ScalableWorkload
from scaler.loops.handovers import Event, HandoverWatch, Resumed, Running, Suspended
from scaler.loops.queue_names import QueueNames
from scaler.loops.quota_view import Blind
from scaler.loops.waits import Admitted, gpus_asked

IDLE_SINCE = at(-1800)


class Town:
    """A cluster whose watches tell of every change."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster()
        self.events: list[Event] = []
        self.watch = HandoverWatch(
            cluster=self.cluster.read(),
            queues=QueueNames(quota=lambda: Blind("nobody looks")),
            cohort_of=lambda _: "all",
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

    def admits(self, name: str, *, gpus: int, when: datetime) -> None:
        new = self.workload(WorkloadJson(name, pods=1, gpus_per_pod=gpus).admitted(), when=when)
        given = gpus_asked(new, self.cluster.read().gpus)
        self.watch.admitted(Admitted(workload=new, gpus=given, waited=None, at=when))

    # ---- one giver of 2 GPUs, `a`

    def runs(self) -> None:
        self.scalable(scalable_workload("a", workload="a-w"))
        self.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).admitted())

    def suspends(self, *, when: datetime = NOON, reason: str = "GPUsIdle") -> None:
        self.workload(suspended(when, reason), when=when)

    def wakes(self, *, when: datetime) -> None:
        self.workload(WorkloadJson("a-w", pods=1, gpus_per_pod=2).waiting(""), when=when)

    def of(self, kind: type[Event]) -> list[Any]:
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
    # What it gave up is there for others all the same.
    town.admits("next", gpus=2, when=at(10))
    assert [gift.gpus for gift in town.of(Gift)] == [2]


def test_a_return_tells_how_long_it_slept_and_how_long_it_took_to_run(town: Town) -> None:
    town.suspends()
    town.wakes(when=at(600))
    assert town.of(Resumed) == [Resumed(namespace="demo", reason="GPUsIdle", after=timedelta(minutes=10))]
    town.now = at(660)
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.STARTING))
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.RUNNING))
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.STARTING))
    town.scalable(scalable_workload("a", workload="a-w", phase=Phase.RUNNING))
    assert town.of(Running) == [Running(after=timedelta(minutes=1))]


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


QUEUE = Flow("demo", "demo", "cluster-queue", Through.QUEUE)


def test_the_next_gang_has_it_until_it_ends(town: Town) -> None:
    town.suspends()
    town.admits("next", gpus=1, when=at(30))
    gift = Gift(giver="demo/a-w", receiver="demo/next", flow=QUEUE, gpus=1, after=timedelta(seconds=30))
    assert town.of(Gift) == [gift]
    assert town.watch.gpus_in_use() == {QUEUE: 1}
    town.workload(WorkloadJson("next", pods=1, gpus_per_pod=1).admitted().condition("Finished", True))
    assert town.watch.gpus_in_use() == {}


def test_who_comes_back_ends_what_others_have_of_it(town: Town) -> None:
    town.suspends()
    town.admits("next", gpus=2, when=at(30))
    town.wakes(when=at(60))
    assert town.watch.gpus_in_use() == {}
    town.admits("late", gpus=2, when=at(90))
    assert len(town.of(Gift)) == 1


# ---- through a plan

PLAN = Flow("demo", "demo", "cluster-queue", Through.PLAN)
GRANT = {
    "plan": "p1",
    "workload": "demo/gang",
    "workloadUID": "g",
    "victims": ["demo/a"],
    "grantedAt": stamp(NOON),
    "expiresAt": stamp(at(300)),
}


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
    town.admits("gang", gpus=2, when=at(20))
    assert town.of(Gift) == []  # nobody has it twice
    town.scalable(granted("Admitted", releasingAt=NOON, admittedAt=at(20)))
    town.scalable(granted("Admitted", with_grant=False, releasingAt=NOON, admittedAt=at(20)))
    assert town.of(Gift) == [
        Gift(giver="demo/a-w", receiver="demo/gang", flow=PLAN, gpus=2, after=timedelta(seconds=20))
    ]
    assert town.watch.gpus_in_use() == {PLAN: 2}
    town.wakes(when=at(500))
    assert town.watch.gpus_in_use() == {}


def test_who_is_asked_for_again_before_the_gang_is_in_has_given_and_has_nothing_out(town: Town) -> None:
    reclaims(town)
    town.workload(WorkloadJson("gang", pods=1, gpus_per_pod=2).admitted(), when=at(20))
    entry_of_it = entry("Admitted", releasingAt=NOON, admittedAt=at(20))
    town.scalable(scalable_workload("a", workload="a-w", replicas=1, reallocation=entry_of_it))
    assert [gift.gpus for gift in town.of(Gift)] == [2]
    assert town.watch.gpus_in_use() == {}


def test_what_a_plan_was_withdrawn_from_is_there_for_the_next(town: Town) -> None:
    withdrawn = GRANT | {"expiresAt": GRANT["grantedAt"]}
    cancelled = entry("Cancelled", releasingAt=NOON)
    town.scalable(scalable_workload("a", workload="a-w", replicas=0, grant=withdrawn, reallocation=cancelled))
    town.suspends(reason="Reclaimed")
    town.admits("gang", gpus=2, when=at(10))
    assert [(gift.flow.through, gift.gpus) for gift in town.of(Gift)] == [(Through.QUEUE, 2)]


def test_others_get_nothing_of_what_a_plan_took(town: Town) -> None:
    reclaims(town)
    town.admits("thief", gpus=2, when=at(10))
    assert town.of(Gift) == []


def test_a_gang_that_needs_more_than_its_plan_took_has_the_rest_of_others(town: Town) -> None:
    town.scalable(scalable_workload("b", workload="b-w"))
    town.workload(WorkloadJson("b-w", pods=1, gpus_per_pod=1).admitted())
    noted = WorkloadJson("b-w", pods=1, gpus_per_pod=1).with_annotations({"idlegpu.io/suspended": "{}"})
    town.workload(noted.waiting("").deactivated())
    reclaims(town)
    town.admits("gang", gpus=4, when=at(20))
    assert [(gift.giver, gift.gpus) for gift in town.of(Gift)] == [("demo/b-w", 1)]


def test_a_new_process_knows_what_is_in_use_and_does_not_count_it_again() -> None:
    town = Town()
    town.workload(WorkloadJson("gang", pods=1, gpus_per_pod=2).admitted())
    town.workload(suspended(NOON, "Reclaimed"))
    town.scalable(granted("Admitted", with_grant=False, releasingAt=NOON, admittedAt=at(20)))
    assert town.events == []
    assert town.watch.gpus_in_use() == {PLAN: 2}
