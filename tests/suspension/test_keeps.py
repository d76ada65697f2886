"""What owners ask to be kept, and what the policy's limits make of it."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import NOON, at, minutes, policy
from hypothesis import given
from hypothesis import strategies as st

from scaler.kube.objects.core import stamp
from scaler.suspension.keeps import KEEPS_ANNOTATION, Keep, Settled, keeps_of, settle
from scaler.targets.workloads import keep_overrides

UNTIL, FOR, EXCLUDE, BY = (f"idlegpu.io/{each}" for each in ("keep-until", "keep-for", "exclude", "asked-by"))
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def settled(
    annotations: dict[str, str], *, keeps: tuple[Keep, ...] = (), now: datetime = NOON, **limits: Any
) -> Settled:
    return settle(annotations, "ScaledObject train", keeps=keeps, policy=policy(**limits), now=now)


def used(*hours_ago: float) -> tuple[Keep, ...]:
    """Uses that are over."""
    return tuple(Keep(at=NOON - each * HOUR, until=NOON - each * HOUR + minutes(1)) for each in hours_ago)


@pytest.mark.parametrize(
    ("annotations", "limits", "written"),
    [
        pytest.param({UNTIL: stamp(NOON + 4 * HOUR)}, {}, {}, id="no limits"),
        pytest.param({FOR: "4h"}, {}, {FOR: None, UNTIL: stamp(NOON + 4 * HOUR)}, id="from now on"),
        pytest.param({UNTIL: stamp(NOON + 4 * HOUR)}, {"longest_keep": 8 * HOUR}, {}, id="within the limit"),
        pytest.param(
            {UNTIL: stamp(NOON + 9 * HOUR)}, {"longest_keep": 8 * HOUR}, {UNTIL: stamp(NOON + 8 * HOUR)}, id="too long"
        ),
        pytest.param(
            {FOR: "9h"}, {"longest_keep": 8 * HOUR}, {FOR: None, UNTIL: stamp(NOON + 8 * HOUR)}, id="for too long"
        ),
        pytest.param(
            {EXCLUDE: "true"}, {"longest_keep": 8 * HOUR}, {EXCLUDE: stamp(NOON + 8 * HOUR)}, id="excluded for good"
        ),
        pytest.param({EXCLUDE: "true"}, {"keeps_per_week": 1}, {}, id="excluded for good, once"),
        pytest.param({UNTIL: stamp(NOON - HOUR)}, {"keeps_per_week": 0}, {}, id="over"),
        pytest.param({UNTIL: "tomorrow"}, {}, {}, id="not readable, and not limited: it is shown with the decision"),
    ],
)
def test_a_keep_is_as_long_as_the_policy_allows(
    annotations: dict[str, str], limits: dict[str, Any], written: dict[str, str | None]
) -> None:
    found = settled(annotations, **limits)
    assert found.annotations == written
    assert not found.refused


@pytest.mark.parametrize("text", ["tomorrow", "never", "9" * 5_000, "1e400s", "NaN", "-1", "9999-12-31T23:59:59-14:00"])
@pytest.mark.parametrize("key", [UNTIL, FOR, EXCLUDE])
def test_where_keeps_are_limited_one_that_cannot_be_read_is_refused_as_one_too_many(key: str, text: str) -> None:
    """It would keep the workload for good: of what cannot be read there is no decision."""
    found = settled({key: text}, keeps_per_week=1)
    assert (found.annotations, found.keeps) == ({key: None}, ())
    assert found.refused
    granted = settled({UNTIL: stamp(NOON + HOUR)}, keeps_per_week=1)
    also = settled({UNTIL: stamp(NOON + HOUR), key: text}, keeps=granted.keeps, keeps_per_week=1)
    assert also.annotations == {key: None if key == FOR else stamp(NOON + HOUR)}
    both = settled({FOR: "30m", EXCLUDE: text}, keeps_per_week=1)
    assert both.annotations[UNTIL] == stamp(NOON + minutes(30)), "what can be read counts"


def test_each_use_is_recorded_once_with_who_asked_for_it_and_where() -> None:
    asked = {UNTIL: stamp(NOON + 9 * HOUR), BY: "anna"}
    found = settled(asked, longest_keep=8 * HOUR)
    (use,) = found.keeps
    assert (use.at, use.until, use.by, use.on) == (NOON, NOON + 8 * HOUR, "anna", "ScaledObject train")
    again = settled({**asked, **found.annotations}, keeps=found.keeps, now=at(60), longest_keep=8 * HOUR)
    assert again == Settled(annotations={}, keeps=())


@pytest.mark.parametrize(
    ("keeps", "refused"),
    [
        pytest.param(used(1), "", id="one of two"),
        pytest.param(
            used(1, 2), "kept 2 times within a week, and keepsPerWeek is 2; again from 2026-12-08T10:00:00Z on"
        ),
        pytest.param(used(1, 2, 3), "kept 3 times within a week, and keepsPerWeek is 2; again from 2026-12-08T10:00"),
        pytest.param(used(1, 7 * 24), "", id="one of two is a week ago"),
    ],
)
def test_a_keep_too_many_is_removed_and_says_from_when_on_it_may_be_asked_again(
    keeps: tuple[Keep, ...], refused: str
) -> None:
    found = settled({UNTIL: stamp(NOON + HOUR)}, keeps=keeps, keeps_per_week=2)
    assert found.annotations == ({UNTIL: None} if refused else {})
    assert refused in found.refused
    assert bool(found.keeps) is not bool(refused)


@pytest.mark.parametrize(
    ("by", "is_allowed"), [("anna@example.com", True), ("bob", True), ("bobby", False), ("", False)]
)
def test_only_those_whom_the_policy_names_keep(by: str, is_allowed: bool) -> None:
    found = settled({EXCLUDE: "true", BY: by}, keep_users=("*@example.com", "bob"))
    assert found.annotations == ({} if is_allowed else {EXCLUDE: None})
    assert ("keepUsers are *@example.com, bob" in found.refused) is not is_allowed


def test_the_copy_of_a_jobs_annotation_is_the_same_use() -> None:
    first = settled({FOR: "9h", BY: "anna"}, longest_keep=8 * HOUR, keeps_per_week=1)
    limits: dict[str, Any] = {"longest_keep": 8 * HOUR, "keeps_per_week": 1}
    copied = settled({FOR: "9h", BY: "anna"}, keeps=first.keeps, now=at(2), **limits)
    assert copied == Settled(annotations={FOR: None, UNTIL: stamp(NOON + 8 * HOUR)}, keeps=())
    later = settled({FOR: "9h", BY: "anna"}, keeps=first.keeps, now=at(3600), **limits)
    assert later.refused, "an hour later it is another one"


def test_what_was_granted_before_stays_when_more_is_refused() -> None:
    first = settled({UNTIL: stamp(NOON + HOUR)}, keeps_per_week=1)
    more = settled({UNTIL: stamp(NOON + 5 * HOUR)}, keeps=first.keeps, now=at(60), keeps_per_week=1)
    assert more.annotations == {UNTIL: stamp(NOON + HOUR)}
    assert more.refused


def test_before_the_policy_is_known_nothing_is_limited() -> None:
    asked = {UNTIL: stamp(NOON + 9 * HOUR)}
    assert settle(asked, "ScaledObject train", keeps=(), policy=None, now=NOON) == Settled(annotations={}, keeps=())


NO_ZONE = '[{"at": "2026-12-01T12:00:00", "until": "2026-12-01T13:00:00"}]'


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"at": 1}]', "[" * 100_000, NO_ZONE])
def test_a_record_that_cannot_be_read_is_empty(text: str) -> None:
    assert keeps_of({KEEPS_ANNOTATION: text}) == ()


asked = st.one_of(
    st.tuples(st.just(UNTIL), st.integers(1, 400).map(lambda h: stamp(NOON + h * HOUR))),
    st.tuples(st.just(FOR), st.integers(1, 400).map(lambda h: f"{h}h")),
    st.tuples(st.just(EXCLUDE), st.just("true")),
)


@given(
    requests=st.lists(st.tuples(st.integers(1, 60), asked), max_size=40),
    longest=st.integers(1, 48),
    per_week=st.integers(0, 5),
)
def test_whatever_is_asked_nothing_is_kept_longer_or_oftener_than_the_policy_allows(
    requests: list[tuple[int, tuple[str, str]]], longest: int, per_week: int
) -> None:
    annotations: dict[str, str] = {}
    keeps: tuple[Keep, ...] = ()
    starts: list[datetime] = []
    now = NOON
    for hours, (key, value) in requests:
        now += hours * HOUR
        annotations[key] = value
        found = settled(annotations, keeps=keeps, now=now, longest_keep=longest * HOUR, keeps_per_week=per_week)
        starts += [now] * (len({each.at for each in found.keeps} - {each.at for each in keeps}) > 0)
        annotations |= {name: text for name, text in found.annotations.items() if text is not None}
        for name in (name for name, text in found.annotations.items() if text is None):
            annotations.pop(name, None)
        keeps = found.keeps or keeps
        kept = keep_overrides(annotations, where="it")
        ends = [each for each in (kept.keep_until, kept.exclude_until) if each is not None]
        assert all(each <= now + longest * HOUR for each in ends)
        assert sum(now - each < 7 * DAY for each in starts) <= per_week
