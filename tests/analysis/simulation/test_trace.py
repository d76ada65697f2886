"""Trace files: CSV, gzip and Parquet, in any order; what is wrong with one is said with its place."""

import csv
import gzip
import io
import json
import tracemalloc

import pytest
from app.cli.command import command
from scaler_analysis.simulation.recordings.recorded import PodFacts
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.recordings.trace import read_trace
from simulation_builders import UTIL

from scaler.errors import ConfigurationError

COLUMNS = ("time", "namespace", "pod", "gpu", "signal", "value")
BEGIN = 1_700_000_400


def lines(*pods, minutes=120, works=60, more=()):
    """A sample every 30 s: 50 % for some minutes, then 0."""
    for second in range(0, minutes * 60, 30):
        for pod in pods:
            yield (BEGIN + second, "team", pod, f"GPU-{pod}", "gpu_util", 50 if second < works * 60 else 0, *more)


def text_of(rows, columns=COLUMNS):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerows([columns, *rows])
    return out.getvalue()


def written(folder, text, name="trace.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def settings(folder, **more):
    path = folder / "settings.yaml"
    document = {"signals": [{"name": "gpu_util", "metrics": ["U"], "unit": "percent"}], **more}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def simulated(folder, path, *flags, curve=False, **more):
    flags = flags if curve else (*flags, "--no-curve")
    words = ("simulate", "--trace", str(path), "--config", str(settings(folder, **more)), *flags, "--json")
    return command(*words).json


def read(folder, text, name="trace.csv"):
    recording = Recording(folder=folder)
    read_trace(written(folder, text, name), recording, [UTIL])
    return recording


def test_it_prints_one_object_with_a_policy_for_each_window(tmp_path):
    path = written(tmp_path, text_of(lines("a", "b")))
    answer = simulated(tmp_path, path, "--idle-after", "30m,60m", "--warm-up", "10m")
    shown = ("idleAfter", "suspensions", "freedGpuHours", "gpuHours", "returnsWithin15m", "returnsWithin60m")
    # Two pods whose last samples are at 119:30; suspended at 90:00, and not at all with 60m, which ends at 120:00.
    assert [tuple(each[name] for name in shown) for each in answer["policies"]] == [
        ("30m", 2, pytest.approx(2 * 29.5 / 60, abs=1e-4), pytest.approx(2 * 119.5 / 60, abs=1e-4), 0, 0),
        ("60m", 0, 0.0, pytest.approx(2 * 119.5 / 60, abs=1e-4), 0, 0),
    ]
    assert [each["unknownGpuHours"] for each in answer["policies"]] == [0.0, 0.0]


def test_windows_that_differ_by_seconds_are_told_apart(tmp_path):
    answer = simulated(tmp_path, written(tmp_path, text_of(lines("a", minutes=180))), "--idle-after", "1h1m,1h1m30s")
    # The last sample is at 179:30; the last work was at 59:30.
    assert [each["freedGpuHours"] for each in answer["policies"]] == [
        pytest.approx(58.5 / 60, abs=1e-4),
        pytest.approx(58 / 60, abs=1e-4),
    ]


@pytest.mark.parametrize(
    ("names", "nodes", "is_shared"),
    [
        (("0", "0"), ("", ""), False),
        (("gpu0", "gpu0"), ("", ""), False),
        (("0", "0"), ("n1", "n2"), False),
        (("0", "0"), ("n1", "n1"), True),
        (("GPU-5f0c", "GPU-5f0c"), ("", ""), True),
    ],
)
def test_an_index_is_of_a_node_or_of_a_pod_and_any_other_name_of_one_gpu(tmp_path, names, nodes, is_shared):
    rows = [
        (*row[:3], name, *row[4:], node)
        for pod, name, node in zip("ab", names, nodes, strict=True)
        for row in lines(pod)
    ]
    answer = simulated(tmp_path, written(tmp_path, text_of(rows, (*COLUMNS, "node"))), "--idle-after", "30m")
    [policy] = answer["policies"]
    assert (policy["suspensions"], [*policy["unknownReasons"]]) == ((0, ["SharedGPU"]) if is_shared else (2, []))


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
@pytest.mark.parametrize("order", ["by time", "by pod", "backwards"])
def test_lines_may_come_in_any_order(tmp_path, name, order):
    rows = [*lines("a", "b")]
    rows.sort(key=lambda row: (row[2], row[0]) if order == "by pod" else row[0], reverse=order == "backwards")
    answer = simulated(tmp_path, written(tmp_path, text_of(rows), name), "--idle-after", "30m")
    assert answer["policies"][0]["freedGpuHours"] == pytest.approx(2 * 29.5 / 60, abs=1e-4)


def test_times_may_be_rfc_3339(tmp_path):
    text = text_of([("2023-11-14T22:20:00Z", "team", "a", "g", "gpu_util", 3)])
    assert read(tmp_path, text).begin_s == BEGIN


def test_parquet_is_read_where_pyarrow_is_installed(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = dict(zip(COLUMNS, zip(*lines("a"), strict=True), strict=True))
    parquet.write_table(pyarrow.table({name: list(found) for name, found in columns.items()}), tmp_path / "t.parquet")
    answer = simulated(tmp_path, tmp_path / "t.parquet", "--idle-after", "30m")
    assert answer["policies"][0]["freedGpuHours"] == pytest.approx(29.5 / 60, abs=1e-4)


@pytest.mark.parametrize(
    ("column", "values"),
    [("gpu", [0] * 240), ("queue", [7] * 240), ("owner", [None] * 240), ("gpus", [float("nan")] * 240)],
)
def test_in_parquet_names_may_be_numbers_and_what_is_not_known_may_be_null(tmp_path, column, values):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = dict(zip(COLUMNS, map(list, zip(*lines("a"), strict=True)), strict=True)) | {column: values}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    answer = simulated(tmp_path, tmp_path / "t.parquet", "--idle-after", "30m")
    assert answer["policies"][0]["freedGpuHours"] == pytest.approx(29.5 / 60, abs=1e-4)


@pytest.mark.parametrize(
    ("column", "words"), [("time", "time None is neither"), ("pod", "has no namespace, pod or gpu")]
)
def test_a_null_of_what_must_be_known_is_named(tmp_path, column, words):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = dict(zip(COLUMNS, map(list, zip(*lines("a"), strict=True)), strict=True)) | {column: [None] * 240}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(ConfigurationError, match=words):
        read_trace(tmp_path / "t.parquet", Recording(folder=tmp_path), [UTIL])


@pytest.mark.parametrize("name", ["t.parquet", "t.csv.gz"])
def test_a_file_that_is_damaged_is_named(tmp_path, name):
    pytest.importorskip("pyarrow")
    content = bytearray(gzip.compress(text_of((*row[:5], n) for n, row in enumerate(lines("a"))).encode()))
    content[12:60] = bytes([255] * 48)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"trace .*{name}: "):
        read_trace(tmp_path / name, Recording(folder=tmp_path), [UTIL])


def test_what_some_lines_say_of_a_pod_goes_for_all(tmp_path):
    more = [("Job/train", "research", "vision", "8.0"), ("", "", "", "")]
    rows = [(*row, *more[n % 2]) for n, row in enumerate(lines("a"))]
    recording = read(tmp_path, text_of(rows, (*COLUMNS, "owner", "queue", "team", "gpus")))
    assert recording.facts == {("team", "a"): PodFacts(owner="Job/train", queue="research", team="vision", gpus=8)}


def test_optional_columns_tell_owners_queues_teams_gpus_and_models(tmp_path):
    rows = [
        *lines("a", more=("Job/train", "research", "vision", "", "H100")),
        *lines("b", more=("Job/train", "research", "vision", "", "H100")),
        *lines("c", more=("", "", "", "", "")),
    ]
    text = text_of(rows, (*COLUMNS, "owner", "queue", "team", "gpus", "model"))
    metrics = {"prices": {"H100": 6.0}, "currency": "EUR"}
    answer = simulated(tmp_path, written(tmp_path, text), "--idle-after", "30m", metrics=metrics)
    [policy] = answer["policies"]
    names = {kind: {each["name"]: each["suspensions"] for each in policy[kind]} for kind in ("teams", "queues")}
    assert names == {"teams": {"vision": 1, "team": 1}, "queues": {"research": 1, "": 1}}
    assert policy["freedCost"] == pytest.approx(2 * 6.0 * 29.5 / 60, abs=0.01)
    assert [(each["kind"], each["name"], each["suspensions"]) for each in policy["workloads"]] == [
        ("Job", "train", 1),
        ("Pod", "c", 1),
    ]


def test_models_without_a_price_are_named(tmp_path):
    rows = [*lines("a", more=("H100",)), *lines("b", more=("A100",)), *lines("c", more=("",))]
    path = written(tmp_path, text_of(rows, (*COLUMNS, "model")))
    answer = simulated(tmp_path, path, metrics={"prices": {"H100": 6.0}})
    words = "metrics.prices has no price for GPUs whose model is not known, A100: what is freed of them is missing"
    assert [each for each in answer["notes"] if each.startswith(words)]
    assert simulated(tmp_path, path, metrics={"prices": {"*": 6.0}})["notes"] == []
    assert simulated(tmp_path, path)["notes"] == []


@pytest.mark.parametrize("flag", ["--html", "--csv"])
def test_a_file_that_cannot_be_written_takes_nothing_away(tmp_path, flag):
    """A file system that is full, which nothing says before."""
    path = written(tmp_path, text_of(lines("a")))
    words = ("simulate", "--trace", str(path), "--config", str(settings(tmp_path)), "--no-curve", flag, "/dev/full")
    done = command(*words)
    assert (done.status, done.err) == (2, "error: /dev/full cannot be written: No space left on device\n")
    assert "1 workload, 1 pod, 2.0 GPU-hours" in done.out


def test_policies_from_a_file_are_for_those_that_would_follow_them(tmp_path):
    document = {
        "apiVersion": "idlegpu.io/v1alpha1",
        "kind": "ClusterIdlePolicy",
        "metadata": {"name": "jobs"},
        "spec": {"selector": {"kinds": ["Job"]}, "idleAfter": "20m"},
    }
    (tmp_path / "policy.yaml").write_text(json.dumps(document), encoding="utf-8")
    text = text_of([*lines("a", more=("Job/train",)), *lines("b", more=("",))], (*COLUMNS, "owner"))
    answer = simulated(tmp_path, written(tmp_path, text), "-f", str(tmp_path / "policy.yaml"))
    [policy] = answer["policies"]
    assert (policy["name"], policy["suspensions"]) == (str(tmp_path / "policy.yaml"), 1)
    assert policy["freedGpuHours"] == pytest.approx(39.5 / 60, abs=1e-4)


def test_the_collection_interval_is_measured_where_the_settings_do_not_say_it(tmp_path):
    rows = [row for row in lines("a", minutes=180, works=60) if row[0] % 60 == 0]
    answer = simulated(tmp_path, written(tmp_path, text_of(rows)), "--idle-after", "30m")
    assert answer["trace"]["collectionInterval"] == "1m"
    assert answer["policies"][0]["suspensions"] == 1
    trust = {"collectionInterval": "30s"}
    answer = simulated(tmp_path, written(tmp_path, text_of(rows)), "--idle-after", "30m", trust=trust)
    assert answer["policies"][0]["suspensions"] == 0
    assert "most will be unknown" in answer["notes"][0]


def test_what_is_not_known_is_left_out_and_told(tmp_path):
    rows = [*lines("a", more=("Job/x",)), (BEGIN, "team", "a", "GPU-a", "power", 300, "")]
    answer = simulated(tmp_path, written(tmp_path, text_of(rows, (*COLUMNS, "Owner"))), "--idle-after", "30m")
    assert "1 samples of signal 'power', which the settings do not have, left out" in answer["notes"]
    assert "column 'Owner' is none of a trace file's, left out" in answer["notes"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns time, namespace, pod, gpu, signal, value are missing"),
        (text_of([], COLUMNS[:-1]), "column value is missing"),
        (text_of([(BEGIN, "team", "a")]), "line 2: 3 values for 6 columns"),
        (text_of([("noon", "team", "a", "g", "gpu_util", 1)]), "time 'noon' is neither Unix seconds nor RFC 3339"),
        (text_of([(1000 * BEGIN, "team", "a", "g", "gpu_util", 1)]), "time 1700000400000 is not in seconds"),
        (text_of([(BEGIN, "team", "a", "g", "gpu_util", "x")]), "value 'x' is not a number"),
        *(
            (
                text_of([(BEGIN, "team", "a", "g", "gpu_util", 1, each)], (*COLUMNS, "gpus")),
                "is not a whole number from 0",
            )
            for each in ("-1", "1.5", "1e23")
        ),
        (text_of([(BEGIN, "", "a", "g", "gpu_util", 1)]), "has no namespace, pod or gpu"),
        (text_of([(BEGIN, "team", "a", "g", "power", 1)]), "no line is a measurement of a signal of the settings"),
        (text_of([(BEGIN, "team", "a", "g", "gpu_util", "NaN")]), "no line is a measurement"),
        *(
            (
                text_of([*lines("a"), (each, "team", "a", "g", "gpu_util", 1)]),
                rf"line 242: time {each} is more than three years from that of the first line",
            )
            for each in ("0", "-9e10", "9e10")
        ),
        (text_of([*lines("a", minutes=1), ("x" * 5000,)]), r"line \d+: it is longer than 4,096 characters"),
        (",".join(["time"] * 65), "line 1: 65 columns, of which at most 64 are read"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused_with_what_is_wrong(tmp_path, text, words):
    with pytest.raises(ConfigurationError, match=words):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"time,namespace\n\xff\xfe", "line 2: it is not UTF-8; save it as UTF-8"),
        ("x.csv", b'time,"' + b"x\n" * 100_000, "it is not CSV: a value is longer"),
        ("x.csv.gz", gzip.compress(b"time," * 500, mtime=0)[:-10], "it is damaged or cut off"),
        ("x.parquet", b"PAR1" + bytes(1000) + b"PAR1", "it is damaged or"),
    ],
)
def test_files_that_are_no_trace_are_refused_in_our_words(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    done = command("simulate", "--trace", str(path), "--config", str(settings(tmp_path)))
    assert (done.status, words in done.err) == (2, True), done.err


def test_a_line_of_gigabytes_is_not_read_to_its_end(tmp_path):
    """64 MiB here: the reading of one that is not cut off would take all of them, and their sum is seen."""
    path = tmp_path / "x.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(text_of([]).encode())
        for _ in range(64):
            file.write(b"a" * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match="line 2: it is longer"):
            read_trace(path, Recording(folder=tmp_path), [])
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--idle-after", "30"), "'30' is not a duration; write '30s'"),
        (("--idle-after", "2d"), "write 1s (the time between two samples) to 1d"),
        (("--active-above", "1"), "'1' is ambiguous without a % sign"),
        (("--accept-regret", "5"), "'5' is not a share; write for example '5%'"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(tmp_path, flags, words):
    path = written(tmp_path, text_of(lines("a", minutes=10)))
    done = command("simulate", "--trace", str(path), "--config", str(settings(tmp_path)), *flags)
    assert done.status == 2
    assert words in done.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--workloads", "w.csv", "--html", "x.html", "--idle-after", "1h"), "--idle-after, --html: only without"),
        (("--trace", "x.csv", "--price", "2"), "--price: only with --gpus"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(flags, words):
    done = command("simulate", *flags)
    assert (done.status, words in done.err) == (2, True), done.err


def test_the_curve_marks_today_and_recommends_what_frees_most_within_the_regret(tmp_path):
    def work(minute):
        return 50 if minute % 50 == 0 or minute > 300 else 0

    rows = [(BEGIN + 60 * m, "team", "a", "GPU-a", "gpu_util", work(m)) for m in range(720)]
    answer = simulated(tmp_path, written(tmp_path, text_of(rows)), "--accept-regret", "50%", curve=True)
    today = [each["idleAfter"] for each in answer["curve"] if each["isToday"]]
    fit = [each for each in answer["curve"] if each["suspensions"] and each["regretShare"] <= 0.5]
    assert today == ["1h"]
    assert answer["recommendation"]["freedGpuHours"] == max(each["freedGpuHours"] for each in fit)
