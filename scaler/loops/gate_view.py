"""What the gate sees of gangs: who has quota, what do they need, and whose pods are on their way?

Laws:

* Only observed state passes through here. What this process has written itself is seen at once, though: the copy that
  follows it may lag, and a gang that was let go a moment ago must not look as if it waited.
* Everybody who has quota and whose pods may come at any moment is seen, with our check or without, and with GPUs or
  without: the scheduler gives the same GPUs, memory and CPUs to all of them.
* What cannot be read of one that was let go is not nothing: nobody knows then what is free, and nor when it has to go,
  for as long as pods of it may come.
* A Workload that runs on another cluster (MultiKueue) needs nothing of the nodes here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import isfinite

from scaler.core.claims import Claim
from scaler.core.gate_values import Gang
from scaler.core.placement import Demand, Seat, beside
from scaler.core.pods import TERMINAL
from scaler.core.quota.inferences import MULTIKUEUE
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.nodes import Node
from scaler.kube.objects import Pod, condition, is_true
from scaler.kube.quota_objects import AdmissionCheck, ResourceFlavor
from scaler.kube.reflector import Absent, Reflecting
from scaler.kueue.admission_checks import is_ours
from scaler.kueue.gangs import Needs, gang_of, needs_of
from scaler.kueue.pod_neighbours import PODSET_LABEL, marked_pod_sets
from scaler.kueue.provisioning_requests import holds_quota
from scaler.loops.cluster import Cluster, Remembered, Store
from scaler.loops.endings import Copy, pods_of
from scaler.loops.leaving import AFTERWARDS, Leaving
from scaler.loops.nodes_view import is_nowhere


@dataclass(frozen=True, kw_only=True)
class Copies:
    """All that the gate looks at beside the Cluster's stores. Workloads and pods are the same as there."""

    workloads: Copy[Workload]
    pods: Copy[Pod]
    checks: Copy[AdmissionCheck]
    flavors: Copy[ResourceFlavor]
    nodes: Copy[Node]

    @property
    def unlisted(self) -> str:
        """The kinds that were never listed; empty where all were."""
        kinds: dict[str, Store[object]] = {
            "Workloads": self.workloads,
            "Pods": self.pods,
            "AdmissionChecks": self.checks,
            "ResourceFlavors": self.flavors,
            "Nodes": self.nodes,
        }
        missing = [
            name for name, each in kinds.items() if not isfinite(each.age) and not isinstance(each.state, Absent)
        ]
        return ", ".join(missing)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A Workload that has quota, with one of our checks."""

    workload: Workload
    check: AdmissionCheck
    gang: Gang
    runs_elsewhere: bool

    @property
    def key(self) -> str:
        """`namespace/name` of the Workload."""
        return self.gang.key

    @property
    def check_name(self) -> str:
        return self.check.metadata.name


class GateView:
    """`changed` is called whenever something was heard that a gang may wait for."""

    def __init__(
        self,
        cluster: Cluster,
        copies: Copies,
        *,
        changed: Callable[[], None] = lambda: None,
        afterwards: timedelta = AFTERWARDS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`afterwards`: how long the places of a gang that had to go stay taken."""
        self._cluster = cluster
        self._clock = clock
        self._copies = copies
        self.changed = changed
        self._holding: dict[str, Workload] = {}
        self._written: dict[str, Workload] = {}
        """What was written here and is newer than the copy."""
        self._marked: dict[str, dict[str, tuple[Workload, frozenset[str]]]] = {}
        """By mark of which a node takes one pod, and uid: who has such pods, and in which PodSets."""
        self._needs: Remembered[Workload, Needs | str] = Remembered()
        self._leaving = Leaving(needs=self._made_needs, waiting=self._without_node, afterwards=afterwards)
        copies.workloads.subscribe(self._workload_changed)
        copies.pods.subscribe(self._pod_changed)
        copies.flavors.subscribe(self._flavor_changed)
        copies.checks.subscribe(lambda _: self.changed())
        copies.nodes.subscribe(self._node_changed)
        for workload in copies.workloads.items():
            self._workload_changed(Change(workload.metadata.key, None, workload))

    # ------------------------------------------------------------------------------------------------------ following

    def _workload_changed(self, change: Change[Workload]) -> None:
        key = "/".join(change.key)
        written = self._written.get(key)
        if written is not None and (change.new is None or version_of(change.new) >= version_of(written)):
            del self._written[key]
        before = self._holding.get(key)
        if change.old is not None:
            self._unfile(change.old)
        if change.new is not None:
            self._file(self._written.get(key, change.new))
        self._note_leaving(before, change)
        if _concerns_a_gate(change.old) or _concerns_a_gate(change.new):
            self.changed()

    def _note_leaving(self, before: Workload | None, change: Change[Workload]) -> None:
        """Whose pods may come although it was told to go. `before` held quota, or there was none that did."""
        after = self._holding.get("/".join(change.key))
        if after is not None and self._was_let_go(after):
            self._leaving.stays(after.metadata.uid)
        if before is not None and self._was_let_go(before):
            is_same = after is not None and after.metadata.uid == before.metadata.uid
            if not (after is not None and is_same and self._was_let_go(after)) and not _is_finished(change.new):
                self._leaving.note(before, self._unread(before) or self._owed(before, self._placed(before)))
        elif change.old is None and change.new is not None and is_true(change.new.status.conditions, "Evicted"):
            self._leaving.note(change.new)

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
            self.changed()

    def _flavor_changed(self, _: Change[ResourceFlavor]) -> None:
        self._needs = Remembered()
        self.changed()

    def _node_changed(self, change: Change[Node]) -> None:
        if _offer(change.old) != _offer(change.new):
            self.changed()

    def remember(self, workload: Workload) -> None:
        """What was just written: it counts until the copy shows it, or something newer."""
        key = "/".join(workload.metadata.key)
        known = self._copies.workloads.get(*workload.metadata.key)
        if known is None or version_of(known) >= version_of(workload):
            return
        self._written[key] = workload
        self._unfile(known)
        self._file(workload)

    # ---------------------------------------------------------------------------------------------------------- gangs

    @property
    def unlisted(self) -> str:
        """The kinds that were never listed; empty where all were."""
        return self._copies.unlisted

    @property
    def unseen(self) -> str:
        """Why it is not known who has quota, or what those need who were let go; empty where it is."""
        state = self._copies.workloads.state
        if not isinstance(state, Reflecting):
            return f"Workloads are not followed: {state.message}"
        return self._unread_let_go() or self._leaving.unread(self._clock(), self.workload)

    def _unread_let_go(self) -> str:
        """Whose pods may take nobody knows what; empty where that is nobody."""
        for key, workload in self._holding.items():
            if self._was_let_go(workload) and (why := self._unread(workload)):
                return f"{key} was let go, and what its pods need cannot be read: {why}"
        return ""

    def _unread(self, workload: Workload) -> str:
        """Why nobody knows what its pods need that are on no nodes yet; empty where that is known, or none may come."""
        needs = self.needs(workload)
        return needs if isinstance(needs, str) and self._may_make_pods(workload) else ""

    def _may_make_pods(self, workload: Workload) -> bool:
        """Whether it has pods here that are not on nodes, as far as that can be told without its needs."""
        placed = self._placed(workload)
        is_short = any(placed[each.name] < each.count for each in workload.spec.pod_sets)
        return is_short and not self._runs_elsewhere(workload)

    def checks(self) -> list[AdmissionCheck]:
        """Those of which we are the controller."""
        found = [each for each in self._copies.checks.items() if is_ours(each)]
        return sorted(found, key=lambda check: check.metadata.name)

    def held(self) -> list[Held]:
        """Every Workload that has quota, with each of our checks that it has an entry of."""
        ours = {check.metadata.name: check for check in self.checks()}
        return [
            Held(
                workload=workload,
                check=ours[entry.name],
                gang=gang_of(workload, entry.name),
                runs_elsewhere=self._runs_elsewhere(workload),
            )
            for workload in self._holding.values()
            for entry in workload.status.admission_checks
            if entry.name in ours
        ]

    def workload(self, key: str) -> Workload | None:
        """As it was last seen or written."""
        namespace, _, name = key.partition("/")
        return self._written.get(key) or self._copies.workloads.get(namespace, name)

    def _runs_elsewhere(self, workload: Workload) -> bool:
        entries = (self._copies.checks.get("", entry.name) for entry in workload.status.admission_checks)
        return any(check is not None and check.spec.controller_name == MULTIKUEUE for check in entries)

    def needs(self, workload: Workload) -> Needs | str:
        """What all its pods need, or why nobody knows."""
        found = self._needs.of(workload, self._made_needs, self._copies.workloads)
        if isinstance(found, str) or not found.is_exclusive:
            return found
        demands = tuple(beside(each, self._closed_to(workload, each)) for each in found.demands)
        return replace(found, demands=demands)

    def _closed_to(self, workload: Workload, demand: Demand) -> set[str]:
        """Nodes with pods that these must not share a node with. Of its own, those that end are of its last life."""
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
            pods = [pod for pod in pods_of(workload, self._cluster.pods) if not is_nowhere(pod)]
            if not pods and "/".join(workload.metadata.key) not in self._holding:
                del known[uid]
            for pod in pods:
                if pod.metadata.labels.get(PODSET_LABEL) in (None, *pod_sets):
                    yield uid, pod

    def _made_needs(self, workload: Workload) -> Needs | str:
        try:
            return needs_of(workload, lambda name: self._copies.flavors.get("", name))
        except ValueError as error:
            return str(error)

    def bound(self, workload: Workload) -> Counter[str]:
        """How many of its pods are on nodes, by PodSet; those that end are not its any more."""
        return self._counted(workload, lambda pod: not is_nowhere(pod) and pod.metadata.deletion_timestamp is None)

    def _placed(self, workload: Workload) -> Counter[str]:
        """How many of its pods are on nodes, by PodSet, with those that end."""
        return self._counted(workload, lambda pod: not is_nowhere(pod))

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

    def let_go(self) -> Iterator[Claim]:
        """All whose pods may come at any moment and are not all on nodes, those who have to go included."""
        for key, workload in self._holding.items():
            demands = self._owed(workload, self.bound(workload)) if self._was_let_go(workload) else ()
            gang = gang_of(workload, "")
            if gang.reserved_at is not None and demands:
                yield Claim(key=key, uid=gang.uid, demands=demands, at=gang.reserved_at)
        yield from self._leaving.claims(self._clock(), self.workload)

    def _owed(self, workload: Workload, placed: Mapping[str, int]) -> tuple[Demand, ...]:
        """What is needed for its pods beside those; nothing where that is all, or they run elsewhere."""
        if self._runs_elsewhere(workload):
            return ()
        needs = self.needs(workload)
        demands = needs.without(placed) if isinstance(needs, Needs) else ()
        return demands if any(each.count for each in demands) else ()

    def _was_let_go(self, workload: Workload) -> bool:
        if is_true(workload.status.conditions, "Admitted"):
            return True
        entries = [entry for entry in workload.status.admission_checks if self._is_ours(entry.name)]
        return bool(entries) and all(entry.state == "Ready" for entry in entries)

    def _is_ours(self, check: str) -> bool:
        found = self._copies.checks.get("", check)
        return found is not None and is_ours(found)

    def gpus_on(self, workload: Workload, seats: Iterable[Seat], *, since: datetime) -> tuple[int, int]:
        """GPUs of the Workload's pods on nodes that were there before, and on nodes that have come since."""
        per_pod = {each.name: self._cluster.gpus.of_pod(each.template.spec) for each in workload.spec.pod_sets}
        old, new = 0, 0
        for seat in seats:
            gpus = seat.pods * per_pod.get(seat.pod_set, 0)
            old, new = (old, new + gpus) if self._new_node(seat, since) is not None else (old + gpus, new)
        return old, new

    def came(self, seats: Iterable[Seat], *, since: datetime) -> datetime | None:
        """When the last of the nodes that have come since got ready; None where all were there before."""
        new = [node for seat in seats if (node := self._new_node(seat, since)) is not None]
        return max((at for node in new if (at := _ready_at(node)) is not None), default=None)

    def _new_node(self, seat: Seat, since: datetime) -> Node | None:
        """The node, if it has come since."""
        node = self._copies.nodes.get("", seat.node)
        created = node.metadata.creation_timestamp if node is not None else None
        return node if created is not None and created > since else None


def version_of(workload: Workload) -> int:
    """The resourceVersion as a number, as which API servers define it to be comparable."""
    version = workload.metadata.resource_version
    return int(version) if version.isdecimal() else 0


def _concerns_a_gate(workload: Workload | None) -> bool:
    return workload is not None and (bool(workload.status.admission_checks) or holds_quota(workload))


def _is_finished(workload: Workload | None) -> bool:
    return workload is not None and is_true(workload.status.conditions, "Finished")


def _waits_for_a_node(pod: Pod) -> bool:
    """Whether a scheduler may give it one at any moment."""
    is_over = pod.status.phase in TERMINAL or pod.metadata.deletion_timestamp is not None
    return not (pod.spec.node_name or pod.spec.scheduling_gates or is_over)


def _offer(node: Node | None) -> tuple[object, ...] | None:
    """What of a node decides which pods it takes."""
    return None if node is None else (node.metadata.labels, node.spec, node.status.allocatable, node.is_ready)


def _ready_at(node: Node) -> datetime | None:
    """Registered is not ready: GPU drivers are installed in between."""
    ready, created = condition(node.status.conditions, "Ready"), node.metadata.creation_timestamp
    changed = ready.last_transition_time if ready is not None else None
    return max((at for at in (created, changed) if at is not None), default=None)


def _place(pod: Pod | None) -> tuple[object, ...] | None:
    """What of a pod changes what nodes have free."""
    if pod is None or is_nowhere(pod):
        return None
    return pod.spec.node_name, pod.metadata.deletion_timestamp
