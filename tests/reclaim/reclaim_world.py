"""A world in virtual time for everything that hands idle quota over: plans, grants, KEDA, Kueue, and owners who change
their minds. The program's parts are the real ones; the API, KEDA and Kueue behave, and can be stopped at any write.

    world = PressureWorld(quota=8)
    world.runs("a", gpus=2)
    world.waits("gang", gpus=8)
    await world.passes(minutes=5)
    world.is_admitted("gang"), world.is_suspended("a")

Queues are of nominal quota only; a queue admits who fits, the oldest first.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from builders import LONG_AGO, NOON
from loops_builders import NAMESPACE, TICK, MemoryCluster, MemoryStore, evaluator_of, pod, scaled_object, stamp
from scripted_metrics import Metrics, ScriptedSource, gpu
from sim.api import SimApi
from sim.client import AtOnce, SimClient

from scaler.admission.remote_copies import NominatedCopies
from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import KubeError
from scaler.kube.events import ObjectReference
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import GrantStatus, ReallocationStatus, ScalableWorkload
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, Workload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD, Resource
from scaler.kube.writes import LeaderApi
from scaler.placement.capacity import Capacity
from scaler.quota.from_objects.snapshot_updater import SnapshotUpdater
from scaler.quota.model import QuotaWorkload
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced, QuotaWatch
from scaler.reclaim.controller import ReclaimController, ReclaimReport
from scaler.reclaim.planner import Planner, ReclaimConfig
from scaler.reclaim.transitions import LedgerEntry
from scaler.reclaim.writer import PlanWriter
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.targets.cluster_state import scaled_object_indexes

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
ON_PRESSURE = {"reclaim": "OnPressure", "idleAfter": "2h", "idleAfterUnderPressure": "2m", "warmUp": "30s"}
BACKOFF = timedelta(minutes=1)


# -------------------------------------------------------------------------------------------------------------- the API


Event = tuple[Resource, str, Json | None]
"""An object as it is now; None: it is gone."""


class WatchedClient(SimClient):
    """The objects, with watches that may lag."""

    def __init__(self, watch: Callable[[Resource, str, Json | None], None]) -> None:
        super().__init__()
        self._watch = watch
        self._held: list[Event] | None = None

    @contextmanager
    def lagging(self) -> Iterator[list[Event]]:
        """Nothing that is written meanwhile is heard of before the end."""
        self._held = held = []
        try:
            yield held
        finally:
            self._held = None
            for event in held:
                self._watch(*event)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        super().remove(resource, namespace, name)
        self._send(resource, name)

    def _put(self, resource: Resource, body: Json) -> None:
        super()._put(resource, body)
        self._send(resource, body["metadata"]["name"])

    def _send(self, resource: Resource, name: str) -> None:
        event = resource, name, self.find(resource, NAMESPACE, name)
        if self._held is None:
            self._watch(*event)
        else:
            self._held.append(event)


class LeadersApi(SimApi):
    """The API as the leader has it, until it is killed."""

    lives_for: int | None = None
    """How many more writes the leader makes before it is killed; None: it is not."""
    refused: Collection[str] = ()
    """Parts of paths for which every write is answered with an error."""
    on_read: Callable[[], Awaitable[None]] | None = None
    """What happens while the leader reads."""
    before_write: Callable[[str, Mapping[str, Any]], None] = staticmethod(lambda _path, _body: None)

    async def get(self, path: str) -> bytes:
        if self.on_read is not None:
            await self.on_read()
        return await super().get(path)

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        await asyncio.sleep(0)
        if self.lives_for == 0:
            raise asyncio.CancelledError
        if any(part in path for part in self.refused):
            raise KubeError(f"{path}: refused", status=500)
        self.before_write(path, body)
        written = await super().patch(path, body, dry_run=dry_run)
        if self.lives_for is not None:
            self.lives_for -= 1
        return written


# ------------------------------------------------------------------------------------------------- what others do


@dataclass
class View:
    """Kueue's quota as the planner sees it. Stands in for a QuotaView."""

    filing: SnapshotUpdater
    blind: str = ""

    def look(self) -> Snapshot | NotSynced:
        return NotSynced(self.blind) if self.blind else self.filing.snapshot

    def if_active(self, workload: Workload) -> QuotaWorkload | None:
        return self.filing.if_active(workload)


@dataclass
class Announcements:
    """Implements `Announcer`."""

    told: list[tuple[str, str, str, str]] = field(default_factory=list)
    """(kind, name, reason, message)."""

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append((about.kind, about.name, reason, message))

    def reasons(self, name: str) -> list[str]:
        return [reason for _, about, reason, _ in self.told if about == name]


@dataclass
class Heard:
    """What the leader has written or read is in its copies at once."""

    world: "PressureWorld"
    resource: Resource

    def file(self, answer: bytes) -> None:
        body = json.loads(answer)
        self.world.heard(self.resource, body["metadata"]["name"], body)


class PressureWorld:
    """Everything together. `policy` are fields of the ReclaimPolicy."""

    def __init__(self, quota: int | Mapping[str, int] = 8, *, strategy: str = "StrictFIFO", **policy: Any) -> None:
        self.now = NOON
        self.quotas = dict(quota) if isinstance(quota, Mapping) else {"cq": quota}
        self.policy = ReclaimConfig(**({"replan_backoff": BACKOFF, "consider_nodes": False} | policy))
        self.cluster = MemoryCluster(scaled_objects=MemoryStore(scaled_object_indexes()))
        self.view = View(SnapshotUpdater(Snapshot()))
        self.client = WatchedClient(self.heard)
        self.api = LeadersApi(self.client, [WORKLOAD, SCALABLE_WORKLOAD])
        self.source = ScriptedSource(metrics=Metrics(series=[]), clock=lambda: self.now)
        self.busy: dict[str, list[tuple[float, float]]] = {}
        """By name, the stretches of time in which its GPUs work, in Unix seconds."""
        self.slow: set[str] = set()
        """Whom KEDA does not bring to 0: a cooldown, or another trigger that is active."""
        self.ended: list[LedgerEntry] = []
        self.events = Announcements()
        self._touched: set[str] = set()
        self._pods_made = 0
        self.strategy = strategy
        self.checks: Json = {}
        self.capacity: Callable[[], Capacity | NotSynced] = lambda: NotSynced("nodes are not watched")
        self.checks_with_provisioning: frozenset[str] = frozenset()
        self.nominations = NominatedCopies()
        """For which remote copies of MultiKueue this cluster is nominated."""
        self.view.filing.put(_decoded(kube.Namespace, NAMESPACE))
        self.view.filing.put(_decoded(kube.ResourceFlavor, "gpus"))
        for name, amount in self.quotas.items():
            self.has_quota(amount, name)
            self.view.filing.put(_decoded(kube.LocalQueue, name, NAMESPACE, spec={"clusterQueue": name}))
        self.restarts()

    # ------------------------------------------------------------------------------------------- the program's parts

    def restarts(self) -> None:
        """Another process, which remembers nothing and has evaluated nothing yet."""
        self.decision_cache = DecisionCache(max_age=3 * TICK, clock=lambda: self.now.timestamp())
        self.evaluator = evaluator_of(self.cluster, self.source, self.decision_cache, lambda: self.now)
        self.another_leads()

    def another_leads(self) -> None:
        """Another replica takes the lead: it answers as before, and remembers nothing of plans."""
        self.api.lives_for = None
        copies = self.evaluator.cluster
        heard = {each: Heard(self, each) for each in (WORKLOAD, SCALABLE_WORKLOAD)}
        api = LeaderApi(self.api, is_leader=lambda: True, copies=heard)
        self.reconciler = SuspensionReconciler(api, copies, self.decision_cache, self.events, clock=lambda: self.now)
        self.pressure = ReclaimController(
            planning=Planner(
                copies,
                self.decision_cache,
                cast(QuotaWatch, self.view),
                self.policy,
                max_age=2 * TICK,
                capacity=lambda: self.capacity(),
                checks_with_provisioning=lambda: self.checks_with_provisioning,
                nominations=lambda: self.nominations,
            ),
            reconciler=self.reconciler,
            writer=PlanWriter(api, copies.scalable_workloads.get, self.events, finished=self.ended.append),
            **self.admission(),
        )

    def admission(self) -> dict[str, Any]:
        """What the controller knows of AdmissionChecks."""
        return {}

    def heard(self, resource: Resource, name: str, document: Json | None) -> None:
        """A watch event reaches the copies, and what depends on them."""
        if resource == WORKLOAD:
            self._file(name, document)
        stores: dict[str, MemoryStore[Any]] = {
            WORKLOAD.kind: self.cluster.workloads,
            SCALABLE_WORKLOAD.kind: self.cluster.scalable_workloads,
        }
        if document is None:
            stores[resource.kind].drop(name)
        else:
            kind = Workload if resource == WORKLOAD else ScalableWorkload
            stores[resource.kind].put(decode(kind, json.dumps(document).encode()))
        self._touched |= {each.metadata.name for each in self.cluster.scaled_objects.items()}

    def _file(self, name: str, document: Json | None) -> None:
        known = self.cluster.workloads.get(NAMESPACE, name)
        if document is not None:
            self.view.filing.put(decode(Workload, json.dumps(document).encode()), now=self.now)
        elif known is not None:
            self.view.filing.drop(known)

    # ----------------------------------------------------------------------------------------------------- who is there

    def runs(
        self,
        name: str,
        *,
        gpus: int = 2,
        queue: str = "cq",
        host_port: int = 0,
        started: datetime = LONG_AGO,
        metadata: Mapping[str, str] | None = None,
        more_triggers: Sequence[Mapping[str, str]] = (),
        **annotations: str,
    ) -> None:
        """A workload that has run for two hours and never worked, with a ScalableWorkload and a ScaledObject."""
        triggers = [ON_PRESSURE | dict(metadata or {}), *more_triggers]
        self.cluster.scaled_objects.put(scaled_object(name, triggers=triggers, annotations=annotations))
        self.busy.setdefault(name, [])
        spec = {"replicas": 1, "workloadRef": {"name": name}}
        self.create(SCALABLE_WORKLOAD, name, {"spec": spec, "status": {"workloadUID": "known"}})
        self.waits(name, gpus=gpus, queue=queue, created=LONG_AGO, host_port=host_port)
        self._admit(name, LONG_AGO)
        self._starts_pods(name, started)

    def has_quota(self, gpus: int | str, queue: str = "cq") -> None:
        """Its administrator gives the ClusterQueue so much, or writes what cannot be read."""
        if isinstance(gpus, int):
            self.quotas[queue] = gpus
        flavor = {"name": "gpus", "resources": [{"name": GPU, "nominalQuota": gpus}]}
        groups = [{"coveredResources": [GPU], "flavors": [flavor]}]
        spec = {"resourceGroups": groups, "namespaceSelector": {}, "queueingStrategy": self.strategy}
        spec |= self.checks
        self.view.filing.put(_decoded(kube.ClusterQueue, queue, spec=spec))

    def has_checks(self, *checks: str, on_flavors: Sequence[str] = ()) -> None:
        """Its administrator gives the ClusterQueue these AdmissionChecks, for Workloads with certain flavors or all."""
        for each in checks:
            active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
            spec = {"controllerName": "idlegpu.io/reclaim"}
            self.view.filing.put(_decoded(kube.AdmissionCheck, each, spec=spec, status={"conditions": [active]}))
        rules = [{"name": each, "onFlavors": list(on_flavors)} for each in checks]
        self.checks = {"admissionChecksStrategy": {"admissionChecks": rules}}
        self.has_quota(self.quotas["cq"])

    def waits(
        self,
        name: str,
        *,
        gpus: int = 8,
        queue: str = "cq",
        created: datetime | None = None,
        host_port: int = 0,
        is_copy: bool = False,
    ) -> None:
        """A Workload of one pod that is not admitted yet, `is_copy` of MultiKueue; with a port, which each node has for
        one pod only."""
        amounts = {GPU: str(gpus)}
        container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
        container |= {"ports": [{"containerPort": host_port, "hostPort": host_port}]} if host_port else {}
        pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
        spec = {"active": True, "queueName": queue, "podSets": [pod_set]}
        metadata: Json = {"creationTimestamp": stamp(created or self.now)}
        metadata |= {"labels": {MULTIKUEUE_ORIGIN: "multikueue"}} if is_copy else {}
        self.create(WORKLOAD, name, {"spec": spec, "status": {"conditions": []}}, **metadata)

    def is_nominated_for(self, *names: str) -> None:
        """From now on, for these remote copies and no others."""
        self.nominations = NominatedCopies(reclaim=frozenset((NAMESPACE, name) for name in names))

    def leaves(self, name: str) -> None:
        """A Workload is deleted by its owner."""
        self.delete(WORKLOAD, name)

    def works(self, name: str) -> None:
        """From now on its GPUs work."""
        self.busy[name].append((self.now.timestamp(), math.inf))

    def rests(self, name: str) -> None:
        """From now on its GPUs are quiet."""
        stretches = self.busy[name]
        self.busy[name] = [(begin, min(end, self.now.timestamp())) for begin, end in stretches]

    def is_seen_at_work(self, name: str) -> bool:
        """Whether a sample of the window that was judged last shows work."""
        assert self.decision_cache.evaluation is not None
        end = self.decision_cache.evaluation.at.timestamp()
        return any(self._ratio(name, end - 23 - 30 * number) for number in range(4))

    # -------------------------------------------------------------------------------------------------------- owners

    def create(self, resource: Resource, name: str, body: Json, **metadata: Any) -> None:
        self.client.restore(resource, {**body, "metadata": {"name": name, "namespace": NAMESPACE, **metadata}})

    def change(self, resource: Resource, name: str, **body: Json) -> None:
        """A merge patch, as anybody may write one."""
        self.client.change(resource, NAMESPACE, name, body, "status" if "status" in body else "")

    def delete(self, resource: Resource, name: str) -> None:
        self.client.remove(resource, NAMESPACE, name)

    def scales(self, name: str, replicas: int) -> None:
        """As `kubectl scale` does."""
        self.change(SCALABLE_WORKLOAD, name, spec={"replicas": replicas})

    def annotates(self, name: str, key: str, value: str | None) -> None:
        """On the ScalableWorkload."""
        self.change(SCALABLE_WORKLOAD, name, metadata={"annotations": {key: value}})

    def is_scaled_by(self, name: str, *metadata: Mapping[str, str], **annotations: str) -> None:
        """Another ScaledObject in place of the one before; with no trigger at all it is deleted."""
        if metadata:
            triggers = [ON_PRESSURE | dict(each) for each in metadata]
            self.cluster.scaled_objects.put(scaled_object(name, triggers=triggers, annotations=annotations))
        else:
            self.cluster.scaled_objects.drop(name)
        self._touched.add(name)

    # ---------------------------------------------------------------------------------------------------------- time

    async def passes(self, *, minutes: float = 0, until: Callable[[], bool] = lambda: False) -> None:
        """So much time goes by, in steps of half a minute, unless the condition holds before."""
        for _ in range(round(minutes * 60 / TICK.total_seconds())):
            if until():
                return
            await self.judged()
            await self.keda()
            await self.ticks()
            await self.kueue()
            await self.ticks()

    async def judged(self, seconds: float = TICK.total_seconds()) -> None:
        """Time for the next evaluation, and nothing else happens."""
        asyncio.get_running_loop().set_default_executor(AtOnce())
        self.now += timedelta(seconds=seconds)
        await self.evaluator.tick(self.now)
        await self.taken_up()

    async def taken_up(self) -> None:
        """Whatever has changed is decided about again, as the evaluator does between its ticks."""
        while self._touched:
            touched, self._touched = self._touched, set()
            await self.evaluator.redecide((NAMESPACE, name) for name in sorted(touched))

    async def ticks(self, times: int = 1) -> ReclaimReport:
        """The leader's loops have their turn."""
        outlook = ReclaimReport(at=self.now, blind="the leader has died")
        for _ in range(times):
            await self.reconciled()
            outlook = await self.planned()
        return outlook

    async def planned(self) -> ReclaimReport:
        """The loop of the plans alone has its turn."""
        outlook = ReclaimReport(at=self.now, blind="the leader has died")
        await self.taken_up()
        with suppress(asyncio.CancelledError):
            outlook = await self.pressure.tick(self.now)
        await self.taken_up()
        return outlook

    async def reconciled(self, *names: str) -> None:
        """The reconciler alone looks at these, or at all."""
        await self.taken_up()
        for each in names or [each.metadata.name for each in self.cluster.scalable_workloads.items()]:
            with suppress(KubeError, asyncio.CancelledError):
                await self.reconciler.reconcile((NAMESPACE, each))
        await self.taken_up()

    # ---------------------------------------------------------------------------------------------------------- KEDA

    async def keda(self, *names: str) -> None:
        """KEDA polls these ScaledObjects, or all, and acts."""
        self.scaled(self.answers(*names))
        await self.taken_up()

    def answers(self, *names: str) -> dict[str, list[Answer]]:
        """What KEDA gets for each trigger."""
        return {
            each.metadata.name: [
                self.decision_cache.answer(NAMESPACE, each.metadata.name, parse_metadata(trigger.metadata))
                for trigger in each.spec.triggers
            ]
            for each in self.cluster.scaled_objects.items()
            if not names or each.metadata.name in names
        }

    def scaled(self, answers: Mapping[str, Sequence[Answer]]) -> None:
        """What KEDA does on these answers: any active one wins, and an error freezes."""
        for name, given in answers.items():
            if self.cluster.scalable_workloads.get(NAMESPACE, name) is None:
                continue
            if any(isinstance(each, Active) for each in given):
                self.scales(name, 1)
            elif all(isinstance(each, Inactive) for each in given) and name not in self.slow:
                self.scales(name, 0)

    # --------------------------------------------------------------------------------------------------------- Kueue

    async def kueue(self) -> None:
        """Releases what was deactivated, admits who fits; and the kubelet starts and ends pods."""
        self.evicts()
        self.admits()
        await self.taken_up()

    def evicts(self) -> None:
        for name in self.names(WORKLOAD):
            if not self.is_active(name) and self._has(name, "QuotaReserved"):
                self._set(name, {"admission": None}, QuotaReserved=False, Admitted=False, Evicted=True)
            elif not self._has(name, "Admitted"):
                self.ends_pods(name)

    def admits(self) -> None:
        """Every queue is StrictFIFO here."""
        for queue in self.quotas:
            for name in self._line(queue):
                if self.gpus_of(name) > self.free(queue):
                    break
                self._admit(name, self.now)
                if self.cluster.scalable_workloads.get(NAMESPACE, name):
                    self._starts_pods(name, self.now)

    def preempts(self, name: str) -> None:
        """Kueue takes its quota away, and it waits again."""
        self._set(name, {"admission": None}, QuotaReserved=False, Admitted=False, Evicted=True)

    def finishes(self, name: str) -> None:
        """Its pods are done."""
        self._set(
            name, {}, Finished=True, **{each: True for each in ("QuotaReserved", "Admitted") if self._has(name, each)}
        )

    def admits_newcomer(self, name: str, *, gpus: int, queue: str = "cq") -> None:
        """A newcomer that is admitted at once."""
        self.waits(name, gpus=gpus, queue=queue)
        self._admit(name, self.now)

    def free(self, queue: str = "cq") -> int:
        held = [
            name
            for name in self.names(WORKLOAD)
            if self.is_active(name) and self._has(name, "QuotaReserved") and not self._has(name, "Finished")
        ]
        return self.quotas[queue] - sum(self.gpus_of(each) for each in held if self._queue_of(each) == queue)

    def _line(self, queue: str) -> list[str]:
        waiting = [
            (self.read(WORKLOAD, name)["metadata"]["creationTimestamp"], name)
            for name in self.names(WORKLOAD)
            if self.is_active(name)
            and not self._has(name, "QuotaReserved")
            and not self._has(name, "Finished")
            and self._queue_of(name) == queue
        ]
        return [name for _, name in sorted(waiting)]

    def gpus_of(self, name: str) -> int:
        pod_set = self.read(WORKLOAD, name)["spec"]["podSets"][0]
        return int(pod_set["template"]["spec"]["containers"][0]["resources"]["requests"][GPU])

    def _queue_of(self, name: str) -> str:
        return str(self.read(WORKLOAD, name)["spec"]["queueName"])

    def _admit(self, name: str, at: datetime) -> None:
        usage = {"flavors": {GPU: "gpus"}, "resourceUsage": {GPU: str(self.gpus_of(name))}}
        assignment = {"name": "main", "count": 1, **usage}
        admission = {"clusterQueue": self._queue_of(name), "podSetAssignments": [assignment]}
        self._set(name, {"admission": admission}, at, QuotaReserved=True, Admitted=True, Evicted=False)

    def _set(self, name: str, status: Json, at: datetime | None = None, **conditions: bool) -> None:
        written = [
            {
                "type": kind,
                "status": str(is_so),
                "reason": kind,
                "message": "",
                "lastTransitionTime": stamp(at or self.now),
            }
            for kind, is_so in conditions.items()
        ]
        self.change(WORKLOAD, name, status={**status, "conditions": written})

    def _has(self, name: str, kind: str) -> bool:
        conditions = self.read(WORKLOAD, name)["status"]["conditions"]
        return any(each["type"] == kind and each["status"] == "True" for each in conditions)

    def _starts_pods(self, name: str, at: datetime) -> None:
        self._pods_made += 1
        named = f"{name}-{self._pods_made}"
        for number in range(self.gpus_of(name)):
            self.source.metrics.series += gpu(
                f"GPU-{named}-{number}", pod=named, ratio=lambda at_s: self._ratio(name, at_s)
            )
        self.cluster.pods.put(pod(named, gpus=self.gpus_of(name), started=at, workload=name))

    def ends_pods(self, name: str) -> None:
        """The kubelet has killed them."""
        for each in self.cluster.pods.by_index("workload", (NAMESPACE, name)):
            self.cluster.pods.drop(each.metadata.name)

    def _ratio(self, name: str, at_s: float) -> float:
        return 0.9 if any(begin <= at_s < end for begin, end in self.busy[name]) else 0.0

    # ------------------------------------------------------------------------------------------------------- looking

    def names(self, resource: Resource) -> list[str]:
        return [each["metadata"]["name"] for each in self.client.all(resource)]

    def read(self, resource: Resource, name: str) -> Json:
        found = self.client.find(resource, NAMESPACE, name)
        assert found is not None
        return found

    def scalable(self, name: str) -> ScalableWorkload:
        """As the API has it."""
        return decode(ScalableWorkload, json.dumps(self.read(SCALABLE_WORKLOAD, name)).encode())

    def replicas(self, name: str) -> int:
        return self.scalable(name).spec.replicas

    def has_grant(self, name: str) -> bool:
        return self.scalable(name).status.grant is not None

    def grant(self, name: str) -> GrantStatus:
        found = self.scalable(name).status.grant
        assert found is not None
        return found

    def ledger(self, name: str) -> ReallocationStatus:
        """Of its GPUs; without a stage where no plan ever took it."""
        return self.scalable(name).status.reallocation or ReallocationStatus()

    def stage(self, name: str) -> str:
        return self.ledger(name).stage

    def is_active(self, name: str) -> bool:
        return bool(self.read(WORKLOAD, name)["spec"]["active"])

    def is_untouched(self, name: str) -> bool:
        """It runs, is not asked to be suspended, and is in no plan."""
        return self.is_active(name) and self.replicas(name) == 1 and not self.has_grant(name)

    def is_suspended(self, name: str) -> bool:
        """Whether it is one that can be suspended, and is."""
        return name in self.names(SCALABLE_WORKLOAD) and not self.is_active(name) and self.replicas(name) == 0

    def is_admitted(self, name: str) -> bool:
        return self.is_active(name) and self._has(name, "Admitted")

    @property
    def deactivated(self) -> list[str]:
        """Every Workload that the leader has ever deactivated, in order."""
        prefix = WORKLOAD.path(NAMESPACE, "x").removesuffix("x")
        return [path.removeprefix(prefix) for path, body in self.api.patches if body.get("spec") == {"active": False}]


def _decoded(kind: type[Any], name: str, namespace: str = "", **fields: Any) -> Any:
    return decode(kind, json.dumps({"metadata": {"name": name, "namespace": namespace}, **fields}).encode())
