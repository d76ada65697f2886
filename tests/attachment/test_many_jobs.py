"""300 jobs of all kinds under three policies: each is attached by the right one, and nothing is left behind."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import GPUS
from small_cluster import definitions, embedded_api, until

from scaler.app.kept_objects import kept_pods, kept_scalable_workload, kept_scaled_object, kept_workload
from scaler.attachment.controller import AttachmentController, IdlePolicies
from scaler.attachment.jobs import JobWatch
from scaler.attachment.objects import POLICY_ANNOTATION, TriggerTarget
from scaler.kube.objects.core import Pod
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import (
    CLUSTER_IDLE_POLICY,
    DEPLOYMENT,
    IDLE_POLICY,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    NAMESPACE,
    POD,
    PYTORCH_JOB,
    RAY_CLUSTER,
    RAY_JOB,
    RAY_SERVICE,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    STATEFUL_SET,
    TRAIN_JOB,
    WORKLOAD,
    Resource,
)
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.targets.cluster_state import (
    ClusterState,
    pod_indexes,
    scalable_workload_indexes,
    scaled_object_indexes,
    workload_indexes,
)
from scaler.targets.switched_objects import SwitchedObjects

Json = dict[str, Any]
GANGS = (JOB, RAY_CLUSTER, RAY_JOB, RAY_SERVICE, JOB_SET, TRAIN_JOB, PYTORCH_JOB)
"""Kinds that Kueue makes Workloads for."""
SCALED = (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET)
KINDS = (*GANGS, *SCALED)
TEAMS = [f"team-{n}" for n in range(6)]
RESEARCH = TEAMS[::2]
CONTAINER = {"name": "main", "image": "x:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


def definition(resource: Resource) -> Json:
    """Of a kind whose schema does not matter here."""
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.qualified_name},
        "spec": {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


class Owners:
    """Who makes and deletes jobs; and Kueue, which makes a Workload for each that is a gang."""

    def __init__(self, kube: KubeTransport) -> None:
        self.kube = kube

    async def create(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        metadata = {"namespace": namespace, "name": name, **body.pop("metadata", {})}
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **body}
        return dict(msgspec.json.decode(await self.kube.create(resource.path(namespace), whole)))

    async def submit(self, number: int) -> None:
        resource, namespace, labels = job_of(number)
        name = f"{resource.kind.lower()}-{number:03}-x7k2p"  # as from generateName
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [CONTAINER], "restartPolicy": "Never"},
        }
        spec: Json = {"template": template}
        if resource in SCALED:
            template["spec"].pop("restartPolicy")
            spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
            if resource == LEADER_WORKER_SET:
                spec = {"replicas": 1, "leaderWorkerTemplate": {"workerTemplate": template}}
            if resource == STATEFUL_SET:
                spec["serviceName"] = "none"
        if resource == RAY_CLUSTER:
            spec = {"headGroupSpec": {"rayStartParams": {}, "template": template}}
        job = await self.create(resource, namespace, name, {"metadata": {"labels": labels}, "spec": spec})
        if resource in GANGS:
            await self.make_workload(resource, job, "1a2b3")

    async def make_workload(self, resource: Resource, job: Json, mark: str) -> None:
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        owner = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "controller": True}
        pod_set = {"name": "main", "count": 2, "template": {"spec": {"containers": [CONTAINER]}}}
        body = {
            "metadata": {"ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}]},
            "spec": {"active": True, "queueName": "user-queue", "podSets": [pod_set]},
        }
        await self.create(WORKLOAD, namespace, f"{name}-{mark}", body)


def job_of(number: int) -> tuple[Resource, str, dict[str, str]]:
    labels = {"keep": "yes"} if number % 7 == 0 else {}
    return KINDS[number % len(KINDS)], TEAMS[number % len(TEAMS)], labels


def policy_for(number: int) -> str:
    """What the policies below come to, written down by hand; empty where none attaches the job."""
    resource, namespace, labels = job_of(number)
    if labels:
        return ""
    if namespace == "team-1":
        return "IdlePolicy/ray" if resource.kind.startswith("Ray") else ""
    if namespace == "team-2":
        return "IdlePolicy/first" if resource in SCALED else "ClusterIdlePolicy/research"
    return "ClusterIdlePolicy/research" if namespace in RESEARCH else ""


KEEP = [{"labels": {"matchExpressions": [{"key": "keep", "operator": "Exists"}]}}]


async def apply_policies(owners: Owners) -> None:
    selector = {"namespaces": {"matchLabels": {"tier": "research"}}}
    await owners.create(CLUSTER_IDLE_POLICY, "", "research", {"spec": {"selector": selector, "exclude": KEEP}})
    ray = {"selector": {"kinds": ["Ray*"]}, "exclude": KEEP, "mode": "Enforce"}
    await owners.create(IDLE_POLICY, "team-1", "ray", {"spec": ray})
    scaled = {"selector": {"kinds": [each.kind for each in SCALED]}, "exclude": KEEP}
    await owners.create(IDLE_POLICY, "team-2", "first", {"spec": {**scaled, "precedence": 2}})
    await owners.create(IDLE_POLICY, "team-2", "second", {"spec": {**scaled, "precedence": 1}})


@pytest.fixture
async def started(tmp_path: Path):
    ours = msgspec.json.decode(definitions())
    known = {each["metadata"]["name"] for each in ours}
    others = [definition(each) for each in KINDS if each.group and each not in (JOB, DEPLOYMENT, STATEFUL_SET)]
    ours += [each for each in others if each["metadata"]["name"] not in known]
    async with embedded_api(tmp_path, *ours) as (_, kube):
        for team in TEAMS:
            labels = {"tier": "research"} if team in RESEARCH else {}
            await kube.create(NAMESPACE.path(), {"metadata": {"name": team, "labels": labels}})
        async with asyncio.timeout(600):
            yield kube, Owners(kube)


class Controller:
    """The AttachmentController and the watches that it needs."""

    def __init__(self, kube: KubeTransport) -> None:
        scaled = Reflector(kube, SCALED_OBJECT, ScaledObject, indexes=scaled_object_indexes(), keep=kept_scaled_object)
        scalable = Reflector(
            kube,
            SCALABLE_WORKLOAD,
            ScalableWorkload,
            indexes=scalable_workload_indexes(),
            keep=kept_scalable_workload,
        )
        workloads = Reflector(kube, WORKLOAD, Workload, indexes=workload_indexes(), keep=kept_workload)
        pods = Reflector(kube, POD, Pod, indexes=pod_indexes(GPUS), keep=kept_pods(GPUS, with_nodes=False))
        namespaces = Reflector(kube, NAMESPACE, Namespace)
        self.switched = SwitchedObjects(kube, namespaces=())
        cluster = ClusterState(
            scaled_objects=scaled,
            scalable_workloads=scalable,
            workloads=workloads,
            pods=pods,
            gpus=GPUS,
            switched=self.switched,
        )
        woken, self.policies = asyncio.Event(), IdlePolicies(kube, namespaces=())
        self.policies.subscribe(woken.set)
        self.controller = AttachmentController(
            api=kube,
            cluster=cluster,
            policies=self.policies,
            jobs=JobWatch(kube, cluster, namespaces=namespaces, models=lambda _: (), changed=woken.set),
            target=TriggerTarget(scaler_address="scaler:9090"),
            woken=woken,
        )
        self.reflectors: list[Reflector[Any]] = [scaled, scalable, workloads, pods, namespaces]
        for each in self.reflectors:
            each.subscribe(self.controller.heard)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in (*self.reflectors, *self.policies.all):
                    tasks.create_task(each.run())
                tasks.create_task(self.controller.run())
        finally:
            await self.switched.close()


async def listed(kube: KubeTransport, resource: Resource) -> list[Json]:
    return [msgspec.json.decode(each) async for page in kube.list_pages(resource.path()) for each in page.items or ()]


async def attached_by(kube: KubeTransport) -> dict[str, str]:
    """The policy of each ScaledObject, by the number of its job."""
    return {
        each["metadata"]["name"].split("-")[-2]: each["metadata"]["annotations"][POLICY_ANNOTATION]
        for each in await listed(kube, SCALED_OBJECT)
    }


@pytest.mark.slow
async def test_300_jobs_of_all_kinds_are_attached_by_the_right_policies(started) -> None:
    kube, owners = started
    await asyncio.gather(*(owners.submit(number) for number in range(300)))
    wanted = {f"{number:03}": policy_for(number) for number in range(300) if policy_for(number)}
    assert len(wanted) > 100
    running = asyncio.create_task(Controller(kube).run())
    await apply_policies(owners)

    async def are_attached() -> bool:
        return await attached_by(kube) == wanted

    await until(are_attached)
    gangs = [each for each in wanted if job_of(int(each))[0] in GANGS]
    assert len(await listed(kube, SCALABLE_WORKLOAD)) == len(gangs)

    # A new job with a generated name, and one whose Workload Kueue makes anew.
    await owners.submit(306)
    wanted["306"] = policy_for(306)
    [first, *_] = [each for each in await listed(kube, WORKLOAD) if each["metadata"]["namespace"] == "team-0"]
    before = await uids(kube)
    await kube.delete(WORKLOAD.path("team-0", first["metadata"]["name"]))
    await until(are_attached)
    assert before.items() <= (await uids(kube)).items(), "a ScaledObject was made anew"

    # A job goes, and what is its own with it; a policy goes, and all that it has attached.
    [gone, *_] = [n for n in sorted(wanted) if job_of(int(n))[0] == JOB]
    resource, namespace, _ = job_of(int(gone))
    await kube.delete(resource.path(namespace, f"job-{gone}-x7k2p"))
    del wanted[gone]
    await until(are_attached)
    await kube.delete(IDLE_POLICY.path("team-2", "first"))
    wanted = {n: "IdlePolicy/second" if each == "IdlePolicy/first" else each for n, each in wanted.items()}
    await until(are_attached)

    counts = Counter(each.partition("/")[2] for each in wanted.values())

    async def stands() -> bool:
        found = [x for resource in (IDLE_POLICY, CLUSTER_IDLE_POLICY) for x in await listed(kube, resource)]
        assert not [each["status"]["problems"] for each in found if each["status"]["problems"]]
        return {each["metadata"]["name"]: each["status"]["attached"] for each in found} == counts

    await until(stands)

    for resource, namespace, name in (
        (CLUSTER_IDLE_POLICY, "", "research"),
        (IDLE_POLICY, "team-1", "ray"),
        (IDLE_POLICY, "team-2", "second"),
    ):
        await kube.delete(resource.path(namespace, name))
    wanted = {}
    await resume(kube)
    await until(are_attached)

    async def is_clean() -> bool:
        await resume(kube)
        return not await listed(kube, SCALABLE_WORKLOAD)

    await until(is_clean)
    running.cancel()


async def uids(kube: KubeTransport) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in await listed(kube, SCALED_OBJECT)}


async def resume(kube: KubeTransport) -> None:
    """What the SuspensionController says of Workloads that wait for quota."""
    for each in await listed(kube, SCALABLE_WORKLOAD):
        if (each.get("status") or {}).get("phase") is None:
            metadata = each["metadata"]
            status = {"phase": "WaitingForQuota", "observedGeneration": metadata["generation"], "replicas": 0}
            path = SCALABLE_WORKLOAD.path(metadata["namespace"], metadata["name"], "status")
            await kube.patch(path, {"status": status})


async def test_a_replica_that_leads_again_goes_on_with_what_there_is_then(started) -> None:
    kube, owners = started
    one = Controller(kube)
    watching = asyncio.gather(*(each.run() for each in (*one.reflectors, *one.policies.all)))
    await owners.submit(2)
    await apply_policies(owners)

    async def attached_are(*numbers: str) -> bool:
        return sorted(await attached_by(kube)) == sorted(numbers)

    for number, gone in ((4, 2), (12, 4)):
        leading = asyncio.create_task(one.controller.run())
        await until(lambda wanted=f"{gone:03}": attached_are(wanted))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        # Another replica leads meanwhile; jobs come and go.
        resource, namespace, _ = job_of(gone)
        await kube.delete(resource.path(namespace, f"{resource.kind.lower()}-{gone:03}-x7k2p"))
        await owners.submit(number)
    watching.cancel()
