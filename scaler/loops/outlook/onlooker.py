"""How does every Workload that has quota stand with our AdmissionChecks, at this moment? Any replica can tell.

The leader's gate tells it on the entries of Workloads, in words. Why exactly a gang waits, who stands before it, and
what is asked of autoscalers next, is found by the same gate looking at the same copies, and nobody takes a step.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice

from scaler.core.provisioning import next_step
from scaler.kueue.provisioning_requests import Flavors, entry_of
from scaler.loops.gate import Gate
from scaler.loops.gate_cases import Standing, nodes_of
from scaler.loops.gate_checks import Checks
from scaler.loops.gate_view import GateView, Held
from scaler.loops.outlook.gates import SHOWN, Gated, Gates
from scaler.loops.provisioning import Case, Progress, Requests, progress_of, requests_of, situation_of


class Onlooker:
    """`gate` is one that asks a `Foreseeing` about nodes; `view`, `checks` and `requests` are what it looks at."""

    def __init__(self, gate: Gate, view: GateView, checks: Checks, requests: Requests) -> None:
        self._gate = gate
        self._view = view
        self._checks = checks
        self._requests = requests

    async def look(self, now: datetime) -> Gates:
        """All that have quota and an entry of ours, whether they wait or were let go."""
        standings = (await self._gate.look(now)).waiting
        by_name = {(each.key, each.check): each for each in standings}
        line = _line(standings)
        found: dict[str, list[Gated]] = {}
        for held in self._view.held():
            standing = by_name.get((held.key, held.check_name))
            found.setdefault(held.key, []).append(self._gated(held, standing, line))
        return found

    def _gated(self, held: Held, standing: Standing | None, line: Mapping[str, int]) -> Gated:
        check, workload = held.check, held.workload
        entry = entry_of(workload, held.check_name)
        place = line.get(held.key, 0) if standing is not None and standing.verdict is not None else 0
        assert entry is not None  # noqa: S101 (the view holds only Workloads that have it)
        return Gated(
            check=held.check_name,
            entry=entry,
            reserved_at=held.gang.reserved_at,
            policy_name=check.spec.parameters.name if check.spec.parameters is not None else "",
            policy=self._checks.policy(check),
            yielded=held.gang.yielded,
            standing=standing,
            before=list(islice(line, min(place, SHOWN))),
            more_before=max(0, place - SHOWN),
            requests=tuple(requests_of(self._requests, workload, held.check_name).values()),
            trouble=self._requests.trouble,
        )


def _line(standings: Sequence[Standing]) -> Mapping[str, int]:
    """Those that wait for nodes, in the order in which they are promised some, each with how many come before it."""
    ordered = sorted((each for each in standings if each.verdict is not None), key=_turn)
    return {key: place for place, key in enumerate(dict.fromkeys(each.key for each in ordered))}


def _turn(standing: Standing) -> tuple[bool, datetime | None, str]:
    """As in `Claim.turn`."""
    return not nodes_of(standing.progress).is_booked, standing.reserved_at, standing.uid


class Foreseeing:
    """A Provisioner that tells what the next step is, and takes none."""

    def __init__(self, requests: Requests, flavors: Flavors) -> None:
        self._requests = requests
        self._flavors = flavors

    async def follow(self, case: Case, now: datetime) -> Progress:
        """How the gang stands with autoscalers."""
        situation = situation_of(case, self._requests, now)
        if isinstance(situation, Progress):
            return situation
        step = next_step(situation.gang, situation.requests, case.policy, now)
        return progress_of(case, step, situation.found, self._flavors)

    async def sweep(self, followed: Collection[str], now: datetime) -> None:
        """Nothing is removed."""
