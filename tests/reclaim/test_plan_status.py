"""Grants and the ledger, written to the status and read again."""

from dataclasses import replace

import pytest
from builders import at
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import scalable_workload

from scaler.decision.target_state import Grant, Seeks
from scaler.decision.workloads import grant_of
from scaler.reclaim.active_plans import entry_of, entry_status
from scaler.reclaim.candidates import times_reclaimed
from scaler.reclaim.transitions import LedgerEntry, LedgerStage
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


@pytest.mark.parametrize(
    "grant",
    [GRANT, replace(GRANT, seeks=Seeks.NODES, check="gate"), replace(GRANT, expires_at=GRANT.granted_at)],
    ids=["for quota", "for nodes", "withdrawn"],
)
def test_a_grant_is_read_as_it_was_written(grant: Grant) -> None:
    written = {name: value for name, value in grant_status(grant).items() if value is not None}
    assert ("seeks" in written, "check" in written) == (bool(grant.check), bool(grant.check))
    assert grant_of(scalable_workload("a", grant=written)) == grant
    assert grant.is_withdrawn == (grant.expires_at == grant.granted_at)


@pytest.mark.parametrize("lacking", [{"plan": None}, {"grantedAt": None}, {"expiresAt": None}, {"seeks": "Luck"}])
def test_an_unreadable_grant_is_none(lacking: dict[str, str | None]) -> None:
    assert grant_of(scalable_workload("a", grant={**grant_status(GRANT), **lacking})) is None


@given(entries, st.integers(0, 9))
def test_an_entry_of_the_ledger_is_read_as_it_was_written(entry: LedgerEntry, times: int) -> None:
    status = {name: value for name, value in entry_status(entry, times=times).items() if value is not None}
    found = scalable_workload("a", reallocation=status)
    assert entry_of(found) == entry
    assert times_reclaimed(found) == times


def test_what_was_wasted_stands_in_the_status_and_what_is_absent_is_removed() -> None:
    assert [entry_status(ENTRY, times=0)[name] for name in ("admittedAt", "wastedGpuSeconds")] == [None, None]
    done = replace(ENTRY, stage=LedgerStage.ADMITTED, releasing_at=at(0), admitted_at=at(7))
    assert entry_status(done, times=1)["wastedGpuSeconds"] == 28


def test_an_entry_of_an_unknown_stage_is_none() -> None:
    status = {name: value for name, value in entry_status(ENTRY, times=2).items() if value is not None}
    found = scalable_workload("a", reallocation=status | {"stage": "Lost"})
    assert entry_of(found) is None
    assert times_reclaimed(found) == 2, "it is counted all the same"
