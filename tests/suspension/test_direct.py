"""What the leader does where no KEDA scales a ScalableWorkload, against the embedded API."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from builders import ACTIVE, INACTIVE, NO_ANSWER, NOON, a_target, at, decision, minutes
from small_cluster import NAME, NAMESPACE_NAME, SmallCluster, until
from suspension.replica import TARGET, Replica, replica
from virtual_clock import VirtualClock

from scaler.app.scaling_objects import ScalingObjects
from scaler.decision.decision import Active, Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.reasons import DecisionReason
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import KubeError
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.suspension.direct import scale_directly, wanted_replicas
from scaler.targets.target_state import Phase
from scaler.targets.workloads import WAKE_ANNOTATION

KEY = NAMESPACE_NAME, NAME
METADATA = {"idleAfter": "30m", "mode": "enforce"}
IDLE = decision(INACTIVE, idle_since=at(-1800))
AT_ZERO = a_target(desired_replicas=0, phase=Phase.SUSPENDED, running_since=None)
SUSPENDED = decision(
    Inactive(reason=DecisionReason.SUSPENDED, message="no wake-up requested"), target=AT_ZERO, verdict=None
)
WAKING = decision(Active(reason=DecisionReason.WAKING, message="wake-up requested"), target=AT_ZERO, verdict=None)
JOB = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME}


@pytest.mark.parametrize(
    ("answer", "replicas", "wanted"),
    [
        pytest.param(INACTIVE, 1, 0, id="idle: it is scaled to 0"),
        pytest.param(INACTIVE, 0, None, id="at 0 already"),
        pytest.param(WAKING.answer, 0, 1, id="woken: it is scaled to 1"),
        pytest.param(ACTIVE, 1, None, id="at 1 already"),
        pytest.param(NO_ANSWER, 1, None, id="unknown: it stays at 1"),
        pytest.param(NO_ANSWER, 0, None, id="unknown: it stays at 0"),
        pytest.param(None, 1, None, id="not decided"),
    ],
)
def test_an_answer_scales_as_it_does_with_keda(answer, replicas, wanted) -> None:
    assert wanted_replicas(answer, replicas) == wanted


@pytest.fixture
async def running(cluster: SmallCluster) -> SmallCluster:
    """A gang that runs, and is to be scaled directly."""
    await cluster.wants(1, jobRef=JOB, actuator="Direct", triggerMetadata=METADATA)
    await cluster.submit()
    await cluster.admit()
    await cluster.run_pods()
    return cluster


async def is_decided(leader: Replica, cluster: SmallCluster, made: Decision) -> Evaluation:
    """Published, on the ScalableWorkload as it is."""
    await until(leader.is_current)
    found = decode(ScalableWorkload, msgspec.json.encode(await cluster.scalable())).metadata
    entry = EvaluatedScaledObject(target=TARGET, triggers={parse_metadata(METADATA): made}, decided_on=found)
    evaluation = Evaluation.of({KEY: entry}, at=NOON)
    leader.decision_cache.publish(evaluation)
    leader.leading.wake()
    return evaluation


async def replicas(cluster: SmallCluster) -> int:
    return int((await cluster.scalable())["spec"]["replicas"])


async def test_an_idle_gang_is_suspended_and_a_woken_one_resumed(running, leader) -> None:
    await is_decided(leader, running, IDLE)
    await leader.reconciles()
    assert await replicas(running) == 0
    status = await running.status()
    assert status["reason"] == "GPUsIdle", "the reason is in the status before it is scaled"
    [direct] = [each for each in status["conditions"] if each["type"] == "Direct"]
    assert (direct["status"], direct["reason"]) == ("True", "NoScaledObject")
    await leader.reconciles()
    assert not await running.is_active()
    await running.evict()
    await running.end_pods()
    await running.release()
    await is_decided(leader, running, SUSPENDED)
    await leader.reconciles(2)
    assert await replicas(running) == 0
    await running.annotate(SCALABLE_WORKLOAD, NAME, WAKE_ANNOTATION, "true")
    await is_decided(leader, running, WAKING)
    await leader.reconciles(2)
    assert await replicas(running) == 1
    assert await running.is_active()


async def test_what_is_unknown_stays_as_it_is(running, leader) -> None:
    await is_decided(leader, running, decision(NO_ANSWER))
    await leader.reconciles(2)
    assert await replicas(running) == 1
    await running.scale(0)
    await is_decided(leader, running, replace(decision(NO_ANSWER), target=AT_ZERO))
    await leader.reconciles(2)
    assert await replicas(running) == 0


async def test_an_answer_that_has_expired_suspends_nothing(running, leader) -> None:
    now = [1000.0]
    cache = DecisionCache(max_age=minutes(10), max_zero_age=minutes(1), clock=lambda: now[0])
    evaluation = await is_decided(leader, running, IDLE)
    cache.publish(evaluation)
    scalable = leader.copies.scalable_workloads.get(*KEY)
    assert scalable is not None
    now[0] += 61
    with pytest.raises(KubeError, match="expired"):
        await scale_directly(leader.transport, leader.copies, cache, scalable)
    assert await replicas(running) == 1
    cache.publish(evaluation)
    await scale_directly(leader.transport, leader.copies, cache, scalable)
    assert await replicas(running) == 0


@pytest.mark.parametrize("change", ["annotation", "scale"])
async def test_what_was_asked_for_a_moment_ago_wins(running, leader, change) -> None:
    """The copy does not show it yet, or it was not decided again since."""
    await is_decided(leader, running, IDLE)
    if change == "annotation":
        await running.annotate(SCALABLE_WORKLOAD, NAME, "idlegpu.io/keep-until", "2100-01-01T00:00:00Z")
    else:
        await running.scale(0)
        await running.scale(1)
        await until(leader.is_current)
    for _ in range(2):
        with pytest.raises(KubeError) as raised:
            await leader.reconciler.reconcile(KEY)
        assert raised.value.status == 409
        await until(leader.is_current)
    assert await replicas(running) == 1


async def test_what_a_scaled_object_scales_is_left_to_keda_and_said_so(running, leader) -> None:
    await running.create(SCALED_OBJECT, scaled_object("other"))
    await is_decided(leader, running, IDLE)
    await leader.reconciles()
    assert await replicas(running) == 1
    assert await direct_condition(running) == ("False", "ScaledByKEDA")
    await running.delete(SCALED_OBJECT, "other")
    await until(leader.is_current)
    await leader.reconciles()
    assert await direct_condition(running) == ("True", "NoScaledObject")
    assert await replicas(running) == 0


async def test_the_name_of_a_scaled_object_is_one_workloads_alone(running, leader) -> None:
    body = scaled_object(NAME)
    body["spec"]["scaleTargetRef"]["name"] = "another"
    await running.create(SCALED_OBJECT, body)
    await is_decided(leader, running, IDLE)
    await leader.reconciles()
    assert await replicas(running) == 1
    assert await direct_condition(running) == ("False", "ScaledByKEDA")


def scaled_object(name: str) -> dict[str, object]:
    target = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind, "name": NAME}
    triggers = [{"type": "cron", "metadata": {"timezone": "UTC"}}]
    return {"metadata": {"name": name}, "spec": {"scaleTargetRef": target, "triggers": triggers}}


async def direct_condition(cluster: SmallCluster) -> tuple[str, str]:
    [found] = [each for each in (await cluster.status())["conditions"] if each["type"] == "Direct"]
    return found["status"], found["reason"]


async def test_metadata_that_cannot_be_read_scales_nothing(cluster, leader) -> None:
    await cluster.wants(1, jobRef=JOB, actuator="Direct", triggerMetadata={"idleafter": "30m"})
    await until(leader.is_current)
    await leader.reconciles()
    assert await replicas(cluster) == 1
    assert await direct_condition(cluster) == ("False", "InvalidPolicy")


async def test_a_new_leader_waits_for_its_own_evaluation(running) -> None:
    clock = VirtualClock()
    async with replica(running) as one:
        await is_decided(one, running, IDLE)
        await one.reconciles()
    assert await replicas(running) == 0
    await running.scale(1)  # its user
    async with replica(running, clock) as other, other.leads():
        await clock.advance(600)
        assert await replicas(running) == 1
        await is_decided(other, running, IDLE)
        await until(lambda: is_at(running, 0))


async def is_at(cluster: SmallCluster, wanted: int) -> bool:
    return await replicas(cluster) == wanted


async def test_the_loop_takes_up_what_failed(running) -> None:
    async with replica(running) as leader, leader.leads():
        with running.refusing("PATCH", f"/scalableworkloads/{NAME}"):
            await is_decided(leader, running, IDLE)
            await until(lambda: any(leader.rounds))
            assert await replicas(running) == 1
        await until(lambda: is_at(running, 0))


async def test_the_record_of_keeps_is_written_on_the_scalable_workload(running, leader) -> None:
    limited: Mapping[str, str] = {"idlegpu.io/keep-until": "2100-01-01T00:00:00Z", "idlegpu.io/asked-by": "anna"}
    await running.change(SCALABLE_WORKLOAD, NAME, {"metadata": {"annotations": dict(limited)}})
    policy = replace(IDLE.policy, longest_keep=minutes(60), keeps_per_week=1)
    await is_decided(leader, running, decision(ACTIVE, policy=policy))
    await leader.reconciles()
    annotations = (await running.scalable())["metadata"]["annotations"]
    assert annotations["idlegpu.io/keep-until"] != limited["idlegpu.io/keep-until"]
    assert '"by":"anna"' in annotations["idlegpu.io/keeps"]
    await running.annotate(WORKLOAD, running.workload.json["metadata"]["name"], "idlegpu.io/keep-for", "30m")
    await leader.reconciles()
    assert "KeepRefused" in await leader.reasons("Workload")


@pytest.mark.parametrize(
    "spec",
    [{"triggerMetadata": METADATA}, {"actuator": "KEDA", "triggerMetadata": METADATA}, {"actuator": "Else"}],
    ids=str,
)
async def test_the_api_refuses_what_has_no_meaning(cluster, spec) -> None:
    with pytest.raises(KubeError) as raised:
        await cluster.wants(1, jobRef=JOB, **spec)
    assert raised.value.status == 422


# ------------------------------------------------------------------------------------------------------------- as one


async def test_both_are_one_list_and_changes_of_both_are_told(running, leader) -> None:
    both: ScalingObjects = leader.reflectors.scaling
    told: list[tuple[str, bool]] = []
    stop = both.subscribe(lambda change: told.append((change.key[1], change.new is not None)))
    await until(leader.is_current)
    told.clear()
    [alone] = both.items()
    assert (alone.resource, alone.metadata.key) == (SCALABLE_WORKLOAD, KEY)
    assert both.get(*KEY) is alone
    assert both.items() is both.items()
    await running.create(SCALED_OBJECT, scaled_object("other"))
    await until(leader.is_current)
    assert [each.metadata.name for each in both.items()] == ["other"]
    assert both.by_index("target", (NAMESPACE_NAME, TARGET)) == both.items()
    assert told == [(NAME, False), ("other", True)]
    told.clear()
    await running.delete(SCALED_OBJECT, "other")
    await until(leader.is_current)
    assert both.get(*KEY) is not None
    assert told == [(NAME, True), ("other", False)]
    stop()
    await running.change(SCALABLE_WORKLOAD, NAME, {"spec": {"actuator": "KEDA", "triggerMetadata": None}})
    await until(leader.is_current)
    assert both.items() == ()
    assert len(told) == 2
