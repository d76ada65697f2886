"""No fault of telemetry suspends a workload, and none keeps an idle one up for longer than it must.

Every test tells the same story twice, on a gang behind a ScalableWorkload (`train`, 4 GPUs of node-a) and on a
Deployment (`serve`, 1 GPU of node-b). Both worked until ten minutes before noon, with an `idleAfter` of ten minutes:

* without the fault both answers are Inactive(GPUsIdle) from noon on;
* with a fault from four minutes before noon to three minutes after it neither is, at any tick of the fault;
* when the fault is over the answers turn Inactive by themselves.

How soon they do follows from what the fault left in the data:

| the data are               | Inactive again after the fault's end                                           |
|----------------------------|--------------------------------------------------------------------------------|
| whole in the source        | at the first tick: the read reaches back                                       |
| lost for seven minutes     | 8 min: when four fifths of the 10 min window (minCoverage) are measured again  |
| wrong (work that was none) | 10 min: when the last wrong sample has left the window                         |
| attributed wrongly         | 10.5 min: the interval in which the window begins counts as well               |
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import NOON, minutes
from http_stub import Reply
from loops_builders import NEVER, TICK, World, deployment, gang
from scripted_metrics import (
    GPU_UTIL,
    GR_ENGINE_ACTIVE,
    Distortion,
    Metrics,
    ScriptedSource,
    during,
    gpu,
    of_device,
    of_metric,
    of_node,
    reads,
    shifted,
    swapped,
    vanish,
    without_workload,
)
from scripted_prometheus import (
    Fault,
    ScriptedPrometheus,
    breaks_off,
    fails,
    hangs,
    is_a_login_page,
    is_cut,
    is_empty,
    is_partial,
    names_another,
    names_none,
    warns,
)

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource

WORK_ENDS = NOON - minutes(10)
BEGIN, END = NOON - minutes(4), NOON + minutes(3)
"""Of the fault."""
PATIENT = timedelta(seconds=30)
LONG_BEFORE = NOON - minutes(60)

AT_ONCE = timedelta(0)
ONCE_COVERED = minutes(8)
ONCE_FORGOTTEN = minutes(10)
ONCE_REATTRIBUTED = minutes(10.5)

TARGETS = ("train", "serve")


def until_work_ends(at_s: float) -> float:
    return 0.9 if at_s < WORK_ENDS.timestamp() else 0.0


def data() -> Metrics:
    """The GPUs of both, and one on node-b that always works, for the Deployment `busy`."""
    gang_gpus = [
        gpu(f"GPU-a{n}", pod="train-pod", node="node-a", ratio=until_work_ends, phase_s=5 + n) for n in range(4)
    ]
    return Metrics(
        series=[
            *(series for each in gang_gpus for series in each),
            *gpu("GPU-b0", pod="serve-pod", node="node-b", ratio=until_work_ends),
            *gpu("GPU-b1", pod="busy-pod", node="node-b", ratio=lambda _: 0.8),
        ]
    )


@dataclass
class Scene:
    """A world and its Prometheus, which is asked over HTTP where that is what goes wrong."""

    world: World
    prometheus: ScriptedPrometheus


@asynccontextmanager
async def scene(
    *, distortions: Sequence[Distortion] = (), over_http: bool = False, patience: timedelta = PATIENT
) -> AsyncIterator[Scene]:
    """Identical for equal arguments: everything in it is a function of virtual time."""
    metrics = data()
    metrics.distortions += distortions
    with ScriptedPrometheus(metrics, clock=lambda: built.world.now) as prometheus:
        source = PrometheusSource(PrometheusConfig(url=prometheus.url, timeout=patience, attempts=1))
        in_memory = ScriptedSource(metrics=metrics, clock=lambda: built.world.now)
        inhabitants = [gang("train", gpus=4), deployment("serve"), deployment("busy")]
        built = Scene(World(inhabitants, lambda _: source if over_http else in_memory), prometheus)
        try:
            yield built
        finally:
            await source.close()


def instants(begin: datetime, end: datetime, step: timedelta = TICK) -> Iterator[datetime]:
    while begin < end:
        yield begin
        begin += step


Answers = dict[datetime, dict[str, Answer]]


async def answers(world: World, times: Iterator[datetime]) -> Answers:
    """What KEDA would get for each target, at each instant, right after the tick."""
    got: Answers = {}
    for now in times:
        await world.tick(now)
        got[now] = world.answers()
    return got


def is_suspending(answer: Answer) -> bool:
    return isinstance(answer, Inactive) and answer.reason is DecisionReason.GPUS_IDLE


@dataclass(kw_only=True)
class Trouble:
    """What goes wrong: in the data, or between us and a server while it lasts."""

    data: Sequence[Distortion] = ()
    over_http: bool = False
    begin: Callable[[Scene], None] = lambda _: None
    end: Callable[[Scene], None] = lambda _: None
    each: Callable[[Scene, datetime], None] = lambda *_: None
    """Before each tick while it lasts."""
    patience: timedelta = PATIENT
    """How long a read may take."""
    step: timedelta = TICK
    """Between the ticks while it lasts."""
    from_the_start: bool = False
    """Whether our process is started while it lasts."""


_SHOWN: set[timedelta] = set()
"""Steps at which the world without a fault was told already; it is the one that every test begins with."""


async def show_suspension_without_fault(step: timedelta) -> None:
    """The same world, the same instants: both would have been suspended."""
    if step in _SHOWN:
        return
    async with scene() as healthy:
        got = await answers(healthy.world, instants(BEGIN, END, step))
    for now, each in got.items():
        for target in TARGETS:
            assert is_suspending(each[target]) is (now >= NOON), (now, target, each[target])
    _SHOWN.add(step)


async def show_held(
    trouble: Trouble,
    *,
    reason: UnknownReason,
    recovers: timedelta,
    held: Sequence[str] = TARGETS,
) -> None:
    """Each of `held` is never Inactive while the trouble lasts, Unknown(reason) when it would have been, and Inactive
    from `recovers` after its end on, not a tick earlier. The other targets do not notice."""
    await show_suspension_without_fault(trouble.step)
    async with scene(distortions=trouble.data, over_http=trouble.over_http, patience=trouble.patience) as troubled:
        world = troubled.world
        if not trouble.from_the_start:
            await answers(world, instants(BEGIN - 2 * TICK, BEGIN))
        trouble.begin(troubled)
        while_it_lasts: Answers = {}
        for now in instants(BEGIN, END, trouble.step):
            trouble.each(troubled, now)
            while_it_lasts |= await answers(world, iter([now]))
        trouble.end(troubled)
        afterwards = await answers(world, instants(END, END + recovers + 4 * TICK))
    _check_held(while_it_lasts, reason, held)
    for now, each in afterwards.items():
        assert [is_suspending(each[name]) for name in held] == [now >= END + recovers] * len(held), (now - END, each)
    for now, each in (while_it_lasts | afterwards).items():
        assert not isinstance(each["busy"], Inactive), now
        assert all(is_suspending(each[name]) is (now >= NOON) for name in set(TARGETS) - set(held)), (now, each)


def _check_held(got: Answers, reason: UnknownReason, held: Sequence[str]) -> None:
    for now, each in got.items():
        for name in held:
            answer = each[name]
            assert isinstance(answer, Active | Unknown), (now, name, answer)
            if now >= NOON:
                assert isinstance(answer, Unknown), (now, name, answer)
                assert answer.reason is reason, (now, name, answer)


# ------------------------------------------------------------------------------------------ between us and Prometheus


def every_request(fault: Fault) -> Trouble:
    def begin(scene: Scene) -> None:
        scene.prometheus.fault = fault

    def end(scene: Scene) -> None:
        scene.prometheus.fault = None

    return Trouble(begin=begin, end=end, over_http=True)


async def test_prometheus_down() -> None:
    down = Trouble(over_http=True, begin=lambda s: s.prometheus.go_down(), end=lambda s: s.prometheus.come_up())
    await show_held(down, reason=UnknownReason.SOURCE_UNAVAILABLE, recovers=AT_ONCE)


async def test_prometheus_slower_than_the_timeout() -> None:
    slow = every_request(hangs)
    slow.patience, slow.step = timedelta(seconds=1), minutes(3)
    await show_held(slow, reason=UnknownReason.SOURCE_UNAVAILABLE, recovers=AT_ONCE)


NO_ANSWERS = [fails, breaks_off, is_cut, warns, is_partial, names_another, names_none, is_a_login_page]


@pytest.mark.parametrize("fault", NO_ANSWERS, ids=lambda f: f.__name__)
async def test_answers_that_are_none(fault: Fault) -> None:
    """500, a body that breaks off or is cut, a partial answer, another question's, a login page with status 200."""
    await show_held(every_request(fault), reason=UnknownReason.SOURCE_UNAVAILABLE, recovers=AT_ONCE)


async def test_empty_results() -> None:
    """Success without a single series, as from a Thanos that has lost its stores. The data are still there later."""
    await show_held(every_request(is_empty), reason=UnknownReason.STALE_SAMPLES, recovers=AT_ONCE)


Samples = list[list[Any]]

LATE: dict[str, tuple[Callable[[Samples], Samples], timedelta]] = {
    "one of tomorrow": (lambda samples: [*samples, [samples[-1][0] + 86_400, "0"]], AT_ONCE),
    "one a minute ahead": (lambda samples: [*samples, [samples[-1][0] + 60, "0"]], AT_ONCE),
    "beyond any date": (lambda samples: [*samples, [1e300, "0"]], AT_ONCE),
    # All of them are lost but those of the last two minutes, which are read again (overlap).
    "milliseconds": (lambda samples: [[1000 * at, value] for at, value in samples], minutes(5.5)),
}


@pytest.mark.parametrize(("late", "recovers"), LATE.values(), ids=LATE.keys())
async def test_samples_that_are_yet_to_come_of_one_gpu(late: Callable[[Samples], Samples], recovers: timedelta) -> None:
    """The clock of one exporter, or of what it sends through. No other target notices, and nothing is left of it."""

    def moved(good: bytes) -> Reply:
        answer = json.loads(good)
        for series in answer["data"]["result"]:
            if series["metric"]["exported_pod"] == "serve-pod":
                series["values"] = late(series["values"])
        return Reply(json.dumps(answer).encode())

    await show_held(every_request(moved), reason=UnknownReason.CLOCK_SKEW, recovers=recovers, held=["serve"])


@pytest.mark.parametrize("ahead_s", [60, -60])
async def test_a_clock_that_differs_by_a_minute(ahead_s: int) -> None:
    """Prometheus' clock: its Date header and the times of the samples it scraped meanwhile."""

    def begin(scene: Scene) -> None:
        scene.prometheus.ahead = timedelta(seconds=ahead_s)

    def end(scene: Scene) -> None:
        scene.prometheus.ahead = timedelta(0)

    trouble = Trouble(data=[during(BEGIN, END, shifted(ahead_s))], over_http=True, begin=begin, end=end)
    await show_held(trouble, reason=UnknownReason.CLOCK_SKEW, recovers=AT_ONCE)


# ------------------------------------------------------------------------------------------------------- in the data


async def test_series_that_stop_without_a_stale_marker() -> None:
    stopped = Trouble(data=[during(BEGIN, END, vanish)])
    await show_held(stopped, reason=UnknownReason.STALE_SAMPLES, recovers=ONCE_COVERED)


async def test_one_signal_that_stops() -> None:
    stopped = Trouble(data=[during(BEGIN, END, vanish, of=of_metric(GPU_UTIL))])
    await show_held(stopped, reason=UnknownReason.STALE_SAMPLES, recovers=ONCE_COVERED)


async def test_one_exporter_that_restarts() -> None:
    """A hole, and then series under the name of another exporter pod. The other node's targets do not notice."""

    restarted = Trouble(
        data=[
            during(BEGIN, END, vanish, of=of_node("node-a")),
            during(END, END + minutes(60), lambda p: p.labelled(pod="dcgm-exporter-new"), of=of_node("node-a")),
        ]
    )
    await show_held(restarted, reason=UnknownReason.STALE_SAMPLES, recovers=ONCE_COVERED, held=["train"])


async def test_a_hole_that_ended_just_before() -> None:
    """The newest samples are fresh again at noon; work could still hide in the four minutes without any."""
    hole = Trouble(data=[during(BEGIN - minutes(1), NOON - minutes(1), vanish)])
    # From −5:00 to −1:00. Four fifths of the window are covered when 2 of the 4 min have left it: −3:00 + 10:00 = 7:00.
    await show_held(hole, reason=UnknownReason.SAMPLE_GAP, recovers=minutes(4))


@pytest.mark.parametrize(("stuck", "other"), [(GR_ENGINE_ACTIVE, GPU_UTIL), (GPU_UTIL, GR_ENGINE_ACTIVE)])
async def test_one_signal_at_0_while_the_other_is_at_100(stuck: str, other: str) -> None:
    full = 100.0 if other == GPU_UTIL else 1.0
    disagree = Trouble(
        data=[during(BEGIN, END, reads(0.0), of=of_metric(stuck)), during(BEGIN, END, reads(full), of=of_metric(other))]
    )
    await show_held(disagree, reason=UnknownReason.SIGNALS_DISAGREE, recovers=ONCE_FORGOTTEN)


BLANKS = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "negative": -1.0,
    "int64 blank": 9223372036854775792.0,
    "int64 not found": 9223372036854775793.0,
    "int32 not supported": 2147483634.0,
    "fp64 no permission": 140737488355331.0,
}


@pytest.mark.parametrize("blank", BLANKS)
async def test_blanks_in_place_of_measurements(blank: str) -> None:
    blanks = Trouble(data=[during(BEGIN, END, reads(BLANKS[blank]))], step=minutes(1))
    await show_held(blanks, reason=UnknownReason.STALE_SAMPLES, recovers=ONCE_COVERED)


async def test_nothing_but_blanks() -> None:
    blanks = Trouble(data=[during(LONG_BEFORE, END, reads(BLANKS["NaN"]))], over_http=True)
    await show_held(blanks, reason=UnknownReason.NO_SAMPLES, recovers=ONCE_COVERED)


async def test_one_gpu_of_four_that_vanishes() -> None:
    gone = Trouble(data=[during(BEGIN, END, vanish, of=of_device("GPU-a3"))])
    await show_held(gone, reason=UnknownReason.STALE_SAMPLES, recovers=ONCE_COVERED, held=["train"])


async def test_one_gpu_of_four_that_never_reported() -> None:
    gone = Trouble(data=[during(LONG_BEFORE, END, vanish, of=of_device("GPU-a3"))])
    await show_held(gone, reason=UnknownReason.MISSING_GPUS, recovers=ONCE_COVERED, held=["train"])


async def test_labels_that_name_only_the_exporters_own_pod() -> None:
    """Read blindly, `pod` would be the exporter's; the workload's GPUs seem to be gone."""
    own = Trouble(data=[during(LONG_BEFORE, END, without_workload)])
    await show_held(own, reason=UnknownReason.NO_SAMPLES, recovers=ONCE_COVERED)


async def test_labels_swapped_between_an_idle_and_a_working_pod() -> None:
    """`busy` shows the idle GPU and `serve` the working one; neither may be judged by the other's."""
    crossed = Trouble(data=[during(BEGIN, END, swapped("serve-pod", "busy-pod"))])
    await show_held(crossed, reason=UnknownReason.UNEXPECTED_GPUS, recovers=ONCE_REATTRIBUTED, held=["serve"])


async def test_a_gpu_that_reports_for_two_pods_at_once() -> None:
    """As with time-slicing, where a pod's own zero says nothing about the device."""
    metrics = [during(BEGIN, END, lambda p: p.labelled(exported_pod="serve-pod"), of=of_device("GPU-b1"))]
    await show_held(
        Trouble(data=metrics), reason=UnknownReason.UNEXPECTED_GPUS, recovers=ONCE_REATTRIBUTED, held=["serve"]
    )


# ------------------------------------------------------------------------------------------------ ourselves, Kubernetes


async def test_an_outage_of_our_own() -> None:
    """No tick for seven minutes. The answers of before expire, and one tick later the window is whole again."""
    await show_suspension_without_fault(TICK)
    async with scene() as paused:
        world = paused.world
        await answers(world, instants(BEGIN - 2 * TICK, BEGIN))
        for now in instants(BEGIN, END):
            world.now = now
            if now >= NOON:
                assert [_reason(world.answer(name)) for name in TARGETS] == [UnknownReason.COLD_START] * 2
            else:
                assert not any(isinstance(world.answer(name), Inactive) for name in TARGETS)
        await world.tick(END)
        assert all(is_suspending(world.answer(name)) for name in TARGETS)


async def test_a_cold_start_without_prometheus() -> None:
    """Nothing is answered before the window has been rebuilt; then the first tick decides."""
    cold = every_request(fails)
    cold.from_the_start = True
    await show_held(cold, reason=UnknownReason.COLD_START, recovers=AT_ONCE)


async def test_a_cold_start_without_kubernetes() -> None:
    unlisted = Trouble(
        from_the_start=True,
        begin=lambda s: s.world.cluster.go_silent(NEVER),
        end=lambda s: s.world.cluster.go_silent(0),
    )
    await show_held(unlisted, reason=UnknownReason.COLD_START, recovers=AT_ONCE)


async def test_a_kubernetes_api_that_is_not_heard_of() -> None:
    """Pods may have been replaced unseen. After three minutes of silence (maxViewAge) nothing is decided."""

    def age(scene: Scene, now: datetime) -> None:
        scene.world.cluster.go_silent((now - BEGIN).total_seconds())

    silent = Trouble(each=age, end=lambda s: s.world.cluster.go_silent(0))
    await show_held(silent, reason=UnknownReason.STALE_CLUSTER_VIEW, recovers=AT_ONCE)


def _reason(answer: Answer) -> UnknownReason | None:
    return answer.reason if isinstance(answer, Unknown) else None
