"""What a tick decides about every ScaledObject, from the objects and samples of a small cluster in virtual time."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from builders import LONG_AGO, NOON, WorkloadJson, at, minutes
from loops_builders import (
    DEPLOYMENT_KIND,
    NAMESPACE,
    QUICK,
    TICK,
    Inhabitant,
    MemoryCluster,
    World,
    deployment,
    gang,
    pod,
    scalable_workload,
    scaled_object,
    stamp,
)
from msgspec import structs
from scripted_metrics import Metrics, ScriptedSource, gpu
from structlog.testing import capture_logs

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import Evaluation
from scaler.decision.evaluation import aligned
from scaler.decision.inputs import DecisionInputs
from scaler.decision.reasons import DecisionReason
from scaler.decision.trigger_metadata import _likeness
from scaler.errors import SourceError
from scaler.idleness.gpu import Signal
from scaler.idleness.policy import EnforcementMode, Overrides
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import GpuEvidence, Unknown
from scaler.kube.discovery import Scale
from scaler.kube.objects.core import OwnerReference
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.reflector import Absent, Disconnected, NotWatched, Reflecting
from scaler.samples.source import SignalReading, VectorSample
from scaler.samples.wake_queries import WakeQuery, WhenAbsent

BUSY = 0.9


def cluster_of(
    *inhabitants: Inhabitant, busy: Mapping[str, Callable[[float], float]] | None = None, **config: Any
) -> World:
    """A world with a GPU for the pod of each inhabitant that a test may name, quiet where `busy` says nothing."""

    def source(world: World) -> ScriptedSource:
        pods = [(each.metadata.name, n) for each in world.cluster.pods.items() for n in range(2)]
        quiet: Callable[[float], float] = lambda _: 0.0  # noqa: E731
        series = [s for name, n in pods for s in gpu(f"GPU-{name}-{n}", pod=name, ratio=(busy or {}).get(name, quiet))]
        return ScriptedSource(metrics=Metrics(series=series), clock=lambda: world.now)

    return World(inhabitants, source, **config)


def scripted(world: World) -> ScriptedSource:
    assert isinstance(world.source, ScriptedSource)
    return world.source


def word(answer: Answer) -> str:
    """The answer and its reason: `Inactive GPUsIdle`, `Unknown StaleSamples`."""
    reason = answer.reason
    return f"{type(answer).__name__} {reason}"


IDLE = f"{Inactive.__name__} {DecisionReason.GPUS_IDLE}"
SUSPENDED = f"{Inactive.__name__} {DecisionReason.SUSPENDED}"
WAKING = f"{Active.__name__} {DecisionReason.WAKING}"
KEPT = f"{Active.__name__} {DecisionReason.KEPT}"
INVALID = f"{Unknown.__name__} {UnknownReason.INVALID_POLICY}"


async def decided(world: World, name: str, now: datetime = NOON, metadata: Mapping[str, str] | None = None) -> str:
    await world.tick(now)
    return word(world.answer(name, metadata))


# ---- when


@pytest.mark.parametrize(
    ("interval_s", "now", "expected"),
    [(15, at(0), at(0)), (15, at(14.999), at(0)), (15, at(15), at(15)), (30, at(-0.001), at(-30)), (7, at(3), None)],
)
def test_ticks_fall_on_multiples_of_the_interval(interval_s: int, now: datetime, expected: datetime | None) -> None:
    found = aligned(now, timedelta(seconds=interval_s))
    assert found.timestamp() % interval_s == 0
    assert timedelta(0) <= now - found < timedelta(seconds=interval_s)
    assert expected in (None, found)


# ---- settings: whose, and from where


async def test_what_a_trigger_leaves_out_is_as_the_settings_say() -> None:
    defaults = Overrides(idle_after=minutes(20), mode=EnforcementMode.OBSERVE)
    world = cluster_of(gang("train", metadata={"idleAfter": "10m"}), defaults=defaults)
    assert await decided(world, "train") == f"Active {DecisionReason.OBSERVE_ONLY}"
    ((_, decision),) = world.entry("train").triggers.items()
    shown = {each: decision.policy.source_of(each) for each in ("idle_after", "mode", "warm_up")}
    assert shown == {"idle_after": "trigger metadata", "mode": "settings", "warm_up": "built-in default"}


async def test_triggers_of_one_scaled_object_are_decided_each_by_its_own_metadata() -> None:
    triggers = [{"idleAfter": "5m"}, {"idleAfter": "5m", "mode": "observe"}, {"idleAfter": "20m"}]

    def work(at_s: float) -> float:
        return BUSY if at_s < at(-600).timestamp() else 0.0

    world = cluster_of(gang("train"), busy={"train-pod": work})
    world.cluster.scaled_objects.put(scaled_object("train", triggers=triggers))
    await world.tick(NOON)
    answers = [word(world.answer("train", metadata)) for metadata in triggers]
    assert answers == [IDLE, f"Active {DecisionReason.OBSERVE_ONLY}", f"Active {DecisionReason.GPUS_BUSY}"]
    assert world.evaluator.sampler.history.span == timedelta(
        hours=1
    )  # of the settings, which is longer than any of them


async def test_triggers_of_another_type_or_another_scaler_are_not_evaluated() -> None:
    ours, theirs = {**QUICK, "scalerAddress": "ours:9090"}, {**QUICK, "scalerAddress": "theirs:9090"}
    world = cluster_of(
        gang("a", metadata=ours),
        gang("b", metadata=theirs),
        gang("c", metadata=QUICK),
        gang("d"),
        scaler_addresses=frozenset({"ours:9090", "ours.gpu.svc:9090"}),
    )
    long_and_theirs = {**theirs, "idleAfter": "5h"}
    world.cluster.scaled_objects.put(scaled_object("d", triggers=[ours, long_and_theirs]))
    cron = structs.replace(scaled_object("e", triggers=[ours]).spec.triggers[0], type="cron")
    foreign = scaled_object("e", triggers=[ours])
    world.cluster.scaled_objects.put(structs.replace(foreign, spec=structs.replace(foreign.spec, triggers=(cron,))))
    evaluation = await world.tick(NOON)
    assert evaluation is not None
    assert sorted(name for _, name in evaluation.entries) == ["a", "d"]
    assert len(world.entry("d").triggers) == 1
    assert word(world.answer("e", ours)) == f"Unknown {UnknownReason.TARGET_NOT_FOUND}"
    assert world.evaluator.sampler.history.span == timedelta(hours=1)


# ---- pods that the selector of a scale leaves out


@pytest.mark.parametrize(
    ("owned_by", "expected"),
    [
        ("the target", f"Active {DecisionReason.GPUS_BUSY}"),
        ("nothing", IDLE),
        ("what is not known", f"Unknown {UnknownReason.STALE_CLUSTER_VIEW}"),
    ],
)
async def test_a_worker_that_works_holds_the_target_that_owns_it_or_may(owned_by: str, expected: str) -> None:
    """A quiet leader is what the selector names."""
    kind = ("ml.example.com/v1", "Inference")
    owner = {
        "the target": OwnerReference(api_version=kind[0], kind=kind[1], name="llm", uid="uid-llm", controller=True),
        "what is not known": OwnerReference(
            api_version="apps/v1", kind="StatefulSet", name="w", uid="w", controller=True
        ),
    }.get(owned_by)
    worker = pod("worker")
    owned = structs.replace(
        worker, metadata=structs.replace(worker.metadata, owner_references=(owner,) if owner else ())
    )

    def settle(cluster: MemoryCluster) -> None:
        cluster.scaled_objects.put(scaled_object("llm", kind=kind, triggers=[QUICK]))
        cluster.scales.scales["llm"] = Scale(replicas=1, selector="role=leader")
        cluster.scales.put(kind, "llm")
        cluster.pods.put(pod("leader", labels={"role": "leader"}), owned)

    def series(world: World) -> ScriptedSource:
        quiet, busy = gpu("GPU-0", pod="leader", ratio=lambda _: 0.0), gpu("GPU-1", pod="worker", ratio=lambda _: BUSY)
        return ScriptedSource(metrics=Metrics(series=[*quiet, *busy]), clock=lambda: world.now)

    assert await decided(World([settle], series), "llm") == expected


# ---- one bad ScaledObject harms no other


async def test_invalid_metadata_harms_no_valid_trigger_and_no_other_scaled_object() -> None:
    world = cluster_of(gang("train"), gang("bad", metadata={"idleAftr": "10m"}))
    both = [{"mode": "enforec"}, {**QUICK, "team": "vision"}]
    world.cluster.scaled_objects.put(scaled_object("train", triggers=both))
    assert await decided(world, "train", metadata=QUICK) == IDLE
    assert (len(world.entry("train").problems), world.entry("train").ignored) == (1, ("team",))
    assert word(world.answer("bad")) == INVALID
    assert "did you mean 'idleAfter'?" in world.answer("bad").message


async def test_a_hook_that_the_settings_do_not_have_is_an_error_that_says_which_they_have() -> None:
    hooks = {"checkpoint": minutes(5), "snapshot": minutes(10)}
    jobs = (gang(name, metadata={**QUICK, "beforeSuspend": name}) for name in ("checkpoint", "chekpoint"))
    world = cluster_of(*jobs, hooks=hooks)
    await world.tick(NOON)
    assert word(world.answer("checkpoint")) == f"Active {DecisionReason.BEFORE_SUSPEND}"
    assert word(world.answer("chekpoint")) == INVALID
    assert world.answer("chekpoint").message.endswith(
        "'beforeSuspend': the settings have no hook 'chekpoint'; write 'checkpoint' or 'snapshot'"
    )
    assert world.evaluator.sampler.history.span >= minutes(10), "idleAfter, and as long as its hook may take"


async def test_of_one_scaled_object_all_triggers_have_the_same_hook_or_it_is_an_error() -> None:
    hooks = {"checkpoint": minutes(5), "snapshot": minutes(10)}
    world = cluster_of(gang("train"), hooks=hooks)
    both = [{**QUICK, "beforeSuspend": each} for each in hooks]
    world.cluster.scaled_objects.put(scaled_object("train", triggers=both))
    assert await decided(world, "train", metadata=both[0]) == INVALID
    assert "name several hooks (checkpoint, snapshot); name one" in world.answer("train", both[1]).message
    same = [{**both[0], "mode": "observe"}, both[0]]
    world.cluster.scaled_objects.put(scaled_object("train", triggers=same))
    assert await decided(world, "train", at(15), metadata=same[1]) == f"Active {DecisionReason.BEFORE_SUSPEND}"


async def test_a_tenant_who_writes_very_much_costs_others_nothing() -> None:
    keys, limit = {f"idleAfter{number}": "v" for number in range(40_000)}, 16
    world = cluster_of(gang("many-keys", metadata=keys), gang("many-triggers"), gang("few-triggers"), gang("train"))
    triggers = [{"idleAfter": "5m", "warmUp": f"{number}s"} for number in range(3_000)]
    world.cluster.scaled_objects.put(scaled_object("many-triggers", triggers=triggers))
    world.cluster.scaled_objects.put(scaled_object("few-triggers", triggers=triggers[:limit]))
    before = _likeness.cache_info()
    assert await decided(world, "train") == IDLE
    after = _likeness.cache_info()
    assert after.hits + after.misses - before.hits - before.misses < 1_000
    assert [len(world.entry(each).triggers) for each in ("many-keys", "many-triggers", "few-triggers")] == [0, 0, limit]
    assert word(world.answer("many-keys", QUICK)) == word(world.answer("many-triggers", triggers[0])) == INVALID
    assert "more than 16 triggers" in world.answer("many-triggers", triggers[0]).message


async def test_a_window_beyond_the_operators_bounds_is_refused_and_not_kept_in_memory() -> None:
    world = cluster_of(
        gang("hasty", metadata={"idleAfter": "10s"}),
        gang("long", metadata={"idleAfter": "3h"}),
        gang("longest", metadata={"idleAfter": "2h"}),
        max_window=minutes(120),
    )
    await world.tick(NOON)
    assert word(world.answer("long")) == INVALID
    assert "'idleAfter': 3h is longer than the operator allows (2h" in world.answer("long").message
    assert word(world.answer("hasty")) == INVALID
    assert "10s is shorter than the time between two samples (30s" in world.answer("hasty").message
    assert word(world.answer("longest")) == f"Active {DecisionReason.IDLE_NOT_LONG_ENOUGH}"
    assert world.evaluator.sampler.history.span == minutes(120)


async def test_a_bug_that_one_object_provokes_harms_no_other() -> None:
    world = cluster_of(gang("good"), deployment("odd"), deployment("zoo", gpus=2))
    plain = world.cluster.scales.of

    def of(namespace: str, target: ScaleTargetRef) -> Scale | Unknown:
        if target.name == "odd":
            raise TypeError("can't compare offset-naive and offset-aware datetimes")
        return plain(namespace, target)

    world.evaluator.scales.of = of  # type: ignore[method-assign]
    with capture_logs() as logged:
        await world.tick(NOON)
    assert [each["scaled_object"] for each in logged if each["log_level"] == "error"] == ["demo/odd"]
    assert [word(world.answer(name)) for name in ("good", "zoo")] == [IDLE, IDLE]
    answer = world.answer("odd")
    assert isinstance(answer, Unknown)
    assert "offset-naive" in answer.message


# ---- keep


@pytest.mark.parametrize("on", ["ScaledObject", "ScalableWorkload", "trigger"])
async def test_a_kept_workload_is_up_until_then_and_not_longer(on: str) -> None:
    until = {"idlegpu.io/keep-until": stamp(at(60))}
    metadata = {**QUICK, "keepUntil": stamp(at(60))} if on == "trigger" else QUICK
    world = cluster_of(gang("train", metadata=metadata, annotations=until if on == "ScaledObject" else None))
    if on == "ScalableWorkload":
        world.cluster.scalable_workloads.put(scalable_workload("train", workload="train-workload", annotations=until))
    answers = [await decided(world, "train", at(seconds)) for seconds in (0, 30, 60, 90)]
    assert answers == [KEPT, KEPT, IDLE, IDLE]


@pytest.mark.parametrize("on", ["ScaledObject", "ScalableWorkload"])
async def test_a_garbled_keep_until_is_no_permission_to_suspend(on: str) -> None:
    written = "tomorrow"
    garbled = {"idlegpu.io/keep-until": written}
    world = cluster_of(gang("train", annotations=garbled if on == "ScaledObject" else None), gang("other"))
    if on == "ScalableWorkload":
        world.cluster.scalable_workloads.put(scalable_workload("train", workload="train-workload", annotations=garbled))
    assert await decided(world, "train") == INVALID
    assert f"on {on} train: {written!r} is not a time" in world.answer("train").message
    assert word(world.answer("other")) == IDLE


# ---- wake


async def test_an_annotation_on_either_object_wakes_a_suspended_gang() -> None:
    """Not one that is older than the suspension."""
    wish, before = {"idlegpu.io/wake": "true"}, {"idlegpu.io/wake": stamp(NOON - minutes(61))}
    world = cluster_of(sleeping("a", annotations=wish), sleeping("b"), sleeping("c"), sleeping("d", annotations=before))
    world.cluster.scalable_workloads.put(
        scalable_workload("b", workload="b-workload", replicas=0, annotations=wish, workloadUID="7e6b1a34")
    )
    await world.tick(NOON)
    assert [word(world.answer(name)) for name in "abcd"] == [WAKING, WAKING, SUSPENDED, SUSPENDED]


async def test_what_is_suspended_is_woken_at_its_hour_and_not_again_once_it_is_suspended_after_that() -> None:
    hour = {**QUICK, "wakeAt": "11:30 UTC"}

    def down(name: str, since: str) -> Inhabitant:
        history = {"idlegpu.io/history": f'[{{"at":"2026-12-01T{since}:00Z","state":"Suspended"}}]'}
        return deployment(name, replicas=0, metadata=hour, annotations=history)

    world = cluster_of(sleeping("a", metadata=hour), down("b", "11:00"), down("c", "11:45"))
    await world.tick(NOON)
    assert [word(world.answer(name)) for name in "abc"] == [WAKING, WAKING, SUSPENDED]


def sleeping(name: str, **more: Any) -> Inhabitant:
    """A gang that we have suspended an hour ago."""

    def settle(cluster: MemoryCluster) -> None:
        gang(name, **more)(cluster)
        cause = {"idlegpu.io/suspended": '{"at":"2026-12-01T11:00:00Z"}'}
        json = WorkloadJson(f"{name}-workload", pods=1).deactivated().with_annotations(cause)
        cluster.workloads.put(json.condition("QuotaReserved", False).decoded())
        cluster.pods.drop(f"{name}-pod")
        suspended_at = stamp(NOON - minutes(60))
        cluster.scalable_workloads.put(
            scalable_workload(
                name, workload=f"{name}-workload", replicas=0, workloadUID="7e6b1a34", suspendedAt=suspended_at
            )
        )

    return settle


QUEUED = WakeQuery(name="queued", promql="sum by (namespace, scaledobject) (queued_jobs)")


def demanded(name: str, value: float, *, namespace: str = NAMESPACE) -> VectorSample:
    return VectorSample({"namespace": namespace, "scaledobject": name}, value)


async def test_a_demand_query_wakes_what_it_names() -> None:
    sleepers = [sleeping("asked"), sleeping("zero"), sleeping("nan"), deployment("serve", replicas=0)]
    world = cluster_of(*sleepers, sleeping("unasked"), gang("running"), wake_queries=(QUEUED,))
    scripted(world).metrics.demands[QUEUED.promql] = [
        demanded("asked", 1),
        demanded("serve", 0.5),
        demanded("zero", 0),
        demanded("nan", math.nan),
        demanded("unasked", 3, namespace="another"),
        demanded("running", 1),
        VectorSample({}, 7),
    ]
    await world.tick(NOON)
    expected = {"asked": WAKING, "serve": WAKING, "zero": SUSPENDED, "nan": SUSPENDED, "unasked": SUSPENDED}
    assert {name: word(world.answer(name)) for name in expected} == expected
    assert world.answer("asked").message == "wake-up requested: demand query 'queued'"
    # Suspending what is asked for would only wake it again.
    assert word(world.answer("running")) == f"Active {DecisionReason.KEPT}"


async def test_a_demand_query_wakes_only_in_its_namespaces_and_by_its_own_labels() -> None:
    by_team = WakeQuery(name="by-team", promql="teams", namespaces=frozenset({"other"}))
    by_app = WakeQuery(name="by-app", promql="apps", namespace_label="ns", name_label="app")
    world = cluster_of(sleeping("a"), sleeping("b"), wake_queries=(by_team, by_app))
    scripted(world).metrics.demands = {
        "teams": [demanded("a", 1)],
        "apps": [VectorSample({"ns": NAMESPACE, "app": "b"}, 1), demanded("a", 1)],
    }
    await world.tick(NOON)
    assert [word(world.answer(name)) for name in "ab"] == [SUSPENDED, WAKING]


async def test_a_demand_query_that_fails_wakes_and_suspends_no_scaled_object() -> None:
    """What it would have asked for is not known: an idle workload that is in demand would be suspended."""
    broken = WakeQuery(name="broken", promql="oops(", namespaces=frozenset({NAMESPACE}))
    elsewhere = WakeQuery(name="elsewhere", promql="down", namespaces=frozenset({"another"}))

    def work(at_s: float) -> float:
        return BUSY

    world = cluster_of(
        sleeping("a"), gang("idle"), gang("busy"), busy={"busy-pod": work}, wake_queries=(broken, elsewhere, QUEUED)
    )
    source, refused = scripted(world), SourceError("parse error", transient=False)
    quiet = [demanded(name, 0) for name in ("idle", "busy")]
    source.metrics.demands = {QUEUED.promql: [demanded("a", 1), *quiet], broken.promql: [demanded("a", 0), *quiet]}
    source.failing = {broken.promql: refused, elsewhere.promql: refused}
    await world.tick(NOON)
    unavailable = f"Unknown {UnknownReason.SOURCE_UNAVAILABLE}"
    assert [word(world.answer(name)) for name in ("a", "idle")] == [WAKING, unavailable]
    assert world.answer("idle").message == "demand query 'broken': parse error"
    assert word(world.answer("busy")) == f"Active {DecisionReason.GPUS_BUSY}"

    source.failing = {QUEUED.promql: refused, elsewhere.promql: refused}
    await world.tick(at(30))
    assert [word(world.answer(name)) for name in ("a", "idle")] == [SUSPENDED, unavailable]
    source.failing = {elsewhere.promql: refused}
    await world.tick(at(60))
    assert [word(world.answer(name)) for name in ("a", "idle")] == [WAKING, IDLE]


NO_ELEMENT = f"Unknown {UnknownReason.SOURCE_UNAVAILABLE}"
SILENCE: dict[str, tuple[WhenAbsent, list[VectorSample], str]] = {
    "an element that is 0 is quiet": (WhenAbsent.BUSY, [demanded("idle", 0)], IDLE),
    "no element may be demand": (WhenAbsent.BUSY, [demanded("other", 0)], NO_ELEMENT),
    "no answer at all may be demand": (WhenAbsent.BUSY, [], NO_ELEMENT),
    "NaN may be demand": (WhenAbsent.BUSY, [demanded("idle", math.nan)], NO_ELEMENT),
    "an element of another namespace says nothing": (WhenAbsent.BUSY, [demanded("idle", 0, namespace="x")], NO_ELEMENT),
    "no element is quiet where the operator says so": (WhenAbsent.QUIET, [], IDLE),
}


@pytest.mark.parametrize(("absent", "elements", "expected"), SILENCE.values(), ids=SILENCE.keys())
async def test_silence_is_known_only_from_what_is_shown(
    absent: WhenAbsent, elements: list[VectorSample], expected: str
) -> None:
    """A gateway that is not scraped has no element for what it is asked for, either."""
    world = cluster_of(gang("idle"), wake_queries=(replace(QUEUED, absent=absent),))
    scripted(world).metrics.demands[QUEUED.promql] = elements
    assert await decided(world, "idle") == expected
    if expected == NO_ELEMENT:
        assert world.answer("idle").message.startswith("demand query 'queued' has no element for demo/idle")


async def test_each_query_that_covers_a_scaled_object_has_to_show_it() -> None:
    elsewhere = WakeQuery(name="elsewhere", promql="none", namespaces=frozenset({"another"}))
    second = WakeQuery(name="second", promql="seconds")
    world = cluster_of(gang("idle"), sleeping("a"), wake_queries=(QUEUED, second, elsewhere))
    demands = scripted(world).metrics.demands
    # So that nothing else lets decisions be made anew.
    world.evaluator._inputs = DecisionInputs(world.evaluator._own, fewest=1)
    both = [demanded("idle", 0), demanded("a", 0)]
    demands.update({QUEUED.promql: both, "seconds": both, "none": []})
    found = []
    for tick, shown in enumerate((both, [demanded("a", 0)], both)):
        demands["seconds"] = shown
        await world.tick(at(30 * tick))
        found.append((word(world.answer("idle")), word(world.answer("a"))))
    assert found == [(IDLE, SUSPENDED), (NO_ELEMENT, SUSPENDED), (IDLE, SUSPENDED)]


async def test_demand_queries_run_side_by_side() -> None:
    """Each may take the whole timeout; one after the other they would let all answers expire."""
    together = asyncio.Barrier(3)

    class Meeting(ScriptedSource):
        async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
            await asyncio.wait_for(together.wait(), 30)
            return await super().demand(promql, at=at)

    queries = tuple(WakeQuery(name=name, promql=name) for name in ("a", "b", "c"))
    metrics = Metrics(series=[], demands={"a": [], "b": [demanded("serve", 1)], "c": []})
    world = World(
        [deployment("serve", replicas=0)], lambda w: Meeting(metrics=metrics, clock=lambda: w.now), wake_queries=queries
    )
    assert await decided(world, "serve") == WAKING


# ---- targets


async def test_a_target_that_is_not_known_is_an_error_of_its_own_only() -> None:
    world = cluster_of(deployment("serve"), deployment("other", gpus=2), deployment("stale"), gang("train"))
    world.cluster.scalable_workloads.drop("train")
    world.cluster.scales.scales["stale"] = Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message="not heard of")
    world.cluster.scales.scales["serve"] = Scale(replicas=1, selector="a b")
    assert await decided(world, "serve") == f"Unknown {UnknownReason.TARGET_NOT_FOUND}"
    assert "selector of Deployment/serve" in world.answer("serve").message
    assert word(world.answer("stale")) == f"Unknown {UnknownReason.STALE_CLUSTER_VIEW}"
    assert word(world.answer("train")) == f"Unknown {UnknownReason.TARGET_NOT_FOUND}"
    assert world.answer("train").message.startswith("ScalableWorkload demo/train does not exist")
    assert word(world.answer("other")) == IDLE


# ---- not yet, and not any more


async def test_nothing_is_published_before_both_the_api_and_the_window_were_read() -> None:
    world = cluster_of(gang("train"))
    world.cluster.pods.age, world.cluster.pods.state = math.inf, Disconnected("connection refused")
    scripted(world).failing = {"gpu_util": SourceError("500: head block is broken", transient=True)}
    assert await world.tick(NOON) is None
    assert word(world.answer("train")) == f"Unknown {UnknownReason.COLD_START}"
    assert "Pods: connection refused" in world.answer("train").message

    world.cluster.pods.age = 1
    assert await world.tick(at(30)) is None
    assert "gpu_util: 500: head block is broken" in world.answer("train").message
    assert not world.decision_cache.is_ready

    scripted(world).failing = {}
    assert await world.tick(at(60)) is not None
    assert word(world.answer("train")) == IDLE


@pytest.mark.parametrize(("silent_s", "expected"), [(180, IDLE), (181, f"Unknown {UnknownReason.STALE_CLUSTER_VIEW}")])
async def test_an_old_view_of_the_cluster_decides_nothing(silent_s: float, expected: str) -> None:
    world = cluster_of(gang("train"), deployment("serve", replicas=0))
    world.cluster.workloads.age = silent_s
    assert await decided(world, "train") == expected
    assert word(world.answer("serve")) == (SUSPENDED if expected == IDLE else expected)


async def test_a_namespace_that_cannot_be_seen_whole_decides_nothing_and_leaves_the_others_their_answers() -> None:
    """Its ScaledObjects are listed and its pods are not: whatever runs there would look as if nothing did."""
    world = cluster_of(gang("train"), deployment("serve", replicas=0))
    assert await decided(world, "train") == IDLE
    world.cluster.pods.hidden[NAMESPACE] = NotWatched(NAMESPACE)
    assert await decided(world, "train") == f"Unknown {UnknownReason.STALE_CLUSTER_VIEW}"
    assert "cannot be seen whole (Pods: " in world.answer("train").message
    world.cluster.pods.hidden = {"other": NotWatched("other")}
    assert await decided(world, "train") == IDLE


async def test_a_workload_of_which_the_api_serves_no_version_that_is_spoken_is_missing_for_that_reason() -> None:
    """A Kueue that serves v1beta1 alone looks like one that has not made the Workload yet."""
    world = cluster_of(gang("train"), deployment("serve", replicas=0))
    for each in world.cluster.workloads.items():
        world.cluster.workloads.drop(each.metadata.name)
    assert await decided(world, "train") == f"Active {DecisionReason.WAITING_FOR_WORKLOAD}"
    world.cluster.workloads.state = Absent("404: no such resource")
    assert await decided(world, "train", NOON + TICK) == f"Unknown {UnknownReason.TARGET_NOT_FOUND}"
    assert "does not serve Workload of kueue.x-k8s.io/v1beta2" in world.answer("train").message
    assert word(world.answer("serve")) == SUSPENDED, "a Deployment needs none"
    world.cluster.workloads.state = Reflecting()
    assert await decided(world, "train", NOON + 2 * TICK) == f"Active {DecisionReason.WAITING_FOR_WORKLOAD}"


async def test_a_longer_window_of_a_new_target_leaves_the_others_their_verdicts() -> None:
    """It is read an hour a tick. What others are judged by comes with the first of them; the newcomer waits."""
    world = cluster_of(gang("train"), deployment("patient", gpus=2, started=LONG_AGO - minutes(600)))
    assert await decided(world, "train") == IDLE
    patient = {"idleAfter": "5h", "warmUp": "0s"}
    world.cluster.scaled_objects.put(scaled_object("patient", kind=DEPLOYMENT_KIND, triggers=[patient]))
    answers = []
    for tick in range(1, 8):
        scripted(world).asked.clear()
        await world.tick(NOON + tick * TICK)
        reads = [name for name, _, _ in scripted(world).asked].count("gpu_util")
        answers.append((word(world.answer("train")), word(world.answer("patient")), reads))
    unread = f"Unknown {UnknownReason.COLD_START}"
    assert answers == [*[(IDLE, unread, 2)] * 4, (IDLE, IDLE, 2), *[(IDLE, IDLE, 1)] * 2]


async def test_ticks_are_observed_with_what_they_took_in() -> None:
    world = cluster_of(gang("train"))
    published = await world.tick(at(3))
    (tick,) = world.ticks
    assert (tick.at, tick.evaluation, tick.intake.series) == (NOON, published, 4)
    assert 0 < tick.seconds < 5


# ---- between ticks, and for ever


async def test_a_change_between_ticks_is_decided_at_once_from_the_same_samples() -> None:
    world = cluster_of(gang("train"), gang("other"))
    await world.tick(NOON)
    published: asyncio.Queue[Evaluation] = asyncio.Queue()
    world.evaluator.published = published.put_nowait
    sleeping("train")(world.cluster)
    following = asyncio.create_task(world.evaluator.redecide_changes())
    world.evaluator.changed.add((NAMESPACE, "train"))
    world.evaluator.changed.add((NAMESPACE, "nobody"))
    evaluation = await asyncio.wait_for(published.get(), 30)
    following.cancel()
    assert [word(world.answer(name)) for name in ("train", "other")] == [SUSPENDED, IDLE]
    assert evaluation.at == NOON
    assert {end for _, _, end in scripted(world).asked} == {NOON, NOON - minutes(5)}


async def test_a_tick_neither_undoes_nor_shows_before_its_time_what_is_decided_while_it_reads() -> None:
    class Slow(ScriptedSource):
        async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
            if at > NOON:
                assert shown() == seen_at(NOON) != seen_at(NOON + TICK), "the decision is still the one of noon"
                world.cluster.scaled_objects.put(scaled_object("train", triggers=[QUICK], annotations=keep))
                await world.evaluator.redecide([(NAMESPACE, "train")])
                answers.append(word(world.answer("train")))
            return await super().demand(promql, at=at)

    def shown() -> list[GpuEvidence]:
        ((_, decision),) = world.entry("train").triggers.items()
        return [] if decision.verdict is None else [*decision.verdict.gpus]

    def seen_at(now: datetime) -> list[GpuEvidence]:
        entry = world.entry("train")
        ((_, decision),) = entry.triggers.items()
        return [*world.evaluator.judge.evidence(entry.pods, decision.policy, now)]

    keep, answers = {"idlegpu.io/keep-until": stamp(NOON + minutes(60))}, list[str]()
    series = [each for n in range(2) for each in gpu(f"GPU-{n}", pod="train-pod", ratio=lambda _: 0.0)]
    metrics, query = Metrics(series=series, demands={"q": []}), WakeQuery(name="q", promql="q", absent=WhenAbsent.QUIET)
    world = World([gang("train")], lambda w: Slow(metrics=metrics, clock=lambda: w.now), wake_queries=[query])
    assert await decided(world, "train") == IDLE
    assert await decided(world, "train", NOON + TICK) == KEPT
    assert answers == [KEPT]
    assert shown() == seen_at(NOON + TICK)


async def test_a_change_before_the_first_tick_decides_nothing() -> None:
    world = cluster_of(gang("train"))
    await world.evaluator.redecide([(NAMESPACE, "train")])
    assert not world.decision_cache.is_ready


async def test_the_loop_survives_what_a_tick_raises() -> None:
    """Its answers expire, and the heartbeat goes on: the fault may be gone at the next tick."""

    third = asyncio.Event()

    class Odd(ScriptedSource):
        async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
            self.asked.append((signal.name, start, end))
            if len(self.asked) >= 3 * 2:
                third.set()
            raise RuntimeError("a bug")

    world = World(
        [gang("train")],
        lambda w: Odd(metrics=Metrics(series=[]), clock=lambda: w.now),
        interval=timedelta(milliseconds=20),
    )
    world.evaluator.clock = lambda: datetime.now(UTC)
    with capture_logs() as logged:
        running = asyncio.create_task(world.evaluator.run())
        await asyncio.wait_for(third.wait(), 30)
        running.cancel()
    assert {each["event"] for each in logged} == {"evaluation failed; its answers expire"}
    assert world.evaluator.last_tick_at > 0
    assert not world.decision_cache.is_ready
