"""A hub in virtual time with dispatched gangs, and what the workers say of them. The evaluation is the real one, and so
is what keeps the offers of workers.

    hub = HubWorld()
    hub.dispatches("gang", to="w1")
    hub.says("w1", "gang", "Idle")
    await hub.passes(minutes=1)
    hub.answer("gang")
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
from builders import LONG_AGO, NOON, WorkloadJson
from loops_builders import NAMESPACE, TICK, MemoryCluster, evaluator_of, scalable_workload, scaled_object
from scripted_metrics import Metrics, ScriptedSource
from virtual_clock import VirtualClock

from scaler.decision.decision import Answer, Decision
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import prevailing
from scaler.decision.trigger_metadata import parse_metadata
from scaler.kube.objects.core import ObjectMeta, stamp
from scaler.kube.objects.multikueue import ClusterOffer, ClusterOfferStatus, WorkloadOffer
from scaler.multikueue.hub.judged import judged_workloads
from scaler.multikueue.hub.remote_verdicts import RemoteAnswers
from scaler.multikueue.hub.worker_offer import WorkerOffer

METADATA = {"idleAfter": "30m", "warmUp": "10m"}
LIFE = 3 * TICK


@dataclass(kw_only=True)
class Worker:
    offer: WorkerOffer
    clock_ahead: timedelta = timedelta(0)
    """Of the hub's clock."""
    problem: str = ""
    entries: dict[str, WorkloadOffer] = field(default_factory=dict)


class Workers:
    """As WorkerConnections give them."""

    def __init__(self, clock: VirtualClock, *names: str) -> None:
        self.all = {name: Worker(offer=WorkerOffer(clock=clock)) for name in names}

    def get(self, name: str) -> Worker | None:
        return self.all.get(name)


class HubWorld:
    def __init__(self, *names: str) -> None:
        self.clock = VirtualClock(NOON)
        self.workers = Workers(self.clock, *(names or ("w1", "w2")))
        self.cluster = MemoryCluster(remote=RemoteAnswers(workers=self.workers).of)
        self.decision_cache = DecisionCache(max_age=3 * TICK, clock=self.clock.monotonic)
        source = ScriptedSource(metrics=Metrics(series=[]), clock=self.clock.now)
        self.evaluator = evaluator_of(self.cluster, source, self.decision_cache, self.clock.now)
        for name in self.workers.all:
            self.publishes(name)

    @property
    def now(self) -> datetime:
        return self.clock.now()

    # ------------------------------------------------------------------------------------------------------- the hub

    def dispatches(self, name: str, *, to: str, admitted_at: datetime = LONG_AGO, **metadata: str) -> None:
        """A gang with a ScalableWorkload and a ScaledObject on the hub runs there."""
        json = WorkloadJson(f"{name}-workload", pods=2, gpus_per_pod=2).admitted()
        json.json["metadata"]["uid"] = f"uid-{name}"
        for each in json.json["status"]["conditions"]:
            each["lastTransitionTime"] = stamp(admitted_at)
        if to:
            json.with_status(clusterName=to)
        self.cluster.workloads.put(json.decoded())
        triggers = [METADATA | metadata]
        self.cluster.scaled_objects.put(scaled_object(name, triggers=triggers))
        self.cluster.scalable_workloads.put(scalable_workload(name, workload=f"{name}-workload"))

    # --------------------------------------------------------------------------------------------------- the workers

    def says(
        self,
        worker: str,
        name: str,
        verdict: str,
        *,
        idle_for: timedelta | None = timedelta(hours=1),
        runs_for: timedelta | None = timedelta(hours=1, minutes=30),
        **fields: Any,
    ) -> None:
        """The worker says this of the gang, by the policy that the hub asks by now, with its next status and each after
        that."""
        asked = {each.uid: each.policy for each in self.judged().get(worker, ())}
        there = self.now + self.workers.all[worker].clock_ahead
        said: dict[str, Any] = {
            "namespace": NAMESPACE,
            "name": f"{name}-workload",
            "uid": f"uid-{name}",
            "verdict": verdict,
            "judged_by": asked.get(f"uid-{name}"),
            "idle_since": there - idle_for if idle_for is not None and verdict != "Busy" else None,
            "running_since": there - runs_for if runs_for is not None else None,
            "gpus": 4,
            "evidence": (msgspec.Raw(b'{"pod":"gang-0","gpu":"0","node":"node-a","verdict":"Idle"}'),),
        }
        self.workers.all[worker].entries[f"uid-{name}"] = WorkloadOffer(**said | fields)
        self.publishes(worker)

    def forgets(self, worker: str, name: str) -> None:
        del self.workers.all[worker].entries[f"uid-{name}"]
        self.publishes(worker)

    def publishes(self, worker: str) -> None:
        """Its status as of now arrives on the hub."""
        found = self.workers.all[worker]
        observed_at = self.now + found.clock_ahead
        status = ClusterOfferStatus(
            observed_at=observed_at, valid_until=observed_at + LIFE, workloads=tuple(found.entries.values())
        )
        found.offer.heard(ClusterOffer(metadata=ObjectMeta(name="hub", uid=worker), status=status))

    # ----------------------------------------------------------------------------------------------------------- time

    async def passes(self, *, minutes: float, silent: tuple[str, ...] = ()) -> None:
        """Workers publish before each evaluation, but for those that are silent."""
        for _ in range(round(minutes * 60 / TICK.total_seconds())):
            self.clock.jump(TICK.total_seconds())
            for name in self.workers.all:
                if name not in silent:
                    self.publishes(name)
            await self.evaluator.tick(self.now)

    # --------------------------------------------------------------------------------------------------- what is seen

    def decision(self, name: str) -> Decision:
        assert self.decision_cache.evaluation is not None
        entry = self.decision_cache.evaluation.entries[NAMESPACE, name]
        found = prevailing(list(entry.triggers.values()))
        assert found is not None
        return found

    def answer(self, name: str) -> Answer:
        """What KEDA gets."""
        scaled = self.cluster.scaled_objects.get(NAMESPACE, name)
        assert scaled is not None
        return self.decision_cache.answer(NAMESPACE, name, parse_metadata(scaled.spec.triggers[0].metadata))

    def judged(self) -> Mapping[str, Any]:
        """What the hub asks of its workers."""
        return judged_workloads(self.decision_cache.evaluation, self.evaluator.cluster)
