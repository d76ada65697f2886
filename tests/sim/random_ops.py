"""A SimCluster in which nothing waits for anything: every part takes its turns when it comes to it, in any order.

In a `SimCluster` all is quiet before a second passes. Here a second may end while the Job controller has not yet
noticed what Kueue wrote, while the copies of pods and of Workloads show different moments, and while an API call has
just failed. A run is made of a `Random` alone: the same one tells the same story again.

Parts are only asked when something that they watch has changed, or when they wanted to be: a second costs about 2 ms.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, cast

from scaler_sandbox.conditions import has
from scaler_sandbox.controller import Controller
from scaler_sandbox.kinds import Json
from sim.api import FaultRates, FaultyApi, ProcessKilled
from sim.client import SimClient
from sim.cluster import GPU, SimCluster, memory_of

from scaler.admission.evicted_reservations import RELEASE_DELAY
from scaler.errors import KubeError
from scaler.kube.objects.resources import (
    JOB,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    RAY_CLUSTER,
    WORKLOAD,
    Resource,
)

SECOND = timedelta(seconds=1)
_LOOKS_EVERY = timedelta(seconds=5)
"""How often admission ticks although nothing has changed."""
_LATEST = 1
"""Seconds after which every part has had its turn. In a real cluster these are tenths of seconds, and what admission
waits for so that others catch up is longer here by as much."""
_SETTLES_IN = {False: 2, True: 5}
"""Seconds from when a process starts to its first look, where all is quiet and where all hurry."""
_AFTERWARDS = {False: RELEASE_DELAY, True: timedelta(seconds=6)}
_LONGEST = 400
"""Turns within one second. More of them is a loop without end."""


# -------------------------------------------------------------------------------------------------- the kind of a run

LABEL = "pool.example.com/request"
DETAIL = "RequestName"
UNLIMITED = 1000
"""GPUs of quota that no run can use up."""
_FAULTS = FaultRates(refused=30, conflicts=60, unheard=30, deadly=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    nodes: Mapping[str, int]
    """GPUs by node, of those that are there from the beginning."""
    quota: int
    is_shaky: bool
    """Whether machines and pods are lost, and gangs are released whose nodes are not certain."""
    hurries: bool
    """Whether all act in any order, and lag; otherwise all is quiet after every second."""
    pins: bool
    provisions: bool
    labels: bool
    """Whether nodes that are added are for one request."""
    second_check: bool
    """Whether an AdmissionCheck of another controller is on the same queue."""
    policy: Json
    queue: Json
    fault_rates: FaultRates
    seconds: int
    """In which something may happen."""

    @property
    def preempts(self) -> bool:
        return "preemption" in self.queue

    @property
    def attempts(self) -> int:
        """Requests that may be made for one reservation."""
        return 1 + int(self.policy["provisioning"]["retry"]["limit"])


def environment_of(dice: Random) -> Environment:
    pins, provisions = dice.random() < 0.4, dice.random() < 0.4
    labels = provisions and dice.random() < 0.4
    preempts = dice.random() < 0.3
    return Environment(
        nodes={f"node-{each}": dice.choice((4, 8, 8)) for each in "abcd"[: dice.randrange(2, 5)]},
        quota=dice.choice((8, 12, 16)) if preempts else dice.choice((12, 16, 24, UNLIMITED, UNLIMITED)),
        is_shaky=dice.random() < 0.25,
        hurries=dice.random() < 0.7,
        pins=pins,
        provisions=provisions,
        labels=labels,
        second_check=dice.random() < 0.25,
        policy={
            "waitForPodsGone": dice.random() < 0.9,
            "pin": {"enabled": pins},
            **({"provisioning": _provisioning(dice, labels=labels)} if provisions else {}),
        },
        queue={
            "queueingStrategy": dice.choice(("StrictFIFO", "BestEffortFIFO")),
            **({"preemption": {"withinClusterQueue": "LowerPriority"}} if preempts else {}),
        },
        fault_rates=dice.choice((FaultRates(), FaultRates(), _FAULTS)),
        seconds=dice.randrange(12, 22),
    )


def _provisioning(dice: Random, *, labels: bool) -> Json:
    selector = [{"key": LABEL, "valueFromProvisioningClassDetail": DETAIL}]
    return {
        "className": "example.com",
        "after": dice.choice(("0s", "0s", "3s")),
        "withdraw": dice.choice(("WhenFree", "Never")),
        "atLimit": dice.choice(("Hold", "Yield")),
        "retry": {"limit": dice.choice((0, 1, 2)), "base": "2s", "max": "5s"},
        **({"podSetUpdates": {"nodeSelector": selector}} if labels else {"amount": dice.choice(("Gang", "Missing"))}),
    }


# ------------------------------------------------------------------------------------------------------ the cluster


@dataclass(slots=True)
class Part:
    """One of those who act, and when it wants its next turn."""

    name: str
    turn: Callable[[datetime], Awaitable[datetime | None]]
    """Does what is to be done and says when to be asked again; None: when something changes."""
    due: datetime | None = None
    since: int | None = 0
    """The second in which it was woken; None while it sleeps."""

    def wake(self, second: int) -> None:
        if self.since is None:
            self.since = second


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """A pod of an admitted job that the scheduler found no node for."""

    job: str
    pod: str
    is_half: bool
    """Whether others of its gang are on nodes."""


class RandomOpsCluster(SimCluster):
    """The cluster. `hurries`: parts take turns in any order, and lag; otherwise all is quiet after every second."""

    def __init__(self, nodes: dict[str, int], chance: Random, *, hurries: bool, **more: Any) -> None:
        self.client = SimClient()
        self.hurries = hurries
        self.second = 0
        self.parts: list[Part] = []
        self.fault_rates = FaultRates()
        self.stranded: list[Stranded] = []
        """What the scheduler found since it was last read."""
        self.deaths = 0
        self.afterwards = _AFTERWARDS[hurries]
        self.record: Callable[[str], None] = lambda _: None
        self.looked: Callable[[], None] = lambda: None
        """Called after every tick of admission."""
        self._looked: datetime | None = None
        self._dice = chance
        super().__init__(nodes, chance=chance, client=self.client, api=FaultyApi, **more)
        cast(FaultyApi, self.api).chance = chance
        cast(FaultyApi, self.api).touch = self._touch
        for controller in self.controllers:
            self._hire(controller)
        self.add_part("scheduler", self._schedule_some, POD, NODE, WORKLOAD)
        self.add_part("kubelets", self._end, POD)
        self._collector = self.add_part("garbage collector", self._collect, *_OWNERS, POD)
        for resource in [*self.copies, PROVISIONING_REQUEST]:
            self.add_part(f"copy of {resource.plural}", self._following(resource), resource)
        self.admission_part = self.add_part("admission", self._admission_turn)

    # --------------------------------------------------------------------------------------------------------- parts

    def _hire(self, controller: Controller) -> None:
        self.add_part(controller.name, controller.tick, *controller.watched)

    def add_part(self, name: str, turn: Callable[[datetime], Awaitable[datetime | None]], *watched: Resource) -> Part:
        part = Part(name, turn)
        self.client.listen(watched, lambda: part.wake(self.second))
        self.parts.append(part)
        return part

    def _following(self, resource: Resource) -> Callable[[datetime], Awaitable[None]]:
        async def follow(_: datetime) -> None:
            copy = self.request_copy if resource is PROVISIONING_REQUEST else self.copies[resource]
            copy.follow(self.client.all(resource))

        return follow

    def restart(self) -> None:
        super().restart()
        self._looked, self._settled_at = None, self.second + _SETTLES_IN[self.hurries] * bool(self.parts)
        for part in self.parts:
            if part.name.startswith("copy of"):
                part.since = None

    def remove_node(self, name: str) -> None:
        """The machine is lost, and the pods on it with it."""
        self.client.remove(NODE, "", name)
        for pod in self.client.all(POD):
            if pod["spec"].get("nodeName") == name:
                self.client.remove(POD, "ns", pod["metadata"]["name"])
        self.record(f"node {name} is lost")

    def _touch(self, path: str) -> None:
        """Somebody else writes to the object."""
        try:
            resource, found = self.api.object_at(path.removesuffix("/status"))
        except KubeError:
            return
        metadata = found["metadata"]
        touched = {"metadata": {"annotations": {"touched": str(metadata["resourceVersion"])}}}
        self.client.change(resource, metadata.get("namespace", ""), metadata["name"], touched)

    # ---------------------------------------------------------------------------------------------------------- time

    async def seconds(self, count: int, *, quiet: bool = False) -> None:
        """So many go by. `quiet`: after each of them no part has anything left to do."""
        for _ in range(count):
            self.client.now += SECOND
            self.second += 1
            for part in self.parts:
                if part.due is not None and part.due <= self.client.now:
                    part.wake(self.second)
            await (self._in_any_order() if self.hurries and not quiet else self._in_turn())

    async def _in_turn(self) -> None:
        """All others have done what they had to before admission ticks."""
        for _ in range(_LONGEST):
            awake = [part for part in self.parts if self._is_awake(part)]
            if not awake:
                return
            for part in [each for each in awake if each is not self.admission_part] or awake:
                await self._take_turn(part)
        raise AssertionError(f"never comes to rest: {', '.join(part.name for part in awake)}")

    async def _in_any_order(self) -> None:
        left = self._dice.randrange(8, 40)
        for _ in range(_LONGEST):
            awake = [part for part in self.parts if self._is_awake(part)]
            late = [part for part in awake if part.since is not None and self.second - part.since >= _LATEST]
            if not awake or (left <= 0 and not late):
                return
            await self._take_turn(self._dice.choice(awake if left > 0 else late))
            left -= 1
        raise AssertionError(f"never comes to rest: {', '.join(part.name for part in awake)}")

    def _is_awake(self, part: Part) -> bool:
        if part is not self.admission_part:
            return part.since is not None
        if self.second < self._settled_at:
            return False
        is_due = self._looked is None or self.client.now - self._looked >= _LOOKS_EVERY or self.admission._wake.is_set()
        if is_due:
            part.wake(self.second)
        return is_due

    async def _take_turn(self, part: Part) -> None:
        part.since = None
        part.due = await part.turn(self.client.now)
        if part.due is not None and part.due <= self.client.now:
            part.wake(self.second)

    async def _admission_turn(self, now: datetime) -> None:
        self._looked = now
        self.admission._wake.clear()
        cast(FaultyApi, self.api).rates = self.fault_rates
        try:
            await self.admission.tick(now)
            self.looked()
        except KubeError as error:
            self.record(f"admission could not tick: {error}")
            self.admission.wake()
        except ProcessKilled:
            self.deaths += 1
            self.record("our process is killed in the middle of a look, and starts anew")
            self.restart()
        finally:
            cast(FaultyApi, self.api).rates = FaultRates()

    # ----------------------------------------------------------------------------------------------- nodes and pods

    async def _schedule_some(self, _: datetime) -> datetime | None:
        """Puts pods wherever there is room, in any order: one of them where all hurry, or all."""
        waiting = [pod for pod in self.client.all(POD) if is_waiting(pod)]
        self._dice.shuffle(waiting)
        free, memory = (self.free(), self.free_memory()) if waiting else ({}, {})
        for pod in waiting:
            rooms = [
                node
                for node, left in free.items()
                if left >= gpus_of(pod) and memory[node] >= memory_of(pod) and self._takes(node, pod)
            ]
            if not rooms:
                self._strand(pod)
                continue
            node = self._dice.choice(rooms)
            self._bind(pod, node)
            free[node] -= gpus_of(pod)
            memory[node] -= memory_of(pod)
            if self.hurries:
                return self.client.now if len(waiting) > 1 else None
        return None

    def _takes(self, name: str, pod: Json) -> bool:
        node = self.client.find(NODE, "", name)
        return node is not None and not node["spec"].get("unschedulable") and self._suits(name, pod)

    def _bind(self, pod: Json, node: str) -> None:
        name = pod["metadata"]["name"]
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.change(POD, name, {"spec": {"nodeName": node}})
        self.change(POD, name, {"status": running}, "status")
        self.record(f"pod {name} ({gpus_of(pod)} GPUs) goes to {node}")

    def _strand(self, pod: Json) -> None:
        """It matters for a job that is to run. One that is suspended, or is gone, is about to lose the pod."""
        owner = pod["metadata"]["ownerReferences"][0]
        workload = self.workload_of(owner["uid"])
        if workload is None or not is_released(workload) or self._is_stopping(owner):
            return
        siblings = [each for each in self.client.all(POD) if owner_uid(each) == owner["uid"]]
        is_half = any(is_on_a_node(each) for each in siblings)
        self.stranded.append(Stranded(job=owner["name"], pod=pod["metadata"]["name"], is_half=is_half))

    def _is_stopping(self, owner: Json) -> bool:
        job = self.client.find(JOB if owner["kind"] == "Job" else RAY_CLUSTER, "ns", owner["name"])
        return job is None or job["metadata"]["uid"] != owner["uid"] or bool(job["spec"].get("suspend"))

    def workload_of(self, uid: str) -> Json | None:
        """That of the job with this uid."""
        return next((each for each in self.client.all(WORKLOAD) if owner_uid(each) == uid), None)

    async def _end(self, now: datetime) -> datetime | None:
        self._end_pods()
        ending = [pod for pod in self.client.all(POD) if pod["metadata"].get("deletionTimestamp")]
        return now + SECOND if ending else None

    async def _collect(self, _: datetime) -> None:
        """What belongs to something that is gone goes, too: the pods of a job, its Workload, what that owns."""
        uids = {body["metadata"]["uid"] for kind in _OWNERS for body in self.client.all(kind)}
        for kind in (WORKLOAD, POD, POD_TEMPLATE, PROVISIONING_REQUEST):
            for body in self.client.all(kind):
                owners = body["metadata"].get("ownerReferences") or ()
                if owners and not any(owner["uid"] in uids for owner in owners):
                    has_gone = self._discard(kind, body)
                    if has_gone and self.hurries:
                        self._collector.wake(self.second)
                        return

    def _discard(self, kind: Resource, body: Json) -> bool:
        """Whether anything was left to do."""
        metadata = body["metadata"]
        if kind is POD and metadata.get("deletionTimestamp"):
            return False
        if kind is POD and is_on_a_node(body):
            ends = {"metadata": {"deletionTimestamp": f"{self.client.now:%Y-%m-%dT%H:%M:%SZ}"}}
            self.change(POD, metadata["name"], ends)
        else:
            self.client.remove(kind, metadata.get("namespace", ""), metadata["name"])
        return True


_OWNERS = (JOB, RAY_CLUSTER, WORKLOAD, POD_TEMPLATE)


def owner_uid(body: Json) -> str:
    owners = body["metadata"].get("ownerReferences") or ()
    return owners[0]["uid"] if owners else ""


def gpus_of(pod: Json) -> int:
    limits = (each.get("resources", {}).get("limits") or {} for each in pod["spec"]["containers"])
    return sum(int(each.get(GPU, 0)) for each in limits)


def is_over(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_ending(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_waiting(pod: Json) -> bool:
    """Whether it waits for a node."""
    return not (pod["spec"].get("nodeName") or is_ending(pod) or is_over(pod))


def is_on_a_node(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName")) and not is_over(pod)


def is_released(workload: Json) -> bool:
    """Whether it is admitted, active and not evicted."""
    is_active = workload["spec"].get("active", True)
    return is_active and has(workload, "Admitted") and not has(workload, "Evicted") and not has(workload, "Finished")
