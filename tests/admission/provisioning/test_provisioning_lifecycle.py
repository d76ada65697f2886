"""ProvisioningRequests of one gang: the table cell by cell, and its laws in random lives."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import NOON, at, minutes
from decision.documented import rows
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.admission.policy import ProvisioningPolicy, Retry
from scaler.admission.provisioning import lifecycle
from scaler.admission.provisioning.lifecycle import (
    LOST,
    ObservedRequest,
    ProvisioningInputs,
    ProvisioningStep,
    RequestSpec,
    RequestState,
    ReservationStage,
    StepKind,
    next_step,
)

CLASS = "check-capacity.autoscaling.x-k8s.io"
POLICY = ProvisioningPolicy(provisioning_class=CLASS, retry=Retry(limit=2))
ASK = RequestSpec(reserved_at=NOON, provisioning_class=CLASS)

FITS = ProvisioningInputs(stage=ReservationStage.WAITING, spec=ASK)
LACKS = replace(FITS, missing=8)
SERVED = replace(LACKS, reuse="plan p frees 8 GPUs")
STARTED = ProvisioningInputs(stage=ReservationStage.STARTED, spec=ASK, consumes="r-1")
GONE = ProvisioningInputs(stage=ReservationStage.GONE)


def request(attempt: int = 1, state: RequestState = RequestState.NEW, **fields: Any) -> ObservedRequest:
    """A request made for this gang, in that state since noon."""
    filled: dict[str, Any] = {"name": f"r-{attempt}", "uid": f"u-{attempt}", "spec": ASK, "since": NOON} | fields
    return ObservedRequest(attempt=attempt, state=state, **filled)


def step(
    gang: ProvisioningInputs,
    *requests: ObservedRequest,
    policy: ProvisioningPolicy | None = POLICY,
    now: datetime = NOON,
) -> ProvisioningStep:
    return next_step(gang, requests, policy, now)


MISSING_ONLY = replace(POLICY, only_missing=True)
OTHER_ASK = replace(ASK, reserved_at=at(-60))


@dataclass(frozen=True, kw_only=True)
class Row:
    """The kinds of the steps where the gang fits, is being served, and lacks nodes."""

    requests: list[ObservedRequest]
    steps: tuple[StepKind, StepKind, StepKind]
    policy: ProvisioningPolicy = POLICY
    now: datetime = NOON


def row(words: str, *requests: ObservedRequest, **more: Any) -> Row:
    fits, served, lacks = (StepKind[word] for word in words.split())
    return Row(requests=list(requests), steps=(fits, served, lacks), **more)


WAITS, REMOVED, RESTS = "WAIT WAIT WAIT", "REMOVE REMOVE REMOVE", "NOTHING BACK_OFF BACK_OFF"
YIELDING = replace(POLICY, yields_at_limit=True)
PROVISIONED = request(state=RequestState.PROVISIONED)
TABLE: dict[str, Row] = {
    "one is being deleted": row(WAITS, request(is_ending=True)),
    "one was made for another reservation": row(REMOVED, request(spec=OTHER_ASK)),
    "one was made for another class": row(REMOVED, request(spec=replace(ASK, provisioning_class="other"))),
    "one was made with other parameters": row(
        REMOVED, request(state=RequestState.PROVISIONED, spec=replace(ASK, parameters={"a": "1"}))
    ),
    "which attempt it was cannot be read": row(REMOVED, request(attempt=0)),
    "none": row("NOTHING WAIT CREATE"),
    "new": row(WAITS, request()),
    "accepted": row(WAITS, request(state=RequestState.ACCEPTED)),
    "provisioned for the gang": row("PROVISIONED PROVISIONED PROVISIONED", PROVISIONED),
    "provisioned for what was missing": row("PROVISIONED WAIT WAIT", PROVISIONED, policy=MISSING_ONLY),
    "provisioned for the gang, and late": row("PROVISIONED PROVISIONED BACK_OFF", PROVISIONED, now=at(659)),
    "provisioned for the gang, late, and the pause is over": row(
        "PROVISIONED PROVISIONED CREATE", PROVISIONED, now=at(660)
    ),
    **{f"{state} a moment ago": row(RESTS, request(state=state), now=at(59)) for state in sorted(LOST)},
    **{f"{state} a minute ago": row("NOTHING WAIT CREATE", request(state=state), now=at(60)) for state in sorted(LOST)},
    "the last one failed": row("NOTHING WAIT AT_LIMIT", *(request(each, RequestState.FAILED) for each in (1, 2, 3))),
    "the last one failed a moment ago, and the gang shall yield": row(
        RESTS, request(3, RequestState.FAILED), policy=YIELDING, now=at(4 * 60 - 1)
    ),
    "the last one failed some time ago, and the gang shall yield": row(
        "NOTHING WAIT AT_LIMIT", request(3, RequestState.FAILED), policy=YIELDING, now=at(4 * 60)
    ),
}


DOCUMENTED = {
    "one is being deleted": ["one is being deleted"],
    "one was made for something else": [each for each in TABLE if each.startswith("one was made")],
    "none": ["none"],
    "new or accepted": ["new", "accepted"],
    "provisioned for the gang": ["provisioned for the gang"],
    "provisioned for what was missing": ["provisioned for what was missing"],
    "provisioned, late, pause over": ["provisioned for the gang, late, and the pause is over"],
    "lost, pause not over": [each for each in TABLE if each.endswith(" a moment ago")],
    "lost, pause over": [each for each in TABLE if each.endswith(" a minute ago")],
    "lost, limit reached": ["the last one failed"],
}


def test_the_documented_table_is_the_one_that_is_tested() -> None:
    table = rows(lifecycle, "request", "gang fits", "is being served", "lacks nodes")
    assert [documented for documented, *_ in table] == list(DOCUMENTED)
    for documented, *steps in table:
        for tested in DOCUMENTED[documented]:
            assert [each.partition(" ")[0] for each in steps] == [each.name for each in TABLE[tested].steps], documented


@pytest.mark.parametrize("name", TABLE)
def test_a_gang_that_waits_does_as_the_table_says(name: str) -> None:
    row = TABLE[name]
    found = tuple(step(gang, *row.requests, policy=row.policy, now=row.now).kind for gang in (FITS, SERVED, LACKS))
    assert found == row.steps


def test_the_first_request_is_attempt_1_and_each_further_one_the_next() -> None:
    assert step(LACKS).attempt == 1
    lost = [request(state=RequestState.FAILED), request(2, RequestState.BOOKING_EXPIRED)]
    assert step(LACKS, *lost, now=at(120)).attempt == 3


def test_the_worked_example_of_the_table() -> None:
    """Limit 2, base 60 s: pauses of 60 s and 120 s, and after the third failure none."""
    first = request(1, RequestState.FAILED, since=at(0))
    assert (step(LACKS, first, now=at(1)).kind, step(LACKS, first, now=at(1)).until) == (StepKind.BACK_OFF, at(60))
    assert step(LACKS, first, now=at(60)).kind is StepKind.CREATE
    second = request(2, RequestState.FAILED, since=at(300))
    assert step(LACKS, first, second, now=at(301)).until == at(420)
    assert step(LACKS, first, second, now=at(420)).attempt == 3
    third = request(3, RequestState.FAILED, since=at(500), message="no capacity in zone")
    held = step(LACKS, first, second, third, now=at(501))
    assert (held.kind, held.is_yielding) == (StepKind.AT_LIMIT, False)
    assert "no capacity in zone" in held.message


def test_a_gang_at_the_limit_yields_where_the_policy_says_so() -> None:
    yielding = replace(POLICY, yields_at_limit=True, retry=Retry(limit=0))
    assert step(LACKS, request(state=RequestState.FAILED), policy=yielding, now=at(60)).is_yielding


def test_nodes_are_not_asked_for_before_reuse_has_had_its_time() -> None:
    patient = replace(POLICY, after=minutes(2))
    waiting = step(LACKS, policy=patient, now=at(119))
    assert (waiting.kind, waiting.until) == (StepKind.WAIT, at(120))
    assert step(LACKS, policy=patient, now=at(120)).kind is StepKind.CREATE


def test_an_accepted_request_tells_when_nodes_are_expected() -> None:
    accepted = request(state=RequestState.ACCEPTED, message="ETA: 12:30", eta=at(1800))
    assert (step(LACKS, accepted).message, step(LACKS, accepted).until) == ("ETA: 12:30", at(1800))


def test_an_autoscaler_that_never_answers_is_named() -> None:
    silent = step(LACKS, request(), now=at(300))
    assert silent.kind is StepKind.WAIT
    assert CLASS in silent.message
    assert CLASS not in step(LACKS, request(), now=at(299)).message


@pytest.mark.parametrize("name", TABLE)
def test_while_nothing_happens_the_words_stay_the_same(name: str) -> None:
    """Else the gang's status would be written at every look."""
    row = TABLE[name]
    for gang in (FITS, SERVED, LACKS):
        for policy in (row.policy, replace(row.policy, after=minutes(60))):
            times = (row.now + timedelta(seconds=seconds) for seconds in (600, 601))
            found, later = (step(gang, *row.requests, policy=policy, now=now) for now in times)
            assert found == later


@pytest.mark.parametrize("state", [state for state in RequestState if state is not RequestState.CAPACITY_REVOKED])
def test_nothing_but_revoked_capacity_matters_to_a_gang_that_has_started(state: RequestState) -> None:
    assert step(STARTED, request(state=state)).kind is StepKind.NOTHING
    assert step(STARTED).kind is StepKind.NOTHING


def test_revoked_capacity_evicts_unless_the_policy_ignores_it() -> None:
    revoked = request(state=RequestState.CAPACITY_REVOKED, message="maintenance")
    found = step(STARTED, revoked)
    assert (found.kind, found.message) == (StepKind.REVOKED, "its nodes are revoked: CapacityRevoked: maintenance")
    ignoring = replace(POLICY, evicts_on_revocation=False)
    assert step(STARTED, revoked, policy=ignoring).kind is StepKind.NOTHING
    assert step(STARTED, revoked, policy=None).kind is StepKind.REVOKED


def test_revoked_capacity_of_a_request_that_is_not_consumed_evicts_no_gang() -> None:
    assert step(replace(STARTED, consumes=""), request(state=RequestState.CAPACITY_REVOKED)).kind is StepKind.REMOVE


def names(found: ProvisioningStep) -> list[str]:
    assert found.kind is StepKind.REMOVE
    return [each.name for each in found.remove]


def test_a_gang_that_has_started_keeps_only_what_it_consumes() -> None:
    requests = [request(1, RequestState.PROVISIONED), request(2, RequestState.FAILED), request(3)]
    assert names(step(STARTED, *requests)) == ["r-2", "r-3"]


def test_an_open_request_is_withdrawn_once_the_gang_has_started_without_it() -> None:
    without = replace(STARTED, consumes="")
    assert names(step(without, request(state=RequestState.ACCEPTED))) == ["r-1"]
    never = replace(POLICY, withdraws=False)
    assert step(without, request(state=RequestState.ACCEPTED), policy=never).kind is StepKind.NOTHING
    assert names(step(without, request(state=RequestState.FAILED), policy=never)) == ["r-1"]


@pytest.mark.parametrize("state", RequestState)
def test_a_gang_that_is_gone_keeps_no_request(state: RequestState) -> None:
    assert names(step(GONE, request(state=state), request(2, is_ending=True))) == ["r-1"]
    assert step(GONE, request(is_ending=True)).kind is StepKind.NOTHING


def test_requests_are_withdrawn_when_the_policy_requests_no_nodes_any_more() -> None:
    assert names(step(replace(LACKS, spec=None), request(), policy=None)) == ["r-1"]
    assert step(replace(LACKS, spec=None), policy=None).kind is StepKind.NOTHING


def test_of_two_open_requests_the_older_one_goes() -> None:
    assert names(step(LACKS, request(1), request(2))) == ["r-1"]


# ----------------------------------------------------------------------------------------------------------- its laws


@dataclass
class Life:
    """A gang, an autoscaler and us, in a world in which the API does at once what is asked."""

    policy: ProvisioningPolicy
    gang: ProvisioningInputs = LACKS
    now: datetime = NOON
    requests: dict[str, ObservedRequest] = field(default_factory=dict)
    made: int = 0

    def look(self) -> ProvisioningStep:
        """One look of ours, held to the laws."""
        requests = list(self.requests.values())
        found = next_step(self.gang, requests, self.policy, self.now)
        shuffled = random.Random(len(requests)).sample(requests, len(requests))
        assert next_step(self.gang, shuffled, self.policy, self.now) == found, "order is not meaningful"
        if found.kind is StepKind.CREATE:
            self._create(found)
        for each in found.remove:
            assert each.name != self.gang.consumes or self.gang.stage is not ReservationStage.STARTED, (
                "consumed ones stay"
            )
            del self.requests[each.name]
        self._check()
        return found

    def _create(self, found: ProvisioningStep) -> None:
        gang, mine = self.gang, [each for each in self.requests.values() if each.spec == self.gang.spec]
        assert gang.stage is ReservationStage.WAITING, "nothing is asked for a gang without reservation"
        assert gang.missing, "nothing is asked for a gang that fits"
        assert not gang.reuse, "nothing is asked for while GPUs are being freed"
        assert gang.spec is not None
        assert gang.spec.reserved_at is not None
        assert self.now >= gang.spec.reserved_at + self.policy.after, "reuse comes first"
        newest = max(mine, key=lambda each: each.attempt, default=None)
        assert found.attempt == (newest.attempt if newest else 0) + 1, "attempts have no gaps"
        if newest:
            assert self.now >= newest.since + self.policy.retry.pause_after(newest.attempt), "pauses are kept"
        self.made += 1
        name = f"r-{self.made}"
        self.requests[name] = ObservedRequest(
            name=name, uid=name, attempt=found.attempt, spec=gang.spec, state=RequestState.NEW, since=self.now
        )

    def _check(self) -> None:
        mine = [each for each in self.requests.values() if each.spec == self.gang.spec]
        if self.gang.stage is ReservationStage.WAITING:
            is_open = [each.state not in LOST and not each.is_late(self.now) for each in mine]
            assert sum(is_open) <= 1, "one is open at a time"
        assert all(each.attempt <= self.policy.retry.limit + 1 for each in mine), "attempts are bounded"

    # ------------------------------------------------------------------------------------------------- what happens

    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    def answer(self, state: RequestState) -> None:
        """The autoscaler says something about the request that is open."""
        for name, each in self.requests.items():
            if each.state not in LOST:
                self.requests[name] = replace(each, state=state, since=self.now)

    def settle(self) -> None:
        found = self.look()
        looks = 1
        while found.kind in (StepKind.CREATE, StepKind.REMOVE):
            found, looks = self.look(), looks + 1
            assert looks <= 4, "nothing is done and undone for ever"
        if found.kind is StepKind.PROVISIONED and found.request:
            self.gang = replace(self.gang, stage=ReservationStage.STARTED, consumes=found.request.name)
        if found.kind is StepKind.REVOKED or found.is_yielding:
            self.evict()

    def start(self) -> None:
        """It starts on what is free."""
        if self.gang.stage is ReservationStage.WAITING and not self.gang.missing:
            self.gang = replace(self.gang, stage=ReservationStage.STARTED, consumes="")

    def evict(self) -> None:
        self.gang = ProvisioningInputs(stage=ReservationStage.GONE)

    def reserve(self) -> None:
        if self.gang.stage is ReservationStage.GONE:
            self.wait(1)
            ask = RequestSpec(reserved_at=self.now, provisioning_class=self.policy.provisioning_class)
            self.gang = ProvisioningInputs(stage=ReservationStage.WAITING, spec=ask, missing=8)

    def delete_by_hand(self) -> None:
        if self.requests:
            self.requests.pop(max(self.requests))

    def lack(self, missing: int, reuse: str) -> None:
        if self.gang.stage is ReservationStage.WAITING:
            self.gang = replace(self.gang, missing=missing, reuse=reuse)


Event = Callable[[Life], None]
events: st.SearchStrategy[Event] = st.one_of(
    st.integers(1, 4000).map(lambda seconds: lambda life: life.wait(seconds)),
    st.sampled_from([state for state in RequestState if state is not RequestState.NEW]).map(
        lambda state: lambda life: life.answer(state)
    ),
    st.sampled_from([(0, ""), (8, ""), (8, "a plan")]).map(lambda lack: lambda life: life.lack(*lack)),
    st.sampled_from([Life.start, Life.evict, Life.reserve, Life.delete_by_hand]),
)
policies = st.builds(
    ProvisioningPolicy,
    provisioning_class=st.just(CLASS),
    only_missing=st.booleans(),
    withdraws=st.booleans(),
    yields_at_limit=st.booleans(),
    evicts_on_revocation=st.booleans(),
    after=st.sampled_from([timedelta(0), minutes(1)]),
    retry=st.builds(Retry, limit=st.integers(0, 3)),
)


@given(policies, st.lists(events, max_size=25))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_laws_hold(policy: ProvisioningPolicy, happens: list[Event]) -> None:
    life = Life(policy=policy)
    life.settle()
    for event in happens:
        event(life)
        life.settle()


@pytest.mark.parametrize(
    ("eta", "late_after"),
    [(None, 10), (at(5 * 60), 10), (at(25 * 60), 25), (at(48 * 3600), 60)],
    ids=["no time was named", "one that is near", "one that is further off", "one in two days"],
)
def test_nodes_are_counted_on_for_a_while_and_not_for_ever(eta, late_after):
    """Ten minutes after the last sign of the autoscaler, or at the time that it has named, within an hour."""
    accepted = request(state=RequestState.ACCEPTED, eta=eta)
    assert not step(LACKS, accepted, now=NOON + minutes(late_after) - timedelta(seconds=1)).is_late
    late = step(LACKS, accepted, now=NOON + minutes(late_after))
    assert late.is_late
    assert late.kind is StepKind.WAIT
