"""A flow: a cluster, real or embedded, with the program as a process in it, and what a test does to it and checks.

    async with start_flow(nodes={"a": 8}, gpus=16) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        await flow.wait_for_message("does not fit", "gang")
        flow.add_node("b")
        await flow.wait_until_running("gang")

Every object has the name of the run, a few random characters, as a prefix, and is in the namespace of that name.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import e2e.e2e_manifests as manifests
from e2e.e2e_cluster import RealCluster, delete_labelled, embedded_keda
from e2e.e2e_manifests import NODE_TAINT, RUN_LABEL, Json
from prometheus_server import free_port
from running_scaler import Process, is_ready
from scaler_sandbox.autoscaler import AutoscalerConfig, Scenario, Shape
from scaler_sandbox.conditions import condition, has, make, with_conditions
from scaler_sandbox.fleet import FleetConfig, Machine
from scaler_sandbox.job_manifests import admission_checks
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.kubelet.pod_lifecycle import TERMINATION
from scaler_sandbox.kueue import KueueConfig
from scaler_sandbox.kueue.nominations import Dispatcher, HubConfig
from scaler_sandbox.packaged import crds
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig
from small_cluster import until

from scaler.errors import KubeError
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)
from scaler.kube.transport import KubeTransport

WAIT_SECONDS = 120.0
_STARTS_WITHIN_SECONDS = 120.0
"""The program needs two seconds of a processor to start, which may be busy."""
_COLLECT_SECONDS = 0.5
_NOT_READY = "node.kubernetes.io/not-ready"
_FOLLOWED = (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
)
_ATTEMPT = "idlegpu.io/attempt"
_WORKLOAD_UID = "idlegpu.io/workload-uid"


@dataclass(kw_only=True)
class Flow:
    """The cluster with the program in it. Methods take the names of Jobs, each of which is a gang."""

    run: str
    sandbox: Sandbox
    scaler: Process
    cluster: RealCluster | None
    """None: the embedded one."""
    kubeconfig: Path
    """Of an administrator."""
    api: KubeTransport
    unschedulable: set[str] = field(default_factory=set)
    """Jobs that had a pod which fits on no node."""
    started_early: set[str] = field(default_factory=set)
    """Jobs that had a pod before Kueue had admitted them."""
    messages: dict[str, list[str]] = field(default_factory=dict)
    """All states and messages of the check so far, by Job."""
    exits: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def namespace(self) -> str:
        return self.run

    @property
    def provisioning_class(self) -> str:
        """One that no other autoscaler handles."""
        return f"{self.run}.e2e.idlegpu.io"

    # ---------------------------------------------------------------------------------------------------------- actions

    async def submit_job(self, name: str, **gang: Any) -> None:
        """Creates a Job: `pods`, `gpus` of each, `is_preferred`, `ends_in`."""
        await self.sandbox.apply(manifests.job(self.run, name, **gang))

    async def delete_job(self, name: str) -> None:
        """Deletes the Job with its pods, as kubectl does."""
        await self.api.delete(f"{JOB.path(self.namespace, name)}?propagationPolicy=Background")

    def add_node(self, name: str, gpus: int = 8) -> None:
        self.sandbox.fleet.add(machine(self.run, name, gpus))

    def remove_node(self, name: str) -> None:
        self.sandbox.remove_node(f"{self.run}-{name}")

    async def answer_request(self, request: str, *kinds: str) -> None:
        """Sets conditions of the request, as an autoscaler: Accepted, Provisioned, BookingExpired, CapacityRevoked."""
        body = await self.sandbox.read(PROVISIONING_REQUEST, self.namespace, request)
        status, now = body.get("status") or {}, datetime.now(UTC)
        new = [make(kind, "True", kind, "set by the suite", now=now) for kind in kinds]
        patch = {"status": {"conditions": with_conditions(status.get("conditions"), *new)}}
        await self.sandbox.patch(PROVISIONING_REQUEST, self.namespace, request, patch, "status")

    async def set_termination(self, pod: str, seconds: str) -> None:
        """Makes the pod take that long (`20s`) to end once it is deleted."""
        body = {"metadata": {"annotations": {TERMINATION: seconds}}}
        await self.sandbox.patch(POD, self.namespace, pod, body)

    async def write_policy(self, spec: Json) -> None:
        await self.sandbox.apply(manifests.policy(self.run, spec))

    async def add_check(self) -> None:
        """Adds the check to the ClusterQueue."""
        await self.sandbox.patch(CLUSTER_QUEUE, "", self.run, {"spec": admission_checks([self.run])})

    async def delete_request(self, name: str) -> None:
        await self.sandbox.delete(PROVISIONING_REQUEST, self.namespace, name)

    async def delete_workload(self, name: str) -> None:
        """The Job stays, and Kueue makes another Workload for it."""
        await self.sandbox.delete(WORKLOAD, self.namespace, self.workload(name)["metadata"]["name"])

    async def set_active(self, name: str, *, active: bool) -> None:
        """Deactivates the Job's Workload, or activates it again."""
        workload = self.workload(name)["metadata"]["name"]
        await self.sandbox.patch(WORKLOAD, self.namespace, workload, {"spec": {"active": active}})

    async def kill_and_restart(self, *, dead_for: float = 1.0) -> None:
        """SIGKILL: the program cannot finish or write anything."""
        await self.scaler.kill()
        await asyncio.sleep(dead_for)
        await self.scaler.start()
        await self.wait_until_ready()

    # ------------------------------------------------------------------------------------------------------------ state

    def workload(self, name: str) -> Json:
        """The Job's Workload; an empty one where there is none."""
        return self.sandbox.workload_of(JOB, self.namespace, name) or {"metadata": {}, "spec": {}, "status": {}}

    def has_condition(self, name: str, kind: str) -> bool:
        """Whether the Job's Workload has the condition."""
        return has(self.workload(name), kind)

    def check_state(self, name: str) -> Json:
        """Our entry in `status.admissionChecks` of the Job's Workload."""
        entries: list[Json] = (self.workload(name).get("status") or {}).get("admissionChecks") or []
        return next((each for each in entries if each["name"] == self.run), {"state": "", "message": ""})

    def evictions(self, name: str) -> int:
        """How often Kueue has evicted the Job's Workload because of a check."""
        stats = (self.workload(name).get("status") or {}).get("schedulingStats") or {}
        return sum(each["count"] for each in stats.get("evictions") or () if each["reason"] == "AdmissionCheck")

    def pods(self, name: str) -> list[Json]:
        """The Job's pods that have not ended, with those that are terminating."""
        return [
            pod
            for pod in self.sandbox.all(POD, self.namespace)
            if any(owner["name"] == name for owner in pod["metadata"].get("ownerReferences") or ())
            and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]

    def running(self, name: str) -> list[Json]:
        """The Job's pods that run and are not terminating."""
        return [
            pod
            for pod in self.pods(name)
            if (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]

    def is_running(self, name: str) -> bool:
        """Whether all pods of the Job run."""
        found = self.sandbox.find(JOB, self.namespace, name)
        return found is not None and len(self.running(name)) == found["spec"]["parallelism"]

    def nodes_of(self, name: str) -> set[str]:
        """The nodes of its pods, without the run's prefix."""
        return {pod["spec"]["nodeName"].removeprefix(f"{self.run}-") for pod in self.running(name)}

    def requests(self, name: str) -> list[Json]:
        """The ProvisioningRequests for the Job's present Workload, by attempt."""
        uid = self.workload(name)["metadata"].get("uid", "")
        return [each for each in self.all_requests() if each["metadata"]["labels"].get(_WORKLOAD_UID) == uid]

    def all_requests(self) -> list[Json]:
        return sorted(self.sandbox.all(PROVISIONING_REQUEST, self.namespace), key=attempt)

    def templates(self) -> list[Json]:
        """The PodTemplates of the namespace."""
        return list(self.sandbox.all(POD_TEMPLATE, self.namespace))

    def is_active(self, status: str = "True") -> bool:
        """Whether the condition Active of the AdmissionCheck has that status."""
        return self.sandbox.condition(ADMISSION_CHECK, "", self.run, "Active", status)

    def check_condition(self) -> Json:
        """The condition Active of the AdmissionCheck."""
        return condition(self.sandbox.find(ADMISSION_CHECK, "", self.run) or {}, "Active") or {}

    # ------------------------------------------------------------------------------------------- waiting and assertions

    async def wait_until(self, predicate: Callable[[], Any], what: str, *, within: float = WAIT_SECONDS) -> Any:
        """The predicate's value as soon as it is true. Raises: AssertionError that describes the state."""
        try:
            return await self.sandbox.wait_for(predicate, what, within=within)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    async def wait_until_ready(self) -> None:
        """Raises: AssertionError where the program does not get ready."""
        try:
            async with asyncio.timeout(_STARTS_WITHIN_SECONDS):
                await self.scaler.listens()
                await until(lambda: is_ready(self.scaler.http_port), seconds=_STARTS_WITHIN_SECONDS)
        except TimeoutError:
            raise AssertionError(f"the program does not get ready\n{self.describe()}") from None

    async def wait_for_message(self, words: str, name: str, *, within: float = WAIT_SECONDS) -> None:
        """Returns once the check's message for the gang has these words, or has had them."""
        messages = self.messages.setdefault(name, [])
        await self.wait_until(lambda: any(words in each for each in messages), f"{words!r} for {name}", within=within)

    async def wait_until_running(self, name: str, *, within: float = WAIT_SECONDS) -> None:
        await self.wait_until(lambda: self.is_running(name), f"all pods of {name} to run", within=within)

    async def wait_for_request(self, name: str, number: int = 1, *, within: float = WAIT_SECONDS) -> str:
        """The name of the gang's request of that attempt, as soon as there is one."""

        def created() -> list[Json]:
            return [each for each in self.requests(name) if attempt(each) == number]

        found = await self.wait_until(created, f"attempt {number} for {name}", within=within)
        return str(found[0]["metadata"]["name"])

    async def assert_stays(self, predicate: Callable[[], Any], what: str, *, seconds: float) -> None:
        """Raises: AssertionError where it does not hold all the time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            assert predicate(), f"not {what}\n{self.describe()}"
            await asyncio.sleep(0.05)

    async def assert_stays_pending(self, name: str, *, seconds: float) -> None:
        """Raises: AssertionError where the gang is admitted within that time, or loses its quota."""

        def is_pending() -> bool:
            is_admitted = self.has_condition(name, "Admitted") or self.pods(name)
            return self.has_condition(name, "QuotaReserved") and not is_admitted

        await self.assert_stays(is_pending, f"{name} has quota and is not admitted", seconds=seconds)

    def assert_started_whole(self, *names: str) -> None:
        """No pod was created before Kueue had admitted the gang, and each fits on a node."""
        broken = self.unschedulable & {*names}, self.started_early & {*names}
        assert broken == (set(), set()), f"unschedulable: {broken[0]}; too early: {broken[1]}\n{self.describe()}"

    def assert_permitted(self) -> None:
        """The program made no call that its roles do not allow."""
        refused = [line for line in self.scaler.log().splitlines() if ": 403 " in line]
        assert not refused, "\n".join(refused)

    def describe(self) -> str:
        """The state, for the message of a failure."""
        lines = [f"{name}: {messages}" for name, messages in self.messages.items()]
        for body in self.sandbox.all(JOB, self.namespace):
            name, status = body["metadata"]["name"], self.workload(body["metadata"]["name"]).get("status") or {}
            now = {each["type"]: each["status"] for each in status.get("conditions") or ()}
            lines.append(f"{name}: {now}, {len(self.running(name))} of {len(self.pods(name))} pods run")
        for request in self.all_requests():
            conditions = [each["type"] for each in (request.get("status") or {}).get("conditions") or ()]
            lines.append(f"{request['metadata']['name']}: {conditions}")
        log = [line for line in self.scaler.log().splitlines() if "KubeReflecting" not in line]
        return "\n".join([*lines, "the end of the program's log:", *log[-20:]])

    async def observe(self) -> None:
        """Records what may last for a moment only."""
        while True:
            for job in self.sandbox.all(JOB, self.namespace):
                self._observe_job(job["metadata"]["name"])
            if self.cluster is not None:
                await self._clear_taints()
            await asyncio.sleep(0.05)

    def _observe_job(self, name: str) -> None:
        entry, messages = self.check_state(name), self.messages.setdefault(name, [])
        text = f"{entry['state']}: {entry['message']}"
        if entry["state"] and text not in messages[-1:]:
            messages.append(text)
        alive = [pod for pod in self.pods(name) if not pod["metadata"].get("deletionTimestamp")]
        if any(has(pod, "PodScheduled", "False") for pod in alive):
            self.unschedulable.add(name)
        if alive and entry["state"] == "Pending" and not self.has_condition(name, "Admitted"):
            self.started_early.add(name)

    async def _clear_taints(self) -> None:
        """Removes the taint of new nodes, for a cluster without the node life-cycle controller."""
        for node in self.sandbox.all(NODE):
            name, taints = node["metadata"]["name"], node["spec"].get("taints") or []
            left = [each for each in taints if each["key"] != _NOT_READY]
            if name.startswith(f"{self.run}-") and left != taints:
                try:
                    version = {"resourceVersion": node["metadata"]["resourceVersion"]}
                    await self.sandbox.patch(NODE, "", name, {"metadata": version, "spec": {"taints": left}})
                except KubeError as error:
                    if error.status not in (404, 409):
                        raise

    # --------------------------------------------------------------------------------------------------- idle workloads

    async def make_scalable(self, *names: str, **trigger: str) -> None:
        """Lets KEDA scale these Jobs, the cluster's own or the suite's. From now on reclaim plans may take them."""
        for name in names:
            address = f"127.0.0.1:{self.scaler.grpc_port}"
            await self.sandbox.apply(manifests.scaling(self.run, name, address, **trigger))
        await self.bring_keda()

    async def wake(self, name: str) -> None:
        """Asks for the suspended Job to come back, as its owner."""
        body = {"metadata": {"annotations": {"idlegpu.io/wake": "true"}}}
        await self.sandbox.patch(SCALABLE_WORKLOAD, self.namespace, name, body)

    async def bring_keda(self) -> None:
        """Starts the suite's KEDA where the cluster has none."""
        if self.cluster is not None and not self.cluster.has_keda:
            await self.exits.enter_async_context(embedded_keda(self.api))

    def scalable(self, name: str) -> Json:
        """The ScalableWorkload's status."""
        found = self.sandbox.find(SCALABLE_WORKLOAD, self.namespace, name) or {}
        status: Json = found.get("status") or {}
        return status


def attempt(request: Json) -> int:
    return int((request["metadata"].get("annotations") or {}).get(_ATTEMPT, 0))


def machine(run: str, name: str, gpus: int) -> Machine:
    return Machine(name=f"{run}-{name}", gpus=gpus, labels={RUN_LABEL: run}, taints=(NODE_TAINT,))


def shape(run: str, **labels: str) -> Shape:
    """Nodes that an autoscaler adds for the run."""
    return Shape(name=f"{run}-new", gpus=8, labels={RUN_LABEL: run, **labels}, taints=(NODE_TAINT,))


# ------------------------------------------------------------------------------------------------- set-up and clean-up


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSetup:
    """What a flow begins with."""

    nodes: Mapping[str, int]
    """GPUs by name."""
    gpus: int
    """Of quota."""
    policy: Json | None = field(default_factory=dict)
    """`spec` of the ReclaimPolicy; None: there is none. A `provisioning` without class gets the run's."""
    has_check: bool = True
    """Whether the ClusterQueue has our check."""
    preempts: bool = False
    strategy: str = "BestEffortFIFO"
    scenario: Scenario | None = None
    """What the suite's autoscaler does, with nodes of the run's labels, too. None: the test answers requests."""

    def policy_spec(self, provisioning_class: str) -> Json:
        spec = dict(self.policy or {})
        if "provisioning" in spec:
            spec["provisioning"] = {"className": provisioning_class, **spec["provisioning"]}
        return spec


StartFlow = Callable[..., AbstractAsyncContextManager[Flow]]
"""Starts a flow, by the fields of its FlowSetup."""


@asynccontextmanager
async def run_flow(folder: Path, cluster: RealCluster | None, setup: FlowSetup) -> AsyncIterator[Flow]:
    """The flow, ready to be used. Removes everything from a real cluster at the end."""
    async with open_flow(folder, cluster, new_run(), scenario=setup.scenario) as flow:
        await _set_up(flow, setup)
        yield flow
        flow.assert_permitted()


def new_run() -> str:
    """A name that no other run has."""
    return f"e2e-{secrets.token_hex(3)}"


@asynccontextmanager
async def open_flow(
    folder: Path,
    cluster: RealCluster | None,
    run: str,
    *,
    scenario: Scenario | None = None,
    is_hub: bool = False,
    before: Sequence[Json] = (),
    follows: Sequence[Resource] = (),
    **sections: Any,
) -> AsyncIterator[Flow]:
    """The namespace, and the program with its account, which has these sections of settings beyond the suite's.

    `before` are objects that are there before the program starts. There are no nodes and no queues yet. Everything is
    removed from a real cluster at the end.
    """
    async with AsyncExitStack() as exits:
        config = _config(run, cluster, scenario, is_hub=is_hub)
        sandbox = Sandbox(replace(config, follows=(*config.follows, *follows)))
        await exits.enter_async_context(sandbox)
        path = folder / "kubeconfig"
        sandbox.write_kubeconfig(path)
        api = await exits.enter_async_context(await KubeTransport.connect(path))
        if cluster is not None:
            exits.push_async_callback(clean_up, sandbox, api)
        await sandbox.apply(crds())
        await sandbox.apply([manifests.namespace(run), *manifests.account(run), *before])
        settings = folder / "settings.yaml"
        document = await _settings(run, folder, sandbox)
        for name, section in sections.items():
            document[name] = document[name] | section if name in document else section
        settings.write_text(json.dumps(document), encoding="utf-8")
        process = Process(folder / "scaler.log", "run", "--config", str(settings))
        scaler = await exits.enter_async_context(process)
        flow = Flow(run=run, sandbox=sandbox, scaler=scaler, api=api, cluster=cluster, kubeconfig=path, exits=exits)
        exits.push_async_callback(cancel, asyncio.create_task(flow.observe()))
        yield flow


async def _set_up(flow: Flow, setup: FlowSetup) -> None:
    """Creates nodes, policy, check and queues; returns once the program and Kueue have seen them."""
    run, sandbox = flow.run, flow.sandbox
    for name, gpus in setup.nodes.items():
        flow.add_node(name, gpus)
    if setup.policy is not None:
        await sandbox.apply(manifests.policy(run, setup.policy_spec(flow.provisioning_class)))
    await sandbox.apply([manifests.check(run), manifests.priority(run, 1000)])
    checks = [run] if setup.has_check else []
    await sandbox.apply(
        manifests.queues(run, gpus=setup.gpus, checks=checks, preempts=setup.preempts, strategy=setup.strategy)
    )
    await flow.wait_until_ready()
    await flow.wait_until(lambda: flow.is_active(str(setup.policy is not None)), "the check's condition Active")
    if setup.policy is not None:
        await flow.wait_until(lambda: sandbox.condition(CLUSTER_QUEUE, "", run, "Active"), "an active ClusterQueue")


_HUB_PARTS = frozenset({Component.KUEUE, Component.JOBS, Component.KEDA, Component.MULTIKUEUE})
_EXTERNAL = KueueConfig(hub=HubConfig(dispatcher=Dispatcher.EXTERNAL))


def _config(run: str, cluster: RealCluster | None, scenario: Scenario | None, *, is_hub: bool = False) -> SandboxConfig:
    base = replace(
        SandboxConfig.fast(),
        fleet=FleetConfig(nodes={}, collect_seconds=_COLLECT_SECONDS),
        kubelet=KubeletTiming(start_delay=timedelta(seconds=0.2), termination=timedelta(seconds=1)),
        autoscaler=AutoscalerConfig(scenarios=_scenarios(run, scenario)),
        follows=_FOLLOWED,
    )
    if cluster is None:
        return replace(base, parts=_HUB_PARTS, kueue=_EXTERNAL) if is_hub else base
    ray = {Component.RAY_CLUSTERS, Component.RAY_JOBS} if cluster.has_ray else set()
    return replace(
        base,
        kubeconfig=cluster.kubeconfig,
        parts=frozenset({Component.KUBELETS, Component.AUTOSCALER, *ray}),
        namespaces=frozenset({run}),
        schedules=not cluster.has_scheduler,
        defines=False,
    )


def _scenarios(run: str, scenario: Scenario | None) -> Sequence[Scenario]:
    if scenario is None:
        return ()
    labels = scenario.shape.labels if scenario.shape else {}
    return (replace(scenario, requests=f"{run}/*", shape=shape(run, **labels)),)


async def _settings(run: str, folder: Path, sandbox: Sandbox) -> Json:
    """The program's, with short times, and the rights of its roles."""
    kubeconfig = folder / "scaler.kubeconfig"
    sandbox.write_kubeconfig(kubeconfig, token=await sandbox.token_of(run, manifests.service_account(run)))
    lease = {"namespace": run, "duration": "2s", "renewDeadline": "1500ms", "retryPeriod": "300ms"}
    address = f"127.0.0.1:{free_port()}"
    return {
        "kubernetes": {"kubeconfig": str(kubeconfig), "lease": lease},
        "keda": {"scalerAddresses": [address], "pollingInterval": "1s", "cooldownPeriod": "1s"},
        "grpc": {"address": address, "drain": "1s"},
        "http": {"address": "127.0.0.1:0"},
        "dcgm": {"endpoints": [sandbox.exporter_url]},
        "evaluation": {"interval": f"{_COLLECT_SECONDS:g}s", "overlap": "3s"},
        "reclaim": {"replanBackoff": "5s"},
        "trust": {
            "collectionInterval": f"{_COLLECT_SECONDS:g}s",
            "maxAgeIntervals": 10,
            "maxGapIntervals": 10,
            "minCoverage": "30 %",
        },
    }


async def clean_up(sandbox: Sandbox, api: KubeTransport) -> None:
    """Removes every object of the run. First the nodes: the suite's autoscaler and kubelets would create them again."""
    await sandbox.kill(Component.AUTOSCALER)
    for name in list(sandbox.fleet.machines):
        sandbox.remove_node(name)
    await delete_labelled(api)


async def cancel(task: asyncio.Task[None]) -> None:
    """Raises: whatever broke it."""
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome
