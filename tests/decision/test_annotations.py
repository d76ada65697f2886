from datetime import datetime

import pytest
from builders import NOON, at

from scaler.decision.workloads import KEEP_UNTIL, WAKE_ANNOTATION, keep_overrides, wake_request
from scaler.errors import MetadataError
from scaler.idleness.policy import Overrides

WHERE = "ScaledObject first-raycluster"


def wish(value: str, suspended_at: datetime | None = NOON) -> str:
    return wake_request({WAKE_ANNOTATION: value}, where=WHERE, suspended_at=suspended_at)


@pytest.mark.parametrize(
    "value", ["true", "True", "yes", "1", "please", "2026-12-01T12:00:01Z", "2026-12-01T14:00:01+02:00"]
)
def test_a_wish_says_who_asks(value: str) -> None:
    assert wish(value) == "annotation idlegpu.io/wake on ScaledObject first-raycluster"


@pytest.mark.parametrize("value", ["", " ", "false", "False", "no", "0"])
def test_a_no_is_no_wish(value: str) -> None:
    assert wish(value) == ""


def test_nobody_asks_without_the_annotation() -> None:
    assert wake_request({"other": "true"}, where=WHERE, suspended_at=None) == ""


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("2026-12-01T11:59:59Z", id="a second before"),
        pytest.param("2026-12-01T12:00:00Z", id="at the same instant"),
        pytest.param("2026-12-01T13:59:59+02:00", id="a second before, in another zone"),
        pytest.param("2020-01-01T00:00:00Z", id="years before"),
    ],
)
def test_a_wish_older_than_the_suspension_was_left_behind(value: str) -> None:
    assert wish(value) == ""


def test_a_wish_with_a_time_counts_where_nothing_was_suspended_yet() -> None:
    assert wish("2020-01-01T00:00:00Z", suspended_at=None)


# -------------------------------------------------------------------------------------------------------------- keeping


def test_keeping_sets_one_field_of_the_policy() -> None:
    assert keep_overrides({KEEP_UNTIL: " 2026-12-01T12:00:30Z "}, where=WHERE) == Overrides(keep_until=at(30))


def test_keeping_is_one_and_the_same_in_every_zone() -> None:
    overrides = keep_overrides({KEEP_UNTIL: "2026-12-01T14:00:30+02:00"}, where=WHERE)
    assert overrides.keep_until is not None
    assert overrides.keep_until.isoformat() == "2026-12-01T12:00:30+00:00"


@pytest.mark.parametrize("annotations", [{}, {KEEP_UNTIL: ""}, {KEEP_UNTIL: "  "}])
def test_without_a_time_nothing_is_kept(annotations: dict[str, str]) -> None:
    assert keep_overrides(annotations, where=WHERE) == Overrides()


@pytest.mark.parametrize(
    "value",
    ["tomorrow", "2026-12-24", "2026-12-24T18:00:00", "true", "9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"],
)
def test_a_typo_does_not_cost_the_workload_that_was_to_be_kept(value: str) -> None:
    with pytest.raises(MetadataError) as refusal:
        keep_overrides({KEEP_UNTIL: value}, where=WHERE)
    assert str(refusal.value) == (
        f"annotation idlegpu.io/keep-until on ScaledObject first-raycluster: {value!r} is not a time; "
        "write it with its zone, such as '2026-12-24T18:00:00Z'"
    )
