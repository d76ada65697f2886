"""What does a Workload of the hub need next on the hub and on its workers? Pure: objects in, writes out.

One pass goes down this list and ends at the first line that applies, as Kueue's does:

| the hub's Workload                      | a copy                   | then                                         |
|-----------------------------------------|--------------------------|----------------------------------------------|
| finished, or without quota              |                          | all copies are removed                       |
| has quota                               | finished                 | it is finished, its Job gets that status     |
| evicted                                 | evicted                  | its Job gets the status of the remote one    |
| its check is Ready                      | evicted                  | check Retry                                  |
|                                         | has another spec         | that copy is removed, and the pass goes on   |
| its check is Ready                      | none is admitted         | check Retry; a lost worker is waited for     |
| evicted, has quota                      | admitted                 | that copy is deactivated                     |
| not evicted                             | admitted (the first one) | all others are removed; Job, check Ready     |
| check Pending, no cluster, others Ready | none is admitted         | copies on the nominated clusters, only there |

Two things follow from the order that people run into. A Workload that is evicted keeps its quota until a copy brings
the news that its Job is not active, and with an external dispatcher there is no copy unless somebody nominates. And a
copy on a cluster that has left the MultiKueueConfig is in no line: it runs on.

Source: Kueue, pkg/controller/admissionchecks/multikueue/workload.go, reconcileGroup.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scaler.kube.objects.resources import JOB, WORKLOAD
from scaler_sandbox.actions import Action, Create, RecordEvent, status_patch
from scaler_sandbox.conditions import condition, has, message_of, timestamp
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import workload_status
from scaler_sandbox.kueue.jobs import JobOutcome
from scaler_sandbox.kueue.nominations import NOMINATED, Dispatcher, HubConfig
from scaler_sandbox.kueue.workload_status import PENDING, READY, REJECTED, RETRY
from scaler_sandbox.multikueue.copies import (
    NOTHING,
    RemoteCopy,
    copied_job,
    copied_workload,
    is_of,
    is_out_of_sync,
    synced,
)

HUB = ""
"""The hub, in place of a cluster's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadGroup:
    """A Workload of the hub with its copies."""

    workload: Json
    check: str
    """Name of MultiKueue's AdmissionCheck."""
    job: Json | None
    copies: Mapping[str, RemoteCopy]
    """The copies by connected cluster of the MultiKueueConfig, in its order."""
    lost: Mapping[str, datetime] = field(default_factory=dict)
    """The other clusters of the MultiKueueConfig, and since when they are not connected."""

    @property
    def entry(self) -> Json:
        """What the Workload says of the check."""
        return next(each for each in self.workload["status"]["admissionChecks"] if each["name"] == self.check)

    @property
    def cluster(self) -> str:
        return str(self.workload["status"].get("clusterName") or "")

    def first(self, kind: str) -> str:
        """The cluster whose copy got that condition first; empty where none has it."""
        having = {
            name: str((condition(each.workload, kind) or {})["lastTransitionTime"])
            for name, each in self.copies.items()
            if each.workload is not None and has(each.workload, kind)
        }
        return min(having, key=lambda name: having[name], default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one look comes to."""

    writes: tuple[tuple[str, Action], ...] = ()
    """The writes with the cluster that each is for, in order."""
    again: timedelta | None = None
    """When to look again even if nothing changes."""
    error: str = ""
    """Why it is to be tried again."""


def reconcile(group: WorkloadGroup, config: HubConfig, *, now: datetime) -> Pass:
    """What is due."""
    workload = group.workload
    if has(workload, "Finished") or not has(workload, "QuotaReserved"):
        again = config.worker_lost if group.lost else None
        return Pass(writes=_removed(group, group.copies, config), again=again)
    return _finish(group, config, now) or _follow_eviction(group, config, now) or _dispatch(group, config, now)


def _removed(group: WorkloadGroup, clusters: Iterable[str], config: HubConfig) -> tuple[tuple[str, Action], ...]:
    return tuple((name, action) for name in clusters for action in group.copies[name].removal(config.origin))


def _on_hub(*actions: Action | None) -> tuple[tuple[str, Action], ...]:
    return tuple((HUB, action) for action in actions if action is not None)


# --------------------------------------------------------------------------------------------------- ends and evictions


def _finish(group: WorkloadGroup, config: HubConfig, now: datetime) -> Pass | None:
    cluster = group.first("Finished")
    copy = group.copies[cluster].workload if cluster else None
    if copy is None:
        return None
    ended = condition(copy, "Finished") or {}
    if ended["reason"] == "OutOfSync":
        if group.entry["state"] != READY:
            return Pass()
        message = f'Remote workload on worker cluster "{cluster}" is out of sync with its user job'
        return _answered(group, RETRY, f"{message}, resetting for re-dispatch", now=now)
    synchronized = _sync(group, cluster, config, now=now)
    outcome = JobOutcome(reason=ended["reason"], message=ended["message"])
    finished = status_patch(WORKLOAD, group.workload, workload_status.finished(group.workload, outcome, now=now))
    return replace(synchronized, writes=synchronized.writes + _on_hub(finished), again=None)


def _follow_eviction(group: WorkloadGroup, config: HubConfig, now: datetime) -> Pass | None:
    cluster = group.first("Evicted")
    if not cluster:
        return None
    if has(group.workload, "Evicted"):
        return _sync(group, cluster, config, now=now)
    if group.entry["state"] != READY:
        return None
    message = f'Workload evicted on worker cluster: "{group.cluster}", resetting for re-admission. Previously: "Ready"'
    return Pass(writes=_on_hub(_entry(group, RETRY, message, now=now)))


def _sync(group: WorkloadGroup, cluster: str, config: HubConfig, *, now: datetime) -> Pass:
    """The Job on the worker is made where it is missing; otherwise the hub's gets its status."""
    remote = group.copies[cluster].job
    if group.job is None:
        return Pass(error="the Job does not exist on the hub")
    if remote is None:
        body = copied_job(group.job, group.workload["metadata"]["name"], config.origin)
        return Pass(writes=((cluster, Create(resource=JOB, body=body)),))
    if not is_of(remote, config.origin):
        return Pass(error=f"the Job on {cluster} is not of this hub")
    actions, waits = synced(group.job, remote, now=now)
    return Pass(writes=_on_hub(*actions), again=config.deferral if waits else None)


# ---------------------------------------------------------------------------------------------------------- dispatching


def _dispatch(group: WorkloadGroup, config: HubConfig, now: datetime) -> Pass:
    outdated = [
        name
        for name, each in group.copies.items()
        if each.workload is not None and is_out_of_sync(group.workload, each.workload)
    ]
    writes = _removed(group, outdated, config)
    rest = replace(group, copies={n: NOTHING if n in outdated else each for n, each in group.copies.items()})
    admitted = rest.first("Admitted")
    if admitted:
        following = _converge(rest, admitted, config, now=now)
    elif rest.entry["state"] == READY:
        following = _lose(rest, config, now=now)
    else:
        following = _nominate(rest, config)
    return replace(following, writes=writes + following.writes)


def _lose(group: WorkloadGroup, config: HubConfig, *, now: datetime) -> Pass:
    """The Workload is admitted by nobody any more: evicted, though not before a lost worker has had its time."""
    lost_since = group.lost.get(group.cluster)
    if lost_since is None:
        return _answered(group, RETRY, "Admitting remote no longer exists", now=now)
    left = lost_since + config.worker_lost - now
    return Pass(again=left) if left > timedelta(0) else _answered(group, RETRY, "Admitting remote lost", now=now)


def _converge(group: WorkloadGroup, cluster: str, config: HubConfig, *, now: datetime) -> Pass:
    """The first admission wins: nothing stays on other clusters, and the Job goes to this one."""
    writes = _removed(group, (name for name in group.copies if name != cluster), config)
    copy = group.copies[cluster].workload
    if has(group.workload, "Evicted") and copy is not None:
        status = workload_status.evicted_on_manager(copy, message_of(group.workload, "Evicted"), now=now)
        patch = status_patch(WORKLOAD, copy, status)
        return Pass(writes=writes + (((cluster, patch),) if patch else ()))
    synchronized = _sync(group, cluster, config, now=now)
    if synchronized.error or group.entry["state"] in (RETRY, REJECTED):
        return replace(synchronized, writes=writes + synchronized.writes)
    if group.cluster not in ("", cluster):
        why = f'attempting to change immutable ClusterName from "{group.cluster}" to "{cluster}"'
        return replace(synchronized, writes=writes + synchronized.writes, error=why)
    admitted = _on_hub(_admitted(group, cluster, now=now))
    return replace(synchronized, writes=writes + synchronized.writes + admitted)


def _admitted(group: WorkloadGroup, cluster: str, *, now: datetime) -> Action | None:
    message = f'The workload was admitted on "{cluster}"'
    status = _with_entry(group, READY, message, now=now) | {"clusterName": cluster}
    if status.get(NOMINATED):
        status.pop(NOMINATED)
    return status_patch(WORKLOAD, group.workload, status, RecordEvent(reason="MultiKueue", message=message))


def _nominate(group: WorkloadGroup, config: HubConfig) -> Pass:
    """A copy on each of the nominated clusters, and nowhere else."""
    others = [each for each in group.workload["status"]["admissionChecks"] if each["name"] != group.check]
    if group.entry["state"] != PENDING or group.cluster or any(each["state"] != READY for each in others):
        return Pass()
    nominated = list(group.workload["status"].get(NOMINATED) or ())
    writes: tuple[tuple[str, Action], ...] = ()
    if config.dispatcher is Dispatcher.ALL_AT_ONCE and set(nominated) != set(group.copies):
        nominated = sorted(group.copies)
        status = {**group.workload["status"], NOMINATED: nominated}
        writes = _on_hub(status_patch(WORKLOAD, group.workload, status))
    body = copied_workload(group.workload, config.origin)
    for name, copy in group.copies.items():
        if name not in nominated:
            writes += _removed(group, [name], config)
        elif copy.workload is None:
            writes += ((name, Create(resource=WORKLOAD, body=body)),)
    unknown = [name for name in nominated if name not in group.copies]
    return Pass(writes=writes, error=f"cluster {unknown[0]}: no remote client" if unknown else "")


# ---------------------------------------------------------------------------------------------------- the check's entry


def _answered(group: WorkloadGroup, state: str, message: str, *, now: datetime) -> Pass:
    return Pass(writes=_on_hub(answer(group, state, message, now=now)))


def answer(group: WorkloadGroup, state: str, message: str, *, now: datetime) -> Action | None:
    """The check's entry with another state, which it says where it comes from."""
    return _entry(group, state, f'{message}, Previously: "{group.entry["state"]}"', now=now)


def _entry(group: WorkloadGroup, state: str, message: str, *, now: datetime) -> Action | None:
    note = RecordEvent(reason="MultiKueue", message=message)
    return status_patch(WORKLOAD, group.workload, _with_entry(group, state, message, now=now), note)


def _with_entry(group: WorkloadGroup, state: str, message: str, *, now: datetime) -> Json:
    status = group.workload["status"]
    moved = {} if group.entry["state"] == state else {"lastTransitionTime": timestamp(now)}
    changed = {**group.entry, "state": state, "message": message, **moved}
    entries = [changed if each["name"] == group.check else each for each in status["admissionChecks"]]
    return {**status, "admissionChecks": entries}
