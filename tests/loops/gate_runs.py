"""One random run of the gate in a BusyTown, from a seed: who comes, what happens to them, and that everybody starts.

What must hold all the time stands in `gate_laws.py`. At the end of a run must hold, besides:

* Every gang that can fit has run whole. It can fit if it fits the nodes that are there from the beginning, all of them
  empty, and the quota. All gangs end in the end, so that each of them gets its turn. One that cannot fit, and has taken
  quota that others need, is deleted by somebody once nothing moves any more.
* Our AdmissionCheck is Active, and no request of a gang that is gone is left.

Two kinds of runs. In a strict one every gang is sure of its places on empty nodes wherever the scheduler puts its pods,
and no machine is lost: there all laws hold without exception. In a shaky one machines are lost or cordoned, pods fail
and come again, capacity is revoked, and gangs are let in that only fit if the scheduler puts every pod where it must.
Nobody can promise these their places, and whoever is let go beside them may lose his to theirs: there it is not looked
at whether pods find nodes, and one that is stuck with half of its pods is deleted by somebody in the end.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from embedded.memory_client import START
from gate_board import Mischief
from gate_bustle import SECOND, BusyTown, is_ending, is_let_go, is_on_a_node, owner_uid
from gate_cloud import Whims
from gate_laws import LawBrokenError, Laws, can_seat
from gate_nature import UNLIMITED, Nature, nature_of
from gate_second_check import NAME, SecondCheck
from gate_town import CHECK, GPU

from scaler.core.assurance import is_assured, pods_of
from scaler.core.placement import Capacity, Demand, Node, NodeIndex, capacity_of
from scaler.embedded.conditions import has
from scaler.embedded.kinds import (
    JOB,
    NODE,
    POD,
    PROVISIONING_REQUEST,
    RAY_CLUSTER,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Json,
)
from scaler.kube.resources import RECLAIM_POLICY, SCALABLE_WORKLOAD

_MOST = 8
"""Jobs of one run."""
_PATIENCE = 25
"""Seconds without anything new at the end, after which somebody who waits is said to starve."""
_LATEST = 200
"""Seconds after which a run is over, whatever happens."""
_LATE = timedelta(minutes=11)
"""After so long nodes that are coming are not counted on any more."""


@dataclass(slots=True, kw_only=True)
class Guest:
    """A job that somebody has submitted."""

    name: str
    kind: str
    pods: tuple[tuple[int, int], ...]
    """How many of how many GPUs each, by PodSet."""
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
        return f"{self.name} ({' + '.join(f'{count} × {gpus} GPUs' for count, gpus in self.pods)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run."""

    seed: int
    nature: Nature
    started: int
    strandings: int
    deaths: int
    broken: str = ""
    story: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        title = f"run {self.seed}: {self.broken or 'all laws held'}"
        return "\n".join((title, f"  {self.nature}", *(f"  {line}" for line in self.story)))


class _AtOnce(ThreadPoolExecutor):
    """Does what it is given there and then: a run of virtual time has nobody to wait for, and threads cost more."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


async def play(seed: int) -> Outcome:
    """The run of that seed."""
    asyncio.get_running_loop().set_default_executor(_AtOnce())
    run = Run(seed)
    broken = ""
    try:
        await run.play()
    except LawBrokenError as error:
        broken = str(error)
    except AssertionError as error:
        broken = f"the town broke: {error}"
    return Outcome(
        seed=seed,
        nature=run.nature,
        started=sum(guest.has_run for guest in run.guests),
        strandings=run.laws.strandings,
        deaths=run.town.deaths,
        broken=broken,
        story=tuple(run.story),
    )


class Run:
    """A story while it happens."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = Random(seed)
        self.nature = nature = nature_of(dice)
        self.guests: list[Guest] = []
        self.story: list[str] = []
        self._news = 0
        """The second in which something has last happened to somebody."""
        self._said: dict[str, str] = {}
        self._blind_until = 0
        self._pins = nature.pins
        self._has_waited = False
        self.town = town = BusyTown(
            dict(nature.nodes),
            dice,
            hurries=nature.hurries,
            provisions=nature.provisions,
            policy=nature.policy,
            quota=nature.quota,
            checks=(CHECK, NAME) if nature.second_check else (CHECK,),
            **nature.queue,
        )
        town.told_of = self._tell
        self.laws = Laws(town, nature)
        self.cloud = Whims(town, dice, revokes=nature.is_shaky, labels=nature.labels) if nature.provisions else None
        for name, value in (("low", 1), ("high", 9)):
            town.client.add(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
        self._empty = _empty(nature.nodes)
        self._other = SecondCheck(town, dice) if nature.second_check else None

    def _tell(self, words: str) -> None:
        self.story.append(f"{(self.town.client.now - START).total_seconds():3.0f} s  {words}")

    # ---------------------------------------------------------------------------------------------------- the story

    async def play(self) -> None:
        """Raises: LawBrokenError where a law does not hold."""
        self._tell(f"nodes {dict(self.nature.nodes)}")
        self.town.mischief = self.nature.mischief
        await self._second()
        for _ in range(self.nature.seconds):
            self._something_happens()
            await self._second()
        self._calm_down()
        await self._wind_up()
        await self._look_back()

    async def _second(self, *, quiet: bool = False) -> None:
        await self.town.seconds(1, quiet=quiet)
        self.laws.after_second()
        self._follow_guests()

    def _something_happens(self) -> None:
        dice, town = self.dice, self.town
        if len(self.guests) < _MOST and dice.random() < 0.5:
            self._submit()
        for guest in [each for each in self._there() if dice.random() < 0.04]:
            dice.choice((self._deactivate, self._deactivate, self._take, self._delete))(guest)
        starting = [each for each in self._there() if self._is_starting(each)]
        if starting and dice.random() < 0.15:
            dice.choice((self._deactivate, self._take, self._delete))(dice.choice(starting))
        if dice.random() < 0.05:
            self._tell("our process starts anew")
            town.restart()
        if dice.random() < 0.03 and not town.blind:
            self._tell("nobody sees the nodes for a while")
            town.blind, self._blind_until = "a test wants it", town.second + dice.randrange(1, 5)
        if dice.random() < 0.02:
            name = f"node-{len(town.client.all(NODE))}x"
            if town.client.find(NODE, "", name) is None:
                self._tell(f"node {name} is added, with 8 GPUs")
                town.add_node(name, 8)
        if dice.random() < 0.04:
            self._edit_policy()
        if self.nature.is_shaky and dice.random() < 0.15:
            dice.choice((self._lose_pod, self._lose_pod, self._cordon, self._lose_node))()

    def _submit(self) -> None:
        dice, number = self.dice, len(self.guests)
        kind, pods = self._wanted()
        name = f"{kind}-{number}"
        guest = Guest(
            name=name,
            kind=kind,
            pods=pods,
            lasts=dice.randrange(1, 9),
            ends_slowly=dice.random() < 0.3,
            fits=can_seat(pods, self.nature.nodes) and sum(count * gpus for count, gpus in pods) <= self.nature.quota,
        )
        if not self.nature.is_shaky and not self._is_sure(pods):
            return
        self._tell(f"somebody submits {guest}{'' if guest.fits else ', which fits nowhere'}")
        self.guests.append(guest)
        self.town.termination[name] = dice.choice((1.0, 1.0, 3.0, 7.0))
        labels = {"kueue.x-k8s.io/priority-class": dice.choice(("low", "high"))} if self.nature.preempts else {}
        if kind == "job":
            self.town.submit(name, pods=pods[0][0], gpus=pods[0][1], **labels)
        else:
            (_, head), (workers, gpus) = pods
            self.town.submit_ray(name, head=head, workers=workers, gpus=gpus)

    def _is_sure(self, pods: Sequence[tuple[int, int]]) -> bool:
        """Whether it finds its places for sure once it fits, on these nodes and on all that may come."""
        is_uniform = len({gpus for _, gpus in pods if gpus}) <= 1
        return is_uniform or is_assured(pods_of(_demands(pods), self._empty.index), self._empty)

    def _wanted(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        dice = self.dice
        if dice.random() < 0.35:
            return "ray", ((1, dice.choice((0, 1, 2))), (dice.randrange(1, 4), dice.choice((1, 2, 4, 8))))
        return "job", ((dice.choice((1, 1, 2, 2, 3, 4)), dice.choice((1, 2, 4, 4, 8))),)

    def _there(self) -> list[Guest]:
        """Those whose job is there, and has a Workload."""
        return [each for each in self.guests if not each.is_gone and self._workload(each) is not None]

    def _is_starting(self, guest: Guest) -> bool:
        """Whether it was let go, and its pods are not all on nodes."""
        workload = self._workload(guest) or {"spec": {"active": False}}
        return is_let_go(workload) and not self._runs_whole(guest, workload)

    def _workload(self, guest: Guest) -> Json | None:
        job = self.town.client.find(JOB if guest.kind == "job" else RAY_CLUSTER, "ns", guest.name)
        found = self.town.workload_of(job["metadata"]["uid"]) if job is not None else None
        return None if found is None or has(found, "Finished") else found

    # --------------------------------------------------------------------------------------------------- what happens

    def _deactivate(self, guest: Guest) -> None:
        workload = self._workload(guest)
        if workload is not None and guest.back_at is None:
            self._tell(f"somebody deactivates {guest.name}")
            guest.back_at = self.town.second + self.dice.randrange(1, 8)
            self.town.change(WORKLOAD, workload["metadata"]["name"], {"spec": {"active": False}})

    def _take(self, guest: Guest) -> None:
        """A plan of ours takes it, for one that waits for nodes."""
        waiting = [each for each in self._there() if each is not guest and not is_let_go(self._workload(each) or {})]
        if not waiting or guest.is_taken or guest.back_at is not None:
            return
        guest.is_taken, guest.back_at = True, self.town.second + self.dice.randrange(1, 8)
        gang = self.dice.choice(waiting)
        self._tell(f"a plan takes {guest.name} for {gang.name}")
        self.town.deactivate(guest.name, for_gang=gang.name, is_granted=self.dice.random() < 0.7)

    def _delete(self, guest: Guest) -> None:
        self._tell(f"somebody deletes {guest.name}")
        guest.is_gone = True
        self.town.client.remove(JOB if guest.kind == "job" else RAY_CLUSTER, "ns", guest.name)
        if self.town.client.find(SCALABLE_WORKLOAD, "ns", guest.name):
            self.town.client.remove(SCALABLE_WORKLOAD, "ns", guest.name)

    def _reactivate(self, guest: Guest) -> None:
        guest.back_at = None
        workload = self._workload(guest)
        if workload is not None:
            self._tell(f"{guest.name} is activated again")
            body = {"spec": {"active": True}, "metadata": {"annotations": {"idlegpu.io/suspended": None}}}
            self.town.change(WORKLOAD, workload["metadata"]["name"], body)

    def _edit_policy(self) -> None:
        """Somebody deletes it by mistake, and makes it anew, or ties gangs to nodes from now on, or not any more."""
        if self.town.client.find(RECLAIM_POLICY, "", "policy") is None:
            self._restore_policy()
        elif self.dice.random() < 0.5:
            self._tell("somebody deletes the ReclaimPolicy")
            self.town.client.remove(RECLAIM_POLICY, "", "policy")
        else:
            self._pins = not self._pins
            self._tell(f"gangs are {'' if self._pins else 'not '}tied to nodes from now on")
            self.town.change(RECLAIM_POLICY, "policy", {"spec": {"pin": {"enabled": self._pins}}})

    def _restore_policy(self) -> None:
        if self.town.client.find(RECLAIM_POLICY, "", "policy") is None:
            self._tell("the ReclaimPolicy is there again")
            self.town.add(RECLAIM_POLICY, "policy", spec={**self.nature.policy, "pin": {"enabled": self._pins}})

    def _lose_pod(self) -> None:
        running = [pod for pod in self.town.client.all(POD) if is_on_a_node(pod)]
        if running:
            name = self.dice.choice(running)["metadata"]["name"]
            self._tell(f"pod {name} fails")
            self.town.change(POD, name, {"status": {"phase": "Failed"}}, "status")

    def _cordon(self) -> None:
        node = self.dice.choice(self.town.client.all(NODE))
        is_cordoned = not node["spec"].get("unschedulable")
        self._tell(f"node {node['metadata']['name']} is {'' if is_cordoned else 'un'}cordoned")
        self.town.change(NODE, node["metadata"]["name"], {"spec": {"unschedulable": is_cordoned}})

    def _lose_node(self) -> None:
        name = self.dice.choice(self.town.client.all(NODE))["metadata"]["name"]
        if name not in self.nature.nodes:
            self.town.remove_node(name)

    def _follow_guests(self) -> None:
        """Who runs whole ends after its time; who was deactivated comes back."""
        second = self.town.second
        if second >= self._blind_until:
            self.town.blind = ""
        for guest in self.guests:
            if guest.is_gone:
                continue
            if guest.back_at is not None and guest.back_at <= second:
                self._reactivate(guest)
            workload = self._workload(guest)
            if workload is None and self._is_done(guest):
                self._clear_away(guest)
            is_whole = workload is not None and self._runs_whole(guest, workload)
            if not is_whole:
                guest.since = None
            elif guest.since is None:
                guest.since, guest.has_run, self._news = second, True, second
            elif second - guest.since >= guest.lasts:
                self._end(guest)
            if workload is not None:
                self._note(guest, workload)

    def _is_done(self, guest: Guest) -> bool:
        job = self.town.client.find(JOB, "ns", guest.name)
        return job is not None and has(job, "Complete") and self.town.workload_of(job["metadata"]["uid"]) is not None

    def _clear_away(self, guest: Guest) -> None:
        """Jobs that are done are removed after a while."""
        guest.is_gone = True
        self.town.client.remove(JOB, "ns", guest.name)

    def _runs_whole(self, guest: Guest, workload: Json) -> bool:
        alive = [pod for pod in self._pods(workload) if not pod["metadata"].get("deletionTimestamp")]
        on_nodes = sum(1 for pod in alive if pod["spec"].get("nodeName"))
        return is_let_go(workload) and on_nodes >= sum(count for count, _ in guest.pods)

    def _pods(self, workload: Json) -> list[Json]:
        uid = owner_uid(workload)
        return [pod for pod in self.town.client.all(POD) if owner_uid(pod) == uid]

    def _end(self, guest: Guest) -> None:
        self._news = self.town.second
        if guest.kind == "ray":
            self._delete(guest)
            return
        running = [pod for pod in self.town.pods(guest.name) if is_on_a_node(pod) and not is_ending(pod)]
        for pod in running[:1] if guest.ends_slowly else running:
            self.town.change(POD, pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")
        if len(running) <= 1 or not guest.ends_slowly:
            self._tell(f"{guest.name} is done")

    def _note(self, guest: Guest, workload: Json) -> None:
        entries = workload["status"].get("admissionChecks") or [{}]
        words = f"{entries[0].get('state')}: {entries[0].get('message')}"
        words += "" if has(workload, "QuotaReserved") else " (no quota)"
        if words != self._said.get(guest.name):
            self._said[guest.name], self._news = words, self.town.second
            self._tell(f"{guest.name} is {words}")

    # -------------------------------------------------------------------------------------------------------- the end

    def _calm_down(self) -> None:
        self._tell("from now on nothing goes wrong any more")
        self.town.mischief, self.town.blind = Mischief(), ""
        self._restore_policy()
        if self.cloud is not None:
            self.cloud.is_honest = True
        if self._other is not None:
            self._other.is_patient = True
        for node in self.town.client.all(NODE):
            if node["spec"].get("unschedulable"):
                self.town.change(NODE, node["metadata"]["name"], {"spec": {"unschedulable": False}})
        for guest in self.guests:
            guest.lasts = min(guest.lasts, 2)
            if guest.back_at is not None and not guest.is_gone:
                self._reactivate(guest)

    async def _wind_up(self) -> None:
        """All that can end does. Raises: LawBrokenError where somebody starves."""
        self._news = self.town.second
        while left := [guest for guest in self.guests if not guest.is_gone]:
            await self._second(quiet=True)
            if not any(guest.fits for guest in left):
                return
            if self.town.second - self._news > _PATIENCE or self.town.second > _LATEST:
                self._give_up(left)

    def _give_up(self, left: Sequence[Guest]) -> None:
        """Nothing moves any more. Where quota is scarce, one that can never start may hold it: somebody deletes it."""
        if self.nature.provisions and not self._has_waited:
            self._tell("eleven minutes go by")
            self._has_waited, self._news = True, self.town.second
            self.town.client.now += _LATE
            return
        hopeless = [guest for guest in left if not guest.fits]
        starving = [guest for guest in left if guest.fits]
        is_short = self.nature.quota < UNLIMITED and any(not self.town.holds_quota(guest.name) for guest in starving)
        stuck = [guest for guest in left if self.nature.is_shaky and is_let_go(self._workload(guest) or {})]
        for guest in stuck or (hopeless if is_short else []):
            self._delete(guest)
            self._news = self.town.second
            return
        who = starving[0]
        raise LawBrokenError(f"{who} never starts: {self.town.says(who.name)}")

    async def _look_back(self) -> None:
        """Raises: LawBrokenError."""
        await self.town.seconds(6, quiet=True)
        if self.town.active() != "True":
            raise LawBrokenError(f"our AdmissionCheck is not Active: {self.town.active()}")
        starved = [guest for guest in self.guests if guest.fits and not guest.has_run and not guest.is_gone]
        if starved:
            raise LawBrokenError(f"{starved[0]} ended without having run")
        if self.nature.provisions:
            await self._sweep_up()

    async def _sweep_up(self) -> None:
        """Raises: LawBrokenError."""
        await self.town.seconds(6, quiet=True)
        self.town.client.now += 31 * SECOND
        await self.town.seconds(6, quiet=True)
        there = {body["metadata"]["uid"] for body in self.town.client.all(WORKLOAD)}
        for request in self.town.client.all(PROVISIONING_REQUEST):
            if request["metadata"]["labels"]["idlegpu.io/workload-uid"] not in there:
                raise LawBrokenError(f"{request['metadata']['name']} is left, and its gang is gone")


# ------------------------------------------------------------------------------------------------------- arithmetic


def _demands(pods: Sequence[tuple[int, int]]) -> list[Demand]:
    return [
        Demand(pod_set=str(at), count=count, requests={GPU: gpus, "pods": 1}) for at, (count, gpus) in enumerate(pods)
    ]


def _empty(nodes: Mapping[str, int]) -> Capacity:
    found = [
        Node(name=name, labels={}, taints=(), allocatable={GPU: gpus, "pods": 110}) for name, gpus in nodes.items()
    ]
    return capacity_of(NodeIndex(found), [])
