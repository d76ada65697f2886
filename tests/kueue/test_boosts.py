import msgspec
import pytest
from builders import WorkloadJson, observed

from scaler.core.boosting import Boost, Holder, Step
from scaler.kueue.boosts import MARK_ANNOTATION, NO_NUMBER, boost_of, is_reconsidered, note, patch, probe
from scaler.kueue.quota_workloads import BOOST_ANNOTATION

NOTE = note(value=-1000, at="2026-12-01T12:00:00Z", by="ScalableWorkload/first", message="idle")


def boost(*, value: str | None = None, mark: str | None = None) -> Boost:
    annotations = {BOOST_ANNOTATION: value, MARK_ANNOTATION: mark}
    return boost_of(
        WorkloadJson().with_annotations({key: text for key, text in annotations.items() if text is not None}).decoded()
    )


@pytest.mark.parametrize(
    ("value", "mark", "holder"),
    [
        pytest.param(None, None, Holder.NOBODY, id="there is none"),
        pytest.param("", None, Holder.NOBODY, id="it is empty"),
        pytest.param("-1000", NOTE, Holder.US, id="the note names its value"),
        pytest.param("-1000", None, Holder.OTHER, id="there is no note"),
        pytest.param("50", NOTE, Holder.REPLACED, id="the note names another value"),
        pytest.param("-1000", "yes", Holder.REPLACED, id="the note was garbled"),
        pytest.param("-1000", '{"value": "-1000"}', Holder.REPLACED, id="the note's value is no number"),
        pytest.param(None, NOTE, Holder.TAKEN_OFF, id="only the note is left"),
    ],
)
def test_whose_boost_it_is_when(value: str | None, mark: str | None, holder: Holder) -> None:
    assert boost(value=value, mark=mark) == Boost(holder=holder, value=value or "")


def test_the_note_says_what_is_known_and_nothing_else() -> None:
    assert msgspec.json.decode(note(value=-5, at="2026-12-01T12:00:00Z", by="", idleSince=None)) == {
        "value": -5,
        "at": "2026-12-01T12:00:00Z",
    }


@pytest.mark.parametrize(
    ("step", "annotations"),
    [
        pytest.param(Step.WRITE, {BOOST_ANNOTATION: "-1000", MARK_ANNOTATION: NOTE}, id="boost and note"),
        pytest.param(Step.REMOVE, {BOOST_ANNOTATION: None, MARK_ANNOTATION: None}, id="neither"),
        pytest.param(Step.DISOWN, {MARK_ANNOTATION: None}, id="the note alone"),
    ],
)
def test_a_step_writes_at_once_and_only_what_was_decided_upon(step: Step, annotations: dict[str, str | None]) -> None:
    body = patch(step, observed(), value=-1000, cause=NOTE)
    assert body == {"metadata": {"uid": "7e6b1a34", "resourceVersion": "4711", "annotations": annotations}}


def test_a_written_boost_is_read_as_ours() -> None:
    written = patch(Step.WRITE, observed(), value=-7, cause=note(value=-7))["metadata"]["annotations"]
    assert boost_of(WorkloadJson().with_annotations(written).decoded()) == Boost(holder=Holder.US, value="-7")


def test_a_probe_touches_nothing_but_the_boost() -> None:
    assert probe(observed(), NO_NUMBER) == {
        "metadata": {"uid": "7e6b1a34", "annotations": {BOOST_ANNOTATION: NO_NUMBER}}
    }
    with pytest.raises(ValueError, match="invalid literal"):
        int(NO_NUMBER)


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
