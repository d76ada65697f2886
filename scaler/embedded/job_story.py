"""What acts about a gang of pods and idle Jobs have in common: who holds GPUs, what is seen, and how it is told.

Whoever plays the scaler runs beside it. An act only does what people do, and looks at the Kubernetes API.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from scaler.embedded.facts import Gang, News, gang
from scaler.embedded.job_manifests import COHORT, NAMESPACE, Holder, PressureTiming, job, scaling
from scaler.embedded.kinds import JOB, POD, Json
from scaler.embedded.story import Entry, Row
from scaler.embedded.world import World
from scaler.kube.resources import SCALABLE_WORKLOAD

_LOOK_SECONDS = 0.05


@dataclass(kw_only=True)
class JobStory(ABC):
    """One telling. The world must follow ScalableWorkloads; `began` is when the demo did, on the monotonic clock."""

    gang: ClassVar[str]
    """Name of the Job that waits."""

    world: World
    scaler_address: str
    tell: Callable[[Entry], None]
    began: float
    timing: PressureTiming = field(default_factory=PressureTiming)
    plan: str = field(default="", init=False)
    """The plan for the gang, once there is one."""
    victims: tuple[str, ...] = field(default=(), init=False)
    _seen: dict[str, Gang] = field(default_factory=dict, init=False)
    _asked: dict[str, int] = field(default_factory=dict, init=False)
    _waiting_since: float | None = field(default=None, init=False)
    _admitted_at: float | None = field(default=None, init=False)

    @abstractmethod
    async def play(self) -> None:
        """What people do, to the end. Raises: TimeoutError at the step that did not come."""

    async def tell_it(self) -> tuple[str, float]:
        """Tells it to the end, or to the step that did not come: that problem, and how many seconds it took."""
        started = time.monotonic()
        watching = asyncio.create_task(self._watch(), name=f"story-of-{self.gang}")
        try:
            await self.play()
        except TimeoutError as error:
            return str(error), round(time.monotonic() - started, 2)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return "", round(time.monotonic() - started, 2)

    def rows(self) -> Sequence[Row]:
        """Every Job as it stands, for a picture."""
        return [Row(each.name, self._asked.get(each.name, 1), each) for each in self._seen.values()]

    @property
    def seconds_from_waiting_to_admitted(self) -> float | None:
        """How long the gang waited; None where it did not get in."""
        if self._waiting_since is None or self._admitted_at is None:
            return None
        return round(self._admitted_at - self._waiting_since, 2)

    # ------------------------------------------------------------------------------------------------- what people do

    async def start(self, holders: Sequence[Holder]) -> None:
        """Submits the Jobs, one after the other, each with what lets a plan take it."""
        for holder in holders:
            await self.world.apply(job(holder.name, holder.team, gpus=holder.gpus, annotations=holder.annotations))
            await self.run_of(holder.name)
            self.world.fleet.set_activity(NAMESPACE, f"{holder.name}-*", 0.85 if holder.works else 0.0, noise=0.05)
            await self.world.apply(scaling(holder.name, self.scaler_address, self.timing))

    async def run_of(self, name: str) -> None:
        """Returns when all pods of the Job run. Raises: TimeoutError."""
        await self.until(lambda: self.state(name).is_running, f"{name} to run whole")

    async def nobody_waits(self, idlers: Sequence[str], who: str) -> None:
        """Idle is no reason to suspend anybody as long as nobody needs the GPUs."""
        await self.until(lambda: set(idlers) <= self._idle(), f"{who} to be idle")
        self.say("Idle", f"Cohort/{COHORT}", "NobodyWaits", f"{who} are idle; nobody waits, so all keep running")
        await asyncio.sleep(self.timing.watches)
        if stopped := self.stopped(idlers):
            raise TimeoutError(f"{', '.join(stopped)} stopped although nobody waited")

    async def begin_to_wait(self) -> None:
        await self.until(lambda: self.state(self.gang).waits_because, "the gang to wait for quota")
        self._waiting_since = time.monotonic()
        await self.until(lambda: self.plan, "a plan for the gang")

    def stopped(self, names: Sequence[str]) -> list[str]:
        """Those that do not run."""
        return [name for name in names if not self.state(name).is_running]

    # ------------------------------------------------------------------------------------------------- what is seen

    def state(self, name: str) -> Gang:
        """The Job as last seen."""
        return self._seen.get(name, Gang(name=name))

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Raises: TimeoutError."""

        def seen() -> Any:
            self.look()
            return holds()

        await self.world.wait_for(seen, what, within=self.timing.patience)

    def look(self) -> None:
        """Takes in what the API shows, and tells what is news in it."""
        for scalable in self.world.all(SCALABLE_WORKLOAD, NAMESPACE):
            self._see_grant(scalable)
            self._see_replicas(scalable["metadata"]["name"], scalable["spec"].get("replicas", 1))
        for body in self.world.all(JOB, NAMESPACE):
            self._see_job(body)

    def pods_of(self, name: str) -> list[Json]:
        """The pods of the Job."""
        return [
            pod
            for pod in self.world.all(POD, NAMESPACE)
            if any(owner["name"] == name for owner in pod["metadata"].get("ownerReferences") or ())
        ]

    def changed(self, before: Gang, now: Gang) -> None:
        """Tells what is news of a Job."""
        where = f"Job/{now.name}"
        if before.active and not now.active:
            self.say("Deactivated", where, "Deactivated", "its Workload is inactive: Kueue takes the quota back")
        if now.name == self.gang:
            self._gang_changed(before, now, where)

    def _gang_changed(self, before: Gang, now: Gang, where: str) -> None:
        if now.waits_because and not before.waits_because:
            self.say("Waiting", where, "WaitingForQuota", now.waits_because)
        if now.admitted and not before.admitted:
            self._admitted_at = time.monotonic()
            self.say("Admitted", where, "Admitted", "Kueue admits the whole gang")
        if now.is_running and not before.is_running:
            self.say("Running", where, "PodsRunning", f"{now.running} of {now.pods} pods run")

    def say(self, event: str, about: str, reason: str, message: str) -> None:
        line = News(event, about, reason, message)
        self.tell(Entry(t=round(time.monotonic() - self.began, 2), news=line))

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def _idle(self) -> set[str]:
        found = self.world.all(SCALABLE_WORKLOAD, NAMESPACE)
        return {each["metadata"]["name"] for each in found if _status(each).get("reason") == "NobodyWaits"}

    def _see_grant(self, scalable: Json) -> None:
        grant = _status(scalable).get("grant")
        if grant and grant["plan"] != self.plan:
            self.plan = grant["plan"]
            self.victims = tuple(name.partition("/")[2] for name in grant["victims"])
            who = " and ".join(self.victims)
            self.say("Planned", f"Job/{self.gang}", "ReclaimPlanned", f"plan {self.plan} takes {who}: all, or none")

    def _see_replicas(self, name: str, asked: int) -> None:
        before, self._asked[name] = self._asked.get(name, asked), asked
        if asked != before:
            event = "ScaledToZero" if asked == 0 else "ScaledToOne"
            self.say(event, f"ScalableWorkload/{name}", "Scaled", f"KEDA sets replicas to {asked}")

    def _see_job(self, body: Json) -> None:
        name = body["metadata"]["name"]
        workload = self.world.workload_of(JOB, NAMESPACE, name)
        now = gang(name, cluster=body, workload=workload, pods=self.pods_of(name))
        before, self._seen[name] = self.state(name), now
        self.changed(before, now)


def _status(body: Json) -> Json:
    status: Json = body.get("status") or {}
    return status
