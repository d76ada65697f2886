"""What `doctor` says of a metrics source, by the series that it shows."""

from dataclasses import replace
from datetime import timedelta

import pytest
from doctor.source_series import NOW, UTIL, counter, gpus, metrics, overwritten, problems, series

from scaler.doctor.findings import Severity, Unread
from scaler.doctor.signals import Read, metrics_findings
from scaler.idleness.gpu import Signal, Unit
from scaler.idleness.policy import Trust

OK, FAIL = Severity.OK, Severity.FAIL


def late(host):
    return series("GPU-2", "train-1", ends=NOW - timedelta(seconds=300), Hostname=host)


TWO_GPUS = gpus("train-0", allocatable=2)
TWO_PODS = gpus("train-0", "train-1@n2", allocatable=2)
NOBODY = gpus()
MIG = {"GPU_I_ID": "1", "GPU_I_PROFILE": "1g.10gb"}


def present(age_s, *, asked_s):
    """One sample of each signal, as an exporter that is asked directly shows it."""
    alone = replace(series(), samples=[(NOW.timestamp() - age_s, 0.0)])
    return metrics(alone, energy=[counter(every=600)], asked_every=timedelta(seconds=asked_s))


SHOWN = {
    "one GPU, as it has to be": (metrics(series()), ""),
    "labels that the exporter's target has overwritten are put right": (metrics(overwritten()), ""),
    "no series at all": (metrics(util=[]), "fail NoSeries"),
    "one of the two signals": (metrics(series(), util=[]), "fail NoSeries"),
    "series without samples": (metrics(replace(series(), samples=[]), util=[series()]), "fail NoSeries"),
    "no pods are named": (metrics(series(pod="")), "fail NoPods"),
    "no pods are named, and none hold GPUs": (metrics(series(pod=""), of=NOBODY), ""),
    "the exporter's own pods are named": (metrics(series(pod="dcgm-exporter-x")), "fail OtherPods"),
    "a pod that holds GPUs is not shown": (
        metrics(series(), of=gpus("train-0", "train-1")),
        "warn PodsNotShown",
    ),
    # 30 s / 60 s = 50 % of the intervals, and 80 % are needed.
    "samples twice as far apart as the settings say": (metrics(series(every=60)), "fail Sparse"),
    # 1.74 intervals: no whole collection fits between two.
    "a little farther apart than they are collected": (metrics(series(every=52.3)), ""),
    # 1.76 intervals: one does.
    "so far apart that one is missed": (metrics(series(every=52.7)), "fail Sparse"),
    "farther apart, and few are needed": (
        metrics(series(every=60), trust=Trust(min_coverage_ratio=0.3)),
        "warn Sparse",
    ),
    "the present alone, asked for as often as is collected": (present(0, asked_s=30), ""),
    "the present alone, asked for too rarely": (present(0, asked_s=60), "fail Sparse"),
    "the present alone, of an exporter that collects too rarely": (present(58, asked_s=15), "fail Sparse"),
    "the present alone, of one that may": (present(28, asked_s=15), ""),
    "the present alone, of one that is silent": (present(200, asked_s=15), "fail Stale"),
    "closer together than is collected": (metrics(series(every=15)), ""),
    "the newest sample as old as is tolerated": (metrics(series(ends=NOW - timedelta(seconds=90))), ""),
    "older than that": (metrics(series(ends=NOW - timedelta(seconds=91))), "fail Stale"),
    "no older than they are apart": (
        metrics(series(every=150, ends=NOW - timedelta(seconds=140))),
        "fail Sparse",
    ),
    "one host of two is late": (
        metrics(series(Hostname="n1"), late("n2"), of=TWO_PODS),
        "warn Stale",
    ),
    "a clock that is off": (metrics(series(), server_time=NOW - timedelta(seconds=17)), "fail ClockSkew"),
    "a clock that is off by less": (metrics(series(), server_time=NOW + timedelta(seconds=16)), ""),
    "one sample of tomorrow": (
        metrics(replace(series(), samples=[*series().samples, (NOW.timestamp() + 86_400, 0.0)])),
        "fail ClockSkew",
    ),
    "milliseconds taken for seconds": (
        metrics(replace(series(), samples=[(1000 * at, value) for at, value in series().samples])),
        "fail ClockSkew, fail Sparse",
    ),
    "a sample that is ahead by less": (metrics(series(ends=NOW + timedelta(seconds=15))), ""),
    "a percentage where a ratio was declared": (metrics(series(value=57.0)), "fail WrongUnit"),
    "a ratio where a percentage was declared": (
        metrics(series(value=0.74), util=[series(value=0.74)]),
        "fail WrongUnit, warn SignalsDisagree",
    ),
    "a percentage of 1": (metrics(series(value=0.01), util=[series(value=1)]), ""),
    "one name of two in another unit": (
        metrics(
            series(),
            series("GPU-2", "train-1"),
            util=[series(value=9), series("GPU-2", "train-1", value=0.7, name="NEW")],
            of=TWO_PODS,
        ),
        "fail SignalsDisagree, fail WrongUnit",
    ),
    "a ratio that is a little above 1": (metrics(series(value=1.01), util=[series(value=99)]), ""),
    "a blank is no value": (metrics(series(value=9.223372036854775794e18)), "warn NoSamples"),
    "fewer GPUs than nodes offer": (metrics(series(), of=TWO_GPUS), "warn GPUsNotShown"),
    "a GPU that no pod holds counts, too": (metrics(series(), series("GPU-2", pod=""), of=TWO_GPUS), ""),
    "one device held by two pods": (
        metrics(series(), series(pod="train-1"), of=gpus("train-0", "train-1")),
        "fail SharedGPU",
    ),
    "one device held by one pod after the other": (
        metrics(series(), series(pod="before", ends=NOW - timedelta(minutes=5))),
        "",
    ),
    "one device handed from one pod to another half a minute ago": (
        metrics(
            series(pod="before", ends=NOW - timedelta(seconds=30)),
            replace(series(), samples=[(NOW.timestamp(), 0.0)]),
            of=gpus("train-0", running_since=NOW - timedelta(seconds=30)),
        ),
        "",
    ),
    "a node that offers its GPUs more than once": (
        metrics(series(), of=gpus("train-0", allocatable=4, shared=["n1"])),
        "warn SharedGPU",
    ),
    # 0 for ten minutes, while NVML says 99 %.
    "profiling that is stuck": (metrics(series(value=0), util=[series(value=99)]), "warn SignalsDisagree"),
    "both say that nothing is done": (metrics(series(value=0), util=[series(value=0)]), ""),
    "MIG instances, which have no utilisation": (metrics(series(**MIG), util=[]), ""),
    "MIG instances beside a whole GPU": (
        metrics(series(**MIG), series("GPU-2", "train-1"), util=[series("GPU-2", "train-1")], of=TWO_PODS),
        "",
    ),
    "a whole GPU that lacks utilisation beside MIG instances": (
        metrics(series(**MIG), series("GPU-2", "train-1"), util=[], of=TWO_PODS),
        "fail NoSeries",
    ),
    "nodes that may not be listed": (metrics(series(), of=Unread("403")), "warn NodesNotRead"),
}


BY_METRIC = Signal(name="gpu_util", metrics=("OLD", "NEW"), unit=Unit.PERCENT, units=(Unit.PERCENT, Unit.RATIO))


@pytest.mark.parametrize(
    ("old", "new", "engine", "expected"),
    [
        (70, 0.7, 0.7, ""),
        (0.7, 0.004, 0, "fail WrongUnit, warn SignalsDisagree"),
        (70, 70, 0.7, "fail WrongUnit"),
        (0, 0, 0, ""),
        (0, 0.004, 0, ""),
        (0, 0.7, 0, "warn SignalsDisagree"),
        (70, 0, 0, "warn SignalsDisagree"),
    ],
)
def test_each_metric_is_held_against_its_own_unit(old, new, engine, expected):
    util = [series(value=old, name="OLD"), series("GPU-2", "train-1", value=new, name="NEW")]
    shown = metrics(series(value=engine), series("GPU-2", "train-1", value=engine), util=util, of=TWO_PODS)
    assert problems(replace(shown, reads={**shown.reads, "gpu_util": Read(signal=BY_METRIC, series=util)})) == expected


@pytest.mark.parametrize(("read", "expected"), SHOWN.values(), ids=SHOWN.keys())
def test_a_source_is_judged_by_what_it_shows(read, expected):
    assert problems(read) == expected
    assert all(each.do for each in metrics_findings(read, NOW) if each.severity is FAIL)


@pytest.mark.parametrize(("hosts", "severity"), [(["n1"], "warn"), ([], "fail")])
def test_a_delay_is_named_with_its_host_and_not_taken_for_an_interval(hosts, severity):
    """Samples 30 s apart that come five minutes late: another collectionInterval would only hide holes."""
    read = metrics(*(series(Hostname=host) for host in hosts), late("n2"), of=TWO_PODS)
    stale = next(each for each in metrics_findings(read, NOW) if each.check == "Stale")
    assert (stale.severity, stale.what) == (severity, "samples are late: n2 by 5m; 1m30s are tolerated")
    assert "trust.maxAgeIntervals to 11" in stale.do
    assert "collectionInterval" not in stale.do


def test_a_source_that_is_not_named_or_does_not_answer_is_problems():
    assert problems(Unread("none was named")) == "warn NotAsked"
    read = metrics(series())
    assert problems(replace(read, reads={**read.reads, UTIL.name: Unread("connection refused")})) == "fail NotRead"


def test_mig_instances_are_counted_and_what_is_not_expected_of_them_is_said():
    instances = [series(**MIG), series(**MIG | {"GPU_I_ID": "2"}, pod="train-1")]
    read = metrics(*instances, util=[series("GPU-9", pod="")], of=gpus(allocatable=3))
    [mig] = [each for each in metrics_findings(read, NOW) if each.check == "MIG"]
    assert mig.what == "2 MIG instances are shown, for which gpu_util is not expected"


CONVENTIONS = {
    "the workload's": (metrics(series()), "pods are in pod and namespace (honorLabels)"),
    "the target's, with the workload's beside them": (metrics(overwritten()), "pods are in exported_* labels"),
    "the exporter's own, while no pod holds a GPU": (metrics(series(pod="exporter"), of=NOBODY), ""),
}


@pytest.mark.parametrize(("read", "said"), CONVENTIONS.values(), ids=CONVENTIONS)
def test_how_labels_arrive_is_shown_where_some_pod_holds_a_gpu(read, said):
    by_check = {each.check: each.what for each in metrics_findings(read, NOW) if each.where != "signal gpu_util"}
    series = "DCGM_FI_PROF_GR_ENGINE_ACTIVE: 1 series, samples 30s apart"
    assert by_check["Shown"] == (f"{series}; {said}" if said else series)
    assert by_check["GPUs"] == "1 GPUs are shown, nodes offer 1"


def test_a_collection_interval_that_is_too_short_is_said_with_what_helps():
    [found] = [each for each in metrics_findings(present(0, asked_s=60), NOW) if each.check == "Sparse"][:1]
    assert found.what.startswith("samples are 1m apart, and trust.collectionInterval is 30s: they cover 50%")
    assert found.do == "set trust.collectionInterval to 1m, or scrape more often"
