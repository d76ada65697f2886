"""Jobs attached by an IdlePolicy: suspended while idle, resumed when owners ask, and left as they were after it."""

from collections.abc import Sequence
from typing import Any

import e2e.e2e_manifests as manifests
import msgspec
import pytest
from e2e.e2e_flow import Flow, StartFlow
from scaler_sandbox.conditions import has

from scaler.kube.objects.resources import (
    DEPLOYMENT,
    IDLE_POLICY,
    JOB,
    POD,
    RAY_CLUSTER,
    RAY_JOB,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)

Json = dict[str, Any]
POLICY = {"mode": "Enforce", "idleAfter": "3s", "warmUp": "0s", "reclaim": "Always"}


class Attachment:
    """A flow with such a policy, and jobs by the names that the API gave them."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.jobs: dict[str, Resource] = {}

    async def create(self, resource: Resource, body: Json) -> str:
        made = msgspec.json.decode(await self.flow.api.create(resource.path(self.flow.namespace), body))
        name = str(made["metadata"]["name"])
        self.jobs[name] = resource
        return name

    async def set_busy(self, level: float) -> None:
        self.flow.sandbox.fleet.set_activity(self.flow.namespace, "*", level)

    def running(self, job: str) -> list[Json]:
        pods = [each for each in self.flow.sandbox.all(POD, self.flow.namespace) if _is_of(each, job)]
        return [each for each in pods if (each.get("status") or {}).get("phase") == "Running"]

    def pods(self, job: str) -> list[Json]:
        return [each for each in self.flow.sandbox.all(POD, self.flow.namespace) if _is_of(each, job)]

    async def wait_until_running(self, *jobs: str) -> None:
        for each in jobs:
            size = 2 if self.jobs[each] in (RAY_CLUSTER, RAY_JOB) else 1
            await self.flow.wait_until(lambda job=each, size=size: len(self.running(job)) == size, f"{each} to run")

    async def wait_until_suspended(self, *jobs: str) -> None:
        for each in jobs:
            await self.flow.wait_until(lambda job=each: not self.pods(job), f"the pods of {each} to be gone")

    def scaled_objects(self) -> dict[str, Json]:
        """By the job that owns each."""
        return _by_owner(self.flow.sandbox.all(SCALED_OBJECT, self.flow.namespace))

    def scalable_workloads(self) -> dict[str, Json]:
        return _by_owner(self.flow.sandbox.all(SCALABLE_WORKLOAD, self.flow.namespace))

    def record_of(self, job: str) -> Json:
        """The ScalableWorkload that only has the status of a job with a scale of its own; an empty one without it."""
        scaled_object = self.scaled_objects().get(job) or {"metadata": {"uid": ""}}
        for each in self.flow.sandbox.all(SCALABLE_WORKLOAD, self.flow.namespace):
            owners = [owner["uid"] for owner in each["metadata"].get("ownerReferences") or ()]
            if each["spec"]["actuator"] == "None" and owners == [scaled_object["metadata"]["uid"]]:
                return each
        return {}

    def states_of(self, job: str) -> list[str]:
        """All states that its record has, from the first one to the present one."""
        status = self.record_of(job).get("status") or {}
        return [each["state"] for each in status.get("history") or ()]

    def is_attached(self, job: str) -> bool:
        """As its kind is, and by KEDA's word, too."""
        found = self.scaled_objects().get(job)
        through = job in self.scalable_workloads()
        return found is not None and has(found, "Ready") and through is (self.jobs[job] != DEPLOYMENT)

    async def wait_until_attached(self, *jobs: str) -> None:
        for each in jobs:
            await self.flow.wait_until(lambda job=each: self.is_attached(job), f"{each} to be attached")

    async def annotate(self, job: str, **annotations: str) -> None:
        body = {"metadata": {"annotations": {f"idlegpu.io/{key}": value for key, value in annotations.items()}}}
        await self.flow.sandbox.patch(self.jobs[job], self.flow.namespace, job, body)

    def left(self) -> list[str]:
        """What there is of attached objects."""
        found = *self.scaled_objects(), *self.scalable_workloads()
        return sorted(found)


def _is_of(pod: Json, job: str) -> bool:
    return bool(pod["metadata"]["name"].startswith(f"{job}-"))


def _by_owner(bodies: Sequence[Json]) -> dict[str, Json]:
    return {owner["name"]: each for each in bodies for owner in each["metadata"].get("ownerReferences") or ()}


async def _attached(flow: Flow, *kinds: Resource) -> Attachment:
    """Jobs of these kinds that work, attached by the policy."""
    made, run = Attachment(flow), flow.run
    bodies = {
        JOB: manifests.generated_job(run, "train-"),
        DEPLOYMENT: manifests.deployment(run, "server"),
        RAY_CLUSTER: manifests.ray_cluster(run, "notebook"),
        RAY_JOB: manifests.generated_ray_job(run, "eval-"),
    }
    await made.set_busy(0.9)
    await flow.bring_keda()
    await flow.sandbox.apply(manifests.idle_policy(run, POLICY))
    for kind in kinds:
        await made.create(kind, bodies[kind])
    await made.wait_until_running(*made.jobs)
    await made.wait_until_attached(*made.jobs)
    return made


@pytest.mark.long
async def test_a_job_with_a_generated_name_and_a_deployment_are_suspended_woken_and_left_as_they_were(
    start_flow: StartFlow,
) -> None:
    async with start_flow(nodes={"a": 8}, gpus=8, has_check=False) as flow:
        made = await _attached(flow, JOB, DEPLOYMENT)
        job, server = made.jobs
        await made.set_busy(0.0)
        await made.wait_until_suspended(job, server)
        await flow.wait_until(lambda: made.states_of(server)[-1:] == ["Suspended"], "the record of the Deployment")
        assert made.record_of(server)["spec"]["jobRef"] == {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": server,
        }
        await made.set_busy(0.9)
        await made.annotate(job, wake="true")
        await made.wait_until_running(job)
        await flow.assert_stays(lambda: not made.pods(server), "the Deployment stays at 0", seconds=2)
        await flow.sandbox.delete(IDLE_POLICY, flow.namespace, flow.run)
        await made.wait_until_running(job, server)
        await flow.wait_until(lambda: not made.left(), "the attached objects to be gone")
        assert len(made.running(job)) == 1
        assert flow.has_condition(job, "Admitted")


@pytest.mark.cluster
async def test_ray_clusters_and_ray_jobs_follow_their_policy_when_kueue_makes_their_workloads_anew(
    start_flow: StartFlow,
) -> None:
    async with start_flow(nodes={"a": 8}, gpus=8, has_check=False) as flow:
        if flow.cluster is not None and not flow.cluster.has_ray:
            pytest.skip("the cluster has no CustomResourceDefinitions of KubeRay")
        made = await _attached(flow, RAY_CLUSTER, RAY_JOB)
        notebook, evaluation = made.jobs
        await made.set_busy(0.0)
        await made.wait_until_suspended(notebook, evaluation)
        workload = flow.sandbox.workload_of(RAY_JOB, flow.namespace, evaluation)
        assert workload is not None
        await flow.sandbox.delete(WORKLOAD, flow.namespace, workload["metadata"]["name"])
        await flow.wait_until(lambda: _is_remade(flow, evaluation, workload), "another Workload, deactivated, too")
        await made.wait_until_suspended(evaluation)
        await made.set_busy(0.9)
        await made.annotate(evaluation, wake="true")
        await made.wait_until_running(evaluation)
        await flow.sandbox.delete(RAY_CLUSTER, flow.namespace, notebook)
        await flow.wait_until(lambda: notebook not in made.left(), "what was attached to the RayCluster to be gone")
        await flow.sandbox.delete(IDLE_POLICY, flow.namespace, flow.run)
        await flow.wait_until(lambda: not made.left(), "the attached objects to be gone")
        await made.wait_until_running(evaluation)


def _is_remade(flow: Flow, job: str, before: Json) -> bool:
    found = flow.sandbox.workload_of(RAY_JOB, flow.namespace, job)
    is_another = found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]
    return is_another and found is not None and found["spec"].get("active") is False
