"""The gangs of one run: what they are, what becomes of them, and what users do to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random

from scaler_sandbox.conditions import condition, has, timestamp
from scaler_sandbox.kinds import Json
from sim.admission_laws import fits_nodes
from sim.cluster import GPU, MEMORY
from sim.random_ops import (
    SECOND,
    Environment,
    RandomOpsCluster,
    is_ending,
    is_on_a_node,
    is_released,
    owner_uid,
)

from scaler.kube.objects.resources import JOB, POD, RAY_CLUSTER, SCALABLE_WORKLOAD, WORKLOAD
from scaler.placement.capacity import Capacity, capacity_of
from scaler.placement.node_index import NodeDemand, NodeIndex, NodeInfo, pod_counts
from scaler.placement.worst_case import fits_in_any_order


@dataclass(slots=True, kw_only=True)
class Tenant:
    """A job that a user has submitted."""

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
    """When a user activates it again."""
    is_taken: bool = False
    """Whether a plan has taken it before."""

    def __str__(self) -> str:
        pods = " + ".join(f"{count} × {gpus} GPUs" for count, gpus in self.pods)
        return f"{self.name} ({pods}{f', {self.memory} Gi each' if self.memory else ''})"


class Tenants:
    """All of them."""

    def __init__(self, cluster: RandomOpsCluster, env: Environment, dice: Random, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._env = env
        self._dice = dice
        self._tell = tell
        self._empty = _empty(env.nodes)
        self._said: dict[str, str] = {}
        self.all: list[Tenant] = []
        self.news = 0
        """The second in which something has last happened to a gang."""

    def submit(self) -> None:
        dice, number = self._dice, len(self.all)
        kind, pods, memory = self._wanted()
        name = f"{kind}-{number}"
        tenant = Tenant(
            name=name,
            kind=kind,
            pods=pods,
            memory=memory,
            lasts=dice.randrange(1, 9),
            ends_slowly=dice.random() < 0.3,
            fits=fits_nodes(pods, memory, self._env.nodes)
            and sum(count * gpus for count, gpus in pods) <= self._env.quota,
        )
        if not self._env.is_shaky and not self._is_sure(pods, memory):
            return
        self._tell(f"a user submits {tenant}{'' if tenant.fits else ', which fits nowhere'}")
        self.all.append(tenant)
        self._cluster.termination[name] = dice.choice((1.0, 1.0, 3.0, 7.0))
        labels = {"kueue.x-k8s.io/priority-class": dice.choice(("low", "high"))} if self._env.preempts else {}
        if kind == "job":
            self._cluster.submit(name, pods=pods[0][0], gpus=pods[0][1], memory=memory, **labels)
        else:
            (_, head), (workers, gpus) = pods
            self._cluster.submit_ray(name, head=head, workers=workers, gpus=gpus, memory=memory)

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

    def is_starting(self, tenant: Tenant) -> bool:
        """Whether it was released, and its pods are not all on nodes."""
        workload = self.workload(tenant) or {"spec": {"active": False}}
        return is_released(workload) and not self._runs_whole(tenant, workload)

    def workload(self, tenant: Tenant) -> Json | None:
        job = self._cluster.client.find(JOB if tenant.kind == "job" else RAY_CLUSTER, "ns", tenant.name)
        found = self._cluster.workload_of(job["metadata"]["uid"]) if job is not None else None
        return None if found is None or has(found, "Finished") else found

    def _runs_whole(self, tenant: Tenant, workload: Json) -> bool:
        alive = [pod for pod in self._pods(workload) if not pod["metadata"].get("deletionTimestamp")]
        on_nodes = sum(1 for pod in alive if pod["spec"].get("nodeName"))
        return is_released(workload) and on_nodes >= sum(count for count, _ in tenant.pods)

    def _pods(self, workload: Json) -> list[Json]:
        uid = owner_uid(workload)
        return [pod for pod in self._cluster.client.all(POD) if owner_uid(pod) == uid]

    def _is_done(self, tenant: Tenant) -> bool:
        job = self._cluster.client.find(JOB, "ns", tenant.name)
        return (
            job is not None and has(job, "Complete") and self._cluster.workload_of(job["metadata"]["uid"]) is not None
        )

    # --------------------------------------------------------------------------------------------- what happens to them

    def deactivate(self, tenant: Tenant) -> None:
        workload = self.workload(tenant)
        if workload is not None and tenant.back_at is None:
            self._tell(f"a user deactivates {tenant.name}")
            tenant.back_at = self._cluster.second + self._dice.randrange(1, 8)
            self._cluster.change(WORKLOAD, workload["metadata"]["name"], {"spec": {"active": False}})

    def take(self, tenant: Tenant) -> None:
        """A plan of ours takes it, for one that waits for nodes."""
        waiting = [each for each in self.there() if each is not tenant and not is_released(self.workload(each) or {})]
        if not waiting or tenant.is_taken or tenant.back_at is not None:
            return
        tenant.is_taken, tenant.back_at = True, self._cluster.second + self._dice.randrange(1, 8)
        gang = self._dice.choice(waiting)
        self._tell(f"a plan takes {tenant.name} for {gang.name}")
        self._cluster.deactivate(tenant.name, for_gang=gang.name, is_granted=self._dice.random() < 0.7)

    def delete(self, tenant: Tenant) -> None:
        self._tell(f"a user deletes {tenant.name}")
        tenant.is_gone = True
        self._cluster.client.remove(JOB if tenant.kind == "job" else RAY_CLUSTER, "ns", tenant.name)
        if self._cluster.client.find(SCALABLE_WORKLOAD, "ns", tenant.name):
            self._cluster.client.remove(SCALABLE_WORKLOAD, "ns", tenant.name)

    def reactivate(self, tenant: Tenant) -> None:
        tenant.back_at = None
        workload = self.workload(tenant)
        if workload is not None:
            self._tell(f"{tenant.name} is activated again")
            body = {"spec": {"active": True}, "metadata": {"annotations": {"idlegpu.io/suspended": None}}}
            self._cluster.change(WORKLOAD, workload["metadata"]["name"], body)

    # ----------------------------------------------------------------------------------------------------- what they do

    def follow(self) -> None:
        """Who runs whole ends after its time; who was deactivated comes back."""
        second = self._cluster.second
        for tenant in self.all:
            if tenant.is_gone:
                continue
            if tenant.back_at is not None and tenant.back_at <= second:
                self.reactivate(tenant)
            workload = self.workload(tenant)
            if workload is None and self._is_done(tenant):
                self._clear_away(tenant)
            is_whole = workload is not None and self._runs_whole(tenant, workload)
            if not is_whole:
                tenant.since = None
            elif tenant.since is None:
                tenant.since, tenant.has_run, self.news = second, True, second
            elif second - tenant.since >= tenant.lasts:
                self._end(tenant)
            if workload is not None:
                self._note(tenant, workload)

    def _clear_away(self, tenant: Tenant) -> None:
        """Jobs that are done are removed after a while."""
        tenant.is_gone = True
        self._cluster.client.remove(JOB, "ns", tenant.name)

    def _end(self, tenant: Tenant) -> None:
        self.news = self._cluster.second
        if tenant.kind == "ray":
            self.delete(tenant)
            return
        running = [pod for pod in self._cluster.pods(tenant.name) if is_on_a_node(pod) and not is_ending(pod)]
        for pod in running[:1] if tenant.ends_slowly else running:
            self._cluster.change(POD, pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")
        if len(running) <= 1 or not tenant.ends_slowly:
            self._tell(f"{tenant.name} is done")

    def _note(self, tenant: Tenant, workload: Json) -> None:
        entries = workload["status"].get("admissionChecks") or [{}]
        words = f"{entries[0].get('state')}: {entries[0].get('message')}"
        words += "" if has(workload, "QuotaReserved") else " (no quota)"
        if words != self._said.get(tenant.name):
            self._said[tenant.name], self.news = words, self._cluster.second
            self._tell(f"{tenant.name} is {words}")


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


# ----------------------------------------------------------------------------------------------- another AdmissionCheck

NAME = "other"


class SecondCheck:
    """It answers every Workload that has quota, and every reservation anew."""

    def __init__(self, cluster: RandomOpsCluster, chance: Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._due: dict[tuple[str, str], datetime] = {}
        """When it answers, by uid and time of the reservation."""
        self.is_patient = False
        """Whether it rejects no gang any more."""
        cluster.add_check(NAME, "example.com/other")
        cluster.add_part("another check", self.turn, WORKLOAD)

    async def turn(self, now: datetime) -> datetime | None:
        waiting = [each for each in self._cluster.client.all(WORKLOAD) if _waits(each)]
        for workload in waiting:
            if self._due.setdefault(_reservation(workload), now + self._chance.randrange(5) * SECOND) <= now:
                self._answer(workload, now)
        return now + SECOND if waiting else None

    def _answer(self, workload: Json, now: datetime) -> None:
        sends_away = not self.is_patient and self._chance.random() < 0.2
        said = {"state": "Retry" if sends_away else "Ready", "message": "", "lastTransitionTime": timestamp(now)}
        entries = [{**each, **said} if each["name"] == NAME else each for each in workload["status"]["admissionChecks"]]
        name = workload["metadata"]["name"]
        self._cluster.change(WORKLOAD, name, {"status": {"admissionChecks": entries}}, "status")
        self._cluster.record(f"another check says {said['state']} of {name}")


def _waits(workload: Json) -> bool:
    is_held = has(workload, "QuotaReserved") and not has(workload, "Evicted") and not has(workload, "Finished")
    states = {each["name"]: each["state"] for each in workload["status"].get("admissionChecks") or ()}
    return is_held and workload["spec"].get("active", True) and states.get(NAME) == "Pending"


def _reservation(workload: Json) -> tuple[str, str]:
    return workload["metadata"]["uid"], str((condition(workload, "QuotaReserved") or {}).get("lastTransitionTime"))
