"""What the parts report about themselves, turned into metrics and logs."""

from collections import Counter
from collections.abc import Iterator

import structlog

from scaler.core.ledger import Entry
from scaler.core.provisioning import LOST
from scaler.core.replicas import Decision, answer_reason
from scaler.errors import KubeError
from scaler.keda.servicer import RpcEnded
from scaler.kube.calls import Call
from scaler.loops.backlog import Backlog
from scaler.loops.board import Evaluation
from scaler.loops.boosting import Boosts
from scaler.loops.evaluation import Tick
from scaler.loops.gate import GateReport
from scaler.loops.leading import Reconciled
from scaler.loops.pressure import Outlook
from scaler.loops.projection import answer_word, verdict_word
from scaler.loops.provisioning import Happening
from scaler.telemetry.declaring import show
from scaler.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


class Observers:
    """One method per kind of report; each is handed to the part that reports."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.backlog: Backlog | None = None
        """Is told of gangs that wait, too."""

    def ticked(self, tick: Tick) -> None:
        metrics, intake = self._metrics, tick.intake
        metrics.tick.observe(tick.seconds)
        metrics.samples.inc(intake.samples)
        metrics.blanks.inc(intake.blanks)
        metrics.series.labels(attributed="no").set(intake.unattributed)
        metrics.series.labels(attributed="yes").set(intake.series - intake.unattributed)
        show(metrics.source_doubt, {(str(intake.doubt.reason),): 1} if intake.doubt is not None else {})
        if intake.doubt is not None:
            log.warning("samples cannot be trusted", reason=intake.doubt.reason, why=intake.doubt.message)
        if tick.evaluation is not None:
            self._show(tick.evaluation)

    def _show(self, evaluation: Evaluation) -> None:
        metrics, entries = self._metrics, evaluation.entries.values()
        metrics.evaluated_at.set(evaluation.at.timestamp())
        metrics.scaled_objects.set(len(entries))
        metrics.unusable_triggers.set(sum(len(entry.problems) for entry in entries))
        decisions = (decision for found in evaluation.by_target.values() for decision in found)
        show(metrics.decisions, Counter(_kind(each) for each in decisions))

    def answered(self, rpc: RpcEnded) -> None:
        self._metrics.rpcs.labels(method=rpc.method, code=rpc.code).observe(rpc.seconds)
        self._metrics.last_rpc.set_to_current_time()

    def called(self, call: Call) -> None:
        resource = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
        labels = {"verb": call.verb, "resource": resource, "status": str(call.status)}
        self._metrics.kube_calls.labels(**labels).observe(call.seconds)

    def planned(self, outlook: Outlook) -> None:
        metrics = self._metrics
        metrics.reclaimable_gpus.set(outlook.reclaimable_gpus)
        metrics.standing_plans.set(len(outlook.standing))
        metrics.planning_blind.set(bool(outlook.blind))
        for each in outlook.refused:
            if each.budget:
                metrics.budget_refusals.labels(each.budget).inc()
        if self.backlog is not None:
            self.backlog.planned(outlook)
        if outlook.blind:
            log.debug("nothing can be planned", because=outlook.blind)

    def gated(self, report: GateReport) -> None:
        if self.backlog is not None:
            self.backlog.gated(report)
        show(self._metrics.gate, {(str(reason),): count for reason, count in report.reasons.items()})
        for gang in report.opened:
            self._metrics.gate_waits.labels(reason=str(gang.because)).observe(gang.waited.total_seconds())
            self._metrics.gate_gpus.labels(origin="reused").inc(gang.reused_gpus)
            self._metrics.gate_gpus.labels(origin="provisioned").inc(gang.provisioned_gpus)

    def provisioned(self, happening: Happening) -> None:
        labels = {"event": happening.what, "provisioning_class": happening.provisioning_class}
        self._metrics.requests.labels(**labels, reason=happening.reason).inc()
        self._metrics.failed_requests.inc(happening.what in LOST)

    def boosted(self, boosts: Boosts) -> None:
        self._metrics.boosted.set(boosts.standing)

    def reallocated(self, entry: Entry) -> None:
        """An entry of the ledger has come to its end."""
        self._metrics.reallocated_gpus.labels(outcome=str(entry.stage)).inc(entry.gpus)
        if entry.took is not None:
            self._metrics.reallocations.observe(entry.took.total_seconds())
        for stage, seconds in _stages(entry):
            self._metrics.reallocation_stages.labels(stage).observe(seconds)
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


def _stages(entry: Entry) -> Iterator[tuple[str, float]]:
    """How long each stage of a hand-over took, as far as it came to its end. Units: seconds."""
    times = {
        "Suspending": (entry.reclaimable_at, entry.releasing_at),
        "Releasing": (entry.releasing_at, entry.available_at),
        "Admitting": (entry.available_at, entry.admitted_at),
    }
    for stage, (begin, end) in times.items():
        if begin is not None and end is not None:
            yield stage, max(0.0, (end - begin).total_seconds())


def _kind(decision: Decision) -> tuple[str, str, str]:
    """Its answer, verdict and reason."""
    return answer_word(decision), verdict_word(decision), answer_reason(decision.answer)
