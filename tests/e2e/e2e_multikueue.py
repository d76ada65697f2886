"""A flow on several clusters: a hub of MultiKueue and its workers, each with the program as a process in it.

    async with start_clusters(gpus={"w1": 4, "w2": 4}) as clusters:
        await clusters.hub.submit_job("gang", pods=4, gpus=1)
        await clusters.wait_until_runs("gang", on="w2")

Each cluster is a Flow of its own, all with the same run, and so with the same namespace and the same names of queues.
The suite plays Open Cluster Management: it writes PlacementDecisions.
"""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import e2e.e2e_multikueue_manifests as made
import pytest
from e2e.e2e_cluster import items
from e2e.e2e_flow import WAIT_SECONDS, Flow
from e2e.e2e_manifests import RUN_LABEL, Json
from scaler_sandbox import job_manifests
from scaler_sandbox.conditions import make
from scaler_sandbox.kueue.nominations import Dispatcher, HubConfig, Remedy
from scaler_sandbox.multikueue.webhook import WorkloadAdmission
from scaler_sandbox.sandbox import KUEUE_NAMESPACE

from scaler.errors import KubeError
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    CLUSTER_QUEUE,
    EVENT,
    JOB,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    PLACEMENT_DECISION,
    SCALABLE_WORKLOAD,
    WORKLOAD,
)

_AT_TWICE_SECONDS = 2.0
"""Pods of a Job that was deleted on one worker may run that long while it starts on another."""


@dataclass(kw_only=True)
class Clusters:
    """The hub and its workers. Methods take the names of Jobs of the hub, each of which is a gang, and of workers."""

    hub: Flow
    workers: Mapping[str, Flow]
    nominations: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))
    """All nominations so far, by Job: the workers in their order; empty where Kueue has cleared them."""
    permitted: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))
    """All sets so far of workers on which idle workloads may be suspended for the Job, without those that were lost."""
    suspended: dict[str, set[str]] = field(default_factory=dict)
    """ScalableWorkloads that were suspended, or were about to be, by cluster."""
    ran_twice: set[str] = field(default_factory=set)
    """Jobs that ran on two workers at a time."""
    ran_twice_is_expected: bool = False
    lost: set[str] = field(default_factory=set)
    """Workers that the hub could not reach at some time."""
    _both_since: dict[str, float] = field(default_factory=dict)

    @property
    def run(self) -> str:
        return self.hub.run

    # ---------------------------------------------------------------------------------------------------------- actions

    async def fill(self, worker: str, name: str, *, gpus: int, is_idle: bool, **trigger: str) -> None:
        """A local Job of one pod with so many GPUs that runs on the worker. Where it is idle plans may suspend it."""
        flow = self.workers[worker]
        if not is_idle:
            flow.sandbox.fleet.set_activity(self.run, f"{name}-*", 0.9)
        await flow.submit_job(name, pods=1, gpus=gpus)
        await flow.wait_until_running(name)
        if is_idle:
            await flow.make_scalable(name, **trigger)

    async def nominate(self, name: str, *workers: str) -> None:
        """Nominates these workers by hand, as a dispatcher would."""
        names = [made.worker_name(self.run, each) for each in workers]
        workload = self.hub.workload(name)["metadata"]["name"]
        body = {"status": {"nominatedClusterNames": names}}
        await self.hub.sandbox.patch(WORKLOAD, self.run, workload, body, "status")

    async def permit(self, name: str, *workers: str) -> None:
        """Lets these workers, and no other, suspend idle workloads for the Job; by hand, as a dispatcher would."""
        metadata = self.hub.workload(name)["metadata"]
        entry = {"namespace": self.run, "name": metadata["name"], "uid": metadata["uid"]}
        for each, flow in self.workers.items():
            may = {**entry, "reclaim": True, "nominatedAt": made.now()}
            await flow.sandbox.apply(made.offer(self.run, [may] if each in workers else []))

    async def stop_admitting(self, worker: str) -> None:
        """From now on what gets quota on the worker is not admitted there; what runs keeps running."""
        sandbox, check = self.workers[worker].sandbox, made.unanswered_check(self.run)
        name = check["metadata"]["name"]
        await sandbox.apply(check)
        active = make("Active", "True", "Active", "set by the suite", now=datetime.now(UTC))
        await sandbox.patch(ADMISSION_CHECK, "", name, {"status": {"conditions": [active]}}, "status")
        await sandbox.patch(CLUSTER_QUEUE, "", self.run, {"spec": job_manifests.admission_checks([name])})
        await self.wait_until(
            lambda: sandbox.condition(CLUSTER_QUEUE, "", self.run, "Active"), "an active ClusterQueue"
        )

    async def set_config(self, *workers: str) -> None:
        """The MultiKueueConfig has these clusters from now on."""
        spec = made.multikueue_config(self.run, workers)["spec"]
        await self.hub.sandbox.patch(MULTIKUEUE_CONFIG, "", self.run, {"spec": spec})

    async def decide(self, *workers: str) -> None:
        """The PlacementDecision has these clusters from now on."""
        await self.hub.sandbox.apply(made.placement_decision(self.run))
        name = made.placement_decision(self.run)["metadata"]["name"]
        body = {"status": made.decisions(self.run, workers)}
        await self.hub.sandbox.patch(PLACEMENT_DECISION, self.run, name, body, "status")

    async def set_queue_by_placement(self) -> None:
        """The hub's LocalQueue names the Placement."""
        await self.hub.sandbox.apply(made.by_placement(self.run))

    async def lose(self, worker: str) -> None:
        """The hub cannot reach the worker any more."""
        if self.hub.cluster is None:
            pytest.skip("the embedded MultiKueue does not follow changes of its Secrets")
        self.lost.add(worker)
        await self._write_secret(worker, made.unreachable)
        await self.hub.wait_until(lambda: not self.is_connected(worker), f"the hub to lose {worker}")

    async def find_again(self, worker: str) -> None:
        await self._write_secret(worker, lambda config: config)
        await self.hub.wait_until(lambda: self.is_connected(worker), f"the hub to reach {worker}")

    async def _write_secret(self, worker: str, change: Callable[[str], str]) -> None:
        config = change(await hub_kubeconfig(self.workers[worker]))
        await self.hub.sandbox.apply(made.secret(self.run, kueue_namespace_of(self.hub), worker, config))

    @asynccontextmanager
    async def without_policy(self) -> AsyncIterator[None]:
        """As long as this lasts Kueue's policy is not for the run's namespace."""
        if self.hub.cluster is None:
            self._embed_policy(Remedy.NONE)
            yield
            self._embed_policy(Remedy.POLICY)
            return
        found = await items(self.hub.api, made.MUTATING_POLICY_BINDING)
        [binding] = [each for each in found if made.CLEARS_NOMINATIONS in each["metadata"]["name"]]
        path = made.MUTATING_POLICY_BINDING.path("", binding["metadata"]["name"])
        before = binding["spec"].get("matchResources")
        await self.hub.api.patch(path, {"spec": made.not_for(self.run)})
        try:
            await self._wait_without_policy()
            yield
        finally:
            await self.hub.api.patch(path, {"spec": {"matchResources": None}})
            if before:
                await self.hub.api.patch(path, {"spec": {"matchResources": before}})

    async def _wait_without_policy(self) -> None:
        """The API server takes a second to follow a change of its policies. They can be told by a dry run."""
        probe, both = made.probe(self.run), {"nominatedClusterNames": ["x"], "clusterName": "x"}
        await self.hub.sandbox.apply(probe)
        path = WORKLOAD.path(self.run, probe["metadata"]["name"], "status")
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    await self.hub.api.patch(path, {"status": both}, dry_run=True)
                except KubeError as error:
                    if "mutually exclusive" in str(error):
                        return
                await asyncio.sleep(0.2)

    def _embed_policy(self, remedy: Remedy) -> None:
        config = HubConfig(dispatcher=Dispatcher.EXTERNAL, remedy=remedy)
        self.hub.sandbox.api.admit(WORKLOAD.qualified_name, WorkloadAdmission(config))

    # ------------------------------------------------------------------------------------------------------------ state

    def copy(self, name: str, worker: str) -> Json | None:
        """The copy of the Job's Workload on the worker."""
        return self.workers[worker].sandbox.find(
            WORKLOAD, self.run, self.hub.workload(name)["metadata"].get("name", "")
        )

    def nominated(self, name: str) -> tuple[str, ...]:
        """The nominated workers, in their order."""
        status = self.hub.workload(name).get("status") or {}
        return tuple(self._worker(each) for each in status.get("nominatedClusterNames") or ())

    def cluster_of(self, name: str) -> str:
        """The worker that has admitted it, by the hub's Workload; empty while there is none."""
        return self._worker((self.hub.workload(name).get("status") or {}).get("clusterName") or "")

    def _worker(self, cluster: str) -> str:
        return cluster.removeprefix(f"{self.run}-")

    def runs_on(self, name: str) -> set[str]:
        """The workers on which all pods of the Job run."""
        return {worker for worker, flow in self.workers.items() if flow.is_running(name)}

    def pods(self, name: str) -> list[Json]:
        """Its pods on all workers that have not ended."""
        return [pod for flow in self.workers.values() for pod in flow.pods(name)]

    async def events(self, name: str, reason: str) -> str:
        """The messages of the Events with that reason of the hub's Workload."""
        workload = self.hub.workload(name)["metadata"].get("uid", "")
        found = await self.hub.sandbox.read_all(EVENT, self.run)
        return "\n".join(
            each["message"]
            for each in found
            if each["reason"] == reason and each["involvedObject"].get("uid") == workload
        )

    async def wait_for_finding(self, check: str, *, within: float = 120.0) -> Json:
        """The finding of `doctor` on the hub, with the settings of the program there."""
        folder = self.hub.kubeconfig.parent
        arguments = "doctor", "--config", str(folder / "settings.yaml"), "--kubeconfig", str(self.hub.kubeconfig)
        found: list[Json] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while True:
                    found = await _findings(*arguments, "--json")
                    if said := [each for each in found if each["check"] == check]:
                        return said[0]
                    await asyncio.sleep(2)
        raise AssertionError(f"doctor does not report {check}, but {found}\n{self.describe()}")

    def is_connected(self, worker: str) -> bool:
        """Whether Kueue on the hub reaches the worker."""
        return self.hub.sandbox.condition(MULTIKUEUE_CLUSTER, "", made.worker_name(self.run, worker), "Active")

    def offer(self, worker: str) -> Json:
        """The ClusterOffer on the worker; an empty one where there is none."""
        found = self.workers[worker].sandbox.find(CLUSTER_OFFER, "", self.run)
        return found or {"spec": {}, "status": {}}

    def asked(self, name: str, worker: str) -> Json:
        """The Job's entry in the spec of the worker's ClusterOffer."""
        return self._entry(name, self.offer(worker)["spec"])

    def answer(self, name: str, worker: str) -> Json:
        """The Job's entry in the status of the worker's ClusterOffer."""
        return self._entry(name, self.offer(worker)["status"])

    def _entry(self, name: str, part: Json) -> Json:
        workload = self.hub.workload(name)["metadata"].get("name", "")
        entries: list[Json] = part.get("workloads") or []
        return next((each for each in entries if (each["namespace"], each["name"]) == (self.run, workload)), {})

    def permits(self, name: str) -> tuple[str, ...]:
        """The workers on which idle workloads may be suspended for the Job."""
        return tuple(each for each in self.workers if self.asked(name, each).get("reclaim"))

    # ------------------------------------------------------------------------------------------- waiting and assertions

    async def wait_until_runs(self, name: str, *, on: str = "", within: float = WAIT_SECONDS) -> str:
        """The worker on which the gang runs, by the hub, too: the one that is given, or any."""

        def where() -> str:
            found, admitted = self.runs_on(name), self.cluster_of(name)
            return admitted if found == {admitted} and self.hub.has_condition(name, "Admitted") else ""

        def is_there() -> str:
            return where() if not on or where() == on else ""

        return str(await self.wait_until(is_there, f"{name} to run on {on or 'a worker'}", within=within))

    async def wait_until(self, predicate: Callable[[], Any], what: str, *, within: float = WAIT_SECONDS) -> Any:
        """The predicate's value as soon as it is true. Raises: AssertionError that describes the state."""
        try:
            return await self.hub.sandbox.wait_for(predicate, what, within=within)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    async def assert_stays(self, predicate: Callable[[], Any], what: str, *, seconds: float) -> None:
        """Raises: AssertionError where it does not hold all the time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            assert predicate(), f"not {what}\n{self.describe()}"
            await asyncio.sleep(0.05)

    def assert_suspended(self, **expected: set[str]) -> None:
        """These ScalableWorkloads were suspended so far, by cluster, and no other, on no other cluster."""
        assert {where: names for where, names in self.suspended.items() if names} == expected, self.describe()

    def assert_laws(self) -> None:
        """What holds in every flow."""
        assert self.ran_twice_is_expected or not self.ran_twice, (
            f"on two clusters at a time: {self.ran_twice}\n{self.describe()}"
        )
        twice = {name: sets for name, sets in self.permitted.items() if any(len(each) > 1 for each in sets)}
        assert not twice, f"idle workloads could be suspended for it on two clusters: {twice}\n{self.describe()}"

    def describe(self) -> str:
        """The state of all clusters, for the message of a failure."""
        lines = []
        for job in self.hub.sandbox.all(JOB, self.run):
            name = job["metadata"]["name"]
            lines.append(
                f"{name}: nominations {self.nominations.get(name)}, permitted {self.permitted.get(name)}, "
                f"clusterName {self.cluster_of(name)!r}, runs on {self.runs_on(name)}"
            )
        lines += [
            f"{worker}: connected {self.is_connected(worker)}, offer {json.dumps(self.offer(worker))}"
            for worker in self.workers
        ]
        lines.append(f"suspended: {self.suspended}")
        for name, flow in self._flows().items():
            lines += [f"-- {name}", flow.describe()]
        return "\n".join(lines)

    def _flows(self) -> Mapping[str, Flow]:
        return {"hub": self.hub, **self.workers}

    # ------------------------------------------------------------------------------------------------------ observation

    async def observe(self) -> None:
        """Records what may last for a moment only."""
        while True:
            for job in self.hub.sandbox.all(JOB, self.run):
                await self._observe_job(job["metadata"]["name"])
            for where, flow in self._flows().items():
                for each in flow.sandbox.all(SCALABLE_WORKLOAD, self.run):
                    if (each.get("status") or {}).get("phase") in ("Suspending", "Suspended"):
                        self.suspended.setdefault(where, set()).add(each["metadata"]["name"])
            for flow in self.workers.values():
                await self._label_offer(flow)
            await asyncio.sleep(0.05)

    async def _observe_job(self, name: str) -> None:
        _note(self.nominations[name], self.nominated(name))
        permits = tuple(each for each in self.permits(name) if each not in self.lost)
        if len(permits) > 1:
            permits = tuple([each for each in permits if await self._permits_now(name, each)])
        _note(self.permitted[name], permits)
        now = asyncio.get_running_loop().time()
        if len(self.runs_on(name)) < 2:
            self._both_since.pop(name, None)
        elif now > self._both_since.setdefault(name, now) + _AT_TWICE_SECONDS:
            self.ran_twice.add(name)

    async def _permits_now(self, name: str, worker: str) -> bool:
        """Whether it does by the API itself: the copies that are watched here are not of one moment."""
        found = await self.workers[worker].sandbox.read(CLUSTER_OFFER, "", self.run)
        return bool(self._entry(name, found["spec"]).get("reclaim"))

    async def _label_offer(self, flow: Flow) -> None:
        """The dispatcher's object gets the suite's label, by which it is removed."""
        found = flow.sandbox.find(CLUSTER_OFFER, "", self.run)
        if found is not None and RUN_LABEL not in (found["metadata"].get("labels") or {}):
            with suppress(KubeError):
                await flow.sandbox.patch(CLUSTER_OFFER, "", self.run, {"metadata": {"labels": {RUN_LABEL: self.run}}})


async def _findings(*arguments: str) -> list[Json]:
    command = sys.executable, "-m", "scaler", *arguments
    doctor = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    text, _ = await doctor.communicate()
    found: list[Json] = json.loads(text)["findings"]
    return found


def _note(history: list[tuple[str, ...]], value: tuple[str, ...]) -> None:
    if value != (history[-1] if history else ()):
        history.append(value)


async def hub_kubeconfig(worker: Flow) -> str:
    """With which the hub's Kueue, and so its dispatcher, reach the worker."""
    token = await worker.sandbox.token_of(worker.run, made.hub_user(worker.run))
    return made.kubeconfig_for(worker.kubeconfig, token)


def kueue_namespace_of(hub: Flow) -> str:
    return hub.cluster.kueue_namespace if hub.cluster is not None else KUEUE_NAMESPACE
