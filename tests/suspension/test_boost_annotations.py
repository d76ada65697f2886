import msgspec
import pytest
from builders import WorkloadJson, observed

from scaler.quota.from_objects.workloads import BOOST_ANNOTATION
from scaler.suspension.boost_controller import (
    BOOST_OWNER_ANNOTATION,
    boost_of,
    is_reconsidered,
    note,
    patch,
)
from scaler.suspension.priority_boost import Boost, BoostOwner, BoostStep

NOTE = note(value=-1000, at="2026-12-01T12:00:00Z", by="ScalableWorkload/first", message="idle")


def boost(*, value: str | None = None, mark: str | None = None) -> Boost:
    annotations = {BOOST_ANNOTATION: value, BOOST_OWNER_ANNOTATION: mark}
    return boost_of(
        WorkloadJson().with_annotations({key: text for key, text in annotations.items() if text is not None}).decoded()
    )


@pytest.mark.parametrize(
    ("value", "mark", "holder"),
    [
        pytest.param(None, None, BoostOwner.NONE, id="there is none"),
        pytest.param("", None, BoostOwner.NONE, id="it is empty"),
        pytest.param("-1000", NOTE, BoostOwner.US, id="the note names its value"),
        pytest.param("-1000", None, BoostOwner.OTHER, id="there is no note"),
        pytest.param("50", NOTE, BoostOwner.REPLACED, id="the note names another value"),
        pytest.param("-1000", "yes", BoostOwner.REPLACED, id="the note was garbled"),
        pytest.param("-1000", '{"value": "-1000"}', BoostOwner.REPLACED, id="the note's value is no number"),
        pytest.param(None, NOTE, BoostOwner.TAKEN_OFF, id="only the note is left"),
    ],
)
def test_whose_boost_it_is_when(value: str | None, mark: str | None, holder: BoostOwner) -> None:
    assert boost(value=value, mark=mark) == Boost(holder=holder, value=value or "")


def test_the_note_says_what_is_known_and_nothing_else() -> None:
    assert msgspec.json.decode(note(value=-5, at="2026-12-01T12:00:00Z", by="", idleSince=None)) == {
        "value": -5,
        "at": "2026-12-01T12:00:00Z",
    }


@pytest.mark.parametrize(
    ("step", "annotations"),
    [
        pytest.param(BoostStep.WRITE, {BOOST_ANNOTATION: "-1000", BOOST_OWNER_ANNOTATION: NOTE}, id="boost and note"),
        pytest.param(BoostStep.REMOVE, {BOOST_ANNOTATION: None, BOOST_OWNER_ANNOTATION: None}, id="neither"),
        pytest.param(BoostStep.RELEASE_OWNERSHIP, {BOOST_OWNER_ANNOTATION: None}, id="the note alone"),
    ],
)
def test_a_step_writes_at_once_and_only_what_was_decided_upon(
    step: BoostStep, annotations: dict[str, str | None]
) -> None:
    body = patch(step, observed(), value=-1000, cause=NOTE)
    assert body == {"metadata": {"uid": "7e6b1a34", "resourceVersion": "4711", "annotations": annotations}}


def test_a_written_boost_is_read_as_ours() -> None:
    written = patch(BoostStep.WRITE, observed(), value=-7, cause=note(value=-7))["metadata"]["annotations"]
    assert boost_of(WorkloadJson().with_annotations(written).decoded()) == Boost(holder=BoostOwner.US, value="-7")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (None, False),
        ({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "normal"}, True),
        ({"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "normal"}, False),
    ],
)
def test_kueue_reconsiders_who_waits_only_for_a_class_of_its_own(
    reference: dict[str, str] | None, expected: bool
) -> None:
    workload = WorkloadJson()
    if reference:
        workload.json["spec"]["priorityClassRef"] = reference
    assert is_reconsidered(workload.decoded()) is expected
