"""The fifth act: a gang on the hub of MultiKueue, and two clusters that are both full.

| cluster | node | GPUs | held by                           |
|---------|------|------|-----------------------------------|
| a       | a1   | 4    | llm-1 (4, works)                  |
| a       | a2   | 4    | llm-2 (4, works)                  |
| b       | b1   | 4    | lab-1 (2, idle), lab-2 (2, idle)  |
| b       | b2   | 4    | llm-3 (3, works), lab-3 (1, idle) |

The gang is two pods of 2 GPUs each, and has quota on the hub. The hub's dispatcher asks both clusters how it would fit:
on a it would have to wait; b can make room by suspending two of three notebooks. So b is nominated, and only there is a
copy of the gang, a plan, and anything suspended. Where a Workload is dispatched to all clusters at once, as Kueue does
by itself, every cluster would suspend for it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from scaler.kube.objects.resources import CLUSTER_OFFER, POD, SCALABLE_WORKLOAD, WORKLOAD
from scaler_sandbox.conditions import has
from scaler_sandbox.job_manifests import cluster_queue, flavor, job, local_queue, manifest, namespace, scaling
from scaler_sandbox.kinds import PLACEMENT, Json
from scaler_sandbox.kueue.jobs import MULTIKUEUE_ORIGIN
from scaler_sandbox.multikueue.clusters import CHECK
from scaler_sandbox.sandbox import Sandbox
from scaler_sandbox.stories.facts import ActOutcome, Gang, gang, pods_of
from scaler_sandbox.stories.gang_story import NAMESPACE, TRIGGER, GangStory, RunningJob, queues

BUSY, IDLE = "a", "b"
WORKERS = {BUSY: {"a1": 4, "a2": 4}, IDLE: {"b1": 4, "b2": 4}}
_TEAM = "training"
_TRAININGS = (
    RunningJob(name="llm-1", team=_TEAM, gpus=4, works=True),
    RunningJob(name="llm-2", team=_TEAM, gpus=4, works=True),
)
_HOLDERS = (
    RunningJob(name="lab-1", team=_TEAM, gpus=2),
    RunningJob(name="lab-2", team=_TEAM, gpus=2),
    RunningJob(name="llm-3", team=_TEAM, gpus=3, works=True),
    RunningJob(name="lab-3", team=_TEAM, gpus=1),
)
EXPECTED = frozenset({"lab-1", "lab-2"})
_PLACEMENT = "gpu-clusters"
_PATIENCE_SECONDS = 120.0


@dataclass(kw_only=True)
class TwoClustersStory(GangStory):
    """One telling. `world` is the cluster with idle GPUs, `busy` the other one."""

    gang: ClassVar[str] = "pretrain"

    hub: Sandbox
    busy: Sandbox
    busy_scaler_address: str
    _answers: dict[str, str] = field(default_factory=dict, init=False)
    """What each cluster has answered, as it was reported."""
    _told: set[str] = field(default_factory=set, init=False)
    _before: Mapping[str, str] = field(default_factory=dict, init=False)
    """Uid and revision of the spec of each Job on the busy cluster before the gang came, by name."""

    def outcome(self, took: float) -> ActOutcome:
        return ActOutcome(
            ok=True,
            figures={"cluster": IDLE, "suspended_for_it": sorted(self.victims), "seconds_to_the_other_cluster": took},
            summary=f"From the gang's quota on the hub to its admission on cluster {IDLE}: {took:.1f} s, with the GPUs "
            f"of {' and '.join(sorted(self.victims))}; cluster {BUSY} never saw it.",
        )

    async def play(self) -> None:
        await self._furnish()
        await self.until(lambda: {"lab-1", "lab-2", "lab-3"} <= self._idle(), "three idle notebooks")
        message = f"{BUSY}: 8 of 8 GPUs work; {IDLE}: 8 of 8 are held, 5 of them by idle notebooks"
        self.say("Begins", "Clusters/two", "Filled", message)
        self._before = self._of_busy()
        await self.hub.apply(job(self.gang, NAMESPACE, _TEAM, gpus=2, pods=2))
        self.say("Submitted", f"Job/{self.gang}", "Created", "on the hub: two pods of 2 GPUs each")
        await self.until(lambda: "Reserved" in self._told, "its quota on the hub")
        await self.until(lambda: "Nominated" in self._told, "the nomination of a cluster")
        await self.until(lambda: self.plan, "a plan for the gang")
        await self.until(lambda: self.admitted_at, "the gang to be admitted on the hub")
        await self.run_of(self.gang)
        self.world.fleet.set_activity(NAMESPACE, f"{self.gang}-*", 0.9, noise=0.05)
        self.say("Trains", f"Job/{self.gang}", "Training", f"all four GPUs on {IDLE} work")
        self._others_go_on()

    async def _furnish(self) -> None:
        """Kueue's queues on all three clusters, and who was there before."""
        for worker in (self.busy, self.world):
            await worker.apply(queues({_TEAM: 8}))
        annotations = {"idlegpu.io/placement": _PLACEMENT}
        queue = local_queue(_TEAM, NAMESPACE, "all-clusters")
        queue["metadata"]["annotations"] = annotations
        await self.hub.apply(
            [
                namespace(NAMESPACE),
                flavor("gpu"),
                cluster_queue("all-clusters", 16, flavor="gpu", checks=[CHECK]),
                queue,
                manifest(PLACEMENT, _PLACEMENT, NAMESPACE, spec={}),
            ]
        )
        for training in _TRAININGS:
            await self.busy.apply(job(training.name, NAMESPACE, _TEAM, gpus=training.gpus))
            runs = partial(self._runs_on_busy, training.name)
            await self.busy.wait_for(runs, f"{training.name} to run", within=_PATIENCE_SECONDS)
            self.busy.fleet.set_activity(NAMESPACE, f"{training.name}-*", 0.85, noise=0.05)
            await self.busy.apply(scaling(training.name, NAMESPACE, self.busy_scaler_address, TRIGGER))
        await self.start(_HOLDERS)

    def _runs_on_busy(self, name: str) -> bool:
        pods = pods_of(self.busy.all(POD, NAMESPACE), name)
        workload = self.busy.workload_of(self.owner, NAMESPACE, name)
        found = self.busy.find(self.owner, NAMESPACE, name)
        return gang(name, cluster=found, workload=workload, pods=pods).is_running

    def _of_busy(self) -> dict[str, str]:
        bodies = (*self.busy.all(self.owner, NAMESPACE), *self.busy.all(SCALABLE_WORKLOAD, NAMESPACE))
        return {f"{each['kind']}/{each['metadata']['name']}": _version(each) for each in bodies}

    def _others_go_on(self) -> None:
        """Raises: TimeoutError where anybody else was suspended or stopped, or anything came to the busy cluster."""
        if frozenset(self.victims) != EXPECTED:
            raise TimeoutError(f"the plan took {', '.join(self.victims)}, not {', '.join(sorted(EXPECTED))}")
        if stopped := self.stopped([each.name for each in _HOLDERS if each.name not in EXPECTED]):
            raise TimeoutError(f"{', '.join(stopped)} stopped on {IDLE} although the gang did not need them")
        if stopped := [each.name for each in _TRAININGS if not self._runs_on_busy(each.name)]:
            raise TimeoutError(f"{', '.join(stopped)} stopped on {BUSY}")
        if "Copied a" in self._told or self._of_busy() != self._before:
            raise TimeoutError(f"the gang was noticed on {BUSY}")
        self.say("Untouched", f"Cluster/{BUSY}", "OthersRun", "both trainings run, and no copy of the gang was there")
        self.say("Untouched", f"Cluster/{IDLE}", "OthersRun", "a training and the third notebook keep running")

    # ------------------------------------------------------------------------------------------------- what is seen

    def look(self) -> None:
        super().look()
        workload = self.hub.workload_of(self.owner, NAMESPACE, self.gang)
        if workload is not None:
            self._see_hub(workload)
            for name, worker in ((BUSY, self.busy), (IDLE, self.world)):
                self._see_answer(name, worker)
                self._see_copy(name, worker)

    def _see_hub(self, workload: Json) -> None:
        status, where = workload.get("status") or {}, f"Job/{self.gang}"
        if has(workload, "QuotaReserved"):
            self.waiting_since = self.waiting_since or time.monotonic()
            self._once("Reserved", where, "QuotaReserved", "it has quota on the hub, and no cluster yet")
        if nominated := status.get("nominatedClusterNames"):
            message = f"cluster {' and '.join(nominated)} alone gets a copy, and may suspend for it"
            self._once("Nominated", where, "Nominated", message)
        if has(workload, "Admitted"):
            self.admitted_at = self.admitted_at or time.monotonic()
            self._once("Admitted", where, "Admitted", f"on the hub, with cluster {status.get('clusterName')}")

    def _see_answer(self, name: str, worker: Sandbox) -> None:
        offers = worker.all(CLUSTER_OFFER)
        said = [each for offer in offers for each in (offer.get("status") or {}).get("workloads") or ()]
        fit = next((each.get("fit", "") for each in said if self.gang in each["name"]), "")
        if name not in self._answers and fit not in ("", "Unknown") and "Nominated" not in self._told:
            self._answers[name] = fit
            words = {"Wait": "there is no room for it", "Reclaim": "it fits once idle notebooks are suspended"}
            self.say("Answered", f"Cluster/{name}", fit, words.get(fit, fit))

    def _see_copy(self, name: str, worker: Sandbox) -> None:
        copies = [each for each in worker.all(WORKLOAD, NAMESPACE) if _is_copy(each)]
        if copies:
            key = f"Copied {name}"
            if key not in self._told:
                self._told.add(key)
                self.say("Copied", f"Cluster/{name}", "RemoteCopy", "a copy of the gang waits here")

    def _once(self, event: str, about: str, reason: str, message: str) -> None:
        if event not in self._told:
            self._told.add(event)
            self.say(event, about, reason, message)

    def starts(self, before: Gang, now: Gang, where: str) -> None:
        """An event for pods that run on the worker; the hub has that of its admission."""
        if now.is_running and not before.is_running:
            self.say("Running", where, "PodsRunning", f"{now.running} of {now.pods} pods run on {IDLE}")


def _is_copy(workload: Json) -> bool:
    return MULTIKUEUE_ORIGIN in (workload["metadata"].get("labels") or {})


def _version(body: Json) -> str:
    return f"{body['metadata']['uid']}/{body['metadata'].get('generation', 0)}"
