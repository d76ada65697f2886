"""The embedded Kueue decides what a real one decided: recorded scheduling scenarios, played over its API.

The scenarios (`oracle/` of the shared data) were run with evictions that are complete before the next cycle and retries
without delay. So jobs here stop at once, the batch period is none, and a second passes between two looks.
"""

import gzip
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar, cast

import pytest
from recordings import ORACLE, needs_data
from scaler_sandbox.actions import status_patch
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has
from scaler_sandbox.controller import Controller
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import Kueue, KueueConfig, workload_status
from sim.client import SimClient

from scaler.kube.objects.resources import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NAMESPACE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Resource,
)

FILE = ORACLE / "oracle-public.jsonl.gz"
EVERY = 27
"""One scenario in so many is played: about a hundred."""
SHARDS = 4
"""Tests, so that these can run side by side."""

RESOURCES = {each.kind: each for each in (NAMESPACE, RESOURCE_FLAVOR, COHORT, CLUSTER_QUEUE, LOCAL_QUEUE, WORKLOAD)}

Decisions = tuple[set[tuple[str, str]], set[tuple[str, str]]]
"""Admitted Workloads with their assignments as text, and preempted ones with the reasons."""


class InstantJobs(Controller):
    """Jobs that stop the moment they are suspended: an eviction releases the quota at once."""

    name: ClassVar[str] = "instant-jobs"
    watched: ClassVar[tuple[Resource, ...]] = (WORKLOAD,)

    async def tick(self, now: datetime) -> datetime | None:
        evicted = [w for w in self.client.all(WORKLOAD) if has(w, "Evicted") and has(w, "QuotaReserved")]
        patches = [status_patch(WORKLOAD, each, workload_status.released(each, now=now)) for each in evicted]
        await self.act(patch for patch in patches if patch)
        return None


def entries(shard: int) -> Iterator[Json]:
    """Those that settle, and in which nothing is left to chance or done before the first cycle."""
    with gzip.open(FILE) as lines:
        for number, line in enumerate(lines):
            if number % EVERY == 0 and number // EVERY % SHARDS == shard:
                entry: Json = json.loads(line)
                scenario, result = entry["scenario"], entry["result"]
                if result["converged"] and not result.get("drained") and "timestamp-ties" not in scenario["features"]:
                    yield entry


def key_of(body: Json) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def text_of(assignments: list[Json], name: str) -> str:
    taken = sorted((each[name], each["count"], sorted(each["flavors"].items())) for each in assignments)
    return json.dumps(taken)


def placed(workload: Json) -> str:
    return text_of(workload["status"]["admission"]["podSetAssignments"], "name")


class OracleWorld:
    """The objects of a scenario in an API of their own, and a Kueue over it."""

    def __init__(self, scenario: Json) -> None:
        self.client = SimClient()
        self.now = datetime.fromisoformat(scenario["now"])
        for body in scenario["objects"]:
            inactive = body["kind"] == "Workload" and key_of(body) in scenario.get("deactivate", ())
            spec = {"spec": {**body["spec"], "active": False}} if inactive else {}
            self.client.restore(RESOURCES[body["kind"]], {**body, **spec})
        client = cast(Client, self.client)
        config = KueueConfig(batch=timedelta(0), fair_sharing=bool(scenario["fairSharing"]), ignore_undeclared=False)
        self._kueue, self._jobs = Kueue(client, config), InstantJobs(client)

    async def play(self) -> list[Decisions]:
        """What was decided, cycle by cycle, until nothing has been for three seconds."""
        cycles: list[Decisions] = []
        quiet = 0
        while quiet < 3:
            before = self._workloads()
            self.now += timedelta(seconds=1)
            await self._kueue.tick(self.now)
            decisions = self._decided(before, self._workloads())
            await self._jobs.tick(self.now)
            quiet = 0 if any(decisions) else quiet + 1
            cycles += [decisions] if any(decisions) else []
        return cycles

    def _workloads(self) -> dict[str, Json]:
        return {key_of(each): each for each in self.client.all(WORKLOAD)}

    @staticmethod
    def _decided(before: dict[str, Json], after: dict[str, Json]) -> Decisions:
        changed = [(key, before[key], each) for key, each in after.items() if each["spec"].get("active", True)]
        admitted = {
            (key, placed(new))
            for key, old, new in changed
            if has(new, "QuotaReserved") and not has(old, "QuotaReserved")
        }
        gone = [(key, new) for key, old, new in changed if has(new, "Evicted") and not has(old, "Evicted")]
        reasons = {
            (key, each["reason"])
            for key, new in gone
            for each in new["status"]["conditions"]
            if each["type"] == "Preempted"
        }
        return admitted, reasons

    @property
    def final(self) -> dict[str, str]:
        """Who holds quota, and how."""
        return {key: placed(each) for key, each in self._workloads().items() if workload_status.holds_quota(each)}


def expected_cycles(result: Json) -> list[Decisions]:
    cycles = [
        (
            {(each["workload"], text_of(each["assignments"], "podSet")) for each in cycle["admitted"]},
            {(each["workload"], each["reason"]) for each in cycle["preempted"]},
        )
        for cycle in result["cycles"]
    ]
    return [cycle for cycle in cycles if any(cycle)]


async def difference(entry: Json) -> str:
    """What was decided otherwise; empty where nothing was."""
    world = OracleWorld(entry["scenario"])
    cycles, expected = await world.play(), expected_cycles(entry["result"])
    final = {key: text_of(each["assignments"], "podSet") for key, each in entry["result"]["final"]["admitted"].items()}
    if cycles != expected:
        return f"{entry['scenario']['id']}: {cycles} instead of {expected}"
    return "" if world.final == final else f"{entry['scenario']['id']}: ends with {world.final} instead of {final}"


@needs_data(FILE)
@pytest.mark.parametrize("shard", range(SHARDS))
async def test_every_cycle_decides_what_a_real_kueue_decided(shard: int) -> None:
    differences = [await difference(entry) for entry in entries(shard)]
    assert len(differences) > 15
    assert [each for each in differences if each] == []
