from datetime import datetime

import pytest
from builders import NOON, at

from scaler.decision.workloads import KEEP_UNTIL, WAKE_ANNOTATION, keep_overrides, wake_request
from scaler.errors import MetadataError
from scaler.idleness.policy import Overrides

WHERE = "ScaledObject first-raycluster"


def requested(value: str, suspended_at: datetime | None = NOON) -> str:
    return wake_request({WAKE_ANNOTATION: value}, where=WHERE, suspended_at=suspended_at)


@pytest.mark.parametrize("value", ["true", "True", "1", "please", "2026-12-01T12:00:01Z", "2026-12-01T14:00:01+02:00"])
def test_a_wake_up_names_the_annotation_that_requests_it(value: str) -> None:
    assert requested(value) == "annotation idlegpu.io/wake on ScaledObject first-raycluster"


@pytest.mark.parametrize("value", ["", " ", "false", "False", "no", "0"])
def test_a_no_is_no_wake_up(value: str) -> None:
    assert requested(value) == wake_request({"other": "true"}, where=WHERE, suspended_at=None) == ""


@pytest.mark.parametrize("value", ["2026-12-01T12:00:00Z", "2026-12-01T13:59:59+02:00", "2020-01-01T00:00:00Z"])
def test_a_wake_up_not_younger_than_the_suspension_was_left_behind(value: str) -> None:
    assert requested(value) == ""
    assert requested(value, suspended_at=None), "nothing was suspended yet"


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
def test_a_keep_until_that_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(MetadataError) as refusal:
        keep_overrides({KEEP_UNTIL: value}, where=WHERE)
    assert str(refusal.value) == (
        f"annotation idlegpu.io/keep-until on ScaledObject first-raycluster: {value!r} is not a time; "
        "write it with its zone, such as '2026-12-24T18:00:00Z'"
    )
