"""Since when is it idle, and is that known? Work is forgotten with its samples; what was known of it is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from random import Random

import msgspec
import pytest
from builders import LONG_AGO, NOON, TRUST, minutes, status_of
from loops_builders import NAMESPACE, QUICK, TICK, Inhabitant, World, deployment, gang, record, stamp
from scripted_metrics import Metrics, ScriptedSource, during, gpu, vanish

from scaler.decision.decision import Decision, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.errors import SourceError
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.suspension.status import is_worth_writing

WINDOW, WARM_UP = minutes(10), minutes(1)
"""Of QUICK."""
Span = tuple[datetime, datetime]


def after(count: float) -> datetime:
    return NOON + minutes(count)


def world_of(inhabitant: Inhabitant, works: Iterable[Span] = (), holes: Iterable[Span] = (), gpus: int = 2) -> World:
    """Of one workload, that works in these times and has no samples in those."""
    spans = [(begin.timestamp(), end.timestamp()) for begin, end in works]

    def ratio(at_s: float) -> float:
        return 0.9 if any(begin <= at_s < end for begin, end in spans) else 0.0

    def source(world: World) -> ScriptedSource:
        (name,) = [each.metadata.name for each in world.cluster.pods.items()]
        series = [s for n in range(gpus) for s in gpu(f"GPU-{n}", pod=name, ratio=ratio)]
        metrics = Metrics(series=series, distortions=[during(*hole, vanish) for hole in holes])
        return ScriptedSource(metrics=metrics, clock=lambda: world.now)

    return World([inhabitant], source)


def decision(world: World) -> Decision:
    (found,) = world.entry("train").triggers.values()
    return found


async def known(world: World, *minutes_after: float) -> list[tuple[datetime | None, bool]]:
    """What is known at these times, with a tick every other minute in between."""
    found = []
    for each in minutes_after:
        while world.now < after(each):
            await world.tick(min(world.now + minutes(2), after(each)))
        found.append((decision(world).idle_since, decision(world).idle_at_least))
    return found


ENDED = NOON + minutes(20)
WORKS = (NOON - minutes(60), ENDED)


# ---- while one process runs


@pytest.mark.parametrize("inhabitant", [gang("train"), deployment("train", gpus=2)], ids=["gang", "deployment"])
async def test_the_last_work_is_known_for_longer_than_its_samples_are_kept(inhabitant: Inhabitant) -> None:
    world = world_of(inhabitant, [WORKS])
    await world.tick(NOON)
    assert await known(world, 25, 35, 60, 130) == [(ENDED, False)] * 4


@pytest.mark.parametrize("inhabitant", [gang("train"), deployment("train", gpus=2)], ids=["gang", "deployment"])
async def test_what_was_quiet_all_the_time_since_samples_begin_is_quiet_at_least_since_then(
    inhabitant: Inhabitant,
) -> None:
    """Its oldest samples: it may have worked for two hours before them. That does not move on with the window."""
    world = world_of(inhabitant)
    await world.tick(NOON)
    first, *later = await known(world, 0, 10, 40, 200)
    since, at_least = first
    assert since is not None
    assert LONG_AGO + minutes(60) <= since <= NOON - WINDOW
    assert at_least
    assert later[0] in (first, (since - TRUST.interval, True)), "what was read first begins within an interval"
    assert later[1:] == later[:1] * 2


async def test_what_never_worked_is_idle_since_its_warm_up_where_its_samples_go_back_to_its_start() -> None:
    started = NOON + minutes(5)
    world = world_of(gang("train", started=started))
    await world.tick(NOON)
    assert await known(world, 20, 130) == [(started + WARM_UP, False)] * 2


async def test_work_may_have_gone_unseen_in_a_hole_which_an_outage_of_the_source_is_not() -> None:
    """After a hole it is quiet at least since its end. What was only read late is as if it had been read."""
    end = after(120)
    world = world_of(gang("train"), [WORKS], holes=[(after(100), end)])
    await world.tick(NOON)
    assert await known(world, 99, 140, 200) == [(ENDED, False), (end, True), (end, True)]
    world = world_of(gang("train"), [WORKS])
    await world.tick(NOON)
    await known(world, 99)
    assert isinstance(world.source, ScriptedSource)
    world.source.failing = dict.fromkeys(("gr_engine_active", "gpu_util"), SourceError("down", transient=True))
    assert await known(world, 105) == [(None, False)]
    world.source.failing = {}
    assert await known(world, 107, 200) == [(ENDED, False)] * 2


async def test_a_longer_window_that_somebody_asks_for_makes_nothing_forgotten() -> None:
    world = world_of(gang("train"), [WORKS])
    await world.tick(NOON)
    await known(world, 60)
    gang("other", metadata={"idleAfter": "6h", "warmUp": "1m"})(world.cluster)
    assert await known(world, 62, 90) == [(ENDED, False)] * 2


async def test_the_record_is_written_when_its_work_leaves_the_window_and_not_at_every_tick() -> None:
    world = world_of(gang("train"), [WORKS])
    await world.tick(NOON)
    written = []
    while world.now < after(200):
        await world.tick(world.now + TICK)
        scalable = world.cluster.scalable_workloads.get(NAMESPACE, "train")
        assert scalable is not None
        status = status_of(scalable, decision(world).target, None, decision(world), now=world.now)
        if is_worth_writing(scalable.status, status):
            written.append(world.now)
            world.cluster.scalable_workloads.put(recorded(scalable, decision(world), world.now))
    assert len(written) <= 6
    assert max(written) <= ENDED + WINDOW + TICK


async def test_another_floor_for_work_is_another_question() -> None:
    world = world_of(gang("train"), [WORKS])
    await world.tick(NOON)
    await known(world, 90)
    gang("train", metadata={**QUICK, "activeAbove": "3%"})(world.cluster)
    ((since, at_least),) = await known(world, 91)
    assert at_least
    assert since is not None
    assert since > ENDED


# ---- work that only the device's own series shows


def on_shared_device(
    works: Iterable[Span], *, own: Iterable[Span] = (), holes: Iterable[Span] = (), started: datetime = LONG_AGO
) -> World:
    """A pod whose own series is 0 but for `own`, and the device's own series, which names no pod and shows the work."""
    made = world_of(gang("train", started=started), own, holes)
    assert isinstance(made.source, ScriptedSource)
    spans = [(begin.timestamp(), end.timestamp()) for begin, end in works]
    for n in range(2):
        for each in gpu(f"GPU-{n}", pod="", namespace=""):
            scale = 100 if "UTIL" in each.metric else 1
            labels = {name: each.labels[name] for name in ("UUID", "Hostname", "modelName")}
            shown = replace(each, labels=labels, value=lambda s, x=scale: x * 0.9 * any(b <= s < e for b, e in spans))
            made.source.metrics.series.append(shown)
    return made


DEVICE_WORKS = (after(40), after(60))


async def test_work_at_the_devices_own_series_is_kept_as_a_bound() -> None:
    """It was quiet for an hour before: what was known of that does not come back when the doubt has passed."""
    world = on_shared_device([DEVICE_WORKS])
    await world.tick(NOON)
    before, during_it, after_it, late = await known(world, 35, 50, 75, 130)
    assert before[0] is not None
    assert before[0] < DEVICE_WORKS[0]
    assert during_it == (None, False)
    assert (after_it, late) == ((DEVICE_WORKS[1], True), (DEVICE_WORKS[1], True))


async def test_work_at_the_devices_own_series_does_not_leave_a_young_pod_idle_since_its_start() -> None:
    world = on_shared_device([DEVICE_WORKS], started=after(30))
    await world.tick(NOON)
    assert await known(world, 75, 130) == [(DEVICE_WORKS[1], True)] * 2


async def test_what_the_pods_own_series_shows_too_is_its_last_work_and_no_bound() -> None:
    world = on_shared_device([DEVICE_WORKS], own=[DEVICE_WORKS])
    await world.tick(NOON)
    assert await known(world, 75, 130) == [(DEVICE_WORKS[1], False)] * 2


@pytest.mark.parametrize("away", [0.5, 5, 40])
async def test_work_at_the_devices_own_series_is_known_to_the_next_leader(away: float) -> None:
    world = on_shared_device([DEVICE_WORKS])
    await world.tick(NOON)
    assert await known(world, 120) == [(DEVICE_WORKS[1], True)]
    fresh = restarted(world, led_until=LAST)
    await fresh.tick(LAST + minutes(away))
    assert (decision(fresh).idle_since, decision(fresh).idle_at_least) == (DEVICE_WORKS[1], True)


@pytest.mark.parametrize("at", [45, 61, 69])
async def test_a_leader_that_changes_while_the_device_is_doubted_forgets_nothing(at: float) -> None:
    world = on_shared_device([DEVICE_WORKS])
    await world.tick(NOON)
    await known(world, at)
    fresh = restarted(world, led_until=world.now)
    await fresh.tick(world.now + TICK)
    assert await known(fresh, 75, 130) == [(DEVICE_WORKS[1], True)] * 2


# ---- over restarts


def recorded(scalable: ScalableWorkload, made: Decision, now: datetime) -> ScalableWorkload:
    """With the status that a leader writes."""
    status = status_of(scalable, made.target, None, made, now=now)
    body = {
        "metadata": msgspec.to_builtins(scalable.metadata),
        "spec": msgspec.to_builtins(scalable.spec),
        "status": {name: value for name, value in status.items() if value is not None},
    }
    return decode(ScalableWorkload, msgspec.json.encode(body))


def restarted(world: World, *, led_until: datetime | None) -> World:
    """Another process, that sees the same objects and samples, and the status that a leader has written."""

    def source(other: World) -> ScriptedSource:
        assert isinstance(world.source, ScriptedSource)
        return replace(world.source, clock=lambda: other.now)

    fresh = World([], source)
    for kind in ("scaled_objects", "scalable_workloads", "workloads", "pods"):
        getattr(fresh.cluster, kind).put(*getattr(world.cluster, kind).items())
    fresh.cluster.scales.scales = world.cluster.scales.scales
    if (scalable := fresh.cluster.scalable_workloads.get(NAMESPACE, "train")) is not None:
        fresh.cluster.scalable_workloads.put(recorded(scalable, decision(world), world.now))
    fresh.evaluator.led_until = lambda: led_until
    return fresh


LAST = after(120)
"""When the first process ends; it has seen work that ended long before its window."""

RESTARTS = {
    "a leader until a moment ago": (LAST, 0.5, (ENDED, False)),
    "none for no longer than is read back": (LAST, 40, (ENDED, False)),
    "none for longer than that": (LAST, 90, None),
    "none that is known": (None, 0.5, None),
}


@pytest.mark.parametrize("restart", RESTARTS)
async def test_a_record_is_true_as_long_as_there_was_a_leader_to_keep_it(restart: str) -> None:
    led_until, away, expected = RESTARTS[restart]
    world = world_of(gang("train"), [WORKS])
    await world.tick(NOON)
    assert await known(world, 120) == [(ENDED, False)]
    fresh = restarted(world, led_until=led_until)
    now = LAST + minutes(away)
    await fresh.tick(now)
    found = decision(fresh)
    if expected is not None:
        assert (found.idle_since, found.idle_at_least) == expected
    else:
        assert found.idle_at_least
        assert found.idle_since is not None
        assert now - minutes(60) <= found.idle_since <= now - WINDOW


async def test_a_bound_stays_one_over_a_restart() -> None:
    world = world_of(gang("train"))
    await world.tick(NOON)
    (bound,) = await known(world, 120)
    assert bound[1]
    fresh = restarted(world, led_until=LAST)
    await fresh.tick(LAST + TICK)
    assert (decision(fresh).idle_since, decision(fresh).idle_at_least) == bound


async def test_the_record_of_a_scaled_object_is_believed_as_that_of_a_gang() -> None:
    fresh = world_of(deployment("train", gpus=2), [WORKS])
    fresh.cluster.scalable_workloads.put(record("train", idleSince=stamp(ENDED), idleAtLeast=True))
    fresh.evaluator.led_until = lambda: LAST
    await fresh.tick(LAST + TICK)
    assert (decision(fresh).idle_since, decision(fresh).idle_at_least) == (ENDED, True)


FORGED = [NOON - minutes(10_000), LONG_AGO - TICK, LONG_AGO + minutes(2), ENDED, LAST - minutes(1), LAST + minutes(600)]


@pytest.mark.parametrize("state", ["Idle", "Warned", "Busy", "?"])
@pytest.mark.parametrize("at", FORGED)
async def test_a_history_of_0_1_0_that_was_forged_suspends_nothing_and_keeps_nothing(at: datetime, state: str) -> None:
    """It may only make it idle for longer than its samples show, and never for longer than it runs."""
    line = f'[{{"at":"{at:%Y-%m-%dT%H:%M:%SZ}","state":"{state}"}}]'
    for works, answer in (([WORKS], Inactive), ([(NOON, LAST + minutes(60))], None)):
        made = {}
        for forged in ("", line):
            fresh = world_of(deployment("train", gpus=2, annotations={"idlegpu.io/history": forged}), works)
            fresh.evaluator.led_until = lambda: LAST
            await fresh.tick(LAST + TICK)
            made[forged] = decision(fresh)
        honest, found = made[""], made[line]
        assert (found.answer, found.suspend_at is None) == (honest.answer, honest.suspend_at is None)
        if answer is not None:
            assert isinstance(found.answer, answer)
            assert found.idle_since is not None
            assert honest.idle_since is not None
            assert LONG_AGO + WARM_UP <= found.idle_since <= honest.idle_since
            assert found.idle_at_least


# ---- the law


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(each, marks=pytest.mark.slow) for each in range(4, 12))])
async def test_no_work_is_ever_after_what_it_is_idle_since_whatever_was_seen(seed: int) -> None:
    """Work, holes, restarts and times without any process, at random: work that nobody saw is never called quiet.

    Where that is no bound, it is the end of its last work. A hole that the trust in samples allows is none. With every
    other seed the device's own series shows some of the work, and the pod's does not.
    """
    dice = Random(seed)
    works = spans(dice, count=4, longest=20)
    holes = spans(dice, count=3, shortest=5, longest=30)
    on_device = works[: seed % 2 * 2]
    world = on_shared_device(on_device, own=works[len(on_device) :], holes=holes)
    await world.tick(NOON)
    while world.now < after(150):
        if dice.random() < 0.02:
            led_until, away = world.now, minutes(dice.choice([0, 2, 40, 90]))
            world = restarted(world, led_until=led_until)
            world.now = led_until + away
        await world.tick(world.now + TICK)
        made = decision(world)
        if made.idle_since is not None:
            worked_until = max(
                [LONG_AGO + WARM_UP, *(min(w[1], world.now) for w in works if w[0] < world.now - 2 * TICK)]
            )
            assert made.idle_since + TICK >= worked_until
            if not made.idle_at_least and made.answer.reason is DecisionReason.GPUS_IDLE:
                assert abs(made.idle_since - worked_until) <= TICK


def spans(dice: Random, *, count: int, longest: int, shortest: int = 1) -> Sequence[Span]:
    begins = [after(dice.uniform(-60, 140)) for _ in range(count)]
    return [(begin, begin + minutes(dice.uniform(shortest, longest))) for begin in begins]
