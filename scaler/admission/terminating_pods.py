"""Which pods are terminating, of which Workloads, and for which gang did these release quota?

Laws:

* A Workload has terminated when no pod of it is left in a phase other than Succeeded and Failed: pods of groups, and
  pods with a finalizer, stay for long as objects that hold nothing.
* Which Workloads released quota for a gang is in the API: in the grant or the ledger of a ScalableWorkload, or in the
  message of Kueue's condition on a preempted Workload. After a restart all are found again whose Workload exists, or
  whose pods name it or their job.
* For which gang a deleted Workload was preempted is not known after a restart. Every gang waits for GPU pods of such
  Workloads that were terminating when the process first observed them, until they are stuck.
* A victim whose Workload is deleted is still a donor: its pods hold their resources until they terminate.
* A pod with scheduling gates, or one deleted before it was bound to a node, holds nothing.
* Kueue does not wait for pods to terminate: neither for those of deactivated nor of preempted Workloads.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.admission.check import TerminatingPods
from scaler.admission.workload import preemptor_of
from scaler.idleness.pods import TERMINAL
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import Pod, condition
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.kueue_workloads import Workload
from scaler.placement.capacity import PodPlacement
from scaler.placement.node_watch import holds_no_node, requests_of
from scaler.targets.cluster_state import (
    JOB_NAME_LABELS,
    WORKLOAD_ANNOTATION,
    ClusterState,
    ObjectLister,
    WatchedObjects,
    job_key,
    scaled_by_key,
)
from scaler.targets.workloads import SUSPENDED_ANNOTATION, owner_key, suspended_annotation

STUCK_AFTER = timedelta(minutes=5)
"""The time after its grace period by which a pod has terminated, or is stuck: on a lost node, or by a finalizer."""

_JOB_LABELS = frozenset(JOB_NAME_LABELS.values())
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """A Workload whose quota one of our reclaim plans releases, or has released, for a gang."""

    name: str
    """The name of its ScalableWorkload."""
    plan: str
    has_begun: bool
    """Whether it is suspended."""
    left: TerminatingPods | None
    """Its pods that have not terminated since; None where there are none."""

    @property
    def is_done(self) -> bool:
        """Whether its GPUs are free, or may never be: the plan frees no more."""
        return self.has_begun and (self.left is None or self.left.is_stuck)


class TerminatingPodIndex:
    """Terminating pods, and the Workloads that wait for them."""

    def __init__(self, cluster: ClusterState, workloads: WatchedObjects[Workload], pods: WatchedObjects[Pod]) -> None:
        self._cluster = cluster
        self._terminating: dict[Key, Pod] = {}
        self._preempted: dict[str, set[Key]] = {}
        """Keys of Workloads, by uid of the one that they were preempted for."""
        self._vanished: dict[str, Workload] = {}
        """Victims whose Workload was deleted before their pods, as last observed, by uid."""
        self._first_seen_terminating: set[Key] = set()
        """Pods that were terminating when they were first observed."""
        pods.subscribe(self._pod_changed)
        workloads.subscribe(self._workload_changed)
        for pod in pods.items():
            self._pod_changed(Change(pod.metadata.key, None, pod))
        for workload in workloads.items():
            self._workload_changed(Change(workload.metadata.key, None, workload))

    def _pod_changed(self, change: Change[Pod]) -> None:
        key, pod = change.key, change.new
        if pod is None or pod.metadata.deletion_timestamp is None or holds_no_node(pod):
            self._terminating.pop(key, None)
            self._first_seen_terminating.discard(key)
            return
        self._terminating[key] = pod
        if change.old is None:
            self._first_seen_terminating.add(key)

    def _workload_changed(self, change: Change[Workload]) -> None:
        if change.old is not None and _is_victim(change.old) and not _is_same(change.old, change.new):
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

    def donors(self, now: datetime) -> dict[str, list[Donor]]:
        """The victims of the gangs' reclaim plans, by key of the gang."""
        self._vanished = {uid: each for uid, each in self._vanished.items() if self._left_behind(each)}
        found: dict[str, list[Donor]] = {}
        for scalable in self._cluster.scalable_workloads.items():
            gang, plan, is_granted = _recipient_of(scalable)
            donor = self._donor(scalable, plan, now, is_granted=is_granted) if gang else None
            if donor is not None:
                found.setdefault(gang, []).append(donor)
        return found

    def _donor(self, scalable: ScalableWorkload, plan: str, now: datetime, *, is_granted: bool) -> Donor | None:
        workload, observed = self._cluster.workload_of(scalable), self._cluster.situation(scalable).workload
        if workload is not None and observed is not None and not observed.active and observed.suspended_by_us:
            has_begun, left = True, self.left_of(workload, now, observed.suspended_at)
        else:
            left = self._left_of_vanished(scalable, now, is_there=workload is not None)
            has_begun = left is not None
        if not has_begun and (workload is None or not is_granted):
            return None
        return Donor(name="/".join(scalable.metadata.key), plan=plan, has_begun=has_begun, left=left)

    def _left_of_vanished(self, scalable: ScalableWorkload, now: datetime, *, is_there: bool) -> TerminatingPods | None:
        """Pods of the victim's deleted Workloads. `is_there`: another Workload exists, whose pods do not count."""
        gone = [each for each in self._vanished.values() if _is_of(each, scalable)]
        pods = {pod.metadata.key: pod for each in gone for pod in self._left_behind(each)}
        if not is_there:
            pods |= {pod.metadata.key: pod for pod in self._pods_named_by(scalable) if _may_hold(pod)}
        since = max((at for each in gone if (at := _suspended_at(each))), default=None)
        owner = "/".join(gone[0].metadata.key if gone else scalable.metadata.key)
        return _left(owner, list(pods.values()), since, now)

    def _left_behind(self, gone: Workload) -> list[Pod]:
        """Pods of a deleted Workload; where another one has its name, only terminating ones."""
        is_replaced = self._cluster.workloads.get(*gone.metadata.key) is not None
        pods = pods_of(gone, self._cluster.pods)
        return [pod for pod in pods if _may_hold(pod) and not (is_replaced and _is_kept(pod))]

    def _pods_named_by(self, scalable: ScalableWorkload) -> Sequence[Pod]:
        """Pods whose labels or annotations name what the ScalableWorkload scales."""
        namespace, job, workload = scalable.metadata.namespace, scalable.spec.job_ref, scalable.spec.workload_ref
        if job is not None:
            label = JOB_NAME_LABELS.get(job.kind)
            return self._cluster.pods.by_index("job", (namespace, label, job.name)) if label else ()
        return self._cluster.pods.by_index("workload", (namespace, workload.name)) if workload is not None else ()

    def terminating_preempted_for(self, uid: str, now: datetime) -> list[TerminatingPods]:
        """Pods left of Workloads that Kueue is known to have preempted for that one."""
        there = [self._cluster.workloads.get(*key) for key in sorted(self._preempted.get(uid, ()))]
        gone = [each for each in self._vanished.values() if preemptor_of(each) == uid]
        left = [self.left_of(each, now) for each in there if each is not None]
        left += [_left("/".join(each.metadata.key), self._left_behind(each), _evicted_at(each), now) for each in gone]
        return [each for each in left if each is not None]

    def of_unknown_preemptor(self, now: datetime) -> list[TerminatingPods]:
        """Pods of deleted Workloads that may have been preempted before this process observed for which gang."""
        known = {pod.metadata.key for each in self._vanished.values() for pod in self._left_behind(each)}
        pods = [self._terminating[key] for key in sorted(self._first_seen_terminating - known)]
        left = Counter(_owner(pod) for pod in pods if self._is_orphan(pod) and not _is_overdue(pod, now))
        return [TerminatingPods(owner="/".join(owner), pods=count) for owner, count in left.items()]

    def _is_orphan(self, pod: Pod) -> bool:
        """Whether it has GPUs and its Workload is deleted."""
        namespace, workloads = pod.metadata.namespace, self._cluster.workloads
        if not self._cluster.gpus.of_pod(pod.spec):
            return False
        if name := pod.metadata.annotations.get(WORKLOAD_ANNOTATION):
            return workloads.get(namespace, name) is None
        jobs = [(namespace, label, job) for label, job in pod.metadata.labels.items() if label in _JOB_LABELS]
        return bool(jobs) and not any(workloads.by_index("job", job) for job in jobs)

    def left_of(self, workload: Workload, now: datetime, since: datetime | None = None) -> TerminatingPods | None:
        """The Workload's pods that have not terminated; None where there are none."""
        left = [pod for pod in pods_of(workload, self._cluster.pods) if _may_hold(pod)]
        return _left("/".join(workload.metadata.key), left, since or _evicted_at(workload), now)

    # -------------------------------------------------------------------------------------------------- on which node

    def by_node(self) -> dict[str, list[TerminatingPods]]:
        """Terminating pods, by node and by Workload."""
        owners = Counter((pod.spec.node_name, _owner(pod)) for pod in self._terminating.values())
        found: dict[str, list[TerminatingPods]] = {}
        for (node, owner), pods in owners.items():
            found.setdefault(node, []).append(self._left_of_owner(owner, pods))
        return found

    def _left_of_owner(self, owner: Key, pods: int) -> TerminatingPods:
        workload = self._cluster.workloads.get(*owner)
        return TerminatingPods(
            owner="/".join(owner), pods=pods, since=_evicted_at(workload) if workload is not None else None
        )

    def stuck(self, now: datetime) -> list[PodPlacement]:
        """What stuck pods hold."""
        placements = []
        for pod in self._terminating.values():
            if _is_overdue(pod, now):
                try:
                    placements.append(PodPlacement("", pod.spec.node_name, 1, requests_of(pod.spec)))
                except ValueError:
                    continue  # Then free capacity is not known either, and no check becomes Ready.
        return placements


def pods_of(workload: Workload, pods: ObjectLister[Pod]) -> Sequence[Pod]:
    """The Workload's pods: those annotated with its name, or else those of the job that owns it."""
    owner, job = workload.metadata.controller_owner, job_key(workload)
    found = pods.by_index("workload", workload.metadata.key)
    if not found and owner:
        found = pods.by_index("owner", owner.uid)
    return found if found or not job else pods.by_index("job", job)


def _left(owner: str, pods: Sequence[Pod], since: datetime | None, now: datetime) -> TerminatingPods | None:
    """The owner's pods that are left; None where there are none."""
    overdue = sum(_is_overdue(pod, now) for pod in pods)
    return TerminatingPods(owner=owner, pods=len(pods), overdue=overdue, since=since) if pods else None


def _is_kept(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None


def _may_hold(pod: Pod) -> bool:
    """Whether it is on a node, or may be bound to one."""
    if pod.status.phase in TERMINAL:
        return False
    return bool(pod.spec.node_name) or (_is_kept(pod) and not pod.spec.scheduling_gates)


def _is_overdue(pod: Pod, now: datetime) -> bool:
    deadline = pod.metadata.deletion_timestamp
    return deadline is not None and now - deadline > STUCK_AFTER


def _is_victim(workload: Workload) -> bool:
    """Whether it was suspended by us, or preempted by Kueue."""
    is_ours = not workload.spec.active and SUSPENDED_ANNOTATION in workload.metadata.annotations
    return is_ours or bool(preemptor_of(workload))


def _is_same(old: Workload, new: Workload | None) -> bool:
    return new is not None and new.metadata.uid == old.metadata.uid


def _is_of(workload: Workload, scalable: ScalableWorkload) -> bool:
    """Whether it is what the ScalableWorkload scales."""
    return scaled_by_key(scalable) in (workload.metadata.key, owner_key(workload))


def _recipient_of(scalable: ScalableWorkload) -> tuple[str, str, bool]:
    """Gang and plan that its quota is released for, empty where there are none, and whether the plan is still active.

    The ledger's entry outlives the grant: a plan may be over before the pods of its victims have terminated.
    """
    grant, entry = scalable.status.grant, scalable.status.reallocation
    if grant is not None and grant.granted_at and grant.expires_at and grant.expires_at > grant.granted_at:
        return grant.workload, grant.plan, True
    if entry is not None and entry.releasing_at and not (entry.admitted_at or entry.ended_at):
        return entry.workload, entry.plan, False
    return "", "", False


def _suspended_at(workload: Workload) -> datetime | None:
    return cause.at if (cause := suspended_annotation(workload.metadata)) is not None else _evicted_at(workload)


def _evicted_at(workload: Workload) -> datetime | None:
    evicted = condition(workload.status.conditions, "Evicted")
    return evicted.last_transition_time if evicted is not None and evicted.status == "True" else None


def _owner(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.annotations.get(WORKLOAD_ANNOTATION) or f"pod {pod.metadata.name}"
