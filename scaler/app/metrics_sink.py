"""Metrics and logs of what the parts of the process report."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

import structlog

from scaler.admission.controller import AdmissionReport
from scaler.admission.provisioning.lifecycle import LOST
from scaler.decision.candidate import HistoryLine, return_of
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation, Key
from scaler.decision.describe import answer_word, verdict_word
from scaler.decision.evaluation import EvaluationTick
from scaler.errors import KubeError
from scaler.kube.api_requests import ApiRequest
from scaler.multikueue.hub.dispatch.controller import DispatchReport
from scaler.multikueue.hub.dispatch.nomination import NominateCluster
from scaler.multikueue.hub.dispatch.plan import WorkloadDispatch
from scaler.multikueue.worker.offer_controller import OfferReport
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.transitions import LedgerEntry
from scaler.reporting.metric_declarations import set_series
from scaler.reporting.metrics import Metrics
from scaler.reporting.usage.fleet_metrics import BoundedNames
from scaler.reporting.waiting_reasons import ReportedReasons

log = structlog.get_logger(__name__)


class MetricsSink:
    """One method per kind of report; each is handed to the part that reports.

    `has_source`: without one samples are missed at every tick, which is no news. `most_budgets`: of how many the names
    are shown, which owners of policies make.
    """

    def __init__(self, metrics: Metrics, *, has_source: bool = True, most_budgets: int = 100) -> None:
        self.metrics = metrics
        self.budgets = BoundedNames(most_budgets)
        self._has_source = has_source
        self.reasons = ReportedReasons()
        self._counted: dict[Key, EvaluatedScaledObject] = {}
        self._problems = 0
        self._scaled_by_keda = 0
        self._decisions: Counter[tuple[str, str, str]] = Counter()
        self._not_admitted: set[tuple[str, str]] = set()
        """Workloads that wait for a cluster (uid), and workers for which that is counted."""

    def ticked(self, tick: EvaluationTick) -> None:
        metrics, intake = self.metrics, tick.intake
        metrics.tick_seconds.observe(tick.seconds)
        metrics.samples_total.inc(intake.samples)
        metrics.blank_samples_total.inc(intake.blanks)
        metrics.series.labels(attributed="no").set(intake.unattributed)
        metrics.series.labels(attributed="yes").set(intake.series - intake.unattributed)
        set_series(metrics.source_doubt, {(str(intake.doubt.reason),): 1} if intake.doubt is not None else {})
        if intake.doubt is not None:
            tell = log.warning if self._has_source else log.debug
            tell("samples cannot be trusted", reason=intake.doubt.reason, why=intake.doubt.message)
        if tick.evaluation is not None:
            self._show(tick.evaluation)

    def _show(self, evaluation: Evaluation) -> None:
        metrics, entries = self.metrics, evaluation.entries
        for key, entry in entries.items():
            if (before := self._counted.get(key)) is not entry:
                self._count(before, -1)
                self._count(entry, 1)
                self._counted[key] = entry
        for key in self._counted.keys() - entries.keys() if len(self._counted) > len(entries) else ():
            self._count(self._counted.pop(key), -1)
        metrics.evaluation_timestamp_seconds.set(evaluation.at.timestamp())
        metrics.scaled_objects.set(self._scaled_by_keda)
        metrics.unusable_triggers.set(self._problems)
        set_series(metrics.decisions, +self._decisions)

    def _count(self, entry: EvaluatedScaledObject | None, number: int) -> None:
        if entry is not None:
            self._problems += number * len(entry.problems)
            self._scaled_by_keda += number * (entry.decided_on is None)
            for each in entry.triggers.values():
                self._decisions[answer_word(each), verdict_word(each), str(each.answer.reason)] += number

    def answered(self, method: str, code: str, seconds: float) -> None:
        self.metrics.rpc_seconds.labels(method=method, code=code).observe(seconds)
        self.metrics.last_rpc_timestamp_seconds.set_to_current_time()

    def called(self, call: ApiRequest) -> None:
        labels = {"verb": call.verb, "resource": call.resource, "status": str(call.status)}
        self.metrics.kube_call_seconds.labels(**labels).observe(call.seconds)

    def planned(self, outlook: ReclaimReport) -> None:
        metrics = self.metrics
        metrics.reclaimable_gpus.set(outlook.reclaimable_gpus)
        metrics.active_plans.set(len(outlook.active))
        metrics.planning_blind.set(bool(outlook.blind))
        for each in outlook.refused:
            if each.budget:
                metrics.budget_refusals_total.labels(self.budgets.of(each.budget)).inc()
        self.reasons.planned(outlook)
        if outlook.blind:
            log.debug("nothing can be planned", because=outlook.blind)

    def offered(self, report: OfferReport) -> None:
        """What was said to the hubs of MultiKueue."""
        metrics = self.metrics
        metrics.offer_unknown.set(bool(report.unknown))
        set_series(metrics.offered_workloads, Counter((str(each.fit),) for each in report.fits))
        set_series(metrics.judged_workloads, Counter((each.verdict,) for each in report.verdicts))
        if report.written:
            metrics.offer_answered_timestamp_seconds.set(report.at.timestamp())

    def dispatched(self, report: DispatchReport) -> None:
        """What the hub of MultiKueue has done with Workloads that wait for a cluster."""
        metrics, plan = self.metrics, report.plan
        set_series(metrics.dispatcher_stopped, {(report.stopped_because,): 1} if report.stopped_because else {})
        if plan is None:
            log.debug("nothing is dispatched", because=report.problem)
            return
        set_series(metrics.dispatch_pending_workloads, Counter((each.reason,) for each in plan.workloads))
        set_series(
            metrics.worker_status_fresh,
            {(name,): float(not each.silence) for name, each in report.workers.items()},
        )
        for each in report.nominated:
            if isinstance(each.step, NominateCluster):
                metrics.nominations_total.labels(fit=str(each.step.cluster.answer.fit)).inc()
        self._count_not_admitted(report, plan.workloads)

    def _count_not_admitted(self, report: DispatchReport, waiting: Sequence[WorkloadDispatch]) -> None:
        """Each Workload once for a worker, until it waits no more."""
        counter, uids = self.metrics.nominations_not_admitted_total, {each.waiting.uid for each in waiting}
        for name in report.workers:
            counter.labels(worker=name)  # begins at 0: `increase` does not see the first value of a series
        due = waiting if report.preflight.is_passed else ()
        found = {(each.waiting.uid, each.not_admitted_by) for each in due if each.not_admitted_by}
        for _, worker in found - self._not_admitted:
            counter.labels(worker=worker).inc()
        self._not_admitted = found | {each for each in self._not_admitted if each[0] in uids}

    def checked(self, report: AdmissionReport) -> None:
        self.reasons.checked(report)
        set_series(
            self.metrics.admission_check_pending_gangs,
            {(str(reason),): count for reason, count in report.plan.reasons.items()},
        )
        for gang in report.released:
            self.metrics.admission_check_seconds.labels(reason=str(gang.because)).observe(gang.waited.total_seconds())
            self.metrics.admission_check_gpus_total.labels(origin="reused").inc(gang.reused_gpus)
            self.metrics.admission_check_gpus_total.labels(origin="provisioned").inc(gang.provisioned_gpus)

    def provisioned(self, event: str, provisioning_class: str, reason: str) -> None:
        self.metrics.provisioning_requests_total.labels(event, provisioning_class, reason).inc()
        self.metrics.provisioning_failures_total.inc(event in LOST)

    def reallocated(self, entry: LedgerEntry) -> None:
        """An entry of the ledger has come to its end."""
        self.metrics.reallocated_gpus_total.labels(outcome=str(entry.stage)).inc(entry.gpus)
        if entry.took is not None:
            self.metrics.reallocation_seconds.observe(entry.took.total_seconds())
        for stage, seconds in _stages(entry):
            self.metrics.reallocation_stage_seconds.labels(stage).observe(seconds)
        if entry.wasted_gpu_seconds is not None:
            self.metrics.wasted_gpu_seconds_total.inc(entry.wasted_gpu_seconds)

    def entered(self, history: Sequence[HistoryLine]) -> None:
        """A workload has entered the state of the last line."""
        before = history[-2].state if len(history) > 1 else ""
        self.metrics.workload_transitions_total.labels(before=before, entered=history[-1].state).inc()
        if (found := return_of(history)) is not None:
            self.metrics.wake_seconds.labels(str(found.cause)).observe(found.after.total_seconds())

    def hook_ended(self, hook: str, outcome: str) -> None:
        self.metrics.before_suspend_total.labels(hook=hook, outcome=outcome).inc()

    def reconciled(self, seconds: float, error: Exception | None) -> None:
        failed = "broken" if error else "ok"
        outcome = str(error.status) if isinstance(error, KubeError) else failed
        self.metrics.reconcile_seconds.labels(outcome=outcome).observe(seconds)

    def sent(self, target: str, outcome: str) -> None:
        """A message to an owner."""
        self.metrics.notifications_total.labels(target, outcome).inc()

    def oldest_pending(self, age: timedelta) -> None:
        self.metrics.oldest_pending_notification_seconds.set(age.total_seconds())


def _stages(entry: LedgerEntry) -> Iterator[tuple[str, float]]:
    """How long each stage of a hand-over took, as far as it came to its end. Units: seconds."""
    times = {
        "Suspending": (entry.reclaimable_at, entry.releasing_at),
        "Releasing": (entry.releasing_at, entry.available_at),
        "Admitting": (entry.available_at, entry.admitted_at),
    }
    for stage, (begin, end) in times.items():
        if begin is not None and end is not None:
            yield stage, max(0.0, (end - begin).total_seconds())
