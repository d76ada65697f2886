"""One flow's stage: a world, real or embedded, with the program as a process in it, and short verbs.

    async with begin(nodes={"a": 8}, gpus=16) as town:
        await town.submit("gang", pods=2, gpus=8)
        await town.until_says("does not fit", "gang")
        town.add_node("b")
        await town.until_runs("gang")

Everything is named after the run, a few random characters, and is in one namespace of that name.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import e2e.e2e_manifests as manifests
from app.scaler_process import ScalerProcess
from e2e.e2e_cluster import Ground, cleared, keda_for
from e2e.e2e_manifests import KEEP_OFF, RUN_LABEL, Json
from scaler_sandbox.autoscaler import AutoscalerConfig, Scenario, Shape
from scaler_sandbox.conditions import condition, has, make, with_conditions
from scaler_sandbox.config import Component, SandboxConfig
from scaler_sandbox.fleet import FleetConfig, Machine
from scaler_sandbox.kinds import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    WORKLOAD,
)
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.kubelet.pod_lifecycle import TERMINATION
from scaler_sandbox.sandbox import Sandbox

from scaler.app.packaged import crds
from scaler.errors import KubeError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.transport import KubeTransport

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
_STARTS_WITHIN_SECONDS = 90.0
"""A process takes two seconds of a processor to start, which others may need, too."""
_COLLECT_SECONDS = 0.5
_NOT_READY = "node.kubernetes.io/not-ready"
_FOLLOWED = (ADMISSION_CHECK, CLUSTER_QUEUE, JOB, NODE, POD, PROVISIONING_REQUEST, SCALABLE_WORKLOAD, WORKLOAD)
_ATTEMPT = "idlegpu.io/attempt"
_WORKLOAD_UID = "idlegpu.io/workload-uid"


@dataclass(kw_only=True)
class Town:
    """What there is, and what happens to it."""

    run: str
    world: Sandbox
    scaler: ScalerProcess
    is_embedded: bool
    api: KubeTransport
    stranded: set[str] = field(default_factory=set)
    """Jobs of which a pod was seen that found no node."""
    early: set[str] = field(default_factory=set)
    """Jobs of which a pod was seen that Kueue had not admitted."""
    history: dict[str, list[str]] = field(default_factory=dict)
    """What the check has said, by Job."""
    exits: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def namespace(self) -> str:
        return self.run

    @property
    def provisioning_class(self) -> str:
        """One that nobody else's autoscaler knows."""
        return f"{self.run}.e2e.idlegpu.io"

    # ----------------------------------------------------------------------------------------------------- what is done

    async def submit(self, name: str, **gang: Any) -> None:
        """A Job: `pods`, `gpus` of each, `is_preferred`, `ends_in`."""
        await self.world.apply(manifests.job(self.run, name, **gang))

    async def end(self, name: str) -> None:
        """The Job is deleted with its pods, as kubectl does it."""
        await self.api.delete(f"{JOB.path(self.namespace, name)}?propagationPolicy=Background")

    def add_node(self, name: str, gpus: int = 8) -> None:
        self.world.fleet.add(machine(self.run, name, gpus))

    def remove_node(self, name: str) -> None:
        self.world.remove_node(f"{self.run}-{name}")

    async def answer(self, request: str, *kinds: str, details: Mapping[str, str] | None = None) -> None:
        """The autoscaler says so of the request: Accepted, Provisioned, Failed, BookingExpired, CapacityRevoked."""
        body = await self.world.read(PROVISIONING_REQUEST, self.namespace, request)
        status, now = body.get("status") or {}, datetime.now(UTC)
        made = [make(kind, "True", f"Said{kind}", f"the suite says {kind}", now=now) for kind in kinds]
        patch: Json = {"conditions": with_conditions(status.get("conditions"), *made)}
        if details:
            patch["provisioningClassDetails"] = dict(details)
        await self.world.patch(PROVISIONING_REQUEST, self.namespace, request, {"status": patch}, "status")

    async def takes_to_end(self, pod: str, seconds: str) -> None:
        """Told to stop, the pod takes that long (`20s`)."""
        body = {"metadata": {"annotations": {TERMINATION: seconds}}}
        await self.world.patch(POD, self.namespace, pod, body)

    async def write_policy(self, spec: Json) -> None:
        await self.world.apply(manifests.policy(self.run, spec))

    async def guard(self) -> None:
        """The check is added to the queue."""
        await self.world.patch(CLUSTER_QUEUE, "", self.run, {"spec": manifests.guarded_by([self.run])})

    async def delete_request(self, name: str) -> None:
        await self.world.delete(PROVISIONING_REQUEST, self.namespace, name)

    async def delete_workload(self, name: str) -> None:
        """The Job stays, and gets another one from Kueue."""
        await self.world.delete(WORKLOAD, self.namespace, self.workload(name)["metadata"]["name"])

    async def set_active(self, name: str, *, active: bool) -> None:
        """The Job's Workload is deactivated, or activated again."""
        workload = self.workload(name)["metadata"]["name"]
        await self.world.patch(WORKLOAD, self.namespace, workload, {"spec": {"active": active}})

    async def kill_and_restart(self, *, dead_for: float = 1.0) -> None:
        """SIGKILL: our process has no chance to say or to finish anything."""
        await self.scaler.kill()
        await asyncio.sleep(dead_for)
        await self.scaler.start()
        await self.until_ready()

    # ----------------------------------------------------------------------------------------------------- what is seen

    def workload(self, name: str) -> Json:
        """The Job's; an empty one where there is none."""
        return self.world.workload_of(JOB, self.namespace, name) or {"metadata": {}, "spec": {}, "status": {}}

    def is_true(self, name: str, kind: str) -> bool:
        """Whether the Job's Workload has the condition."""
        return has(self.workload(name), kind)

    def entry(self, name: str) -> Json:
        """What our check says of the Job's Workload."""
        entries: list[Json] = (self.workload(name).get("status") or {}).get("admissionChecks") or []
        return next((each for each in entries if each["name"] == self.run), {"state": "", "message": ""})

    def evictions(self, name: str) -> int:
        """How often Kueue has evicted the Job's Workload on account of a check."""
        stats = (self.workload(name).get("status") or {}).get("schedulingStats") or {}
        return sum(each["count"] for each in stats.get("evictions") or () if each["reason"] == "AdmissionCheck")

    def pods(self, name: str) -> list[Json]:
        """The Job's that have not ended, those included that have been told to."""
        return [
            pod
            for pod in self.world.all(POD, self.namespace)
            if any(owner["name"] == name for owner in pod["metadata"].get("ownerReferences") or ())
            and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]

    def running(self, name: str) -> list[Json]:
        """The Job's pods that run, and have not been told to end."""
        return [
            pod
            for pod in self.pods(name)
            if (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]

    def runs(self, name: str) -> bool:
        """Whether all pods of the Job run."""
        found = self.world.find(JOB, self.namespace, name)
        return found is not None and len(self.running(name)) == found["spec"]["parallelism"]

    def nodes_of(self, name: str) -> set[str]:
        """Nodes that its pods run on, without the run's name."""
        return {pod["spec"]["nodeName"].removeprefix(f"{self.run}-") for pod in self.running(name)}

    def requests(self, name: str) -> list[Json]:
        """The ProvisioningRequests that were made for the Job's Workload as it is now, by attempt."""
        uid = self.workload(name)["metadata"].get("uid", "")
        return [each for each in self.all_requests() if each["metadata"]["labels"].get(_WORKLOAD_UID) == uid]

    def all_requests(self) -> list[Json]:
        return sorted(self.world.all(PROVISIONING_REQUEST, self.namespace), key=attempt)

    async def templates(self) -> list[Json]:
        """The PodTemplates of the namespace."""
        return await self.world.read_all(POD_TEMPLATE, self.namespace)

    def is_active(self, status: str = "True") -> bool:
        """Whether the check says so of itself."""
        return self.world.condition(ADMISSION_CHECK, "", self.run, "Active", status)

    def check_condition(self) -> Json:
        """The check's word on itself."""
        return condition(self.world.find(ADMISSION_CHECK, "", self.run) or {}, "Active") or {}

    # -------------------------------------------------------------------------------------------------- what is awaited

    async def until(self, predicate: Callable[[], Any], what: str, *, within: float = PATIENCE_SECONDS) -> Any:
        """The predicate's value as soon as it is true. Raises: AssertionError that says how things stand."""
        try:
            return await self.world.wait_for(predicate, what, within=within)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.standing()}") from None

    async def until_async(self, look: Callable[[], Awaitable[T]], holds: Callable[[T], bool], what: str) -> None:
        """Returns once what is looked for is as it should be. For what has to be asked for. Raises: AssertionError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_SECONDS
        while not holds(found := await look()):
            assert loop.time() < until, f"waited for {what} in vain: {found}\n{self.standing()}"
            await asyncio.sleep(0.1)

    async def until_ready(self) -> None:
        """Returns once our process has seen everything. Raises: AssertionError."""
        try:
            await self.scaler.until_ready(within=_STARTS_WITHIN_SECONDS)
        except TimeoutError:
            raise AssertionError(f"our process does not get ready\n{self.standing()}") from None

    async def until_says(self, words: str, name: str, *, within: float = PATIENCE_SECONDS) -> None:
        """Returns once the check has said this of the gang, now or before."""
        said = self.history.setdefault(name, [])
        await self.until(lambda: any(words in each for each in said), f"{words!r} to be said of {name}", within=within)

    async def until_runs(self, name: str, *, within: float = PATIENCE_SECONDS) -> None:
        await self.until(lambda: self.runs(name), f"all pods of {name} to run", within=within)

    async def until_asked(self, name: str, number: int = 1, *, within: float = PATIENCE_SECONDS) -> str:
        """The name of the gang's request of that attempt, as soon as there is one."""

        def asked() -> list[Json]:
            return [each for each in self.requests(name) if attempt(each) == number]

        found = await self.until(asked, f"attempt {number} for {name}", within=within)
        return str(found[0]["metadata"]["name"])

    async def holds(self, predicate: Callable[[], Any], what: str, *, seconds: float) -> None:
        """Raises: AssertionError where it does not hold all the time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            assert predicate(), f"not {what}\n{self.standing()}"
            await asyncio.sleep(0.05)

    async def stays_out(self, name: str, *, seconds: float) -> None:
        """Raises: AssertionError where the gang is let go within that time, or loses its quota."""

        def is_out() -> bool:
            return self.is_true(name, "QuotaReserved") and not (self.is_true(name, "Admitted") or self.pods(name))

        await self.holds(is_out, f"{name} keeps its quota and stays out", seconds=seconds)

    def assert_started_whole(self, *names: str) -> None:
        """No pod came before Kueue had admitted all, and each found a node."""
        broken = self.stranded & {*names}, self.early & {*names}
        assert broken == (set(), set()), f"in part: {broken[0]}; too early: {broken[1]}\n{self.standing()}"

    # -------------------------------------------------------------------------------------------------- looking closely

    def assert_permitted(self) -> None:
        """Nothing was asked for that the roles do not allow."""
        refused = [line for line in self.scaler.log().splitlines() if ": 403 " in line]
        assert not refused, "\n".join(refused)

    def standing(self) -> str:
        """How things stand, for whoever reads of a failure."""
        lines = [f"{name}: {said}" for name, said in self.history.items()]
        for body in self.world.all(JOB, self.namespace):
            name, status = body["metadata"]["name"], self.workload(body["metadata"]["name"]).get("status") or {}
            now = {each["type"]: each["status"] for each in status.get("conditions") or ()}
            lines.append(f"{name}: {now}, {len(self.running(name))} of {len(self.pods(name))} pods run")
        for request in self.all_requests():
            told = [each["type"] for each in (request.get("status") or {}).get("conditions") or ()]
            lines.append(f"{request['metadata']['name']}: {told}")
        log = self.scaler.log().splitlines()
        return "\n".join([*lines, "the scaler's log ends:", *log[-20:]])

    async def watch(self) -> None:
        """Looks at everything all the time. What matters here may last for a moment only."""
        while True:
            for job in self.world.all(JOB, self.namespace):
                self._look_at(job["metadata"]["name"])
            if not self.is_embedded:
                await self._clear_taints()
            await asyncio.sleep(0.05)

    def _look_at(self, name: str) -> None:
        entry, said = self.entry(name), self.history.setdefault(name, [])
        text = f"{entry['state']}: {entry['message']}"
        if entry["state"] and text not in said[-1:]:
            said.append(text)
        alive = [pod for pod in self.pods(name) if not pod["metadata"].get("deletionTimestamp")]
        if any(has(pod, "PodScheduled", "False") for pod in alive):
            self.stranded.add(name)
        if alive and entry["state"] == "Pending" and not self.is_true(name, "Admitted"):
            self.early.add(name)

    async def _clear_taints(self) -> None:
        """Nodes come with a taint that the node life-cycle controller takes away, where there is one."""
        for node in self.world.all(NODE):
            name, taints = node["metadata"]["name"], node["spec"].get("taints") or []
            left = [each for each in taints if each["key"] != _NOT_READY]
            if name.startswith(f"{self.run}-") and left != taints:
                try:
                    version = {"resourceVersion": node["metadata"]["resourceVersion"]}
                    await self.world.patch(NODE, "", name, {"metadata": version, "spec": {"taints": left}})
                except KubeError as error:
                    if error.status not in (404, 409):
                        raise

    # --------------------------------------------------------------------------------------------------- idle workloads

    async def scale(self, *names: str) -> None:
        """From now on plans may take these Jobs. KEDA is the cluster's own, or played."""
        for name in names:
            await self.world.apply(manifests.scaling(self.run, name, f"127.0.0.1:{self.scaler.grpc_port}"))
        if not self.is_embedded:
            first = await self.world.read(SCALED_OBJECT, self.namespace, names[0])
            await self.exits.enter_async_context(keda_for(self.api, first))

    def scalable(self, name: str) -> Json:
        """The ScalableWorkload's status."""
        found = self.world.find(SCALABLE_WORKLOAD, self.namespace, name) or {}
        status: Json = found.get("status") or {}
        return status


def attempt(request: Json) -> int:
    return int((request["metadata"].get("annotations") or {}).get(_ATTEMPT, 0))


def machine(run: str, name: str, gpus: int) -> Machine:
    """A node of the run's."""
    return Machine(name=f"{run}-{name}", gpus=gpus, labels={RUN_LABEL: run}, taints=(KEEP_OFF,))


def shape(run: str, **labels: str) -> Shape:
    """Nodes that an autoscaler adds for the run."""
    return Shape(name=f"{run}-new", gpus=8, labels={RUN_LABEL: run, **labels}, taints=(KEEP_OFF,))


# -------------------------------------------------------------------------------------------------- making and clearing


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What a flow begins with."""

    nodes: Mapping[str, int]
    """GPUs by name."""
    gpus: int
    """Of quota."""
    policy: Json | None = field(default_factory=dict)
    """`spec` of the ReclaimPolicy; None: there is none. A `provisioning` without class gets the run's."""
    is_guarded: bool = True
    """Whether the ClusterQueue has our check."""
    preempts: bool = False
    strategy: str = "BestEffortFIFO"
    scenario: Scenario | None = None
    """How an autoscaler answers; None: nobody answers but the test. `labels` of its shape are added to the run's."""

    def policy_spec(self, provisioning_class: str) -> Json:
        spec = dict(self.policy or {})
        if "provisioning" in spec:
            spec["provisioning"] = {"className": provisioning_class, **spec["provisioning"]}
        return spec


Begin = Callable[..., AbstractAsyncContextManager[Town]]
"""Sets a stage, by a Plot's fields."""


@asynccontextmanager
async def town(folder: Path, ground: Ground | None, plot: Plot) -> AsyncIterator[Town]:
    """The stage. In a cluster that is not ours everything is removed in the end."""
    async with AsyncExitStack() as exits:
        run = f"e2e-{secrets.token_hex(3)}"
        world = await exits.enter_async_context(Sandbox(_config(run, ground, plot)))
        path = folder / "kubeconfig"
        world.write_kubeconfig(path)
        api = await exits.enter_async_context(await KubeTransport.connect(path))
        if ground is not None:
            exits.push_async_callback(_abandoned, world, api)
        place = await _settled(run, world, api, path, plot, exits)
        yield place
        place.assert_permitted()


async def _settled(run: str, world: Sandbox, api: KubeTransport, path: Path, plot: Plot, exits: AsyncExitStack) -> Town:
    """Everything is there, and the check does what it is to do."""
    await world.apply(crds())
    await world.apply([manifests.namespace(run), *manifests.account(run)])
    permitted = path.with_name("scaler.kubeconfig")
    world.write_kubeconfig(permitted, token=await world.token_of(run, manifests.service_account(run)))
    for name, gpus in plot.nodes.items():
        world.fleet.add(machine(run, name, gpus))
    scaler = ScalerProcess(path.parent, _settings(run, permitted, world))
    await exits.enter_async_context(scaler)
    place = Town(run=run, world=world, scaler=scaler, api=api, is_embedded=world.config.kubeconfig is None, exits=exits)
    watching = asyncio.create_task(place.watch())
    exits.push_async_callback(_ended, watching)
    if plot.policy is not None:
        await world.apply(manifests.policy(run, plot.policy_spec(place.provisioning_class)))
    await world.apply([manifests.check(run), manifests.priority(run, 1000)])
    checks = [run] if plot.is_guarded else []
    await world.apply(
        manifests.queues(run, gpus=plot.gpus, checks=checks, preempts=plot.preempts, strategy=plot.strategy)
    )
    await place.until_ready()
    await place.until(lambda: place.is_active(str(plot.policy is not None)), "the check to say whether it is active")
    if plot.policy is not None:
        await place.until(lambda: world.condition(CLUSTER_QUEUE, "", run, "Active"), "Kueue to activate its queue")
    return place


def _config(run: str, ground: Ground | None, plot: Plot) -> SandboxConfig:
    base = replace(
        SandboxConfig.fast(),
        fleet=FleetConfig(nodes={}, collect_seconds=_COLLECT_SECONDS),
        kubelet=KubeletTiming(start_delay=timedelta(seconds=0.2), termination=timedelta(seconds=1)),
        autoscaler=AutoscalerConfig(scenarios=_scenarios(run, plot.scenario)),
        follows=_FOLLOWED,
    )
    if ground is None:
        return replace(base, parts=frozenset(Component) - {Component.RAY_CLUSTERS, Component.DEPLOYMENTS})
    return replace(
        base,
        kubeconfig=ground.kubeconfig,
        parts=frozenset({Component.KUBELETS, Component.AUTOSCALER}),
        namespaces=frozenset({run}),
        schedules=not ground.schedules,
        defines=False,
    )


def _scenarios(run: str, scenario: Scenario | None) -> Sequence[Scenario]:
    if scenario is None:
        return ()
    labels = scenario.shape.labels if scenario.shape else {}
    return (replace(scenario, requests=f"{run}/*", shape=shape(run, **labels)),)


def _settings(run: str, kubeconfig: Path, world: Sandbox) -> Json:
    """Of a scaler in a hurry."""
    lease = {"namespace": run, "duration": "2s", "renewDeadline": "1500ms", "retryPeriod": "300ms"}
    return {
        "kubernetes": {"kubeconfig": str(kubeconfig), "lease": lease},
        "dcgm": {"endpoints": [world.exporter_url]},
        "evaluation": {"interval": f"{_COLLECT_SECONDS:g}s", "overlap": "3s"},
        "trust": {
            "collectionInterval": f"{_COLLECT_SECONDS:g}s",
            "maxAgeIntervals": 10,
            "maxGapIntervals": 10,
            "minCoverage": "30 %",
        },
    }


async def _abandoned(world: Sandbox, api: KubeTransport) -> None:
    """Nothing is left in the cluster. Kubelets and autoscalers that still played would put nodes back."""
    await world.kill(Component.AUTOSCALER)
    for name in list(world.fleet.machines):
        world.remove_node(name)
    await cleared(api)


async def _ended(task: asyncio.Task[None]) -> None:
    """Raises: whatever broke it."""
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome
