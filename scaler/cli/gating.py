"""The parts of one process that hold gangs back until they can start whole: what is watched, and the leader's loop."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scaler.cli.observers import Observers
from scaler.cli.reclaiming import Reclaiming
from scaler.kube.discovery import Discovery
from scaler.kube.events import ObjectReference
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import Pod
from scaler.kube.quota_objects import ResourceFlavor
from scaler.kube.reclaim_policy_objects import ReclaimPolicy
from scaler.kube.reflector import Reflector
from scaler.kube.resources import RECLAIM_POLICY
from scaler.kube.transport import KubeTransport
from scaler.loops.cluster import Cluster
from scaler.loops.endings import Endings
from scaler.loops.gate import Gate
from scaler.loops.gate_checks import Checks
from scaler.loops.gate_view import Copies, GateView
from scaler.loops.leadership import MakingApi
from scaler.loops.outlook.onlooker import Foreseeing, Onlooker
from scaler.loops.policy_status import PolicyStatus
from scaler.loops.provisioning import Provisioning
from scaler.loops.reconciliation import Announcer
from scaler.loops.request_watch import RequestWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """What every replica has of it, so that a new leader starts with full copies."""

    policies: Reflector[ReclaimPolicy]
    requests: RequestWatch
    view: GateView
    endings: Endings
    reclaiming: Reclaiming

    @classmethod
    def of(
        cls,
        transport: KubeTransport,
        cluster: Cluster,
        reclaiming: Reclaiming,
        *,
        workloads: Reflector[Workload],
        pods: Reflector[Pod],
    ) -> "Gating":
        """Subscribes, so it is to be made before the reflectors run."""
        copies = Copies(
            workloads=workloads,
            pods=pods,
            checks=reclaiming.reflectors.checks,
            flavors=reclaiming.reflectors.flavors,
            nodes=reclaiming.nodes,
        )
        return cls(
            policies=Reflector(transport, RECLAIM_POLICY, ReclaimPolicy),
            requests=RequestWatch(transport=transport, discovery=Discovery(transport)),
            view=GateView(cluster, copies),
            endings=Endings(cluster, workloads, pods),
            reclaiming=reclaiming,
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run on every replica."""
        return [] if self.reclaiming.is_confined else [self.policies.run(), self.requests.run()]

    def gate(self, api: MakingApi, announcer: Announcer, observers: Observers) -> Gate:
        """The leader's loop."""
        provisioning = Provisioning(api, self.requests, self._flavor, announcer, observe=observers.provisioned)
        gate = Gate(
            api,
            self.view,
            self.endings,
            Checks(api, self.policies, announcer),
            announcer,
            capacity=self.reclaiming.capacity,
            quota=self.reclaiming.planning.quota,
            provisioning=provisioning,
            observe=observers.gated,
        )
        self.requests.subscribe(lambda _: gate.wake())
        self.policies.subscribe(lambda _: gate.wake())
        return gate

    def policy_status(self, api: MakingApi) -> PolicyStatus:
        """The leader's loop over ReclaimPolicies."""
        return PolicyStatus(api, self.policies)

    def looking(self, api: MakingApi) -> Gate:
        """A gate of which only looks are asked, on whatever replica: it writes nothing."""
        return Gate(
            api,
            self.view,
            self.endings,
            Checks(api, self.policies, _NOBODY),
            _NOBODY,
            capacity=self.reclaiming.capacity,
            quota=self.reclaiming.planning.quota,
            provisioning=Foreseeing(self.requests, self._flavor),
        )

    def onlooker(self, api: MakingApi, gate: Gate) -> Onlooker:
        """Tells how gangs stand, by such a gate."""
        return Onlooker(gate, self.view, Checks(api, self.policies, _NOBODY), self.requests)

    async def wait_listed(self, seconds: float) -> None:
        """Returns once policies and requests are listed, or after so many seconds: what is missing tells by itself."""
        if self.reclaiming.is_confined:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(self.policies.wait_synced(), self.requests.wait_known())

    def _flavor(self, name: str) -> ResourceFlavor | None:
        return self.reclaiming.reflectors.flavors.get("", name)


class _Nobody:
    """An Announcer for one who only looks."""

    def record(
        self, about: ObjectReference, reason: str, message: str, *, action: str = "", warning: bool = False
    ) -> None:
        """Nothing is told."""


_NOBODY = _Nobody()
