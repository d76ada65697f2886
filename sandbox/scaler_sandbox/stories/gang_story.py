"""What the acts have in common: gangs, their observed state, and the timeline.

The scaler runs beside it. An act only does what users do, and reads the Kubernetes API.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from scaler.kube.objects.resources import JOB, POD, SCALABLE_WORKLOAD, Resource
from scaler_sandbox.job_manifests import cluster_queue, flavor, job, local_queue, scaling
from scaler_sandbox.job_manifests import namespace as namespace_manifest
from scaler_sandbox.kinds import Json
from scaler_sandbox.sandbox import Sandbox
from scaler_sandbox.stories.facts import ActOutcome, Gang, News, Row, StoryEntry, gang, pods_of

NAMESPACE = COHORT = "research"
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 120.0
_WATCHES_SECONDS = 2.0
"""How long idle Jobs have to keep running while no Workload is pending."""
TRIGGER = {
    "reclaim": "OnPressure",
    "idleAfter": "30m",
    "idleAfterUnderPressure": "4s",
    "warmUp": "1s",
    "suspendedAtOnce": "8",  # so that the dashboards show a budget; none is used up
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A Job that holds GPUs before the gang comes."""

    name: str
    team: str
    gpus: int
    works: bool = False
    annotations: Mapping[str, str] | None = None
    """Annotations of its pods."""


def queues(teams: Mapping[str, int], *, checks: Mapping[str, Sequence[str]] | None = None) -> list[Json]:
    """The namespace, the flavor, and for every team a ClusterQueue in the cohort and a LocalQueue.

    `teams` are GPUs by team, `checks` the AdmissionChecks of a team's queue.
    """
    return [
        namespace_manifest(NAMESPACE),
        flavor("gpu"),
        *(
            cluster_queue(team, gpus, flavor="gpu", checks=(checks or {}).get(team, ()), cohortName=COHORT)
            for team, gpus in teams.items()
        ),
        *(local_queue(team, NAMESPACE, team) for team in teams),
    ]


@dataclass(kw_only=True)
class GangStory(ABC):
    """One telling. The world must follow ScalableWorkloads; `began` is when the demo did, on the monotonic clock."""

    gang: ClassVar[str]
    """Name of the one that waits."""
    owner: ClassVar[Resource] = JOB
    """What gangs are."""
    namespace: ClassVar[str] = NAMESPACE

    world: Sandbox
    scaler_address: str
    tell: Callable[[StoryEntry], None]
    began: float
    plan: str = field(default="", init=False)
    """The plan for the gang, once there is one."""
    victims: tuple[str, ...] = field(default=(), init=False)
    _seen: dict[str, Gang] = field(default_factory=dict, init=False)
    _asked: dict[str, int] = field(default_factory=dict, init=False)
    waiting_since: float | None = field(default=None, init=False)
    admitted_at: float = field(default=0.0, init=False)

    @abstractmethod
    async def play(self) -> None:
        """What users do, to the end. Raises: TimeoutError at the step that timed out."""

    @abstractmethod
    def outcome(self, took: float) -> ActOutcome:
        """`took` is how many seconds the gang waited until it was admitted."""

    async def run(self) -> ActOutcome:
        """Runs to the end, or to the step that timed out."""
        watching = asyncio.create_task(self._watch(), name=f"story-of-{self.gang}")
        try:
            await self.play()
        except TimeoutError as error:
            return ActOutcome(ok=False, problem=str(error))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if self.waiting_since is None or not self.admitted_at:
            return ActOutcome(ok=False, problem=f"{self.gang} was never admitted")
        return self.outcome(round(self.admitted_at - self.waiting_since, 2))

    def rows(self) -> Sequence[Row]:
        """Every Job as it stands, for a picture."""
        return [Row(each.name, self.desired(each.name), each) for each in self._seen.values()]

    # ------------------------------------------------------------------------------------------------- what people do

    async def start(self, holders: Sequence[RunningJob]) -> None:
        """Submits the Jobs, one after the other, each with what lets a plan take it."""
        for holder in holders:
            await self.submit(holder.name, holder.team, gpus=holder.gpus, annotations=holder.annotations)
            await self.run_of(holder.name)
            self.world.fleet.set_activity(NAMESPACE, f"{holder.name}-*", 0.85 if holder.works else 0.0, noise=0.05)
            await self.world.apply(scaling(holder.name, NAMESPACE, self.scaler_address, TRIGGER))

    async def submit(self, name: str, team: str, **pods: Any) -> None:
        await self.world.apply(job(name, NAMESPACE, team, **pods))

    async def run_of(self, name: str) -> None:
        """Returns when all pods of the Job run. Raises: TimeoutError."""
        await self.until(lambda: self.state(name).is_running, f"{name} to run whole")

    async def idle_keeps_running(self, idlers: Sequence[str], what: str) -> None:
        """Idle alone is no reason to suspend: only a Workload that waits for the GPUs is."""
        await self.until(lambda: set(idlers) <= self._idle(), f"{what} to be idle")
        self.say(
            "Idle",
            f"Cohort/{COHORT}",
            "IdleNotNeeded",
            f"{what} are idle; no Workload waits for quota, so all keep running",
        )
        await asyncio.sleep(_WATCHES_SECONDS)
        if stopped := self.stopped(idlers):
            raise TimeoutError(f"{', '.join(stopped)} stopped although no Workload waited")

    async def wait_for_quota(self) -> None:
        await self.until(lambda: self.state(self.gang).waits_because, "the gang to wait for quota")
        self.waiting_since = time.monotonic()

    async def begin_to_wait(self) -> None:
        await self.wait_for_quota()
        await self.until(lambda: self.plan, "a plan for the gang")

    def stopped(self, names: Sequence[str]) -> list[str]:
        """The names that do not run."""
        return [name for name in names if not self.state(name).is_running]

    # ------------------------------------------------------------------------------------------------- what is seen

    def desired(self, name: str) -> int:
        """The replicas that KEDA has asked for."""
        return self._asked.get(name, 1)

    def state(self, name: str) -> Gang:
        """The gang as last seen."""
        return self._seen.get(name, Gang(name=name))

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Raises: TimeoutError."""

        def seen() -> Any:
            self.look()
            return holds()

        await self.world.wait_for(seen, what, within=_PATIENCE_SECONDS)

    def look(self) -> None:
        """Reads the objects and reports their changes."""
        for scalable in self.world.all(SCALABLE_WORKLOAD, self.namespace):
            self._see_grant(scalable)
            self._see_replicas(scalable["metadata"]["name"], scalable["spec"].get("replicas", 1))
        present = [body["metadata"]["name"] for body in self.world.all(self.owner, self.namespace)]
        for name in dict.fromkeys([*self._seen, *present]):
            self._see_gang(name)

    def pods_of(self, name: str) -> list[Json]:
        """The pods of the gang."""
        return pods_of(self.world.all(POD, self.namespace), name)

    def changed(self, before: Gang, now: Gang) -> None:
        """Reports the changes of a gang."""
        where = f"{self.owner.kind}/{now.name}"
        if before.exists and not now.exists:
            self.say("Ended", where, "Deleted", "its owner has deleted it")
        if before.active and not now.active:
            self.say("Deactivated", where, "Deactivated", "its Workload is inactive: Kueue takes the quota back")
        if before.pods and not now.pods:
            self.say("PodsGone", where, "PodsGone", "its GPUs are really free")
        if now.name == self.gang:
            self.starts(before, now, where)

    def starts(self, before: Gang, now: Gang, where: str) -> None:
        """Reports how far a gang is from running."""
        if now.waits_because and not before.waits_because and now.active:
            self.say("Waiting", where, "WaitingForQuota", now.waits_because)
        if now.admitted and not before.admitted:
            if now.name == self.gang:
                self.admitted_at = self.admitted_at or time.monotonic()
            self.say("Admitted", where, "Admitted", "Kueue admits the whole gang")
        if now.is_running and not before.is_running:
            self.say("Running", where, "PodsRunning", f"{now.running} of {now.pods} pods run")

    def say(self, event: str, about: str, reason: str, message: str) -> None:
        line = News(event, about, reason, message)
        self.tell(StoryEntry(t=round(time.monotonic() - self.began, 2), news=line))

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def _idle(self) -> set[str]:
        found = self.world.all(SCALABLE_WORKLOAD, NAMESPACE)
        return {each["metadata"]["name"] for each in found if _status(each).get("reason") == "IdleNotNeeded"}

    def _see_grant(self, scalable: Json) -> None:
        grant = _status(scalable).get("grant")
        if grant and grant["plan"] != self.plan:
            self.plan = grant["plan"]
            self.victims = tuple(name.partition("/")[2] for name in grant["victims"])
            names = " and ".join(self.victims)
            self.say(
                "Planned", f"Job/{self.gang}", "ReclaimPlanned", f"plan {self.plan} suspends {names}: all, or none"
            )

    def _see_replicas(self, name: str, asked: int) -> None:
        before, self._asked[name] = self._asked.get(name, asked), asked
        if asked != before:
            event = "ScaledToZero" if asked == 0 else "ScaledToOne"
            self.say(event, f"ScalableWorkload/{name}", "Scaled", f"KEDA sets replicas to {asked}")

    def _see_gang(self, name: str) -> None:
        body = self.world.find(self.owner, self.namespace, name)
        workload = self.world.workload_of(self.owner, self.namespace, name)
        now = gang(name, cluster=body, workload=workload, pods=self.pods_of(name))
        before, self._seen[name] = self.state(name), now
        self.changed(before, now)


def _status(body: Json) -> Json:
    status: Json = body.get("status") or {}
    return status
