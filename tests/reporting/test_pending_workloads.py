"""Which Workloads are pending for GPUs, since when, and why."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from admission.checked_workloads import pending
from builders import GPUS, NOON, WorkloadJson, at
from loops_builders import MemoryCluster

from scaler.admission.check import CheckReason
from scaler.admission.controller import AdmissionReport
from scaler.admission.plan import AdmissionPlan, CheckedWorkload
from scaler.kube.object_cache import Change
from scaler.quota.watch import NotSynced
from scaler.reclaim.active_plans import ActivePlan
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.search.values import NoPlan, NoPlanReason, ReclaimPlan
from scaler.reclaim.transitions import GangState
from scaler.reporting.pending_workloads import PendingWorkloads, QueueNames, requested_gpus
from scaler.reporting.waiting_reasons import ReportedReasons
from scaler.targets.target_state import Grant


class Watched:
    """A cluster of one kind of object, whose watch reports every change."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster()
        self.admitted: list[tuple[str, timedelta]] = []
        self.reasons = ReportedReasons()
        self.pending = PendingWorkloads(
            self.cluster.read(),
            QueueNames(quota=lambda: NotSynced("not listed yet")),
            self.reasons,
            admitted=lambda *found: self.admitted.append(found),
            clock=lambda: self.now,
        )

    def put(self, json: WorkloadJson, *, when: datetime | None = None) -> None:
        self.now = when or self.now
        new = json.decoded()
        old = self.cluster.workloads.get(*new.metadata.key)
        self.cluster.workloads.put(new)
        self.pending.heard(Change(new.metadata.key, old, new))

    def drop(self, name: str) -> None:
        old = self.cluster.workloads.get("demo", name)
        self.cluster.workloads.drop(name)
        self.pending.heard(Change(("demo", name), old, None))

    def since(self) -> dict[str, datetime]:
        return {each.key.removeprefix("demo/"): each.since for each in self.pending.pending()}


def workload(name: str = "w", *, gpus: int = 2) -> WorkloadJson:
    """Created at 9:00."""
    return WorkloadJson(name, pods=1, gpus_per_pod=gpus)


CREATED = NOON - timedelta(hours=3)
LOST = CREATED + timedelta(seconds=1)
"""When the builder's conditions were last changed."""


def test_a_workload_that_was_pending_before_this_process_began_waits_by_its_own_conditions() -> None:
    cluster = Watched()
    cluster.put(workload("new"))
    cluster.put(workload("without-quota").waiting("no quota"))
    assert cluster.since() == {"new": CREATED, "without-quota": LOST}


def test_a_workload_is_pending_until_it_is_admitted_and_not_only_until_it_has_quota() -> None:
    cluster = Watched()
    cluster.put(workload(gpus=0).waiting(""))  # asks for no GPU
    cluster.put(workload().waiting(""))
    cluster.put(workload().reserved(), when=at(10))
    [waiting] = cluster.pending.pending()
    assert (waiting.stage, waiting.reason) == ("AdmissionCheck", "WaitingForAdmissionChecks")
    cluster.put(workload().admitted(), when=at(40))
    assert cluster.admitted == [("cluster-queue", at(40) - LOST)]
    assert cluster.since() == {}


def test_a_workload_that_lost_its_quota_or_is_resumed_begins_anew() -> None:
    for before in (workload().admitted(), workload().waiting("").deactivated()):
        cluster = Watched()
        cluster.put(before)
        assert (cluster.since(), cluster.admitted) == ({}, []), "what ran before was not admitted just now"
        cluster.put(workload().waiting("preempted"), when=at(100))
        assert cluster.since() == {"w": at(100)}
        cluster.put(workload().admitted(), when=at(130))
        cluster.put(workload().admitted().with_annotations({"a": "b"}), when=at(150))
        assert [waited for _, waited in cluster.admitted] == [timedelta(seconds=30)], "once"


ENDS: dict[str, Callable[[Watched], None]] = {
    "deleted": lambda cluster: cluster.drop("w"),
    "being deleted": lambda cluster: cluster.put(ending()),
    "finished": lambda cluster: cluster.put(workload().waiting("").condition("Finished", True)),
    "deactivated": lambda cluster: cluster.put(workload().waiting("").deactivated()),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_workload_is_pending_until(end: Callable[[Watched], None]) -> None:
    cluster = Watched()
    cluster.put(workload().waiting(""))
    end(cluster)
    assert (cluster.since(), cluster.admitted) == ({}, [])


def ending() -> WorkloadJson:
    json = workload().waiting("")
    json.json["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    return json


def test_gpus_are_those_of_all_pods_as_admitted() -> None:
    asked = WorkloadJson(pods=3, gpus_per_pod=4)
    assert requested_gpus(asked.decoded(), GPUS) == 12
    part = WorkloadJson(pods=3, gpus_per_pod=4).with_status(
        admission={"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 2}]}
    )
    assert requested_gpus(part.decoded(), GPUS) == 8  # partial admission: 2 × 4


# ---- reasons


def no_plan(gang: str) -> NoPlan:
    return NoPlan(gang=gang, why=NoPlanReason.NOT_ENOUGH_IDLE, message="")


def held(gang: str) -> CheckedWorkload:
    return pending(gang, CheckReason.PODS_ENDING)


@pytest.fixture
def cluster() -> Watched:
    found = Watched()
    found.put(workload("quota").waiting(""))
    found.put(workload("check").reserved())
    return found


def reasons(cluster: Watched) -> dict[str, str]:
    return {each.key.removeprefix("demo/"): each.reason for each in cluster.pending.pending()}


UNREPORTED = {"quota": "WaitingForQuota", "check": "WaitingForAdmissionChecks"}


def test_reasons_are_those_of_the_latest_report_of_each(cluster: Watched) -> None:
    assert reasons(cluster) == UNREPORTED
    cluster.reasons.planned(ReclaimReport(at=NOON, refused=(no_plan("demo/quota"),)))
    cluster.reasons.checked(AdmissionReport(plan=AdmissionPlan(at=NOON, workloads=(held("demo/check"),))))
    assert reasons(cluster) == {"quota": "NotEnoughIdle", "check": "PodsEnding"}
    # Not every report of plans is about every gang, but one of checks is about all that are held.
    cluster.reasons.planned(ReclaimReport(at=NOON))
    cluster.reasons.checked(AdmissionReport(plan=AdmissionPlan(at=NOON)))
    assert reasons(cluster) == {"quota": "NotEnoughIdle", "check": "WaitingForAdmissionChecks"}
    cluster.put(workload("quota").waiting("").deactivated())
    assert reasons(cluster).keys() == {"check"}
    cluster.put(workload("quota").waiting(""))
    assert reasons(cluster) == UNREPORTED, "it waits anew"
    # Another replica leads now: what it finds is not known here.
    cluster.reasons.planned(ReclaimReport(at=NOON, refused=(no_plan("demo/quota"),)))
    cluster.reasons.forget()
    assert reasons(cluster) == UNREPORTED


def test_a_plan_is_a_reason_for_as_long_as_it_is_under_way(cluster: Watched) -> None:
    grant = Grant(plan="p", gang="demo/quota", gang_uid="u", victims=("demo/a",), granted_at=NOON, expires_at=at(300))
    active = ActivePlan(grant=grant, gang=None, gang_state=GangState.WAITING, victims=())
    for under_way in (ReclaimReport(at=NOON, made=(plan("demo/quota"),)), ReclaimReport(at=NOON, active=(active,))):
        cluster.reasons.planned(under_way)
        assert reasons(cluster)["quota"] == "PlanUnderWay"
        cluster.reasons.planned(ReclaimReport(at=NOON))
        assert reasons(cluster)["quota"] == "WaitingForQuota"


def plan(gang: str) -> ReclaimPlan:
    nothing: dict[str, Any] = {"free_before": {}, "free_after": {}, "takes": {}, "assignments": (), "placement": None}
    return ReclaimPlan(id="p", gang=gang, gang_uid="u", cluster_queue="cq", victims=(), cost=0, **nothing)
