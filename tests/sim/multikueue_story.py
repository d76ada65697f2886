"""One random story of a hub and its workers, from a seed: who comes, what happens, and that every gang starts.

Gangs come to the hub, jobs to the workers; some of these idle, and may be suspended for a gang. Workers are lost, slow,
evict what was dispatched to them, and start anew; so do all programs, in the middle of whatever they write; clocks are
apart. What must hold all the time is in `multikueue_laws.py`. When all that has ended must hold, besides:

* Every gang that fits a worker, once all that idles there is suspended, has run to its end, whatever has evicted it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS
from sim.api import FaultRates
from sim.client import START, AtOnce, SimClient
from sim.dispatcher_on_hub import PATIENCE, HubDispatcher
from sim.multikueue_clusters import EXTERNAL, DispatchedClusters
from sim.multikueue_laws import MultiKueueLawError, MultiKueueLaws
from sim.scaler_on_worker import WorkerScaler

from scaler.kube.objects.resources import POD

SECOND = timedelta(seconds=1)
_FAULTS = FaultRates(refused=20, conflicts=20, unheard=20, deadly=20)
_PATIENCE = 8 * PATIENCE
"""Without anything new at the end, after which a gang that waits is said to starve."""
_LATEST = 3600


@dataclass(slots=True, kw_only=True)
class StoryJob:
    """A job of the story, on the hub or on one of the workers."""

    name: str
    gpus: int
    lasts: int
    """Seconds that it runs."""
    at: str = ""
    idles: bool = False
    ran: int = 0
    has_started: bool = False
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryOutcome:
    """What came of a story."""

    seed: int
    gangs: int
    started: int
    suspensions: int
    deaths: int
    seconds: int
    broken: str = ""
    story: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        title = f"story {self.seed}: {self.broken or 'all laws held'}"
        return "\n".join((title, *(f"  {line}" for line in self.story)))


async def play(seed: int) -> StoryOutcome:
    """The story of that seed."""
    asyncio.get_running_loop().set_default_executor(AtOnce())
    story, broken = MultiKueueStory(seed), ""
    try:
        await story.play()
    except MultiKueueLawError as error:
        broken = str(error)
    return StoryOutcome(
        seed=seed,
        gangs=len(story.gangs),
        started=sum(each.has_started for each in story.gangs),
        suspensions=len(story.laws.suspensions),
        deaths=story.hub.deaths + sum(each.deaths for each in story.scalers.values()),
        seconds=story.second,
        broken=broken,
        story=tuple(story.told),
    )


class MultiKueueStory:
    """A story while it happens."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = Random(seed)
        self.told: list[str] = []
        names = [f"w{number}" for number in range(1, dice.randrange(2, 5) + 1)]
        self.quotas = {name: dice.choice((4, 8, 8, 12)) for name in names}
        apart = {name: timedelta(seconds=dice.choice((0, 0, -90, 45, 3600))) for name in names}
        self.clusters = DispatchedClusters(
            self.quotas,
            config=EXTERNAL,
            ahead=apart,
            queueingStrategy=dice.choice(("StrictFIFO", "BestEffortFIFO")),
            preemption={"withinClusterQueue": "LowerPriority"},
        )
        for each in self.clusters.workers.values():
            each.client.add(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 9})
        self.scalers = {name: WorkerScaler(each) for name, each in self.clusters.workers.items()}
        for scaler in self.scalers.values():
            scaler.api.chance = dice
        self.hub = HubDispatcher(self.clusters, dice)
        self.laws = MultiKueueLaws(self.clusters, self.scalers, patience=PATIENCE)
        self.jobs: list[StoryJob] = []
        self._ends: dict[str, tuple[int, str]] = {}
        """By what is wrong with a worker and its name, when that ends, and in words."""
        self._news = 0
        self.tell(f"workers {self.quotas}, clocks { ({k: int(v.total_seconds()) for k, v in apart.items()}) }")

    @property
    def gangs(self) -> list[StoryJob]:
        return [each for each in self.jobs if not each.at]

    @property
    def second(self) -> int:
        return round((self.clusters.now - START).total_seconds())

    def tell(self, words: str) -> None:
        self.told.append(f"{self.second:4} s  {words}")

    # -------------------------------------------------------------------------------------------------------- the story

    async def play(self) -> None:
        """Raises: MultiKueueLawError."""
        await self.clusters.settle()
        self._furnish()
        await self._seconds(self.dice.randrange(100, 150))
        self._set_rates(self.dice.choice((FaultRates(), _FAULTS, _FAULTS)))
        for _ in range(self.dice.randrange(150, 350)):
            self._something_happens()
            await self._seconds(1)
        self._calm_down()
        await self._wind_up()

    async def _seconds(self, count: int) -> None:
        for _ in range(count):
            await self.clusters.passes(1, step=SECOND)
            self._follow_jobs()
            parts = [self.hub, *self.scalers.values()]
            for part in self.dice.sample(parts, len(parts)):
                await part.turn()
                del self.hub.reports[:-1]
                self.laws.look()
            await self.clusters.settle()
            self.laws.look()
            self._end_what_ends()

    def _furnish(self) -> None:
        """Jobs that were there before."""
        for name, quota in self.quotas.items():
            left = quota
            while left > 0 and self.dice.random() < 0.85:
                gpus = min(left, self.dice.choice((1, 2, 2, 4)))
                idles = self.dice.random() < 0.6
                self._submit(at=name, gpus=gpus, idles=idles, lasts=_LATEST if idles else self.dice.choice((200, 400)))
                left -= gpus

    def _submit(self, *, gpus: int, at: str = "", idles: bool = False, lasts: int = 0, urgent: bool = False) -> None:
        kind = "gang" if not at else "note" if idles else "local"
        job = StoryJob(name=f"{kind}-{len(self.jobs)}", gpus=gpus, at=at, idles=idles, lasts=lasts)
        self.jobs.append(job)
        labels = {"kueue.x-k8s.io/priority-class": "high"} if urgent else {}
        self.tell(f"{job.name} with {gpus} GPUs comes to {at or 'the hub'}{', urgent' if urgent else ''}")
        self.clusters.submit(job.name, pods=gpus, at=at, labels=labels, template=one_gpu_pods())
        if idles:
            self.scalers[at].attaches(job.name)

    def _something_happens(self) -> None:
        dice = self.dice
        if len(self.gangs) < 7 and dice.random() < 0.04:
            self._submit(gpus=dice.choice((1, 2, 4, 4, 8)), lasts=dice.randrange(5, 100))
        for chance, act in (
            (0.010, self._come_locally),
            (0.010, self._lose),
            (0.010, self._slow_down),
            (0.020, self._deactivate_copy),
            (0.010, self._restart_scaler),
            (0.010, self._restart_kueue),
            (0.010, self._kill_leader),
            (0.030, self._work_or_rest),
        ):
            if dice.random() < chance:
                act(dice.choice([*self.quotas]))

    # ----------------------------------------------------------------------------------------------------- what happens

    def _come_locally(self, name: str) -> None:
        self._submit(
            at=name,
            gpus=self.dice.choice((1, 2, 4)),
            lasts=self.dice.randrange(20, 120),
            urgent=self.dice.random() < 0.5,
        )

    def _lose(self, name: str) -> None:
        if name not in self.clusters.links.lost:
            self._begin(f"lost {name}", self.dice.choice((5, 20, 50, 90, 150)))
            self.clusters.links.lost[name] = "connection refused"

    def _slow_down(self, name: str) -> None:
        self._begin(f"slow {name}", self.dice.choice((10, 40, 100, 150)))
        self.scalers[name].is_stopped = True

    def _deactivate_copy(self, name: str) -> None:
        for gang in self.gangs:
            if self.clusters.workers[name].workload(gang.name) is not None:
                self.tell(f"somebody deactivates the copy of {gang.name} on {name}")
                self.clusters.set_active(gang.name, False, at=name)
                return

    def _restart_scaler(self, name: str) -> None:
        self.tell(f"the scaler of {name} starts anew")
        self.scalers[name].starts()

    def _restart_kueue(self, name: str) -> None:
        self.tell(f"Kueue starts anew on {name} and on the hub")
        self.clusters.workers[name].start_controllers()
        self.clusters.hub.start_controllers()
        self.clusters.start_dispatching()

    def _kill_leader(self, _name: str) -> None:
        self.tell("the hub's leader is killed")
        self.hub.starts()

    def _work_or_rest(self, name: str) -> None:
        notes = [each.name for each in self.jobs if each.at == name and each.idles]
        if notes:
            job = self.dice.choice(notes)
            self.dice.choice((self.scalers[name].works, self.scalers[name].rests))(job)

    def _begin(self, what: str, seconds: int) -> None:
        self.tell(f"{what} for {seconds} s")
        self._ends[what] = self.second + seconds, what

    def _end_what_ends(self) -> None:
        for key, (at, what) in [*self._ends.items()]:
            if at <= self.second:
                del self._ends[key]
                kind, name = what.split()
                self.tell(f"{name} is no longer {kind}")
                if kind == "lost":
                    self.clusters.links.lost.pop(name, None)
                else:
                    self.scalers[name].is_stopped = False

    def _follow_jobs(self) -> None:
        """What has run for long enough has succeeded."""
        for job in self.jobs:
            if job.is_done:
                continue
            for member in [self.clusters.workers[job.at]] if job.at else [*self.clusters.workers.values()]:
                if not member.runs(job.name):
                    continue
                if not job.has_started:
                    self.tell(f"{job.name} starts")
                    self._news = self.second
                job.has_started = True
                job.ran += 1
                if job.ran >= job.lasts:
                    self._finish(job, member.client)

    def _finish(self, job: StoryJob, client: SimClient) -> None:
        self.tell(f"{job.name} is done")
        self._news, job.is_done = self.second, True
        for pod in client.all(POD):
            if pod["metadata"]["ownerReferences"][0]["name"] == job.name:
                client.change(POD, "ns", pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")

    # ---------------------------------------------------------------------------------------------------------- the end

    def _set_rates(self, rates: FaultRates) -> None:
        self.hub.set_rates(rates)
        for each in self.scalers.values():
            each.api.rates = rates

    def _calm_down(self) -> None:
        self.tell("from now on nothing goes wrong any more")
        self._set_rates(FaultRates())
        self._ends = {key: (0, what) for key, (_, what) in self._ends.items()}
        for job in self.jobs:
            if job.at and not job.idles:
                job.lasts = min(job.lasts, job.ran + 20)
            elif job.idles:
                self.scalers[job.at].rests(job.name)

    async def _wind_up(self) -> None:
        """Raises: MultiKueueLawError where a gang starves."""
        self._news = self.second
        while left := [each for each in self.gangs if not each.is_done and each.gpus <= max(self.quotas.values())]:
            await self._seconds(1)
            if self.second - self._news > _PATIENCE.total_seconds() or self.second > _LATEST:
                ends = "never ends" if left[0].has_started else "never starts"
                raise MultiKueueLawError(f"{left[0].name} {ends}: {self._why(left[0].name)}")

    def _why(self, gang: str) -> str:
        plan = self.hub.reports[-1].plan if self.hub.reports else None
        steps = [str(each.step) for each in plan.workloads] if plan is not None else ["no plan"]
        return f"{self.clusters.state(gang)}, nominated {self.clusters.nominated(gang)}; {steps}"


def one_gpu_pods() -> Mapping[str, object]:
    """The template of a Job whose pods have a GPU each."""
    amounts = {"nvidia.com/gpu": 1}
    container = {"name": "main", "image": "train:1", "resources": {"limits": amounts, "requests": amounts}}
    return {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}}
