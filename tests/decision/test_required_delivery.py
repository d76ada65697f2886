"""With `requireDelivery` nothing is suspended before its owner was told: the decision, and what says that he was."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import BUSY, IDLE, NOON, a_target, at, gpu_evidence, minutes, policy, verdict, window
from decision.test_evaluation import cluster_of
from hypothesis import example, given
from hypothesis import strategies as st
from loops_builders import Inhabitant, World, deployment, gang, record
from msgspec import structs

from scaler.decision.candidate import HistoryLine, next_line
from scaler.decision.decision import Active, Decision, Inactive
from scaler.decision.gates import decide
from scaler.idleness.policy import Overrides, Reclaim, resolve
from scaler.kube.objects.idlegpu import Mark
from scaler.suspension.status import next_warned_at
from scaler.targets.workloads import NotifyTargets, notified_at

TOLD_BY = ("chat", "mail")
WARNED_AT_NOON = {"warned_at": NOON, "notified_by": TOLD_BY}
REQUIRED: dict[str, Any] = {"warning": minutes(20), "require_delivery": True}
HOUR = minutes(60)


def decided(*, now: datetime, reclaim: Reclaim = Reclaim.ALWAYS, **target: Any) -> Decision:
    quiet = verdict(IDLE, gpu_evidence(IDLE, last_active_at=NOON - minutes(30)))
    state = a_target(**{**WARNED_AT_NOON, **target})
    return decide(state, quiet, policy=policy(reclaim=reclaim, **REQUIRED), now=now)


@pytest.mark.parametrize(
    ("target", "after", "answer", "message"),
    [
        ({"notified_at": at(300)}, minutes(25), Inactive, "every required GPU stayed below 1 % for 30m"),
        (
            {"notified_at": at(300)},
            minutes(24),
            Active,
            "its owner was notified at 2026-12-01T12:05:00Z, 20m before it may be suspended",
        ),
        (
            {},
            HOUR,
            Active,
            "the warning of 2026-12-01T12:00:00Z counts once its owner has it from chat, mail",
        ),
        (
            {"warned_at": NOON - minutes(31), "notified_at": NOON - minutes(31)},
            HOUR,
            Active,
            "its owner is warned 20m before it may be suspended",
        ),
        (
            {"warned_at": None, "notified_at": at(300)},
            HOUR,
            Active,
            "its owner is warned 20m before it may be suspended",
        ),
        (
            {"notified_by": (), "notified_at": None},
            HOUR,
            Active,
            "its owner cannot be notified: none of its targets sends messages (notifications.targets of the settings)",
        ),
        ({"notified_at": at(-300)}, minutes(19), Active, "its owner was notified at 2026-12-01T12:00:00Z"),
        ({"grant": "plan p1"}, HOUR, Active, "counts once its owner has it from chat, mail"),
    ],
    ids=[
        "told for long enough",
        "told, not for long enough",
        "not told yet",
        "told of the warning before its last work",
        "told, and not warned",
        "nothing tells its owner",
        "told by a clock that is slow",
        "a plan takes it, and its owner is not told yet",
    ],
)
@pytest.mark.parametrize("reclaim", Reclaim)
def test_it_is_suspended_only_when_its_owner_was_told_for_the_time_of_its_policy(
    target: Mapping[str, Any], after: timedelta, answer: type, message: str, reclaim: Reclaim
) -> None:
    found = decided(now=NOON + after, reclaim=reclaim, **target).answer
    if answer is Active:
        assert (found.reason, type(found)) == ("Warned", Active)
        assert message in found.message
    elif reclaim is Reclaim.ALWAYS:
        assert type(found) is Inactive
    else:
        assert found.reason in ("IdleNotNeeded", "PriorityLowered"), "a candidate"


def test_a_plan_takes_what_was_told() -> None:
    taken = decided(now=at(3600), reclaim=Reclaim.ON_PRESSURE, notified_at=at(300), grant="plan p1").answer
    assert (type(taken), str(taken.reason)) == (Inactive, "Reclaimed")


def test_the_suspension_is_foreseen_from_the_delivery_and_not_while_that_is_late() -> None:
    assert decided(now=at(600), notified_at=at(300)).suspend_at == at(1500)
    assert decided(now=at(600)).suspend_at == at(1200), "at the earliest"
    late = decided(now=at(1200))
    assert late.suspend_at is None
    assert late.if_notified(at(1230)).suspend_at == at(2430), "as its owner reads in the message"
    assert decided(now=at(600), notified_by=()).suspend_at is None


def test_a_decision_holds_until_the_time_since_the_delivery_is_over() -> None:
    assert decided(now=at(1300), notified_at=at(300)).holds_until() == at(1500)


def test_whose_owner_cannot_be_told_is_not_warned() -> None:
    made = decided(now=at(3600), notified_by=(), warned_at=None)
    assert made.warning_at is None
    assert next_warned_at(None, made, now=at(3600)) is None


def test_without_a_warning_of_its_policy_it_is_suspended_at_once_when_its_owner_was_told() -> None:
    resolved = resolve(("trigger metadata", Overrides(require_delivery=True, reclaim=Reclaim.ON_PRESSURE)))
    assert resolved.warning == timedelta(0)


# ------------------------------------------------------------------------------------------- what says that it was told


def mark(line_s: float, delivered_s: float, state: str = "Warned") -> Mark:
    return Mark(at=at(line_s), state=state, delivered_at=at(delivered_s))


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({"chat": mark(0, 70)}, at(70)),
        ({"chat": mark(0, 70), "mail": mark(0, 65)}, at(65)),
        ({"chat": mark(600, 670)}, at(670)),
        ({"chat": mark(-1, 70)}, None),
        ({"chat": mark(0, 70, "Suspended")}, None),
        ({"pager": mark(0, 70)}, None),
        ({}, None),
    ],
    ids=[
        "of the warning",
        "by two targets: the first one counts",
        "of a later line of the same warning",
        "of the warning before",
        "of another state",
        "by a target that does not tell its owner",
        "none",
    ],
)
def test_a_mark_tells_of_one_warning(marks: Mapping[str, Mark], expected: datetime | None) -> None:
    assert notified_at(marks, NOON, TOLD_BY) == expected
    assert notified_at(marks, None, TOLD_BY) is None


def test_a_warning_that_is_given_again_is_told_again() -> None:
    made = decided(now=at(3600), warned_at=at(3000))
    before = HistoryLine(at=NOON, state="Warned")
    again = next_line(before, made, warned_at=at(3000), now=at(3001))
    assert again is not None
    assert (again.state, again.at) == ("Warned", at(3001))
    assert next_line(again, made, warned_at=at(3000), now=at(3002)) is None


# --------------------------------------------------------------------------------------------------------------- by law

YES = [True] * 150


@given(
    works=st.lists(st.booleans(), min_size=150, max_size=150),
    leads=st.lists(st.booleans(), min_size=150, max_size=150),
    delivers=st.lists(st.booleans(), min_size=150, max_size=150),
    length=st.integers(1, 20),
    warning=st.integers(0, 20),
    reclaim=st.sampled_from([Reclaim.ALWAYS, Reclaim.ON_PRESSURE]),
)
@example(works=YES, leads=YES, delivers=[n > 40 for n in range(150)], length=5, warning=5, reclaim=Reclaim.ALWAYS)
@example(works=YES, leads=YES, delivers=[n < 40 for n in range(150)], length=5, warning=5, reclaim=Reclaim.ON_PRESSURE)
def test_never_0_without_a_delivery_that_stood_through_quiet(
    works: list[bool], leads: list[bool], delivers: list[bool], length: int, warning: int, reclaim: Reclaim
) -> None:
    """Minute by minute. A message is sent some time after its line is written, and its mark is all that is left of it.

    Work is rare; a plan takes it at any time.
    """
    given_policy = policy(
        idle_after=minutes(length),
        warm_up=timedelta(0),
        warning=minutes(warning),
        require_delivery=True,
        reclaim=Reclaim(reclaim),
    )
    worked_at = [n for n, works_now in enumerate(works) if works_now and n % 45 < 3]
    known: datetime | None = None
    line: HistoryLine | None = None
    marks: dict[str, Mark] = {}
    delivered: list[tuple[int, int]] = []
    """When lines were written, and when they were accepted."""
    for now in range(150):
        last = max((n for n in worked_at if n <= now), default=None)
        found = BUSY if last is not None and now - last < length else IDLE
        worked = None if last is None else at(60 * last)
        seen = verdict(
            found, gpu_evidence(found, last_active_at=worked, windows={"gpu_util": window(last=at(60 * now))})
        )
        target = a_target(
            running_since=at(-60),
            warned_at=known,
            notified_by=TOLD_BY,
            notified_at=notified_at(marks, known, TOLD_BY),
            grant="plan p1",
        )
        decision = decide(target, seen, policy=given_policy, now=at(60 * now))
        if isinstance(decision.answer, Inactive):
            stood = [of for of, accepted in delivered if now - accepted >= warning]
            assert stood, "its owner was not told, or not for long enough"
            assert not any(stood[-1] <= n <= now for n in worked_at), "it worked since what its owner was told"
        if leads[now]:
            known = next_warned_at(known, decision, now=at(60 * now))
            line = next_line(line, decision, warned_at=known, now=at(60 * now)) or line
        if delivers[now] and line is not None and line.state == "Warned":
            written = round((line.at - NOON).total_seconds() / 60)
            if "chat" not in marks or not delivered or delivered[-1][0] != written:
                delivered.append((written, now))
                marks["chat"] = Mark(at=line.at, state=line.state, delivered_at=at(60 * now))


# ----------------------------------------------------------------------------------------------------- from the objects


QUIET_METADATA = {"idleAfter": "10m", "warmUp": "0s", "warning": "5m", "requireDelivery": "true"}


def world(*inhabitants: Inhabitant) -> World:
    return cluster_of(*inhabitants, notified_by=NotifyTargets(names=TOLD_BY, default=("chat",)))


def written(made: World, name: str, **status: Any) -> None:
    found = made.cluster.scalable_workloads.get("demo", name)
    assert found is not None
    made.cluster.scalable_workloads.put(structs.replace(found, status=structs.replace(found.status, **status)))


def annotated(made: World, **annotations: str) -> None:
    found = made.cluster.scaled_objects.get("demo", "train")
    assert found is not None
    metadata = structs.replace(found.metadata, annotations={**found.metadata.annotations, **annotations})
    made.cluster.scaled_objects.put(structs.replace(found, metadata=metadata))


async def test_every_replica_reads_from_the_objects_that_an_owner_was_told() -> None:
    made = world(gang("train", metadata=QUIET_METADATA))
    written(made, "train", warned_at=at(-600))
    await made.tick(NOON)
    assert "once its owner has it from chat" in made.answer("train").message
    written(made, "train", notified={"chat": mark(-600, -540)})
    await made.tick(at(30))
    assert made.answer("train").reason == "GPUsIdle"
    annotated(made, **{"idlegpu.io/notify": "mail"})
    await made.tick(at(60))
    assert "once its owner has it from mail" in made.answer("train").message, (
        "the chat does not tell this owner any more"
    )


async def test_of_a_deployment_its_record_says_so() -> None:
    made = world(deployment("serve", gpus=2, metadata=QUIET_METADATA))
    made.cluster.scalable_workloads.put(record("serve", warnedAt="2026-12-01T11:50:00Z"))
    await made.tick(NOON)
    assert made.answer("serve").reason == "Warned"
    written(made, "serve", notified={"chat": mark(-600, -540)})
    await made.tick(at(30))
    assert made.answer("serve").reason == "GPUsIdle"


async def test_where_no_target_notifies_its_owner_it_runs_for_ever() -> None:
    made = world(gang("train", metadata=QUIET_METADATA))
    written(made, "train", warned_at=at(-600))
    annotated(made, **{"idlegpu.io/notify": "none"})
    written(made, "train", notified={"chat": mark(-600, -540)})
    await made.tick(NOON)
    assert "its owner cannot be notified: none of its targets sends messages" in made.answer("train").message
