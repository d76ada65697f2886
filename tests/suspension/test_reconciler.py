"""The reconciler against the embedded API, one round at a time; Kueue, KEDA and the owner are played by the test."""

import json
from dataclasses import replace
from datetime import datetime

import pytest
from builders import (
    ACTIVE,
    INACTIVE,
    NOON,
    WorkloadJson,
    a_target,
    at,
    decision,
    gpu_evidence,
    minutes,
    policy,
    verdict,
)
from loops_builders import MemoryStore
from small_cluster import NAME, NAMESPACE_NAME, WORKLOAD_NAME, SmallCluster, until
from suspension.replica import Replica, replica

from scaler.decision.decision import Active, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.errors import KubeError
from scaler.idleness.policy import Limit
from scaler.idleness.verdict import Idle
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.kube.reflector import NotWatched
from scaler.reclaim.policy_budgets import PolicyBudgets
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.targets.cluster_state import ClusterState, workload_indexes
from scaler.targets.target_state import Phase, WakeCause, WakeRequest, state_of
from scaler.targets.workloads import SUSPENDED_ANNOTATION, WAKE_ANNOTATION

IDLE_SINCE = at(-1800)
GPUS_IDLE = decision(INACTIVE, idle_since=IDLE_SINCE)
SUSPENDED = decision(
    Inactive(reason=DecisionReason.SUSPENDED, message="suspended; no wake-up requested"),
    target=a_target(desired_replicas=0, phase=Phase.SUSPENDED, running_since=None),
    verdict=None,
)
WAKING = decision(
    Active(reason=DecisionReason.WAKING, message="wake-up requested"),
    target=a_target(desired_replicas=0, phase=Phase.SUSPENDED, running_since=None),
    verdict=None,
)


@pytest.fixture
async def running(cluster: SmallCluster, leader: Replica) -> SmallCluster:
    """A gang that Kueue has admitted, whose pods run, and whose status says so."""
    await cluster.run_gang()
    leader.decides(decision(ACTIVE))
    await leader.reconciles()
    return cluster


@pytest.fixture
async def suspended(running: SmallCluster, leader: Replica) -> SmallCluster:
    """The same, put to sleep for being idle; Kueue has released its quota and its pods are gone."""
    leader.decides(GPUS_IDLE)
    await leader.reconciles()
    await running.scale(0)
    await leader.reconciles()
    await running.evict()
    await running.end_pods()
    await running.release()
    leader.decides(SUSPENDED)
    await leader.reconciles()
    assert (await running.status())["phase"] == "Suspended"
    leader.patches.clear()
    return running


async def cause(cluster: SmallCluster):
    """What the Workload's annotation says; None where there is none."""
    annotations = (await cluster.observed_workload())["metadata"].get("annotations", {})
    return json.loads(annotations[SUSPENDED_ANNOTATION]) if SUSPENDED_ANNOTATION in annotations else None


# ------------------------------------------------------------------------------------------------------- going to sleep


async def test_zero_replicas_are_one_patch_that_says_when_by_whom_why_and_by_which_evidence(running, leader):
    before = (await running.observed_workload())["metadata"]
    leader.decides(GPUS_IDLE)
    await leader.reconciles()
    await running.scale(0)
    await leader.reconciles()
    [patch] = leader.workload_patches
    assert list(patch["metadata"].pop("annotations")) == [SUSPENDED_ANNOTATION]
    assert patch == {
        "metadata": {"uid": before["uid"], "resourceVersion": before["resourceVersion"]},
        "spec": {"active": False},
    }
    after = await running.observed_workload()
    assert after["spec"]["active"] is False
    assert [c["type"] for c in after["status"]["conditions"]] == ["QuotaReserved", "Admitted", "Evicted"]
    noted = await cause(running)
    assert noted.pop("at").endswith("Z")
    [gpu] = noted.pop("evidence")
    assert noted == {
        "by": "ScalableWorkload/first-raycluster",
        "reason": "GPUsIdle",
        "message": "every required GPU stayed below 1 % for 30m",
        "idleSince": "2026-12-01T11:30:00Z",
    }
    assert (gpu["gpu"], gpu["pod"], gpu["verdict"]) == ("GPU-0", "worker-0", "Idle")
    assert {signal["peakPercent"] for signal in gpu["signals"]} == {"0"}
    assert await leader.recorder.drain(2)
    message = f"deactivated Workload {WORKLOAD_NAME}: every required GPU stayed below 1 % for 30m"
    assert {("ScalableWorkload", "GPUsIdle", message), ("Workload", "GPUsIdle", message)} <= set(await running.events())


async def test_a_large_gang_does_not_bloat_the_annotation(running, leader):
    gpus = [gpu_evidence(gpu=f"GPU-{number}") for number in range(100)]
    leader.decides(decision(INACTIVE, verdict=verdict(Idle(), *gpus)))
    await running.scale(0)
    await leader.reconciles()
    assert len((await cause(running))["evidence"]) == 8


async def test_scaling_by_hand_is_not_recorded_as_idle_gpus(running, leader):
    await running.scale(0)
    await leader.reconciles()
    assert (await cause(running))["reason"] == "ScaledToZero"


async def test_a_new_leader_knows_the_reason_from_the_status(running, leader, cluster):
    """KEDA has acted on a decision of a process that has ended."""
    leader.decides(GPUS_IDLE)
    await leader.reconciles()
    async with replica(cluster) as successor:
        await running.scale(0)
        await successor.reconciles()
        told = await cause(running)
    assert (told["reason"], told["idleSince"]) == ("GPUsIdle", "2026-12-01T11:30:00Z")
    assert told["evidence"][0]["gpu"] == "GPU-0"


async def test_a_scale_up_that_the_copy_has_not_seen_calls_the_suspension_off(running, leader):
    await running.scale(0)
    await leader.reconciles(0)
    await until_seen(leader, replicas=0)
    running.api.faults.silence_watches = True
    await running.scale(1)
    leader.patches.clear()
    await leader.reconciler.reconcile((NAMESPACE_NAME, NAME))
    assert leader.patches == []
    assert await running.is_active()
    assert "ScaledToZero" not in await leader.reasons()


async def until_seen(leader: Replica, *, replicas: int) -> None:
    await until(lambda: leader.reflectors.scalable_workloads.get(NAMESPACE_NAME, NAME).spec.replicas == replicas)


async def test_a_scalable_workload_made_anew_is_not_the_one_that_was_decided_on(running, leader):
    await running.scale(0)
    await until_seen(leader, replicas=0)
    running.api.faults.silence_watches = True
    await running.delete(SCALABLE_WORKLOAD, NAME)
    await running.wants(0)
    await leader.reconciler.reconcile((NAMESPACE_NAME, NAME))
    assert leader.workload_patches == []


async def test_a_workload_that_changed_meanwhile_is_looked_at_again(running, leader):
    await running.scale(0)
    await until_seen(leader, replicas=0)
    running.api.faults.silence_watches = True
    await running.annotate(WORKLOAD, WORKLOAD_NAME, "somebody", "was here")
    with pytest.raises(KubeError) as refused:
        await leader.reconciler.reconcile((NAMESPACE_NAME, NAME))
    assert refused.value.status == 409
    assert await running.is_active()
    running.api.faults.silence_watches = False
    await running.annotate(WORKLOAD, WORKLOAD_NAME, "somebody", "was here again")
    await leader.reconciles()
    assert not await running.is_active()


# ---------------------------------------------------------------------------------------------------------- coming back


async def test_it_does_not_come_back_before_kueue_has_released_its_quota(running, leader):
    await running.scale(0)
    await leader.reconciles()
    await running.evict()
    await running.scale(1)
    leader.patches.clear()
    await leader.reconciles(2)
    assert leader.workload_patches == []
    assert (await running.status())["phase"] == "Suspending"
    await running.release()
    before = (await running.observed_workload())["metadata"]
    await leader.reconciles()
    assert leader.workload_patches == [
        {
            "metadata": {
                "uid": before["uid"],
                "resourceVersion": before["resourceVersion"],
                "annotations": {SUSPENDED_ANNOTATION: None},
            },
            "spec": {"active": True},
        }
    ]
    after = await running.observed_workload()
    assert after["spec"]["active"] is True
    assert SUSPENDED_ANNOTATION not in after["metadata"].get("annotations", {})
    assert "Resumed" in await leader.reasons("Workload")


async def test_a_workload_that_kueue_made_anew_is_put_to_sleep_again(suspended, leader):
    """Kueue recreates a Workload that was deleted or no longer matches its job, and it comes back active."""
    await suspended.recreate_workload()
    fresh = (await suspended.observed_workload())["metadata"]["uid"]
    await leader.reconciles()
    assert not await suspended.is_active()
    assert leader.workload_patches[0]["metadata"]["uid"] == fresh
    await leader.reconciles()
    assert (await suspended.status())["workloadUID"] == fresh
    assert await leader.recorder.drain(2)
    assert any("again (Kueue had recreated it as active)" in message for *_, message in await suspended.events())


async def test_what_another_client_activates_runs_although_its_replicas_are_0(suspended, leader):
    """KEDA may not be there to scale it: nobody takes the activation back, and it is a wake-up until replicas is 1."""
    await suspended.change(WORKLOAD, WORKLOAD_NAME, {"spec": {"active": True}})
    for admit, phase in ((suspended.release, "WaitingForQuota"), (suspended.admit, "Starting")):
        await admit()
        await leader.reconciles(2)
        assert (await suspended.status())["phase"] == phase
        assert leader.workload_patches == []
    scalable = leader.copies.scalable_workloads.get(NAMESPACE_NAME, NAME)
    started = WakeRequest(WakeCause.OTHER, f"Workload {WORKLOAD_NAME} was started")
    assert state_of(leader.copies.situation(scalable)).wake_request == started
    await suspended.scale(1)
    await leader.reconciles()
    assert await cause(suspended) is None, "the next deactivation of that client would count as ours"
    assert await suspended.is_active()


# ------------------------------------------------------------------------------------ what another client deactivated


@pytest.fixture
async def foreign(running: SmallCluster, leader: Replica) -> SmallCluster:
    """A gang that another client has deactivated."""
    await running.change(WORKLOAD, WORKLOAD_NAME, {"spec": {"active": False}})
    await running.evict()
    await running.end_pods()
    await running.release()
    await leader.reconciles()
    return running


async def test_a_deactivation_by_somebody_else_is_reported_and_not_fought(foreign, leader):
    leader.patches.clear()
    await leader.reconciles(3)
    assert leader.patches == []
    status = await foreign.status()
    assert (status["phase"], status.get("replicas", 0)) == ("DeactivatedByOther", 0)
    assert WAKE_ANNOTATION in status["conditions"][0]["message"]
    assert (await leader.reasons()).count("DeactivatedByOther") == 1


@pytest.mark.parametrize("resource", [SCALABLE_WORKLOAD, SCALED_OBJECT], ids=lambda each: each.kind)
async def test_its_owner_can_wake_what_somebody_else_has_deactivated(foreign, leader, resource):
    await foreign.is_scaled_by({})
    await foreign.annotate(resource, NAME, WAKE_ANNOTATION, "true")
    await leader.reconciles(2)
    assert await foreign.is_active()
    assert (await foreign.status())["phase"] == "WaitingForQuota"


async def test_zero_replicas_of_what_was_inactive_already_are_noted_on_it(foreign, leader):
    """So that it is ours to activate, when it is asked to run again."""
    await foreign.scale(0)
    await leader.reconciles(2)
    assert (await cause(foreign))["message"] == "it was inactive already"
    assert (await foreign.status())["phase"] == "Suspended"
    await foreign.scale(1)
    await leader.reconciles()
    assert await foreign.is_active()


# --------------------------------------------------------------------------------------------------- nothing to be done


async def test_a_workload_that_has_vanished_is_missed_once(running, leader):
    await running.delete(WORKLOAD, WORKLOAD_NAME)
    await leader.reconciles(3)
    status = await running.status()
    assert (status["phase"], status.get("replicas", 0), status["workloadName"]) == ("NoWorkload", 0, WORKLOAD_NAME)
    assert (await leader.reasons()).count("WorkloadMissing") == 1


async def test_in_a_namespace_that_cannot_be_seen_whole_nothing_is_done(running, leader):
    """Its Workloads are hidden, which is not the same as that there are none."""
    names = "scaled_objects", "scalable_workloads", "pods", "gpus", "switched"
    copies = {name: getattr(leader.copies, name) for name in names}
    blind = ClusterState(**copies, workloads=Hidden())
    reconciler = SuspensionReconciler(leader.transport, blind, leader.decision_cache, leader.recorder)
    leader.patches.clear()
    with pytest.raises(KubeError, match="namespace demo cannot be seen whole, so nothing is done in it: Workloads: "):
        await reconciler.reconcile((NAMESPACE_NAME, NAME))
    assert leader.patches == []


class Hidden(MemoryStore):
    """A copy of namespaces of which this one is refused."""

    def __init__(self):
        super().__init__(workload_indexes())
        self.hidden = {NAMESPACE_NAME: NotWatched(NAMESPACE_NAME)}


async def test_a_workload_that_is_not_there_yet_is_no_loss(cluster, leader):
    await cluster.wants(1)
    await leader.reconciles()
    assert (await cluster.status())["phase"] == "NoWorkload"
    assert await leader.reasons() == []


@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_plain_pod_is_refused(cluster, leader, replicas):
    """Deactivating its Workload would delete the pod, with nothing left to come back."""
    await cluster.wants(replicas, workloadRef={"name": "pod-notebook-1a2b3"})
    await cluster.submit(WorkloadJson("pod-notebook-1a2b3").owned_by("v1", "Pod", "notebook"))
    await cluster.admit()
    await leader.reconciles(2)
    assert await cluster.is_active()
    assert leader.patches_of(WORKLOAD, "pod-notebook-1a2b3") == []
    assert (await cluster.status())["phase"] == "Refused"
    assert await leader.reasons() == ["UnsupportedWorkload"]


async def test_a_scalable_workload_that_is_being_deleted_does_nothing_more(running, leader):
    await running.change(SCALABLE_WORKLOAD, NAME, {"metadata": {"finalizers": ["example.com/hold"]}})
    await running.scale(0)
    await running.kube.delete(SCALABLE_WORKLOAD.path(NAMESPACE_NAME, NAME))
    leader.patches.clear()
    await leader.reconciles()
    assert leader.patches == []


async def test_of_two_scalable_workloads_of_one_workload_only_the_older_acts(running, leader):
    """Two that disagree would start and stop the job for ever."""
    await running.wants(0, name="second-thought", workloadRef={"name": WORKLOAD_NAME})
    leader.patches.clear()
    await leader.reconciles(name="second-thought")
    assert leader.workload_patches == []
    status = await running.status("second-thought")
    assert status["phase"] == "Refused"
    assert "ScalableWorkload first-raycluster" in status["conditions"][0]["message"]
    await running.delete(SCALABLE_WORKLOAD, NAME)
    await leader.reconciles(name="second-thought")
    assert not await running.is_active()


# --------------------------------------------------------------------------------------------------------------- status


async def test_a_leader_that_has_not_evaluated_yet_keeps_what_the_status_says(running, leader, cluster):
    """After a restart the window is rebuilt first. Until then the last decision of the old process is all there is."""
    leader.decides(GPUS_IDLE)
    await leader.reconciles()
    told = await running.status()
    async with replica(cluster) as successor:
        await running.run_pods("worker-2")
        await running.scale(1)
        await successor.reconciles()
        assert await running.status() == told


async def test_its_owner_is_warned_once_before_it_is_suspended(running, leader):
    soon = Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="not long enough")
    for tick in range(3):
        now = at(15 * tick)
        leader.decides(decision(soon, verdict=verdict(), idle_since=at(-1600), decided_at=now))
        await leader.reconciles()
    assert (await leader.reasons()).count("SuspendSoon") == 1
    warned = await running.status()
    assert warned["suspendAt"] == "2026-12-01T12:03:20Z"
    leader.decides(decision(ACTIVE))
    await leader.reconciles()
    assert "warnedAt" not in await running.status()


async def test_the_owner_of_a_deployment_is_warned_in_its_record_and_by_an_event_once(cluster, leader):
    deployment = ScaleTargetRef(name="notebook")
    triggers = [{"type": "external", "metadata": {"scalerAddress": "scaler:9090"}}]
    body = {"scaleTargetRef": {"name": "notebook"}, "triggers": triggers}
    await cluster.create(SCALED_OBJECT, {"metadata": {"name": "notebook"}, "spec": body})
    soon = Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="not long enough")
    asked = policy(warning=minutes(20))
    reconciler = SuspensionReconciler(
        leader.transport, leader.copies, leader.decision_cache, leader.recorder, clock=lambda: NOON
    )

    async def decides(answer: Active, idle_since: datetime | None) -> str | None:
        made = decision(answer, verdict=verdict(), idle_since=idle_since, policy=asked)
        leader.decides(made, target=deployment, name="notebook")
        await until(leader.is_current)
        await reconciler.reconcile_scaled_object(("demo", "notebook"))
        return (await cluster.record("notebook"))["status"].get("warnedAt")

    assert await decides(soon, at(-300)) is None, "5 of 30 minutes: not yet"
    warned_at = await decides(soon, at(-700))
    assert warned_at is not None
    assert await decides(soon, at(-700)) == warned_at
    idle, warned = await leader.events("ScaledObject")
    assert idle == "Idle: not long enough"
    assert warned.startswith("SuspendSoon: GPUs idle since 2026-12-01T11:48:20Z; suspended at ")
    assert await decides(ACTIVE, None) is None, "it worked again"
    record = await cluster.record("notebook")
    assert [each["state"] for each in record["status"]["history"]] == ["Idle", "Warned", "Busy"]
    assert record["spec"]["jobRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "notebook"}


@pytest.mark.parametrize(
    ("before", "end"),
    [({}, "2026-12-01T16:00:00Z"), ({"idlegpu.io/keep-until": "2026-12-02T12:00:00Z"}, "2026-12-02T12:00:00Z")],
)
@pytest.mark.parametrize("resource", [SCALED_OBJECT, SCALABLE_WORKLOAD], ids=str)
async def test_a_keep_for_counts_from_when_the_leader_sees_it(cluster, leader, resource, before, end):
    metadata = {"name": "notebook", "annotations": {"idlegpu.io/keep-for": "4h", **before}}
    spec = {"scaleTargetRef": {"name": "notebook"}, "triggers": []}
    if resource == SCALABLE_WORKLOAD:
        spec = {"replicas": 1, "workloadRef": {"name": "notebook"}}
    await cluster.create(resource, {"metadata": metadata, "spec": spec})
    await until(leader.is_current)
    reconciler = SuspensionReconciler(
        leader.transport, leader.copies, leader.decision_cache, leader.recorder, clock=lambda: NOON
    )
    reconcile = reconciler.reconcile if resource == SCALABLE_WORKLOAD else reconciler.reconcile_scaled_object

    async def annotations():
        await until(leader.is_current)
        await reconcile(("demo", "notebook"))
        return (await cluster.read(resource, "notebook"))["metadata"]["annotations"]

    assert await annotations() == {"idlegpu.io/keep-until": end}
    assert await annotations() == {"idlegpu.io/keep-until": end}, "it does not begin again"


async def test_who_woke_a_workload_is_named_beside_the_request_and_not_whoever_kept_it_before(running, leader, cluster):
    await running.is_scaled_by({})
    await cluster.annotate(SCALABLE_WORKLOAD, NAME, "idlegpu.io/keep-until", "2020-01-01T00:00:00Z")
    await cluster.annotate(SCALABLE_WORKLOAD, NAME, "idlegpu.io/asked-by", "anna")
    await cluster.annotate(SCALED_OBJECT, NAME, "idlegpu.io/wake", "true")
    await cluster.annotate(SCALED_OBJECT, NAME, "idlegpu.io/asked-by", "IdlePolicy/a, WhenFree")
    for reason, by in ((DecisionReason.KEPT, "anna"), (DecisionReason.WAKING, "IdlePolicy/a, WhenFree")):
        leader.decides(decision(Active(reason=reason, message="m")))
        await leader.reconciles()
        await until(leader.is_current)
        assert (await cluster.status())["history"][-1]["by"] == by


async def test_keeps_are_limited_by_the_policy_and_recorded_on_the_scaled_object(running, leader, cluster):
    """Those of the ScaledObject, and those of the Workload, together."""
    await running.is_scaled_by({})
    asked = {"idlegpu.io/keep-until": "2026-12-02T12:00:00Z", "idlegpu.io/asked-by": "anna"}
    for key, value in asked.items():
        await cluster.annotate(SCALED_OBJECT, NAME, key, value)
    limits = policy(longest_keep=minutes(60), keeps_per_week=1)
    leader.decides(decision(ACTIVE, policy=limits))
    reconciler = SuspensionReconciler(
        leader.transport, leader.copies, leader.decision_cache, leader.recorder, clock=lambda: NOON
    )

    async def annotations(resource, name):
        await until(leader.is_current)
        await reconciler.reconcile_scaled_object(("demo", NAME))
        await until(leader.is_current)
        await reconciler.reconcile(("demo", NAME))
        return (await cluster.read(resource, name))["metadata"]["annotations"]

    kept = await annotations(SCALED_OBJECT, NAME)
    assert kept["idlegpu.io/keep-until"] == "2026-12-01T13:00:00Z"
    [use] = json.loads(kept["idlegpu.io/keeps"])
    assert (use["until"], use["by"]) == ("2026-12-01T13:00:00Z", "anna")
    workload = cluster.workload.json["metadata"]["name"]
    await cluster.annotate(WORKLOAD, workload, "idlegpu.io/keep-for", "30m")
    found = await annotations(WORKLOAD, workload)
    assert "idlegpu.io/keep-for" not in found
    assert found["idlegpu.io/keep-until"] == "2026-12-01T13:00:00Z", "what was granted before"
    refused = [each for each in await leader.events("Workload") if each.startswith("KeepRefused")]
    assert refused == [
        "KeepRefused: keep-until until 2026-12-01T12:30:00Z is refused: kept once within a week, and keepsPerWeek is 1"
        "; again from 2026-12-08T12:00:00Z on"
    ]


async def test_a_warning_waits_for_its_budget(running, leader):
    soon = Active(reason=DecisionReason.WARNED, message="no room yet")
    budgets = PolicyBudgets(leader.decision_cache, clock=lambda: NOON)
    leader.reconciler = SuspensionReconciler(
        leader.transport, leader.copies, leader.decision_cache, leader.recorder, budgets=budgets
    )
    await running.is_scaled_by({})
    due = decision(
        soon,
        verdict=verdict(),
        idle_since=IDLE_SINCE,
        policy=policy(warning=minutes(0), suspended_at_once=Limit(count=0)),
    )
    leader.decides(due)
    await leader.reconciles()
    assert "warnedAt" not in await running.status()
    assert budgets.next_in_line() == []
    leader.decides(replace(due, policy=policy(warning=minutes(0), suspended_at_once=Limit(count=1))))
    assert budgets.next_in_line() == [("demo", NAME)]
    await leader.reconciles()
    assert "warnedAt" in await running.status()
    kept = Active(reason=DecisionReason.KEPT, message="kept")
    leader.decides(replace(due, answer=kept))
    await leader.reconciles()
    assert "warnedAt" not in await running.status(), "its place is free"


async def wake_annotation(cluster: SmallCluster) -> str | None:
    annotations = (await cluster.scalable())["metadata"].get("annotations", {})
    return annotations.get(WAKE_ANNOTATION)


async def test_a_wake_annotation_is_removed_once_it_has_taken_effect(suspended, leader):
    await suspended.annotate(SCALABLE_WORKLOAD, NAME, WAKE_ANNOTATION, "true")
    leader.decides(WAKING)
    await leader.reconciles(2)
    assert await wake_annotation(suspended) == "true"
    await suspended.scale(1)
    await leader.reconciles(4)
    assert await wake_annotation(suspended) is None
    removals = [body for body in leader.patches_of(SCALABLE_WORKLOAD, NAME) if WAKE_ANNOTATION in str(body)]
    assert len(removals) == 1
