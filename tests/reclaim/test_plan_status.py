"""Grants and the ledger, written to the status and read again."""

from dataclasses import replace
from datetime import UTC

import pytest
from builders import at
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import scalable_workload

from scaler.decision.target_state import Grant, Seeks
from scaler.decision.workloads import grant_of
from scaler.reclaim.active_plans import entry_of, entry_status
from scaler.reclaim.candidates import times_reclaimed
from scaler.reclaim.ledger import LedgerEntry, LedgerStage
from scaler.reclaim.writer import grant_status

GRANT = Grant(
    plan="2d2f1dfc9b",
    gang="demo/gang",
    gang_uid="7e6b1a34",
    victims=("demo/a", "demo/b"),
    granted_at=at(0),
    expires_at=at(600),
)
ENTRY = LedgerEntry(plan="2d2f1dfc9b", gang="demo/gang", gpus=4, reclaimable_at=at(0))

times = st.none() | st.integers(0, 10_000).map(at)
entries = st.builds(
    LedgerEntry,
    plan=st.just("p"),
    gang=st.just("demo/gang"),
    gpus=st.integers(0, 64),
    stage=st.sampled_from(LedgerStage),
    reclaimable_at=st.integers(0, 10_000).map(at),
    releasing_at=times,
    available_at=times,
    reserved_at=times,
    admitted_at=times,
    ended_at=times,
)


def test_a_grant_is_read_as_it_was_written() -> None:
    assert grant_of(scalable_workload("a", grant=grant_status(GRANT))) == GRANT


def test_so_is_one_that_was_withdrawn() -> None:
    withdrawn = replace(GRANT, expires_at=GRANT.granted_at)
    found = grant_of(scalable_workload("a", grant=grant_status(withdrawn)))
    assert found is not None
    assert found.is_withdrawn


def test_so_is_one_for_nodes_and_what_is_not_said_is_quota() -> None:
    for grant in (GRANT, replace(GRANT, seeks=Seeks.NODES, check="gate")):
        written = {name: value for name, value in grant_status(grant).items() if value is not None}
        assert ("seeks" in written, "check" in written) == (grant is not GRANT, grant is not GRANT)
        assert grant_of(scalable_workload("a", grant=written)) == grant


def test_one_that_seeks_what_nobody_knows_is_none() -> None:
    assert grant_of(scalable_workload("a", grant={**grant_status(GRANT), "seeks": "Luck"})) is None


@given(entries, st.integers(0, 9))
def test_an_entry_of_the_ledger_is_read_as_it_was_written(entry: LedgerEntry, times: int) -> None:
    status = {name: value for name, value in entry_status(entry, times=times).items() if value is not None}
    found = scalable_workload("a", reallocation=status)
    assert entry_of(found) == entry
    assert times_reclaimed(found) == times


def test_what_is_absent_is_removed_from_the_status() -> None:
    status = entry_status(ENTRY, times=0)
    assert status["admittedAt"] is None
    assert status["wastedGpuSeconds"] is None


def test_what_was_wasted_stands_in_the_status() -> None:
    done = replace(ENTRY, stage=LedgerStage.ADMITTED, releasing_at=at(0), admitted_at=at(7))
    assert entry_status(done, times=1)["wastedGpuSeconds"] == 28


@pytest.mark.parametrize("lacking", ["plan", "grantedAt", "expiresAt"])
def test_a_grant_that_lacks_what_it_is_about_is_none(lacking: str) -> None:
    assert grant_of(scalable_workload("a", grant={**grant_status(GRANT), lacking: None})) is None


def test_so_is_an_entry_of_a_stage_that_nobody_knows() -> None:
    status = {name: value for name, value in entry_status(ENTRY, times=2).items() if value is not None}
    found = scalable_workload("a", reallocation=status | {"stage": "Lost"})
    assert entry_of(found) is None
    assert times_reclaimed(found) == 2, "it is counted all the same"


def test_without_a_plan_there_is_neither() -> None:
    assert grant_of(scalable_workload("a")) is None
    assert entry_of(scalable_workload("a")) is None
    assert times_reclaimed(scalable_workload("a")) == 0


def test_times_are_in_utc() -> None:
    found = grant_of(scalable_workload("a", grant=grant_status(GRANT)))
    assert found is not None
    assert found.granted_at.tzinfo == UTC
