"""Which lines are told, and which were."""

from datetime import timedelta

import msgspec
import pytest
from builders import NOON
from notifications.notification_builders import TARGET, lines, told, workload

from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.idlegpu import Mark, ScalableWorkload, ScalableWorkloadSpec, ScalableWorkloadStatus
from scaler.notifications.notice import Notice, is_notified, message_id, pending
from scaler.targets.workloads import MARK_PREFIX, marks_of

LONG_AGO = NOON - timedelta(days=1)


def states(*history: tuple[str, float], **more: object) -> list[str]:
    one = workload(*history, **more)  # type: ignore[arg-type]
    return [each.line.state for each in pending(one, TARGET, not_before=LONG_AGO)]


@pytest.mark.parametrize(
    ("history", "is_last_told"),
    [
        (["Warned"], True),
        (["Warned", "Suspended"], True),
        (["Suspended", "Waking"], True),
        (["Suspending", "Waking"], True),
        (["Suspended", "Unknown", "Waking"], True),
        (["Waking"], False),
        (["Busy", "Waking"], False),
        (["Suspended", "Waking", "Busy", "Waking"], False),
        (["Warned", "Busy"], False),
        (["Warned", "Suspending"], False),
        (["Kept"], False),
        (["Observing"], False),
    ],
)
def test_only_what_concerns_an_owner_is_told(history: list[str], is_last_told: bool) -> None:
    found = lines(*((state, n) for n, state in enumerate(history)))
    assert is_notified(found, len(found) - 1) is is_last_told


def test_nothing_is_told_twice_and_nothing_left_out() -> None:
    history = [("Warned", 0.0), ("Suspended", 60.0), ("Waking", 120.0), ("Busy", 130.0), ("Warned", 200.0)]
    assert states(*history) == ["Warned", "Suspended", "Waking", "Warned"]
    for number, (state, after) in enumerate(history):
        rest = [s for s, _ in history[number + 1 :] if s != "Busy"]
        assert states(*history, marks=told((state, after))) == rest


def test_states_of_one_second_are_told_each() -> None:
    assert states(("Suspended", 5), ("Waking", 5), marks=told(("Suspended", 5))) == ["Waking"]


def test_a_mark_whose_line_is_gone_from_the_history_still_counts() -> None:
    assert states(("Suspended", 60), ("Waking", 120), marks=told(("Warned", 60), delivered_s=61)) == ["Waking"]


def test_old_lines_are_not_told() -> None:
    one = workload(("Warned", 0), ("Suspended", 60))
    found = pending(one, TARGET, not_before=NOON + timedelta(seconds=30))
    assert [each.line.state for each in found] == ["Suspended"]


def test_a_warning_that_stands_is_told_however_old_it_is() -> None:
    one = workload(("Busy", -3600), ("Warned", 0))
    assert [each.line.state for each in pending(one, TARGET, not_before=NOON + timedelta(hours=6))] == ["Warned"]
    over = workload(("Warned", 0), ("Busy", 60))
    assert not [*pending(over, TARGET, not_before=NOON + timedelta(hours=6))]


def test_marks_are_in_the_status_and_those_of_0_1_0_count_until_there_is_one() -> None:
    old, new = (Mark(at=NOON, state="Warned", delivered_at=NOON + timedelta(seconds=n)) for n in (61, 62))
    text = msgspec.json.encode(old).decode()
    annotations = {
        MARK_PREFIX + "chat": text,
        MARK_PREFIX + "mail": "{",
        MARK_PREFIX + "pager": '{"at": "2026-11-20T12:00:00", "state": "Warned", "deliveredAt": "2026-11-20T12:00:00"}',
        MARK_PREFIX + "hook": text,
        "idlegpu.io/other": text,
    }
    status = ScalableWorkloadStatus(notified={"hook": new})
    target = ScalableWorkload(ObjectMeta(annotations=annotations), status=status)
    assert marks_of(target) == {"chat": old, "hook": new}
    record = msgspec.structs.replace(target, spec=ScalableWorkloadSpec(actuator="None"))
    assert marks_of(record) == {"hook": new}, "tenants may annotate it"


def test_ids_are_the_same_in_every_process_and_differ_otherwise() -> None:
    def of(**more: object) -> Notice:
        one = workload(("Warned", 0), ("Suspended", 60), **more)  # type: ignore[arg-type]
        return next(pending(one, TARGET, not_before=LONG_AGO))

    assert of().id == of(owner="another").id
    assert len({of().id, of(name="other").id, next(iter(pending(of().workload, "mail", not_before=LONG_AGO))).id}) == 3
    assert message_id([of()]) != message_id([of(), of(name="other")])
