"""No fault of a scraped dcgm-exporter is taken for idleness, and the decision recovers once the fault is over.

The exporter's page is that of `scripted_metrics` at the virtual time of the scrape, over real HTTP. Both workloads stop
working ten minutes before noon; the fault begins one minute before noon, when the window is all but quiet.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from builders import NOON, minutes
from decision.test_telemetry_faults import WORK_ENDS, Answers, answers, instants, is_suspending, until_work_ends
from http_stub import HttpStub, Received, Reply, Wire
from loops_builders import TICK, World, deployment
from scripted_metrics import (
    GPU_UTIL,
    GR_ENGINE_ACTIVE,
    Distortion,
    Metrics,
    Point,
    during,
    gpu,
    of_metric,
    reads,
    swapped,
    vanish,
)

from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.samples.dcgm import ExpositionSource

BEGIN, END = NOON - minutes(1), NOON + minutes(2)
LONGEST_MEMORY = minutes(12)
"""After that a wrong sample has left the window."""
TOMORROW_MS = int(1000 * (NOON + minutes(24 * 60)).timestamp())
HEADERS = {"Content-Type": "text/plain; version=0.0.4"}


def hangs(wire: Wire) -> None:
    wire.closing.wait(30)


def line(point: Point) -> str:
    names = {"exported_namespace": "namespace", "exported_pod": "pod", "exported_container": "container"}
    own = {name: point.labels[name] for name in ("UUID", "Hostname", "modelName")}
    labels = own | {ours: point.labels[name] for name, ours in names.items()}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{point.metric}{{{text}}} {point.value}\n"


@dataclass
class Dcgm:
    """An exporter of two GPUs. `fault` is what it answers instead of its page; `frozen_at` when it last collected."""

    distortions: Sequence[Distortion] = ()
    fault: Callable[[bytes], Reply] | None = None
    frozen_at: datetime | None = None
    world: World = field(init=False)
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        series = [
            *gpu("GPU-1", pod="serve-pod", node="node-b", ratio=until_work_ends),
            *gpu("GPU-2", pod="busy-pod", node="node-b", ratio=lambda _: 0.8),
        ]
        self.metrics = Metrics(series=series, distortions=list(self.distortions))

    def page(self) -> bytes:
        at_s = (self.frozen_at or self.world.now).timestamp()
        shown = self.metrics.range({GPU_UTIL, GR_ENGINE_ACTIVE}, after_s=at_s - 30, until_s=at_s, now_s=at_s)
        newest = (Point(labels["__name__"], labels, *samples[-1]) for labels, samples in shown)
        return "".join(map(line, newest)).encode()

    def answer(self, _: Received) -> Reply:
        page = self.page()
        return self.fault(page) if self.fault and BEGIN <= self.world.now < END else Reply(page, headers=HEADERS)


async def answers_of(exporter: Dcgm, begin: datetime, end: datetime) -> Answers:
    with HttpStub(exporter.answer) as stub:
        source = ExpositionSource(
            [stub.url], timeout=timedelta(milliseconds=500), clock=lambda: exporter.world.now.timestamp()
        )
        exporter.world = World([deployment("serve"), deployment("busy")], lambda _: source)
        try:
            return await answers(exporter.world, instants(begin, end))
        finally:
            await source.close()


def cut(page: bytes, length: int) -> Reply:
    def breaks_off(wire: Wire) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(page)}\r\n\r\n"
        wire.send(head.encode() + page[:length])

    return Reply(breaks_off)


FAULTS: dict[str, tuple[Dcgm, UnknownReason]] = {
    "a closed connection": (Dcgm(fault=lambda _: Reply(lambda _: None)), UnknownReason.SOURCE_UNAVAILABLE),
    "a hanging scrape": (Dcgm(fault=lambda _: Reply(hangs)), UnknownReason.SOURCE_UNAVAILABLE),
    "status 500": (Dcgm(fault=lambda page: Reply(page, status=500)), UnknownReason.SOURCE_UNAVAILABLE),
    "a page cut in a line": (Dcgm(fault=lambda page: cut(page, len(page) - 3)), UnknownReason.SOURCE_UNAVAILABLE),
    "a page cut between lines": (
        Dcgm(fault=lambda page: cut(page, page.index(b"\n") + 1)),
        UnknownReason.SOURCE_UNAVAILABLE,
    ),
    "a GPU that vanishes": (
        Dcgm([during(BEGIN, END, vanish, of=lambda point: point.labels["UUID"] == "GPU-1")]),
        UnknownReason.STALE_SAMPLES,
    ),
    "engine activity stuck at 0": (
        Dcgm(
            [
                during(BEGIN, END, reads(0.0), of=of_metric(GR_ENGINE_ACTIVE)),
                during(BEGIN, END, reads(100.0), of=of_metric(GPU_UTIL)),
            ]
        ),
        UnknownReason.SIGNALS_DISAGREE,
    ),
    "timestamps of the future": (
        Dcgm(fault=lambda page: Reply(re.sub(rb"(.*GPU-1.*)\n", rb"\1 %d\n" % TOMORROW_MS, page), headers=HEADERS)),
        UnknownReason.CLOCK_SKEW,
    ),
    "timestamps beyond any date": (
        Dcgm(fault=lambda page: Reply(re.sub(rb"(.*GPU-1.*)\n", rb"\1 %s\n" % (b"9" * 400), page), headers=HEADERS)),
        UnknownReason.CLOCK_SKEW,
    ),
    "swapped labels": (Dcgm([during(BEGIN, END, swapped("serve-pod", "busy-pod"))]), UnknownReason.UNEXPECTED_GPUS),
}


@pytest.mark.parametrize(("exporter", "reason"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_of_the_exporter_is_not_idleness(exporter: Dcgm, reason: UnknownReason) -> None:
    got = await answers_of(exporter, WORK_ENDS - minutes(5), END + LONGEST_MEMORY)
    at_the_end = got[END - TICK]["serve"]
    assert isinstance(at_the_end, Unknown)
    assert at_the_end.reason is reason
    assert not any(is_suspending(each["serve"]) for now, each in got.items() if BEGIN + minutes(2) <= now < END)
    assert not any(is_suspending(each["busy"]) for each in got.values())
    assert is_suspending(list(got.values())[-1]["serve"])


async def test_without_a_fault_the_idle_workload_is_suspended() -> None:
    got = await answers_of(Dcgm(), WORK_ENDS - minutes(5), END)
    assert is_suspending(got[END - TICK]["serve"])
    assert not is_suspending(got[WORK_ENDS + minutes(5)]["serve"])


async def test_a_page_frozen_while_it_showed_work_suspends_nothing() -> None:
    """One frozen while quiet cannot be distinguished from an idle GPU, as `samples.dcgm` states."""
    got = await answers_of(Dcgm(frozen_at=WORK_ENDS - minutes(1)), WORK_ENDS - minutes(5), END)
    assert not any(is_suspending(answer) for each in got.values() for answer in each.values())
