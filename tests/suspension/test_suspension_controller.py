"""The leader's loop against the embedded API: where it looks, how it fails, and that it stops when it has to."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from builders import ACTIVE, INACTIVE, NO_ANSWER, a_target, decision
from small_cluster import NAME, WORKLOAD_NAME, SmallCluster, until
from suspension.replica import TARGET, Replica, replica
from virtual_clock import VirtualClock

from scaler.decision.decision import Inactive
from scaler.decision.reasons import DecisionReason
from scaler.errors import NOT_LEADING, KubeError
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD, Resource
from scaler.kube.writes import LeaderApi
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.targets.target_state import Phase
from scaler.targets.workloads import WAKE_ANNOTATION

DEPLOYMENT = ScaleTargetRef(api_version="apps/v1", kind="Deployment", name=NAME)


@pytest.fixture
async def running(cluster: SmallCluster, leader: Replica):
    """A gang that runs, and a leader that is at work and has nothing left to do."""
    await cluster.run_gang()
    async with leader.leads():
        await until(lambda: cluster.has_phase("Running"))
        yield cluster


async def quiet(leader: Replica, seconds: float = 0.3) -> int:
    """How many calls were made to the API in that time."""
    before = len(leader.calls)
    await asyncio.sleep(seconds)
    return len(leader.calls) - before


# ---------------------------------------------------------------------------------------------------- where it looks


async def test_a_scale_is_followed_to_sleep_and_back_without_an_evaluation(running, leader):
    await running.scale(0)
    await until(lambda: running.has_phase("Suspending"))
    assert not await running.is_active()
    await running.evict()
    await running.end_pods()
    await running.release()
    await until(lambda: running.has_phase("Suspended"))
    await running.scale(1)
    await until(running.is_active)
    await until(lambda: running.has_phase("WaitingForQuota"))


async def test_pods_that_do_not_name_their_workload_are_seen_to_end(cluster, leader):
    """Those that Kueue does not annotate, with its gate TopologyAwareScheduling switched off."""
    leader.leading.look_again = timedelta(milliseconds=100)
    await cluster.wants(0)
    await cluster.submit()
    await cluster.admit()
    await cluster.run_pods(annotated=False)
    async with leader.leads():
        await until(lambda: cluster.has_phase("Suspending"))
        await cluster.evict()
        await cluster.release()
        await asyncio.sleep(0.2)
        assert await cluster.has_phase("Suspending")
        await cluster.end_pods()
        await until(lambda: cluster.has_phase("Suspended"))


async def test_a_workload_that_appears_is_taken_up(cluster, leader):
    await cluster.wants(0)
    async with leader.leads():
        await until(lambda: cluster.has_phase("NoWorkload"))
        await cluster.submit()
        await until(lambda: cluster.has_phase("Suspended"))
    assert not await cluster.is_active()


async def test_an_evaluation_is_written_where_it_changed_something(running, leader):
    leader.decides(decision(NO_ANSWER))
    await until(lambda: shows(running, "StaleSamples"))
    leader.patches.clear()
    for _ in range(5):
        leader.decides(decision(NO_ANSWER))
        await asyncio.sleep(0.02)
    assert leader.patches == []
    leader.decides(decision(ACTIVE))
    await until(lambda: shows(running, "GPUsBusy"))


async def shows(cluster: SmallCluster, reason: str | None) -> bool:
    return (await cluster.status()).get("reason") == reason


async def test_the_end_of_a_scaled_object_is_seen_in_the_status(running, leader):
    leader.decides(decision(ACTIVE))
    await until(lambda: shows(running, "GPUsBusy"))
    leader.decides()
    await until(lambda: shows(running, None))


async def test_targets_of_other_kinds_are_none_of_its_business(running, leader):
    """Also not where a Deployment has the name of a ScalableWorkload."""
    leader.decides(decision(ACTIVE), target=DEPLOYMENT)
    await asyncio.sleep(0.1)
    rounds = len(leader.rounds)
    for answer in (NO_ANSWER, INACTIVE, ACTIVE):
        leader.decides(decision(answer), target=DEPLOYMENT)
        await asyncio.sleep(0.03)
    assert len(leader.rounds) == rounds


async def test_a_quiet_cluster_costs_no_calls(running, leader):
    assert await leader.recorder.drain(30)
    await until(lambda: has_come_to_rest(leader))
    assert await quiet(leader) == 0


async def has_come_to_rest(leader: Replica) -> bool:
    return await quiet(leader) == 0


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.fixture
async def paced(cluster: SmallCluster) -> AsyncIterator[tuple[VirtualClock, Replica]]:
    """A gang that runs, and a leader that waits by a clock that stands still."""

    async def runs() -> bool:
        await clock.advance(1.0)
        return await cluster.has_phase("Running")

    clock = VirtualClock()
    async with replica(cluster, clock) as leader:
        await cluster.run_gang()
        async with leader.leads():
            await until(runs)
            leader.rounds.clear()
            yield clock, leader


def refused(leader: Replica) -> int:
    """Rounds that ended because the API refused; conflicts come and go by themselves."""
    return sum(isinstance(error, KubeError) and error.status == 500 for error in leader.rounds)


async def test_an_api_that_refuses_is_asked_less_and_less(cluster, paced):
    clock, leader = paced
    with cluster.refusing("PATCH", WORKLOAD_NAME):
        await cluster.scale(0)
        await until(lambda: refused(leader) == 1)
        for tries, wait in enumerate((0.5, 1.0, 2.0), start=1):
            await clock.advance(wait - 0.01)
            assert refused(leader) == tries
            await clock.advance(0.01)
            await until(lambda due=tries + 1: refused(leader) == due)
        assert len(leader.workload_patches) == 4
        assert leader.rounds[-1].status == 500
        assert await cluster.is_active()


async def test_a_conflict_is_looked_at_again(running, leader):
    """Somebody else changed the object between the look and the write."""
    running.api.faults.fail_next(1, status=409, method="PATCH", path_part=WORKLOAD_NAME)
    await running.scale(0)
    await until(lambda: running.has_phase("Suspending"))
    assert not await running.is_active()
    assert {error.status for error in leader.rounds if error} == {409}


async def test_an_internal_error_is_reported_and_others_are_still_reconciled(running, leader):
    """A round that breaks is no round that went well."""

    class Broken(SuspensionReconciler):
        async def reconcile(self, key):
            if key[1] == NAME:
                raise ZeroDivisionError("a fault of ours")
            return await super().reconcile(key)

    leader.leading.reconciler = Broken(leader.transport, leader.copies, leader.decision_cache, leader.recorder)
    leader.rounds.clear()
    await running.scale(0)
    await running.wants(1, name="other", workloadRef={"name": "nobody"})
    await until(lambda: running.status("other"))
    assert {type(error) for error in leader.rounds if error} == {ZeroDivisionError}


# ------------------------------------------------------------------------------------------------ wake annotations


UP = decision(ACTIVE)
DOWN = decision(
    Inactive(reason=DecisionReason.SUSPENDED, message="suspended"),
    target=a_target(desired_replicas=0, phase=Phase.SUSPENDED, running_since=None),
)


async def wake_annotation(cluster: SmallCluster, on: Resource = SCALED_OBJECT) -> str | None:
    annotations = (await cluster.read(on, NAME))["metadata"].get("annotations", {})
    return annotations.get(WAKE_ANNOTATION)


async def annotated(running: SmallCluster, leader: Replica, value: str = "true", on: Resource = SCALED_OBJECT) -> None:
    await running.is_scaled_by({})
    await running.annotate(on, NAME, WAKE_ANNOTATION, value)
    await until(leader.is_current)


@pytest.mark.parametrize("target", [TARGET, DEPLOYMENT], ids=lambda each: each.kind)
async def test_a_wake_annotation_is_removed_once_when_its_target_is_scaled_to_1(running, leader, target):
    await annotated(running, leader)
    leader.decides(DOWN, target=target)
    await asyncio.sleep(0.1)
    assert await wake_annotation(running) == "true"
    leader.decides(UP, target=target)
    await until(lambda: has_no_wake_annotation(running))
    await until(leader.is_current)
    for _ in range(3):
        leader.decides(UP, target=target)
        await asyncio.sleep(0.05)
    assert await wake_annotation(running) is None
    assert len(leader.patches_of(SCALED_OBJECT, NAME)) == 1


@pytest.mark.parametrize("on", [SCALED_OBJECT, SCALABLE_WORKLOAD], ids=lambda each: each.kind)
async def test_a_wake_annotation_that_is_set_while_it_is_being_suspended_stays(running, leader, on):
    """Replicas is still 1 then, and KEDA has the answer 0."""
    leader.decides(decision(INACTIVE))
    await until(lambda: shows(running, "GPUsIdle"))
    await annotated(running, leader, on=on)
    leader.decides(decision(INACTIVE))
    await asyncio.sleep(0.1)
    assert await wake_annotation(running, on) == "true"


async def test_a_wake_annotation_with_the_value_false_stays(running, leader):
    await annotated(running, leader, "false")
    leader.decides(UP)
    await asyncio.sleep(0.1)
    assert await wake_annotation(running) == "false"


async def test_a_wake_annotation_activates_what_another_client_deactivated_and_only_then_goes(running, leader):
    await running.change(WORKLOAD, WORKLOAD_NAME, {"spec": {"active": False}})
    await running.evict()
    await until(lambda: running.has_phase("DeactivatedByOther"))
    await annotated(running, leader)
    leader.decides(UP)
    await asyncio.sleep(0.1)
    assert await wake_annotation(running) == "true"  # its quota is not released yet
    await running.end_pods()
    await running.release()
    await until(running.is_active)
    leader.decides(UP)
    await until(lambda: has_no_wake_annotation(running))


async def has_no_wake_annotation(cluster: SmallCluster) -> bool:
    return await wake_annotation(cluster) is None


async def test_a_wake_annotation_that_cannot_be_removed_backs_off(cluster, paced):
    clock, leader = paced
    await annotated(cluster, leader)
    with cluster.refusing("PATCH", "/scaledobjects/"):
        leader.decides(UP)
        await until(lambda: refused(leader) == 1)
        for _ in range(20):
            leader.decides(UP)
            await clock.advance(0.02)
        assert refused(leader) == 1, "an evaluation alone is no reason to try again"
        await clock.advance(0.1)
        await until(lambda: refused(leader) == 2)
    assert len(leader.patches_of(SCALED_OBJECT, NAME)) == 2


# --------------------------------------------------------------------------------------------- the end of leadership


async def test_after_leadership_nothing_is_written(cluster, leader):
    await cluster.wants(1)
    await cluster.submit()
    async with leader.leads():
        await until(lambda: cluster.has_phase("WaitingForQuota"))
    leader.patches.clear()
    await cluster.is_scaled_by({})
    await cluster.annotate(SCALED_OBJECT, NAME, WAKE_ANNOTATION, "true")
    await cluster.scale(0)
    leader.decides(UP)
    await asyncio.sleep(0.2)
    assert leader.patches == []
    assert await cluster.is_active()


async def test_leadership_that_is_lost_in_the_midst_of_work_leaves_the_rest_undone(cluster, leader):
    names = [f"notebook-{number}" for number in range(20)]
    for name in names:
        await cluster.wants(1, name=name, workloadRef={"name": name})
    await until(leader.is_current)
    cluster.api.faults.latency_seconds = 0.05
    async with leader.leads():
        await until(lambda: len(leader.patches) > 3)
    cluster.api.faults.latency_seconds = 0.0
    written = len(leader.patches)
    await asyncio.sleep(0.2)
    assert len(leader.patches) == written < len(names)


async def test_leadership_that_returns_goes_on(cluster, leader):
    await cluster.wants(1)
    await cluster.submit()
    for replicas in (0, 1, 0):
        await cluster.scale(replicas)
        async with leader.leads():
            await until(lambda wanted=bool(replicas): has_activity(cluster, wanted))


async def has_activity(cluster: SmallCluster, wanted: bool) -> bool:
    return await cluster.is_active() is wanted


async def test_a_write_is_not_sent_once_the_lease_is_lost(running, leader):
    """As after a pause of the process, when the work goes on before anybody has noticed."""
    leads = True

    class AfterTheLook(LeaderApi):
        async def get(self, path):
            nonlocal leads
            leads = False
            return await super().get(path)

    api = AfterTheLook(leader.transport, is_leader=lambda: leads)
    leader.leading.reconciler = SuspensionReconciler(api, leader.copies, leader.decision_cache, leader.recorder)
    leader.patches.clear()
    await running.scale(0)
    await until(lambda: any(leader.rounds))
    failure = leader.rounds[-1]
    assert isinstance(failure, KubeError)
    assert failure.reason == NOT_LEADING
    assert leader.patches == []
    assert await running.is_active()
