"""Who starts what was suspended, and starts it again: once is a wish, twice in a row is left alone. In virtual time.

Evaluation and reconciler are the real ones, on the embedded API; KEDA, Kueue, controllers and owners by hand.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from builders import ACTIVE as BUSY_NOW
from builders import NOON, WorkloadJson, a_target, decision, minutes, policy
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import TICK
from scripted_metrics import Metrics, ScriptedSource, gpu
from small_cluster import NAME, NAMESPACE_NAME, WORKLOAD_NAME, SmallCluster, pod_json, until
from suspension.replica import Replica
from switched_kinds import definition, notebook

from scaler.decision.candidate import (
    HistoryLine,
    lines_of,
    next_line,
    next_set_back,
    set_back_of,
    shortened,
)
from scaler.decision.decision import Active, Decision, Inactive, left_alone_until
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import prevailing
from scaler.decision.evaluation import EvaluationConfig, Evaluator
from scaler.decision.sampling import Sampler
from scaler.idleness.gpu import DEFAULT_SIGNALS
from scaler.idleness.policy import Trust
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.kube.objects.core import last_writer, stamp
from scaler.kube.objects.resources import DEPLOYMENT, EVENT, NOTEBOOK, POD, SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.suspension import status_writer
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.targets import scale_subresources
from scaler.targets.scale_subresources import ScaleSubresources
from scaler.targets.switches import NOTEBOOK_STOPPED
from scaler.targets.target_state import Phase, SetBack, WakeCause, WakeRequest
from scaler.targets.workloads import WAKE_ANNOTATION

QUICK = {"idleAfter": "10m", "warmUp": "1m"}
TRUST = Trust(interval=TICK)
KEY = NAMESPACE_NAME, NAME
HOUR = minutes(60)
RUNS = "WarmingUp", "IdleNotLongEnough"
HISTORY = "idlegpu.io/history"
"""An annotation of 0.1.0."""


class Story:
    """One workload whose GPUs never work, a leader, and an owner who wants it to run."""

    kind = "Kueue"

    def __init__(self, cluster: SmallCluster, leader: Replica) -> None:
        self.cluster, self.leader, self.now = cluster, leader, NOON
        self.scales = ScaleSubresources(leader.transport, max_age=HOUR)
        self.source = ScriptedSource(metrics=Metrics(series=gpu("GPU-1", pod="worker-0")), clock=lambda: self.now)
        self.restarts()

    def restarts(self) -> None:
        """Another process, which remembers nothing."""
        clock = lambda: self.now  # noqa: E731
        self.decisions = DecisionCache(max_age=HOUR, clock=lambda: self.now.timestamp())
        sampler = Sampler(
            self.source, signals=DEFAULT_SIGNALS, rules=DEFAULT_RULES, trust=TRUST, overlap=minutes(2), clock=clock
        )
        self.evaluator = Evaluator(
            config=EvaluationConfig(interval=TICK, trust=TRUST),
            cluster=self.leader.copies,
            scales=self.scales,
            sampler=sampler,
            decision_cache=self.decisions,
            clock=clock,
        )
        self.reconciler = SuspensionReconciler(
            self.leader.transport,
            self.leader.copies,
            self.decisions,
            self.leader.recorder,
            scales=self.scales,
            clock=clock,
        )

    # ------------------------------------------------------------------------------------------------------ its kind

    async def begins(self) -> None:
        await self.cluster.wants(1)
        await self.cluster.is_scaled_by(QUICK)
        await self.cluster.submit(WorkloadJson(WORKLOAD_NAME, pods=1))

    async def is_up(self) -> bool:
        return await self.cluster.is_active()

    async def replicas(self) -> int:
        return int((await self.cluster.scalable())["spec"]["replicas"])

    async def scale(self, replicas: int) -> None:
        await self.cluster.scale(replicas)

    async def history(self) -> list[HistoryLine]:
        status = (await self.cluster.scalable()).get("status", {})
        return lines_of(json.dumps(each).encode() for each in status.get("history", ()))

    def pod(self) -> dict[str, Any]:
        return pod_json("worker-0", self.uid, annotated=True, running=True)

    async def stops(self) -> None:
        await self.cluster.evict()
        await self.cluster.release()

    async def starts(self) -> None:
        await self.cluster.admit()

    @property
    def about(self) -> set[str]:
        """Kinds of the objects that are told of it."""
        return {"ScalableWorkload", "ScaledObject", "Workload"}

    # ------------------------------------------------------------------------------------------------------ the others

    async def kubelet(self) -> None:
        pods, is_up = await self.cluster.all(POD), await self.is_up()
        if is_up and not pods:
            await self.starts()
            self.uid = await self.cluster._uid_of_job("RayCluster", NAME)
            body = self.pod()
            body["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": stamp(self.now)}}
            body["status"]["startTime"] = stamp(self.now)
            await self.cluster.create(POD, body)
        elif not is_up and pods:
            await self.cluster.end_pods("worker-0")
            await self.stops()

    async def keda(self) -> None:
        answer = self.decided.answer
        if self.kind == "Direct":
            return
        if isinstance(answer, Inactive) != (not await self.replicas()) and isinstance(answer, Active | Inactive):
            await self.scale(int(isinstance(answer, Active)))

    @property
    def decided(self) -> Decision:
        assert self.decisions.evaluation is not None
        found = prevailing(list(self.decisions.evaluation.entries[KEY].triggers.values()))
        assert found is not None
        return found

    @property
    def reason(self) -> str:
        return str(self.decided.answer.reason)

    async def restarts_container(self) -> None:
        state = {"running": {"startedAt": stamp(self.now)}}
        found = (await self.cluster.read(POD, "worker-0"))["status"]["containerStatuses"]
        await self.cluster.change(
            POD, "worker-0", {"status": {"containerStatuses": [found[0] | {"state": state}]}}, "status"
        )

    # ------------------------------------------------------------------------------------------------------ time

    async def looks(self) -> None:
        await until(self.is_current)
        await self.evaluator.tick(self.now)
        await self.reconciler.reconcile(KEY)
        if self.kind != "Direct":
            await self.reconciler.reconcile_scaled_object(KEY)

    async def is_current(self) -> bool:
        seen = [*self.scales._reflectors.values(), *self.leader.reflectors.switched._reflectors.values()]
        for each in seen:
            there = {x["metadata"]["resourceVersion"] for x in await self.cluster.all(each.resource)}
            if {x.metadata.resource_version for x in each.items()} != there:
                return False
        return await self.leader.is_current()

    async def passes(self, time: float, rounds: int = 3) -> None:
        """So many minutes, after which everybody does what there is to be done."""
        self.now += minutes(time)
        for _ in range(rounds):
            await self.kubelet()
            await self.looks()
            self.now += TICK

    async def is_suspended(self) -> None:
        """Its GPUs are idle for long enough, and KEDA scales it to 0."""
        await self.passes(9, rounds=1)
        for _ in range(10):
            await self.passes(0, rounds=1)
            await self.keda()
            if self.reason == "Suspended" and not await self.cluster.all(POD):
                return
        raise AssertionError(self.decided)

    async def is_started(self, way: "Way") -> None:
        await way(self)
        await self.looks()
        await self.keda()
        await self.passes(0)
        assert len(await self.cluster.all(POD)) == 1
        assert await self.replicas() == 1


class DirectStory(Story):
    kind = "Direct"

    async def begins(self) -> None:
        job = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME}
        await self.cluster.wants(1, jobRef=job, actuator="Direct", triggerMetadata=QUICK)
        await self.cluster.submit(WorkloadJson(WORKLOAD_NAME, pods=1))

    @property
    def about(self) -> set[str]:
        return {"ScalableWorkload", "Workload"}


class NotebookStory(Story):
    kind = "Notebook"

    async def begins(self) -> None:
        self.cluster.api.install_crds([definition(NOTEBOOK)])
        await self.cluster.create(NOTEBOOK, notebook(NAME, NAMESPACE_NAME))
        job = {"apiVersion": NOTEBOOK.api_version, "kind": "Notebook", "name": NAME}
        await self.cluster.wants(1, jobRef=job)
        await self.cluster.is_scaled_by(QUICK)

    async def is_up(self) -> bool:
        found = await self.cluster.read(NOTEBOOK, NAME)
        return NOTEBOOK_STOPPED not in found["metadata"].get("annotations", {})

    def pod(self) -> dict[str, Any]:
        body = pod_json("worker-0", self.uid, annotated=False, running=True)
        return {**body, "metadata": {"name": "worker-0", "labels": {"notebook-name": NAME}}}

    async def stops(self) -> None: ...

    async def starts(self) -> None: ...

    @property
    def about(self) -> set[str]:
        return {"ScalableWorkload", "ScaledObject", "Notebook"}


class DeploymentStory(NotebookStory):
    kind = "Deployment"

    async def begins(self) -> None:
        labels = {"app": NAME}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "main:1"}]}}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        await self.cluster.create(DEPLOYMENT, {"metadata": {"name": NAME}, "spec": spec})
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
        trigger = {"type": "external", "metadata": {"scalerAddress": "scaler:9090", **QUICK}}
        spec = {"scaleTargetRef": target, "triggers": [trigger]}
        await self.cluster.create(SCALED_OBJECT, {"metadata": {"name": NAME}, "spec": spec})

    async def is_up(self) -> bool:
        return bool(await self.replicas())

    async def replicas(self) -> int:
        return int((await self.cluster.read(DEPLOYMENT, NAME, "scale"))["spec"].get("replicas", 0))

    async def scale(self, replicas: int) -> None:
        await self.cluster.change(DEPLOYMENT, NAME, {"spec": {"replicas": replicas}}, "scale")

    async def history(self) -> list[HistoryLine]:
        status = (await self.cluster.record(NAME)).get("status", {})
        return lines_of(json.dumps(each).encode() for each in status.get("history", ()))

    def pod(self) -> dict[str, Any]:
        return {**super().pod(), "metadata": {"name": "worker-0", "labels": {"app": NAME}}}

    @property
    def about(self) -> set[str]:
        return {"ScaledObject", "Deployment"}


Way = Callable[[Any], Awaitable[None]]


async def sets_replicas(story: Story) -> None:
    """`kubectl scale`, an operator, GitOps."""
    await story.scale(1)


async def activates(story: Story) -> None:
    await story.cluster.change(WORKLOAD, WORKLOAD_NAME, {"spec": {"active": True}})


async def starts_it(story: Story) -> None:
    """From the dashboard."""
    await story.cluster.change(NOTEBOOK, NAME, {"metadata": {"annotations": {NOTEBOOK_STOPPED: None}}})


async def asks(story: Story) -> None:
    resource = SCALABLE_WORKLOAD if story.kind == "Direct" else SCALED_OBJECT
    await story.cluster.annotate(resource, NAME, WAKE_ANNOTATION, "true")


WAYS: dict[str, tuple[type[Story], Way]] = {
    "the replicas of a ScalableWorkload": (Story, sets_replicas),
    "spec.active of its Workload": (Story, activates),
    "the replicas of one that is scaled directly": (DirectStory, sets_replicas),
    "spec.active of such a Workload": (DirectStory, activates),
    "the replicas of a Notebook's": (NotebookStory, sets_replicas),
    "a Notebook": (NotebookStory, starts_it),
    "the replicas of a Deployment": (DeploymentStory, sets_replicas),
}


@asynccontextmanager
async def told(cluster: SmallCluster, leader: Replica, kind: type[Story], **annotations: str) -> AsyncIterator[Story]:
    story = kind(cluster, leader)
    await story.begins()
    for key, value in annotations.items():
        await cluster.annotate(SCALED_OBJECT, NAME, key, value)
    try:
        await story.passes(0)
        yield story
    finally:
        await story.scales.close()
        await leader.reflectors.switched.close()


async def warnings(story: Story) -> dict[str, list[str]]:
    """Of which kinds are warned, in which words."""
    assert await story.leader.recorder.drain(5)
    found: dict[str, list[str]] = {}
    for each in await story.cluster.all(EVENT):
        if each["reason"] == "SetBack" and each["type"] == "Warning":
            found.setdefault(each["involvedObject"]["kind"], []).append(each["message"])
    return found


@pytest.mark.parametrize(("kind", "way"), WAYS.values(), ids=WAYS)
async def test_once_is_a_wish_and_twice_is_left_alone(cluster, leader, kind: type[Story], way: Way) -> None:
    async with told(cluster, leader, kind) as story:
        await story.is_suspended()
        await story.is_started(way)
        assert story.reason in RUNS, "it is a wake-up"
        assert [each.times for each in await story.history() if each.reason == "SetBack"] == [1]
        assert await warnings(story) == {}
        await story.is_suspended()
        await story.is_started(way)
        assert story.reason == "SetBack", story.decided
        assert isinstance(story.decided.answer, Active)
        assert set(await warnings(story)) == story.about
        story.restarts()
        await story.passes(40)
        await story.passes(1)
        assert story.reason == "SetBack", "another leader knows it, too"
        assert story.decided.suspend_at is not None
        await story.passes(20)
        assert story.reason in ("GPUsIdle", "Suspended"), "an hour later"


@pytest.mark.parametrize("kind", [Story, DirectStory, NotebookStory, DeploymentStory])
async def test_who_asks_for_it_is_never_left_alone_for_that(cluster, leader, kind: type[Story]) -> None:
    async with told(cluster, leader, kind) as story:
        for _ in range(3):
            await story.is_suspended()
            await story.is_started(asks)
            assert story.reason in RUNS
        assert not any(each.times for each in await story.history())


async def test_an_operator_is_so_quick_that_nobody_sees_it_at_0(cluster, leader) -> None:
    """Its pods are new ones. A container that is started again in its pod was not set back."""
    async with told(cluster, leader, DeploymentStory) as story:
        for times in (1, 2):
            await story.passes(12)
            assert story.reason == "GPUsIdle"
            await story.restarts_container()
            await story.passes(0)
            assert [each.times for each in await story.history() if each.times] == [1][: times - 1]
            await story.passes(12)
            assert story.reason == "GPUsIdle"
            await story.cluster.end_pods("worker-0")
            await story.passes(0)
            assert max(each.times for each in await story.history()) == times
        assert story.reason == "SetBack"


@pytest.mark.parametrize("restarts", [False, True], ids=["one leader", "another each time"])
async def test_what_a_tenant_writes_leaves_nothing_alone(cluster, leader, restarts: bool) -> None:
    """Neither in annotations of 0.1.0, nor by deleting the record."""
    async with told(cluster, leader, DeploymentStory) as story:
        await story.passes(12)
        assert story.reason == "GPUsIdle"
        for _ in range(3):
            forged = {"at": stamp(story.now), "state": "Waking", "reason": "SetBack", "times": 99}
            await cluster.annotate(SCALED_OBJECT, NAME, HISTORY, json.dumps([forged]))
            record = await cluster.record(NAME)
            await cluster.delete(SCALABLE_WORKLOAD, record["metadata"]["name"])
            if restarts:
                story.restarts()
            await story.passes(11)
            assert story.reason == "GPUsIdle"
            await story.passes(1)
            assert HISTORY not in (await cluster.read(SCALED_OBJECT, NAME))["metadata"].get("annotations", {})


async def test_who_deletes_the_record_is_left_alone_no_less_and_warned_no_later(cluster, leader) -> None:
    async with told(cluster, leader, DeploymentStory) as story:
        for _ in range(2):
            await story.is_suspended()
            await story.is_started(sets_replicas)
        assert story.reason == "SetBack"
        before = await story.history()
        record = await cluster.record(NAME)
        await cluster.delete(SCALABLE_WORKLOAD, record["metadata"]["name"])
        await story.passes(1)
        assert story.reason == "SetBack"
        assert [each.times for each in await story.history() if each.times] == [x.times for x in before if x.times]


async def test_the_annotations_of_0_1_0_are_read_once(cluster, leader) -> None:
    idle = {"at": stamp(NOON), "state": "Idle", "message": "words of a tenant"}
    warned = {"idlegpu.io/warned-at": stamp(NOON - minutes(1)), HISTORY: json.dumps([idle])}
    async with told(cluster, leader, DeploymentStory, **warned) as story:
        record = await cluster.record(NAME)
        assert "tenant" not in str(record)
        assert record["status"]["history"][0]["state"] == "Idle"
        await story.passes(1)
        found = await cluster.read(SCALED_OBJECT, NAME)
        assert not {*warned} & found["metadata"].get("annotations", {}).keys()


MARK = {"at": "2026-12-01T12:00:00Z", "state": "x", "deliveredAt": "2026-12-01T12:00:00Z"}
GARBAGE = {
    "a count below none": {HISTORY: '[{"at": "2026-12-01T12:00:00Z", "state": "Idle", "times": -5}]'},
    "a time before the calendar": {HISTORY: '[{"at": "0001-01-01T00:00:00+14:00", "state": "Idle"}]'},
    "a state of nobody": {HISTORY: '[{"at": "2026-12-01T12:00:00Z", "state": "Asleep"}]'},
    "a hook with a long name": {
        "idlegpu.io/before-suspend": json.dumps({"hook": "h" * 99, "startedAt": "2026-12-01T11:00:00Z"})
    },
    "a hook beyond the calendar": {
        "idlegpu.io/before-suspend": json.dumps(
            {"hook": "h", "startedAt": "2026-12-01T11:00:00Z", "savedAt": "9999-12-31T23:00:00-14:00"}
        )
    },
    "a mark beyond the calendar": {
        "idlegpu.io/notified-x": json.dumps(MARK | {"at": "0001-01-01T00:00:00+14:00"}),
    },
    "many marks": {f"idlegpu.io/notified-{n}": json.dumps(MARK) for n in range(70)},
}


@pytest.mark.parametrize("annotations", GARBAGE.values(), ids=GARBAGE)
async def test_what_0_1_0_never_wrote_is_left_out_of_the_record(cluster, leader, annotations: dict[str, str]) -> None:
    async with told(cluster, leader, DeploymentStory, **annotations) as story:
        await story.passes(1)
        assert (await cluster.record(NAME))["status"]["state"] in ("Busy", "Idle")
        found = await cluster.read(SCALED_OBJECT, NAME)
        assert not annotations.keys() & found["metadata"].get("annotations", {}).keys()


async def test_another_target_has_nothing_of_the_record_of_the_one_before(cluster, leader) -> None:
    async with told(cluster, leader, DeploymentStory) as story:
        await story.is_suspended()
        found = await cluster.read(DEPLOYMENT, NAME)
        spec = {**found["spec"], "replicas": 0}
        await cluster.create(DEPLOYMENT, {"metadata": {"name": "other"}, "spec": spec})
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "other"}
        await cluster.change(SCALED_OBJECT, NAME, {"spec": {"scaleTargetRef": target}})
        await story.passes(0)
        record = await cluster.record(NAME)
        assert record["spec"]["jobRef"] == target
        assert [each["state"] for each in record["status"]["history"]] == ["Suspended"]


async def test_of_what_nobody_decides_about_the_record_is_empty(cluster, leader) -> None:
    async with told(cluster, leader, DeploymentStory) as story:
        await story.passes(5)
        assert (await cluster.record(NAME))["status"]["state"]
        await cluster.change(SCALED_OBJECT, NAME, {"spec": {"triggers": [{"type": "cron", "metadata": {}}]}})
        await until(story.is_current)
        await story.evaluator.tick(story.now)
        await story.reconciler.reconcile_scaled_object(KEY)
        assert not (await cluster.record(NAME))["status"].get("state")
        await story.reconciler.reconcile_scaled_object(KEY)


async def test_the_record_of_another_scaler_stays_as_it_is(cluster, leader) -> None:
    """Its triggers have another address, and this one decides nothing about them."""
    async with told(cluster, leader, DeploymentStory) as story:
        await story.passes(5)
        before = (await cluster.record(NAME))["status"]
        config = replace(story.evaluator.config, scaler_addresses=frozenset({"ours:9090"}))
        story.evaluator.config = config
        await cluster.annotate(SCALED_OBJECT, NAME, "anything", "new")
        await until(story.is_current)
        await story.evaluator.tick(story.now)
        assert story.decisions.evaluation is not None
        assert not story.decisions.evaluation.entries
        await story.reconciler.reconcile_scaled_object(KEY)
        assert (await cluster.record(NAME))["status"] == before


async def test_what_was_decided_about_the_target_before_is_not_written_of_the_new_one(cluster, leader) -> None:
    async with told(cluster, leader, DeploymentStory) as story:
        await story.passes(12)
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "other"}
        await cluster.change(SCALED_OBJECT, NAME, {"spec": {"scaleTargetRef": target}})
        await until(story.is_current)
        before = await cluster.record(NAME)
        for _ in range(3):
            await story.reconciler.reconcile_scaled_object(KEY)
        assert await cluster.record(NAME) == before
        await story.passes(0)
        after = await cluster.record(NAME)
        assert (after["spec"]["jobRef"]["name"], after["status"]["reason"]) == ("other", "TargetNotFound")


async def test_a_new_leader_counts_on_though_keda_has_suspended_it_meanwhile(
    cluster, leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = "manager"
    monkeypatch.setattr(scale_subresources, "last_writer", lambda _raw, _field: writer)
    async with told(cluster, leader, DeploymentStory) as story:
        await story.is_suspended()
        await story.is_started(sets_replicas)
        await story.is_suspended()
        writer = "keda"
        story.restarts()
        await story.passes(1)
        writer = "manager"
        await story.is_started(sets_replicas)
        assert [each.times for each in await story.history() if each.times] == [1, 2]
        assert story.reason == "SetBack"


WRITERS = [
    {"manager": "kubectl", "time": "2026-12-01T12:00:00Z", "fieldsV1": {"f:spec": {"f:template": {}}}},
    {"manager": "keda", "time": "2026-12-01T12:01:00Z", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    {"manager": "manager", "time": "2026-12-01T12:02:00Z", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:active": {}}}},
    {"manager": "kubelet", "time": "2026-12-01T12:03:00Z", "fieldsV1": {"f:status": {"f:replicas": {}}}},
    {"manager": "broken"},
]


@pytest.mark.parametrize(
    ("writers", "field", "client"),
    [
        (WRITERS, "replicas", "manager"),
        (WRITERS[:2], "replicas", "keda"),
        (WRITERS, "active", "manager"),
        (WRITERS, "suspend", ""),
        (None, "replicas", ""),
    ],
)
def test_the_client_that_has_written_a_field_last_is_named(writers: Any, field: str, client: str) -> None:
    assert last_writer(json.dumps({"metadata": {"name": "x", "managedFields": writers}}).encode(), field) == client


@pytest.mark.parametrize(("writer", "times"), [("manager", 2), ("keda", 0)])
@pytest.mark.parametrize("kind", [Story, DeploymentStory])
async def test_the_client_is_named_and_another_trigger_of_keda_is_none(
    cluster, leader, kind: type[Story], writer: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded API does not keep who has written what."""
    for where in (status_writer, scale_subresources):
        monkeypatch.setattr(where, "last_writer", lambda _raw, field: f"{writer}" if field == "replicas" else "")
    async with told(cluster, leader, kind) as story:
        for _ in range(2):
            await story.is_suspended()
            await story.is_started(sets_replicas)
        found = [each for each in await story.history() if each.times]
        assert [each.by for each in found] == [writer] * times
        if times:
            assert f"{writer} has started it 2 times in a row" in story.decided.answer.message
            assert all(f"{writer} has started it 2 times" in each[0] for each in (await warnings(story)).values())


# ----------------------------------------------------------------------------------------------------- how long, purely


def started(at: int, *before: HistoryLine, **changes: Any) -> HistoryLine | None:
    """Of a suspension that began a minute ago, the line that is added, minutes after noon."""
    down = HistoryLine(NOON + minutes(at - 1), "Suspended", "GPUsIdle")
    made = decision(BUSY_NOW, policy=policy(**changes), target=a_target())
    found = next_set_back([*before, down], made, down_since=None, now=NOON + minutes(at))
    return next_line(down, made, set_back=found, now=NOON + minutes(at))


@pytest.mark.parametrize(
    ("after", "changes", "times"),
    [
        (59, {}, 2),
        (61, {}, 1),
        (100, {"idle_after": minutes(60)}, 2),
        (110, {"idle_after": minutes(60)}, 1),
        (59, {"idle_after": minutes(1)}, 2),
    ],
)
def test_a_second_time_is_within_the_hour_or_as_soon_as_it_can_be(after: int, changes: Any, times: int) -> None:
    first = started(0, **changes)
    assert first is not None
    second = started(after, first, **changes)
    assert second is not None
    assert (first.times, second.times) == (1, times)


@given(gaps=st.lists(st.integers(1, 3000), min_size=1, max_size=12))
def test_who_goes_on_is_left_alone_for_longer_and_never_for_more_than_a_day(gaps: list[int]) -> None:
    at, lines = 0, list[HistoryLine]()
    for gap in gaps:
        at += gap
        line = started(at, *lines)
        assert line is not None
        if lines:
            assert line.times in (1, lines[-1].times + 1)
        lines.append(line)
        alone = SetBack(line.at, line.times).left_alone_until - line.at
        hours = {1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: 16}.get(line.times, 24)
        assert alone == hours * HOUR


@given(times=st.integers(), minute=st.integers(-3000, 3000))
def test_whatever_is_written_as_how_often_it_is_left_alone_for_a_day_at_most(times: int, minute: int) -> None:
    target = a_target(set_back=SetBack(NOON + minutes(minute), times))
    until = left_alone_until(target, NOON)
    assert until is None or NOON < until <= NOON + 24 * HOUR
    assert until is None or minute <= 0


STARTED = WakeRequest(WakeCause.OTHER, "Notebook a was started")


@given(marks=st.sets(st.integers(0, 20), max_size=3), length=st.integers(0, 40), most=st.integers(2, 16))
def test_a_history_that_is_shortened_keeps_what_was_set_back_last(marks: set[int], length: int, most: int) -> None:
    lines = [HistoryLine(NOON + minutes(n), "Waking", times=int(n in marks)) for n in range(length)]
    short = shortened(lines, most)
    assert len(short) == min(most, length)
    assert short[1:] == lines[length - len(short) + 1 :]
    assert set_back_of(short) == set_back_of(lines)


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [
        ({}, True),
        ({"wake_request": WakeRequest(WakeCause.ANNOTATION, "annotation")}, False),
        ({"wake_request": STARTED, "is_started_by_other": True, "desired_replicas": 0}, True),
        ({"demand": "demand query"}, False),
        ({"when_free_request": "annotation"}, False),
        ({"desired_replicas": 0, "phase": Phase.SUSPENDED}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize(("reason", "is_ours"), [("GPUsIdle", True), ("Reclaimed", True), ("Suspended", False)])
def test_only_what_was_suspended_for_being_idle_and_nobody_asks_for_is_set_back(
    changes: dict[str, Any], is_one: bool, reason: str, is_ours: bool
) -> None:
    down = [HistoryLine(NOON, "Suspending", reason), HistoryLine(NOON + minutes(1), "Suspended", reason)]
    made = decision(BUSY_NOW, target=a_target(**changes))
    found = next_set_back(down, made, down_since=None, now=NOON + minutes(2))
    assert (found is not None) == (is_one and is_ours)


def test_one_that_was_called_off_before_it_was_at_0_is_not_set_back() -> None:
    going, made = [HistoryLine(NOON, "Suspending", "GPUsIdle")], decision(BUSY_NOW, target=a_target())
    for since, is_one in ((None, False), (NOON - minutes(1), False), (NOON, True)):
        assert (next_set_back(going, made, down_since=since, now=NOON + minutes(1)) is not None) == is_one
