"""Policies in a cluster: the whole program against the embedded API, where Kueue's Workloads are made by hand."""

import json
from contextlib import asynccontextmanager

import msgspec
import pytest
from builders import WorkloadJson
from loops_builders import scaled_object
from running_scaler import gpus, runtime, settings_document
from small_cluster import NAME, WORKLOAD_NAME, until
from switched_kinds import definition, inference_service, notebook

from scaler.attachment.controller import AttachmentController
from scaler.attachment.jobs import controlled_by_other, is_part_of_job
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import ObjectMeta, OwnerReference
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN
from scaler.kube.objects.resources import (
    CLUSTER_IDLE_POLICY,
    DEPLOYMENT,
    IDLE_POLICY,
    INFERENCE_SERVICE,
    NAMESPACE,
    NOTEBOOK,
    RAY_CLUSTER,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    STATEFUL_SET,
    WORKLOAD,
)

JOB_NAME = f"raycluster-{NAME}"
KEDA = {"scalerAddresses": ["scaler:9090"]}


@asynccontextmanager
async def program(cluster, **sections):
    async with gpus() as (_, exporter):
        document = settings_document(cluster.kubeconfig, exporter.node_urls["node-a"], keda=KEDA, **sections)
        async with runtime(document) as running:
            yield running


async def names(cluster, resource):
    """Without records."""
    found = [each for each in await cluster.all(resource) if each["spec"].get("actuator") != "None"]
    return sorted(each["metadata"]["name"] for each in found)


async def attached(cluster):
    return await names(cluster, SCALABLE_WORKLOAD), await names(cluster, SCALED_OBJECT)


async def status_of(cluster, resource, name):
    found = await cluster.kube.get(resource.path("demo" if resource.namespaced else "", name))
    return msgspec.json.decode(found).get("status") or {}


async def apply(cluster, resource, name, **spec):
    path = resource.path("demo" if resource.namespaced else "", name)
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
    await cluster.kube.patch(path, body, apply_as="test")


async def gang(cluster):
    await cluster.submit(gpu_workload())
    await cluster.admit()
    await cluster.run_pods()


def gpu_workload():
    made = WorkloadJson(WORKLOAD_NAME)
    asks = {"nvidia.com/gpu": "1"}
    for pod_set in made.json["spec"]["podSets"]:
        for container in pod_set["template"]["spec"]["containers"]:
            container["resources"] = {"requests": asks, "limits": asks}
    return made


async def test_a_job_is_attached_by_a_policy_and_detached_with_it(cluster):
    await gang(cluster)
    async with program(cluster):
        await apply(cluster, IDLE_POLICY, "research", idleAfter="10m", selector={"kinds": ["RayCluster"]})
        await until(lambda: is_attached(cluster))
        scaled = await cluster.read(SCALED_OBJECT, JOB_NAME)
        assert scaled["spec"]["triggers"][0]["metadata"] == {
            "scalerAddress": "scaler:9090",
            "mode": "observe",
            "idleAfter": "10m",
        }
        await until(lambda: stands(cluster, matched=1, attached=1, suspended=0))
        await until(lambda: cluster.has_phase("Running", JOB_NAME))
        await cluster.kube.delete(IDLE_POLICY.path("demo", "research"))
        await until(lambda: is_detached(cluster))


@pytest.mark.parametrize("on", ["its Workload", "the job"])
async def test_a_job_that_a_hub_of_multikueue_runs_here_is_detached(cluster, on):
    """Only the hub can suspend it."""
    await gang(cluster)
    origin = {"metadata": {"labels": {MULTIKUEUE_ORIGIN: "multikueue"}}}
    async with program(cluster):
        await apply(cluster, IDLE_POLICY, "research")
        await until(lambda: is_attached(cluster))
        resource, name = (WORKLOAD, WORKLOAD_NAME) if on == "its Workload" else (RAY_CLUSTER, NAME)
        await cluster.change(resource, name, origin)
        await until(lambda: is_detached(cluster))
        await until(lambda: stands(cluster, matched=1, attached=0, excluded=1))


async def is_attached(cluster, name=JOB_NAME):
    return await attached(cluster) == ([name], [name])


async def is_detached(cluster):
    return await attached(cluster) == ([], [])


async def stands(cluster, resource=IDLE_POLICY, name="research", **counts):
    status = await status_of(cluster, resource, name)
    return {key: status.get(key) for key in counts} == counts


async def test_a_suspended_job_is_resumed_before_it_is_detached(cluster):
    await gang(cluster)
    async with program(cluster):
        await apply(cluster, IDLE_POLICY, "research")
        await until(lambda: is_attached(cluster))
        await cluster.scale(0, name=JOB_NAME)
        await until(lambda: is_active(cluster, False))
        await cluster.evict()
        await cluster.release()
        await cluster.end_pods()
        await until(lambda: cluster.has_phase("Suspended", JOB_NAME))
        await until(lambda: stands(cluster, suspended=1))
        await apply(cluster, IDLE_POLICY, "research", exclude=[{"kinds": ["RayCluster"]}])
        await until(lambda: is_detached(cluster))
        assert await cluster.is_active()
        await until(lambda: stands(cluster, matched=1, attached=0, excluded=1))


async def is_active(cluster, active):
    return await cluster.is_active() == active


async def test_a_recreated_workload_stays_attached(cluster):
    await gang(cluster)
    async with program(cluster):
        await apply(cluster, CLUSTER_IDLE_POLICY, "all")
        await until(lambda: is_attached(cluster))
        before = (await cluster.read(SCALED_OBJECT, JOB_NAME))["metadata"]["uid"]
        await cluster.delete(WORKLOAD, WORKLOAD_NAME)
        await until(lambda: cluster.has_phase("NoWorkload", JOB_NAME))
        await cluster.submit(gpu_workload())
        await cluster.admit()
        await until(lambda: cluster.has_phase("Running", JOB_NAME))
        await until(lambda: stands(cluster, CLUSTER_IDLE_POLICY, "all", matched=1, attached=1))
        assert (await cluster.read(SCALED_OBJECT, JOB_NAME))["metadata"]["uid"] == before


async def test_a_deployment_with_gpus_is_attached_and_one_without_is_not(cluster):
    async with program(cluster):
        await apply(cluster, IDLE_POLICY, "research")
        for name, asks, replicas in (
            ("notebook", {"nvidia.com/gpu": "1"}, 1),
            ("web", {}, 1),
            ("many", {"nvidia.com/gpu": "1"}, 3),
        ):
            mark = {"app": name}
            container = {"name": "main", "image": "x:1", "resources": {"limits": asks}}
            template = {"metadata": {"labels": mark}, "spec": {"containers": [container]}}
            spec = {"replicas": replicas, "selector": {"matchLabels": mark}, "template": template}
            await cluster.create(DEPLOYMENT, {"metadata": {"name": name}, "spec": spec})
        await until(lambda: stands(cluster, matched=2, attached=1))
        assert await attached(cluster) == ([], ["deployment-notebook"])
        problems = (await status_of(cluster, IDLE_POLICY, "research"))["problems"]
        assert problems == ["Deployment demo/many: it has 3 replicas; only what has one is scaled between 1 and 0"]


async def test_notebooks_and_inference_services_are_attached_and_not_what_their_controllers_make(cluster):
    cluster.api.install_crds([definition(NOTEBOOK), definition(INFERENCE_SERVICE)])
    async with program(cluster):
        await apply(cluster, IDLE_POLICY, "research")
        bench = await cluster.create(NOTEBOOK, notebook("bench", "demo"))
        await cluster.create(INFERENCE_SERVICE, inference_service("llm", "demo"))
        plain = notebook("plain", "demo")
        plain["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
        await cluster.create(NOTEBOOK, plain)
        owner = {key: bench["metadata"][key] for key in ("name", "uid")}
        owner |= {"apiVersion": NOTEBOOK.api_version, "kind": NOTEBOOK.kind, "controller": True}
        container = {"name": "main", "image": "x:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        mark = {"statefulset": "bench"}
        template = {"metadata": {"labels": mark}, "spec": {"containers": [container]}}
        spec = {"replicas": 1, "serviceName": "", "selector": {"matchLabels": mark}, "template": template}
        await cluster.create(STATEFUL_SET, {"metadata": {"name": "bench", "ownerReferences": [owner]}, "spec": spec})
        await until(lambda: stands(cluster, matched=2, attached=2))
        both = ["inferenceservice-llm", "notebook-bench"]
        assert await attached(cluster) == (both, both)
        scalable = await cluster.read(SCALABLE_WORKLOAD, "notebook-bench")
        assert scalable["spec"]["jobRef"] == {"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "name": "bench"}
        await until(lambda: cluster.has_phase("Starting", "notebook-bench"))


OWNERS = {
    "an operator's kind": (("apps.nvidia.com/v1alpha1", "NIMService"), {}, "named"),
    "another operator's": (("serving.kserve.io/v1alpha1", "LLMInferenceService"), {}, "named"),
    "a kind of that name in another group": (("example.com/v1", "Notebook"), {}, "named"),
    "a pod of no known group": (("v1", "Pod"), {}, "named"),
    "a leader pod": (("v1", "Pod"), {"leaderworkerset.sigs.k8s.io/name": "vllm"}, "part"),
    "a LeaderWorkerSet": (("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), {}, "part"),
    "a Notebook": (("kubeflow.org/v1", "Notebook"), {}, "part"),
    "an InferenceService": (("serving.kserve.io/v1beta1", "InferenceService"), {}, "part"),
    "a RayCluster": (("ray.io/v1", "RayCluster"), {}, "part"),
    "nobody": (None, {}, "job"),
}


@pytest.mark.parametrize(("owner", "labels", "expected"), OWNERS.values(), ids=OWNERS.keys())
def test_what_another_object_controls_is_a_part_of_that_or_left_alone(owner, labels, expected):
    references = () if owner is None else (OwnerReference(*owner, name="nim", uid="u", controller=True),)
    found = ObjectMeta(name="x", namespace="demo", labels=labels, owner_references=references)
    assert is_part_of_job(found) is (expected == "part")
    problem = controlled_by_other(found)
    assert bool(problem) is (owner is not None)
    assert owner is None or f"{owner[1]} nim" in problem


async def test_a_deployment_of_an_operator_is_named_and_not_attached(cluster):
    async with program(cluster):
        await apply(cluster, IDLE_POLICY, "research")
        reference = {"apiVersion": "v1", "kind": "Namespace", "name": "demo", "controller": True}
        reference["uid"] = (await cluster.read(NAMESPACE, "demo"))["metadata"]["uid"]
        mark = {"app": "x"}
        container = {"name": "main", "image": "x:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        template = {"metadata": {"labels": mark}, "spec": {"containers": [container]}}
        spec = {"replicas": 1, "selector": {"matchLabels": mark}, "template": template}
        owned = {"metadata": {"name": "owned", "ownerReferences": [reference]}, "spec": spec}
        await cluster.create(DEPLOYMENT, owned)
        await cluster.create(DEPLOYMENT, {"metadata": {"name": "free"}, "spec": spec})
        await until(lambda: stands(cluster, matched=2, attached=1))
        assert await attached(cluster) == ([], ["deployment-free"])
        [problem] = (await status_of(cluster, IDLE_POLICY, "research"))["problems"]
        assert problem.startswith("Deployment demo/owned: its controller is Namespace demo")


async def test_while_nothing_changes_nothing_is_written(cluster):
    await gang(cluster)
    async with program(cluster) as running:
        await apply(cluster, IDLE_POLICY, "research")
        await until(lambda: stands(cluster, attached=1))
        controller = running.leadership.controllers.attachment
        await controller.tick(controller.clock.now())
        before = await versions(cluster)
        for _ in range(3):
            await controller.tick(controller.clock.now())
        assert await versions(cluster) == before
        await apply(cluster, IDLE_POLICY, "research", idleAfter="10m")
        await until(lambda: is_after(cluster, before))


async def versions(cluster):
    objects = [(IDLE_POLICY, "research"), (SCALED_OBJECT, JOB_NAME)]
    return [(await cluster.read(*each))["metadata"]["resourceVersion"] for each in objects]


async def is_after(cluster, before):
    return all(old != new for old, new in zip(before, await versions(cluster), strict=True))


@pytest.mark.parametrize(
    ("annotation", "wakes"),
    [("idlegpu.io/history", False), ("idlegpu.io/warned-at", False), ("idlegpu.io/policy-digest", True)],
)
def test_what_no_plan_depends_on_wakes_nobody(annotation, wakes):
    controller = AttachmentController(api=None, cluster=None, policies=None, jobs=None, target=None)
    old, new = (scaled_object("train", annotations={annotation: each}) for each in ("before", "after"))
    controller.heard(Change(old.metadata.key, old, new))
    assert controller.woken.is_set() == wakes


async def test_a_policy_that_is_not_valid_says_so_in_its_status(cluster):
    async with program(cluster):
        await apply(cluster, IDLE_POLICY, "research", idleAfter="10m", idleAfterUnderPressure="20m")
        await until(lambda: is_not_valid(cluster))
        [condition] = (await status_of(cluster, IDLE_POLICY, "research"))["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "NotValid")
        assert condition["message"].startswith("spec.idleAfterUnderPressure: 20m is longer than idleAfter (10m)")


async def is_not_valid(cluster):
    return "Valid" in json.dumps((await status_of(cluster, IDLE_POLICY, "research")).get("conditions"))


async def test_without_an_address_nothing_is_attached_and_the_policy_says_why(cluster):
    await gang(cluster)
    async with gpus() as (_, exporter), runtime(settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])):
        await apply(cluster, IDLE_POLICY, "research")
        await until(lambda: stands(cluster, matched=1, attached=0))
        assert "keda.scalerAddresses" in (await status_of(cluster, IDLE_POLICY, "research"))["problems"][0]
        assert await attached(cluster) == ([], [])


@pytest.mark.parametrize(
    "spec",
    [
        {"idleAfter": "30"},
        {"mode": "Suspend"},
        {"gpus": "most"},
        {"activeAbove": "1"},
        {"exclude": [{}]},
        {"exclude": [{"until": "2026-12-01T12:00:00Z"}]},
        {"selector": {"labels": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}},
    ],
    ids=str,
)
async def test_the_api_refuses_what_the_definition_does_not_allow(cluster, spec):
    with pytest.raises(Exception, match=r"422|Invalid|invalid"):
        await apply(cluster, IDLE_POLICY, "research", **spec)
