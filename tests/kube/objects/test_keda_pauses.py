"""KEDA's pauses, read as KEDA reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaler_sandbox.keda.scaledobjects import read_pause_annotations

from scaler.kube.objects.keda import keeps_at_zero, keeps_from_zero

PAUSED, REPLICAS, SCALE_IN, SCALE_OUT, FORCED = (
    f"autoscaling.keda.sh/{name}"
    for name in ("paused", "paused-replicas", "paused-scale-in", "paused-scale-out", "force-activation")
)


@pytest.mark.parametrize("value", ["0", "f", "F", "false", "False", "FALSE"])
@pytest.mark.parametrize("key", [PAUSED, SCALE_IN, SCALE_OUT, FORCED])
def test_a_spelling_of_false_is_no_pause(key: str, value: str) -> None:
    assert (keeps_from_zero({key: value}), keeps_at_zero({key: value})) == ("", "")


@pytest.mark.parametrize("value", ["1", "t", "true", "TRUE", "", "no", "fAlse", " false"])
def test_all_else_is_one_even_what_is_no_boolean(value: str) -> None:
    assert (keeps_from_zero({PAUSED: value}), keeps_at_zero({PAUSED: value})) == (PAUSED, PAUSED)
    assert (keeps_from_zero({SCALE_IN: value}), keeps_at_zero({SCALE_IN: value})) == (SCALE_IN, "")
    assert (keeps_from_zero({SCALE_OUT: value}), keeps_at_zero({SCALE_OUT: value})) == ("", SCALE_OUT)
    assert (keeps_from_zero({FORCED: value}), keeps_at_zero({FORCED: value})) == (FORCED, "")


@given(key=st.sampled_from([PAUSED, SCALE_IN, SCALE_OUT, FORCED]), value=st.text(max_size=6))
def test_they_are_read_as_by_the_stand_in_for_keda(key: str, value: str) -> None:
    read = read_pause_annotations({"metadata": {"annotations": {key: value}}})
    assert bool(keeps_from_zero({key: value})) is (read.paused or read.paused_scale_in or read.forced)
    assert bool(keeps_at_zero({key: value})) is (read.paused or read.paused_scale_out)


@pytest.mark.parametrize("value", ["0", "1", "", "false"])
def test_paused_replicas_pauses_by_being_there(value: str) -> None:
    assert (keeps_from_zero({REPLICAS: value}), keeps_at_zero({REPLICAS: value})) == (REPLICAS, REPLICAS)


def test_without_annotations_nothing_is_paused() -> None:
    both = {PAUSED: "false", SCALE_IN: "true", SCALE_OUT: "TRUE"}
    assert (keeps_from_zero(both), keeps_at_zero(both)) == (SCALE_IN, SCALE_OUT), "one does not hide another"
    assert (keeps_from_zero({}), keeps_at_zero({"idlegpu.io/wake": "true"})) == ("", "")
