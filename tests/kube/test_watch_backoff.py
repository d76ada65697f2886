import pytest

from scaler.kube.watch_backoff import Backoff, WatchTiming, after_watch

ENDINGS = {
    "a watch that lasted, delivered and ended in order makes up for everything": (
        {"lasted": 240, "in_order": True, "delivered": True}, 7, (0, False)),
    "one that delivered nothing is as good: there may be nothing to report": (
        {"lasted": 240, "in_order": True}, 7, (0, False)),
    "so does one that lasted, delivered and broke": (
        {"lasted": 60, "delivered": True}, 7, (0, False)),
    "one that delivered nothing and broke does not": (
        {"lasted": 90}, 0, (1, False)),
    "what was delivered early counts, but is followed by a wait": (
        {"lasted": 0.1, "delivered": True}, 7, (1, False)),
    "a watch that ends at once is a failure": (
        {"lasted": 0.0, "in_order": True}, 0, (1, False)),
    "an expired version is given up": (
        {"lasted": 0.0, "is_expired": True}, 0, (1, True)),
    "an expired version is a failure even where something was delivered": (
        {"lasted": 0.1, "delivered": True, "is_expired": True}, 4, (5, True)),
    "a long watch that expires starts afresh": (
        {"lasted": 60, "delivered": True, "is_expired": True}, 4, (0, True)),
    "the third fruitless watch has the version given up": (
        {"lasted": 0.0}, 2, (3, True)),
    "a server that is not reached says nothing about the version": (
        {"lasted": 0.0, "was_reached": False}, 9, (10, False)),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "failures", "expected"), ENDINGS.values(), ids=ENDINGS.keys())
def test_how_a_watch_ended_decides_what_is_next(ending, failures, expected):
    assert after_watch(failures, WatchTiming(), **ending) == expected


def test_waits_double_up_to_their_cap():
    backoff = Backoff(base=0.5, cap=30)
    assert [backoff.ceiling(failures) for failures in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.ceiling(100_000) == 30


def test_waits_are_spread_over_the_whole_range():
    waits = [Backoff(base=8, cap=30).wait(1) for _ in range(200)]
    assert all(0 <= wait <= 8 for wait in waits)
    assert min(waits) < 2 < 6 < max(waits)
