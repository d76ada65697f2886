"""Which messages are due: grouped, limited, tried again, in order, and nothing lost."""

from datetime import datetime, timedelta

from builders import NOON
from hypothesis import given, settings
from hypothesis import strategies as st
from notifications.notification_builders import LIMITS, TARGET, notice

from scaler.notifications.notice import Notice
from scaler.notifications.schedule import Message, Schedule

CHANNEL = (TARGET, "team-a")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def names(messages: list[Message]) -> list[list[str]]:
    return [[each.workload.name for each in message.notices] for message in messages]


def test_what_happens_within_the_time_is_one_message_to_each_owner() -> None:
    schedule = Schedule(LIMITS)
    notices = [notice(name="b", after_s=40), notice(name="a"), notice(name="c", owner="team-b", after_s=1)]
    assert schedule.due(notices, at(59)) == []
    assert names(schedule.due(notices, at(60))) == [["a", "b"]]
    assert names(schedule.due(notices, at(61))) == [["a", "b"], ["c"]]


def test_a_failed_message_is_tried_again_ever_later() -> None:
    schedule, waits = Schedule(LIMITS), []
    now = at(60)
    for _ in range(7):
        assert schedule.due([notice()], now)
        again = schedule.failed(CHANNEL, now)
        assert schedule.due([notice()], again - timedelta(seconds=1)) == []
        waits.append((again - now).total_seconds())
        now = again
    assert waits == [30, 60, 120, 240, 480, 480, 480]  # retryMax is 8 minutes
    schedule.delivered(CHANNEL, now)
    assert (schedule.failed(CHANNEL, now) - now).total_seconds() == 30


def test_what_a_receiver_asks_for_is_respected_within_bounds() -> None:
    schedule = Schedule(LIMITS)
    assert schedule.failed(CHANNEL, at(0), retry_after=timedelta(minutes=5)) == at(300)
    assert schedule.failed(CHANNEL, at(0), retry_after=timedelta(hours=5)) == at(480)


def test_another_owner_does_not_wait_for_a_failure() -> None:
    schedule = Schedule(LIMITS)
    schedule.failed(CHANNEL, at(60))
    assert names(schedule.due([notice(), notice(name="other", owner="team-b")], at(61))) == [["other"]]


def test_an_owner_gets_so_many_an_hour_and_the_rest_in_the_next_one() -> None:
    schedule = Schedule(LIMITS)
    for number in range(3):  # perOwnerPerHour is 3
        assert schedule.due([notice(after_s=100 * number)], at(100 * number + 60))
        schedule.delivered(CHANNEL, at(100 * number + 60))
    waiting = [notice(name=f"w{number}", after_s=300 + number) for number in range(5)]
    assert schedule.due(waiting, at(3600 + 59)) == []
    assert names(schedule.due(waiting, at(3600 + 60))) == [["w0", "w1", "w2", "w3", "w4"]]


def test_what_another_process_delivered_counts() -> None:
    schedule = Schedule(LIMITS)
    for second in (0, 10, 10, 10, 20):  # those of one message have one time
        schedule.count(CHANNEL, at(second))
    assert schedule.due([notice(after_s=30)], at(100)) == []
    assert schedule.due([notice(after_s=30)], at(3601))


@settings(max_examples=25, deadline=None)
@given(
    happens=st.lists(st.integers(0, 7200), min_size=1, max_size=25, unique=True),
    fails=st.lists(st.booleans(), max_size=40),
)
def test_everything_is_told_once_in_order_and_within_the_limit(happens: list[int], fails: list[bool]) -> None:
    schedule, outcomes = Schedule(LIMITS), list(fails)
    told: list[Notice] = []
    deliveries: list[datetime] = []
    everything = [notice(name=f"w{second}", after_s=second) for second in sorted(happens)]
    for second in range(0, 6 * 3600, 15):
        now = at(second)
        waiting = [each for each in everything if each.line.at <= now and each not in told]
        for message in schedule.due(waiting, now):
            if outcomes and outcomes.pop():
                schedule.failed(CHANNEL, now)
            else:
                schedule.delivered(CHANNEL, now)
                told += message.notices
                deliveries.append(now)
    assert told == everything
    for end in deliveries:
        assert sum(end - timedelta(hours=1) < each <= end for each in deliveries) <= LIMITS.per_owner_per_hour
