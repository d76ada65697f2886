"""A PressureWorld with nodes, in which gangs wait at a gate: it lets go who fits whole, as the real one promises.

    world = NodesWorld({"n1": 8, "n2": 4})
    world.runs("a", gpus=8, on="n1")
    world.waits("gang", gpus=8)            # has its quota at once, and is held back
    await world.passes(minutes=5)
    world.is_admitted("gang"), world.is_suspended("a")

Quota is plenty unless a test says otherwise. No nodes are requested; `coming` says for which gangs some are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loops_builders import NAMESPACE, pod
from reclaim.reclaim_world import GPU, PressureWorld

from scaler.admission.check import CheckChange, CheckReason, CheckState, ReservedWorkload
from scaler.admission.plan import AdmissionPlan, CheckedWorkload
from scaler.admission.planner import ReclaimAnswers
from scaler.admission.policy import CheckPolicy
from scaler.admission.provisioning.lifecycle import (
    NO_STEP,
    ObservedRequest,
    ProvisioningStep,
    RequestSpec,
    RequestState,
    StepKind,
)
from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.node_index import NodeDemand, NodeInfo
from scaler.placement.requests import Fits, PlacementRequest, PlacementResult, ReservationQueue
from scaler.placement.reservations import place_in_order
from scaler.quota.watch import NotSynced

CHECK = "gate"


@dataclass
class Gate:
    """Stands in for admission: an `AdmissionStatus` that releases gangs."""

    world: "NodesWorld"
    blind: str = ""
    latest: AdmissionPlan | None = None

    def reservation_queue(self, now: datetime) -> ReservationQueue | NotSynced:
        if self.blind:
            return NotSynced(self.blind)
        held = [self._claim(name) for name in self.world.gated if self.world.is_admitted(name)]
        waiting = [self._claim(name) for name in self.world.gated if self.world.is_held_back(name)]
        return ReservationQueue(capacity=self.world.node_capacity(), held=tuple(held), waiting=tuple(waiting))

    def looks(self) -> None:
        """Gangs that fit are released, and the report says which do not."""
        line = self.reservation_queue(self.world.now)
        if isinstance(line, NotSynced):
            self.latest = AdmissionPlan(at=self.world.now, unknown=line.reason)
            return
        verdicts = place_in_order(line)
        for claim in line.waiting:
            if isinstance(verdicts[claim.key], Fits):
                self.world.lets_go(claim.key.partition("/")[2])
        standing = [self._standing(each, verdicts[each.key]) for each in line.waiting]
        waiting = tuple(each for each in standing if not isinstance(each.placement, Fits))
        self.latest = AdmissionPlan(at=self.world.now, workloads=waiting)
        self.world.reclaim_answers.lacking({each.uid for each in waiting if each.lacks_nodes}, self.world.now)

    def _claim(self, name: str) -> PlacementRequest:
        workload = self.world.cluster.workloads.get(NAMESPACE, name)
        assert workload is not None
        pods, gpus = self.world.gated[name]
        pods -= len(self.world.cluster.pods.by_index("workload", (NAMESPACE, name)))
        return PlacementRequest(
            key=f"{NAMESPACE}/{name}",
            uid=workload.metadata.uid,
            demands=(NodeDemand(pod_set="main", count=pods, requests={GPU: gpus}),),
            at=self.world.reserved_at[name],
            awaits_nodes=name in self.world.coming,
            may_ask=self.world.provisions,
        )

    def _standing(self, claim: PlacementRequest, verdict: PlacementResult) -> CheckedWorkload:
        name = claim.key.partition("/")[2]
        workload = self.world.cluster.workloads.get(NAMESPACE, name)
        assert workload is not None
        asked = ObservedRequest(
            name="asked",
            uid="asked",
            attempt=1,
            spec=RequestSpec(reserved_at=claim.at, provisioning_class="class"),
            state=RequestState.ACCEPTED,
            since=claim.at,
        )
        is_coming = name in self.world.coming
        return CheckedWorkload(
            workload=workload,
            check=CHECK,
            policy=CheckPolicy(reuse=name not in self.world.spared),
            reserved=ReservedWorkload(key=claim.key, uid=claim.uid, reserved_at=claim.at),
            placement=verdict,
            step=ProvisioningStep(kind=StepKind.WAIT, request=asked) if is_coming else NO_STEP,
            change=CheckChange(state=CheckState.PENDING, because=CheckReason.NODES_LACKING, message=""),
        )


class NodesWorld(PressureWorld):
    """`provisions`: nodes may be asked for what is missing."""

    def __init__(self, nodes: Mapping[str, int], *, provisions: bool = False, quota: int = 100, **policy: Any) -> None:
        self.nodes = dict(nodes)
        self.provisions = provisions
        self.gated: dict[str, tuple[int, int]] = {}
        """By name, pods and GPUs of each."""
        self.places: dict[str, str] = {}
        self.coming: set[str] = set()
        """For whom nodes are on their way."""
        self.spared: set[str] = set()
        """For which gangs no workload may be suspended."""
        self.reserved_at: dict[str, datetime] = {}
        self.gate = Gate(self)
        super().__init__(quota, **policy)

    def admission(self) -> dict[str, Any]:
        self.reclaim_answers = ReclaimAnswers()
        return {"admission": self.gate, "answers": self.reclaim_answers}

    # ---------------------------------------------------------------------------------------------------- who is there

    def runs(self, name: str, *, gpus: int = 2, on: str = "", **options: Any) -> None:
        self.places[name] = on
        super().runs(name, gpus=gpus, **options)

    def waits(self, name: str, *, pods: int = 0, gpus: int = 8, **options: Any) -> None:
        """A gang of so many pods with so many GPUs each, held back by our check; with no `pods`, one that is not."""
        if pods:
            self.gated[name] = pods, gpus
        super().waits(name, gpus=max(1, pods) * gpus, **options)

    def leaves(self, name: str) -> None:
        self.gated.pop(name, None)
        super().leaves(name)

    def starts(self, name: str, on: str, gpus: int) -> None:
        """Somebody's pod, which Kueue knows nothing of, takes a place."""
        self.places[name] = on
        self.cluster.pods.put(pod(name, gpus=gpus, workload=name))

    def _admit(self, name: str, at: datetime) -> None:
        super()._admit(name, at)
        if name in self.gated:
            self.reserved_at[name] = at
            self._set(name, {"admissionChecks": [{"name": CHECK, "state": "Pending"}]}, at, QuotaReserved=True)

    def lets_go(self, name: str) -> None:
        self._set(name, {"admissionChecks": [{"name": CHECK, "state": "Ready"}]}, QuotaReserved=True, Admitted=True)

    def is_held_back(self, name: str) -> bool:
        return self.is_active(name) and self._has(name, "QuotaReserved") and not self._has(name, "Admitted")

    async def kueue(self) -> None:
        await super().kueue()
        self.gate.looks()
        await self.taken_up()

    # ------------------------------------------------------------------------------------------------------------ nodes

    def node_capacity(self) -> Capacity:
        nodes = [NodeInfo(name=name, allocatable={GPU: gpus, "pods": 110}) for name, gpus in self.nodes.items()]
        return capacity_of(nodes, [each for name, node in self.places.items() for each in self._occupants(name, node)])

    def _occupants(self, name: str, node: str) -> list[BoundPod]:
        return [
            BoundPod(
                pod=each.metadata.name,
                node=node,
                requests={GPU: int(each.spec.containers[0].resources.requests[GPU])},
                workload=f"{NAMESPACE}/{name}",
            )
            for each in self.cluster.pods.by_index("workload", (NAMESPACE, name))
        ]
