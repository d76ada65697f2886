"""The second act: three teams share a cohort, five notebooks sit idle, and a gang of 8 GPUs waits.

| node | GPUs | held by                                                                        |
|------|------|--------------------------------------------------------------------------------|
| n1   | 4    | notebook-b1 (2, idle), notebook-b2 (2, idle)                                    |
| n2   | 4    | train-a (2, works), notebook-a1 (1, idle), notebook-a2 (1, idle)                |
| n3   | 4    | train-c (3, works), notebook-c1 (1, idle)                                       |
| n4   | 4    | nobody                                                                         |

The gang is two pods of 4 GPUs each: 4 are free, and 4 more are to come from notebooks. Seven are idle on three nodes,
but only n1 can be emptied, so exactly its two notebooks are suspended, both or neither; the other three never notice.

Whoever plays the scaler runs beside it. The act only does what people do, and looks at the Kubernetes API.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaler.embedded.facts import Gang, News, gang
from scaler.embedded.kinds import JOB, POD, Json
from scaler.embedded.story import Entry, Row
from scaler.embedded.world import World
from scaler.kube.resources import SCALABLE_WORKLOAD

NAMESPACE = "research"
NODES = {"n1": 4, "n2": 4, "n3": 4, "n4": 4}
TEAMS = {"team-a": 4, "team-b": 4, "team-c": 8}
GANG = "big-gang"
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds GPUs before the gang comes."""

    name: str
    team: str
    gpus: int
    works: bool = False


HOLDERS = (
    Holder(name="notebook-b1", team="team-b", gpus=2),
    Holder(name="notebook-b2", team="team-b", gpus=2),
    Holder(name="train-a", team="team-a", gpus=2, works=True),
    Holder(name="notebook-a1", team="team-a", gpus=1),
    Holder(name="notebook-a2", team="team-a", gpus=1),
    Holder(name="train-c", team="team-c", gpus=3, works=True),
    Holder(name="notebook-c1", team="team-c", gpus=1),
)
IDLERS = tuple(each.name for each in HOLDERS if not each.works)
EXPECTED = frozenset({"notebook-b1", "notebook-b2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortTiming:
    """In seconds, and as trigger metadata writes them."""

    patience: float = 30.0
    watches: float = 2.0
    """How long nobody is to be suspended while nobody waits."""
    idle_after: str = "30m"
    idle_after_under_pressure: str = "4s"
    warm_up: str = "1s"
    cooldown_seconds: int = 1


def queues() -> list[Json]:
    """The namespace, the flavor, and a ClusterQueue in one cohort for every team."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "gpu"}, "spec": {}},
        *(_cluster_queue(team, gpus) for team, gpus in TEAMS.items()),
        *(_local_queue(team) for team in TEAMS),
    ]


def _cluster_queue(name: str, gpus: int) -> Json:
    flavor = {"name": "gpu", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "cohortName": "research",
            "namespaceSelector": {},
            "queueingStrategy": "StrictFIFO",
            "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
        },
    }


def _local_queue(name: str) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"clusterQueue": name},
    }


def job(name: str, team: str, *, gpus: int, pods: int = 1) -> Json:
    """A Job of the team's queue, `gpus` for each of its pods."""
    amount = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "python:3", "resources": {"requests": amount, "limits": amount}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": {"kueue.x-k8s.io/queue-name": team}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def scaling(name: str, scaler_address: str, timing: CohortTiming) -> list[Json]:
    """What lets a plan take the job: its ScalableWorkload, and a ScaledObject with `reclaim: OnPressure`."""
    target = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind}
    metadata = {
        "scalerAddress": scaler_address,
        "idleAfter": timing.idle_after,
        "reclaim": "OnPressure",
        "idleAfterUnderPressure": timing.idle_after_under_pressure,
        "warmUp": timing.warm_up,
    }
    return [
        {
            **target,
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {"replicas": 1, "jobRef": {"apiVersion": "batch/v1", "kind": "Job", "name": name}},
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "scaleTargetRef": {**target, "name": name},
                "minReplicaCount": 0,
                "maxReplicaCount": 1,
                "cooldownPeriod": timing.cooldown_seconds,
                "triggers": [{"type": "external-push", "metadata": metadata}],
            },
        },
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortOutcome:
    """How the act ended."""

    ok: bool
    seconds_from_waiting_to_admitted: float | None
    victims: tuple[str, ...]
    seconds: float
    problem: str = ""


@dataclass(kw_only=True)
class CohortStory:
    """One telling. The world must follow ScalableWorkloads; `began` is when the demo did, on the monotonic clock."""

    world: World
    scaler_address: str
    tell: Callable[[Entry], None]
    began: float
    timing: CohortTiming = field(default_factory=CohortTiming)
    _seen: dict[str, Gang] = field(default_factory=dict, init=False)
    _asked: dict[str, int] = field(default_factory=dict, init=False)
    _plan: str = field(default="", init=False)
    _victims: tuple[str, ...] = field(default=(), init=False)
    _waiting_since: float | None = field(default=None, init=False)
    _admitted_at: float | None = field(default=None, init=False)

    async def run(self) -> CohortOutcome:
        """Tell it to the end, or to the step that did not come."""
        started = time.monotonic()
        watching = asyncio.create_task(self._watch(), name="cohort-story")
        problem = ""
        try:
            await self._play()
        except TimeoutError as error:
            problem = str(error)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return self._outcome(problem, time.monotonic() - started)

    def rows(self) -> Sequence[Row]:
        """Every job as it stands, for a picture."""
        return [Row(each.name, self._asked.get(each.name, 1), each) for each in self._seen.values()]

    # ------------------------------------------------------------------------------------------------- what people do

    async def _play(self) -> None:
        await self._begin()
        await self._nobody_waits()
        await self.world.apply(job(GANG, "team-c", gpus=4, pods=2))
        self._say("Submitted", f"Job/{GANG}", "Created", "two pods of 4 GPUs each: 4 are free, 7 are held idle")
        await self._until(lambda: self._state(GANG).waits_because, "the gang to wait for quota")
        self._waiting_since = time.monotonic()
        await self._until(lambda: self._plan, "a plan for the gang")
        await self._until(lambda: self._state(GANG).admitted, "the gang to be admitted")
        await self._until(lambda: self._state(GANG).is_running, "the gang to run whole")
        self.world.fleet.set_activity(NAMESPACE, f"{GANG}-*", 0.9, noise=0.05)
        self._say("Trains", f"Job/{GANG}", "Training", "all eight GPUs work")
        await self._others_go_on()

    async def _begin(self) -> None:
        await self.world.apply(queues())
        for holder in HOLDERS:
            await self.world.apply(job(holder.name, holder.team, gpus=holder.gpus))
            await self._runs(holder.name)
            self.world.fleet.set_activity(NAMESPACE, f"{holder.name}-*", 0.85 if holder.works else 0.0, noise=0.05)
            await self.world.apply(scaling(holder.name, self.scaler_address, self.timing))
        self._say(
            "Begins", "Cohort/research", "Filled", "12 of 16 GPUs are held: 5 by two trainings, 7 by five notebooks"
        )

    async def _runs(self, name: str) -> None:
        await self._until(lambda: self._state(name).is_running, f"{name} to run")

    async def _nobody_waits(self) -> None:
        """Idle is no reason to suspend anybody as long as nobody needs the GPUs."""
        await self._until(lambda: set(IDLERS) <= self._idle(), "five notebooks to be idle")
        self._say(
            "Idle", "Cohort/research", "NobodyWaits", "five notebooks are idle; nobody waits, so all keep running"
        )
        await asyncio.sleep(self.timing.watches)
        if stopped := [name for name in IDLERS if not self._state(name).is_running]:
            raise TimeoutError(f"{', '.join(stopped)} stopped although nobody waited")

    async def _others_go_on(self) -> None:
        others = [each.name for each in HOLDERS if each.name not in EXPECTED]
        if frozenset(self._victims) != EXPECTED:
            raise TimeoutError(f"the plan took {', '.join(self._victims)}, not {', '.join(sorted(EXPECTED))}")
        if stopped := [name for name in others if not self._state(name).is_running]:
            raise TimeoutError(f"{', '.join(stopped)} stopped although the gang did not need them")
        self._say("Untouched", "Cohort/research", "OthersRun", "two trainings and three notebooks never noticed")

    # ------------------------------------------------------------------------------------------------- what is seen

    def _idle(self) -> set[str]:
        found = self.world.all(SCALABLE_WORKLOAD, NAMESPACE)
        return {each["metadata"]["name"] for each in found if _status(each).get("reason") == "NobodyWaits"}

    def _state(self, name: str) -> Gang:
        return self._seen.get(name, Gang(name=name))

    async def _until(self, holds: Callable[[], Any], what: str) -> None:
        def seen() -> Any:
            self._look()
            return holds()

        await self.world.wait_for(seen, what, within=self.timing.patience)

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    def _look(self) -> None:
        for scalable in self.world.all(SCALABLE_WORKLOAD, NAMESPACE):
            self._see_grant(scalable)
            self._see_replicas(scalable["metadata"]["name"], scalable["spec"].get("replicas", 1))
        for body in self.world.all(JOB, NAMESPACE):
            self._see_job(body)

    def _see_grant(self, scalable: Json) -> None:
        grant = _status(scalable).get("grant")
        if grant and grant["plan"] != self._plan:
            self._plan = grant["plan"]
            self._victims = tuple(name.partition("/")[2] for name in grant["victims"])
            who = " and ".join(self._victims)
            self._say("Planned", f"Job/{GANG}", "ReclaimPlanned", f"plan {self._plan} takes {who}: both, or neither")

    def _see_replicas(self, name: str, asked: int) -> None:
        before, self._asked[name] = self._asked.get(name, asked), asked
        if asked != before:
            event = "ScaledToZero" if asked == 0 else "ScaledToOne"
            self._say(event, f"ScalableWorkload/{name}", "Scaled", f"KEDA sets replicas to {asked}")

    def _see_job(self, body: Json) -> None:
        name = body["metadata"]["name"]
        pods = [pod for pod in self.world.all(POD, NAMESPACE) if _belongs(pod, name)]
        now = gang(name, cluster=body, workload=self.world.workload_of(JOB, NAMESPACE, name), pods=pods)
        before, self._seen[name] = self._seen.get(name, Gang(name=name)), now
        if name == GANG and now.waits_because and not before.waits_because:
            self._say("Waiting", f"Job/{name}", "WaitingForQuota", now.waits_because)
        if before.active and not now.active:
            self._say(
                "Deactivated", f"Job/{name}", "Deactivated", "its Workload is inactive: Kueue takes the quota back"
            )
        if name == GANG and now.admitted and not before.admitted:
            self._admitted_at = time.monotonic()
            self._say("Admitted", f"Job/{name}", "Admitted", "Kueue admits the whole gang")
        if name == GANG and now.is_running and not before.is_running:
            self._say("Running", f"Job/{name}", "PodsRunning", f"{now.running} of {now.pods} pods run")

    def _say(self, event: str, about: str, reason: str, message: str) -> None:
        line = News(event, about, reason, message)
        self.tell(Entry(t=round(time.monotonic() - self.began, 2), news=line))

    def _outcome(self, problem: str, seconds: float) -> CohortOutcome:
        took = None
        if self._waiting_since is not None and self._admitted_at is not None:
            took = round(self._admitted_at - self._waiting_since, 2)
        return CohortOutcome(
            ok=not problem and took is not None,
            seconds_from_waiting_to_admitted=took,
            victims=self._victims,
            seconds=round(seconds, 2),
            problem=problem,
        )


def _status(body: Json) -> Json:
    status: Json = body.get("status") or {}
    return status


def _belongs(pod: Json, job_name: str) -> bool:
    return any(owner["name"] == job_name for owner in pod["metadata"].get("ownerReferences") or ())
