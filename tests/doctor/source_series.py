"""What a metrics source shows, for tests of `doctor`: GPUs, the pods that hold them, the counters of boards."""

from datetime import UTC, datetime, timedelta

import msgspec

from scaler.doctor.findings import Severity
from scaler.doctor.signals import Read, Series, SourceSeries, metrics_findings
from scaler.doctor.verdicts import Gpus
from scaler.idleness.gpu import BOARD_POWER, DEFAULT_SIGNALS, ENERGY
from scaler.idleness.pods import GpuPod, PodPhase
from scaler.idleness.policy import Trust
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.kube.objects.nodes import Node

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
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


def gpus(*names, allocatable=1, shared=(), **of_pod):
    """Pods of namespace `team` that run and hold a GPU each, on node n1 or as `NAME@NODE`, and the nodes."""
    replicas = {"nvidia.com/gpu.replicas": "4"}
    labels = {name: replicas if name in shared else {} for name in ("n1", "n2", *shared)}
    nodes = {name: msgspec.convert({"metadata": {"name": name, "labels": of}}, Node) for name, of in labels.items()}
    given = {"gpus": 1, "phase": PodPhase.RUNNING, "running_since": NOW - timedelta(hours=1), **of_pod}
    placed = {pod: node or "n1" for pod, _, node in (name.partition("@") for name in names)}
    pods = {("team", pod): GpuPod(namespace="team", name=pod, node=node, **given) for pod, node in placed.items()}
    return Gpus(allocatable=allocatable, nodes=nodes, pods=pods)


def counter(uuid="GPU-1", *, grows=True, every=30):
    """An energy counter of the last ten minutes."""
    samples = [(NOW.timestamp() - every * back, 5e12 - 1e6 * back * grows) for back in reversed(range(600 // every))]
    return Series(labels={"__name__": ENERGY.metrics[0], "UUID": uuid}, samples=samples)


def metrics(*engine, util=None, of=None, server_time=None, trust=None, energy=None, power=(), asked_every=None):
    """What was read; unless given, `gpu_util` shows the same GPUs, and each has a counter that grows."""
    again = [Series(labels={**each.labels, "__name__": UTIL.metrics[0]}, samples=each.samples) for each in engine]
    counters = [counter(each) for each in sorted({each.labels["UUID"] for each in (*engine, *(util or ()))})]
    return SourceSeries(
        reads={
            ENGINE.name: Read(signal=ENGINE, series=engine, server_time=server_time),
            UTIL.name: Read(signal=UTIL, series=again if util is None else util),
        },
        boards={
            ENERGY.name: Read(signal=ENERGY, series=counters if energy is None else energy),
            BOARD_POWER.name: Read(signal=BOARD_POWER, series=power),
        },
        rules=DEFAULT_RULES,
        trust=trust or Trust(),
        asked_every=asked_every,
        gpus=of or gpus("train-0"),
    )


def problems(read):
    """What is not in order: severity and check."""
    found = {
        f"{each.severity} {each.check}" for each in metrics_findings(read, NOW) if each.severity is not Severity.OK
    }
    return ", ".join(sorted(found))
