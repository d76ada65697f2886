"""One decision, many views: the status of a ScalableWorkload, the text of an Event, `explain`. Pure.

No view computes anything of its own; what two of them say about the same decision cannot differ.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from scaler.decision.decision import Active, Decision, Inactive, hook_stage
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Key
from scaler.decision.reasons import REASONS, DecisionReason
from scaler.idleness.durations import format_duration
from scaler.idleness.hooks import HookRun, HookStage
from scaler.idleness.hours import following
from scaler.idleness.policy import FIELDS, EnforcementMode, Reclaim, describe
from scaler.idleness.verdict import GpuEvidence, Unknown, WorkloadVerdict, verdict_name
from scaler.idleness.window import Window

EVIDENCE_LIMIT = 64
"""GPUs listed in a status; the CRD allows no more."""


def timestamp(instant: datetime | None) -> str | None:
    """The instant as the Kubernetes API writes times: whole seconds, UTC."""
    return instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if instant else None


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.3g}"


def evidence(verdict: WorkloadVerdict | None) -> list[dict[str, Any]]:
    """The evidence by GPU; of a workload on another cluster as that cluster says, with its name before the node."""
    if verdict is None:
        return []
    if (remote := verdict.remote) is not None:
        return [{**gpu, "node": "/".join(filter(None, (remote.cluster, gpu.get("node"))))} for gpu in remote.evidence]
    return [_gpu(gpu) for gpu in verdict.gpus]


def _gpu(gpu: GpuEvidence) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "pod": gpu.pod,
        "gpu": str(gpu.gpu),
        "node": gpu.node,
        "verdict": verdict_name(gpu.verdict),
    }
    if isinstance(gpu.verdict, Unknown):
        shown["reason"] = str(gpu.verdict.reason)
    shown["signals"] = [_signal(name, window) for name, window in gpu.windows.items()]
    return shown


def _signal(name: str, window: Window) -> dict[str, str]:
    shown = {
        "name": name,
        "peakPercent": percent(window.peak_ratio),
        "coveragePercent": f"{100 * window.coverage_ratio:.0f}",
    }
    if window.last_sample_at:
        shown["lastSample"] = str(timestamp(window.last_sample_at))
    return shown


def prevailing(decisions: Sequence[Decision]) -> Decision | None:
    """The decision that prevails, as KEDA combines triggers: any active one, else any without answer, else inactive."""
    order = (Active, Unknown, Inactive)
    return min(decisions, key=lambda decision: order.index(type(decision.answer)), default=None)


def decision_of(decisions: DecisionCache, key: Key) -> Decision | None:
    """The one that prevails for a ScaledObject; None where there is none."""
    entry = decisions.evaluation.entries.get(key) if decisions.evaluation is not None else None
    return prevailing(list(entry.triggers.values())) if entry is not None else None


_FIELDS = [
    *("verdict", "reason", "message", "evidence", "evidenceOmitted"),
    *("idleSince", "idleAtLeast", "suspendAt", "keepUntil"),
]


def decision_status(decision: Decision | None) -> dict[str, Any]:
    """The fields of a ScalableWorkload's status that a decision fills. An absent field is None."""
    if decision is None:
        return dict.fromkeys(_FIELDS)
    listed = evidence(decision.verdict)
    return {
        "verdict": verdict_word(decision),
        "reason": str(decision.answer.reason),
        "message": decision.answer.message,
        "evidence": listed[:EVIDENCE_LIMIT],
        "evidenceOmitted": max(0, len(listed) - EVIDENCE_LIMIT) or None,
        "idleSince": timestamp(decision.idle_since),
        "idleAtLeast": decision.idle_at_least or None,
        "suspendAt": timestamp(decision.suspend_at),
        "keepUntil": timestamp(decision.policy.keep_until),
    }


def hook_run_status(run: HookRun) -> dict[str, str | None]:
    """The last run of a hook, as it is kept. An absent field is None, so that a merge patch removes it."""
    return {
        "hook": run.hook,
        "startedAt": timestamp(run.started_at),
        "endedAt": timestamp(run.ended_at),
        "outcome": str(run.outcome) if run.outcome is not None else None,
        "message": run.message or None,
        "savedAt": timestamp(run.saved_at),
    }


def is_warning_due(decision: Decision) -> bool:
    """Whether the suspension is so near that its owner is warned."""
    return decision.warning_at is not None and decision.decided_at >= decision.warning_at


# ----------------------------------------------------------------------------------------------------------- explain


def explain(decisions: DecisionCache, key: Key) -> dict[str, Any] | None:
    """Everything known about a ScaledObject, as JSON; None where it has not been evaluated."""
    evaluation = decisions.evaluation
    entry = evaluation.entries.get(key) if evaluation else None
    if evaluation is None or entry is None:
        return None
    return {
        "scaledObject": {"namespace": key[0], "name": key[1]},
        "actuator": "Direct" if (is_direct := entry.decided_on is not None) else "KEDA",
        "target": {"apiVersion": entry.target.api_version, "kind": entry.target.kind, "name": entry.target.name},
        "evaluatedAt": evaluation.at.isoformat(),
        "evaluationAgeSeconds": round(age.total_seconds(), 1) if (age := decisions.age) is not None else None,
        "triggers": [_trigger(trigger, evaluation.at, is_direct=is_direct) for trigger in entry.triggers.values()],
        "problems": list(entry.problems),
        "ignoredKeys": list(entry.ignored),
    }


def _trigger(decision: Decision, at: datetime, *, is_direct: bool) -> dict[str, Any]:
    return _in_short(decision) | {
        "desiredReplicas": decision.target.desired_replicas,
        "runningSince": _iso(decision.target.running_since),
        "verdict": verdict_word(decision) or None,
        "next": what_next(decision, at, is_direct=is_direct),
        "beforeSuspend": hook_run_status(run) if (run := decision.target.hook_run) is not None else None,
        "settings": [
            {"name": each.key, "value": describe(name, decision.policy), "source": decision.policy.source_of(name)}
            for name, each in FIELDS.items()
        ],
        "gpus": evidence(decision.verdict),
    }


def _in_short(decision: Decision) -> dict[str, Any]:
    return {
        "answer": answer_word(decision),
        "reason": str(decision.answer.reason),
        "message": decision.answer.message,
        "phase": str(decision.target.phase),
        "verdict": verdict_word(decision),
        "idleSince": _iso(decision.idle_since),
        "idleAtLeast": decision.idle_at_least,
        "suspendAt": _iso(decision.suspend_at),
    }


def _iso(instant: datetime | None) -> str | None:
    return instant.isoformat() if instant else None


def answer_word(decision: Decision) -> str:
    """`active`, `inactive` or `error`: what KEDA gets."""
    return {Active: "active", Inactive: "inactive", Unknown: "error"}[type(decision.answer)]


def verdict_word(decision: Decision) -> str:
    """`Idle`, `Busy` or `Unknown`; empty where the GPUs were not looked at."""
    return verdict_name(decision.verdict.verdict) if decision.verdict is not None else ""


def what_next(decision: Decision, at: datetime, *, is_direct: bool = False) -> str:
    """What happens if nothing changes, as seen at that instant."""
    by = _DIRECTLY if is_direct else _BY_KEDA
    match decision.answer:
        case Unknown():
            return f"{by.unknown}, until this is known again."
        case Active(reason=reason) | Inactive(reason=reason) if REASONS[reason].next:
            return REASONS[reason].next
        case Inactive(reason=reason) if REASONS[reason].found_idle:
            return by.to_0
        case Inactive():
            return _when_resumed(decision, at)
        case Active(reason=DecisionReason.WAKING):
            return by.to_1
        case Active():
            return _when_suspended(decision, at)


def _when_resumed(decision: Decision, at: datetime) -> str:
    if decision.when_free and decision.target.is_plannable:
        return f"It comes back when its quota and nodes are free and no Workload waits for them: {decision.when_free}."
    wake_at = following(decision.policy.wake_at, at)
    until = f"{timestamp(wake_at)} (wakeAt), or an earlier wake-up" if wake_at else "a wake-up"
    return f"It stays at 0 until {until}: kubectl scale, annotation idlegpu.io/wake, or a wake query."


class _Scaling(NamedTuple):
    """What follows an answer, in words."""

    unknown: str
    to_0: str
    to_1: str


_BY_KEDA = _Scaling(
    unknown="KEDA gets an error and leaves the replicas as they are",
    to_0="KEDA scales it to 0 at its next poll after its cooldownPeriod.",
    to_1="KEDA scales it to 1 at its next poll, or at once with an external-push trigger.",
)
_DIRECTLY = _Scaling(
    unknown="Its replicas stay as they are", to_0="The leader scales it to 0.", to_1="The leader scales it to 1."
)


def _when_suspended(decision: Decision, at: datetime) -> str:
    policy = decision.policy
    if decision.suspend_at is not None:
        left = timedelta(seconds=max(0, round((decision.suspend_at - at).total_seconds())))
        is_ready = hook_stage(decision, decision.target.hook_run) in (None, HookStage.DONE)
        what = "the answer turns inactive" if is_ready else f"its hook {policy.before_suspend} begins"
        return f"If its GPUs stay quiet {what} at {timestamp(decision.suspend_at)}, in {format_duration(left)}."
    if decision.target.running_since is None or decision.verdict is None:
        return "It stays at 1; its GPUs are judged once all of its GPU pods run."
    if policy.mode is EnforcementMode.OBSERVE:
        return "It stays at 1 whatever its GPUs do: mode observe only reports."
    if policy.reclaim is not Reclaim.ALWAYS:
        return _UNTIL_TAKEN[policy.reclaim]
    window = format_duration(policy.window)
    return f"It stays up while any work is seen; after {window} without, the answer turns inactive."


_UNTIL_TAKEN = {
    Reclaim.ON_PRESSURE: "It stays up until a plan takes it for a gang that waits, and only while its GPUs are idle.",
    Reclaim.PRIORITY_BOOST: "It stays up until Kueue preempts it, which is likelier while it is idle.",
}


class Overview(Collection[Mapping[str, Any]]):
    """One line per ScaledObject, in the order of their keys, for the status page. Each is made when it is looked at."""

    def __init__(self, entries: Mapping[Key, EvaluatedScaledObject]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, line: object) -> bool:
        return any(each == line for each in self)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """The lines, sorted by namespaces first: to sort fifty thousand keys at once takes long."""
        by_namespace: dict[str, list[Key]] = {}
        for key in self._entries:
            by_namespace.setdefault(key[0], []).append(key)
        return (_line(key, self._entries[key]) for name in sorted(by_namespace) for key in sorted(by_namespace[name]))


def overview(decisions: DecisionCache) -> Overview:
    return Overview(decisions.evaluation.entries if decisions.evaluation else {})


def _line(key: Key, entry: EvaluatedScaledObject) -> Mapping[str, Any]:
    decision = prevailing(list(entry.triggers.values()))
    shown = {"namespace": key[0], "name": key[1], "target": str(entry.target), "problems": list(entry.problems)}
    if decision is None:
        return shown
    return shown | _in_short(decision) | {"gpus": decision.verdict.gpu_count if decision.verdict else 0}
