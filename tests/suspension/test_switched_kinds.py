"""Notebooks and InferenceServices through the reconciler, against the embedded API; KEDA and people by hand."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count

import pytest
from builders import INACTIVE, WorkloadJson, at, decision
from small_cluster import NAMESPACE_NAME, WORKLOAD_NAME, SmallCluster, until
from suspension.replica import Replica, replica
from switched_kinds import (
    REAL_NOTEBOOK_CRD,
    InferenceServiceController,
    NotebookController,
    SwitchedKindController,
    definition,
    inference_service,
    notebook,
    real_notebook_definition,
)

from scaler.errors import KubeError
from scaler.idleness.reasons import UnknownReason
from scaler.kube.objects.resources import INFERENCE_SERVICE, NOTEBOOK, POD, SCALABLE_WORKLOAD, WORKLOAD, Resource
from scaler.targets.switches import NOTEBOOK_STOPPED, SERVICE_STOPPED
from scaler.targets.target_state import Phase, WakeCause, WakeRequest, state_of
from scaler.targets.workloads import SUSPENDED_ANNOTATION, WAKE_ANNOTATION

NB, ISVC = "bench", "llm"
GPUS_IDLE = decision(INACTIVE, idle_since=at(-1800))


class World:
    """One object with a switch of its own and its ScalableWorkload, seen by one replica."""

    def __init__(
        self, cluster: SmallCluster, leader: Replica, resource: Resource, name: str, controller: SwitchedKindController
    ) -> None:
        self.cluster, self.leader, self.resource, self.name = cluster, leader, resource, name
        self.controller = controller

    async def settles(self, rounds: int = 3) -> None:
        """Everybody does what there is to be done."""
        for _ in range(rounds):
            await self.controller.tick()
            await until(self._is_seen)
            await self.leader.reconciles(name=self.name)

    async def _is_seen(self) -> bool:
        reflector = self.leader.reflectors.switched._reflectors.get(self.resource)
        there = {x["metadata"]["name"]: x["metadata"]["resourceVersion"] for x in await self.cluster.all(self.resource)}
        seen = {each.metadata.name: each.metadata.resource_version for each in reflector.items()} if reflector else {}
        return there == seen and not self.leader.copies.unlisted(NAMESPACE_NAME) and await self.leader.is_current()

    async def scale(self, replicas: int) -> None:
        await self.cluster.scale(replicas, name=self.name)

    async def body(self):
        return await self.cluster.read(self.resource, self.name)

    async def annotations(self):
        return (await self.body())["metadata"].get("annotations", {})

    async def status(self):
        return await self.cluster.status(self.name)

    async def pods(self) -> list[str]:
        return [each["metadata"]["name"] for each in await self.cluster.all(POD)]

    def state(self):
        scalable = self.leader.copies.scalable_workloads.get(NAMESPACE_NAME, self.name)
        return state_of(self.leader.copies.situation(scalable))

    @property
    def writes(self):
        return self.leader.patches_of(self.resource, self.name)


@asynccontextmanager
async def world(cluster: SmallCluster, leader: Replica, body, **options) -> AsyncIterator[World]:
    resource = NOTEBOOK if body["kind"] == NOTEBOOK.kind else INFERENCE_SERVICE
    made = NotebookController if resource == NOTEBOOK else InferenceServiceController
    name = body["metadata"]["name"]
    await cluster.create(resource, body)
    job = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name}
    await cluster.wants(1, name=name, jobRef=job)
    one = World(cluster, leader, resource, name, made(cluster.kube, NAMESPACE_NAME, **options))
    try:
        yield one
    finally:
        await leader.reflectors.switched.close()


@pytest.fixture
def served(cluster: SmallCluster) -> SmallCluster:
    cluster.api.install_crds([definition(NOTEBOOK), definition(INFERENCE_SERVICE)])
    return cluster


@pytest.fixture
async def bench(served: SmallCluster, leader: Replica) -> AsyncIterator[World]:
    """A Notebook that runs."""
    async with world(served, leader, notebook(NB, NAMESPACE_NAME)) as one:
        await one.settles()
        assert (await one.status())["phase"] == "Running"
        yield one


async def suspend(one: World) -> None:
    one.leader.decides(GPUS_IDLE)
    await one.scale(0)
    await one.settles()
    assert ((await one.status())["phase"], await one.pods()) == ("Suspended", [])
    one.leader.patches.clear()


# ------------------------------------------------------------------------------------------------------------ Notebook


async def test_an_idle_notebook_is_stopped_by_one_patch_that_says_why(bench: World) -> None:
    bench.leader.decides(GPUS_IDLE)
    await bench.scale(0)
    await bench.settles()
    [patch] = bench.writes
    mark = json.loads(patch["metadata"]["annotations"].pop(SUSPENDED_ANNOTATION))
    assert patch["metadata"]["annotations"] == {NOTEBOOK_STOPPED: mark["at"]}
    assert set(patch) == {"metadata"}
    assert (mark["reason"], mark["by"]) == ("ScaledToZero", f"ScalableWorkload/{NB}")
    status = await bench.status()
    assert (status["phase"], status["replicas"], status["suspendedAt"]) == ("Suspended", 0, mark["at"])
    assert await bench.pods() == []
    [event] = [each for each in await bench.leader.events("Notebook") if each.startswith("ScaledToZero")]
    assert "deactivated Notebook bench" in event


async def test_it_comes_back_as_it_was(bench: World) -> None:
    before = await bench.body()
    await suspend(bench)
    await bench.scale(1)
    await bench.settles()
    after = await bench.body()
    assert (after["spec"], after["metadata"].get("annotations", {})) == (before["spec"], {})
    assert (await bench.status())["phase"] == "Running"
    assert await bench.pods() == [f"{NB}-0"]
    assert "Resumed" in await bench.leader.reasons("Notebook")


async def test_a_start_from_the_dashboard_is_a_wake_up_and_nothing_is_written_to_what_runs(bench: World) -> None:
    await suspend(bench)
    await bench.cluster.annotate(NOTEBOOK, NB, NOTEBOOK_STOPPED, None)
    await bench.settles()
    assert bench.writes == []
    assert bench.state().wake_request == WakeRequest(WakeCause.OTHER, "Notebook bench was started")
    assert bench.state().phase is Phase.RUNNING
    await bench.scale(1)  # KEDA's answer
    await bench.settles()
    status = await bench.status()
    assert (status["phase"], bench.writes) == ("Running", [])
    assert status["resumedAt"] >= status["suspendedAt"]
    assert bench.state().wake_request is None


@pytest.fixture
def hours_pass(leader: Replica) -> Callable[[], None]:
    """From now on each call moves the reconciler's clock an hour on."""
    hours = count(1)
    now = datetime.now(UTC)

    def later() -> None:
        leader.now = now.replace(year=now.year + next(hours))

    return later


async def test_what_was_started_from_the_dashboard_can_be_suspended_again(bench: World, hours_pass) -> None:
    await suspend(bench)
    await bench.cluster.annotate(NOTEBOOK, NB, NOTEBOOK_STOPPED, None)
    await bench.settles()
    hours_pass()
    await bench.scale(1)
    await bench.settles()
    hours_pass()
    await suspend(bench)
    assert NOTEBOOK_STOPPED in await bench.annotations()


async def test_a_stop_by_its_user_stays_and_says_so(bench: World) -> None:
    await bench.cluster.annotate(NOTEBOOK, NB, NOTEBOOK_STOPPED, "2026-12-01T12:00:00Z")
    await bench.settles()
    status = await bench.status()
    assert (status["phase"], status["replicas"], bench.writes) == ("DeactivatedByOther", 0, [])
    [ready] = status["conditions"]
    assert ready["message"] == "another client stopped it; start Notebook bench, or set annotation idlegpu.io/wake"
    await bench.cluster.annotate(SCALABLE_WORKLOAD, NB, WAKE_ANNOTATION, "true")
    await bench.settles()
    assert NOTEBOOK_STOPPED not in await bench.annotations()


async def test_a_stop_by_its_user_after_a_start_from_the_dashboard_is_not_ours(bench: World, hours_pass) -> None:
    """Our annotation of the suspension before is still there, and goes now that nothing runs."""
    await suspend(bench)
    await bench.cluster.annotate(NOTEBOOK, NB, NOTEBOOK_STOPPED, None)
    await bench.settles()
    hours_pass()
    await bench.scale(1)
    await bench.settles()
    assert SUSPENDED_ANNOTATION in await bench.annotations()
    await bench.cluster.annotate(NOTEBOOK, NB, NOTEBOOK_STOPPED, "2026-12-01T12:00:00Z")
    await bench.settles()
    assert (await bench.status())["phase"] == "DeactivatedByOther"
    assert await bench.annotations() == {NOTEBOOK_STOPPED: "2026-12-01T12:00:00Z"}
    await bench.cluster.delete(SCALABLE_WORKLOAD, NB)
    await bench.cluster.wants(1, name=NB, jobRef={"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "name": NB})
    await bench.settles()
    assert NOTEBOOK_STOPPED in await bench.annotations()


async def test_zero_replicas_of_what_its_user_has_stopped_are_noted_on_it(bench: World) -> None:
    await bench.cluster.annotate(NOTEBOOK, NB, NOTEBOOK_STOPPED, "2026-12-01T12:00:00Z")
    await bench.settles()
    await bench.scale(0)
    await bench.settles()
    assert (await bench.status())["phase"] == "Suspended"
    assert (await bench.annotations())[NOTEBOOK_STOPPED] == "2026-12-01T12:00:00Z"
    await bench.scale(1)
    await bench.settles()
    assert (await bench.status())["phase"] == "Running"


async def test_of_two_scalable_workloads_of_one_notebook_only_the_older_acts(bench: World) -> None:
    job = {"apiVersion": "kubeflow.org/v1beta1", "kind": "Notebook", "name": NB}
    await bench.cluster.wants(0, name="younger", jobRef=job)
    await bench.settles()
    await bench.leader.reconciles(name="younger")
    assert (await bench.cluster.status("younger"))["phase"] == "Refused"
    assert await bench.pods() == [f"{NB}-0"]


async def test_a_workload_that_kueue_has_for_its_pods_is_left_alone(bench: World) -> None:
    """Kueue admits the pods of its StatefulSet as a group; the Notebook would own it with an integration of its own."""
    workload = WorkloadJson(WORKLOAD_NAME)
    uid = (await bench.body())["metadata"]["uid"]
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "name": NB, "uid": uid, "controller": True}
    workload.json["metadata"]["ownerReferences"] = [owner]
    await bench.cluster.create(WORKLOAD, workload.json)
    await suspend(bench)
    assert (await bench.cluster.read(WORKLOAD, WORKLOAD_NAME))["spec"]["active"] is True
    assert (await bench.status())["workloadName"] == NB


@pytest.mark.parametrize("writes", range(1, 6))
async def test_a_process_that_ends_at_any_write_loses_nothing(served: SmallCluster, writes: int) -> None:
    """So many writes by one process, the rest by another: suspended, woken from the dashboard, suspended, resumed."""
    left = writes

    async def patch(path: str, body, **more) -> bytes:
        nonlocal left
        if left == 0:
            raise KubeError("this process has ended", status=500)
        left -= 1
        return await type(first.transport).patch(first.transport, path, body, **more)

    async with replica(served) as first, replica(served) as second:
        first.transport.patch = patch  # type: ignore[method-assign]
        async with world(served, first, notebook(NB, NAMESPACE_NAME)) as one:
            other = World(served, second, NOTEBOOK, NB, one.controller)

            async def settle() -> None:
                try:
                    await one.settles()
                except KubeError:
                    await other.settles()

            await settle()
            await one.scale(0)
            await settle()
            await other.settles(1)
            assert ((await one.status())["phase"], await one.pods()) == ("Suspended", [])
            mark = json.loads((await one.annotations())[SUSPENDED_ANNOTATION])
            assert (await one.annotations())[NOTEBOOK_STOPPED] == mark["at"]
            await one.scale(1)
            await settle()
            await other.settles(1)
            assert ((await one.status())["phase"], await one.annotations()) == ("Running", {})
        await second.reflectors.switched.close()


@pytest.mark.skipif(not REAL_NOTEBOOK_CRD.exists(), reason="no kubeflow.org_notebooks.yaml: set SCALER_SHARED_DATA")
async def test_kubeflows_own_definition_takes_and_keeps_what_is_written(cluster: SmallCluster, leader: Replica) -> None:
    cluster.api.install_crds([real_notebook_definition()])
    async with world(cluster, leader, notebook(NB, NAMESPACE_NAME)) as one:
        await one.settles()
        before = (await one.body())["spec"]
        await suspend(one)
        await one.scale(1)
        await one.settles()
        assert (await one.body())["spec"] == before
        assert (await one.status())["phase"] == "Running"


# ----------------------------------------------------------------------------------------------- what cannot be known


async def test_without_its_definition_nothing_is_known_of_a_notebook(cluster: SmallCluster, leader: Replica) -> None:
    job = {"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "name": NB}
    await cluster.wants(0, name=NB, jobRef=job)
    await until(lambda: leader.reflectors.switched._reflectors)
    await leader.reflectors.switched.wait_listed()
    await leader.reconciles(name=NB)
    status = await cluster.status(NB)
    assert status["phase"] == "NoWorkload"
    assert "is notebooks.kubeflow.org installed, " in status["conditions"][0]["message"]
    scalable = leader.copies.scalable_workloads.get(NAMESPACE_NAME, NB)
    assert state_of(leader.copies.situation(scalable)).doubt.reason is UnknownReason.TARGET_NOT_FOUND
    await leader.reflectors.switched.close()


async def test_what_may_not_be_listed_is_not_known_and_its_status_stays(bench: World) -> None:
    async with replica(bench.cluster) as blind:
        with bench.cluster.refusing("GET", "/notebooks", status=403):
            await until(lambda: blind.reflectors.switched._reflectors)
            await blind.reflectors.switched.wait_listed()
            await bench.scale(0)
            with pytest.raises(KubeError, match="Notebook objects cannot be listed"):
                await blind.reconciles(name=NB)
            scalable = blind.copies.scalable_workloads.get(NAMESPACE_NAME, NB)
            doubt = state_of(blind.copies.situation(scalable)).doubt
        await blind.reflectors.switched.close()
    assert doubt is not None
    assert doubt.reason is UnknownReason.STALE_CLUSTER_VIEW
    assert (await bench.status())["phase"] == "Running"


async def test_a_notebook_that_is_gone_is_missed(bench: World) -> None:
    await bench.cluster.delete(NOTEBOOK, NB)
    await bench.settles(1)
    status = await bench.status()
    assert status["phase"] == "NoWorkload"
    assert status["conditions"][0]["message"].startswith("Notebook demo/bench does not exist")


# --------------------------------------------------------------------------------------------------- InferenceService


@pytest.mark.parametrize(
    "predictor", [{}, {"minReplicas": 1}, {"minReplicas": 2, "maxReplicas": 3}, {"minReplicas": 0}]
)
@pytest.mark.parametrize(
    "kserve",
    [{}, {"mode": "Serverless"}, {"version": (0, 14), "mode": "Serverless"}],
    ids=["0.17", "0.17-knative", "0.14-knative"],
)
async def test_an_inference_service_comes_back_exactly_as_it_was(served, leader, predictor, kserve) -> None:
    if predictor == {"minReplicas": 0} and kserve.get("mode"):
        pytest.skip("Knative itself has no pod of it")
    body = inference_service(ISVC, NAMESPACE_NAME, annotations={"team": "a"}, **predictor)
    async with world(served, leader, body, **kserve) as one:
        await one.settles()
        before, pods = await one.body(), await one.pods()
        await suspend(one)
        await one.scale(1)
        await one.settles()
        after = await one.body()
        assert after["spec"] == before["spec"]
        assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
        assert sorted(await one.pods()) == sorted(pods)
        assert (await one.status())["phase"] == "Running"


async def test_its_stop_annotation_is_used_where_kserve_knows_it(served, leader) -> None:
    async with world(served, leader, inference_service(ISVC, NAMESPACE_NAME, minReplicas=2)) as one:
        await one.settles()
        await suspend(one)
        body = await one.body()
        assert body["metadata"]["annotations"][SERVICE_STOPPED] == "true"
        assert body["spec"]["predictor"]["minReplicas"] == 2


async def test_a_running_service_started_by_its_user_is_not_rolled_out_again(served, leader) -> None:
    """Its pods carry its annotations: to remove ours would replace them."""
    async with world(served, leader, inference_service(ISVC, NAMESPACE_NAME)) as one:
        await one.settles()
        await suspend(one)
        await served.annotate(INFERENCE_SERVICE, ISVC, SERVICE_STOPPED, None)
        await one.settles()
        assert one.state().wake_request == WakeRequest(WakeCause.OTHER, "InferenceService llm was started")
        await one.scale(1)
        await one.settles()
        assert one.writes == []
        assert len(one.controller.started) == 2, "once before and once after"


async def test_an_older_kserve_without_knative_is_refused(served, leader) -> None:
    body = inference_service(ISVC, NAMESPACE_NAME)
    async with world(served, leader, body, version=(0, 14), mode="RawDeployment") as one:
        await one.settles()
        await one.scale(0)
        await one.settles()
        status = await one.status()
        assert (status["phase"], one.writes) == ("Refused", [])
        assert "since version 0.16" in status["conditions"][0]["message"]
        assert one.state().doubt.reason is UnknownReason.UNSUPPORTED_WORKLOAD
