"""One random run of admission in a RandomOpsCluster, from a seed: who comes, what happens, and that every gang starts.

What must hold all the time stands in `admission_laws.py`. At the end of a run must hold, besides:

* Every gang that can fit has run whole. It can fit if it fits the nodes that are there from the beginning, all of them
  empty, and the quota. All gangs end in the end, so that each of them gets its turn. One that cannot fit, and has taken
  quota that others need, is deleted by a user once nothing moves any more.
* Our AdmissionCheck is Active, and no request of a gang that is gone is left.

Two kinds of runs. In a strict one every gang is sure of its places on empty nodes wherever the scheduler puts its pods,
and no machine is lost: there all laws hold without exception. In a shaky one machines are lost or cordoned, pods fail
and come again, capacity is revoked, and gangs are released that only fit if the scheduler puts every pod where it must.
Their nodes are never certain, and a gang released beside them may lose its nodes to them: there it is not looked
at whether pods find nodes, and one that is stuck with half of its pods is deleted by a user in the end.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS
from sim.admission_laws import LawBrokenError, Laws
from sim.api import FaultRates
from sim.client import START, AtOnce
from sim.cluster import CHECK
from sim.other_tenants import NAME, SecondCheck, Tenant, Tenants
from sim.random_autoscaler import RandomAutoscaler
from sim.random_ops import (
    SECOND,
    UNLIMITED,
    Environment,
    RandomOpsCluster,
    environment_of,
    is_on_a_node,
    is_released,
)

from scaler.kube.objects.resources import NODE, POD, PROVISIONING_REQUEST, RECLAIM_POLICY, WORKLOAD

_MOST = 8
"""Jobs of one run."""
_PATIENCE = 65
"""Seconds without anything new at the end, after which a gang that waits is said to starve: others wait for a minute
until new nodes are booked."""
_LATEST = 60 + (_MOST + 1) * (_PATIENCE + 1)
"""Seconds after which a run is over: each job that fits nowhere may hold the quota until it is deleted, one after the
other."""
_LATE = timedelta(minutes=11)
"""After so long nodes that are coming are not counted on any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run."""

    seed: int
    env: Environment
    started: int
    strandings: int
    deaths: int
    broken: str = ""
    story: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        title = f"run {self.seed}: {self.broken or 'all laws held'}"
        return "\n".join((title, f"  {self.env}", *(f"  {line}" for line in self.story)))


async def play(seed: int) -> Outcome:
    """The run of that seed."""
    asyncio.get_running_loop().set_default_executor(AtOnce())
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
        env=run.env,
        started=sum(tenant.has_run for tenant in run.tenants.all),
        strandings=run.laws.strandings,
        deaths=run.cluster.deaths,
        broken=broken,
        story=tuple(run.story),
    )


class Run:
    """A story while it happens."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = Random(seed)
        self.env = env = environment_of(dice)
        self.story: list[str] = []
        self._blind_until = 0
        self._pins = env.pins
        self._has_waited = False
        self.cluster = cluster = RandomOpsCluster(
            dict(env.nodes),
            dice,
            hurries=env.hurries,
            policy=env.policy,
            quota=env.quota,
            checks=(CHECK, NAME) if env.second_check else (CHECK,),
            **env.queue,
        )
        cluster.record = self._tell
        self.laws = Laws(cluster, env)
        self.tenants = Tenants(cluster, env, dice, self._tell)
        self.cloud = (
            RandomAutoscaler(cluster, dice, revokes=env.is_shaky, labels=env.labels) if env.provisions else None
        )
        for name, value in (("low", 1), ("high", 9)):
            cluster.client.add(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
        self._other = SecondCheck(cluster, dice) if env.second_check else None

    def _tell(self, words: str) -> None:
        self.story.append(f"{(self.cluster.client.now - START).total_seconds():3.0f} s  {words}")

    # ---------------------------------------------------------------------------------------------------- the story

    async def play(self) -> None:
        """Raises: LawBrokenError where a law does not hold."""
        self._tell(f"nodes {dict(self.env.nodes)}")
        self.cluster.fault_rates = self.env.fault_rates
        await self._second()
        for _ in range(self.env.seconds):
            self._something_happens()
            await self._second()
        self._calm_down()
        await self._wind_up()
        await self._look_back()

    async def _second(self, *, quiet: bool = False) -> None:
        await self.cluster.seconds(1, quiet=quiet)
        self.laws.after_second()
        self._see_again()
        self.tenants.follow()

    def _something_happens(self) -> None:
        dice, cluster, tenants = self.dice, self.cluster, self.tenants
        if len(tenants.all) < _MOST and dice.random() < 0.5:
            tenants.submit()
        for tenant in [each for each in tenants.there() if dice.random() < 0.04]:
            dice.choice((tenants.deactivate, tenants.deactivate, tenants.take, tenants.delete))(tenant)
        starting = [each for each in tenants.there() if tenants.is_starting(each)]
        if starting and dice.random() < 0.15:
            dice.choice((tenants.deactivate, tenants.take, tenants.delete))(dice.choice(starting))
        if dice.random() < 0.05:
            self._tell("our process starts anew")
            cluster.restart()
        if dice.random() < 0.03 and not cluster.blind:
            self._tell("nodes are not watched for a while")
            cluster.blind, self._blind_until = "a test wants it", cluster.second + dice.randrange(1, 5)
        if dice.random() < 0.02:
            name = f"node-{len(cluster.client.all(NODE))}x"
            if cluster.client.find(NODE, "", name) is None:
                self._tell(f"node {name} is added, with 8 GPUs")
                cluster.add_node(name, 8)
        if dice.random() < 0.04:
            self._edit_policy()
        if self.env.is_shaky and dice.random() < 0.15:
            dice.choice((self._lose_pod, self._lose_pod, self._cordon, self._lose_node))()

    # --------------------------------------------------------------------------------------------------- what happens

    def _see_again(self) -> None:
        if self.cluster.second >= self._blind_until:
            self.cluster.blind = ""

    def _edit_policy(self) -> None:
        """Somebody deletes it by mistake, and makes it anew, or ties gangs to nodes from now on, or not any more."""
        if self.cluster.client.find(RECLAIM_POLICY, "", "policy") is None:
            self._restore_policy()
        elif self.dice.random() < 0.5:
            self._tell("a user deletes the ReclaimPolicy")
            self.cluster.client.remove(RECLAIM_POLICY, "", "policy")
        else:
            self._pins = not self._pins
            self._tell(f"gangs are {'' if self._pins else 'not '}tied to nodes from now on")
            self.cluster.change(RECLAIM_POLICY, "policy", {"spec": {"pin": {"enabled": self._pins}}})

    def _restore_policy(self) -> None:
        if self.cluster.client.find(RECLAIM_POLICY, "", "policy") is None:
            self._tell("the ReclaimPolicy is there again")
            self.cluster.add(RECLAIM_POLICY, "policy", spec={**self.env.policy, "pin": {"enabled": self._pins}})

    def _lose_pod(self) -> None:
        running = [pod for pod in self.cluster.client.all(POD) if is_on_a_node(pod)]
        if running:
            name = self.dice.choice(running)["metadata"]["name"]
            self._tell(f"pod {name} fails")
            self.cluster.change(POD, name, {"status": {"phase": "Failed"}}, "status")

    def _cordon(self) -> None:
        node = self.dice.choice(self.cluster.client.all(NODE))
        is_cordoned = not node["spec"].get("unschedulable")
        self._tell(f"node {node['metadata']['name']} is {'' if is_cordoned else 'un'}cordoned")
        self.cluster.change(NODE, node["metadata"]["name"], {"spec": {"unschedulable": is_cordoned}})

    def _lose_node(self) -> None:
        name = self.dice.choice(self.cluster.client.all(NODE))["metadata"]["name"]
        if name not in self.env.nodes:
            self.cluster.remove_node(name)

    # -------------------------------------------------------------------------------------------------------- the end

    def _calm_down(self) -> None:
        self._tell("from now on nothing goes wrong any more")
        self.cluster.fault_rates, self.cluster.blind = FaultRates(), ""
        self._restore_policy()
        if self.cloud is not None:
            self.cloud.is_honest = True
        if self._other is not None:
            self._other.is_patient = True
        for node in self.cluster.client.all(NODE):
            if node["spec"].get("unschedulable"):
                self.cluster.change(NODE, node["metadata"]["name"], {"spec": {"unschedulable": False}})
        for tenant in self.tenants.all:
            tenant.lasts = min(tenant.lasts, 2)
            if tenant.back_at is not None and not tenant.is_gone:
                self.tenants.reactivate(tenant)

    async def _wind_up(self) -> None:
        """All that can end does. Raises: LawBrokenError where a gang starves."""
        self.tenants.news = self.cluster.second
        while left := [tenant for tenant in self.tenants.all if not tenant.is_gone]:
            await self._second(quiet=True)
            if not any(tenant.fits for tenant in left):
                return
            if self.cluster.second - self.tenants.news > _PATIENCE or self.cluster.second > _LATEST:
                self._give_up(left)

    def _give_up(self, left: Sequence[Tenant]) -> None:
        """Nothing moves any more. Where quota is scarce, one that can never start may hold it: a user deletes it."""
        if self.env.provisions and not self._has_waited:
            self._tell("eleven minutes go by")
            self._has_waited, self.tenants.news = True, self.cluster.second
            self.cluster.client.now += _LATE
            return
        hopeless = [tenant for tenant in left if not tenant.fits]
        starving = [tenant for tenant in left if tenant.fits]
        is_short = self.env.quota < UNLIMITED and any(not self.cluster.holds_quota(tenant.name) for tenant in starving)
        stuck = [tenant for tenant in left if self.env.is_shaky and is_released(self.tenants.workload(tenant) or {})]
        for tenant in stuck or (hopeless if is_short else []):
            self.tenants.delete(tenant)
            self.tenants.news = self.cluster.second
            return
        who = starving[0]
        raise LawBrokenError(f"{who} never starts: {self.cluster.says(who.name)}")

    async def _look_back(self) -> None:
        """Raises: LawBrokenError."""
        await self.cluster.seconds(6, quiet=True)
        if self.cluster.active() != "True":
            raise LawBrokenError(f"our AdmissionCheck is not Active: {self.cluster.active()}")
        starved = [tenant for tenant in self.tenants.all if tenant.fits and not tenant.has_run and not tenant.is_gone]
        if starved:
            raise LawBrokenError(f"{starved[0]} ended without having run")
        if self.env.provisions:
            await self._sweep_up()

    async def _sweep_up(self) -> None:
        """Raises: LawBrokenError."""
        await self.cluster.seconds(6, quiet=True)
        self.cluster.client.now += 31 * SECOND
        await self.cluster.seconds(6, quiet=True)
        there = {body["metadata"]["uid"] for body in self.cluster.client.all(WORKLOAD)}
        for request in self.cluster.client.all(PROVISIONING_REQUEST):
            if request["metadata"]["labels"]["idlegpu.io/workload-uid"] not in there:
                raise LawBrokenError(f"{request['metadata']['name']} is left, and its gang is gone")
