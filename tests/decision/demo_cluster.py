"""The cluster of the demo in virtual time: the sandbox's own controllers, and what the scaler and KEDA do to it.

| part                                                         | is                                                  |
|--------------------------------------------------------------|-----------------------------------------------------|
| Kueue, Jobs, RayClusters, kubelets, GPUs                     | the sandbox's, on a SimClient                       |
| what KEDA does with an answer                                | the sandbox's `keda.rules`, at every poll           |
| what is done to the Workload of a ScalableWorkload           | `suspension.transitions`                            |
| the plan that takes workloads for a gang                     | the victims that the act expects, once all are idle |
| the AdmissionCheck of the third act, and the node that comes | when quota is reserved, and after the act's delays  |

The last two are no more than that, so that the same happens whatever plans and checks are made of. Of the others, none
has changed since the week was recorded but Kueue's scheduler, in how it finds Workloads that are alike.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
from loops_builders import MemoryCluster, stamp
from scaler_sandbox.actions import Delete
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has, make, with_conditions
from scaler_sandbox.controller import soonest
from scaler_sandbox.fleet import Fleet, FleetConfig, Machine
from scaler_sandbox.keda.rules import Effect, Poll, effect_of, replicas_wanted
from scaler_sandbox.keda.scaledobjects import ScaledObjectTimes, read_pause_annotations, read_scaled_object
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import Kubelets, KubeletTiming
from scaler_sandbox.kubelet.scheduler import is_holding, wanted_gpus
from scaler_sandbox.kueue import Kueue
from scaler_sandbox.operators import JobController, RayClusterOperator
from scaler_sandbox.sandbox import Sandbox, SandboxConfig
from scaler_sandbox.stories import cohort, provisioning
from sim.client import SimClient
from virtual_clock import VirtualClock

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import Pod, decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    POD,
    PROVISIONING_REQUEST,
    RAY_CLUSTER,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)
from scaler.suspension.transitions import SuspensionStep, next_step
from scaler.targets.target_state import Phase, state_of
from scaler.targets.workloads import SUSPENDED_ANNOTATION, WAKE_ANNOTATION

T = TypeVar("T")
Key = tuple[str, str]

STRETCH = 60
"""A second of the demo is a minute: its exporter collects twice a second, and here every 30 s, as a real one."""
STEP_SECONDS = 30.0
JOBS = (RAY_CLUSTER, JOB)
"""What holds GPUs."""
EXPECTED = {
    cohort.CohortStory.gang: cohort.EXPECTED,
    provisioning.ProvisioningStory.gang: provisioning.EXPECTED,
}
"""By gang, whose GPUs a plan takes for it."""

_FOLLOWED: Mapping[Resource, type[Any]] = {
    SCALED_OBJECT: ScaledObject,
    SCALABLE_WORKLOAD: ScalableWorkload,
    WORKLOAD: Workload,
    POD: Pod,
}
_APPLIED = {
    each.kind: each
    for each in (
        *(NAMESPACE, RESOURCE_FLAVOR, CLUSTER_QUEUE, LOCAL_QUEUE, RECLAIM_POLICY, ADMISSION_CHECK),
        *(RAY_CLUSTER, JOB, SCALABLE_WORKLOAD, SCALED_OBJECT),
    )
}
_GRANTED_FOR = timedelta(minutes=10)
_PATIENCE_SECONDS = 4 * 3600.0
_MOST_ROUNDS = 100
_WAKE_PENDING = frozenset({Phase.DEACTIVATED_BY_OTHER, Phase.RESUMING, Phase.SUSPENDING, Phase.NO_WORKLOAD})


def stretched(body: Json) -> Json:
    """The object with its seconds as minutes. What the demo itself has in minutes is not shortened there."""
    if body["kind"] != SCALED_OBJECT.kind:
        return body
    spec = body["spec"]
    triggers = [
        {**each, "metadata": {key: _longer(value) for key, value in each["metadata"].items()}}
        for each in spec["triggers"]
    ]
    return {**body, "spec": {**spec, "triggers": triggers, "cooldownPeriod": STRETCH * spec["cooldownPeriod"]}}


def _longer(value: str) -> str:
    return f"{STRETCH * int(value[:-1])}s" if value.endswith("s") and value[:-1].isdigit() else value


@dataclass
class DemoCluster:
    """Stands in for the `Sandbox` of the demo's stories. Nothing happens in it but in `settle` and `poll`."""

    clock: VirtualClock
    copies: MemoryCluster = field(default_factory=MemoryCluster)
    """What the evaluators see of it."""
    effects: Counter[Effect] = field(default_factory=Counter)
    """What KEDA has done, and how often."""

    condition = Sandbox.condition
    find = Sandbox.find
    all = Sandbox.all
    workload_of = Sandbox.workload_of

    def __post_init__(self) -> None:
        self.fleet = Fleet(FleetConfig(nodes={}, collect_seconds=STEP_SECONDS), clock=self.clock.monotonic)
        self._client = SimClient()
        fast, client = SandboxConfig.fast().kubelet, cast(Client, self._client)
        ends = {"*": STRETCH * fast.termination}
        timing = KubeletTiming(start_delay=STRETCH * fast.start_delay, heartbeat=timedelta(days=30), stuck=ends)
        self._controllers = (
            Kueue(client),
            JobController(client),
            RayClusterOperator(client),
            Kubelets(client, self.fleet, timing),
        )
        self._is_woken, self._due = True, None
        self._client.listen([*{each for one in self._controllers for each in one.watched}], self._wake)
        self._changed: set[Resource] = set()
        for resource in _FOLLOWED:
            self._client.listen([resource], partial(self._changed.add, resource))
        self._applied: dict[tuple[Resource, Key], Json] = {}
        self._state = self.copies.read()
        self._plans = 0
        self._asked_at: datetime | None = None

    # ----------------------------------------------------------------------------------------------- what a story does

    async def apply(self, manifest: Json | Iterable[Json]) -> None:
        for body in [manifest] if isinstance(manifest, dict) else manifest:
            resource = _APPLIED[body["kind"]]
            self._applied[resource, _key(body)] = body
            self._client.add(resource, stretched(body))

    async def patch(self, resource: Resource, namespace: str, name: str, body: Json) -> None:
        self._client.change(resource, namespace, name, body)

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """The object, and what it owns."""
        gone = self.find(resource, namespace, name)
        assert gone is not None
        self._client.remove(resource, namespace, name)
        for kind in (WORKLOAD, POD):
            for body in self.all(kind, namespace):
                if any(owner["uid"] == gone["metadata"]["uid"] for owner in body["metadata"]["ownerReferences"]):
                    await self._client.apply(Delete(resource=kind, observed=body))

    async def wait_for(self, predicate: Callable[[], T], what: str = "it", *, within: float = 0.0) -> T:
        """The predicate's value once it is true. Stories are in a hurry that nobody is in here."""
        del within
        until = self.clock.monotonic() + _PATIENCE_SECONDS
        while not (value := predicate()):
            if self.clock.monotonic() > until:
                raise TimeoutError(f"waited for {what} in vain")
            await self.clock.sleep(STEP_SECONDS)
        return value

    # --------------------------------------------------------------------------------------------------- what people do

    def begin(self, nodes: Mapping[str, int]) -> None:
        for name, gpus in nodes.items():
            self._add_machine(name, gpus)

    def _add_machine(self, name: str, gpus: int) -> None:
        self.fleet.add(Machine(name=name, gpus=gpus))
        self._wake()

    async def end(self) -> None:
        """Everything that was applied is deleted, and then the machines go."""
        for resource, key in reversed(self._applied):
            if self.find(resource, *key) is not None:
                await self.delete(resource, *key)
        self._applied.clear()
        for request in self.all(PROVISIONING_REQUEST):
            self._client.remove(PROVISIONING_REQUEST, *_key(request))
        self._asked_at = None
        await self.wait_for(lambda: not self.all(POD), "the pods to end")
        for name in [*self.fleet.machines]:
            self.fleet.remove(name)
        self._wake()
        await self.wait_for(lambda: not self.all(NODE), "the nodes to go")

    async def again(self, resource: Resource, namespace: str, name: str) -> None:
        """Applies what was applied once."""
        await self.apply(self._applied[resource, (namespace, name)])

    def asleep(self) -> list[Key]:
        return [_key(each) for each in self.all(SCALABLE_WORKLOAD) if each["spec"]["replicas"] == 0]

    def request_wake(self, resource: Resource, key: Key, value: str) -> None:
        self._client.change(resource, *key, {"metadata": {"annotations": {WAKE_ANNOTATION: value}}})

    # ----------------------------------------------------------------------------------------------------- what follows

    def _wake(self) -> None:
        self._is_woken = True

    async def settle(self, answer: Callable[[Json], Answer], *, is_decided: bool = False) -> bool:
        """All that follows now; `is_decided`: from decisions, too, which are new.

        Returns whether the evaluators see anything new, ScaledObjects apart.
        """
        now = self._client.now = self.clock.now()
        is_due = self._due is not None and self._due <= now
        if not (is_decided or is_due or self._is_woken or self._changed):
            return False
        is_new = False
        for _ in range(_MOST_ROUNDS):
            self._let_through(now)
            while self._is_woken or (self._due is not None and self._due <= now):
                self._is_woken = False
                self._due = soonest([await each.tick(now) for each in self._controllers])
            is_new |= bool(self._changed - {SCALED_OBJECT})
            self._follow()
            self._carry_out_plan(now)
            for scalable in self.all(SCALABLE_WORKLOAD):
                self._take_step(scalable, answer, now)
            if not self._changed and not self._is_woken:
                self._client.history.clear()
                self._client.notes.clear()
                return is_new
        raise AssertionError("the cluster never comes to rest")

    def _follow(self) -> None:
        stores: Mapping[Resource, Any] = {
            SCALED_OBJECT: self.copies.scaled_objects,
            SCALABLE_WORKLOAD: self.copies.scalable_workloads,
            WORKLOAD: self.copies.workloads,
            POD: self.copies.pods,
        }
        for resource in [each for each in _FOLLOWED if each in self._changed]:
            store, bodies = stores[resource], {_key(body): body for body in self.all(resource)}
            for each in [each for each in store.items() if each.metadata.key not in bodies]:
                store.drop(each.metadata.name, each.metadata.namespace)
            for key, body in bodies.items():
                known = store.get(*key)
                if known is None or known.metadata.resource_version != body["metadata"]["resourceVersion"]:
                    store.put(decode(_FOLLOWED[resource], msgspec.json.encode(body)))
        self._changed.clear()

    # ------------------------------------------------------------------------------------------------------------- KEDA

    def poll(self, answer: Callable[[Json], Answer]) -> None:
        """KEDA asks about every ScaledObject, and scales. `answer` is what it gets for one."""
        for body in self.all(SCALED_OBJECT):
            spec, pauses, found = read_scaled_object(body), read_pause_annotations(body), answer(body)
            key, now = (spec.namespace, spec.target.name), self.clock.now()
            poll = Poll(is_active=isinstance(found, Active), is_error=isinstance(found, Unknown))
            target = self.find(SCALABLE_WORKLOAD, *key)
            assert target is not None
            replicas, times = target["spec"]["replicas"], ScaledObjectTimes.of(body)
            effect = effect_of(poll, spec, pauses, times, replicas=replicas, now=now)
            self.effects[effect] += 1
            if (wanted := replicas_wanted(effect, spec, pauses)) is not None:
                self._client.change(SCALABLE_WORKLOAD, *key, {"spec": {"replicas": wanted}})
            if effect in (Effect.ACTIVATE, Effect.REFRESH):
                self._client.change(SCALED_OBJECT, *_key(body), {"status": {"lastActiveTime": stamp(now)}}, "status")

    # ------------------------------------------------------------------------------------------------------- the scaler

    def _take_step(self, body: Json, answer: Callable[[Json], Answer], now: datetime) -> None:
        """What is to be done to the Workload, and what is written about it."""
        key, scaled = _key(body), self.find(SCALED_OBJECT, *_key(body))
        scalable = self.copies.scalable_workloads.get(*key)
        if scalable is None or scaled is None:
            return
        target, found = self._state.situation(scalable), answer(scaled)
        state, workload = state_of(target), target.workload
        status = {
            "phase": str(state.phase),
            "reason": str(found.reason),
            **({"workloadName": workload.name, "workloadUID": workload.uid} if workload else {}),
        }
        if any(body["status"].get(name) != value for name, value in status.items()):
            self._client.change(SCALABLE_WORKLOAD, *key, {"status": {**status, "message": found.message}}, "status")
        step = next_step(target, state)
        if workload is not None and step is not None:
            is_active = step in (SuspensionStep.ACTIVATE, SuspensionStep.RELEASE_OWNERSHIP)
            self._set_active(workload.namespace, workload.name, is_active, now)
            if step is SuspensionStep.DEACTIVATE:
                self._client.change(SCALABLE_WORKLOAD, *key, {"status": {"suspendedAt": stamp(now)}}, "status")
        if body["spec"]["replicas"] and state.phase not in _WAKE_PENDING and not isinstance(found, Inactive):
            for resource in (SCALABLE_WORKLOAD, SCALED_OBJECT):
                if WAKE_ANNOTATION in ((self.find(resource, *key) or {})["metadata"].get("annotations") or {}):
                    self._client.change(resource, *key, {"metadata": {"annotations": {WAKE_ANNOTATION: None}}})

    def _set_active(self, namespace: str, name: str, active: bool, now: datetime) -> None:
        cause = None if active else msgspec.json.encode({"at": stamp(now)}).decode()
        body = {"metadata": {"annotations": {SUSPENDED_ANNOTATION: cause}}, "spec": {"active": active}}
        self._client.change(WORKLOAD, namespace, name, body)

    # ---------------------------------------------------------------------------------------------- plans for the gangs

    def _gang(self) -> tuple[Json, frozenset[str]] | None:
        """The Workload of the gang that a plan is for, and whose GPUs it takes."""
        for name, victims in EXPECTED.items():
            if (found := self.workload_of(JOB, cohort.NAMESPACE, name)) is not None:
                return found, victims
        return None

    def _carry_out_plan(self, now: datetime) -> None:
        """Suspends what a plan takes once all of it is asked to be at 0; without a plan, makes one that is due."""
        granted = [each for each in self.all(SCALABLE_WORKLOAD) if each["status"].get("grant")]
        if granted and all(each["spec"]["replicas"] == 0 for each in granted):
            for each in granted:
                workload = self.workload_of(JOB, *_key(each))
                assert workload is not None
                self._set_active(*_key(workload), False, now)
                self._grant(each, None)
        for each in granted:
            if each["status"]["grant"]["expiresAt"] <= stamp(now) and each["spec"]["replicas"]:
                self._grant(each, None)
        gang = self._gang()
        if gang is not None and not granted and not has(gang[0], "QuotaReserved"):
            self._plan(*gang, now)

    def _plan(self, gang: Json, expected: frozenset[str], now: datetime) -> None:
        """Grants, where all are idle that are expected to be."""
        found = [self.find(SCALABLE_WORKLOAD, cohort.NAMESPACE, name) for name in sorted(expected)]
        victims = [each for each in found if each and each["status"].get("reason") == DecisionReason.IDLE_NOT_NEEDED]
        if len(victims) < len(expected):
            return
        self._plans += 1
        grant = {
            "plan": f"p{self._plans}",
            "workload": "/".join(_key(gang)),
            "workloadUID": gang["metadata"]["uid"],
            "victims": ["/".join(_key(each)) for each in victims],
            "grantedAt": stamp(now),
            "expiresAt": stamp(now + _GRANTED_FOR),
        }
        for each in victims:
            self._grant(each, grant)

    def _grant(self, scalable: Json, grant: Json | None) -> None:
        self._client.change(SCALABLE_WORKLOAD, *_key(scalable), {"status": {"grant": grant}}, "status")

    # ------------------------------------------------------------------------------------- the check of the third act

    def _let_through(self, now: datetime) -> None:
        """The check is active; what it holds back asks for a node, and may start once that and its GPUs are there."""
        for check in self.all(ADMISSION_CHECK):
            if not has(check, "Active"):
                self._set_condition(ADMISSION_CHECK, check, "Active", now)
        gang = self._gang()
        if gang is None or not has(gang[0], "QuotaReserved") or has(gang[0], "Admitted"):
            return
        entries = gang[0]["status"].get("admissionChecks") or []
        if not entries or entries[0]["state"] == "Ready":
            return
        if self._is_node_there(now) and self._free_gpus() >= _gpus_of(gang[0]):
            ready = [{**each, "state": "Ready", "lastTransitionTime": stamp(now)} for each in entries]
            self._client.change(WORKLOAD, *_key(gang[0]), {"status": {"admissionChecks": ready}}, "status")

    def _is_node_there(self, now: datetime) -> bool:
        """Whether it is. It is asked for when that is looked at first, and comes in its time."""
        [scenario] = provisioning.AUTOSCALER.scenarios
        assert scenario.shape is not None
        assert scenario.accepted_after is not None
        assert scenario.provisioned_after is not None
        if self._asked_at is None:
            self._asked_at = now
            pods = {"name": "main", "count": 4, "podTemplateRef": {"name": scenario.shape.name}}
            spec = {"provisioningClassName": scenario.provisioning_class, "podSets": [pods]}
            metadata = {"name": scenario.shape.name, "namespace": cohort.NAMESPACE}
            self._client.add(PROVISIONING_REQUEST, {"metadata": metadata, "spec": spec})
        if now < self._asked_at + STRETCH * (scenario.accepted_after + scenario.provisioned_after):
            return False
        if scenario.shape.name not in self.fleet.machines:
            self._add_machine(scenario.shape.name, scenario.shape.gpus)
            [request] = self.all(PROVISIONING_REQUEST)
            self._set_condition(PROVISIONING_REQUEST, request, "Provisioned", now)
        return True

    def _set_condition(self, resource: Resource, body: Json, kind: str, now: datetime) -> None:
        conditions = with_conditions(body["status"].get("conditions"), make(kind, "True", kind, "", now=now))
        self._client.change(resource, *_key(body), {"status": {"conditions": conditions}}, "status")

    def _free_gpus(self) -> int:
        pods = [pod for pod in self.all(POD) if is_holding(pod, pod["spec"].get("nodeName", ""))]
        return sum(each.gpus for each in self.fleet.machines.values()) - sum(map(wanted_gpus, pods))


def _gpus_of(workload: Json) -> int:
    return sum(each["count"] * wanted_gpus(each["template"]) for each in workload["spec"]["podSets"])


def _key(body: Json) -> Key:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]
