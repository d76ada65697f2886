"""What `doctor` says of a metrics source, by the series that it shows."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from scaler.idleness.gpu import DEFAULT_SIGNALS
from scaler.idleness.policy import Trust
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.reporting.doctor.findings import Severity, Unread
from scaler.reporting.doctor.signals import Gpus, Read, Series, SourceSeries, metrics_findings

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OK, FAIL = Severity.OK, Severity.FAIL
ENGINE, UTIL = DEFAULT_SIGNALS


def series(uuid="GPU-1", pod="train-0", *, value=0.0, every=30.0, ends=NOW, name="", **labels):
    """Ten minutes of samples, one in so many seconds."""
    last, count = ends.timestamp(), int(600 / every)
    samples = [(last - every * back, value) for back in reversed(range(count))]
    of_pod = {"namespace": "team", "pod": pod} if pod else {}
    return Series(labels={"__name__": name or ENGINE.metrics[0], "UUID": uuid, **of_pod, **labels}, samples=samples)


def overwritten(uuid="GPU-1", pod="train-0"):
    """As under `honorLabels: false`: the exporter's own pod in `pod`, the workload's in `exported_pod`."""
    return series(uuid, "dcgm-exporter-x", exported_pod=pod, exported_namespace="team", namespace="gpu-operator")


def metrics(*engine, util=None, gpus=None, server_time=None, trust=None):
    """What was read; unless given, `gpu_util` shows the same GPUs."""
    again = [Series(labels={**each.labels, "__name__": UTIL.metrics[0]}, samples=each.samples) for each in engine]
    return SourceSeries(
        reads={
            ENGINE.name: Read(signal=ENGINE, series=engine, server_time=server_time),
            UTIL.name: Read(signal=UTIL, series=again if util is None else util),
        },
        rules=DEFAULT_RULES,
        trust=trust or Trust(),
        gpus=gpus or Gpus(allocatable=1, pods=frozenset({("team", "train-0")})),
    )


def problems(read):
    """What is not in order: severity and check."""
    found = {f"{each.severity} {each.check}" for each in metrics_findings(read, NOW) if each.severity is not OK}
    return ", ".join(sorted(found))


TWO_GPUS = Gpus(allocatable=2, pods=frozenset({("team", "train-0")}))
TWO_KINDS = Gpus(allocatable=2, pods=frozenset({("team", "train-0"), ("team", "train-1")}))
MIG = {"GPU_I_ID": "1", "GPU_I_PROFILE": "1g.10gb"}
SHOWN = {
    "one GPU, as it has to be": (metrics(series()), ""),
    "labels that the exporter's target has overwritten are put right": (metrics(overwritten()), ""),
    "no series at all": (metrics(util=[]), "fail NoSeries"),
    "one of the two signals": (metrics(series(), util=[]), "fail NoSeries"),
    "series without samples": (metrics(replace(series(), samples=[]), util=[series()]), "fail NoSeries"),
    "no pods are named": (metrics(series(pod="")), "fail NoPods"),
    "no pods are named, and none hold GPUs": (metrics(series(pod=""), gpus=Gpus(allocatable=1)), ""),
    "the exporter's own pods are named": (metrics(series(pod="dcgm-exporter-x")), "fail OtherPods"),
    "a pod that holds GPUs is not shown": (
        metrics(series(), gpus=Gpus(allocatable=1, pods=frozenset({("team", "train-0"), ("team", "train-1")}))),
        "warn PodsNotShown",
    ),
    # 30 s / 60 s = 50 % of the intervals, and 80 % are needed.
    "samples twice as far apart as the settings say": (metrics(series(every=60)), "fail Sparse"),
    # 30 s / 37.5 s = 80 %
    "a little farther apart": (metrics(series(every=37.5)), ""),
    # 30 s / 38 s = 79 %
    "a little farther than that": (metrics(series(every=38)), "fail Sparse"),
    "farther apart, and few are needed": (
        metrics(series(every=60), trust=Trust(min_coverage_ratio=0.3)),
        "warn Sparse",
    ),
    "closer together than is collected": (metrics(series(every=15)), ""),
    "the newest sample as old as is tolerated": (metrics(series(ends=NOW - timedelta(seconds=90))), ""),
    "older than that": (metrics(series(ends=NOW - timedelta(seconds=91))), "fail Stale"),
    "a clock that is off": (metrics(series(), server_time=NOW - timedelta(seconds=17)), "fail ClockSkew"),
    "a clock that is off by less": (metrics(series(), server_time=NOW + timedelta(seconds=16)), ""),
    "a percentage where a ratio was declared": (metrics(series(value=57.0)), "fail WrongUnit"),
    "a ratio that is a little above 1": (metrics(series(value=1.01), util=[series(value=99)]), ""),
    "a blank is no value": (metrics(series(value=9.223372036854775794e18)), ""),
    "fewer GPUs than nodes offer": (metrics(series(), gpus=TWO_GPUS), "warn GPUsNotShown"),
    "a GPU that no pod holds counts, too": (metrics(series(), series("GPU-2", pod=""), gpus=TWO_GPUS), ""),
    "one device held by two pods": (metrics(series(), series(pod="train-1"), gpus=Gpus(allocatable=1)), "warn Shared"),
    "one device held by one pod after the other": (
        metrics(series(), series(pod="before", ends=NOW - timedelta(minutes=5))),
        "",
    ),
    "one device handed from one pod to another half a minute ago": (
        metrics(
            series(pod="before", ends=NOW - timedelta(seconds=30)),
            replace(series(), samples=[(NOW.timestamp(), 0.0)]),
        ),
        "",
    ),
    "a node that offers its GPUs more than once": (
        metrics(series(), gpus=Gpus(allocatable=4, shared_nodes=["n1"], pods=TWO_GPUS.pods)),
        "warn Shared",
    ),
    # 0 for ten minutes, while NVML says 99 %.
    "profiling that is stuck": (metrics(series(value=0), util=[series(value=99)]), "warn Disagree"),
    "both say that nothing is done": (metrics(series(value=0), util=[series(value=0)]), ""),
    "MIG instances, which have no utilisation": (metrics(series(**MIG), util=[]), ""),
    "MIG instances beside a whole GPU": (
        metrics(series(**MIG), series("GPU-2", "train-1"), util=[series("GPU-2", "train-1")], gpus=TWO_KINDS),
        "",
    ),
    "a whole GPU that lacks utilisation beside MIG instances": (
        metrics(series(**MIG), series("GPU-2", "train-1"), util=[], gpus=TWO_KINDS),
        "fail NoSeries",
    ),
    "nodes that may not be listed": (metrics(series(), gpus=Unread("403")), "warn NodesNotRead"),
}


@pytest.mark.parametrize(("read", "expected"), SHOWN.values(), ids=SHOWN.keys())
def test_a_source_is_judged_by_what_it_shows(read, expected):
    assert problems(read) == expected
    assert all(each.do for each in metrics_findings(read, NOW) if each.severity is FAIL)


def test_a_source_that_is_not_named_or_does_not_answer_is_problems():
    assert problems(Unread("none was named")) == "warn NotAsked"
    read = metrics(series())
    assert problems(replace(read, reads={**read.reads, UTIL.name: Unread("connection refused")})) == "fail NotRead"


def test_mig_instances_are_counted_and_what_is_not_expected_of_them_is_said():
    instances = [series(**MIG), series(**MIG | {"GPU_I_ID": "2"}, pod="train-1")]
    read = metrics(*instances, util=[series("GPU-9", pod="")], gpus=Gpus(allocatable=3))
    [mig] = [each for each in metrics_findings(read, NOW) if each.check == "MIG"]
    assert mig.what == "2 MIG instances are shown, for which gpu_util is not expected"


CONVENTIONS = {
    "the workload's": (metrics(series()), "pods are in pod and namespace (honorLabels)"),
    "the target's, with the workload's beside them": (metrics(overwritten()), "pods are in exported_* labels"),
    "the exporter's own, while no pod holds a GPU": (metrics(series(pod="exporter"), gpus=Gpus(allocatable=1)), ""),
}


@pytest.mark.parametrize(("read", "said"), CONVENTIONS.values(), ids=CONVENTIONS)
def test_how_labels_arrive_is_shown_where_some_pod_holds_a_gpu(read, said):
    by_check = {each.check: each.what for each in metrics_findings(read, NOW) if each.where != "signal gpu_util"}
    series = "DCGM_FI_PROF_GR_ENGINE_ACTIVE: 1 series, samples 30s apart"
    assert by_check["Shown"] == (f"{series}; {said}" if said else series)
    assert by_check["GPUs"] == "1 GPUs are shown, nodes offer 1"
