"""The second act: three teams share a cohort, five notebooks sit idle, and a gang of 8 GPUs waits.

| node | GPUs | held by                                                                        |
|------|------|--------------------------------------------------------------------------------|
| n1   | 4    | notebook-b1 (2, idle), notebook-b2 (2, idle)                                    |
| n2   | 4    | train-a (2, works), notebook-a1 (1, idle), notebook-a2 (1, idle)                |
| n3   | 4    | train-c (3, works), notebook-c1 (1, idle)                                       |
| n4   | 4    | free                                                                           |

The gang is two pods of 4 GPUs each: 4 are free, and 4 more are to come from notebooks. Seven are idle on three nodes,
but only n1 can be emptied, so exactly its two notebooks are suspended, both or neither; the other three never notice.
"""

from dataclasses import dataclass
from typing import ClassVar

from scaler_sandbox.stories.facts import ActOutcome
from scaler_sandbox.stories.gang_story import COHORT, NAMESPACE, GangStory, RunningJob, queues

NODES = {"n1": 4, "n2": 4, "n3": 4, "n4": 4}
TEAMS = {"team-a": 4, "team-b": 4, "team-c": 8}
HOLDERS = (
    RunningJob(name="notebook-b1", team="team-b", gpus=2),
    RunningJob(name="notebook-b2", team="team-b", gpus=2),
    RunningJob(name="train-a", team="team-a", gpus=2, works=True),
    RunningJob(name="notebook-a1", team="team-a", gpus=1),
    RunningJob(name="notebook-a2", team="team-a", gpus=1),
    RunningJob(name="train-c", team="team-c", gpus=3, works=True),
    RunningJob(name="notebook-c1", team="team-c", gpus=1),
)
EXPECTED = frozenset({"notebook-b1", "notebook-b2"})


@dataclass(kw_only=True)
class CohortStory(GangStory):
    """One telling."""

    gang: ClassVar[str] = "big-gang"

    def outcome(self, took: float) -> ActOutcome:
        return ActOutcome(
            ok=True,
            figures={"seconds_from_waiting_to_admitted": took, "victims": list(self.victims)},
            summary=f"From the gang of 8's waiting to its admission: {took:.1f} s, with 4 free GPUs and those of "
            f"{' and '.join(self.victims)}.",
        )

    async def play(self) -> None:
        await self.world.apply(queues(TEAMS))
        await self.start(HOLDERS)
        message = "12 of 16 GPUs are held: 5 by two trainings, 7 by five notebooks"
        self.say("Begins", f"Cohort/{COHORT}", "Filled", message)
        await self.idle_keeps_running([each.name for each in HOLDERS if not each.works], "five notebooks")
        await self.submit(self.gang, "team-c", gpus=4, pods=2)
        self.say("Submitted", f"Job/{self.gang}", "Created", "two pods of 4 GPUs each: 4 are free, 7 are held idle")
        await self.begin_to_wait()
        await self.until(lambda: self.state(self.gang).admitted, "the gang to be admitted")
        await self.run_of(self.gang)
        self.world.fleet.set_activity(NAMESPACE, f"{self.gang}-*", 0.9, noise=0.05)
        self.say("Trains", f"Job/{self.gang}", "Training", "all eight GPUs work")
        self._others_go_on()

    def _others_go_on(self) -> None:
        """Raises: TimeoutError where any other Job was suspended or stopped."""
        if frozenset(self.victims) != EXPECTED:
            raise TimeoutError(f"the plan took {', '.join(self.victims)}, not {', '.join(sorted(EXPECTED))}")
        if stopped := self.stopped([each.name for each in HOLDERS if each.name not in EXPECTED]):
            raise TimeoutError(f"{', '.join(stopped)} stopped although the gang did not need them")
        self.say("Untouched", f"Cohort/{COHORT}", "OthersRun", "two trainings and three notebooks keep running")
