"""What our check says of a gang: the table line by line, and the laws that hold for whatever is seen."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, at
from decision.documented import rows
from hypothesis import given
from hypothesis import strategies as st

from scaler.admission import check
from scaler.admission.check import (
    LONGEST_MESSAGE,
    CheckChange,
    CheckEntry,
    CheckInputs,
    CheckReason,
    CheckState,
    NoChange,
    ReservedWorkload,
    TerminatingPods,
    Yielded,
    decide,
)
from scaler.admission.provisioning.lifecycle import NO_STEP, PodSetPatch, ProvisioningStep, StepKind
from scaler.placement.capacity import PodPlacement
from scaler.placement.requests import Blocked, BlockedReason, Fits, Insufficient, NodePin
from scaler.placement.shortage import Misfit, Shortage

PENDING, READY = CheckEntry(state="Pending"), CheckEntry(state="Ready")
GANG = ReservedWorkload(key="team/gang", uid="uid-gang", reserved_at=at(-60), entry=PENDING)
SEATED = Fits(placements=(PodPlacement("main", "a", 2, {}),))
LACKS = Insufficient(
    because=Misfit(why=Shortage.NOT_ENOUGH_FREE, pod_set="main", count=2, missing=1, resource="nvidia.com/gpu")
)
ENDING = TerminatingPods(owner="team/victim", pods=2, since=at(-30))
YIELDING = ProvisioningStep(kind=StepKind.AT_LIMIT, is_yielding=True, message="at the limit")
BOOKED = ProvisioningStep(kind=StepKind.PROVISIONED)
OVERDUE = replace(ENDING, overdue=2)
FITS = CheckInputs(verdict=SEATED)


def gang(**fields: Any) -> ReservedWorkload:
    return replace(GANG, **fields)


def said(found: CheckChange | NoChange) -> str:
    return f"{found.state}/{found.because}" if isinstance(found, CheckChange) else "nothing"


YIELDS = CheckInputs(verdict=LACKS, provisioning=YIELDING, wanted_by="team/x")
TABLE: dict[str, tuple[ReservedWorkload, CheckInputs, str]] = {
    "one that is finished": (gang(finished=True), FITS, "nothing"),
    "one that is deactivated": (gang(active=False), FITS, "nothing"),
    "one that is being evicted": (gang(evicted=True), FITS, "nothing"),
    "one that is evicted after it was admitted": (gang(evicted=True, admitted=True), FITS, "nothing"),
    "one without quota": (gang(reserved_at=None), FITS, "nothing"),
    "an entry that is not there yet": (gang(entry=None), FITS, "nothing"),
    "an entry that is not there yet, of one that runs": (gang(entry=None, admitted=True), FITS, "nothing"),
    "Kueue acts on Retry": (gang(entry=CheckEntry(state="Retry")), FITS, "nothing"),
    "Kueue acts on Rejected": (gang(entry=CheckEntry(state="Rejected")), FITS, "nothing"),
    "another check sends it back": (gang(is_sent_back=True), FITS, "nothing"),
    "another check sends back one that runs": (
        gang(is_sent_back=True, admitted=True),
        FITS,
        "Ready/AdmittedBefore",
    ),
    "its check is Ready": (gang(entry=READY), CheckInputs(problem="wrong", capacity_unknown="dark"), "nothing"),
    "its check is Ready, and its nodes are revoked": (
        gang(entry=READY, admitted=True),
        CheckInputs(provisioning=ProvisioningStep(kind=StepKind.REVOKED, message="spot")),
        "Retry/NodesRevoked",
    ),
    "a remote copy that fits": (gang(), CheckInputs(verdict=SEATED, remote_copy="not nominated"), "Ready/Fits"),
    "a remote copy that lacks nodes": (
        gang(),
        CheckInputs(verdict=LACKS, remote_copy="not nominated"),
        "Pending/RemoteCopy",
    ),
    "a remote copy that waits for pods": (
        gang(),
        CheckInputs(terminating=[ENDING], verdict=LACKS, remote_copy="not nominated"),
        "Pending/PodsEnding",
    ),
    "a remote copy that need not fit": (
        gang(),
        CheckInputs(requires_fit=False, remote_copy="not nominated"),
        "Ready/PodsGone",
    ),
    "it was admitted before the check was added": (
        gang(admitted=True),
        CheckInputs(problem="wrong"),
        "Ready/AdmittedBefore",
    ),
    "the policy cannot be used": (GANG, replace(FITS, problem="no such policy"), "Pending/PolicyUnusable"),
    "pods of its victims are left": (GANG, replace(FITS, terminating=(ENDING,)), "Pending/PodsEnding"),
    "pods of its victims should have ended long ago": (GANG, replace(FITS, terminating=(OVERDUE,)), "Ready/Fits"),
    "some of them should have": (GANG, replace(FITS, terminating=(replace(OVERDUE, pods=3),)), "Pending/PodsEnding"),
    "they should have, and it need not fit": (
        GANG,
        CheckInputs(terminating=(OVERDUE,), requires_fit=False),
        "Pending/PodsEnding",
    ),
    "pods are left of one that runs elsewhere": (
        GANG,
        CheckInputs(terminating=(ENDING,), runs_elsewhere=True),
        "Pending/PodsEnding",
    ),
    "it runs elsewhere": (GANG, CheckInputs(runs_elsewhere=True, capacity_unknown="dark"), "Ready/RunsElsewhere"),
    "it need not fit": (GANG, CheckInputs(requires_fit=False, capacity_unknown="dark"), "Ready/PodsGone"),
    "node capacity is not available": (GANG, replace(FITS, capacity_unknown="dark"), "Pending/NodeCapacityUnknown"),
    "the placement was not computed": (GANG, CheckInputs(), "Pending/NodeCapacityUnknown"),
    "it has places": (GANG, FITS, "Ready/Fits"),
    "it has places, booked for it": (
        GANG,
        replace(FITS, provisioning=BOOKED),
        "Ready/Provisioned",
    ),
    "it has places, some on nodes that may be booked for it yet": (
        GANG,
        replace(FITS, came_at=at(-59), provisioning=ProvisioningStep(kind=StepKind.CREATE, message="ETA")),
        "Pending/NodesComing",
    ),
    "it has places, some on nodes that have not been booked for a minute": (
        GANG,
        replace(FITS, came_at=at(-60), provisioning=ProvisioningStep(kind=StepKind.CREATE, message="ETA")),
        "Ready/Fits",
    ),
    "it has places, some on nodes that were booked for it as they came": (
        GANG,
        replace(FITS, came_at=NOON, provisioning=BOOKED),
        "Ready/Provisioned",
    ),
    "it has places, and was to yield": (
        GANG,
        replace(FITS, provisioning=ProvisioningStep(kind=StepKind.AT_LIMIT, is_yielding=True), wanted_by="team/x"),
        "Ready/Fits",
    ),
    "it is to yield": (GANG, YIELDS, "Retry/Yields"),
    "it is to yield, and no other Workload can use its quota": (
        GANG,
        replace(YIELDS, wanted_by=""),
        "Pending/NodesLimitReached",
    ),
    "it is to yield, and has a moment ago": (
        gang(yielded=Yielded(to="team/x", at=at(-59))),
        YIELDS,
        "Pending/NodesLimitReached",
    ),
    "it is to yield, and has a minute ago": (gang(yielded=Yielded(to="team/x", at=at(-60))), YIELDS, "Retry/Yields"),
    "it fits no nodes": (GANG, CheckInputs(verdict=LACKS), "Pending/NodesLacking"),
    "it fits no nodes, and no more are asked for": (
        GANG,
        CheckInputs(verdict=LACKS, provisioning=ProvisioningStep(kind=StepKind.AT_LIMIT, message="at the limit")),
        "Pending/NodesLimitReached",
    ),
    "nodes are on their way": (
        GANG,
        CheckInputs(verdict=LACKS, provisioning=ProvisioningStep(kind=StepKind.CREATE, message="ETA")),
        "Pending/NodesComing",
    ),
    **{f"it fits, but {why}": (GANG, CheckInputs(verdict=Blocked(why=why)), f"Pending/{why}") for why in BlockedReason},
}


@pytest.mark.parametrize(("found", "outlook", "expected"), TABLE.values(), ids=TABLE.keys())
def test_the_table(found, outlook, expected):
    assert said(decide(found, outlook, NOON)) == expected


DOCUMENTED: dict[tuple[str, str, str], list[str]] = {
    ("finished, deactivated, evicted, without quota", "any", "–"): [
        "one that is finished",
        "one that is deactivated",
        "one that is being evicted",
        "one without quota",
    ],
    ("with quota", "none", "–"): ["an entry that is not there yet"],
    ("with quota", "Retry, Rejected", "Kueue acts on it"): ["Kueue acts on Retry", "Kueue acts on Rejected"],
    ("with quota", "Pending", "another check: Retry or Rejected"): ["another check sends it back"],
    ("with quota", "Ready", "its nodes are revoked"): ["its check is Ready, and its nodes are revoked"],
    ("with quota", "Ready", "–"): ["its check is Ready"],
    ("admitted", "Pending", "–"): ["it was admitted before the check was added"],
    ("with quota", "Pending", "the policy cannot be used"): ["the policy cannot be used"],
    ("with quota", "Pending", "pods of its victims terminate"): ["pods of its victims are left"],
    ("with quota", "Pending", "it runs on another cluster"): ["it runs elsewhere"],
    ("with quota", "Pending", "it need not fit"): ["it need not fit"],
    ("with quota", "Pending", "node capacity is not known"): [
        "node capacity is not available",
        "the placement was not computed",
    ],
    ("with quota", "Pending", "its places may be booked yet"): [
        "it has places, some on nodes that may be booked for it yet"
    ],
    ("with quota", "Pending", "it has places for all of its pods"): ["it has places", "it has places, booked for it"],
    ("with quota", "Pending", "it is to yield, and may"): ["it is to yield"],
    ("with quota", "Pending", "–"): ["it fits no nodes", "it is to yield, and no other Workload can use its quota"],
}


def test_the_documented_table_is_the_one_that_is_tested():
    documented = {row[:3]: row[3] for row in rows(check, "the Workload", "its entry")}
    assert list(documented) == list(DOCUMENTED)
    for row, state in documented.items():
        assert {TABLE[tested][2].partition("/")[0] for tested in DOCUMENTED[row]} == {state}, row


# ------------------------------------------------------------------------------------------------------------- messages


def message(outlook: CheckInputs) -> str:
    found = decide(GANG, outlook, NOON)
    assert isinstance(found, CheckChange)
    return found.message


def test_who_has_not_ended_is_named_with_the_time_since_when():
    second = TerminatingPods(owner="team/other", pods=1)
    text = message(CheckInputs(terminating=(ENDING, second)))
    assert text == "waits for 2 pods of team/victim (terminating since 11:59:30 UTC), 1 pod of team/other"


def test_of_many_the_first_are_named_and_the_rest_counted():
    many = [TerminatingPods(owner=f"team/v{n}", pods=n) for n in range(1, 7)]
    text = message(CheckInputs(terminating=many))
    assert text == "waits for 1 pod of team/v1, 2 pods of team/v2, 3 pods of team/v3 and 15 more"


def test_the_message_of_one_that_lacks_nodes_has_plans_and_requests():
    text = message(
        CheckInputs(
            verdict=LACKS,
            plan="plan p frees GPUs of team/x",
            provisioning=ProvisioningStep(kind=StepKind.WAIT, message="attempt 1: ETA 5m"),
        )
    )
    assert text.endswith("; plan p frees GPUs of team/x; attempt 1: ETA 5m")


def test_pods_in_the_way_are_named_where_it_would_fit():
    waits = Blocked(why=BlockedReason.PODS_ENDING, placements=(PodPlacement("main", "a", 1, {}),))
    assert message(CheckInputs(verdict=waits, in_the_way=(ENDING,))).startswith(
        "fits once pods have terminated on a: 2 pods of team/victim"
    )


def test_a_message_is_never_longer_than_the_api_takes():
    found = decide(GANG, CheckInputs(problem="x" * 100_000), NOON)
    assert isinstance(found, CheckChange)
    assert len(found.message) == LONGEST_MESSAGE
    assert found.message.endswith("…")


def test_pods_get_what_a_request_gives_and_the_labels_of_their_places():
    """What the request selects is not changed by a pin: Kueue fails a Workload for good when they differ."""
    given = PodSetPatch(name="main", annotations={"consume": "r"}, node_selector={"pool": "new"})
    pins = {"main": NodePin("pool", "old"), "head": NodePin("host", "a")}
    found = decide(
        GANG,
        CheckInputs(
            verdict=replace(SEATED, pins=pins), provisioning=ProvisioningStep(kind=StepKind.NOTHING, patches=(given,))
        ),
        NOON,
    )
    assert isinstance(found, CheckChange)
    assert found.updates == (PodSetPatch(name="head", node_selector={"host": "a"}), given)


def test_what_the_entry_says_already_is_not_news():
    answer = CheckChange(state=CheckState.PENDING, because=CheckReason.NODES_LACKING, message="no room")
    assert answer.equals(CheckEntry(state="Pending", message="no room", since=NOON))
    assert not answer.equals(CheckEntry(state="Pending", message="other"))
    assert not answer.equals(CheckEntry(state="Pending", message="no room", updates=(PodSetPatch(name="main"),)))
    assert not answer.equals(None)


# -------------------------------------------------------------------------------------------------------- standing back


@pytest.mark.parametrize(("times", "minutes"), [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (100, 30)])
def test_pauses_between_yields_double_up_to_half_an_hour(times, minutes):
    assert Yielded(to="x", at=NOON, times=times).until == NOON + timedelta(minutes=minutes)


# ----------------------------------------------------------------------------------------------------------------- laws

_ENTRIES = st.sampled_from(
    [None, PENDING, READY, CheckEntry(state="Retry"), CheckEntry(state="Rejected"), CheckEntry(state="?")]
)
_GANGS = st.builds(
    ReservedWorkload,
    key=st.just("team/gang"),
    uid=st.just("uid"),
    reserved_at=st.sampled_from([None, at(-60)]),
    admitted=st.booleans(),
    evicted=st.booleans(),
    active=st.booleans(),
    finished=st.booleans(),
    entry=_ENTRIES,
    yielded=st.sampled_from([None, Yielded(to="x", at=at(-1)), Yielded(to="x", at=at(-999999))]),
)
_STEPS = st.builds(
    ProvisioningStep,
    kind=st.sampled_from(StepKind),
    message=st.sampled_from(["", "words"]),
    is_yielding=st.booleans(),
)
_OUTLOOKS = st.builds(
    CheckInputs,
    problem=st.sampled_from(["", "wrong"]),
    terminating=st.sampled_from([(), (ENDING,)]),
    requires_fit=st.booleans(),
    runs_elsewhere=st.booleans(),
    capacity_unknown=st.sampled_from(["", "dark"]),
    came_at=st.sampled_from([None, at(-61), at(-1)]),
    verdict=st.sampled_from([None, SEATED, LACKS, *(Blocked(why=why) for why in BlockedReason)]),
    provisioning=_STEPS,
    plan=st.sampled_from(["", "plan"]),
    wanted_by=st.sampled_from(["", "team/x"]),
)


@given(_GANGS, _OUTLOOKS)
def test_whatever_is_observed_the_laws_hold(found, outlook):
    answer = decide(found, outlook, NOON)
    is_out = found.reserved_at is None or found.evicted or found.finished or not found.active or found.entry is None
    if isinstance(answer, NoChange):
        assert answer.why
        return
    assert not is_out, "nothing is written without a reservation or an entry"
    assert answer.state in set(CheckState), "never Rejected"
    assert answer.message
    if answer.state is CheckState.RETRY:
        yields = outlook.wanted_by and (found.yielded is None or found.yielded.until <= NOON) and not found.admitted
        assert yields or outlook.provisioning.kind is StepKind.REVOKED, "only to a Workload, and after a pause"
        assert answer.updates == ()
    if answer.state is CheckState.READY and not found.admitted:
        assert not outlook.terminating, "not while pods terminate"
        assert not outlook.problem, "not without a policy"
        is_elsewhere = not outlook.requires_fit or outlook.runs_elsewhere
        assert is_elsewhere or (isinstance(outlook.verdict, Fits) and not outlook.capacity_unknown), (
            "unknown is not yes"
        )


@given(_GANGS, _OUTLOOKS)
def test_ready_is_final_unless_its_nodes_are_revoked(found, outlook):
    answer = decide(replace(found, entry=READY), replace(outlook, provisioning=NO_STEP), NOON)
    assert isinstance(answer, NoChange)
