import pytest

from scaler.kube.watch_backoff import Backoff, NextAttempt, WatchEnd, WatchTiming, after_watch

ENDINGS = {
    "a watch that lasted, delivered and ended in order makes up for everything": (
        WatchEnd(lasted=240, in_order=True, delivered=True), 7, NextAttempt(failures=0, lists=False)),
    "one that delivered nothing proves nothing, however well it ended": (
        WatchEnd(lasted=240, in_order=True), 7, NextAttempt(failures=0, lists=True)),
    "so does one that lasted, delivered and broke": (
        WatchEnd(lasted=60, delivered=True), 7, NextAttempt(failures=0, lists=False)),
    "mere silence does not, however long": (
        WatchEnd(lasted=90), 0, NextAttempt(failures=1, lists=False)),
    "what was delivered early counts, but is followed by a wait": (
        WatchEnd(lasted=0.1, delivered=True), 7, NextAttempt(failures=1, lists=False)),
    "a watch that ends at once is a failure": (
        WatchEnd(lasted=0.0, in_order=True), 0, NextAttempt(failures=1, lists=False)),
    "an expired version is given up": (
        WatchEnd(lasted=0.0, is_expired=True), 0, NextAttempt(failures=1, lists=True)),
    "an expired version is a failure even where something was delivered": (
        WatchEnd(lasted=0.1, delivered=True, is_expired=True), 4, NextAttempt(failures=5, lists=True)),
    "a long watch that expires starts afresh": (
        WatchEnd(lasted=60, delivered=True, is_expired=True), 4, NextAttempt(failures=0, lists=True)),
    "the third fruitless watch has the version given up": (
        WatchEnd(lasted=0.0), 2, NextAttempt(failures=3, lists=True)),
    "a server that is not reached says nothing about the version": (
        WatchEnd(lasted=0.0, was_reached=False), 9, NextAttempt(failures=10, lists=False)),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "failures", "expected"), ENDINGS.values(), ids=ENDINGS.keys())
def test_how_a_watch_ended_decides_what_is_next(ending, failures, expected):
    assert after_watch(ending, failures=failures, timing=WatchTiming()) == expected


def test_waits_double_up_to_their_cap():
    backoff = Backoff(base=0.5, cap=30)
    assert [backoff.ceiling(failures) for failures in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


def test_waits_stay_finite_after_any_number_of_failures():
    assert Backoff(base=0.5, cap=30).ceiling(100_000) == 30


def test_waits_are_spread_over_the_whole_range():
    waits = [Backoff(base=8, cap=30).wait(1) for _ in range(200)]
    assert all(0 <= wait <= 8 for wait in waits)
    assert min(waits) < 2 < 6 < max(waits)
