"""What `doctor` says of evidence that the decision refuses, and of GPUs that are held and unused."""

from dataclasses import replace
from datetime import timedelta

import pytest
from doctor.source_series import ENGINE, NOW, counter, gpus, metrics, problems, series

from scaler.doctor.findings import Severity, Topic
from scaler.doctor.signals import metrics_findings
from scaler.doctor.verdicts import Doubted, by_reason, unused
from scaler.idleness.gpu import BOARD_POWER
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.reasons import UnknownReason

MIG = {"GPU_I_ID": "1", "GPU_I_PROFILE": "1g.10gb"}
ONE = gpus("a")
TWO = gpus("a", "b@n2", allocatable=2)
BOTH = [series("GPU-1", "a", Hostname="n1"), series("GPU-2", "b", Hostname="n2")]
TRUSTED = Trust(single_witness=True)


def alone(*engine, **more):
    """With one signal in the settings."""
    read = metrics(*engine, util=[], **more)
    return replace(read, reads={ENGINE.name: read.reads[ENGINE.name]})


def elsewhere(pod="x", **labels):
    """A pod of a host that is no Node here."""
    return series(f"GPU-{pod}", pod, Hostname="gpu-7.other.example", **labels)


def drawing(watts):
    return replace(series("GPU-1", "", value=watts), labels={"__name__": BOARD_POWER.metrics[0], "UUID": "GPU-1"})


REFUSED = {
    # A3
    "two clusters in one source": (metrics(*BOTH, elsewhere(), of=TWO), "warn OtherCluster"),
    "the other one has a pod of the same name beside others": (
        metrics(*BOTH, elsewhere(), elsewhere("a"), of=TWO),
        "warn OtherCluster",
    ),
    "the other one has a pod of the same name and no other": (
        metrics(*BOTH, elsewhere("a"), of=TWO),
        "warn UnexpectedGPUs",
    ),
    "the other one has gone": (metrics(*BOTH, elsewhere(ends=NOW - timedelta(minutes=3)), of=TWO), "warn Stale"),
    "hosts without their domains": (
        metrics(series("GPU-1", "a", Hostname="n1.example"), of=ONE),
        "",
    ),
    "exporters that name their own pods as hosts": (
        metrics(
            series("GPU-1", "a", Hostname="exporter-x"), series("GPU-2", "b", Hostname="exporter-x"), of=gpus("a", "b")
        ),
        "",
    ),
    "nodes are not read": (metrics(*BOTH, elsewhere(), of=replace(TWO, allocatable=None, nodes={})), ""),
    # A4
    "one signal in the settings, and no counter": (alone(*BOTH, of=TWO, energy=[]), "fail SingleWitness"),
    "one signal, no counter, and it is enough": (
        alone(*BOTH, of=TWO, energy=[], trust=TRUSTED),
        "warn SingleWitness",
    ),
    "one signal, and a counter of one board": (
        alone(*BOTH, of=TWO, energy=[counter("GPU-1")]),
        "warn SingleWitness",
    ),
    "one signal, and counters": (alone(*BOTH, of=TWO), ""),
    "one signal, one scrape, and counters": (
        alone(
            *(replace(each, samples=each.samples[-1:]) for each in BOTH),
            of=TWO,
            energy=[replace(counter(each), samples=counter().samples[-1:]) for each in ("GPU-1", "GPU-2")],
        ),
        "",
    ),
    "a counter that cannot be read": (
        alone(series("GPU-1", "a"), of=ONE, energy=[replace(counter(), samples=[(NOW.timestamp(), 2.0**63)])]),
        "fail SingleWitness",
    ),
    "two signals, and no counter": (metrics(*BOTH, of=TWO, energy=[]), ""),
    "MIG instances without a counter": (
        metrics(series("GPU-1", "a", **MIG), util=[], energy=[], of=ONE),
        "fail SingleWitness",
    ),
    # A4, power
    "MIG instances are quiet and the board is at work": (
        metrics(series("GPU-1", "a", **MIG), util=[series("GPU-9", "")], power=[drawing(381)], of=ONE),
        "warn SignalsDisagree",
    ),
    "MIG instances are quiet and so is the board": (
        metrics(series("GPU-1", "a", **MIG), util=[series("GPU-9", "")], power=[drawing(60)], of=ONE),
        "",
    ),
    "MIG instances beside the series of their boards": (
        metrics(series("GPU-1", "a", **MIG), series("GPU-1", ""), util=[], energy=[], of=ONE),
        "fail SingleWitness",
    ),
    # A5
    "a page that stands still": (
        metrics(*BOTH, of=TWO, energy=[counter("GPU-1"), counter("GPU-2", grows=False)]),
        "warn FrozenExporter",
    ),
    "all pages stand still": (
        metrics(*BOTH, of=TWO, energy=[counter(each, grows=False) for each in ("GPU-1", "GPU-2")]),
        "fail FrozenExporter",
    ),
    # A6
    "a lone holder, and the device shows work": (
        metrics(*BOTH, series("GPU-1", "", value=0.97), util=[*BOTH, series("GPU-1", "", value=97)], of=TWO),
        "warn SignalsDisagree",
    ),
    "a lone holder of a node that offers its GPUs more than once": (
        metrics(series("GPU-1", "a"), of=gpus("a", shared=["n1"])),
        "warn SharedGPU",
    ),
    "nobody on such a node": (metrics(series("GPU-1", ""), of=gpus(shared=["n1"])), "warn SharedGPU"),
    "two pods that hold GPUs": (
        metrics(series("GPU-1", "a"), series("GPU-1", "b"), *BOTH[1:], of=gpus("a", "b", "c")),
        "warn PodsNotShown, warn SharedGPU",
    ),
    "a pod and the exporter's own": (metrics(series("GPU-1", "a"), series("GPU-1", "exporter"), of=ONE), ""),
    "a pod, and one that is gone": (
        metrics(series("GPU-1", "a"), series("GPU-1", "before"), of=ONE),
        "",
    ),
    # What single pods lack
    "a hole in the samples of one pod": (
        metrics(BOTH[0], replace(BOTH[1], samples=[*BOTH[1].samples[:5], *BOTH[1].samples[14:]]), of=TWO),
        "warn SampleGap",
    ),
    "a hole in all": (
        metrics(*(replace(each, samples=[*each.samples[:5], *each.samples[14:]]) for each in BOTH), of=TWO),
        "warn SampleGap",
    ),
    "a pod that has just started": (
        metrics(
            replace(series("GPU-1", "a"), samples=series().samples[-4:]),
            of=gpus("a", running_since=NOW - timedelta(minutes=2)),
        ),
        "",
    ),
    "all samples are old, which is said of the signals": (
        metrics(series("GPU-1", "a", ends=NOW - timedelta(minutes=3)), of=ONE),
        "fail Stale",
    ),
    # Others
    "a pod that shows fewer GPUs than it holds": (
        metrics(series("GPU-1", "a"), of=gpus("a", gpus=2)),
        "warn MissingGPUs",
    ),
    "a pod that claims its GPU": (
        metrics(*BOTH, of=replace(TWO, pods=TWO.pods | gpus("b", gpus=0, cause="claims devices (gpu)").pods)),
        "warn NoGPUPods",
    ),
}


@pytest.mark.parametrize(("read", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_evidence_that_the_decision_refuses_is_named(read, expected):
    assert problems(read) == expected
    assert all(each.do for each in metrics_findings(read, NOW) if each.severity is not Severity.OK)


def test_what_is_said_of_a_reason_names_pods_gpus_and_what_helps():
    frozen = metrics(*BOTH, of=TWO, energy=[counter(each, grows=False) for each in ("GPU-1", "GPU-2")])
    [found] = [each for each in metrics_findings(frozen, NOW) if each.severity is not Severity.OK]
    assert (found.where, found.what, found.do) == (
        "pod team/a, pod team/b",
        "2 of 2; the first: GPU GPU-1: the energy counter of the GPU does not grow, as it does even while idle: the "
        "exporter repeats an old page",
        "restart the exporter, or DCGM's host engine, on its Node",
    )


ENDS_BY_ITSELF = {UnknownReason.COLD_START, UnknownReason.SUSPENDING}
FOUND_OTHERWISE = {UnknownReason.REMOTE_COPY}


@pytest.mark.parametrize("reason", UnknownReason)
def test_every_reason_not_to_judge_is_a_finding_but_for_what_ends_by_itself(reason):
    found = [*by_reason(Topic.METRICS, [Doubted(reason, "pod team/a", "why")], of=2)]
    assert bool(found) == (reason not in ENDS_BY_ITSELF | FOUND_OTHERWISE)
    assert all(each.do for each in found)


# 10 min of warmUp and 1 h of idleAfter by default.
LONG, SHORT = NOW - timedelta(minutes=70), NOW - timedelta(minutes=69)
CRASHES = {"running_since": None, "cause": "container main waits: CrashLoopBackOff"}
HELD = {
    "it runs": ({}, ""),
    "it crashes for long": (CRASHES | {"started_at": LONG}, "warn PodsNotRunning: " + CRASHES["cause"]),
    "it crashes for less": (CRASHES | {"started_at": SHORT}, ""),
    "it is not on a node, and holds nothing": (CRASHES | {"started_at": LONG, "node": ""}, ""),
    "it holds no GPU": (CRASHES | {"started_at": LONG, "gpus": 0}, ""),
    "its container has ended beside a sidecar": (
        {"ended": "container main has ended: Completed, exit code 0"},
        "warn ContainerEnded: container main has ended: Completed, exit code 0",
    ),
}


@pytest.mark.parametrize(("pod", "expected"), HELD.values(), ids=HELD.keys())
def test_gpus_that_are_held_and_unused_are_named_with_their_pod(pod, expected):
    known = gpus("a")
    held = {key: replace(each, **pod) for key, each in known.pods.items()}
    found = [*by_reason(Topic.SCALED_OBJECTS, [], also=unused(replace(known, pods=held), Policy(), NOW))]
    assert ", ".join(f"{each.severity} {each.check}: {each.what}" for each in found) == expected
    assert all(each.where == "pod team/a" and each.do for each in found)
