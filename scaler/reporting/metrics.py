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

from collections.abc import Iterator

from prometheus_client import ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from scaler.reclaim.transitions import LedgerStage
from scaler.reporting.exposition import parts_of
from scaler.reporting.metric_declarations import MetricSection, MetricSet, ReportedBy

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_MINUTES = (1, 5, 15, 30, 60, 120, 300, 600, 1800)
_HOURS = (10, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400)

EACH, ALL, LEADER = ReportedBy.BY_EACH, ReportedBy.BY_ALL, ReportedBy.BY_ONE

_OWNER = ("workload_namespace", "cluster_queue", "model", "state")
_WORKLOAD = ("workload_namespace", "cluster_queue", "kind", "name")
_TRANSFER = ("from_namespace", "workload_namespace", "cluster_queue")
_PENDING = ("cluster_queue", "stage", "reason")


class Metrics(MetricSet):
    _fleet = MetricSection("GPUs and money", LEADER)
    gpus = _fleet.gauge(
        "GPUs that pods hold, by what is known of them; together they are all that are allocated.", (*_OWNER, "reason")
    )
    gpu_seconds_total = _fleet.counter("GPU time by what was known of the GPUs while pods held them.", _OWNER)
    node_gpus = _fleet.gauge("GPUs that nodes offer to pods, held or free.", ("model",))
    gpu_hour_price = _fleet.gauge(
        "Price of one GPU for one hour, of every model that was seen and has one in the settings.",
        ("model", "currency"),
        unit="currency per GPU-hour",
    )
    idle_cost_total = _fleet.counter(
        "Price of the GPU time that was idle (states Idle and HeldIdle), of models that have a price.",
        ("workload_namespace", "cluster_queue", "model", "currency"),
        unit="currency",
    )
    unpriced_idle_gpu_seconds_total = _fleet.counter(
        "Idle GPU time that is missing in the cost, because the settings give no price for the model.", ("model",)
    )
    folded_namespaces = _fleet.gauge(
        "Namespaces shown together as (others), because there are more than metrics.namespaces."
    )

    _workloads = MetricSection("Single workloads, those that are idle longest first", LEADER)
    workload_idle_seconds = _workloads.gauge(
        "Since when the workload's GPUs are quiet; no series while work is seen or nothing is known.", _WORKLOAD
    )
    workload_gpus = _workloads.gauge("GPUs of the workload's pods.", (*_WORKLOAD, "state"))
    workload_answer = _workloads.gauge(
        "1 for what KEDA gets for the workload, and why.", (*_WORKLOAD, "answer", "reason"), unit="1"
    )
    workload_desired_replicas = _workloads.gauge("Replicas that the workload is asked to have.", _WORKLOAD)
    workload_idle_after_seconds = _workloads.gauge("How long the workload's GPUs must be quiet to be idle.", _WORKLOAD)
    workload_active_above_ratio = _workloads.gauge(
        "From which sample on a GPU of the workload counts as working.", _WORKLOAD
    )
    workload_peak_ratio = _workloads.gauge(
        "Highest sample of any of the workload's GPUs within the window that is judged.", (*_WORKLOAD, "signal")
    )
    workload_suspend_timestamp_seconds = _workloads.gauge(
        "When the workload will be suspended if it stays quiet; no series where that is not known.",
        _WORKLOAD,
    )
    workload_paused = _workloads.gauge(
        "1 while the workload's ScaledObject is paused: KEDA does not bring it to 0, whatever the answer is.",
        _WORKLOAD,
        unit="1",
    )
    workload_state = _workloads.gauge(
        "1 while the workload is Warned or Suspended, and whose it is; no series in other states. At most "
        "metrics.workloads of them.",
        (*_WORKLOAD, "state", "owner"),
        unit="1",
    )
    hidden_workloads = _workloads.gauge(
        "Workloads that are not shown one by one, because there are more than metrics.workloads.", ("verdict",)
    )

    workload_transitions_total = _workloads.counter(
        "States that workloads entered, and the state before; empty where none was known.", ("before", "entered")
    )

    _decisions = MetricSection("Decisions", ALL)
    decisions = _decisions.gauge(
        "Triggers by answer, verdict and reason in the latest evaluation.", ("answer", "verdict", "reason")
    )
    scaled_objects = _decisions.gauge("ScaledObjects that are evaluated; not what is scaled without KEDA.")
    paused_scaled_objects = _decisions.gauge("ScaledObjects that are evaluated, and paused in KEDA.", shown=LEADER)
    unusable_triggers = _decisions.gauge("Triggers whose metadata cannot be used.")
    evaluation_timestamp_seconds = _decisions.gauge(
        "Instant that the latest published evaluation is about; 0 before the first.", shown=EACH
    )
    decision_cache_age_seconds = _decisions.gauge(
        "Since when the latest evaluation stands; NaN before the first.", shown=EACH
    )
    tick_seconds = _decisions.histogram("Time of one evaluation.", buckets=_SLOW, shown=EACH)

    _evidence = MetricSection("Evidence", EACH)
    source_read_seconds = _evidence.histogram(
        "Time of reads of the metrics source.", ("source", "query", "outcome"), buckets=_SLOW
    )
    source_read_bytes_total = _evidence.counter("Bytes read from the metrics source.", ("source",))
    source_doubt = _evidence.gauge(
        "1 while the metrics source as a whole is not trusted, and why; no series while it is.", ("reason",), unit="1"
    )
    samples_total = _evidence.counter("Samples taken in.")
    blank_samples_total = _evidence.counter("Samples that were no measurements (blanks, NaN, another unit).")
    series = _evidence.gauge("Series in the latest reads.", ("attributed",))
    signal_coverage_ratio = _evidence.gauge(
        "Share of the collection intervals in the judged windows that hold a sample, over all GPUs that report.",
        ("signal",),
        shown=LEADER,
    )
    gpu_nodes = _evidence.gauge(
        "Nodes whose GPUs run pods: all of these GPUs can be judged, some cannot, or none reports at all.",
        ("state",),
        shown=LEADER,
    )
    distrusted_gpus = _evidence.gauge(
        "GPUs that run pods and cannot be judged, by node and reason.", ("gpu_node", "reason"), shown=LEADER
    )
    hidden_nodes = _evidence.gauge(
        "Nodes with GPUs that cannot be judged, not shown because there are more than metrics.nodes.", shown=LEADER
    )

    _suspensions = MetricSection("Suspended workloads, and who got their GPUs", LEADER)
    suspensions_total = _suspensions.counter("Workloads that were suspended, by why.", ("workload_namespace", "reason"))
    reclaimed_gpus_total = _suspensions.counter(
        "GPUs that suspended workloads gave up.", ("workload_namespace", "reason")
    )
    suspended_gpus = _suspensions.gauge(
        "GPUs that suspended workloads would hold if they ran.", ("workload_namespace", "cluster_queue")
    )
    reclaimed_gpu_seconds_total = _suspensions.counter(
        "GPU time that suspended workloads did not hold.", ("workload_namespace", "cluster_queue")
    )
    given_gpus_total = _suspensions.counter(
        "GPUs that reclaim plans freed and Workloads were admitted with.", _TRANSFER
    )
    given_gpu_seconds_total = _suspensions.counter(
        "GPU time of Workloads on GPUs that reclaim plans freed and whose former holders are suspended.",
        _TRANSFER,
    )
    idle_to_suspended_seconds = _suspensions.histogram(
        "Time from the last work of a workload until it was suspended.", ("reason",), buckets=_HOURS
    )
    suspended_to_resumed_seconds = _suspensions.histogram(
        "How long workloads were suspended before they were resumed.", buckets=_HOURS
    )
    wake_seconds = _suspensions.histogram(
        "Time from the request to resume a suspended workload until all of its GPU pods ran, by what asked for it.",
        ("cause",),
        buckets=_MINUTES,
    )
    before_suspend_total = _suspensions.counter(
        "Runs of hooks that have to end before a workload is suspended, by outcome.", ("hook", "outcome"), unit="runs"
    )
    resumptions_total = _suspensions.counter("Suspended workloads that were resumed.", ("workload_namespace",))
    regrets_total = _suspensions.counter(
        "Workloads found idle that were resumed so soon that suspending them was a mistake.",
        ("workload_namespace", "reason"),
    )
    # These have no labels, so that their series exist, at 0, before the first suspension: alerts are made of them.
    idle_suspensions_total = _suspensions.counter(
        "Workloads that were suspended because they were found idle, all together."
    )
    regretted_suspensions_total = _suspensions.counter(
        "Those of them whose suspension was a mistake, as in regrets_total."
    )
    regret_window_seconds = _suspensions.gauge("How soon is too soon: metrics.regretWithin of the settings.", shown=ALL)

    _gangs = MetricSection("Gangs that wait, and plans for them", LEADER)
    pending_gangs = _gangs.gauge("Workloads that wait for GPUs, by where and why.", _PENDING)
    pending_gpus = _gangs.gauge("GPUs that Workloads wait for, by where and why.", _PENDING)
    longest_pending_seconds = _gangs.gauge(
        "How long the Workload that waits longest has waited for GPUs.", ("cluster_queue",)
    )
    admission_wait_seconds = _gangs.histogram(
        "How long Workloads with GPUs had waited, from when they were queued, when they were admitted.",
        ("cluster_queue",),
        buckets=_HOURS,
    )
    active_plans = _gangs.gauge("Plans that are being carried out.")
    planning_blind = _gangs.gauge("1 while quota or verdicts are not known, so that nothing is planned.", unit="1")
    reclaimable_gpus = _gangs.gauge("GPUs of idle workloads that a plan may take.")
    boosted_workloads = _gangs.gauge(
        "Idle workloads that Kueue preempts before others, by a negative priority boost of ours."
    )
    reallocated_gpus_total = _gangs.counter("GPUs that plans took, by outcome.", ("outcome",))
    reallocation_seconds = _gangs.histogram(
        "Time from the grant on an idle workload to the admission of the gang that got its GPUs.", buckets=_MINUTES
    )
    reallocation_stage_seconds = _gangs.histogram(
        "Time that each stage of a reclaim plan took.", ("stage",), buckets=_MINUTES
    )
    wasted_gpu_seconds_total = _gangs.counter(
        "GPU time between the suspension of victims and the admission of the Workload."
    )

    _budgets = MetricSection("Budgets of policies", LEADER)
    budget_limit_workloads = _budgets.gauge("Workloads that the budget allows to be suspended.", ("budget",))
    budget_used_workloads = _budgets.gauge("Workloads that the budget counts now.", ("budget",))
    budget_headroom_workloads = _budgets.gauge(
        "Workloads that may still be suspended; 0 where the budget is exhausted.", ("budget",)
    )
    budget_refusals_total = _budgets.counter(
        "Attempts to plan for a gang that failed because of the budget; of several that forbid it the one that "
        "does so longest.",
        ("budget",),
    )

    _checks = MetricSection("AdmissionCheck and provisioning", LEADER)
    admission_check_pending_gangs = _checks.gauge(
        "Workloads with reserved quota whose AdmissionCheck of ours is Pending, by reason.", ("reason",)
    )
    admission_check_seconds = _checks.histogram(
        "Time from a gang's quota reservation until our AdmissionCheck was Ready, by why it was.",
        ("reason",),
        buckets=_MINUTES,
    )
    admission_check_gpus_total = _checks.counter(
        "GPUs of gangs whose AdmissionCheck became Ready, on nodes that existed before or were provisioned since.",
        ("origin",),
    )
    provisioning_requests_total = _checks.counter(
        "ProvisioningRequests by outcome.", ("event", "provisioning_class", "reason")
    )
    provisioning_failures_total = _checks.counter(
        "ProvisioningRequests that have failed, or lost their booking or their capacity, all together.",
        unit="ProvisioningRequests",
    )
    open_provisioning_requests = _checks.gauge(
        "ProvisioningRequests of ours that exist, by state.", ("provisioning_class", "state")
    )

    _offers = MetricSection("What a worker cluster of MultiKueue says to its hubs", LEADER)
    offer_answered_timestamp_seconds = _offers.gauge(
        "When the status of a ClusterOffer was written last; 0 before the first, and where there are none."
    )
    offer_unknown = _offers.gauge(
        "1 while quota, nodes or verdicts are not known, so that what was said before expires.", unit="1"
    )
    offered_workloads = _offers.gauge("Workloads of hubs by how they would fit.", ("fit",))
    judged_workloads = _offers.gauge(
        "Workloads of hubs that run here, by what their GPUs are judged to be.", ("verdict",)
    )

    _dispatch = MetricSection("What the hub of MultiKueue does for Workloads that wait for a cluster", LEADER)
    dispatcher_stopped = _dispatch.gauge(
        "1 for why no clusters are nominated; no series while they are.", ("reason",), unit="1"
    )
    dispatch_pending_workloads = _dispatch.gauge(
        "Workloads that wait for a cluster, by why nothing is done for them now; Nominating where something is.",
        ("reason",),
    )
    nominations_total = _dispatch.counter(
        "Nominations of clusters, by what the cluster had answered.", ("fit",), unit="nominations"
    )
    nominations_not_admitted_total = _dispatch.counter(
        "Workloads that a nominated worker did not admit in its time, and that fit by its answer.",
        ("worker",),
        unit="workloads",
    )
    worker_status_fresh = _dispatch.gauge(
        "1 while the worker answers, or is expected to soon; 0 while its status has expired or it is not reached.",
        ("worker",),
        unit="1",
    )

    _certificates = MetricSection("Certificates, where TLS is on", EACH)
    certificate_expiry_timestamp_seconds = _certificates.gauge(
        "When clients begin to refuse the certificate that is served, and when no client is known any more.", ("use",)
    )
    certificate_files_usable = _certificates.gauge(
        "1 while the files hold what is served, 0 while they cannot be used and the certificate before is served.",
        ("use",),
        unit="1",
    )

    _notifications = MetricSection("Notifications", LEADER)
    notifications_total = _notifications.counter(
        "Messages to owners by outcome; a failed one is tried again, an expired one was never accepted.",
        ("target", "outcome"),
    )
    oldest_pending_notification_seconds = _notifications.gauge(
        "Age of the oldest state of which an owner is still to be notified; 0 without one."
    )

    _health = MetricSection("Health", EACH)
    build_info = _health.gauge("Version of this process.", ("version",), unit="1")
    rpc_seconds = _health.histogram("Time to answer KEDA.", ("method", "code"), buckets=_FAST)
    http_refusals_total = _health.counter(
        "Connections and requests over HTTP that were refused: NoRequest, TooSlow or TooManyConnections.", ("reason",)
    )
    last_rpc_timestamp_seconds = _health.gauge("When KEDA called last; 0 before the first call.")
    kube_call_seconds = _health.histogram(
        "Time of calls to the Kubernetes API.", ("verb", "resource", "status"), buckets=_SLOW
    )
    copy_age_seconds = _health.gauge("Time since the last message of each watch of the Kubernetes API.", ("resource",))
    reconcile_seconds = _health.histogram(
        "Time to reconcile a ScalableWorkload.", ("outcome",), buckets=_SLOW, shown=LEADER
    )
    reconcile_queue_keys = _health.gauge(
        "ScalableWorkloads that wait to be reconciled, or whose last reconciliation has failed.",
        ("state",),
        shown=LEADER,
    )
    leader = _health.gauge("1 while this replica holds the Lease; no series where there is none to hold.", unit="1")
    events_lost_total = _health.counter("Kubernetes Events that were dropped or refused.", unit="events", shown=LEADER)

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        super().__init__()
        ProcessCollector(registry=self.registry)  # process_cpu_seconds_total and its like
        # Series whose labels are known begin at 0: `increase` does not see the first value of a series.
        for outcome in (LedgerStage.ADMITTED, LedgerStage.CANCELLED):
            self.reallocated_gpus_total.labels(outcome=str(outcome))
        for stage in ("Suspending", "Releasing", "Admitting"):
            self.reallocation_stage_seconds.labels(stage=stage)
        for origin in ("reused", "provisioned"):
            self.admission_check_gpus_total.labels(origin=origin)

    def show_no_leader(self) -> None:
        """The metric of the leader goes: with no Lease no leader can be missed."""
        self.registry.unregister(self.leader)

    def exposition(self, accept: str) -> tuple[Iterator[bytes], str]:
        """The metrics as they are now, in parts, in the format that the scraper accepts; and its content type."""
        encode, content_type = choose_encoder(accept)
        return parts_of(self.registry, encode), content_type
