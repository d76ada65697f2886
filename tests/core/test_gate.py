"""What our check says of a gang: the table line by line, and the laws that hold for whatever is seen."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, at
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.claims import Lacks, Pin, Seated, Waits, Why
from scaler.core.gate import LONGEST_MESSAGE, decide, stand_back
from scaler.core.gate_values import (
    Answer,
    Because,
    Ending,
    Entry,
    Gang,
    Nodes,
    Nothing,
    Outlook,
    State,
    Yielded,
)
from scaler.core.placement import Misfit, Seat, Shortage
from scaler.core.provisioning import PodSetUpdate

PENDING, READY = Entry(state="Pending"), Entry(state="Ready")
GANG = Gang(key="team/gang", uid="uid-gang", reserved_at=at(-60), entry=PENDING)
SEATED = Seated(seats=(Seat("main", "a", 2, {}),))
LACKS = Lacks(
    because=Misfit(why=Shortage.NOT_ENOUGH_FREE, pod_set="main", count=2, missing=1, resource="nvidia.com/gpu")
)
ENDING = Ending(owner="team/victim", pods=2, since=at(-30))
OVERDUE = replace(ENDING, overdue=2)
FITS = Outlook(verdict=SEATED)


def gang(**fields: Any) -> Gang:
    return replace(GANG, **fields)


def said(found: Answer | Nothing) -> str:
    return f"{found.state}/{found.because}" if isinstance(found, Answer) else "nothing"


TABLE: dict[str, tuple[Gang, Outlook, str]] = {
    "one that is finished": (gang(finished=True), FITS, "nothing"),
    "one that is deactivated": (gang(active=False), FITS, "nothing"),
    "one that is being evicted": (gang(evicted=True), FITS, "nothing"),
    "one that is evicted after it was let go": (gang(evicted=True, admitted=True), FITS, "nothing"),
    "one without quota": (gang(reserved_at=None), FITS, "nothing"),
    "an entry that is not there yet": (gang(entry=None), FITS, "nothing"),
    "an entry that is not there yet, of one that runs": (gang(entry=None, admitted=True), FITS, "nothing"),
    "Kueue acts on Retry": (gang(entry=Entry(state="Retry")), FITS, "nothing"),
    "somebody has rejected it": (gang(entry=Entry(state="Rejected")), FITS, "nothing"),
    "another check sends it back": (gang(is_sent_back=True), FITS, "nothing"),
    "another check sends back one that runs": (
        gang(is_sent_back=True, admitted=True),
        FITS,
        "Ready/AdmittedBefore",
    ),
    "it was let go": (gang(entry=READY), Outlook(problem="wrong", blind="dark"), "nothing"),
    "it was let go, and its nodes are taken away": (
        gang(entry=READY, admitted=True),
        Outlook(nodes=Nodes(is_revoked=True, message="spot")),
        "Retry/NodesRevoked",
    ),
    "it runs already, and the check is new": (gang(admitted=True), Outlook(problem="wrong"), "Ready/AdmittedBefore"),
    "nobody can follow the policy": (GANG, replace(FITS, problem="no such policy"), "Pending/PolicyUnusable"),
    "pods of its victims are left": (GANG, replace(FITS, endings=(ENDING,)), "Pending/PodsEnding"),
    "pods of its victims should have ended long ago": (GANG, replace(FITS, endings=(OVERDUE,)), "Ready/Fits"),
    "some of them should have": (GANG, replace(FITS, endings=(replace(OVERDUE, pods=3),)), "Pending/PodsEnding"),
    "they should have, and it need not fit": (
        GANG,
        Outlook(endings=(OVERDUE,), requires_fit=False),
        "Pending/PodsEnding",
    ),
    "pods are left of one that runs elsewhere": (
        GANG,
        Outlook(endings=(ENDING,), runs_elsewhere=True),
        "Pending/PodsEnding",
    ),
    "it runs elsewhere": (GANG, Outlook(runs_elsewhere=True, blind="dark"), "Ready/RunsElsewhere"),
    "it need not fit": (GANG, Outlook(requires_fit=False, blind="dark"), "Ready/PodsGone"),
    "nobody sees the nodes": (GANG, replace(FITS, blind="dark"), "Pending/NodesUnseen"),
    "nobody was asked": (GANG, Outlook(), "Pending/NodesUnseen"),
    "it has places": (GANG, FITS, "Ready/Fits"),
    "it has places, booked for it": (GANG, replace(FITS, nodes=Nodes(is_booked=True)), "Ready/Provisioned"),
    "it has places, some on nodes that may be booked for it yet": (
        GANG,
        replace(FITS, came_at=at(-59), nodes=Nodes(is_coming=True, message="ETA")),
        "Pending/NodesComing",
    ),
    "it has places, some on nodes that nobody has booked for a minute": (
        GANG,
        replace(FITS, came_at=at(-60), nodes=Nodes(is_coming=True, message="ETA")),
        "Ready/Fits",
    ),
    "it has places, some on nodes that were booked for it as they came": (
        GANG,
        replace(FITS, came_at=NOON, nodes=Nodes(is_booked=True)),
        "Ready/Provisioned",
    ),
    "it has places, and was to yield": (
        GANG,
        replace(FITS, nodes=Nodes(is_yielding=True), wanted_by="team/x"),
        "Ready/Fits",
    ),
    "it is to yield": (
        GANG,
        Outlook(verdict=LACKS, nodes=Nodes(is_yielding=True, message="at the limit"), wanted_by="team/x"),
        "Retry/Yields",
    ),
    "it is to yield, and nobody wants its quota": (
        GANG,
        Outlook(verdict=LACKS, nodes=Nodes(is_yielding=True, message="at the limit")),
        "Pending/NodesLacking",
    ),
    "it is to yield, and has a moment ago": (
        gang(yielded=Yielded(to="team/x", at=at(-59))),
        Outlook(verdict=LACKS, nodes=Nodes(is_yielding=True, message="at the limit"), wanted_by="team/x"),
        "Pending/NodesLacking",
    ),
    "it is to yield, and has a minute ago": (
        gang(yielded=Yielded(to="team/x", at=at(-60))),
        Outlook(verdict=LACKS, nodes=Nodes(is_yielding=True, message="at the limit"), wanted_by="team/x"),
        "Retry/Yields",
    ),
    "it fits no nodes": (GANG, Outlook(verdict=LACKS), "Pending/NodesLacking"),
    "it fits no nodes, and no more are asked for": (
        GANG,
        Outlook(verdict=LACKS, nodes=Nodes(is_at_limit=True, message="at the limit")),
        "Pending/NodesLimitReached",
    ),
    "nodes are on their way": (
        GANG,
        Outlook(verdict=LACKS, nodes=Nodes(is_coming=True, message="ETA")),
        "Pending/NodesComing",
    ),
    "it fits once pods have ended": (GANG, Outlook(verdict=Waits(why=Why.PODS_ENDING)), "Pending/PodsEnding"),
    "one before it needs the places": (GANG, Outlook(verdict=Waits(why=Why.GANGS_BEFORE)), "Pending/GangsBefore"),
    "pods of others are coming": (GANG, Outlook(verdict=Waits(why=Why.PODS_COMING)), "Pending/PodsComing"),
    "it fits only one way": (GANG, Outlook(verdict=Waits(why=Why.SCATTERED)), "Pending/OnlyOneWayToFit"),
}


@pytest.mark.parametrize(("found", "outlook", "expected"), TABLE.values(), ids=TABLE.keys())
def test_the_table(found, outlook, expected):
    assert said(decide(found, outlook, NOON)) == expected


# ------------------------------------------------------------------------------------------------------------- messages


def message(outlook: Outlook) -> str:
    found = decide(GANG, outlook, NOON)
    assert isinstance(found, Answer)
    return found.message


def test_who_has_not_ended_is_named_with_the_time_since_when():
    second = Ending(owner="team/other", pods=1)
    text = message(Outlook(endings=(ENDING, second)))
    assert text == "waits for 2 pods of team/victim (told to end at 11:59:30 UTC), 1 pod of team/other"


def test_of_many_the_first_are_named_and_the_rest_counted():
    many = [Ending(owner=f"team/v{n}", pods=n) for n in range(1, 7)]
    text = message(Outlook(endings=many))
    assert text == "waits for 1 pod of team/v1, 2 pods of team/v2, 3 pods of team/v3 and 15 more"


def test_whoever_lacks_nodes_is_told_of_plans_and_requests():
    text = message(Outlook(verdict=LACKS, plan="plan p frees GPUs of team/x", nodes=Nodes(message="attempt 1: ETA 5m")))
    assert text.endswith("; plan p frees GPUs of team/x; attempt 1: ETA 5m")


def test_pods_in_the_way_are_named_where_it_would_fit():
    waits = Waits(why=Why.PODS_ENDING, seats=(Seat("main", "a", 1, {}),))
    assert message(Outlook(verdict=waits, in_the_way=(ENDING,))).startswith(
        "fits once pods have ended on a: 2 pods of team/victim"
    )


def test_a_message_is_never_longer_than_the_api_takes():
    found = decide(GANG, Outlook(problem="x" * 100_000), NOON)
    assert isinstance(found, Answer)
    assert len(found.message) == LONGEST_MESSAGE
    assert found.message.endswith("…")


def test_pods_get_what_a_request_gives_and_the_labels_of_their_places():
    """What the request selects is not changed by a pin: Kueue fails a Workload for good when they differ."""
    given = PodSetUpdate(name="main", annotations={"consume": "r"}, node_selector={"pool": "new"})
    pins = {"main": Pin("pool", "old"), "head": Pin("host", "a")}
    found = decide(GANG, Outlook(verdict=replace(SEATED, pins=pins), nodes=Nodes(updates=(given,))), NOON)
    assert isinstance(found, Answer)
    assert found.updates == (PodSetUpdate(name="head", node_selector={"host": "a"}), given)


def test_what_the_entry_says_already_is_not_news():
    answer = Answer(state=State.PENDING, because=Because.NODES_LACKING, message="no room")
    assert answer.is_said_by(Entry(state="Pending", message="no room", since=NOON))
    assert not answer.is_said_by(Entry(state="Pending", message="other"))
    assert not answer.is_said_by(Entry(state="Pending", message="no room", updates=(PodSetUpdate(name="main"),)))
    assert not answer.is_said_by(None)


# -------------------------------------------------------------------------------------------------------- standing back


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(GANG, "", id="it holds quota and waits"),
        pytest.param(gang(entry=READY), "it was let go, and is not stopped any more", id="it was let go"),
        pytest.param(gang(admitted=True), "it was let go, and is not stopped any more", id="it runs"),
        pytest.param(gang(reserved_at=None), "it holds no quota that it may use", id="without quota"),
        pytest.param(gang(evicted=True), "it holds no quota that it may use", id="evicted"),
        pytest.param(gang(entry=None), "Kueue has not added the entry yet", id="no entry"),
        pytest.param(
            gang(yielded=Yielded(to="plan p", at=at(-9999999))), "it has yielded before, to plan p", id="once is enough"
        ),
    ],
)
def test_a_newcomer_stands_back_once_and_only_before_it_was_let_go(found, why):
    answer = stand_back(found, "plan-1")
    assert (answer.why if isinstance(answer, Nothing) else "") == why


@pytest.mark.parametrize(("times", "minutes"), [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (100, 30)])
def test_pauses_between_yields_double_up_to_half_an_hour(times, minutes):
    assert Yielded(to="x", at=NOON, times=times).until == NOON + timedelta(minutes=minutes)


# ----------------------------------------------------------------------------------------------------------------- laws

_ENTRIES = st.sampled_from([None, PENDING, READY, Entry(state="Retry"), Entry(state="Rejected"), Entry(state="?")])
_GANGS = st.builds(
    Gang,
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
_NODES = st.builds(
    Nodes,
    message=st.sampled_from(["", "words"]),
    is_booked=st.booleans(),
    is_coming=st.booleans(),
    is_yielding=st.booleans(),
    is_revoked=st.booleans(),
)
_OUTLOOKS = st.builds(
    Outlook,
    problem=st.sampled_from(["", "wrong"]),
    endings=st.sampled_from([(), (ENDING,)]),
    requires_fit=st.booleans(),
    runs_elsewhere=st.booleans(),
    blind=st.sampled_from(["", "dark"]),
    came_at=st.sampled_from([None, at(-61), at(-1)]),
    verdict=st.sampled_from([None, SEATED, LACKS, *(Waits(why=why) for why in Why)]),
    nodes=_NODES,
    plan=st.sampled_from(["", "plan"]),
    wanted_by=st.sampled_from(["", "team/x"]),
)


@given(_GANGS, _OUTLOOKS)
def test_rejected_is_never_said_and_a_message_always(found, outlook):
    answer = decide(found, outlook, NOON)
    if isinstance(answer, Answer):
        assert answer.state in set(State)
        assert answer.state != "Rejected"
        assert answer.message
    else:
        assert answer.why


@given(_GANGS, _OUTLOOKS)
def test_nothing_is_said_without_a_reservation_or_an_entry(found, outlook):
    is_out = found.reserved_at is None or found.evicted or found.finished or not found.active or found.entry is None
    if is_out:
        assert isinstance(decide(found, outlook, NOON), Nothing)


@given(_GANGS, _OUTLOOKS)
def test_ready_is_final_unless_its_nodes_are_taken_away(found, outlook):
    answer = decide(replace(found, entry=READY), replace(outlook, nodes=replace(outlook.nodes, is_revoked=False)), NOON)
    assert isinstance(answer, Nothing)


@given(_GANGS, _OUTLOOKS)
def test_retry_is_said_only_to_yield_to_somebody_and_after_a_rest(found, outlook):
    answer = decide(found, outlook, NOON)
    if isinstance(answer, Answer) and answer.state is State.RETRY:
        yields = outlook.wanted_by and (found.yielded is None or found.yielded.until <= NOON) and not found.admitted
        assert yields or outlook.nodes.is_revoked
        assert answer.updates == ()


@given(_GANGS, _OUTLOOKS)
def test_nobody_is_let_go_by_blindness_or_into_pods_that_end(found, outlook):
    answer = decide(found, outlook, NOON)
    if isinstance(answer, Answer) and answer.state is State.READY and not found.admitted:
        assert not outlook.endings
        assert not outlook.problem
        assert isinstance(outlook.verdict, Seated) or not outlook.requires_fit or outlook.runs_elsewhere
        assert not outlook.blind or not outlook.requires_fit or outlook.runs_elsewhere


@given(_GANGS, _OUTLOOKS)
def test_whoever_runs_already_is_let_go_whatever_is_seen(found, outlook):
    runs = replace(found, admitted=True, entry=PENDING, reserved_at=NOON, evicted=False, active=True, finished=False)
    assert said(decide(runs, outlook, NOON)) == "Ready/AdmittedBefore"
