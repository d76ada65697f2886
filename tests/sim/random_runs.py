"""One random run of admission in a RandomOpsCluster, from a seed: who comes, what happens, and that every gang starts.

What must hold all the time stands in `admission_laws.py`. At the end of a run must hold, besides:

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
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS
from sim.admission_laws import LawBrokenError, Laws
from sim.api import FaultRates
from sim.client import START
from sim.cluster import CHECK
from sim.environment import UNLIMITED, Environment, nature_of
from sim.other_tenants import Tenant, Tenants
from sim.random_autoscaler import Whims
from sim.random_ops import SECOND, RandomOpsCluster, is_let_go, is_on_a_node
from sim.second_check import NAME, SecondCheck

from scaler.kube.objects.resources import NODE, POD, PROVISIONING_REQUEST, RECLAIM_POLICY, WORKLOAD

_MOST = 8
"""Jobs of one run."""
_PATIENCE = 25
"""Seconds without anything new at the end, after which somebody who waits is said to starve."""
_LATEST = 60 + (_MOST + 1) * (_PATIENCE + 1)
"""Seconds after which a run is over: each job that fits nowhere may hold the quota until it is deleted, one after the
other."""
_LATE = timedelta(minutes=11)
"""After so long nodes that are coming are not counted on any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run."""

    seed: int
    nature: Environment
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
        broken = f"the simulation broke: {error}"
    return Outcome(
        seed=seed,
        nature=run.nature,
        started=sum(guest.has_run for guest in run.guests.all),
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
        self.story: list[str] = []
        self._blind_until = 0
        self._pins = nature.pins
        self._has_waited = False
        self.town = town = RandomOpsCluster(
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
        self.guests = Tenants(town, nature, dice, self._tell)
        self.cloud = Whims(town, dice, revokes=nature.is_shaky, labels=nature.labels) if nature.provisions else None
        for name, value in (("low", 1), ("high", 9)):
            town.client.add(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
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
        self._see_again()
        self.guests.follow()

    def _something_happens(self) -> None:
        dice, town, guests = self.dice, self.town, self.guests
        if len(guests.all) < _MOST and dice.random() < 0.5:
            guests.submit()
        for guest in [each for each in guests.there() if dice.random() < 0.04]:
            dice.choice((guests.deactivate, guests.deactivate, guests.take, guests.delete))(guest)
        starting = [each for each in guests.there() if guests.is_starting(each)]
        if starting and dice.random() < 0.15:
            dice.choice((guests.deactivate, guests.take, guests.delete))(dice.choice(starting))
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

    # --------------------------------------------------------------------------------------------------- what happens

    def _see_again(self) -> None:
        if self.town.second >= self._blind_until:
            self.town.blind = ""

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

    # -------------------------------------------------------------------------------------------------------- the end

    def _calm_down(self) -> None:
        self._tell("from now on nothing goes wrong any more")
        self.town.mischief, self.town.blind = FaultRates(), ""
        self._restore_policy()
        if self.cloud is not None:
            self.cloud.is_honest = True
        if self._other is not None:
            self._other.is_patient = True
        for node in self.town.client.all(NODE):
            if node["spec"].get("unschedulable"):
                self.town.change(NODE, node["metadata"]["name"], {"spec": {"unschedulable": False}})
        for guest in self.guests.all:
            guest.lasts = min(guest.lasts, 2)
            if guest.back_at is not None and not guest.is_gone:
                self.guests.reactivate(guest)

    async def _wind_up(self) -> None:
        """All that can end does. Raises: LawBrokenError where somebody starves."""
        self.guests.news = self.town.second
        while left := [guest for guest in self.guests.all if not guest.is_gone]:
            await self._second(quiet=True)
            if not any(guest.fits for guest in left):
                return
            if self.town.second - self.guests.news > _PATIENCE or self.town.second > _LATEST:
                self._give_up(left)

    def _give_up(self, left: Sequence[Tenant]) -> None:
        """Nothing moves any more. Where quota is scarce, one that can never start may hold it: somebody deletes it."""
        if self.nature.provisions and not self._has_waited:
            self._tell("eleven minutes go by")
            self._has_waited, self.guests.news = True, self.town.second
            self.town.client.now += _LATE
            return
        hopeless = [guest for guest in left if not guest.fits]
        starving = [guest for guest in left if guest.fits]
        is_short = self.nature.quota < UNLIMITED and any(not self.town.holds_quota(guest.name) for guest in starving)
        stuck = [guest for guest in left if self.nature.is_shaky and is_let_go(self.guests.workload(guest) or {})]
        for guest in stuck or (hopeless if is_short else []):
            self.guests.delete(guest)
            self.guests.news = self.town.second
            return
        who = starving[0]
        raise LawBrokenError(f"{who} never starts: {self.town.says(who.name)}")

    async def _look_back(self) -> None:
        """Raises: LawBrokenError."""
        await self.town.seconds(6, quiet=True)
        if self.town.active() != "True":
            raise LawBrokenError(f"our AdmissionCheck is not Active: {self.town.active()}")
        starved = [guest for guest in self.guests.all if guest.fits and not guest.has_run and not guest.is_gone]
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
