"""Values of the core and objects of the API with every field filled in, so that a test names only what it is about.

Times are counted from one noon: `at(30)` is half a minute after it, `at(-3600)` an hour before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from scaler.decision.candidate import next_line
from scaler.decision.decision import Active, Answer, Decision, Inactive
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation, Key
from scaler.decision.reasons import DecisionReason
from scaler.idleness.gpu import DEFAULT_SIGNALS, GpuId, GpuSeries, Signal, Unit
from scaler.idleness.history import History
from scaler.idleness.pods import GpuPod, PodPhase
from scaler.idleness.policy import GpuRule, Overrides, Policy, Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Busy, GpuEvidence, GpuVerdicts, Idle, Unknown, Verdict, WorkloadVerdict
from scaler.idleness.window import Window
from scaler.kube.objects.core import decode
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import ScalableWorkload, ScalableWorkloadStatus
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.kueue_workloads import Workload
from scaler.suspension.status import desired_status, last_line, next_warned_at
from scaler.targets import target_state
from scaler.targets.switched_objects import SwitchedObjects
from scaler.targets.target_state import Phase, TargetState

NOON = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
LONG_AGO = NOON - timedelta(hours=2)
INTERVAL = timedelta(seconds=30)
GPUS = GpuResources(patterns=("nvidia.com/gpu", "nvidia.com/mig-*"))
GR_ENGINE, GPU_UTIL = DEFAULT_SIGNALS


def at(seconds: float = 0.0) -> datetime:
    """The instant so many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


# ------------------------------------------------------------------------------------------------------------ evidence


def window(
    *, peak: float | None = 0.0, slots: int = 60, covered: int | None = None, gap: int = 0, last: datetime | None = NOON
) -> Window:
    """Half an hour of 30 s intervals, quiet and complete, whose newest sample was taken at noon."""
    return Window(
        slots=slots,
        covered=slots if covered is None else covered,
        longest_gap=gap,
        peak_ratio=peak,
        last_sample_at=last,
    )


def unknown(reason: UnknownReason = UnknownReason.STALE_SAMPLES, message: str = "newest sample is 5m old") -> Unknown:
    return Unknown(reason=reason, message=message)


def gpu_evidence(
    verdict: Verdict | None = None,
    *,
    gpu: str = "GPU-0",
    pod: str = "worker-0",
    last_active_at: datetime | None = None,
    unseen_until: datetime | None = None,
    windows: Mapping[str, Window] | None = None,
) -> GpuEvidence:
    """One quiet GPU."""
    windows = {"gr_engine_active": window(), "gpu_util": window()} if windows is None else windows
    newest = [each.last_sample_at for each in windows.values()]
    return GpuEvidence(
        gpu=GpuId(device=gpu),
        pod=pod,
        node="node-a",
        model="NVIDIA A100",
        verdict=verdict or Idle(),
        windows=windows,
        last_active_at=last_active_at,
        unseen_until=unseen_until,
        is_quiet=last_active_at is None or all(each is not None and each >= last_active_at for each in newest),
    )


def verdict(of: Verdict | None = None, *gpus: GpuEvidence) -> WorkloadVerdict:
    """A verdict on a workload, by default Idle with one quiet GPU."""
    of = of or Idle()
    return WorkloadVerdict(verdict=of, gpus=gpus or (gpu_evidence(of),))


IDLE, BUSY, UNKNOWN = Idle(), Busy(), unknown()


# ------------------------------------------------------------------------------------------------------------- samples


def series(gpu: str = "GPU-0", *, pod: str = "worker-0", namespace: str = "demo", mig: str = "") -> GpuSeries:
    return GpuSeries(
        gpu=GpuId(device=gpu, mig_instance=mig), namespace=namespace, pod=pod, node="node-a", model="NVIDIA A100"
    )


def in_own_unit(signal: Signal, ratio: float) -> float:
    """The ratio as an exporter reports it."""
    return ratio * 100 if signal.unit is Unit.PERCENT else ratio


def every(interval_s: float, *, start: float, end: float, ratio: float = 0.0) -> list[tuple[float, float]]:
    """(Unix seconds, ratio) at every interval from `start` up to `end`, both in seconds from noon."""
    count = int((end - start) / interval_s) + 1
    return [(NOON.timestamp() + start + n * interval_s, ratio) for n in range(count)]


def history(*, signals: Sequence[Signal] = DEFAULT_SIGNALS, span: timedelta = timedelta(minutes=30)) -> History:
    return History(signals=signals, interval=INTERVAL, span=span)


def record(
    into: History, of: GpuSeries, samples: Iterable[tuple[float, float]], *, signals: Sequence[Signal] | None = None
) -> None:
    """Record samples (Unix seconds, ratio) of every signal, each in the signal's own unit."""
    kept = list(samples)
    for signal in into.signals if signals is None else signals:
        into.record(signal, of, [(at_s, in_own_unit(signal, ratio)) for at_s, ratio in kept])


def found_of(
    history: History, pod: str = "worker-0", *, length: timedelta, end: datetime = NOON, above_ratio: float = 0.01
) -> GpuVerdicts:
    """The verdicts on the GPUs of a pod."""
    rows = np.array(history.rows_of("demo", pod), np.intp)
    return history.verdicts(rows, above_ratio=above_ratio, length=length, trust=TRUST, end=end)


# ------------------------------------------------------------------------------------------------------ pods and policy


def pod(
    name: str = "worker-0",
    *,
    gpus: int = 1,
    phase: PodPhase = PodPhase.RUNNING,
    running_since: datetime | None = LONG_AGO,
    terminating: bool = False,
) -> GpuPod:
    """A pod with one GPU whose containers run since two hours before noon."""
    return GpuPod(
        namespace="demo",
        name=name,
        phase=phase,
        gpus=gpus,
        running_since=running_since,
        terminating=terminating,
        node="node-a",
    )


def pending_pod(name: str = "worker-1", *, gpus: int = 1) -> GpuPod:
    return pod(name, gpus=gpus, phase=PodPhase.PENDING, running_since=None)


def policy(**changes: Any) -> Policy:
    """30 min idle after 10 min of warm-up, all GPUs, enforced; `share` stands for the GPU rule."""
    if "share" in changes:
        changes["gpus"] = GpuRule(share=changes.pop("share"))
    return Policy(**{"idle_after": timedelta(minutes=30), **changes})


TRUST = Trust(interval=INTERVAL)


def a_target(**changes: Any) -> TargetState:
    """A target at 1 that runs since two hours before noon."""
    given: dict[str, Any] = {"desired_replicas": 1, "phase": Phase.RUNNING, "running_since": LONG_AGO}
    return TargetState(**{**given, **changes})


ACTIVE = Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")
INACTIVE = Inactive(reason=DecisionReason.GPUS_IDLE, message="every required GPU stayed below 1 % for 30m")
NO_ANSWER = Unknown(reason=UnknownReason.STALE_SAMPLES, message="newest sample is 5m old")


def decision(answer: Answer = ACTIVE, **changes: Any) -> Decision:
    """A decision of noon on a running target."""
    given: dict[str, Any] = {
        "target": a_target(),
        "policy": policy(),
        "verdict": verdict(BUSY if isinstance(answer, Active) else IDLE),
        "idle_since": None,
        "decided_at": NOON,
    }
    return Decision(answer=answer, **{**given, **changes})


# ------------------------------------------------------------------------------------------------------- decisions

TARGET = ScaleTargetRef(api_version="idlegpu.io/v1alpha1", kind="ScalableWorkload", name="first-raycluster")
SCALED_OBJECT: Key = ("demo", "first-raycluster")


def entry(*answers: Answer, trigger: Overrides | None = None, problems: tuple[str, ...] = ()) -> EvaluatedScaledObject:
    """A ScaledObject with a trigger per answer; the first trigger is keyed by `trigger`, by default an empty one."""
    keys = [trigger or Overrides(), *(Overrides(idle_after=minutes(n)) for n in range(1, len(answers)))]
    triggers = {key: decision(answer) for key, answer in zip(keys, answers, strict=False)}
    return EvaluatedScaledObject(target=TARGET, triggers=triggers, problems=problems)


def evaluation(*answers: Answer, **entry_fields: Any) -> Evaluation:
    """An evaluation of one ScaledObject."""
    return Evaluation.of({SCALED_OBJECT: entry(*answers, **entry_fields)}, at=NOON)


# ---------------------------------------------------------------------------------------------------- Kueue's Workloads


def no_switched_objects() -> SwitchedObjects:
    """Of no kind, so that no API is asked."""
    transport: Any = None
    return SwitchedObjects(transport, namespaces=())


def observed(**changes: Any) -> target_state.ObservedWorkload:
    """A gang of two GPU pods that Kueue has admitted, as the core sees it."""
    given: dict[str, Any] = {
        "namespace": "demo",
        "name": "raycluster-first-raycluster-6cd3b",
        "uid": "7e6b1a34",
        "resource_version": "4711",
        "active": True,
        "finished": False,
        "quota_reserved": True,
        "admitted": True,
        "suspended_by_us": False,
        "expected_gpu_pods": 2,
        "queue": "user-queue",
        "cluster_queue": "cluster-queue",
    }
    return target_state.ObservedWorkload(**{**given, **changes})


def suspended(**changes: Any) -> target_state.ObservedWorkload:
    """The same, deactivated by us, its quota released."""
    given = {"active": False, "quota_reserved": False, "admitted": False, "suspended_by_us": True}
    return observed(**{**given, **changes})


def gang(*, running: int = 2, of: int = 2) -> list[GpuPod]:
    """`of` GPU pods of which `running` run."""
    names = [f"worker-{number}" for number in range(of)]
    return [pod(name) if number < running else pending_pod(name) for number, name in enumerate(names)]


def situation(
    workload: target_state.ObservedWorkload | None, *, desired: int = 1, **changes: Any
) -> target_state.ObservedTarget:
    given: dict[str, Any] = {"pods": gang(), "was_bound": True}
    return target_state.ObservedTarget(desired_replicas=desired, workload=workload, **{**given, **changes})


class WorkloadJson:
    """A Kueue Workload as it stands in the API (v1beta2), changed by verbs that read as its life does."""

    def __init__(
        self, name: str = "raycluster-first-raycluster-6cd3b", *, pods: int = 2, gpus_per_pod: int = 1
    ) -> None:
        amounts = {"cpu": "1", "nvidia.com/gpu": str(gpus_per_pod)}
        container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
        self.json: dict[str, Any] = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {
                "name": name,
                "namespace": "demo",
                "uid": "7e6b1a34",
                "resourceVersion": "4711",
                "creationTimestamp": "2026-12-01T09:00:00Z",
            },
            "spec": {
                "active": True,
                "queueName": "user-queue",
                "podSets": [{"name": "main", "count": pods, "template": {"spec": {"containers": [container]}}}],
            },
        }
        self.owned_by("ray.io/v1", "RayCluster", "first-raycluster")

    def owned_by(self, api_version: str, kind: str, *names: str, controller: bool = True) -> "WorkloadJson":
        self.json["metadata"]["ownerReferences"] = [
            {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": controller}
            for name in names
        ]
        return self

    def annotated(self, **annotations: str) -> "WorkloadJson":
        """Keyword names with `__` for `/`, such as `idlegpu.io__suspended`, given as a dict where they need dots."""
        return self.with_annotations({key.replace("__", "/"): value for key, value in annotations.items()})

    def with_annotations(self, annotations: Mapping[str, str]) -> "WorkloadJson":
        self.json["metadata"].setdefault("annotations", {}).update(annotations)
        return self

    def with_pod_sets(self, *pod_sets: Mapping[str, Any]) -> "WorkloadJson":
        self.json["spec"]["podSets"] = list(pod_sets)
        return self

    def deactivated(self) -> "WorkloadJson":
        self.json["spec"]["active"] = False
        return self

    def condition(self, kind: str, status: bool, reason: str = "", message: str = "") -> "WorkloadJson":
        conditions = self._status().setdefault("conditions", [])
        conditions[:] = [each for each in conditions if each["type"] != kind]
        conditions.append(
            {
                "type": kind,
                "status": str(status),
                "reason": reason or kind,
                "message": message,
                "lastTransitionTime": "2026-12-01T09:00:01Z",
            }
        )
        return self

    def waiting(self, message: str) -> "WorkloadJson":
        return self.condition("QuotaReserved", False, "WaitingForQuota", message)

    def reserved(self) -> "WorkloadJson":
        counts = [{"name": each["name"], "count": each["count"]} for each in self.json["spec"]["podSets"]]
        self._status()["admission"] = {"clusterQueue": "cluster-queue", "podSetAssignments": counts}
        return self.condition("QuotaReserved", True)

    def admitted(self) -> "WorkloadJson":
        return self.reserved().condition("Admitted", True)

    def with_status(self, **fields: Any) -> "WorkloadJson":
        self._status().update(fields)
        return self

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.json.setdefault("status", {})
        return status

    def decoded(self) -> Workload:
        """As the reflectors decode it."""
        return decode(Workload, msgspec.json.encode(self.json))


# ----------------------------------------------------------------------------------------------------- ScalableWorkload


def scalable_workload(
    *, replicas: int = 1, annotations: Mapping[str, str] | None = None, **status: Any
) -> ScalableWorkload:
    """A ScalableWorkload of the RayCluster; keywords fill its status, in the API's camelCase.

    `status_replicas` stands for `status.replicas`.
    """
    if "status_replicas" in status:
        status["replicas"] = status.pop("status_replicas")
    document = {
        "metadata": {
            "name": "first-raycluster",
            "namespace": "demo",
            "uid": "b1f0",
            "generation": 3,
            "resourceVersion": "99",
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "replicas": replicas,
            "jobRef": {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "first-raycluster"},
        },
        "status": status,
    }
    return decode(ScalableWorkload, msgspec.json.encode(document))


def status_of(
    scalable: ScalableWorkload,
    state: TargetState,
    workload: target_state.ObservedWorkload | None,
    of: Decision | None,
    *,
    now: datetime,
    permits: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """The status that a leader gives it. `permits`: whether budgets have room for a warning that is due."""
    before = scalable.status
    warned_at = next_warned_at(before.warned_at, of, now=now)
    if warned_at not in (None, before.warned_at) and not permits():
        warned_at = None
    line = next_line(last_line(before.history), of, target=state, warned_at=warned_at, now=now)
    return desired_status(scalable, state, workload, of, line=line, warned_at=warned_at, now=now)


def status_as_written(desired: Mapping[str, Any]) -> ScalableWorkloadStatus:
    """The status as it is read back after it was written."""
    kept = {name: value for name, value in desired.items() if value is not None}
    return decode(ScalableWorkloadStatus, msgspec.json.encode(kept))
