"""Every metric, declared once. Names start with `idle_gpu_scaler_`, units are base units, label sets are bounded.

Laws:

* A number that is the same on every replica is never to be summed: what is counted about the cluster is shown by one
  replica alone (`ReportedBy.BY_ONE`), and a sum over replicas is right whichever leads.
* What tenants can name is bounded. Namespaces, workloads and nodes beyond the declared limits are folded together or
  left out, and how many those are is itself a metric.
* Counters begin at 0 with every process, as Prometheus expects. What has to outlive a process is in API objects.
* A gauge of what is not known has no series. 0 is a number.
* No label is one that scrapers set (`namespace`, `pod`, `node`, `service`, …): where honorLabels is overruled, as on
  OpenShift and GKE, theirs would stand in place of ours, and whose GPUs are idle would stand elsewhere.

`docs/metrics.md` is made from this page; a test compares them.
"""

from prometheus_client import disable_created_metrics
from prometheus_client.exposition import choose_encoder

from scaler.reclaim.ledger import LedgerStage
from scaler.reporting.metric_declarations import MetricDeclarations, ReportedBy

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_MINUTES = (1, 5, 15, 30, 60, 120, 300, 600, 1800)
_HOURS = (10, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400)

EACH, ALL, LEADER = ReportedBy.BY_EACH, ReportedBy.BY_ALL, ReportedBy.BY_ONE

_WORKLOAD = ("workload_namespace", "cluster_queue", "kind", "name")


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        page = MetricDeclarations()
        self.registry, self.declared = page.registry, page.declared
        self._forget_of_one = page.forget_of_one
        self._fleet(page)
        self._workloads(page)
        self._decisions(page)
        self._evidence(page)
        self._suspensions(page)
        self._gangs(page)
        self._budgets(page)
        self._checks(page)
        self._certificates(page)
        self._health(page)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Series whose labels are known beforehand: `increase` never sees what a series begins with."""
        for outcome in (LedgerStage.ADMITTED, LedgerStage.CANCELLED):
            self.reallocated_gpus.labels(outcome=str(outcome))
        for stage in ("Suspending", "Releasing", "Admitting"):
            self.reallocation_stages.labels(stage=stage)
        for origin in ("reused", "provisioned"):
            self.gate_gpus.labels(origin=origin)

    def _fleet(self, page: MetricDeclarations) -> None:
        page.begin("GPUs and money", LEADER)
        place = ("workload_namespace", "cluster_queue", "model", "state")
        self.gpus = page.gauge(
            "gpus",
            "GPUs that pods hold, by what is known of them; together they are all that are allocated.",
            *place,
            "reason",
        )
        self.gpu_seconds = page.counter(
            "gpu_seconds_total", "GPU time by what was known of the GPUs while pods held them.", *place
        )
        self.node_gpus = page.gauge("node_gpus", "GPUs that nodes offer to pods, held or free.", "model")
        self.gpu_hour_price = page.gauge(
            "gpu_hour_price",
            "Price of one GPU for one hour, of every model that was seen and has one in the settings.",
            "model",
            "currency",
            unit="currency per GPU-hour",
        )
        self.idle_cost = page.counter(
            "idle_cost_total",
            "Price of the GPU time that was idle (states Idle and HeldIdle), of models that have a price.",
            "workload_namespace",
            "cluster_queue",
            "model",
            "currency",
            unit="currency",
        )
        self.unpriced_idle_gpu_seconds = page.counter(
            "unpriced_idle_gpu_seconds_total",
            "Idle GPU time that is missing in the cost, because the settings give no price for the model.",
            "model",
        )
        self.folded_namespaces = page.gauge(
            "folded_namespaces",
            "Namespaces shown together as (others), because there are more than metrics.namespaces.",
        )

    def _workloads(self, page: MetricDeclarations) -> None:
        page.begin("Single workloads, those that are idle longest first", LEADER)
        self.workload_idle_seconds = page.gauge(
            "workload_idle_seconds",
            "Since when the workload's GPUs are quiet; no series while work is seen or nothing is known.",
            *_WORKLOAD,
        )
        self.workload_gpus = page.gauge("workload_gpus", "GPUs of the workload's pods.", *_WORKLOAD, "state")
        self.workload_answer = page.gauge(
            "workload_answer",
            "1 for what KEDA gets for the workload, and why.",
            *_WORKLOAD,
            "answer",
            "reason",
            unit="1",
        )
        self.workload_desired_replicas = page.gauge(
            "workload_desired_replicas", "Replicas that the workload is asked to have.", *_WORKLOAD
        )
        self.workload_idle_after_seconds = page.gauge(
            "workload_idle_after_seconds", "How long the workload's GPUs have to be quiet to be idle.", *_WORKLOAD
        )
        self.workload_active_above_ratio = page.gauge(
            "workload_active_above_ratio", "From which sample on a GPU of the workload counts as working.", *_WORKLOAD
        )
        self.workload_peak_ratio = page.gauge(
            "workload_peak_ratio",
            "Highest sample of any of the workload's GPUs within the window that is judged.",
            *_WORKLOAD,
            "signal",
        )
        self.workload_suspend_timestamp = page.gauge(
            "workload_suspend_timestamp_seconds",
            "When the workload is going to be suspended if it stays quiet; no series where that is not foreseeable.",
            *_WORKLOAD,
        )
        self.workload_paused = page.gauge(
            "workload_paused",
            "1 while the workload's ScaledObject is paused: KEDA does not bring it to 0, whatever the answer is.",
            *_WORKLOAD,
            unit="1",
        )
        self.hidden_workloads = page.gauge(
            "hidden_workloads",
            "Workloads that are not shown one by one, because there are more than metrics.workloads.",
            "verdict",
        )

    def _decisions(self, page: MetricDeclarations) -> None:
        page.begin("Decisions", ALL)
        self.decisions = page.gauge(
            "decisions",
            "Triggers by answer, verdict and reason in the latest evaluation.",
            "answer",
            "verdict",
            "reason",
        )
        self.scaled_objects = page.gauge("scaled_objects", "ScaledObjects that are evaluated.")
        self.paused_scaled_objects = page.gauge(
            "paused_scaled_objects", "ScaledObjects that are evaluated, and paused in KEDA.", shown=LEADER
        )
        self.unusable_triggers = page.gauge("unusable_triggers", "Triggers whose metadata cannot be used.")
        self.evaluated_at = page.gauge(
            "evaluation_timestamp_seconds",
            "Instant that the latest published evaluation is about; 0 before the first.",
            shown=EACH,
        )
        self.board_age = page.gauge(
            "board_age_seconds", "Since when the latest evaluation stands; NaN before the first.", shown=EACH
        )
        self.tick = page.histogram("tick_seconds", "Time of one evaluation.", buckets=_SLOW, shown=EACH)

    def _evidence(self, page: MetricDeclarations) -> None:
        page.begin("Evidence", EACH)
        self.reads = page.histogram(
            "source_read_seconds", "Time of reads of the metrics source.", "source", "query", "outcome", buckets=_SLOW
        )
        self.read_bytes = page.counter("source_read_bytes_total", "Bytes read from the metrics source.", "source")
        self.source_doubt = page.gauge(
            "source_doubt",
            "1 while the metrics source as a whole is not trusted, and why; no series while it is.",
            "reason",
            unit="1",
        )
        self.samples = page.counter("samples_total", "Samples taken in.")
        self.blanks = page.counter(
            "blank_samples_total", "Samples that were no measurements (blanks, NaN, another unit)."
        )
        self.series = page.gauge("series", "Series in the latest reads.", "attributed")
        self.signal_coverage = page.gauge(
            "signal_coverage_ratio",
            "Share of the collection intervals in the judged windows that hold a sample, over all GPUs that report.",
            "signal",
            shown=LEADER,
        )
        self.gpu_nodes = page.gauge(
            "gpu_nodes",
            "Nodes whose GPUs run pods: all of these GPUs can be judged, some cannot, or none reports at all.",
            "state",
            shown=LEADER,
        )
        self.distrusted_gpus = page.gauge(
            "distrusted_gpus",
            "GPUs that run pods and cannot be judged, by node and reason.",
            "gpu_node",
            "reason",
            shown=LEADER,
        )
        self.hidden_nodes = page.gauge(
            "hidden_nodes",
            "Nodes with GPUs that cannot be judged, not shown because there are more than metrics.nodes.",
            shown=LEADER,
        )

    def _suspensions(self, page: MetricDeclarations) -> None:
        page.begin("Suspended workloads, and who got their GPUs", LEADER)
        self.suspensions = page.counter(
            "suspensions_total", "Workloads that were suspended, by why.", "workload_namespace", "reason"
        )
        self.reclaimed_gpus = page.counter(
            "reclaimed_gpus_total", "GPUs that suspended workloads gave up.", "workload_namespace", "reason"
        )
        self.suspended_gpus = page.gauge(
            "suspended_gpus",
            "GPUs that suspended workloads would hold if they ran.",
            "workload_namespace",
            "cluster_queue",
        )
        self.reclaimed_gpu_seconds = page.counter(
            "reclaimed_gpu_seconds_total",
            "GPU time that suspended workloads did not hold.",
            "workload_namespace",
            "cluster_queue",
        )
        transfer = ("from_namespace", "workload_namespace", "cluster_queue")
        self.given_gpus = page.counter(
            "given_gpus_total",
            "GPUs that plans took from ScalableWorkloads and gangs were admitted with.",
            *transfer,
        )
        self.given_gpu_seconds = page.counter(
            "given_gpu_seconds_total",
            "GPU time that gangs ran on GPUs that plans took from ScalableWorkloads which were suspended meanwhile.",
            *transfer,
        )
        self.idle_to_suspended = page.histogram(
            "idle_to_suspended_seconds",
            "Time from the last work of a workload until it was suspended.",
            "reason",
            buckets=_HOURS,
        )
        self.suspended_to_resumed = page.histogram(
            "suspended_to_resumed_seconds",
            "How long workloads were suspended before they were resumed.",
            buckets=_HOURS,
        )
        self.resumed_to_running = page.histogram(
            "resumed_to_running_seconds",
            "Time from asking a suspended ScalableWorkload to run again until all of its GPU pods ran.",
            buckets=_MINUTES,
        )
        self.resumptions = page.counter(
            "resumptions_total", "Suspended workloads that were resumed.", "workload_namespace"
        )
        self.regrets = page.counter(
            "regrets_total",
            "Workloads found idle that were resumed so soon that suspending them was a mistake.",
            "workload_namespace",
            "reason",
        )
        # Without labels, so that their series exist, at 0, before the first one: alerts are made of these.
        self.idle_suspensions = page.counter(
            "idle_suspensions_total", "Workloads that were suspended because they were found idle, all together."
        )
        self.regretted_suspensions = page.counter(
            "regretted_suspensions_total", "Those of them whose suspension was a mistake, as in regrets_total."
        )
        self.regret_window = page.gauge(
            "regret_window_seconds", "How soon is too soon: metrics.regretWithin of the settings.", shown=ALL
        )

    def _gangs(self, page: MetricDeclarations) -> None:
        page.begin("Gangs that wait, and plans for them", LEADER)
        waiting = ("cluster_queue", "stage", "reason")
        self.pending_gangs = page.gauge("pending_gangs", "Workloads that wait for GPUs, by where and why.", *waiting)
        self.pending_gpus = page.gauge("pending_gpus", "GPUs that Workloads wait for, by where and why.", *waiting)
        self.longest_pending = page.gauge(
            "longest_pending_seconds", "How long the Workload that waits longest has waited for GPUs.", "cluster_queue"
        )
        self.admission_wait = page.histogram(
            "admission_wait_seconds",
            "How long Workloads with GPUs had waited, from when they were queued, when they were admitted.",
            "cluster_queue",
            buckets=_HOURS,
        )
        self.standing_plans = page.gauge("standing_plans", "Plans that are being carried out.")
        self.planning_blind = page.gauge(
            "planning_blind", "1 while quota or verdicts are not known, so that nothing is planned.", unit="1"
        )
        self.reclaimable_gpus = page.gauge("reclaimable_gpus", "GPUs of idle workloads that a plan may take.")
        self.boosted = page.gauge(
            "boosted_workloads",
            "Idle workloads that Kueue preempts before others, by a negative priority boost of ours.",
        )
        self.reallocated_gpus = page.counter(
            "reallocated_gpus_total",
            "GPUs that plans took, by outcome.",
            "outcome",
        )
        self.reallocations = page.histogram(
            "reallocation_seconds",
            "Time from the grant on an idle workload to the admission of the gang that got its GPUs.",
            buckets=_MINUTES,
        )
        self.reallocation_stages = page.histogram(
            "reallocation_stage_seconds", "Time that each stage of a reclaim plan took.", "stage", buckets=_MINUTES
        )
        self.wasted_gpu_seconds = page.counter(
            "wasted_gpu_seconds_total", "GPU time between the suspension of victims and the admission of their gang."
        )

    def _budgets(self, page: MetricDeclarations) -> None:
        page.begin("Budgets; of one that applies to each namespace or queue, where least is left", LEADER)
        limited = ("budget", "limit")
        self.budget_limit = page.gauge(
            "budget_limit_workloads", "Workloads that the budget allows to be suspended.", *limited
        )
        self.budget_used = page.gauge("budget_used_workloads", "Workloads that the budget counts now.", *limited)
        self.budget_headroom = page.gauge(
            "budget_headroom_workloads",
            "Workloads that may still be suspended; 0 where the budget is exhausted.",
            *limited,
        )
        self.budget_open = page.gauge(
            "budget_open",
            "1 while the budget allows suspensions at this hour, 0 while it does not.",
            "budget",
            unit="1",
        )
        self.budget_refusals = page.counter(
            "budget_refusals_total",
            "Attempts to plan for a gang that failed because of the budget; of several that forbid it the one that "
            "does so longest.",
            "budget",
        )

    def _checks(self, page: MetricDeclarations) -> None:
        page.begin("AdmissionCheck and provisioning", LEADER)
        self.gate = page.gauge(
            "gated_gangs",
            "Gangs that have quota and whose AdmissionCheck of ours is Pending, by what they wait for.",
            "reason",
        )
        self.gate_waits = page.histogram(
            "gate_seconds",
            "Time from a gang's quota reservation until our AdmissionCheck was Ready, by why it was.",
            "reason",
            buckets=_MINUTES,
        )
        self.gate_gpus = page.counter(
            "gate_gpus_total",
            "GPUs of gangs whose AdmissionCheck became Ready, on nodes that existed before or were provisioned since.",
            "origin",
        )
        self.requests = page.counter(
            "provisioning_requests_total",
            "What became of ProvisioningRequests.",
            "event",
            "provisioning_class",
            "reason",
        )
        self.failed_requests = page.counter(
            "provisioning_failures_total",
            "ProvisioningRequests that have failed, or lost their booking or their capacity, all together.",
            unit="ProvisioningRequests",
        )
        self.open_requests = page.gauge(
            "open_provisioning_requests",
            "ProvisioningRequests of ours that are there, by how far they are.",
            "provisioning_class",
            "state",
        )

    def _certificates(self, page: MetricDeclarations) -> None:
        page.begin("Certificates, where TLS is on", EACH)
        self.certificate_expiry = page.gauge(
            "certificate_expiry_timestamp_seconds",
            "When clients begin to refuse the certificate that is served, and when no client is known any more.",
            "use",
        )
        self.certificate_files_usable = page.gauge(
            "certificate_files_usable",
            "1 while the files hold what is served, 0 while they cannot be used and the certificate before is served.",
            "use",
            unit="1",
        )

    def _health(self, page: MetricDeclarations) -> None:
        page.begin("Health", EACH)
        self.build = page.gauge("build_info", "Version of this process.", "version", unit="1")
        self.rpcs = page.histogram("rpc_seconds", "Time to answer KEDA.", "method", "code", buckets=_FAST)
        self.last_rpc = page.gauge("last_rpc_timestamp_seconds", "When KEDA called last; 0 before the first call.")
        self.kube_calls = page.histogram(
            "kube_call_seconds", "Time of calls to the Kubernetes API.", "verb", "resource", "status", buckets=_SLOW
        )
        self.copy_age = page.gauge(
            "copy_age_seconds",
            "Time since the last message of each watch of the Kubernetes API.",
            "resource",
        )
        self.reconciliations = page.histogram(
            "reconcile_seconds", "Time to reconcile a ScalableWorkload.", "outcome", buckets=_SLOW, shown=LEADER
        )
        self.reconcile_queue = page.gauge(
            "reconcile_queue_keys",
            "ScalableWorkloads that wait to be reconciled, or whose last reconciliation has failed.",
            "state",
            shown=LEADER,
        )
        self.leader = page.gauge(
            "leader", "1 while this replica holds the Lease; no series where there is none to hold.", unit="1"
        )
        self.events_lost = page.counter(
            "events_lost_total", "Kubernetes Events that were dropped or refused.", unit="events", shown=LEADER
        )

    def forget_what_the_leader_shows(self) -> None:
        """Another replica shows it now: what this one has shown last must not be added to that."""
        for forget in self._forget_of_one:
            forget()

    def show_no_leader(self) -> None:
        """Where there is no Lease there is no leader to be missed."""
        self.registry.unregister(self.leader)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that the scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
