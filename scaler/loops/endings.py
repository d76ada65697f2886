"""Which pods still end, whose are they, and for which gang did they give up their quota?

Laws:

* A Workload is gone when no pod of it is left in a phase other than Succeeded and Failed: pods of groups, and pods with
  somebody's finalizer, stay for long as objects that hold nothing.
* Who gave to a gang stands in the API: in the grant or the ledger of a ScalableWorkload, or in Kueue's own words on a
  Workload that it has preempted. A restart forgets nobody whose Workload is there, or whose pods name it or their job.
* A victim whose Workload is deleted still gives: its pods end all the same, and hold what they have until then.
* A pod that waits for its gates, or that was told to end before it had a node, holds nothing, and gets nowhere.
* Kueue waits for nobody's pods to end: not for those of the deactivated, and not for those of the preempted.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from scaler.core.gate_values import Ending
from scaler.core.ledger import Stage
from scaler.core.placement import Seat
from scaler.core.pods import TERMINAL
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import Pod, ScalableWorkload, condition
from scaler.kube.store import KubeObject
from scaler.kueue.gangs import preemptor_of
from scaler.kueue.workloads import SUSPENDED_ANNOTATION, cause_of, owner_key
from scaler.loops.cluster import JOB_NAME_LABELS, WORKLOAD_ANNOTATION, Cluster, Store, job_key, subject_of
from scaler.loops.nodes_view import is_nowhere, requests_of

OVERDUE = timedelta(minutes=5)
"""After the end of its grace period a pod is expected to end within seconds. One that has not by then is stuck: on a
node that is lost, or by somebody's finalizer."""

Key = tuple[str, str]
T = TypeVar("T", bound=KubeObject)


class Copy(Store[T], Protocol[T]):
    """The objects of one kind, with word of every change. A Reflector is one."""

    def subscribe(self, callback: "Subscriber[T]") -> object: ...


class Subscriber(Protocol[T]):
    """Hears of a change. It must neither raise nor block."""

    def __call__(self, change: Change[T], /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Giver:
    """A Workload that gives, or gave, its quota to a gang by one of our plans."""

    name: str
    """Of its ScalableWorkload."""
    plan: str
    has_begun: bool
    """Whether it was told to end."""
    left: Ending | None
    """Its pods that have not ended, of those that it was told to end."""

    @property
    def is_done(self) -> bool:
        """Whether its GPUs are free, or may never be: nothing more comes of the plan."""
        return self.has_begun and (self.left is None or self.left.is_overdue)


@dataclass(frozen=True, slots=True)
class _Given:
    """What the status of a ScalableWorkload says of it."""

    gang: str
    plan: str
    is_granted: bool
    """Whether the plan still stands."""


class Endings:
    """Pods that end, and who has to."""

    def __init__(self, cluster: Cluster, workloads: Copy[Workload], pods: Copy[Pod]) -> None:
        self._cluster = cluster
        self._ending: dict[Key, Pod] = {}
        self._preempted: dict[str, set[Key]] = {}
        """Keys of Workloads, by uid of the one that they were preempted for."""
        self._vanished: dict[str, Workload] = {}
        """Victims whose Workload is gone before their pods are, as last seen, by uid."""
        pods.subscribe(lambda change: self._note(change.key, change.new))
        workloads.subscribe(self._workload_changed)
        for pod in pods.items():
            self._note(pod.metadata.key, pod)
        for workload in workloads.items():
            self._workload_changed(Change(workload.metadata.key, None, workload))

    def _note(self, key: Key, pod: Pod | None) -> None:
        if pod is None or pod.metadata.deletion_timestamp is None or is_nowhere(pod):
            self._ending.pop(key, None)
        else:
            self._ending[key] = pod

    def _workload_changed(self, change: Change[Workload]) -> None:
        if change.old is not None and _was_told(change.old) and not _is_same(change.old, change.new):
            self._vanished[change.old.metadata.uid] = change.old
        before = preemptor_of(change.old) if change.old is not None else ""
        after = preemptor_of(change.new) if change.new is not None else ""
        if before and before != after and before in self._preempted:
            self._preempted[before].discard(change.key)
            if not self._preempted[before]:
                del self._preempted[before]
        if after:
            self._preempted.setdefault(after, set()).add(change.key)

    # ------------------------------------------------------------------------------------------------ for which gang

    def givers(self, now: datetime) -> dict[str, list[Giver]]:
        """By key of the gang, those that our plans have taken for it, or are about to."""
        self._vanished = {uid: each for uid, each in self._vanished.items() if self._left_behind(each)}
        found: dict[str, list[Giver]] = {}
        for scalable in self._cluster.scalable_workloads.items():
            given = _given(scalable)
            giver = self._giver(scalable, given, now) if given is not None else None
            if given is not None and giver is not None:
                found.setdefault(given.gang, []).append(giver)
        return found

    def _giver(self, scalable: ScalableWorkload, given: "_Given", now: datetime) -> Giver | None:
        workload, observed = self._cluster.workload_of(scalable), self._cluster.situation(scalable).workload
        if workload is not None and observed is not None and not observed.active and observed.suspended_by_us:
            has_begun, left = True, self.left_of(workload, now, observed.suspended_at)
        else:
            left = self._left_of_vanished(scalable, now, is_there=workload is not None)
            has_begun = left is not None
        if not has_begun and (workload is None or not given.is_granted):
            return None
        return Giver(name="/".join(scalable.metadata.key), plan=given.plan, has_begun=has_begun, left=left)

    def _left_of_vanished(self, scalable: ScalableWorkload, now: datetime, *, is_there: bool) -> Ending | None:
        """Pods of the victim's Workloads that are gone. `is_there`: there is another one, whose pods do not count."""
        gone = [each for each in self._vanished.values() if _is_of(each, scalable)]
        pods = {pod.metadata.key: pod for each in gone for pod in self._left_behind(each)}
        if not is_there:
            pods |= {pod.metadata.key: pod for pod in self._pods_named_by(scalable) if _may_hold(pod)}
        since = max((at for each in gone if (at := _told_at(each))), default=None)
        owner = "/".join(gone[0].metadata.key if gone else scalable.metadata.key)
        return _ending(owner, list(pods.values()), since, now)

    def _left_behind(self, gone: Workload) -> list[Pod]:
        """Pods of a Workload that is gone; of one that has a successor only those that end."""
        is_followed = self._cluster.workloads.get(*gone.metadata.key) is not None
        pods = pods_of(gone, self._cluster.pods)
        return [pod for pod in pods if _may_hold(pod) and not (is_followed and _is_kept(pod))]

    def _pods_named_by(self, scalable: ScalableWorkload) -> Sequence[Pod]:
        """Pods that say themselves that they are of what the ScalableWorkload scales."""
        namespace, job, workload = scalable.metadata.namespace, scalable.spec.job_ref, scalable.spec.workload_ref
        if job is not None:
            label = JOB_NAME_LABELS.get(job.kind)
            return self._cluster.pods.by_index("job", (namespace, label, job.name)) if label else ()
        return self._cluster.pods.by_index("workload", (namespace, workload.name)) if workload is not None else ()

    def preempted_for(self, uid: str, now: datetime) -> list[Ending]:
        """What is left of Workloads that Kueue has preempted for that one."""
        there = [self._cluster.workloads.get(*key) for key in sorted(self._preempted.get(uid, ()))]
        gone = [each for each in self._vanished.values() if preemptor_of(each) == uid]
        left = [self.left_of(each, now) for each in there if each is not None]
        left += [_ending("/".join(each.metadata.key), self._left_behind(each), _evicted_at(each), now) for each in gone]
        return [each for each in left if each is not None]

    def left_of(self, workload: Workload, now: datetime, since: datetime | None = None) -> Ending | None:
        """The Workload's pods that have not ended; None where there are none."""
        left = [pod for pod in pods_of(workload, self._cluster.pods) if _may_hold(pod)]
        return _ending("/".join(workload.metadata.key), left, since or _evicted_at(workload), now)

    # -------------------------------------------------------------------------------------------------- on which node

    def on(self, nodes: Iterable[str]) -> list[Ending]:
        """Pods that end on these nodes, by the Workload that they are of; those with most of them first."""
        wanted = frozenset(nodes)
        owners = Counter(_owner(pod) for pod in self._ending.values() if pod.spec.node_name in wanted)
        found = [self._ending_of(owner, pods) for owner, pods in owners.items()]
        return sorted(found, key=lambda each: (-each.pods, each.owner))

    def _ending_of(self, owner: Key, pods: int) -> Ending:
        workload = self._cluster.workloads.get(*owner)
        return Ending(owner="/".join(owner), pods=pods, since=_evicted_at(workload) if workload is not None else None)

    def overdue(self, now: datetime) -> list[Seat]:
        """What pods hold that should have ended long ago."""
        seats = []
        for pod in self._ending.values():
            if _is_overdue(pod, now):
                try:
                    seats.append(Seat("", pod.spec.node_name, 1, requests_of(pod.spec)))
                except ValueError:
                    continue  # Then nobody knows what nodes have free, and nobody is let go.
        return seats


def pods_of(workload: Workload, pods: Store[Pod]) -> Sequence[Pod]:
    """The Workload's pods: those annotated with its name, or else those of the job that owns it."""
    owner, job = workload.metadata.controller_owner, job_key(workload)
    found = pods.by_index("workload", workload.metadata.key)
    if not found and owner:
        found = pods.by_index("owner", owner.uid)
    return found if found or not job else pods.by_index("job", job)


def _ending(owner: str, pods: Sequence[Pod], since: datetime | None, now: datetime) -> Ending | None:
    """None where there are no pods."""
    overdue = sum(_is_overdue(pod, now) for pod in pods)
    return Ending(owner=owner, pods=len(pods), overdue=overdue, since=since) if pods else None


def _is_kept(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None


def _may_hold(pod: Pod) -> bool:
    """Whether it is on a node, or may be put on one."""
    if pod.status.phase in TERMINAL:
        return False
    return bool(pod.spec.node_name) or (_is_kept(pod) and not pod.spec.scheduling_gates)


def _is_overdue(pod: Pod, now: datetime) -> bool:
    deadline = pod.metadata.deletion_timestamp
    return deadline is not None and now - deadline > OVERDUE


def _was_told(workload: Workload) -> bool:
    """Whether it was told to end, by us or by Kueue for another one."""
    is_ours = not workload.spec.active and SUSPENDED_ANNOTATION in workload.metadata.annotations
    return is_ours or bool(preemptor_of(workload))


def _is_same(old: Workload, new: Workload | None) -> bool:
    return new is not None and new.metadata.uid == old.metadata.uid


def _is_of(workload: Workload, scalable: ScalableWorkload) -> bool:
    """Whether it is what the ScalableWorkload scales."""
    return subject_of(scalable) in (workload.metadata.key, owner_key(workload))


def _given(scalable: ScalableWorkload) -> _Given | None:
    """To which gang it gives, and by which plan; None where it gives to none.

    The ledger's entry outlives the grant: a plan may be over while pods that it has told to end have not.
    """
    grant, entry = scalable.status.grant, scalable.status.reallocation
    if grant is not None and grant.granted_at and grant.expires_at and grant.expires_at > grant.granted_at:
        return _Given(grant.workload, grant.plan, is_granted=True)
    if entry is not None and entry.releasing_at and entry.stage in {Stage.RELEASING, Stage.AVAILABLE, Stage.RESERVED}:
        return _Given(entry.workload, entry.plan, is_granted=False)
    return None


def _told_at(workload: Workload) -> datetime | None:
    return cause.at if (cause := cause_of(workload)) is not None else _evicted_at(workload)


def _evicted_at(workload: Workload) -> datetime | None:
    evicted = condition(workload.status.conditions, "Evicted")
    return evicted.last_transition_time if evicted is not None and evicted.status == "True" else None


def _owner(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.annotations.get(WORKLOAD_ANNOTATION) or f"pod {pod.metadata.name}"
