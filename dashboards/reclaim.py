"""Pending Workloads and why they wait, reclaimed GPUs, and how long admission takes."""

from typing import Any

from dashboards.panels import (
    BLUE,
    CLUSTER,
    GREEN,
    GREY,
    NO_LEADER,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Column,
    Query,
    bars,
    board,
    choice,
    fill,
    gained,
    graph,
    heat,
    number,
    rate,
    row,
    rows,
)

_QUEUE = f'{CLUSTER},cluster_queue=~"$queue"'
_LED = f"(sum(idle_gpu_scaler_leader{{{CLUSTER}}}) > 0 or absent(idle_gpu_scaler_leader{{{CLUSTER}}}))"
"""A replica leads, or there is no Lease: then one process shows everything."""
_ZERO = f"0 * max(idle_gpu_scaler_build_info{{{CLUSTER}}}) and on () {_LED}"
"""0, as long as there is a replica that would show more."""
_SEEN = f"and on () {_LED} unless on () sum(idle_gpu_scaler_planning_blind{{{CLUSTER}}}) > 0"
"""Gauges without labels are 0 where no replica leads, and what is not known is no 0 either."""
_NONE_PENDING = f"no Workload that requests GPUs is pending, or {NO_LEADER}"
_NOTHING = "no GPUs were reclaimed in the selected time range"
_NO_CHECK = "no AdmissionCheck became Ready in the selected time range"
_NO_HUB = f"this is no hub of MultiKueue with the dispatcher, or {NO_LEADER}"


def build() -> Any:
    """The dashboard."""
    found = board("reclaim", "Reclaim and queues", "Pending Workloads, reclaimed GPUs, and how long admission takes.")
    namespaces = "label_values(idle_gpu_scaler_given_gpus_total, workload_namespace)"
    found.with_variable(choice("namespace", "Namespace of the admitted Workload", namespaces))
    found.with_variable(choice("queue", "ClusterQueue", "label_values(idle_gpu_scaler_pending_gangs, cluster_queue)"))
    return fill(found, *_now(), *_waiting(), *_given(), *_nodes(), *_hub(), *_harm())


def _now() -> list[Any]:
    return [
        row("Now"),
        number(
            "Pending Workloads", "How many Workloads that request GPUs are pending?",
            f"sum(idle_gpu_scaler_pending_gangs{{{_QUEUE}}}) or {_ZERO}",
            unit="short", empty=_NONE_PENDING, steps={None: GREEN, 1: ORANGE},
        ),
        number(
            "Requested GPUs", "How many GPUs do pending Workloads request?",
            f"sum(idle_gpu_scaler_pending_gpus{{{_QUEUE}}}) or {_ZERO}",
            unit="short", empty=_NONE_PENDING, steps={None: GREEN, 1: ORANGE},
        ),
        number(
            "Longest wait", "How long has the oldest of them been pending?",
            f"max(idle_gpu_scaler_longest_pending_seconds{{{_QUEUE}}}) or {_ZERO}",
            unit="s", empty=_NONE_PENDING, steps={None: GREEN, 3600: ORANGE, 14400: RED},
        ),
        number(
            "Reclaimable GPUs", "How many GPUs of idle workloads may reclaim plans use?",
            f"sum(idle_gpu_scaler_reclaimable_gpus{{{CLUSTER}}}) {_SEEN}", unit="short",
            empty=f"{NO_LEADER}, or quota or verdicts are not known",
        ),
        number(
            "Active plans", "How many reclaim plans are in progress?",
            f"sum(idle_gpu_scaler_active_plans{{{CLUSTER}}}) and on () {_LED}", unit="short", empty=NO_LEADER,
        ),
        number(
            "Suspended GPUs", "How many GPUs would the suspended workloads hold if they ran?",
            f"sum(idle_gpu_scaler_suspended_gpus{{{_QUEUE}}}) or {_ZERO}",
            unit="short", empty=f"nothing is suspended, or {NO_LEADER}", steps={None: PURPLE},
        ),
    ]  # fmt: skip


def _waiting() -> list[Any]:
    wait = gained(f"idle_gpu_scaler_admission_wait_seconds_bucket{{{_QUEUE}}}", "le, cluster_queue")
    return [
        row("Waiting"),
        graph(
            "Pending Workloads by reason", "Why are Workloads pending?",
            Query(
                expr=f"sum by (stage, reason) (idle_gpu_scaler_pending_gangs{{{_QUEUE}}})",
                legend="{{stage}}: {{reason}}",
            ),
            unit="short", empty=_NONE_PENDING, stacked=True,
        ),
        graph(
            "Longest wait by ClusterQueue", "In which ClusterQueue do Workloads wait longest?",
            Query(
                expr=f"max by (cluster_queue) (idle_gpu_scaler_longest_pending_seconds{{{_QUEUE}}})",
                legend="{{cluster_queue}}",
            ),
            unit="s", empty=_NONE_PENDING,
        ),
        bars(
            "Wait until admission (p90)", "How long had Workloads been pending that were admitted in the time range?",
            Query(expr=f"histogram_quantile(0.9, {wait})", legend="{{cluster_queue}}"),
            unit="s", empty="no Workload was admitted in the selected time range", size=(8, 8),
        ),
        graph(
            "Pending AdmissionChecks", "Why is the AdmissionCheck of Workloads with reserved quota Pending?",
            Query(
                expr=f"sum by (reason) (idle_gpu_scaler_admission_check_pending_gangs{{{CLUSTER}}})",
                legend="{{reason}}",
            ),
            unit="short", empty=f"no AdmissionCheck is Pending, or {NO_LEADER}", stacked=True, size=(8, 8),
        ),
        bars(
            "Budget headroom", "How many more workloads may be suspended under each budget?",
            Query(
                expr=f"min by (budget) (idle_gpu_scaler_budget_headroom_workloads{{{CLUSTER}}})",
                legend="{{budget}}",
            ),
            unit="short", empty=f"no policy has a budget, or {NO_LEADER}", steps={None: RED, 1: GREEN},
            size=(8, 8),
        ),
    ]  # fmt: skip


def _given() -> list[Any]:
    sums = "sum by (stage) (rate(idle_gpu_scaler_reallocation_stage_seconds"
    given = f'idle_gpu_scaler_given_gpus_total{{{_QUEUE},workload_namespace=~"$namespace"}}'
    columns = (
        Column(field="from_namespace", title="From namespace"),
        Column(field="workload_namespace", title="To namespace"),
        Column(field="cluster_queue", title="ClusterQueue"),
        Column(field="Value #A", title="GPUs"),
        Column(field="Value #B", title="GPU time", unit="s"),
    )
    by = "from_namespace, workload_namespace, cluster_queue"
    time = given.replace("given_gpus_total", "given_gpu_seconds_total")
    return [
        row("Reclaim"),
        rows(
            "Reclaimed GPUs by namespace", "Between which namespaces did plans move GPUs in the selected time range?",
            f"{gained(given, by)} > 0", f"{gained(time, by)} > 0",
            columns=columns, empty=_NOTHING, size=(14, 8),
        ),
        graph(
            "GPUs of plans by outcome", "Was the pending Workload admitted with them, or was the plan cancelled?",
            Query(
                expr="sum by (outcome) (increase("
                f"idle_gpu_scaler_reallocated_gpus_total{{{CLUSTER}}}[$__rate_interval]))",
                legend="{{outcome}}",
            ),
            unit="short", empty=_NOTHING, bars=True, size=(10, 8),
            colours={"Admitted": GREEN, "Cancelled": GREY},
        ),
        graph(
            "Plan duration by stage", "How long does each stage take, from the grant to the admission?",
            Query(
                expr=f"{sums}_sum{{{CLUSTER}}}[$__range])) / {sums}_count{{{CLUSTER}}}[$__range]))",
                legend="{{stage}}",
            ),
            unit="s", empty=_NOTHING, stacked=True, colours={"Suspending": SKY, "Releasing": ORANGE, "Admitting": BLUE},
        ),
        graph(
            "Reclaimed GPUs in use", "How many reclaimed GPUs do admitted Workloads hold?",
            Query(expr=rate(time, "workload_namespace"), legend="{{workload_namespace}}"),
            unit="short", empty=_NOTHING, stacked=True,
        ),
    ]  # fmt: skip


def _nodes() -> list[Any]:
    gpus = "idle_gpu_scaler_admission_check_gpus_total"
    held = gained(f"idle_gpu_scaler_admission_check_seconds_bucket{{{CLUSTER}}}", "le")
    requests = f"idle_gpu_scaler_provisioning_requests_total{{{CLUSTER}}}"
    return [
        row("Nodes: reused and provisioned"),
        graph(
            "GPUs by origin of their nodes", "Did Workloads whose check became Ready fit existing nodes, or new ones?",
            Query(
                expr=f"sum by (origin) (increase({gpus}{{{CLUSTER}}}[$__rate_interval]))",
                legend="{{origin}}",
            ),
            unit="short", empty=_NO_CHECK, bars=True, colours={"reused": GREEN, "provisioned": BLUE}, size=(8, 8),
        ),
        bars(
            "Open ProvisioningRequests", "What is the state of open ProvisioningRequests?",
            Query(
                expr="sum by (provisioning_class, state) ("
                f"idle_gpu_scaler_open_provisioning_requests{{{CLUSTER}}})",
                legend="{{state}} ({{provisioning_class}})",
            ),
            unit="short", empty=f"no ProvisioningRequest is open, or {NO_LEADER}", steps={None: BLUE}, size=(8, 8),
        ),
        bars(
            "ProvisioningRequests by outcome", "How did ProvisioningRequests end in the selected time range?",
            Query(expr=f"{gained(requests, 'event, reason')} > 0", legend="{{event}} {{reason}}"),
            unit="short", empty="no nodes were requested in the selected time range", steps={None: BLUE}, size=(8, 8),
        ),
        bars(
            "Wait for the AdmissionCheck (p90)", "How long was it Pending, from the quota reservation until Ready?",
            Query(
                expr=f"histogram_quantile(0.9, {held})",
                legend="until Ready",
            ),
            unit="s", empty=_NO_CHECK, size=(24, 4),
        ),
    ]  # fmt: skip


def _hub() -> list[Any]:
    nominations = gained(f"idle_gpu_scaler_nominations_total{{{CLUSTER}}}", "fit")
    not_admitted = gained(f"idle_gpu_scaler_nominations_not_admitted_total{{{CLUSTER}}}", "worker")
    return [
        row("Clusters of the hub"),
        heat(
            "Workers that answer", "Which worker clusters of MultiKueue answer the hub, and when did they not?",
            Query(
                expr=f"min by (worker) (idle_gpu_scaler_worker_status_fresh{{{CLUSTER}}})",
                legend="{{worker}}",
            ),
            unit="short", empty=f"there are no workers: {_NO_HUB}", steps={None: RED, 1: GREEN}, size=(12, 8),
        ),
        graph(
            "Workloads that wait for a cluster", "Why are Workloads with quota on the hub not on a cluster yet?",
            Query(
                expr=f"sum by (reason) (idle_gpu_scaler_dispatch_pending_workloads{{{CLUSTER}}})",
                legend="{{reason}}",
            ),
            unit="short", empty=f"no Workload waits for a cluster, or {_NO_HUB}", stacked=True,
        ),
        bars(
            "Nominations by answer", "How did Workloads fit the clusters that they were nominated for?",
            Query(expr=f"{nominations} > 0", legend="{{fit}}"),
            unit="short", empty="no cluster was nominated in the selected time range", steps={None: BLUE},
            size=(12, 6),
        ),
        bars(
            "Not admitted by worker", "Which workers did not admit Workloads in time that fit by their own answer?",
            Query(expr=f"{not_admitted} > 0", legend="{{worker}}"),
            unit="short", empty="none in the selected time range", steps={None: ORANGE}, size=(12, 6),
        ),
    ]  # fmt: skip


def _harm() -> list[Any]:
    suspended = f"idle_gpu_scaler_suspensions_total{{{CLUSTER}}}"
    regretted = f"idle_gpu_scaler_regrets_total{{{CLUSTER}}}"
    return [
        row("Side effects"),
        bars(
            "Suspensions and regrets", "How many were suspended, and how many of these were soon requested again?",
            Query(expr=f"{gained(suspended, 'reason')} > 0", legend="suspended: {{reason}}"),
            Query(expr=f"{gained(regretted, 'reason')} > 0", legend="regretted: {{reason}}"),
            unit="short", empty="nothing was suspended in the selected time range", steps={None: ORANGE},
            size=(12, 8),
        ),
        graph(
            "Unused GPU time", "How much GPU time is unused between suspension and admission?",
            Query(
                expr=rate(f"idle_gpu_scaler_wasted_gpu_seconds_total{{{CLUSTER}}}"),
                legend="between suspension and admission",
            ),
            unit="short", empty=_NOTHING, colours={"between suspension and admission": ORANGE},
        ),
    ]  # fmt: skip
