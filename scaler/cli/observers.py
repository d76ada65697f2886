"""What the parts report about themselves, turned into metrics and logs."""

from collections import Counter

import structlog

from scaler.core.idleness import verdict_name
from scaler.core.ledger import Entry
from scaler.core.replicas import Decision, answer_reason
from scaler.errors import KubeError
from scaler.keda.servicer import RpcEnded
from scaler.kube.calls import Call
from scaler.loops.board import Evaluation
from scaler.loops.boosting import Boosts
from scaler.loops.evaluation import Tick
from scaler.loops.gate import GateReport
from scaler.loops.leading import Reconciled
from scaler.loops.pressure import Outlook
from scaler.loops.projection import answer_word
from scaler.loops.provisioning import Happening
from scaler.telemetry.declaring import show
from scaler.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


class Observers:
    """One method per kind of report; each is handed to the part that reports."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def ticked(self, tick: Tick) -> None:
        metrics, intake = self._metrics, tick.intake
        metrics.tick.observe(tick.seconds)
        metrics.samples.inc(intake.samples)
        metrics.blanks.inc(intake.blanks)
        metrics.series.labels(attributed="no").set(intake.unattributed)
        metrics.series.labels(attributed="yes").set(intake.series - intake.unattributed)
        if intake.doubt is not None:
            log.warning("samples cannot be trusted", reason=intake.doubt.reason, why=intake.doubt.message)
        if tick.evaluation is not None:
            self._show(tick.evaluation)

    def _show(self, evaluation: Evaluation) -> None:
        decisions = [decision for found in evaluation.by_target.values() for decision in found]
        verdicts = [gpu.verdict for decision in decisions if decision.verdict for gpu in decision.verdict.gpus]
        metrics = self._metrics
        metrics.evaluated_at.set(evaluation.at.timestamp())
        show(metrics.decisions, Counter(_kind(each) for each in decisions))
        show(metrics.gpus, Counter(("", "", "", verdict_name(verdict), "") for verdict in verdicts))

    def answered(self, rpc: RpcEnded) -> None:
        self._metrics.rpcs.labels(method=rpc.method, code=rpc.code).observe(rpc.seconds)

    def called(self, call: Call) -> None:
        resource = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
        labels = {"verb": call.verb, "resource": resource, "status": str(call.status)}
        self._metrics.kube_calls.labels(**labels).observe(call.seconds)

    def planned(self, outlook: Outlook) -> None:
        reasons = Counter(str(each.why) for each in outlook.refused)
        reasons["Planned"] = len(outlook.standing) + len(outlook.made)
        show(self._metrics.pending_gangs, {("", "Quota", reason): count for reason, count in reasons.items()})
        self._metrics.reclaimable_gpus.set(outlook.reclaimable_gpus)
        if outlook.blind:
            log.debug("nothing can be planned", because=outlook.blind)

    def gated(self, report: GateReport) -> None:
        show(self._metrics.gate, {(str(reason),): count for reason, count in report.reasons.items()})
        for gang in report.opened:
            self._metrics.gate_waits.observe(gang.waited.total_seconds())
            self._metrics.gate_gpus.labels(origin="reused").inc(gang.reused_gpus)
            self._metrics.gate_gpus.labels(origin="provisioned").inc(gang.provisioned_gpus)

    def provisioned(self, happening: Happening) -> None:
        labels = {"event": happening.what, "provisioning_class": happening.provisioning_class}
        self._metrics.requests.labels(**labels, reason=happening.reason).inc()

    def boosted(self, boosts: Boosts) -> None:
        self._metrics.boosted.set(boosts.standing)

    def reallocated(self, entry: Entry) -> None:
        """An entry of the ledger has come to its end."""
        self._metrics.reallocated_gpus.labels(outcome=str(entry.stage)).inc(entry.gpus)
        if entry.took is not None:
            self._metrics.reallocations.observe(entry.took.total_seconds())
        if entry.wasted_gpu_seconds is not None:
            self._metrics.wasted_gpu_seconds.inc(entry.wasted_gpu_seconds)

    def reconciled(self, done: Reconciled) -> None:
        match done.error:
            case None:
                outcome = "ok"
            case KubeError(status=status):
                outcome = str(status)
            case _:
                outcome = "broken"
        self._metrics.reconciliations.labels(outcome=outcome).observe(done.seconds)


def _kind(decision: Decision) -> tuple[str, str, str]:
    """Its answer, verdict and reason."""
    verdict = verdict_name(decision.verdict.verdict) if decision.verdict else ""
    return answer_word(decision), verdict, answer_reason(decision.answer)
