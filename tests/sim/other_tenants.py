"""The gangs of one run: who they are, what becomes of them by themselves, and what somebody does to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import Json
from sim.admission_laws import can_seat
from sim.cluster import GPU, MEMORY
from sim.environment import Environment
from sim.random_ops import RandomOpsCluster, is_ending, is_let_go, is_on_a_node, owner_uid

from scaler.kube.objects.resources import JOB, POD, RAY_CLUSTER, SCALABLE_WORKLOAD, WORKLOAD
from scaler.placement.capacity import Capacity, capacity_of
from scaler.placement.node_index import NodeDemand, NodeIndex, NodeInfo, pod_counts
from scaler.placement.worst_case import fits_in_any_order


@dataclass(slots=True, kw_only=True)
class Tenant:
    """A job that somebody has submitted."""

    name: str
    kind: str
    pods: tuple[tuple[int, int], ...]
    """How many of how many GPUs each, by PodSet."""
    memory: int
    """Gi of each pod."""
    lasts: int
    """Seconds from when all its pods run to when it ends."""
    ends_slowly: bool
    """Whether its pods end one after the other."""
    fits: bool
    since: int | None = None
    """The second from which on it has been running whole."""
    has_run: bool = False
    is_gone: bool = False
    back_at: int | None = None
    """When somebody activates it again."""
    is_taken: bool = False
    """Whether a plan has taken it before."""

    def __str__(self) -> str:
        pods = " + ".join(f"{count} × {gpus} GPUs" for count, gpus in self.pods)
        return f"{self.name} ({pods}{f', {self.memory} Gi each' if self.memory else ''})"


class Tenants:
    """All of them."""

    def __init__(self, town: RandomOpsCluster, nature: Environment, dice: Random, tell: Callable[[str], None]) -> None:
        self._town = town
        self._nature = nature
        self._dice = dice
        self._tell = tell
        self._empty = _empty(nature.nodes)
        self._said: dict[str, str] = {}
        self.all: list[Tenant] = []
        self.news = 0
        """The second in which something has last happened to somebody."""

    def submit(self) -> None:
        dice, number = self._dice, len(self.all)
        kind, pods, memory = self._wanted()
        name = f"{kind}-{number}"
        guest = Tenant(
            name=name,
            kind=kind,
            pods=pods,
            memory=memory,
            lasts=dice.randrange(1, 9),
            ends_slowly=dice.random() < 0.3,
            fits=can_seat(pods, memory, self._nature.nodes)
            and sum(count * gpus for count, gpus in pods) <= self._nature.quota,
        )
        if not self._nature.is_shaky and not self._is_sure(pods, memory):
            return
        self._tell(f"somebody submits {guest}{'' if guest.fits else ', which fits nowhere'}")
        self.all.append(guest)
        self._town.termination[name] = dice.choice((1.0, 1.0, 3.0, 7.0))
        labels = {"kueue.x-k8s.io/priority-class": dice.choice(("low", "high"))} if self._nature.preempts else {}
        if kind == "job":
            self._town.submit(name, pods=pods[0][0], gpus=pods[0][1], memory=memory, **labels)
        else:
            (_, head), (workers, gpus) = pods
            self._town.submit_ray(name, head=head, workers=workers, gpus=gpus, memory=memory)

    def _is_sure(self, pods: Sequence[tuple[int, int]], memory: int) -> bool:
        """Whether it finds its places for sure once it fits, on these nodes and on all that may come."""
        is_uniform = len({gpus for _, gpus in pods if gpus or memory}) <= 1
        return is_uniform or fits_in_any_order(pod_counts(_demands(pods, memory), self._empty.index), self._empty)

    def _wanted(self) -> tuple[str, tuple[tuple[int, int], ...], int]:
        """The kind, the pods, and what each of them has of memory."""
        dice = self._dice
        memory = dice.choice((0, 0, 0, 100, 200, 400))
        if dice.random() < 0.35:
            return "ray", ((1, dice.choice((0, 1, 2))), (dice.randrange(1, 4), dice.choice((1, 2, 4, 8)))), memory
        if dice.random() < 0.2:
            return "job", ((dice.choice((1, 1, 2)), 0),), dice.choice((100, 200, 400))
        return "job", ((dice.choice((1, 1, 2, 2, 3, 4)), dice.choice((1, 2, 4, 4, 8))),), memory

    # ----------------------------------------------------------------------------------------------------- who is there

    def there(self) -> list[Tenant]:
        """Those whose job is there, and has a Workload."""
        return [each for each in self.all if not each.is_gone and self.workload(each) is not None]

    def is_starting(self, guest: Tenant) -> bool:
        """Whether it was let go, and its pods are not all on nodes."""
        workload = self.workload(guest) or {"spec": {"active": False}}
        return is_let_go(workload) and not self._runs_whole(guest, workload)

    def workload(self, guest: Tenant) -> Json | None:
        job = self._town.client.find(JOB if guest.kind == "job" else RAY_CLUSTER, "ns", guest.name)
        found = self._town.workload_of(job["metadata"]["uid"]) if job is not None else None
        return None if found is None or has(found, "Finished") else found

    def _runs_whole(self, guest: Tenant, workload: Json) -> bool:
        alive = [pod for pod in self._pods(workload) if not pod["metadata"].get("deletionTimestamp")]
        on_nodes = sum(1 for pod in alive if pod["spec"].get("nodeName"))
        return is_let_go(workload) and on_nodes >= sum(count for count, _ in guest.pods)

    def _pods(self, workload: Json) -> list[Json]:
        uid = owner_uid(workload)
        return [pod for pod in self._town.client.all(POD) if owner_uid(pod) == uid]

    def _is_done(self, guest: Tenant) -> bool:
        job = self._town.client.find(JOB, "ns", guest.name)
        return job is not None and has(job, "Complete") and self._town.workload_of(job["metadata"]["uid"]) is not None

    # --------------------------------------------------------------------------------------------- what happens to them

    def deactivate(self, guest: Tenant) -> None:
        workload = self.workload(guest)
        if workload is not None and guest.back_at is None:
            self._tell(f"somebody deactivates {guest.name}")
            guest.back_at = self._town.second + self._dice.randrange(1, 8)
            self._town.change(WORKLOAD, workload["metadata"]["name"], {"spec": {"active": False}})

    def take(self, guest: Tenant) -> None:
        """A plan of ours takes it, for one that waits for nodes."""
        waiting = [each for each in self.there() if each is not guest and not is_let_go(self.workload(each) or {})]
        if not waiting or guest.is_taken or guest.back_at is not None:
            return
        guest.is_taken, guest.back_at = True, self._town.second + self._dice.randrange(1, 8)
        gang = self._dice.choice(waiting)
        self._tell(f"a plan takes {guest.name} for {gang.name}")
        self._town.deactivate(guest.name, for_gang=gang.name, is_granted=self._dice.random() < 0.7)

    def delete(self, guest: Tenant) -> None:
        self._tell(f"somebody deletes {guest.name}")
        guest.is_gone = True
        self._town.client.remove(JOB if guest.kind == "job" else RAY_CLUSTER, "ns", guest.name)
        if self._town.client.find(SCALABLE_WORKLOAD, "ns", guest.name):
            self._town.client.remove(SCALABLE_WORKLOAD, "ns", guest.name)

    def reactivate(self, guest: Tenant) -> None:
        guest.back_at = None
        workload = self.workload(guest)
        if workload is not None:
            self._tell(f"{guest.name} is activated again")
            body = {"spec": {"active": True}, "metadata": {"annotations": {"idlegpu.io/suspended": None}}}
            self._town.change(WORKLOAD, workload["metadata"]["name"], body)

    # ----------------------------------------------------------------------------------------------------- what they do

    def follow(self) -> None:
        """Who runs whole ends after its time; who was deactivated comes back."""
        second = self._town.second
        for guest in self.all:
            if guest.is_gone:
                continue
            if guest.back_at is not None and guest.back_at <= second:
                self.reactivate(guest)
            workload = self.workload(guest)
            if workload is None and self._is_done(guest):
                self._clear_away(guest)
            is_whole = workload is not None and self._runs_whole(guest, workload)
            if not is_whole:
                guest.since = None
            elif guest.since is None:
                guest.since, guest.has_run, self.news = second, True, second
            elif second - guest.since >= guest.lasts:
                self._end(guest)
            if workload is not None:
                self._note(guest, workload)

    def _clear_away(self, guest: Tenant) -> None:
        """Jobs that are done are removed after a while."""
        guest.is_gone = True
        self._town.client.remove(JOB, "ns", guest.name)

    def _end(self, guest: Tenant) -> None:
        self.news = self._town.second
        if guest.kind == "ray":
            self.delete(guest)
            return
        running = [pod for pod in self._town.pods(guest.name) if is_on_a_node(pod) and not is_ending(pod)]
        for pod in running[:1] if guest.ends_slowly else running:
            self._town.change(POD, pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")
        if len(running) <= 1 or not guest.ends_slowly:
            self._tell(f"{guest.name} is done")

    def _note(self, guest: Tenant, workload: Json) -> None:
        entries = workload["status"].get("admissionChecks") or [{}]
        words = f"{entries[0].get('state')}: {entries[0].get('message')}"
        words += "" if has(workload, "QuotaReserved") else " (no quota)"
        if words != self._said.get(guest.name):
            self._said[guest.name], self.news = words, self._town.second
            self._tell(f"{guest.name} is {words}")


# ---------------------------------------------------------------------------------------------------------- arithmetic


def _demands(pods: Sequence[tuple[int, int]], memory: int) -> list[NodeDemand]:
    return [
        NodeDemand(pod_set=str(at), count=count, requests={GPU: gpus, "memory": memory, "pods": 1})
        for at, (count, gpus) in enumerate(pods)
    ]


def _empty(nodes: Mapping[str, int]) -> Capacity:
    found = [
        NodeInfo(name=name, labels={}, taints=(), allocatable={GPU: gpus, "memory": MEMORY, "pods": 110})
        for name, gpus in nodes.items()
    ]
    return capacity_of(NodeIndex(found), [])
