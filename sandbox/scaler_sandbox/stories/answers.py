"""The fourth act: an owner is warned, keeps a notebook, loses it to a gang, and has it back when there is room.

| node | GPUs | held by                                        |
|------|------|------------------------------------------------|
| n1   | 4    | explore (2): it works, and is quiet after that  |

The gang needs all four GPUs. The notebook is idle, but its owner has to be warned for as long as its policy says, and
keeps it then. When that is over the warning stands, and a plan suspends the notebook for the gang. `wake: WhenFree`
brings it back once the gang has ended and no other Workload waits. Its history says all of it.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from scaler.decision.reasons import CandidateState
from scaler.kube.objects.resources import JOB, SCALABLE_WORKLOAD
from scaler.targets.target_state import WakeCause
from scaler.targets.workloads import ASKED_BY, KEEP_FOR
from scaler_sandbox.job_manifests import scaling
from scaler_sandbox.kinds import Json
from scaler_sandbox.stories.facts import ActOutcome, Gang
from scaler_sandbox.stories.gang_story import NAMESPACE, GangStory, queues

NODES = {"n1": 4}
NOTEBOOK, OWNER = "explore", "ana@example.com"
_TRIGGER = {
    "reclaim": "OnPressure",
    "idleAfter": "30m",
    "idleAfterUnderPressure": "4s",
    "warmUp": "1s",
    "warning": "3s",
    "wake": "WhenFree",
}
_WORKS, _KEEPS, _GANG_TRAINS, _STAYS = 3.0, 5.0, 3.0, 2.0
"""Seconds."""
_TOLD = {
    CandidateState.WARNED: ("SuspendSoon", "its owner is warned by an Event"),
    CandidateState.KEPT: ("Kept", "it is kept, although a gang waits"),
    CandidateState.WAKING: ("Waking", "its quota and nodes are free, and no Workload waits"),
}
_LIFE = ("Warned", "Kept", "Suspended", "Waking", "Busy")
"""States that it has to go through, in this order, among others."""


@dataclass(kw_only=True)
class AnswersStory(GangStory):
    """One telling."""

    gang: ClassVar[str] = "night-run"

    _lines: Sequence[Json] = field(default=(), init=False)
    """The history of the notebook."""
    _suspended: float = field(default=0.0, init=False)

    def outcome(self, took: float) -> ActOutcome:
        states = [line["state"] for line in self._lines]
        return ActOutcome(
            ok=True,
            figures={"seconds_until_the_notebook_was_back": round(self._suspended, 2), "history": states},
            summary=f"From the gang's waiting to its admission: {took:.1f} s, the notebook kept for {_KEEPS:g} s; "
            f"suspended for {self._suspended:.1f} s, and back by itself.",
        )

    async def play(self) -> None:
        await self._notebook_works()
        self.world.fleet.set_activity(NAMESPACE, f"{NOTEBOOK}-*", 0.0)
        self.say("Stops", f"Job/{NOTEBOOK}", "Quiet", "its owner is away; the notebook holds 2 of 4 GPUs")
        await self.submit(self.gang, "team", gpus=4)
        self.say("Submitted", f"Job/{self.gang}", "Created", "it needs all 4 GPUs")
        await self.wait_for_quota()
        await self.until(lambda: "Warned" in self._states(), "the owner to be warned")
        await self._owner_keeps_it()
        await self.until(lambda: self.plan, "a plan for the gang")
        await self.until(lambda: self.state(self.gang).is_running, "the gang to run")
        since = time.monotonic()
        self.world.fleet.set_activity(NAMESPACE, f"{self.gang}-*", 0.9, noise=0.05)
        self.say("Trains", f"Job/{self.gang}", "Training", "all four GPUs work")
        await asyncio.sleep(_GANG_TRAINS)
        if not self.stopped([NOTEBOOK]):
            raise TimeoutError("the notebook runs although the gang has all GPUs")
        await self.world.delete(JOB, NAMESPACE, self.gang)
        self.look()  # before what follows from it
        self.world.fleet.set_activity(NAMESPACE, f"{NOTEBOOK}-*", 0.85, noise=0.05)
        await self.run_of(NOTEBOOK)
        self._suspended = time.monotonic() - since
        await self.until(lambda: self._states()[-1:] == ["Busy"], "its history to say that it works")
        await asyncio.sleep(_STAYS)
        self._all_is_well()

    async def _notebook_works(self) -> None:
        await self.world.apply(queues({"team": 4}))
        await self.submit(NOTEBOOK, "team", gpus=2)
        await self.run_of(NOTEBOOK)
        self.world.fleet.set_activity(NAMESPACE, f"{NOTEBOOK}-*", 0.85, noise=0.05)
        await self.world.apply(scaling(NOTEBOOK, NAMESPACE, self.scaler_address, _TRIGGER))
        self.say("Trains", f"Job/{NOTEBOOK}", "Working", "both GPUs work")
        await asyncio.sleep(_WORKS)

    async def _owner_keeps_it(self) -> None:
        annotations = {KEEP_FOR: f"{_KEEPS:g}s", ASKED_BY: OWNER}
        await self.world.patch(SCALABLE_WORKLOAD, NAMESPACE, NOTEBOOK, {"metadata": {"annotations": annotations}})
        message = f"annotation {KEEP_FOR}: its owner keeps it for {_KEEPS:g} s"
        self.say("OwnerKeeps", f"ScalableWorkload/{NOTEBOOK}", "KeepRequested", message)
        await self.until(lambda: "Kept" in self._states(), "the notebook to be kept")
        await asyncio.sleep(_KEEPS / 2)
        if self.stopped([NOTEBOOK]):
            raise TimeoutError("the notebook was suspended although its owner keeps it")

    def _states(self) -> list[str]:
        return [line["state"] for line in self._lines]

    def _all_is_well(self) -> None:
        """Raises: TimeoutError where it is not as it should be."""
        states = iter(self._states())
        if missing := [each for each in _LIFE if each not in states]:
            raise TimeoutError(f"its history lacks {missing[0]} where it has to be: {', '.join(self._states())}")
        by = {line["state"]: line.get("by", "") for line in self._lines}
        cause = next((line.get("cause") for line in self._lines if line["state"] == "Waking"), None)
        if by["Kept"] != OWNER or cause != WakeCause.WHEN_FREE:
            raise TimeoutError(f"it was kept by {by['Kept'] or 'nobody'} and woken by {by['Waking'] or 'nobody'}")
        if self.stopped([NOTEBOOK]):
            raise TimeoutError("the notebook came back and did not stay")
        self.say("History", f"ScalableWorkload/{NOTEBOOK}", "History", " → ".join(self._states()))

    # ------------------------------------------------------------------------------------------------- what is seen

    def look(self) -> None:
        found: Any = self.world.find(SCALABLE_WORKLOAD, NAMESPACE, NOTEBOOK) or {}
        before, self._lines = len(self._lines), (found.get("status") or {}).get("history") or ()
        for number in range(before, len(self._lines)):
            self._see_line(self._lines[number], self._states()[:number])
        super().look()

    def _see_line(self, line: Json, before: Sequence[str]) -> None:
        if line["state"] not in _TOLD:
            return
        event, message = _TOLD[CandidateState(line["state"])]
        if line["state"] in before and event == "SuspendSoon":
            event, message = "KeepEnds", "the time for which it was kept is over, and the warning stands"
        by = f" (asked for by {line['by']})" if line.get("by") else ""
        self.say(event, f"ScalableWorkload/{NOTEBOOK}", line["reason"], f"{message}{by}")

    def changed(self, before: Gang, now: Gang) -> None:
        super().changed(before, now)
        if now.name == NOTEBOOK:
            if now.active and not before.active:
                self.say("Reactivated", f"Job/{NOTEBOOK}", "Reactivated", "its Workload is active again")
            self.starts(before, now, f"Job/{NOTEBOOK}")
