"""Which Workloads have quota reserved, what do their pods need, and which pods may still be created?

Laws:

* Only observed state passes through here. What this process has written itself is observed at once (`LeaderApi`): a
  gang whose check became Ready a moment ago must not look as if it waited.
* Every Workload that has quota and whose pods may be created at any moment counts, with our check or without it, with
  GPUs or without: kube-scheduler places all of them on the same nodes.
* Unreadable is not nothing: while pods may be created whose demands cannot be read, of admitted and of evicted
  Workloads, free capacity is not known.
* A Workload that runs on another cluster (MultiKueue) needs no nodes here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import isfinite

from scaler.admission.evicted_reservations import RELEASE_DELAY, EvictedReservations
from scaler.admission.provisioning.requests import holds_quota
from scaler.admission.terminating_pods import pods_of
from scaler.admission.workload import PodDemands, is_ours, pod_demands_of, reserved_workload_of
from scaler.idleness.pods import TERMINAL
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import Pod, is_true
from scaler.kube.objects.kueue_queues import AdmissionCheck, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.reflector import Absent, Reflecting
from scaler.placement.capacity import PodPlacement
from scaler.placement.node_index import NodeDemand, excluding
from scaler.placement.node_watch import holds_no_node
from scaler.placement.requests import PlacementRequest
from scaler.quota.from_objects.pod_nodes import PODSET_LABEL, marked_pod_sets
from scaler.quota.model import MULTIKUEUE
from scaler.targets.cluster_state import ClusterState, ObjectLister, PerObjectCache, WatchedObjects


@dataclass(frozen=True, kw_only=True)
class AdmissionStores:
    """The stores that admission reads beside those of the ClusterState. Workloads and pods are the same as there."""

    workloads: WatchedObjects[Workload]
    pods: WatchedObjects[Pod]
    checks: WatchedObjects[AdmissionCheck]
    flavors: WatchedObjects[ResourceFlavor]
    nodes: WatchedObjects[Node]


class AdmissionWatch:
    """Subscribers are called when something has changed that a Workload may wait for."""

    def __init__(
        self,
        cluster: ClusterState,
        copies: AdmissionStores,
        *,
        afterwards: timedelta = RELEASE_DELAY,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`afterwards`: how long the places of an evicted gang stay reserved after its quota was released."""
        self._cluster = cluster
        self._clock = clock
        self._copies = copies
        self._subscribers: list[Callable[[], None]] = []
        self._holding: dict[str, Workload] = {}
        self._marked: dict[str, dict[str, tuple[Workload, frozenset[str]]]] = {}
        """Workloads with pods of which a node takes one, and their PodSets: by the pods' mark, and uid."""
        self._needs: PerObjectCache[Workload, PodDemands | str] = PerObjectCache()
        self._evicted_reservations = EvictedReservations(
            needs=self._made_needs, waiting=self._without_node, afterwards=afterwards
        )
        copies.workloads.subscribe(self._workload_changed)
        copies.pods.subscribe(self._pod_changed)
        copies.flavors.subscribe(self._flavor_changed)
        copies.checks.subscribe(lambda _: self._changed())
        copies.nodes.subscribe(self._node_changed)
        for workload in copies.workloads.items():
            self._workload_changed(Change(workload.metadata.key, None, workload))

    def subscribe(self, callback: Callable[[], None]) -> None:
        """The callback must neither raise nor block."""
        self._subscribers.append(callback)

    def _changed(self) -> None:
        for callback in self._subscribers:
            callback()

    # ------------------------------------------------------------------------------------------------------- watching

    def _workload_changed(self, change: Change[Workload]) -> None:
        before = self._holding.get("/".join(change.key))
        if change.old is not None:
            self._unfile(change.old)
        if change.new is not None:
            self._file(change.new)
        self._note_eviction(before, change)
        if _has_quota_or_checks(change.old) or _has_quota_or_checks(change.new):
            self._changed()

    def _note_eviction(self, before: Workload | None, change: Change[Workload]) -> None:
        """Keep the reservation of one evicted after it was released. `before` held quota; None if there was none."""
        after = self._holding.get("/".join(change.key))
        if after is not None and self._is_released(after):
            self._evicted_reservations.stays(after.metadata.uid)
        was_admitted = change.new is not None and is_true(change.new.status.conditions, "Admitted")
        if before is not None and (self._is_released(before) or was_admitted):
            is_same = after is not None and after.metadata.uid == before.metadata.uid
            if not (after is not None and is_same and self._is_released(after)) and not _is_finished(change.new):
                self._evicted_reservations.note(
                    before, self._unread(before) or self._unplaced_demands(before, self._placed(before))
                )
        elif change.old is None and change.new is not None and is_true(change.new.status.conditions, "Evicted"):
            self._evicted_reservations.note(change.new)

    def _file(self, workload: Workload) -> None:
        key = "/".join(workload.metadata.key)
        if holds_quota(workload):
            self._holding[key] = workload
            for mark, pod_sets in marked_pod_sets(workload).items():
                self._marked.setdefault(mark, {})[workload.metadata.uid] = workload, pod_sets

    def _unfile(self, workload: Workload) -> None:
        key = "/".join(workload.metadata.key)
        self._holding.pop(key, None)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if _place(change.old) != _place(change.new):
            self._changed()

    def _flavor_changed(self, _: Change[ResourceFlavor]) -> None:
        self._needs = PerObjectCache()
        self._changed()

    def _node_changed(self, change: Change[Node]) -> None:
        if _offer(change.old) != _offer(change.new):
            self._changed()

    # ---------------------------------------------------------------------------------------------------------- gangs

    @property
    def unlisted(self) -> str:
        """The kinds that were never listed; empty where all were."""
        copies = self._copies
        kinds: dict[str, ObjectLister[object]] = {
            "Workloads": copies.workloads,
            "Pods": copies.pods,
            "AdmissionChecks": copies.checks,
            "ResourceFlavors": copies.flavors,
            "Nodes": copies.nodes,
        }
        return ", ".join(
            name for name, each in kinds.items() if not isfinite(each.age) and not isinstance(each.state, Absent)
        )

    @property
    def unseen(self) -> str:
        """Why it is not known which Workloads have quota, or what released ones need; empty where it is."""
        state = self._copies.workloads.state
        if not isinstance(state, Reflecting):
            return f"Workloads are not watched: {state.message}"
        return self._unread_released() or self._evicted_reservations.unread(self._clock(), self.workload)

    def _unread_released(self) -> str:
        """Why it is not known what the pods of a released Workload need; empty where it is, of all."""
        for key, workload in self._holding.items():
            if not self._is_released(workload):
                continue
            if why := self._unread(workload):
                return f"{key} is released, and the demands of its pods cannot be read: {why}"
            if self.has_earlier_run(workload):
                return f"{key} runs again a moment after its eviction, and its pods may be those of its earlier run"
        return ""

    def has_earlier_run(self, workload: Workload) -> bool:
        """Whether it has quota again a moment after an eviction, and pods here that may not be seen to end yet."""
        is_recent = self._evicted_reservations.has_earlier_run(workload, self._clock())
        return is_recent and not self.runs_elsewhere(workload)

    def _unread(self, workload: Workload) -> str:
        """Why the demands of its pods without nodes are not known; empty where they are, or it has none."""
        needs = self.needs(workload)
        return needs if isinstance(needs, str) and self._may_make_pods(workload) else ""

    def _may_make_pods(self, workload: Workload) -> bool:
        """Whether it has pods here that are not on nodes, as far as that is known without its demands."""
        placed = self._placed(workload)
        is_short = any(placed[each.name] < each.count for each in workload.spec.pod_sets)
        return is_short and not self.runs_elsewhere(workload)

    def checks(self) -> list[AdmissionCheck]:
        """Ours: those with our controllerName."""
        found = [each for each in self._copies.checks.items() if is_ours(each)]
        return sorted(found, key=lambda check: check.metadata.name)

    def reserved(self) -> list[tuple[Workload, AdmissionCheck]]:
        """Every Workload that has quota, with each of our checks whose state it has."""
        ours = {check.metadata.name: check for check in self.checks()}
        return [
            (workload, ours[state.name])
            for workload in self._holding.values()
            for state in workload.status.admission_checks
            if state.name in ours
        ]

    def workload(self, key: str) -> Workload | None:
        """The Workload as it was last observed or written."""
        namespace, _, name = key.partition("/")
        return self._copies.workloads.get(namespace, name)

    def runs_elsewhere(self, workload: Workload) -> bool:
        entries = (self._copies.checks.get("", entry.name) for entry in workload.status.admission_checks)
        return any(check is not None and check.spec.controller_name == MULTIKUEUE for check in entries)

    async def forget_gone(self) -> None:
        """Drop what was made of Workloads that are not there any more."""
        await self._needs.forget_gone(self._copies.workloads)

    def needs(self, workload: Workload) -> PodDemands | str:
        """What all its pods need, or why that is not known."""
        found = self._needs.of(workload, self._made_needs)
        if isinstance(found, str) or not found.is_exclusive:
            return found
        demands = tuple(excluding(each, self._closed_to(workload, each)) for each in found.demands)
        return replace(found, demands=demands)

    def _closed_to(self, workload: Workload, demand: NodeDemand) -> set[str]:
        """Nodes with pods that these must not share a node with; not with its own terminating pods."""
        return {
            pod.spec.node_name
            for mark in demand.nodes.apart
            for uid, pod in self._pods_marked(mark)
            if uid != workload.metadata.uid or pod.metadata.deletion_timestamp is None
        }

    def _pods_marked(self, mark: str) -> Iterator[tuple[str, Pod]]:
        """Pods on nodes that have the mark, with the uids of their Workloads."""
        known = self._marked.get(mark, {})
        for uid, (workload, pod_sets) in list(known.items()):
            pods = [pod for pod in pods_of(workload, self._cluster.pods) if not holds_no_node(pod)]
            if not pods and "/".join(workload.metadata.key) not in self._holding:
                del known[uid]
            for pod in pods:
                if pod.metadata.labels.get(PODSET_LABEL) in (None, *pod_sets):
                    yield uid, pod

    def _made_needs(self, workload: Workload) -> PodDemands | str:
        try:
            return pod_demands_of(workload, lambda name: self._copies.flavors.get("", name))
        except ValueError as error:
            return str(error)

    def bound(self, workload: Workload) -> Counter[str]:
        """How many of its pods are on nodes, by PodSet, without terminating ones."""
        return self._counted(workload, lambda pod: not holds_no_node(pod) and pod.metadata.deletion_timestamp is None)

    def _placed(self, workload: Workload) -> Counter[str]:
        """How many of its pods are on nodes, by PodSet, with terminating ones."""
        return self._counted(workload, lambda pod: not holds_no_node(pod))

    def _without_node(self, workload: Workload) -> Counter[str]:
        """How many of its pods wait for a node, by PodSet."""
        return self._counted(workload, _waits_for_a_node)

    def _counted(self, workload: Workload, counts: Callable[[Pod], bool]) -> Counter[str]:
        found: Counter[str] = Counter()
        for pod in pods_of(workload, self._cluster.pods):
            if counts(pod):
                found[pod.metadata.labels.get(PODSET_LABEL, "")] += 1
        nameless = found.pop("", 0)
        for pod_set in workload.spec.pod_sets if nameless else ():
            taken = min(nameless, max(0, pod_set.count - found[pod_set.name]))
            found[pod_set.name], nameless = found[pod_set.name] + taken, nameless - taken
        return found

    def released(self) -> Iterator[PlacementRequest]:
        """Workloads whose pods may be created at any moment and are not all on nodes; evicted ones too."""
        for key, workload in self._holding.items():
            demands = self._unplaced_demands(workload, self.bound(workload)) if self._is_released(workload) else ()
            gang = reserved_workload_of(workload, "") if demands else None
            if gang is not None and gang.reserved_at is not None:
                yield PlacementRequest(key=key, uid=gang.uid, demands=demands, at=gang.reserved_at)
        yield from self._evicted_reservations.requests(self._clock(), self.workload)

    def _unplaced_demands(self, workload: Workload, placed: Mapping[str, int]) -> tuple[NodeDemand, ...]:
        """What its other pods need; nothing where there are none, or they run elsewhere."""
        if self.runs_elsewhere(workload):
            return ()
        needs = self.needs(workload)
        demands = needs.without(placed) if isinstance(needs, PodDemands) else ()
        return demands if any(each.count for each in demands) else ()

    def _is_released(self, workload: Workload) -> bool:
        if is_true(workload.status.conditions, "Admitted"):
            return True
        entries = [entry for entry in workload.status.admission_checks if self._is_ours(entry.name)]
        return bool(entries) and all(entry.state == "Ready" for entry in entries)

    def _is_ours(self, check: str) -> bool:
        found = self._copies.checks.get("", check)
        return found is not None and is_ours(found)

    def gpus_on(self, workload: Workload, placements: Iterable[PodPlacement], *, since: datetime) -> tuple[int, int]:
        """GPUs of the Workload's pods on nodes created before, and on nodes created since."""
        per_pod = {each.name: self._cluster.gpus.of_pod(each.template.spec) for each in workload.spec.pod_sets}
        old, new = 0, 0
        for placement in placements:
            gpus = placement.pods * per_pod.get(placement.pod_set, 0)
            old, new = (old, new + gpus) if self._new_node(placement, since) is not None else (old + gpus, new)
        return old, new

    def nodes(self) -> dict[str, Node]:
        """The nodes by name."""
        return {node.metadata.name: node for node in self._copies.nodes.items()}

    def _new_node(self, placement: PodPlacement, since: datetime) -> Node | None:
        """The node, if it was created since."""
        node = self._copies.nodes.get("", placement.node)
        created = node.metadata.creation_timestamp if node is not None else None
        return node if created is not None and created > since else None


def _has_quota_or_checks(workload: Workload | None) -> bool:
    return workload is not None and (bool(workload.status.admission_checks) or holds_quota(workload))


def _is_finished(workload: Workload | None) -> bool:
    return workload is not None and is_true(workload.status.conditions, "Finished")


def _waits_for_a_node(pod: Pod) -> bool:
    """Whether kube-scheduler may bind it at any moment."""
    is_over = pod.status.phase in TERMINAL or pod.metadata.deletion_timestamp is not None
    return not (pod.spec.node_name or pod.spec.scheduling_gates or is_over)


def _offer(node: Node | None) -> tuple[object, ...] | None:
    """The fields of a node that decide which pods fit it."""
    return None if node is None else (node.metadata.labels, node.spec, node.status.allocatable, node.is_ready)


def _place(pod: Pod | None) -> tuple[object, ...] | None:
    """The fields of a pod that change free capacity."""
    if pod is None or holds_no_node(pod):
        return None
    return pod.spec.node_name, pod.metadata.deletion_timestamp
