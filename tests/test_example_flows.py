"""The flows of `deploy/examples` happen as their pages tell: in the embedded world, with the program, hurried up."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from http_add_on import http_add_on
from running_scaler import runtime, settings_document
from scaler_sandbox.autoscaler import QUEUED_PROVISIONING, AutoscalerConfig, Scenario, Shape
from scaler_sandbox.fleet import Machine
from scaler_sandbox.job_manifests import namespace
from scaler_sandbox.kubelet.controller import KubeletTiming
from scaler_sandbox.kubelet.pod_lifecycle import TERMINATION
from scaler_sandbox.manifests import objects_in
from scaler_sandbox.packaged import crds, packaged
from scaler_sandbox.sandbox import Sandbox, SandboxConfig

from scaler.doctor.permissions import REQUIRED_RULES
from scaler.kube.objects.resources import DEPLOYMENT, JOB, POD, PROVISIONING_REQUEST, RAY_CLUSTER, SCALABLE_WORKLOAD

HURRIED = {"idleAfter": "10m", "idleAfterUnderPressure": "2s", "warmUp": "0s"}
UNKNOWN_HERE = {"ClusterAutoscaler", "InterceptorRoute", "MachineAutoscaler", "ProvisioningRequestConfig", "RayJob"}
"""Kinds that are not played here; the schema tests know them."""


def objects(flow: str, *files: str, scaler_address: str = "") -> list[dict[str, Any]]:
    """The manifests of the flow, in a hurry."""
    found = [body for file in files for body in objects_in((packaged("examples") / flow / file).read_text())]
    for body in found:
        if body["kind"] == "ScaledObject":
            body["spec"] |= {"pollingInterval": 1, "cooldownPeriod": 1}
            body["spec"]["triggers"][0]["metadata"] |= HURRIED | {"scalerAddress": scaler_address}
        if body["kind"] == "ReclaimPolicy" and "provisioning" in body["spec"]:
            body["spec"]["provisioning"]["after"] = "0s"
    return [body for body in found if body["kind"] not in UNKNOWN_HERE]


class Played:
    """A flow in a world, beside a running scaler."""

    def __init__(self, flow, world, running):
        self.flow, self.world, self.running = flow, world, running
        self.said: list[str] = []
        """What checks have said of Workloads, in order."""

    async def apply(self, *files):
        address = f"127.0.0.1:{self.running.grpc_port}"
        await self.world.apply(objects(self.flow, *files, scaler_address=address))

    def workload(self, namespace, name, owner=JOB):
        return self.world.workload_of(owner, namespace, name) or {"spec": {}, "status": {}}

    def is_true(self, kind, *job, owner=JOB):
        conditions = self.workload(*job, owner=owner).get("status", {}).get("conditions", [])
        return any(each["type"] == kind and each["status"] == "True" for each in conditions)

    def check_of(self, *job):
        entries = self.workload(*job).get("status", {}).get("admissionChecks", [])
        return [(each["state"], each["message"]) for each in entries]

    def pods(self, namespace, prefix):
        return [pod for pod in self.world.all(POD, namespace) if pod["metadata"]["name"].startswith(prefix)]

    async def end(self, namespace, prefix):
        """Pods that are deleted end at once."""
        for pod in self.pods(namespace, prefix):
            body = {"metadata": {"annotations": {TERMINATION: "0s"}}}
            await self.world.patch(POD, namespace, pod["metadata"]["name"], body)

    async def admitted(self, *job, owner=JOB, within=600.0):
        what = f"the admission of {'/'.join(job)}; its check: {self.check_of(*job)}"
        await self.world.wait_for(lambda: self.is_true("Admitted", *job, owner=owner), what, within=within)

    async def says(self, words, *job, within=600.0):
        """Waits until the check has these words for the Workload."""

        def is_said():
            self.said += [message for _, message in self.check_of(*job) if message not in self.said]
            return any(words in message for message in self.said)

        try:
            await self.world.wait_for(is_said, words, within=within)
        except TimeoutError:
            raise AssertionError(f"never said {words!r}, but {self.said}") from None

    async def stand(self, namespace, names, phases):
        """Waits until their statuses are these, in any order: a status is written after what it shows."""

        def told():
            return sorted(self.phase(namespace, name) for name in names)

        try:
            await self.world.wait_for(lambda: told() == phases, str(phases))
        except TimeoutError:
            raise AssertionError(f"{names} stand as {told()}, not as {phases}") from None

    def phase(self, namespace, name):
        found = self.world.find(SCALABLE_WORKLOAD, namespace, name)
        return (found or {}).get("status", {}).get("phase", "")


@asynccontextmanager
async def played(flow, *machines, tmp_path, scenarios=None, kubelet=None, **settings):
    """The flow's world with these machines."""
    config = replace(
        SandboxConfig.fast({}, collect=timedelta(milliseconds=200)),
        fleet=replace(SandboxConfig.fast().fleet, nodes={}, collect_seconds=0.2),
        follows=(SCALABLE_WORKLOAD,),
        **({"autoscaler": AutoscalerConfig(scenarios=scenarios)} if scenarios else {}),
        **({"kubelet": kubelet} if kubelet else {}),
    )
    async with Sandbox(config) as world:
        for machine in machines:
            world.fleet.add(machine)
        await world.apply(crds())
        world.write_kubeconfig(tmp_path / "kubeconfig")
        async with runtime(settings_document(tmp_path / "kubeconfig", world.exporter_url, **settings)) as running:
            yield Played(flow, world, running)


# ------------------------------------------------------------------------------------------------------------ the flows


@pytest.mark.slow
async def test_a_cohort_hands_just_the_one_notebook_over_that_helps(tmp_path):
    """6 GPUs are free and 8 are wanted. Speech lends no more than the 4 that it lends already: only vision's help."""
    nodes = Machine(name="node-a", gpus=8), Machine(name="node-b", gpus=8)
    async with played("teams-in-a-cohort", *nodes, tmp_path=tmp_path) as flow:
        await flow.apply("queues.yaml", "notebooks.yaml")
        for job in (("vision", "ana"), ("vision", "ben"), ("vision", "cai"), ("speech", "dov"), ("speech", "eva")):
            await flow.admitted(*job)
        await flow.world.wait_for(lambda: flow.phase("speech", "eva") == "Running", "speech's notebooks to run")
        await flow.apply("gang.yaml")
        await flow.says(
            "fits whole: 8 pods on ", "training", "pretrain"
        )  # on one node or two: as the notebooks were placed
        await flow.admitted("training", "pretrain")
        await flow.world.wait_for(lambda: len(flow.pods("training", "pretrain")) == 8, "all pods of the gang")
        await flow.stand("vision", ("ana", "ben", "cai"), ["Running", "Running", "Suspended"])
        await flow.stand("speech", ("dov", "eva"), ["Running", "Running"])
        hold_to_the_permissions(flow.running)


def hold_to_the_permissions(running):
    """Whatever the program has asked of the API is in the table of permissions."""
    used = {
        (sample.labels["verb"], sample.labels["resource"])
        for metric in running.metrics.kube_call_seconds.collect()
        for sample in metric.samples
        if sample.labels.get("resource")
    }
    allowed = {
        (verb, f"{on.resource.plural}/{on.subresource}" if on.subresource else on.resource.plural)
        for need in REQUIRED_RULES
        for verb in need.verbs
        for on in need.on
    }
    assert len(used) > 30
    assert used <= allowed


@pytest.mark.slow
async def test_one_gpu_goes_to_the_higher_priority_at_once_and_back_when_that_is_idle(tmp_path):
    async with played("one-gpu-two-teams", Machine(name="node-a", gpus=1), tmp_path=tmp_path) as flow:
        flow.world.fleet.set_activity("team-b", "*", 0.9)
        flow.world.fleet.set_activity("team-a", "*", 0.9)
        await flow.apply("queues.yaml", "train.yaml")
        await flow.admitted("team-b", "train")
        await flow.world.wait_for(lambda: flow.pods("team-b", "train"), "the training's pod")

        await flow.apply("notebook.yaml")
        await flow.admitted("team-a", "notebook")
        assert not [pod for pod in flow.pods("team-b", "train") if pod["status"]["phase"] == "Running"]
        assert not flow.is_true("QuotaReserved", "team-b", "train")

        flow.world.fleet.set_activity("team-a", "*", 0.0)
        await flow.admitted("team-b", "train")
        assert flow.phase("team-a", "notebook") in ("Suspended", "Suspending")

        await flow.world.patch(SCALABLE_WORKLOAD, "team-a", "notebook", {"spec": {"replicas": 1}})
        await flow.admitted("team-a", "notebook")
        assert not flow.is_true("Admitted", "team-b", "train")


async def test_http_demand_beats_idle_gpus_and_idle_wins_after(tmp_path):
    async with (
        http_add_on("model") as add_on,
        played("http-demand", Machine(name="node-a", gpus=1), tmp_path=tmp_path) as flow,
    ):
        flow.world.fleet.set_activity("demo", "*", 0.0)
        add_on.requests["model"] = 3
        server, scaling = objects("http-demand", "server.yaml"), objects("http-demand", "scaling.yaml")
        [scaled] = [body for body in scaling if body["kind"] == "ScaledObject"]
        demand, idle = scaled["spec"]["triggers"]
        assert demand["metadata"].pop("idleAfter"), "the hurry is for our own trigger"
        demand["metadata"] = {"scalerAddress": add_on.address, "interceptorRoute": "model"}
        idle["metadata"] = {"scalerAddress": f"127.0.0.1:{flow.running.grpc_port}", "idleAfter": "2s", "warmUp": "0s"}
        await flow.world.apply([namespace("demo"), *(each for each in server if each["kind"] != "Service"), scaled])

        def replicas():
            return flow.world.find(DEPLOYMENT, "demo", "model")["spec"]["replicas"]

        async def stays(number, seconds):
            for _ in range(round(seconds / 0.1)):
                assert replicas() == number
                await asyncio.sleep(0.1)

        async def settles(number, seconds):
            """What was pushed before something has changed may scale once more after it."""
            since = time.monotonic()
            async with asyncio.timeout(600):
                while time.monotonic() < since + seconds:
                    since = since if replicas() == number else time.monotonic()
                    await asyncio.sleep(0.1)

        await flow.world.wait_for(lambda: flow.pods("demo", "model-"), "its pod")
        await stays(1, seconds=5)
        add_on.requests["model"] = 0
        await settles(0, seconds=2)
        add_on.requests["model"] = 1
        await flow.world.wait_for(lambda: replicas() == 1, "a request")
        add_on.requests["model"] = 0
        await flow.world.wait_for(lambda: replicas() == 0, "idle again")


A100 = {"cluster-api/accelerator": "nvidia-a100"}
UNTIL_TOLD = KubeletTiming(start_delay=timedelta(seconds=0.3), termination=timedelta(minutes=10))
"""Pods that are deleted run until the test, or their grace period, ends them: what waits for them is seen to wait."""
SLOW = Scenario(provisioned_after=timedelta(seconds=2), tells_eta=True, shape=Shape(gpus=8, labels=A100))


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
async def test_a_machine_is_asked_for_only_where_the_ones_that_are_there_do_not_do(tmp_path, machines):
    """Of 16 in the quota `explore` holds 8. The gang wants all 16, on two machines."""
    there = [Machine(name=f"worker-{n + 1}", gpus=8, labels=A100) for n in range(machines)]
    async with played("openshift-autoscaling", *there, tmp_path=tmp_path, scenarios=[SLOW], kubelet=UNTIL_TOLD) as flow:
        await flow.apply("queues.yaml", "checks.yaml", "explore.yaml")
        await flow.admitted("vision", "explore", owner=RAY_CLUSTER)
        await flow.world.wait_for(lambda: flow.phase("vision", "explore") == "Running", "its pods to run")
        await flow.apply("pretrain.yaml")
        await flow.says("waits for", "vision", "pretrain")
        assert not flow.pods("vision", "pretrain")
        await flow.end("vision", "explore")
        await flow.admitted("vision", "pretrain")
        requests = flow.world.all(PROVISIONING_REQUEST, "vision")
        asked = [each["spec"]["podSets"][0]["count"] for each in requests]
        assert asked == ([2] if machines == 1 else [])
        assert len(flow.world.fleet.machines) == 2
        await flow.stand("vision", ("explore",), ["Suspended"])
        await flow.world.wait_for(lambda: len(flow.pods("vision", "pretrain")) == 2, "both pods of the gang")
        hold_to_the_permissions(flow.running)


@pytest.mark.slow
async def test_queued_nodes_are_waited_for_and_the_gang_is_tied_to_its_own(tmp_path):
    """As for the RayJob of the page: a Job of the same shape."""
    labels = {"cloud.google.com/gke-nodepool": "h100-queued", "autoscaling.gke.io/provisioning-request": "{id}"}
    queued = Scenario(
        provisioning_class=QUEUED_PROVISIONING,
        accepted_after=timedelta(seconds=0.3),
        provisioned_after=timedelta(seconds=1.5),
        tells_eta=True,
        counts_free=False,
        shape=Shape(name="queued", gpus=8, labels=labels),
        details={"ResizeRequestName": "{id}"},
    )
    async with played("gke-queued-provisioning", tmp_path=tmp_path, scenarios=[queued]) as flow:
        await flow.apply("queues.yaml", "check.yaml")
        [gang] = objects("openshift-autoscaling", "pretrain.yaml")
        gang["metadata"] |= {"namespace": "nlp", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
        await flow.world.apply(gang)
        await flow.admitted("nlp", "pretrain")
        [request] = flow.world.all(PROVISIONING_REQUEST, "nlp")
        assert request["spec"]["parameters"] == {"maxRunDurationSeconds": "86400"}
        name = request["status"]["provisioningClassDetails"]["ResizeRequestName"]
        await flow.world.wait_for(lambda: len(flow.pods("nlp", "pretrain")) == 2, "both pods of the gang")
        for pod in flow.pods("nlp", "pretrain"):
            assert pod["spec"]["nodeSelector"]["autoscaling.gke.io/provisioning-request"] == name
            annotations = pod["metadata"]["annotations"]
            assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == request["metadata"]["name"]


@pytest.mark.slow
async def test_each_gang_gets_the_flavor_that_has_quota_left(tmp_path):
    """Two gangs of 8 fill the spot quota of 16, the third one falls back to the 8 on demand."""
    key = "eks.amazonaws.com/capacityType"
    spot = [Machine(name=f"spot-{n}", gpus=8, labels={key: "SPOT"}) for n in (1, 2)]
    on_demand = Machine(name="on-demand-1", gpus=8, labels={key: "ON_DEMAND"})
    async with played("two-flavors-with-fallback", *spot, on_demand, tmp_path=tmp_path) as flow:
        await flow.apply("queues.yaml", "checks.yaml", "ablations.yaml")
        names = ["ablation-1", "ablation-2", "ablation-3"]
        for name in names:
            await flow.admitted("sweeps", name)
        flavors = {name: flow.workload("sweeps", name)["status"]["admission"] for name in names}
        given = [flavors[name]["podSetAssignments"][0]["flavors"]["nvidia.com/gpu"] for name in names]
        assert sorted(given) == ["on-demand", "spot", "spot"]
