"""Who waits for GPUs, and since when."""

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
from scaler.decision.target_state import Grant
from scaler.kube.object_cache import Change
from scaler.kube.objects.kueue_workloads import Workload
from scaler.quota.watch import NotSynced
from scaler.reclaim.active_plans import ActivePlan
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.search.values import NoPlan, NoPlanReason, ReclaimPlan
from scaler.reclaim.transitions import GangState
from scaler.reporting.pending_workloads import AdmittedWorkload, PendingWorkloads, QueueNames, requested_gpus
from scaler.reporting.waiting_reasons import ReportedReasons


class Town:
    """A cluster of one kind of object, whose watch reports every change."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster()
        self.admitted: list[AdmittedWorkload] = []
        self.reasons = ReportedReasons()
        self.waits = PendingWorkloads(
            self.cluster.read(),
            QueueNames(quota=lambda: NotSynced("not listed yet")),
            self.reasons,
            admitted=self.admitted.append,
            clock=lambda: self.now,
        )

    def hears(self, json: WorkloadJson, *, when: datetime | None = None) -> None:
        self.now = when or self.now
        new = json.decoded()
        old = self.cluster.workloads.get(*new.metadata.key)
        self.cluster.workloads.put(new)
        self.waits.heard(Change(new.metadata.key, old, new))

    def drops(self, name: str) -> None:
        old = self.cluster.workloads.get("demo", name)
        self.cluster.workloads.drop(name)
        self.waits.heard(Change(("demo", name), old, None))

    def since(self) -> dict[str, datetime]:
        return {each.key.removeprefix("demo/"): each.since for each in self.waits.pending()}


def workload(name: str = "w", *, gpus: int = 2) -> WorkloadJson:
    """Created at 9:00."""
    return WorkloadJson(name, pods=1, gpus_per_pod=gpus)


CREATED = NOON - timedelta(hours=3)
LOST = CREATED + timedelta(seconds=1)
"""When the builder's conditions were last changed."""


@pytest.mark.parametrize(
    ("json", "since"),
    [
        pytest.param(workload(), CREATED, id="since it was created, where Kueue has said nothing yet"),
        pytest.param(workload().waiting("no quota"), LOST, id="since Kueue says that it has no quota"),
    ],
)
def test_of_what_waited_before_this_process_its_own_conditions_tell(json: WorkloadJson, since: datetime) -> None:
    town = Town()
    town.hears(json)
    assert town.since() == {"w": since}


def test_one_waits_until_it_is_admitted_and_not_only_until_it_has_quota() -> None:
    town = Town()
    town.hears(workload(gpus=0).waiting(""))  # asks for no GPU
    town.hears(workload().waiting(""))
    town.hears(workload().reserved(), when=at(10))
    [waiting] = town.waits.pending()
    assert (waiting.stage, waiting.reason) == ("AdmissionCheck", "WaitingForAdmissionChecks")
    town.hears(workload().admitted(), when=at(40))
    assert town.admitted == [AdmittedWorkload(cluster_queue="cluster-queue", waited=at(40) - LOST)]
    assert town.since() == {}


def test_one_that_lost_its_quota_begins_anew() -> None:
    town = Town()
    town.hears(workload().admitted())
    town.hears(workload().waiting("preempted"), when=at(100))
    assert town.since() == {"w": at(100)}
    town.hears(workload().admitted(), when=at(130))
    assert [each.waited for each in town.admitted] == [timedelta(seconds=30)]


def test_nights_that_one_was_asleep_are_no_waiting() -> None:
    town = Town()
    town.hears(workload().waiting("").deactivated())
    assert town.since() == {}
    town.hears(workload().waiting(""), when=at(100))
    assert town.since() == {"w": at(100)}


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda town: town.drops("w"), id="deleted"),
        pytest.param(lambda town: town.hears(ending()), id="told to be deleted"),
        pytest.param(lambda town: town.hears(workload().waiting("").condition("Finished", True)), id="finished"),
        pytest.param(lambda town: town.hears(workload().waiting("").deactivated()), id="deactivated"),
    ],
)
def test_nobody_waits_for_ever(end: Callable[[Town], None]) -> None:
    town = Town()
    town.hears(workload().waiting(""))
    end(town)
    assert town.since() == {}
    assert town.admitted == []


def ending() -> WorkloadJson:
    json = workload().waiting("")
    json.json["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    return json


def test_one_is_admitted_once_whatever_changes_afterwards() -> None:
    town = Town()
    town.hears(workload().waiting(""))
    town.hears(workload().admitted(), when=at(40))
    town.hears(workload().admitted().with_annotations({"a": "b"}), when=at(50))
    assert len(town.admitted) == 1


def test_what_runs_when_this_process_starts_was_not_admitted_just_now() -> None:
    town = Town()
    town.hears(workload().admitted())
    assert town.admitted == []


def test_gpus_are_those_of_all_pods_as_admitted() -> None:
    asked = WorkloadJson(pods=3, gpus_per_pod=4)
    assert requested_gpus(asked.decoded(), GPUS) == 12
    part = WorkloadJson(pods=3, gpus_per_pod=4).with_status(
        admission={"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 2}]}
    )
    assert requested_gpus(part.decoded(), GPUS) == 8  # partial admission: 2 × 4
    found: Workload = asked.decoded()
    assert found.status.admission is None


# ---- reasons


def no_plan(gang: str) -> NoPlan:
    return NoPlan(gang=gang, why=NoPlanReason.NOT_ENOUGH_IDLE, message="")


def held(gang: str) -> CheckedWorkload:
    return pending(gang, CheckReason.PODS_ENDING)


@pytest.fixture
def town() -> Town:
    found = Town()
    found.hears(workload("quota").waiting(""))
    found.hears(workload("check").reserved())
    return found


def reasons(town: Town) -> dict[str, str]:
    return {each.key.removeprefix("demo/"): each.reason for each in town.waits.pending()}


UNREPORTED = {"quota": "WaitingForQuota", "check": "WaitingForAdmissionChecks"}


def test_a_workload_of_which_no_controller_has_reported_is_pending_all_the_same(town: Town) -> None:
    assert reasons(town) == UNREPORTED


def test_reasons_are_those_of_the_latest_report_of_each(town: Town) -> None:
    town.reasons.planned(ReclaimReport(at=NOON, refused=(no_plan("demo/quota"),)))
    town.reasons.checked(AdmissionReport(plan=AdmissionPlan(at=NOON, workloads=(held("demo/check"),))))
    assert reasons(town) == {"quota": "NotEnoughIdle", "check": "PodsEnding"}
    # Not every report of plans is about every gang, but one of checks is about all that are held.
    town.reasons.planned(ReclaimReport(at=NOON))
    town.reasons.checked(AdmissionReport(plan=AdmissionPlan(at=NOON)))
    assert reasons(town) == {"quota": "NotEnoughIdle", "check": "WaitingForAdmissionChecks"}
    town.hears(workload("quota").waiting("").deactivated())
    assert reasons(town).keys() == {"check"}
    town.hears(workload("quota").waiting(""))
    assert reasons(town) == UNREPORTED, "it waits anew"


def test_what_another_leader_reports_is_not_known_here(town: Town) -> None:
    town.reasons.planned(ReclaimReport(at=NOON, refused=(no_plan("demo/quota"),)))
    town.reasons.forget()
    assert reasons(town) == UNREPORTED


def test_a_plan_is_a_reason_for_as_long_as_it_is_under_way(town: Town) -> None:
    grant = Grant(plan="p", gang="demo/quota", gang_uid="u", victims=("demo/a",), granted_at=NOON, expires_at=at(300))
    standing = ActivePlan(grant=grant, gang=None, gang_state=GangState.WAITING, members=())
    for under_way in (ReclaimReport(at=NOON, made=(plan("demo/quota"),)), ReclaimReport(at=NOON, standing=(standing,))):
        town.reasons.planned(under_way)
        assert reasons(town)["quota"] == "PlanUnderWay"
        town.reasons.planned(ReclaimReport(at=NOON))
        assert reasons(town)["quota"] == "WaitingForQuota"


def plan(gang: str) -> ReclaimPlan:
    nothing: dict[str, Any] = {"free_before": {}, "free_after": {}, "takes": {}, "assignments": (), "placement": None}
    return ReclaimPlan(id="p", gang=gang, gang_uid="u", cluster_queue="cq", victims=(), cost=0, **nothing)
