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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import compress
from typing import Any

import msgspec
import structlog

from scaler.attachment.jobs import JobWatch
from scaler.attachment.objects import TriggerTarget, policy_of, policy_resource
from scaler.attachment.plan import NOTED, Attached, Plan, PolicyStatus, plan_steps
from scaler.attachment.policy import AttachmentPolicy, next_end
from scaler.attachment.writes import Verb, Write
from scaler.clock import SYSTEM_CLOCK, Cancellable, Clock, Turns, every
from scaler.errors import KubeError
from scaler.kube.object_cache import Change
from scaler.kube.objects import idlegpu
from scaler.kube.objects.core import Json, condition_patch, is_true
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, IDLE_POLICY
from scaler.kube.reflector import Absent, Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.writes import WriteApi, is_written, write_all
from scaler.targets.cluster_state import ClusterState, seconds_since_heard
from scaler.targets.workloads import NO_TARGETS, NotifyTargets

log = structlog.get_logger(__name__)

_INTERVAL = timedelta(minutes=5)
_REST = timedelta(seconds=1)
_RETRY_S = 5.0
_WRITES_AT_ONCE = 16
VALID = "Valid"
_NO_KEDA = "the API serves no ScaledObjects: install KEDA, or set actuator: Direct in the policy"
_NO_ADDRESS = "keda.scalerAddresses of the settings is empty: a ScaledObject needs the address of this scaler"


class IdlePolicies:
    """Both kinds of policy, as watched. `hooks` are those of the settings."""

    def __init__(self, transport: KubeTransport, *, namespaces: Collection[str], hooks: Collection[str] = ()) -> None:
        self._hooks = hooks
        self.namespaced = Reflector(transport, IDLE_POLICY, idlegpu.IdlePolicy, namespaces=namespaces)
        self.of_cluster = None if namespaces else Reflector(transport, CLUSTER_IDLE_POLICY, idlegpu.IdlePolicy)
        """The ClusterIdlePolicies; None where only some namespaces are watched: they may not be read there."""

    @property
    def all(self) -> list[Reflector[idlegpu.IdlePolicy]]:
        return [self.namespaced, *([self.of_cluster] if self.of_cluster is not None else [])]

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call it for every change but those of a status, which only the leader writes."""

        def heard(change: Change[idlegpu.IdlePolicy]) -> None:
            old, new = change.old, change.new
            if old is None or new is None or old.metadata.generation != new.metadata.generation:
                changed()

        for each in self.all:
            each.subscribe(heard)

    def get(self, policy: AttachmentPolicy) -> idlegpu.IdlePolicy | None:
        """The object of the policy; None where it cannot be read, or is gone."""
        reflector = self.namespaced if policy.namespace else self.of_cluster
        return reflector.get(*policy.key) if reflector is not None else None

    def policies(self) -> list[AttachmentPolicy]:
        """All that exist. Of one in a version that cannot be read it is not known what it selects."""
        readable = [policy_of(each, hooks=self._hooks) for reflector in self.all for each in reflector.items()]
        unreadable = [
            AttachmentPolicy(namespace=key[0], name=key[1], problem=f"it cannot be read: {why}")
            for reflector in self.all
            for key, why in reflector.undecodable.items()
        ]
        return readable + unreadable


def _matters(found: ScaledObject | ScalableWorkload | Workload | Namespace) -> object:
    """What of the object a plan depends on."""
    metadata = found.metadata
    noted = tuple(metadata.annotations.get(each) for each in NOTED)
    always = metadata.generation, metadata.labels, noted, metadata.deletion_timestamp
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
    target: TriggerTarget | None
    """The target of triggers; None while it is not known by which address KEDA reaches this scaler."""
    notified_by: NotifyTargets = NO_TARGETS
    """The targets that notify owners."""
    max_age: timedelta = timedelta(minutes=2)
    """How long ago the API may have been heard of."""
    clock: Clock = SYSTEM_CLOCK
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    _timers: dict[str, Cancellable] = field(default_factory=dict, init=False, repr=False)
    """Timers by what they are for: the next exclusion that ends, and what is tried again."""

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
            tasks.create_task(every(_INTERVAL, self.tick, self.woken, name=self.name, rest=_REST, clock=self.clock))

    async def tick(self, now: datetime) -> None:
        """Raises: KubeError with the reason NotLeading."""
        if self._unlisted():
            self._wake_in("retry", 1.0)
            return
        policies = self.policies.policies()
        attached = Attached(self.cluster.scalable_workloads, self.cluster.scaled_objects)
        if not policies and not attached.ours():
            return
        await self.jobs.watch()
        if waits := self.jobs.unlisted(self.max_age):
            log.debug("attachment waits", because=waits)
            self._wake_in("retry", 1.0)
            return
        if self.jobs.has_unresolved:
            self._wake_in("retry", _RETRY_S)
        jobs = await self.jobs.jobs(with_models=any(each.asks_for_models for each in policies))
        made, turns = Plan(), Turns()
        target, why_none = (None, _NO_KEDA) if self._has_no_keda() else (self.target, _NO_ADDRESS)
        steps = plan_steps(jobs, policies, attached, target, now, notified_by=self.notified_by)
        for made in steps:  # noqa: B007 (the last one is whole)
            await turns.give_way()
        for status in made.statuses.values():
            status.problems += [
                *([why_none] if status.needs_keda and target is None else []),
                *self.jobs.problems(),
            ]
        await self._write(made.writes)
        for policy in policies:
            await self._write_status(policy, made.statuses[policy.key], now)
        end = next_end(policies, now)
        self._wake_in("end", None if end is None else (end - now).total_seconds())

    def _has_no_keda(self) -> bool:
        return isinstance(self.cluster.scaled_objects.state, Absent)

    def _unlisted(self) -> bool:
        """Whether anything is not known, or not as it is now: a new leader's copies may be of when it led before."""
        age_s = max(self.cluster.view_age_s(), *map(seconds_since_heard, self.policies.all))
        return age_s > self.max_age.total_seconds()

    def _wake_in(self, what: str, seconds: float | None) -> None:
        """The timer of this is set anew; None: it is woken for it no more."""
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()
        if seconds is not None:
            self._timers[what] = self.clock.call_later(seconds, self.wake)

    # ---- writing

    async def _write(self, writes: list[Write]) -> None:
        """Raises: KubeError with the reason NotLeading."""
        are_done = await write_all(writes, self._send, at_once=_WRITES_AT_ONCE)
        done = (f"{each.verb} {each.resource.kind}" for each in compress(writes, are_done))
        for verb, count in Counter(done).items():
            log.info("attachment written", writes=verb, objects=count)

    async def _send(self, write: Write) -> bool:
        """Whether it was written; what was not is planned again."""
        path = write.resource.path(write.namespace, "" if write.verb is Verb.CREATE else write.name)
        match write.verb:
            case Verb.CREATE:
                sent = self.api.create(path, write.body)
            case Verb.PATCH:
                sent = self.api.patch(path, write.body)
            case Verb.DELETE:
                sent = self.api.delete(path, uid=write.uid)
        if not await is_written(sent, log, "attachment not written; retried", write=str(write)):
            self._wake_in("retry", _RETRY_S)
            return False
        log.debug("attachment written", write=str(write))
        return True

    async def _write_status(self, policy: AttachmentPolicy, status: PolicyStatus, now: datetime) -> None:
        found = self.policies.get(policy)
        if found is not None and found.status == status.as_status(policy.problem, found.metadata.generation):
            return
        resource = policy_resource(policy)
        try:
            fresh: Json = msgspec.json.decode(await self.api.get(resource.path(*policy.key)))
            valid, reason = ("False", "NotValid") if policy.problem else ("True", "Valid")
            message = policy.problem or f"{status.attached} of {status.matched} matching jobs are attached"
            conditions = condition_patch(fresh, VALID, status=valid, reason=reason, message=message, now=now)
            generation = fresh["metadata"].get("generation", 0) if found is None else found.metadata.generation
            wanted = msgspec.to_builtins(status.as_status(policy.problem, generation))
            body = {"status": {**((conditions or {}).get("status") or {}), **wanted}}
            if any((fresh.get("status") or {}).get(name) != value for name, value in body["status"].items()):
                await self.api.patch(resource.path(policy.namespace, policy.name, "status"), body)
        except KubeError as error:
            if error.is_not_leading:
                raise
            log.debug("status of a policy not written; retried", policy=str(policy), error=str(error))
            self._wake_in("retry", _RETRY_S)
