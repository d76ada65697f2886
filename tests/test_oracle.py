"""The decisions of Kueue's own scheduler on generated scenarios, where they are at hand, against the quota engine's.

They lie in `oracle/` of the folder that SCALER_SHARED_DATA names, as the recordings do. All of them are compared by
`python -m benchmarks.oracle`; here every twentieth is, and all that were verified by hand.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from recordings import ORACLE, needs_data

from benchmarks.oracle import Json, difference_of_quota, differences, judge, lines_of, replay, strict_differences

FILES = sorted(ORACLE.glob("*.jsonl.gz"))
pytestmark = needs_data(ORACLE)

PARTS = 4
"""So that several processes can share the work."""


def by_hand() -> Iterator[bytes]:
    return (line for line in lines_of(FILES) if b'"hand-' in line[:100])


@pytest.mark.parametrize("part", range(PARTS))
def test_every_twentieth_scenario_is_decided_as_by_kueue(part: int) -> None:
    verdicts = [judge(line, strict=True) for line in islice(lines_of(FILES), 20 * part, None, 20 * PARTS)]
    assert verdicts
    assert {each.id: each.differences for each in verdicts if not each.is_equal} == {}
    assert {each.id: each.remarks for each in verdicts if each.remarks} == {}


def test_scenarios_verified_by_hand_are_equal_in_everything() -> None:
    """Every cycle with its order, the numbers of the tree, the reasons, and what would have been otherwise."""
    verdicts = [judge(line, strict=True) for line in by_hand()]
    assert len(verdicts) >= 14
    assert {each.id: (each.differences, each.remarks) for each in verdicts if each.differences or each.remarks} == {}


# A comparison that finds nothing proves nothing: these are the ways in which a result could be wrong.


def first() -> tuple[Json, Json]:
    """A scenario in which a Workload is preempted, one admitted, and one left waiting (hand-10)."""
    for line in by_hand():
        entry = json.loads(line)
        if entry["scenario"]["id"] == "hand-10":
            return entry["scenario"], entry["result"]
    pytest.skip("no scenario hand-10")


def _without_admitted(result: Json) -> None:
    result["final"]["admitted"].popitem()


def _with_pending(result: Json) -> None:
    result["final"]["pending"].append("team-a/other")


def _with_another_flavor(result: Json) -> None:
    result["final"]["admitted"]["team-a/high"]["assignments"][0]["flavors"] = {"nvidia.com/gpu": "other"}


def _with_another_victim(result: Json) -> None:
    result["cycles"][0]["preempted"][0]["workload"] = "team-a/low-old"


@pytest.mark.parametrize(
    "changed",
    [_without_admitted, _with_pending, _with_another_flavor, _with_another_victim],
)
def test_a_result_that_is_not_kueues_is_told_apart(changed: Any) -> None:
    scenario, result = first()
    found = replay(scenario)
    assert list(differences(result, found)) == []
    changed(result)
    assert len(list(differences(result, found))) >= 1


def test_strictly_every_number_counts() -> None:
    scenario, result = first()
    found = replay(scenario)
    assert list(strict_differences(scenario, result, found)) == []
    result["quotaFinal"]["clusterQueues"]["cq"]["available"]["default/nvidia.com/gpu"] = 1
    assert list(difference_of_quota("end", result["quotaFinal"], found.quota_after)) == [
        "end cq available default/nvidia.com/gpu: 0 instead of 1"
    ]
