"""Kueue's MultiKueue on a hub: its clusters, its AdmissionChecks, and every Workload with one of these.

A Workload of the hub is looked at as soon as it changes; after changes on a worker and of what configures MultiKueue
only a second later. What failed is tried again, with pauses that double. Between two looks nothing is kept but what has
been seen: started anew, it looks at everything at once.

Left out: kinds other than Job, ClusterProfiles, the incremental dispatcher, preemption gates, elastic jobs.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import ClassVar

import structlog

from scaler.errors import KubeError
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    JOB,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    WORKLOAD,
    Resource,
)
from scaler_sandbox.actions import Action, status_patch
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has, make, with_conditions
from scaler_sandbox.controller import Controller, soonest
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.jobs import MULTIKUEUE
from scaler_sandbox.kueue.nominations import HubConfig, as_written
from scaler_sandbox.kueue.workload_status import REJECTED
from scaler_sandbox.multikueue.copies import RemoteCopy, is_of
from scaler_sandbox.multikueue.dispatching import HUB, Pass, WorkloadGroup, answer, reconcile
from scaler_sandbox.multikueue.workers import Workers

_log = structlog.get_logger(__name__)

Key = tuple[str, str]

_PASSES = 10
"""Passes over one Workload in a tick: its own writes bring it back at once, as watch events do."""
_FIRST_RETRY, _LONGEST_RETRY = timedelta(milliseconds=5), timedelta(seconds=1000)
"""Source: controller-runtime's default rate limiter."""


class MultiKueue(Controller):
    """Reads the hub and the workers; writes copies, their Jobs, and what the hub's objects say of them."""

    name: ClassVar[str] = "multikueue"
    watched: ClassVar[tuple[Resource, ...]] = (WORKLOAD, JOB, ADMISSION_CHECK, MULTIKUEUE_CONFIG, MULTIKUEUE_CLUSTER)

    def __init__(self, client: Client, workers: Workers, config: HubConfig | None = None) -> None:
        super().__init__(client)
        self._workers = workers
        self._config = config or HubConfig()
        self._queue = _Queue(self._config)
        self._present: dict[Key, WorkloadGroup] = {}
        """The Workloads as they were last seen: one that is gone leaves nothing to say what it had."""
        self._lost: dict[str, datetime] = {}
        self._collect_at: datetime | None = None

    async def run(self) -> None:
        self._workers.listen(self._wake.set)
        await super().run()

    async def tick(self, now: datetime) -> datetime | None:
        await self._follow_clusters(now)
        await self._follow_checks(now)
        self._notice(now)
        for key in self._queue.due(now):
            await self._handle(key, now)
        await self._collect(now)
        return soonest([self._queue.next, self._collect_at])

    # ----------------------------------------------------------------------------------------------------- the clusters

    async def _follow_clusters(self, now: datetime) -> None:
        clusters = self.client.all(MULTIKUEUE_CLUSTER)
        self._workers.follow(clusters)
        for cluster in clusters:
            name = cluster["metadata"]["name"]
            if self._workers.client(name) is not None:
                self._lost.pop(name, None)
                await self._say(MULTIKUEUE_CLUSTER, cluster, (True, "Active", "Connected"), now)
            else:
                self._lost.setdefault(name, now)
                await self._say(MULTIKUEUE_CLUSTER, cluster, (False, *self._workers.trouble(name)), now)

    async def _follow_checks(self, now: datetime) -> None:
        for check in self.client.all(ADMISSION_CHECK):
            if check["spec"]["controllerName"] == MULTIKUEUE:
                await self._say(ADMISSION_CHECK, check, self._state_of(check), now)

    def _state_of(self, check: Json) -> tuple[bool, str, str]:
        """Whether the AdmissionCheck is active, with reason and message."""
        names = self._clusters_of(check["metadata"]["name"])
        if names is None:
            return False, "BadConfig", "Cannot load the AdmissionChecks parameters: its MultiKueueConfig does not exist"
        found = {name: self.client.find(MULTIKUEUE_CLUSTER, "", name) for name in names}
        missing = [name for name, each in found.items() if each is None]
        inactive = [name for name, each in found.items() if each is not None and not has(each, "Active")]
        parts = [("Missing clusters", missing), ("Inactive clusters", inactive)]
        message = ", ".join(f"{what}: [{' '.join(each)}]" for what, each in parts if each)
        if not message:
            return True, "Active", "The admission check is active"
        is_usable = len(missing) + len(inactive) < len(names)
        return is_usable, "SomeActiveClusters" if is_usable else "NoUsableClusters", message

    async def _say(self, resource: Resource, body: Json, state: tuple[bool, str, str], now: datetime) -> None:
        """Writes the condition Active: whether, reason and message."""
        is_active, reason, message = state
        status = body.get("status") or {}
        active = make("Active", "True" if is_active else "False", reason, message, now=now)
        conditions = with_conditions(status.get("conditions"), active)
        patch = status_patch(resource, body, {**status, "conditions": conditions})
        await self.act([patch] if patch else [])

    def _clusters_of(self, check: str) -> list[str] | None:
        """The clusters of the check's MultiKueueConfig; None where there is none."""
        body = self.client.find(ADMISSION_CHECK, "", check)
        parameters = (body["spec"].get("parameters") or {}) if body else {}
        config = self.client.find(MULTIKUEUE_CONFIG, "", parameters.get("name", ""))
        return list(config["spec"]["clusters"]) if config else None

    # ---------------------------------------------------------------------------------------------------- the Workloads

    def _notice(self, now: datetime) -> None:
        """Queues what has changed."""
        groups = {_key(each.workload): each for each in self._groups()}
        for key, group in groups.items():
            self._queue.notice(key, _revision(group.workload), self._elsewhere(group), now)
        for key in self._present.keys() - groups.keys():
            self._queue.add(key, now)
        self._present |= groups

    def _groups(self) -> Iterator[WorkloadGroup]:
        for workload in self.client.all(WORKLOAD):
            group = self._group(workload)
            if group is not None:
                yield group

    def _group(self, workload: Json) -> WorkloadGroup | None:
        """The Workload with its copies; None for one that MultiKueue has nothing to do with."""
        check = next((each["name"] for each in _entries(workload) if self._is_ours(each)), "")
        if not check:
            return None
        namespace, name = _key(workload)
        clusters = self._clusters_of(check) or []
        connected = {each: client for each in clusters if (client := self._workers.client(each)) is not None}
        owner: Json = next(iter(workload["metadata"].get("ownerReferences") or ()), {})
        job = owner.get("name", "")
        return WorkloadGroup(
            workload=workload,
            check=check,
            job=self.client.find(JOB, namespace, job) if owner.get("kind") == JOB.kind else None,
            copies={
                each: RemoteCopy(workload=client.find(WORKLOAD, namespace, name), job=client.find(JOB, namespace, job))
                for each, client in connected.items()
            },
            lost={each: self._lost[each] for each in clusters if each in self._lost},
        )

    def _is_ours(self, entry: Json) -> bool:
        check = self.client.find(ADMISSION_CHECK, "", entry["name"])
        return check is not None and check["spec"]["controllerName"] == MULTIKUEUE

    def _elsewhere(self, group: WorkloadGroup) -> object:
        """What is looked at a second after it has changed."""
        copies = {name: (_revision(each.workload), _revision(each.job)) for name, each in group.copies.items()}
        return tuple(copies.items()), tuple(self._clusters_of(group.check) or ()), tuple(group.lost)

    async def _handle(self, key: Key, now: datetime) -> None:
        for _ in range(_PASSES):
            workload = self.client.find(WORKLOAD, *key)
            if workload is None:
                return await self._forget(key, now)
            group = self._group(workload)
            if group is None or group.entry["state"] == REJECTED:
                self._present.pop(key, None)
                return self._queue.forget(key)
            done = self._pass(group, now)
            failure = await self._carry_out(done.writes) or done.error
            self._queue.settle(key, now, failure=failure, again=done.again)
            latest = self.client.find(WORKLOAD, *key)
            self._queue.saw(key, _revision(latest))
            if failure or latest is None or _revision(latest) == _revision(workload):
                return None
        return None

    def _pass(self, group: WorkloadGroup, now: datetime) -> Pass:
        why = _refusal(group)
        if why:
            action = answer(group, REJECTED, why, now=now)
            return Pass(writes=((HUB, action),) if action else ())
        if self._clusters_of(group.check) is None:
            return Pass(error=f"the MultiKueueConfig of AdmissionCheck {group.check} does not exist")
        return reconcile(group, self._config, now=now)

    async def _forget(self, key: Key, now: datetime) -> None:
        """A Workload that is gone takes its copies with it. Where a worker is not connected, collection does it."""
        before = self._present.get(key)
        workload = before.workload if before is not None else None
        group = self._group(workload) if workload is not None else None
        writes = group.copies.items() if group is not None else ()
        removals = [(name, action) for name, copy in writes for action in copy.removal(self._config.origin)]
        failure = await self._carry_out(removals)
        self._queue.settle(key, now, failure=failure, again=None)
        if not failure:
            self._present.pop(key, None)
            self._queue.forget(key)

    # ------------------------------------------------------------------------------------------------------- the writes

    async def _carry_out(self, writes: Iterable[tuple[str, Action]]) -> str:
        """Does them in order, up to one that fails. Returns why it did."""
        for cluster, action in writes:
            client = self._workers.client(cluster) if cluster != HUB else self.client
            try:
                if client is None or not await client.apply(as_written(action, self._config)):
                    return f"outdated: {type(action).__name__} {action} on {cluster or 'the hub'}"
            except KubeError as error:
                _log.debug("SimulatedDispatchFailed", cluster=cluster, error=str(error))
                return str(error)
        return ""

    async def _collect(self, now: datetime) -> None:
        """Removes what this hub has made on workers for Workloads that it no longer has."""
        if self._collect_at is None:
            self._collect_at = now + self._config.collection
        if now < self._collect_at:
            return
        self._collect_at = now + self._config.collection
        for cluster in self.client.all(MULTIKUEUE_CLUSTER):
            name = cluster["metadata"]["name"]
            client = self._workers.client(name)
            for copy in client.all(WORKLOAD) if client is not None else ():
                if is_of(copy, self._config.origin) and self.client.find(WORKLOAD, *_key(copy)) is None:
                    await self._carry_out((name, action) for action in self._orphan(client, copy))

    def _orphan(self, client: Client | None, copy: Json) -> list[Action]:
        owner = next((each for each in copy["metadata"].get("ownerReferences") or () if each.get("controller")), None)
        job = client.find(JOB, _key(copy)[0], owner["name"]) if client is not None and owner else None
        return RemoteCopy(workload=copy, job=job).removal(self._config.origin)


class _Queue:
    """When each Workload is looked at next."""

    def __init__(self, config: HubConfig) -> None:
        self._config = config
        self._seen: dict[Key, tuple[object, object]] = {}
        self._at: dict[Key, datetime] = {}
        self._failures: dict[Key, int] = {}

    @property
    def next(self) -> datetime | None:
        return soonest(self._at.values())

    def due(self, now: datetime) -> list[Key]:
        """The keys whose time has come. They are no longer queued."""
        due = sorted(key for key, at in self._at.items() if at <= now)
        for key in due:
            del self._at[key]
        return due

    def notice(self, key: Key, here: object, elsewhere: object, now: datetime) -> None:
        """Queues a Workload that has changed: at once where that is on the hub."""
        seen = self._seen.get(key)
        self._seen[key] = here, elsewhere
        if seen is None or seen[0] != here:
            self.add(key, now + self._config.reaction)
        if seen is not None and seen[1] != elsewhere:
            self.add(key, now + self._config.batch)

    def add(self, key: Key, at: datetime) -> None:
        self._at[key] = min(at, self._at.get(key, at))

    def saw(self, key: Key, here: object) -> None:
        """The Workload was looked at as it is now, after the writes of that look."""
        if key in self._seen:
            self._seen[key] = here, self._seen[key][1]

    def settle(self, key: Key, now: datetime, *, failure: str, again: timedelta | None) -> None:
        """What a look has come to."""
        if failure:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self.add(key, now + min(_FIRST_RETRY * 2 ** min(failures - 1, 30), _LONGEST_RETRY))
            return
        self._failures.pop(key, None)
        if again is not None:
            self.add(key, now + again)

    def forget(self, key: Key) -> None:
        for kept in (self._seen, self._at, self._failures):
            kept.pop(key, None)


def _refusal(group: WorkloadGroup) -> str:
    """Why the Workload can never run on a worker; empty where it can."""
    owner = next(iter(group.workload["metadata"].get("ownerReferences") or ()), None)
    if owner is None:
        return "No multikueue adapter found"
    if owner["kind"] != JOB.kind:
        return f'No multikueue adapter found for owner kind "{owner["apiVersion"]}, Kind={owner["kind"]}"'
    managed_by = group.job["spec"].get("managedBy", "") if group.job is not None else MULTIKUEUE
    if managed_by != MULTIKUEUE:
        return f'The owner is not managed by Kueue: Expecting spec.managedBy to be "{MULTIKUEUE}" not "{managed_by}"'
    return ""


def _entries(workload: Json) -> list[Json]:
    return list((workload.get("status") or {}).get("admissionChecks") or ())


def _key(body: Json) -> Key:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _revision(body: Json | None) -> object:
    return (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) if body is not None else None
