"""What speaks against a GPU's quiet beside its own samples: its device, its board, its counter, the host they name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from builders import NOON, TRUST, at, every, found_of, history, pod, policy, record, series
from hypothesis import given
from hypothesis import strategies as st

from scaler.idleness.boards import Boards, unexplained_watts
from scaler.idleness.gpu import BOARD_POWER, DEFAULT_SIGNALS, ENERGY, GpuId, GpuSeries
from scaler.idleness.history import History
from scaler.idleness.pods import judge
from scaler.idleness.verdict import Busy, Idle, Unknown, WorkloadVerdict

SPAN = {"start": -31 * 60, "end": -5}
EXPORTER = ("gpu-operator", "exporter")


@dataclass
class Places:
    """The cluster, by the Node of each pod that holds GPUs."""

    pods: Mapping[tuple[str, str], str] = field(default_factory=lambda: {("demo", "worker-0"): "node-a"})
    nodes: Sequence[str] = ("node-a", "node-b", "node-a.b")
    shared: Sequence[str] = ()

    def node_of(self, namespace: str, pod: str) -> str | None:
        return self.pods.get((namespace, pod))

    def is_node(self, host: str) -> bool:
        return host in self.nodes

    def offers_shared(self, gpu: GpuId, node: str) -> bool:
        return node in self.shared


def judged(made: History, places: Places | None = None) -> WorkloadVerdict:
    known = places or Places()
    made.mark_holders(lambda key: known.node_of(*key) is not None)
    return judge([pod()], made, policy=policy(), trust=TRUST, end=NOON, places=known)


def word(found: WorkloadVerdict) -> str:
    of = found.verdict
    return f"Unknown {of.reason}" if isinstance(of, Unknown) else type(of).__name__


def of_pod(key: tuple[str, str], gpu: str = "GPU-0", *, mig: str = "", host: str = "node-a") -> GpuSeries:
    return replace(series(gpu, namespace=key[0], pod=key[1], mig=mig), node=host)


OWN, NOBODY = ("demo", "worker-0"), ("", "")


@pytest.mark.parametrize(
    ("what", "other", "ratio", "expected"),
    [
        ("the device itself is quiet", NOBODY, 0.0, "Idle"),
        ("the device itself works", NOBODY, 0.97, "Unknown SignalsDisagree"),
        ("the exporter's own pod is named, quiet", EXPORTER, 0.0, "Idle"),
        ("the exporter's own pod is named, at work", EXPORTER, 0.97, "Unknown SignalsDisagree"),
        ("a pod that is gone is named, quiet", ("demo", "gone"), 0.0, "Idle"),
        ("a pod that is gone is named, at work", ("demo", "gone"), 0.97, "Unknown SignalsDisagree"),
        ("another pod that holds GPUs, quiet", ("demo", "other"), 0.0, "Unknown SharedGPU"),
        ("another pod that holds GPUs, at work", ("demo", "other"), 0.97, "Unknown SharedGPU"),
    ],
)
def test_who_else_reports_for_the_device_is_a_witness_or_a_second_holder(
    what: str, other: tuple[str, str], ratio: float, expected: str
) -> None:
    made = history()
    record(made, of_pod(OWN), every(30, **SPAN))
    record(made, of_pod(other), every(30, **SPAN, ratio=ratio))
    assert word(judged(made, Places(pods={OWN: "node-a", ("demo", "other"): "node-a"}))) == expected, what


def test_a_node_that_offers_its_gpus_more_than_once_has_no_lone_holder() -> None:
    made = history()
    record(made, of_pod(OWN), every(30, **SPAN))
    assert word(judged(made, Places(shared=["node-a"]))) == "Unknown SharedGPU"
    record(made, of_pod(OWN), [(NOON.timestamp() - 60, 0.9)])
    assert isinstance(judged(made, Places(shared=["node-a"])).verdict, Busy), "work is work"


@pytest.mark.parametrize(
    ("what", "host", "others", "expected"),
    [
        ("no host is named", "", {}, "Idle"),
        ("the pod's Node", "node-a", {}, "Idle"),
        ("the pod's Node with its domain", "node-a.example.internal", {}, "Idle"),
        ("another Node", "node-b", {}, "Unknown NoSamples"),
        ("another Node, whose name begins like the pod's", "node-a.b", {}, "Unknown NoSamples"),
        ("another Node, which shows the pod's neighbour", "node-b", {("demo", "n"): "node-a"}, "Unknown NoSamples"),
        ("an exporter whose other pod runs on the pod's Node", "dcgm-x7k2", {("demo", "n"): "node-a"}, "Idle"),
        ("an exporter whose other pod runs elsewhere", "dcgm-x7k2", {("demo", "n"): "node-b"}, "Unknown NoSamples"),
        ("an exporter whose other pods are not here", "dcgm-x7k2", {("demo", "n"): None}, "Unknown NoSamples"),
        ("an exporter that shows nothing else", "dcgm-x7k2", {}, "Unknown UnexpectedGPUs"),
        (
            "an exporter whose other pods run on two Nodes",
            "dcgm-x7k2",
            {("demo", "n"): "node-a", ("demo", "m"): "node-b"},
            "Unknown UnexpectedGPUs",
        ),
    ],
)
def test_a_series_is_the_pods_only_from_the_pods_own_node(
    what: str, host: str, others: Mapping[tuple[str, str], str | None], expected: str
) -> None:
    made = history()
    record(made, of_pod(OWN, host=host), every(30, **SPAN))
    for number, key in enumerate(others):
        record(made, of_pod(key, f"GPU-9{number}", host=host), every(30, **SPAN))
    here = {key: node for key, node in others.items() if node is not None}
    assert word(judged(made, Places(pods={OWN: "node-a", **here}))) == expected, what


def test_a_series_of_another_node_neither_hides_nor_replaces_the_pods_own() -> None:
    made = history()
    record(made, of_pod(OWN, "GPU-0"), every(30, **SPAN, ratio=0.9))
    record(made, of_pod(OWN, "GPU-1", host="node-b"), every(30, **SPAN))
    found = judged(made)
    assert (word(found), [str(each.gpu) for each in found.gpus]) == ("Busy", ["GPU-0"])


def test_what_was_recorded_before_the_pod_started_counts_for_nothing() -> None:
    made = history()
    record(made, of_pod(OWN, "GPU-1"), every(30, start=-31 * 60, end=-20 * 60))
    record(made, of_pod(OWN, "GPU-0"), every(30, **SPAN))
    assert word(judged(made)) == "Unknown UnexpectedGPUs"
    young = replace(pod(), started_at=at(-10 * 60))
    found = judge([young], made, policy=policy(), trust=TRUST, end=NOON)
    assert [str(each.gpu) for each in found.gpus] == ["GPU-0"]


# ---------------------------------------------------------------------------------------------------------------- MIG


def mig_board(
    made: History, ratios: Sequence[float], *, watts: float | None = None, parent: float | None = None
) -> None:
    for number, ratio in enumerate(ratios):
        key = OWN if number == 0 else ("demo", f"worker-{number}")
        record(made, of_pod(key, mig=str(number)), every(30, **SPAN, ratio=ratio), signals=DEFAULT_SIGNALS[:1])
    if parent is not None:
        record(made, of_pod(NOBODY), every(30, **SPAN, ratio=parent), signals=DEFAULT_SIGNALS[:1])
    if watts is not None:
        samples = np.array(every(30, **SPAN, ratio=watts))
        rows = np.full(len(samples), made.boards.row("GPU-0"))
        made.extend_boards(BOARD_POWER, rows, samples[:, 0], samples[:, 1])


@pytest.mark.parametrize(
    ("what", "build", "expected"),
    [
        ("nothing else is known", lambda made: mig_board(made, [0.0, 0.0]), "Idle"),
        ("the board draws little", lambda made: mig_board(made, [0.0, 0.0], watts=64), "Idle"),
        ("the board draws much", lambda made: mig_board(made, [0.0, 0.0], watts=381), "Unknown SignalsDisagree"),
        ("another instance explains it", lambda made: mig_board(made, [0.0, 0.8], watts=381), "Idle"),
        ("the board itself works", lambda made: mig_board(made, [0.0, 0.0], parent=0.97), "Unknown SignalsDisagree"),
        ("another instance explains that", lambda made: mig_board(made, [0.0, 0.8], parent=0.97), "Idle"),
        ("the instance works", lambda made: mig_board(made, [0.8, 0.0], watts=381, parent=0.97), "Busy"),
    ],
)
def test_a_mig_instance_is_idle_only_where_its_board_does_not_say_otherwise(
    what: str, build: Callable[[History], None], expected: str
) -> None:
    made = history()
    build(made)
    assert word(judged(made)) == expected, what


HOUR = {"start": -3600, "end": -5}
EARLIER = {"start": -3000, "end": -2400}
"""Work that ended before the window."""


@pytest.mark.parametrize(
    ("what", "own", "instance", "parent", "device", "expected"),
    [
        ("nothing else worked", None, None, None, None, None),
        ("the device's own series did", None, None, None, EARLIER, -2400),
        ("the pod's own series shows that, too", EARLIER, None, None, EARLIER, None),
        ("the pod's own series shows less", {**EARLIER, "end": -2700}, None, None, EARLIER, -2400),
        ("the board of an instance did", None, None, EARLIER, None, -2400),
        ("another instance explains that", None, EARLIER, EARLIER, None, None),
        ("another instance explains that within a window", None, {"start": -3600, "end": -3500}, EARLIER, None, None),
        ("another instance worked, and that is its own", None, EARLIER, None, None, None),
    ],
)
def test_work_that_a_pods_own_series_does_not_show_may_have_been_its_own(
    what: str, own: Mapping[str, float], instance: Any, parent: Any, device: Any, expected: float | None
) -> None:
    """Long after it has left the window, so that the GPU is idle; and what rows show tells it."""
    made, signals = history(span=timedelta(hours=1)), DEFAULT_SIGNALS[:1]
    mig = "1" if device is None and (instance or parent) else ""
    shown = {of_pod(OWN, mig=mig): own, of_pod(("demo", "other"), mig="2"): instance} if mig else {of_pod(OWN): own}
    shown |= {of_pod(NOBODY): parent} if mig else {of_pod(NOBODY): device}
    for each, works in shown.items():
        record(made, each, every(30, **HOUR), signals=signals if mig else None)
        record(made, each, every(30, **works, ratio=0.9) if works else (), signals=signals if mig else None)
    found = judge([replace(pod(), running_since=at(-3600))], made, policy=policy(), trust=TRUST, end=NOON)
    [gpu] = found.gpus
    assert isinstance(gpu.verdict, Idle)
    assert gpu.unseen_until == (None if expected is None else at(expected + 30)), what
    compared = found_of(made, length=policy().window).compared()
    assert compared[0, 2] == (-np.inf if expected is None else at(expected + 30).timestamp())


def test_power_is_unexplained_by_half_of_what_a_model_may_draw() -> None:
    assert [unexplained_watts(model) for model in ("NVIDIA A30", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe", "")] == [
        80,
        125,
        175,
        125,
    ]


# ------------------------------------------------------------------------------------------------------------ counters


def count(made: History, values: Sequence[tuple[float, float]], *, exporter: str = "") -> None:
    """Energy of GPU-0 as an exporter shows it: (seconds from noon, value)."""
    rows = np.full(len(values), made.boards.row("GPU-0", exporter))
    at_s, energy = (np.array(each) for each in zip(*[(NOON.timestamp() + s, v) for s, v in values], strict=True))
    made.extend_boards(ENERGY, rows, at_s, energy)


def energy_until(stop: float, *, start: float = -600) -> list[tuple[float, float]]:
    """A counter of a GPU that draws 60 W, in mJ, which stands still from `stop` on."""
    return [(s, 1e9 + 60_000 * (min(s, stop) - start)) for s in range(int(start), 0, 30)]


@pytest.mark.parametrize(
    ("what", "values", "expected"),
    [
        ("none is known", [], "Idle"),
        ("it grows", energy_until(0), "Idle"),
        ("it has just stopped", energy_until(-60), "Idle"),
        ("it stands still for longer than a sample may be old", energy_until(-150), "Unknown FrozenExporter"),
        ("it never grew", energy_until(-600), "Unknown FrozenExporter"),
        ("it was reset", [*energy_until(0)[:-2], (-45, 5.0), (-15, 9.0)], "Idle"),
        ("it is no more published", energy_until(0, start=-600)[:3], "Idle"),
        ("it is 0, which is no measurement", [(s, 0.0) for s in range(-600, 0, 30)], "Idle"),
        ("it is blank", [(s, 9223372036854775794.0) for s in range(-600, 0, 30)], "Idle"),
        ("one sample alone says nothing", [(-10, 1e9)], "Idle"),
    ],
)
def test_a_counter_that_stands_still_is_an_old_page(
    what: str, values: Sequence[tuple[float, float]], expected: str
) -> None:
    made = history()
    record(made, of_pod(OWN), every(30, **SPAN))
    if values:
        count(made, values)
    assert word(judged(made)) == expected, what


@pytest.mark.parametrize(("window_s", "stands_still"), [(40, True), (60, True), (600, False)])
def test_a_counter_that_was_seen_for_a_whole_window_and_has_not_grown_stands_still(
    window_s: int, stands_still: bool
) -> None:
    """A window may be shorter than a sample may be old: 90 s here."""
    made = history()
    count(made, [(-70, 1e9), (-40, 1e9), (-10, 1e9)])
    rows = np.array([made.boards.row("GPU-0")])
    _, found = made.boards.counters(rows, TRUST, NOON, timedelta(seconds=window_s))
    assert found.tolist() == [stands_still]


@given(
    steps=st.lists(st.tuples(st.integers(-900, -1), st.integers(1, 10**12)), min_size=1, max_size=40),
    parts=st.integers(1, 5),
)
def test_a_counter_is_judged_by_its_samples_and_not_by_how_they_were_read(
    steps: list[tuple[int, int]], parts: int
) -> None:
    """Of what reads bring, oldest first and with overlaps."""
    samples = sorted(dict(steps).items())
    rows, at_s = np.zeros(len(samples), np.intp), np.array([NOON.timestamp() + s for s, _ in samples])
    values = np.array([float(v) for _, v in samples])
    whole, split = (Boards(slots=4, interval=timedelta(seconds=30)) for _ in range(2))
    for boards in (whole, split):
        boards.row("GPU-0")
    whole.take_energy(rows, at_s, values)
    for end in range(1, parts + 1):
        some = slice(0, max(1, len(samples) * end // parts))
        split.take_energy(rows[some], at_s[some], values[some])
    found = [[each.tolist() for each in x.counters(np.zeros(1, np.intp), TRUST, NOON)] for x in (whole, split)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("what", "shown_by", "counters", "expected"),
    [
        ("its exporter's counter grows", ["a"], {"a": 0}, "Idle"),
        ("it stands still, another's grows", ["a"], {"a": -600, "b": 0}, "Unknown FrozenExporter"),
        ("it stopped, another's grows", ["a"], {"a": -150, "b": 0}, "Unknown FrozenExporter"),
        ("it grows, another's stands still", ["a"], {"a": 0, "b": -600}, "Idle"),
        ("one of both that show it stands still", ["a", "b"], {"a": -600, "b": 0}, "Unknown FrozenExporter"),
        ("both that show it measure", ["a", "b"], {"a": 0, "b": 0}, "Idle"),
        ("none of its own is known, another's stands still", ["a"], {"b": -600}, "Unknown FrozenExporter"),
        ("series say not whose they are, one stands still", [""], {"a": -600, "b": 0}, "Unknown FrozenExporter"),
    ],
)
def test_a_counter_speaks_for_the_exporter_that_shows_it(
    what: str, shown_by: Sequence[str], counters: Mapping[str, float], expected: str
) -> None:
    """Whichever of both is read first."""
    for is_counted_first in (False, True):
        made = history()
        for step in range(2):
            if (step == 0) is is_counted_first:
                for exporter, stop in counters.items():
                    count(made, energy_until(stop), exporter=exporter)
            else:
                for exporter in shown_by:
                    record(made, replace(of_pod(OWN), exporter=exporter), every(30, **SPAN))
        assert word(judged(made)) == expected, what
        made.forget_before(at(-60))
        assert word(judged(made)) == expected, f"{what}, after others were forgotten"


@given(
    stops=st.lists(st.sampled_from([0.0, -150.0, -600.0]), min_size=1, max_size=3),
    others=st.lists(st.sampled_from([0.0, -600.0]), max_size=2),
)
def test_a_gpu_is_idle_only_if_every_exporter_that_shows_it_measures(stops: list[float], others: list[float]) -> None:
    made = history()
    for number, stop in enumerate(stops):
        record(made, replace(of_pod(OWN), exporter=f"shows-{number}"), every(30, **SPAN))
        count(made, energy_until(stop), exporter=f"shows-{number}")
    for number, stop in enumerate(others):
        count(made, energy_until(stop), exporter=f"counts-{number}")
    assert (word(judged(made)) == "Idle") is all(stop == 0 for stop in stops)


def test_counters_of_one_moment_are_no_growth() -> None:
    """Two tiles of a board, each with its own value, on a page that stands still; and on one that does not."""
    for grows, expected in ((0.0, "Unknown FrozenExporter"), (1.0, "Idle")):
        made = history()
        record(made, of_pod(OWN), every(30, **SPAN))
        count(made, [(s, tile + grows * s) for s in range(-600, 0, 30) for tile in (1e9, 2e9)])
        assert word(judged(made)) == expected


def test_what_boards_show_is_forgotten_with_them_and_not_inherited() -> None:
    made = history()
    for number in range(300):
        device = f"GPU-{number}"
        made.boards.row(device, "exporter")
        record(made, of_pod(OWN, device), every(30, start=-600, end=-5))
        rows = np.full(1, made.boards.row(device, "exporter"))
        made.extend_boards(ENERGY, rows, np.array([NOON.timestamp()]), np.array([1e9 + number]))
        made.forget_before(at(60), boards=[made.boards.row("GPU-0", "exporter"), -1])
        if number:
            assert not made.boards.has_counter(np.array([made.boards.row(device, x) for x in ("exporter", "")]))
            assert made.boards.has_counter(np.array([made.boards.row("GPU-0", "exporter")]))
    assert made.boards.row("another") < 10


def test_one_signal_alone_is_said_to_be_alone_unless_a_counter_grows() -> None:
    made = history(signals=DEFAULT_SIGNALS[:1])
    record(made, of_pod(OWN), every(30, **SPAN))
    assert judged(made).is_single_witness
    count(made, energy_until(0), exporter="another")
    assert judged(made).is_single_witness
    before = found_of(made, length=policy().window).compared()
    count(made, energy_until(0))
    assert not judged(made).is_single_witness
    after = found_of(made, length=policy().window).compared()
    assert before.tolist() != after.tolist(), "and what it was decided for before is decided again"
    both = history()
    record(both, of_pod(OWN), every(30, **SPAN))
    assert not judged(both).is_single_witness


# ------------------------------------------------------------------------ what tells that a verdict may be another


@given(
    own=st.sampled_from([0.0, 0.9]),
    other=st.sampled_from([0.0, 0.9]),
    key=st.sampled_from([NOBODY, EXPORTER, ("demo", "other")]),
    stop=st.sampled_from([0, -150, -600]),
    ended=st.sampled_from([-5, -2400]),
)
def test_what_rows_show_changes_whenever_the_verdict_does(
    own: float, other: float, key: tuple[str, str], stop: int, ended: float
) -> None:
    """So do the evidence's times, as long as the verdict is known."""
    made = history(span=timedelta(hours=1))
    record(made, of_pod(OWN), every(30, **HOUR, ratio=own))
    places = Places(pods={OWN: "node-a", ("demo", "other"): "node-a"})

    def now() -> tuple[object, list[list[float]]]:
        found = judged(made, places)
        verdict = (
            word(found),
            found.is_single_witness,
            [(x.last_active_at, x.unseen_until) for x in found.gpus if not isinstance(x.verdict, Unknown)],
        )
        return verdict, found_of(made, length=policy().window).compared().tolist()

    before = now()
    record(made, of_pod(key), every(30, **HOUR))
    record(made, of_pod(key), every(30, **{**HOUR, "end": ended}, ratio=other))
    count(made, energy_until(stop))
    after = now()
    assert before[0] == after[0] or before[1] != after[1]


def test_idle_is_idle_with_two_signals_and_nothing_else() -> None:
    made = history()
    record(made, of_pod(OWN), every(30, **SPAN))
    found = judge([pod()], made, policy=policy(), trust=TRUST, end=NOON)
    assert isinstance(found.verdict, Idle)
