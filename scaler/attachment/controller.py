"""Attaches jobs as IdlePolicies say, and writes how each policy stands. Leader only.

Laws:

* Nothing is decided on a part of the objects: before policies, jobs, ScalableWorkloads and ScaledObjects are all listed
  nothing is attached, and nothing is detached.
* Level-triggered: what failed is planned again at the next tick, from the objects as they are then.
* A write is one object's; what KEDA does about a ScaledObject is awaited, not assumed.
* While nothing changes nothing is written.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog

from scaler.attachment.jobs import JobWatch
from scaler.attachment.objects import TriggerTarget, policy_of, policy_resource
from scaler.attachment.plan import Attached, Plan, Standing, Verb, Write, plan_steps
from scaler.attachment.policy import IdlePolicy, PolicyKey, next_end
from scaler.clock import SYSTEM_CLOCK, Cancellable, Clock, Turns, every
from scaler.decision.cluster_state import ClusterState, seconds_since_heard
from scaler.errors import KubeError
from scaler.kube.object_cache import Change
from scaler.kube.objects import idlegpu
from scaler.kube.objects.core import Json, condition_patch, is_true
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, IDLE_POLICY
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.suspension.leader_api import NOT_LEADING, WriteApi

log = structlog.get_logger(__name__)

_INTERVAL = timedelta(minutes=5)
_REST = timedelta(seconds=1)
_WRITES_AT_ONCE = 16
_GONE, _CONFLICT = 404, 409
VALID = "Valid"
_NO_ADDRESS = "keda.scalerAddresses of the settings is empty: KEDA could not be told where this scaler is"


class IdlePolicies:
    """Both kinds of policy, as watched. `changed` is called for every change."""

    def __init__(
        self, transport: KubeTransport, *, namespaces: Collection[str], changed: Callable[[], None] = lambda: None
    ) -> None:
        self.namespaced = Reflector(transport, IDLE_POLICY, idlegpu.IdlePolicy, namespaces=namespaces)
        self.of_cluster = None if namespaces else Reflector(transport, CLUSTER_IDLE_POLICY, idlegpu.IdlePolicy)
        """None where only some namespaces are watched: what belongs to the whole cluster may not be read there."""
        for each in self.all:
            each.subscribe(lambda _: changed())

    @property
    def all(self) -> list[Reflector[idlegpu.IdlePolicy]]:
        return [self.namespaced, *([self.of_cluster] if self.of_cluster is not None else [])]

    def items(self) -> list[idlegpu.IdlePolicy]:
        return [each for reflector in self.all for each in reflector.items()]

    def unreadable(self) -> list[IdlePolicy]:
        """Those that exist in a version that cannot be read: nothing is known of what they select."""
        found = [(key, why) for reflector in self.all for key, why in reflector.undecodable.items()]
        return [IdlePolicy(namespace=key[0], name=key[1], problem=f"it cannot be read: {why}") for key, why in found]

    def policies(self) -> list[IdlePolicy]:
        return [*map(policy_of, self.items()), *self.unreadable()]


def _matters(found: ScaledObject | ScalableWorkload | Workload | Namespace) -> object:
    """What of the object a plan depends on."""
    metadata = found.metadata
    always = metadata.generation, metadata.labels, metadata.annotations, metadata.deletion_timestamp
    match found:
        case ScalableWorkload():
            return always, found.status.phase, found.status.observed_generation
        case Workload():
            spec = found.spec
            return spec.queue_name, spec.priority_class_ref, is_true(found.status.conditions, "Finished")
    return always


@dataclass(kw_only=True)
class AttachmentController:
    name = "attachment"

    api: WriteApi
    cluster: ClusterState
    policies: IdlePolicies
    jobs: JobWatch
    namespaces: Reflector[Namespace] | None
    target: TriggerTarget | None
    """None while it is not known by which address KEDA reaches this scaler."""
    max_age: timedelta = timedelta(minutes=2)
    """How long ago the API may have been heard of."""
    clock: Clock = SYSTEM_CLOCK
    observe: Callable[[Plan], None] = lambda _: None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    _at_next_end: Cancellable | None = field(default=None, init=False, repr=False)
    """When the next exclusion ends."""
    _written: dict[PolicyKey, Json] = field(default_factory=dict, init=False, repr=False)
    """The status that each policy got last."""

    def wake(self) -> None:
        self.woken.set()

    def heard(self, change: Change[Any]) -> None:
        """KEDA writes into the status of each ScaledObject at every poll: that changes nothing here."""
        if change.old is None or change.new is None or _matters(change.old) != _matters(change.new):
            self.wake()

    async def run(self) -> None:
        """Attach and detach until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.jobs.run())
            for each in self.policies.all:
                tasks.create_task(each.run())
            tasks.create_task(every(_INTERVAL, self.tick, self.woken, name=self.name, rest=_REST, clock=self.clock))

    async def tick(self, now: datetime) -> None:
        """Raises: KubeError with the reason NotLeading."""
        if self._unlisted():
            self.clock.call_later(1.0, self.wake)
            return
        policies = self.policies.policies()
        if self.target is None:
            policies = [replace(each, problem=each.problem or _NO_ADDRESS) for each in policies]
        attached = Attached(self.cluster.scalable_workloads.items(), self.cluster.scaled_objects.items())
        if not policies and not attached.ours():
            return
        await self.jobs.follow()
        if waits := self.jobs.unlisted(self.max_age):
            log.debug("attachment waits", because=waits)
            self.clock.call_later(1.0, self.wake)
            return
        jobs = await self.jobs.jobs(self._labels_of)
        made, turns = Plan(), Turns()
        target = self.target or TriggerTarget(scaler_address="")
        for made in plan_steps(jobs, policies, attached, target, now):  # noqa: B007 (the last one is whole)
            await turns.give_way()
        for standing in made.standings.values():
            standing.problems += self.jobs.denied()
        await self._write(made.writes)
        await self._write_standings(policies, made, now)
        self.observe(made)
        if self._at_next_end is not None:
            self._at_next_end.cancel()
        end = next_end(policies, now)
        self._at_next_end = self.clock.call_later((end - now).total_seconds(), self.wake) if end is not None else None

    def _unlisted(self) -> bool:
        """Whether anything is not known, or not as it is now: a new leader's copies may be of when it led before."""
        stores: list[Reflector[Any]] = [*self.policies.all]
        if self.namespaces is not None:
            stores.append(self.namespaces)
        age_s = max(self.cluster.view_age_s(), *map(seconds_since_heard, stores))
        return age_s > self.max_age.total_seconds()

    def _labels_of(self, namespace: str) -> dict[str, str]:
        found = self.namespaces.get("", namespace) if self.namespaces is not None else None
        return found.metadata.labels if found is not None else {}

    # ---- writing

    async def _write(self, writes: list[Write]) -> None:
        """Raises: KubeError with the reason NotLeading."""
        turns = asyncio.Semaphore(_WRITES_AT_ONCE)

        async def one(write: Write) -> None:
            async with turns:
                await self._send(write)

        for ended in await asyncio.gather(*map(one, writes), return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        for verb, count in Counter(f"{each.verb} {each.resource.kind}" for each in writes).items():
            log.info("attachment written", writes=verb, objects=count)

    async def _send(self, write: Write) -> None:
        try:
            match write.verb:
                case Verb.CREATE:
                    await self.api.create(write.resource.path(write.namespace), write.body)
                case Verb.PATCH:
                    await self.api.patch(write.resource.path(write.namespace, write.name), write.body)
                case Verb.DELETE:
                    await self.api.delete(write.resource.path(write.namespace, write.name), uid=write.uid)
        except KubeError as error:
            if error.reason == NOT_LEADING:
                raise
            tell = log.debug if error.status in (_GONE, _CONFLICT) else log.warning
            tell("attachment not written; retried", write=str(write), error=str(error))
            self.clock.call_later(5.0, self.wake)
        else:
            log.debug("attachment written", write=str(write))

    async def _write_standings(self, policies: list[IdlePolicy], made: Plan, now: datetime) -> None:
        for policy, found in zip(policies, [*self.policies.items()], strict=False):
            standing = made.standings.get(policy.key, Standing())
            await self._write_standing(policy, found, standing, now)

    async def _write_standing(
        self, policy: IdlePolicy, found: idlegpu.IdlePolicy, standing: Standing, now: datetime
    ) -> None:
        counts = standing.as_status(policy.problem) | {"observedGeneration": found.metadata.generation}
        if self._written.get(policy.key) == counts:
            return
        resource = policy_resource(policy)
        try:
            fresh: Json = msgspec.json.decode(await self.api.get(resource.path(*policy.key)))
            status, reason = ("False", "NotValid") if policy.problem else ("True", "Valid")
            message = policy.problem or f"{standing.attached} of {standing.matched} matching jobs are attached"
            patch = condition_patch(fresh, VALID, status=status, reason=reason, message=message, now=now)
            body = {"status": {**((patch or {}).get("status") or {}), **counts}}
            if any(fresh.get("status", {}).get(name) != value for name, value in body["status"].items()):
                await self.api.patch(resource.path(policy.namespace, policy.name, "status"), body)
            self._written[policy.key] = counts
        except KubeError as error:
            if error.reason == NOT_LEADING:
                raise
            log.debug("status of a policy not written; retried", policy=str(policy), error=str(error))
            self.clock.call_later(5.0, self.wake)
