"""`simulate --since` against a real Prometheus with days of history: the same as from a file, and nothing twice."""

import json
import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from analysis.simulation.test_trace import COLUMNS, text_of, written
from app.cli.command import command
from prometheus_server import PrometheusServer, require_prometheus
from scaler_analysis.simulation.recordings.past_days import PastDays
from scaler_analysis.simulation.recordings.past_pods import facts_of, past_facts
from scaler_analysis.simulation.recordings.past_samples import (
    READS_AT_ONCE,
    PastPart,
    PastSamples,
    include,
    remove_unfinished,
    signal_folder,
)
from scaler_analysis.simulation.recordings.recording import Recording
from scripted_metrics import ScriptedSeries

from scaler.errors import ConfigurationError, SourceError
from scaler.idleness.gpu import Signal, Unit, identify
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import ReadError, ReadOutcome, SignalReading, VectorSample

DAYS = 2
HOUR = timedelta(hours=1)
END_S = int(time.time()) // 86_400 * 86_400
BEGIN_S = END_S - DAYS * 86_400
UTIL = Signal(name="gpu_util", metrics=("DCGM_FI_DEV_GPU_UTIL",), unit=Unit.PERCENT)
PODS = ("a", "b", "c", "night-off")
_HOURS_ON = range(6)
"""Of a day, in which there is the pod that is made anew each morning."""


def value(pod, at_s):
    """Work in the first minutes of every few hours, another rhythm for each pod; one is at work all day."""
    period = {"a": 7200, "b": 10_800, "c": 1, "night-off": 14_400}[pod]
    return 60 if at_s % period < 1800 else 0


def samples():
    for at_s in range(BEGIN_S, END_S, 60):
        for pod in PODS:
            is_off = pod == "night-off" and at_s % 86_400 // 3600 not in _HOURS_ON
            if not is_off and not (pod == "b" and 30_000 < at_s - BEGIN_S < 31_200):
                yield at_s, pod, value(pod, at_s)


def openmetrics():
    lines = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    lines += [
        f'DCGM_FI_DEV_GPU_UTIL{{exported_namespace="team",exported_pod="{pod}",namespace="gpu-operator",pod="dcgm-1",'
        f'UUID="GPU-{pod}",modelName="H100"}} {found} {at_s}'
        for at_s, pod, found in sorted(samples(), key=lambda each: each[1])
    ]
    lines += [
        f'DCGM_FI_DEV_GPU_UTIL{{namespace="gpu-operator",pod="dcgm-1",UUID="GPU-free",modelName="H100"}} 0 {at_s}'
        for at_s in range(BEGIN_S, END_S, 60)
    ]
    lines += ["# TYPE kube_pod_owner gauge"]
    owners = (("a", "Job", "train-0"), ("b", "Job", "train-0"), ("c", "ReplicaSet", "web-1"))
    lines += [
        f'kube_pod_owner{{namespace="team",pod="{pod}",owner_kind="{kind}",owner_name="{name}"}} 1 {at_s}'
        for pod, kind, name in owners
        for at_s in range(BEGIN_S, END_S, 240)
    ]
    lines += ["# TYPE kube_replicaset_owner gauge"]
    lines += [
        'kube_replicaset_owner{namespace="team",replicaset="web-1",owner_kind="Deployment",owner_name="web"} '
        f"1 {at_s}"
        for at_s in range(BEGIN_S, END_S, 240)
    ]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    require_prometheus()
    folder = tmp_path_factory.mktemp("prometheus")
    server = PrometheusServer(folder, flags=["--storage.tsdb.retention.time=90d", "--query.max-samples=4000"])
    server.backfill(openmetrics())
    with server:
        yield server


def settings(folder):
    path = folder / "settings.yaml"
    document = {
        "signals": [{"name": "gpu_util", "metrics": ["DCGM_FI_DEV_GPU_UTIL"], "unit": "percent"}],
        "trust": {"collectionInterval": "60s"},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def of_day(pod, at_s):
    """Its name in a file, which tells pods of one name apart."""
    number = (at_s - BEGIN_S) // 86_400 + 1
    return f"{pod}#{number}" if pod == "night-off" and number > 1 else pod


@pytest.mark.prometheus
def test_the_answer_is_the_same_as_from_a_file(prometheus, tmp_path):
    """The server refuses more than 4,000 samples, and a part of a day has 4,320: parts are read in halves."""
    owner = {"a": "Job/train-0", "b": "Job/train-0", "c": "Deployment/web", "night-off": "Pod/night-off"}
    rows = [
        (at_s, "team", of_day(pod, at_s), f"GPU-{pod}", "gpu_util", found, owner[pod]) for at_s, pod, found in samples()
    ]
    path = written(tmp_path, text_of(rows, (*COLUMNS, "owner")))
    config = ("--config", settings(tmp_path), "--json")
    flags = (*config, "--idle-after", "30m,60m", "--no-curve")
    from_file = command("simulate", "--trace", str(path), *flags).json
    past = ("--prometheus-url", prometheus.url, "--since", f"{DAYS + 1}d", "--cache", str(tmp_path / "cache"))
    from_source = command("simulate", *past, *flags).json
    assert from_source["policies"] == from_file["policies"]
    assert from_source["published"] == from_file["published"]
    assert {each: from_source["trace"][each] for each in ("begin", "end", "samples", "pods", "workloads")} == {
        each: from_file["trace"][each] for each in ("begin", "end", "samples", "pods", "workloads")
    }
    assert sum(each["suspensions"] for each in from_file["policies"]) > 10
    gangs_from_file = command("simulate", "--trace", str(path), *config, "--gpus", "2").json
    gangs = command("simulate", *past, *config, "--gpus", "2").json
    assert gangs | {"notes": []} == gangs_from_file
    assert (gangs["jobs"], gangs["sessions"], len(gangs["notes"])) == (4, 3, 3)
    assert from_source["trace"]["pods"] == len(PODS) + DAYS - 1


class Counting:
    """A source that counts what it is asked for, and fails after so many reads."""

    def __init__(self, source, fails_after=10**6):
        self._source, self._fails_after = source, fails_after
        self.asked: list[tuple[float, float]] = []
        self.under_way = self.most = 0

    async def read(self, signal, *, start, end):
        if len(self.asked) >= self._fails_after:
            raise ReadError(ReadOutcome.UNREACHABLE, "the connection failed")
        self.asked.append((start.timestamp(), end.timestamp()))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self._source.read(signal, start=start, end=end)
        finally:
            self.under_way -= 1

    async def demand(self, promql, *, at):
        return await self._source.demand(promql, at=at)


@pytest.mark.prometheus
async def test_what_was_interrupted_is_resumed_without_asking_twice(prometheus, tmp_path):
    source = PrometheusSource(PrometheusConfig(url=prometheus.url, timeout=timedelta(seconds=30)))
    begin, end = (datetime.fromtimestamp(each, UTC) for each in (BEGIN_S, END_S))
    try:
        asked = []
        for fails_after in (5, 9, 10**6):
            counting = Counting(source, fails_after)
            past = PastSamples(counting, tmp_path, [UTIL], interval=timedelta(seconds=60))
            (tmp_path / signal_folder(UTIL)).mkdir(exist_ok=True)
            (tmp_path / signal_folder(UTIL) / "length").write_text("7200", encoding="utf-8")
            parts, shares = await past.parts(begin, end), []
            try:
                await past.fetch(parts, progress=shares.append)
            except SourceError:
                assert fails_after < 10**6
            assert counting.most <= READS_AT_ONCE
            asked += counting.asked
    finally:
        await source.close()
    assert shares[-1] == 1.0
    assert sorted(asked) == [(float(at), float(at + 7200)) for at in range(BEGIN_S, END_S, 7200)]


@pytest.mark.prometheus
async def test_a_part_of_which_the_source_had_nothing_is_asked_for_again(prometheus, tmp_path):
    """A Thanos without a store answers as if there were no samples."""
    source = PrometheusSource(PrometheusConfig(url=prometheus.url, timeout=timedelta(seconds=30)))
    past = PastSamples(source, tmp_path, [UTIL], interval=timedelta(seconds=60))
    before, end = (datetime.fromtimestamp(each, UTC) for each in (BEGIN_S - 14_400, BEGIN_S + 7200))
    (tmp_path / signal_folder(UTIL)).mkdir()
    (tmp_path / signal_folder(UTIL) / "length").write_text("7200", encoding="utf-8")
    try:
        await past.fetch(await past.parts(before, end))
    finally:
        await source.close()
    assert [each.is_there for each in await past.parts(before, end)] == [False, True, True]


async def test_samples_that_are_yet_to_come_are_no_measurements(tmp_path):
    """They would be the recording's end: milliseconds read as seconds are 50,000 years ahead."""
    labels = {"__name__": UTIL.metrics[0], "namespace": "team", "pod": "a", "UUID": "GPU-a"}

    class Ahead:
        async def read(self, signal, *, start, end):
            inside, at_s = end.timestamp() - 60, end.timestamp()
            return SignalReading([ScriptedSeries(labels, [(inside, 0.0), (1000 * at_s, 0.0), (at_s + 1, 0.0)])], None)

    past = PastSamples(Ahead(), tmp_path, [UTIL], interval=timedelta(seconds=60))
    parts = await past.parts(*(datetime.fromtimestamp(each, UTC) for each in (BEGIN_S, BEGIN_S + 600)))
    await past.fetch(parts)
    recording = Recording(folder=tmp_path)
    include(parts, recording, identify)
    assert (recording.samples, recording.blanks) == (1, 2)


async def test_each_metric_is_recorded_as_a_ratio_of_its_own_unit(tmp_path):
    mixed = Signal(name="gpu_util", metrics=("OLD", "NEW"), unit=Unit.PERCENT, units=(Unit.PERCENT, Unit.RATIO))
    values = {"OLD": 40.0, "NEW": 0.7}

    class Two:
        async def read(self, signal, *, start, end):
            labels = [{"__name__": x, "namespace": "team", "pod": x, "UUID": x} for x in signal.metrics]
            return SignalReading([ScriptedSeries(x, [(BEGIN_S + 60, values[x["pod"]])]) for x in labels], None)

    past = PastSamples(Two(), tmp_path, [mixed], interval=timedelta(seconds=60))
    parts = await past.parts(*(datetime.fromtimestamp(each, UTC) for each in (BEGIN_S, BEGIN_S + 600)))
    await past.fetch(parts)
    recording = Recording(folder=tmp_path)
    include(parts, recording, identify)
    [(_, found)] = recording.steps()
    names = [each.gpu.pod for each in recording.series]
    assert dict(zip([names[n] for n in found["gpu_util"].series], found["gpu_util"].ratios.tolist(), strict=True)) == {
        "OLD": pytest.approx(0.4),
        "NEW": pytest.approx(0.7),
    }
    assert {each.gpu.pod: each.is_percent for each in recording.series} == {"OLD": True, "NEW": False}


def test_owners_are_followed_to_the_top_workload():
    said = {
        "pod_owner": [
            {"namespace": "n", "pod": "web-1-x", "owner_kind": "ReplicaSet", "owner_name": "web-1"},
            {"namespace": "n", "pod": "train-0-x", "owner_kind": "Job", "owner_name": "train-0"},
            {"namespace": "n", "pod": "nightly-7-x", "owner_kind": "Job", "owner_name": "nightly-7"},
            {"namespace": "n", "pod": "bare", "owner_kind": "<none>", "owner_name": "<none>"},
        ],
        "replicaset_owner": [
            {"namespace": "n", "replicaset": "web-1", "owner_kind": "Deployment", "owner_name": "web"},
            {"namespace": "other", "replicaset": "web-1", "owner_kind": "Rollout", "owner_name": "web"},
        ],
        "job_owner": [
            {"namespace": "n", "job_name": "train-0", "owner_kind": "JobSet", "owner_name": "train"},
            {"namespace": "n", "job_name": "nightly-7", "owner_kind": "CronJob", "owner_name": "nightly"},
        ],
        "gpus": [{"namespace": "n", "pod": "train-0-x", "value": "8"}],
        "queue": [{"namespace": "n", "pod": "bare", "label_kueue_x_k8s_io_queue_name": "research"}],
    }
    found = {pod: (facts.owner, facts.gpus, facts.queue) for (_, pod), facts in facts_of(said).items()}
    assert found == {
        "web-1-x": ("Deployment/web", 0, ""),
        "train-0-x": ("JobSet/train", 8, ""),
        "nightly-7-x": ("Job/nightly-7", 0, ""),
        "bare": ("", 0, "research"),
    }


class Answers:
    """A source whose answers say what they are about."""

    def __init__(self):
        self.asked = []

    async def demand(self, promql, *, at):
        self.asked.append(promql)
        labels = {"namespace": "n", "pod": "a", "owner_kind": "Job", "owner_name": "j"}
        return [VectorSample(labels | {"pod": pod}, 1) for pod in "ab"] if "kube_pod_owner" in promql else []


async def test_pods_are_asked_about_once_a_day_and_anew_where_other_resources_are_gpus(tmp_path):
    source, noon = Answers(), datetime(2026, 11, 2, 12, tzinfo=UTC)
    for end, resource, days in ((noon, "x/gpu", 2), (noon, "x/gpu", 0), (noon, "y/gpu", 2), (noon + HOUR, "y/gpu", 1)):
        pods = PastDays(source=source, folder=tmp_path, gpu_resources=[resource], matchers={"cluster": "\U0001f600"})
        found = await past_facts(pods, noon - timedelta(days=1), end, {("n", "a")})
        assert {key: facts.owner for key, facts in found.items()} == {("n", "a"): "Job/j"}
        assert sum("kube_pod_owner" in each for each in source.asked) == days
        assert all('cluster="\U0001f600"' in each for each in source.asked)
        source.asked.clear()
    assert len([*tmp_path.rglob("*.json")]) == 2 + 2


def test_each_source_and_each_way_to_ask_it_has_parts_of_its_own(tmp_path):
    """What Thanos says without `thanos: true` may be averages, another tenant's samples are another cluster's."""
    folders = set()
    more = [
        {},
        {"thanos": True},
        {"headers": {"X-Scope-OrgID": "b"}},
        {"matchers": {"cluster": "b"}},
        {"timeout": "1s"},
    ]
    for each in more:
        path = tmp_path / "s.yaml"
        path.write_text(json.dumps({"prometheus": {"url": "http://127.0.0.1:1", "attempts": 1, **each}}))
        done = command("simulate", "--since", "1d", "--config", str(path), "--cache", str(tmp_path / "cache"))
        assert done.status == 2
        folders.add(frozenset(each.name for each in (tmp_path / "cache").iterdir()))
    assert sorted(map(len, folders)) == [1, 2, 3, 4]


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    done = command(
        "simulate", "--since", "1d", "--prometheus-url", "http://127.0.0.1:1", "--cache", str(tmp_path / "file")
    )
    assert (done.status, "samples cannot be kept there: Not a directory; choose --cache" in done.err) == (2, True)


def test_what_a_killed_program_has_left_is_removed_and_what_another_one_writes_is_not(tmp_path):
    names = {"0-7200.samples.17.part": 3601, "0-7200.samples.18.part": 3599, "0-3600.series": 90_000}
    for name, age_s in names.items():
        path = tmp_path / "gpu_util" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("", encoding="utf-8")
        os.utime(path, (END_S - age_s, END_S - age_s))
    remove_unfinished(tmp_path, datetime.fromtimestamp(END_S, UTC))
    assert {each.name for each in (tmp_path / "gpu_util").iterdir()} == set(names) - {"0-7200.samples.17.part"}


def test_a_part_whose_samples_were_removed_is_named(tmp_path):
    part = PastPart(
        signal=UTIL, begin=datetime.fromtimestamp(0, UTC), end=datetime.fromtimestamp(600, UTC), folder=tmp_path
    )
    part.series_path.write_text(json.dumps({"labels": [], "blanks": 0}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"0-600\.series: its samples cannot be read .*; remove it"):
        include([part], Recording(folder=tmp_path), lambda _: None)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "write either --trace FILE or --since 30d"),
        (("--since", "30"), "'30' is not a duration"),
        (("--since", "1m", "--prometheus-url", "http://localhost:1"), "write at least '10m' and at most '400d'"),
        (("--since", "800000d", "--prometheus-url", "http://localhost:1"), "write at least '10m' and at most '400d'"),
        (
            ("--since", "9999999999d", "--prometheus-url", "http://localhost:1"),
            "write at least '10m' and at most '400d'",
        ),
        (("--since", "1d"), "--since needs prometheus.url"),
    ],
)
def test_flags_that_name_no_source_are_refused(tmp_path, flags, words):
    done = command("simulate", "--cache", str(tmp_path), *flags)
    assert done.status == 2
    assert words in done.err
