"""Who waits for GPUs and why, who gave and who got them, and how fast it goes."""

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
    number,
    rate,
    row,
    rows,
)

_QUEUE = f'{CLUSTER},cluster_queue=~"$queue"'
_LED = f"(sum(idle_gpu_scaler_leader{{{CLUSTER}}}) > 0 or absent(idle_gpu_scaler_leader{{{CLUSTER}}}))"
"""Somebody leads, or there is nothing to be led: without a Lease one process tells all."""
_ZERO = f"0 * max(idle_gpu_scaler_build_info{{{CLUSTER}}}) and on () {_LED}"
"""Nothing, as long as somebody is there who could say so."""
_SEEN = f"and on () {_LED} unless on () sum(idle_gpu_scaler_planning_blind{{{CLUSTER}}}) > 0"
"""Gauges without labels are 0 where nobody leads, and what cannot be seen is no 0 either."""
_NOBODY = f"nobody waits for GPUs, or {NO_LEADER}"
_NOTHING = "nothing was handed over in the chosen time"
_NO_CHECK = "no gang has passed our AdmissionCheck in the chosen time"


def build() -> Any:
    """The dashboard."""
    found = board("reclaim", "Reclaim and queues", "Who waits for GPUs, who gave them, who got them, and how fast.")
    namespaces = "label_values(idle_gpu_scaler_given_gpus_total, workload_namespace)"
    found.with_variable(choice("namespace", "Namespace of who gets", namespaces))
    found.with_variable(choice("queue", "ClusterQueue", "label_values(idle_gpu_scaler_pending_gangs, cluster_queue)"))
    return fill(found, *_now(), *_waiting(), *_given(), *_nodes(), *_harm())


def _now() -> list[Any]:
    return [
        row("Now"),
        number(
            "Gangs that wait", "How many Workloads wait for GPUs?",
            f"sum(idle_gpu_scaler_pending_gangs{{{_QUEUE}}}) or {_ZERO}",
            unit="short", empty=_NOBODY, steps={None: GREEN, 1: ORANGE},
        ),
        number(
            "GPUs they wait for", "How many GPUs do they wait for?",
            f"sum(idle_gpu_scaler_pending_gpus{{{_QUEUE}}}) or {_ZERO}",
            unit="short", empty=_NOBODY, steps={None: GREEN, 1: ORANGE},
        ),
        number(
            "Longest wait", "How long has the one waited that waits longest?",
            f"max(idle_gpu_scaler_longest_pending_seconds{{{_QUEUE}}}) or {_ZERO}",
            unit="s", empty=_NOBODY, steps={None: GREEN, 3600: ORANGE, 14400: RED},
        ),
        number(
            "Could be taken", "How many GPUs are idle that a plan may take?",
            f"sum(idle_gpu_scaler_reclaimable_gpus{{{CLUSTER}}}) {_SEEN}", unit="short",
            empty=f"{NO_LEADER}, or quota or verdicts cannot be seen",
        ),
        number(
            "Plans", "How many plans are being carried out?",
            f"sum(idle_gpu_scaler_standing_plans{{{CLUSTER}}}) and on () {_LED}", unit="short", empty=NO_LEADER,
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
        row("Who waits"),
        graph(
            "Gangs that wait, by reason", "Why do they wait?",
            Query(
                expr=f"sum by (stage, reason) (idle_gpu_scaler_pending_gangs{{{_QUEUE}}})",
                legend="{{stage}}: {{reason}}",
            ),
            unit="short", empty=_NOBODY, stacked=True,
        ),
        graph(
            "Longest wait by queue", "In which queue is it worst?",
            Query(
                expr=f"max by (cluster_queue) (idle_gpu_scaler_longest_pending_seconds{{{_QUEUE}}})",
                legend="{{cluster_queue}}",
            ),
            unit="s", empty=_NOBODY,
        ),
        bars(
            "Wait until admission, 9 of 10", "How long did those wait that were admitted in the chosen time?",
            Query(expr=f"histogram_quantile(0.9, {wait})", legend="{{cluster_queue}}"),
            unit="s", empty="nobody was admitted in the chosen time", size=(8, 8),
        ),
        graph(
            "Held by our AdmissionCheck", "What do gangs wait for that have their quota?",
            Query(
                expr=f"sum by (reason) (idle_gpu_scaler_admission_check_pending_gangs{{{CLUSTER}}})",
                legend="{{reason}}",
            ),
            unit="short", empty=f"no gang is held, or {NO_LEADER}", stacked=True, size=(8, 8),
        ),
        bars(
            "Room in budgets", "How many workloads do budgets still let be suspended?",
            Query(
                expr=f"min by (budget, limit) (idle_gpu_scaler_budget_headroom_workloads{{{CLUSTER}}})",
                legend="{{budget}} ({{limit}})",
            ),
            unit="short", empty=f"no budgets are set (reclaim.budgets), or {NO_LEADER}", steps={None: RED, 1: GREEN},
            size=(8, 8),
        ),
    ]  # fmt: skip


def _given() -> list[Any]:
    sums = "sum by (stage) (rate(idle_gpu_scaler_reallocation_stage_seconds"
    given = f'idle_gpu_scaler_given_gpus_total{{{_QUEUE},workload_namespace=~"$namespace"}}'
    columns = (
        Column(field="from_namespace", title="Gave"),
        Column(field="workload_namespace", title="Got"),
        Column(field="cluster_queue", title="In ClusterQueue"),
        Column(field="Value #A", title="GPUs"),
        Column(field="Value #B", title="GPU time", unit="s"),
    )
    by = "from_namespace, workload_namespace, cluster_queue"
    time = given.replace("given_gpus_total", "given_gpu_seconds_total")
    return [
        row("Freed and given"),
        rows(
            "GPUs given by plans", "From which namespace to which did plans give GPUs, in the chosen time?",
            f"{gained(given, by)} > 0", f"{gained(time, by)} > 0",
            columns=columns, empty=_NOTHING, size=(14, 8),
        ),
        graph(
            "GPUs that plans took", "Where did they end: with the gang, with somebody else, or nowhere?",
            Query(
                expr="sum by (outcome) (increase("
                f"idle_gpu_scaler_reallocated_gpus_total{{{CLUSTER}}}[$__rate_interval]))",
                legend="{{outcome}}",
            ),
            unit="short", empty=_NOTHING, bars=True, size=(10, 8),
            colours={"Admitted": GREEN, "Cancelled": GREY},
        ),
        graph(
            "How long a hand-over takes, by stage", "Where does the time go from a grant to the gang's admission?",
            Query(
                expr=f"{sums}_sum{{{CLUSTER}}}[$__range])) / {sums}_count{{{CLUSTER}}}[$__range]))",
                legend="{{stage}}",
            ),
            unit="s", empty=_NOTHING, stacked=True, colours={"Suspending": SKY, "Releasing": ORANGE, "Admitting": BLUE},
        ),
        graph(
            "GPU time that gangs got", "How many GPUs do gangs hold that others have left?",
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
            "GPUs of gangs that were let go", "Did they run on nodes that were there, or on new ones?",
            Query(
                expr=f"sum by (origin) (increase({gpus}{{{CLUSTER}}}[$__rate_interval]))",
                legend="{{origin}}",
            ),
            unit="short", empty=_NO_CHECK, bars=True, colours={"reused": GREEN, "provisioned": BLUE}, size=(8, 8),
        ),
        bars(
            "Open ProvisioningRequests", "How far are the requests that are there?",
            Query(
                expr="sum by (provisioning_class, state) ("
                f"idle_gpu_scaler_open_provisioning_requests{{{CLUSTER}}})",
                legend="{{state}} ({{provisioning_class}})",
            ),
            unit="short", empty=f"no node is asked for, or {NO_LEADER}", steps={None: BLUE}, size=(8, 8),
        ),
        bars(
            "What became of ProvisioningRequests", "Do autoscalers do what they are asked for, in the chosen time?",
            Query(expr=f"{gained(requests, 'event, reason')} > 0", legend="{{event}} {{reason}}"),
            unit="short", empty="no node was asked for in the chosen time", steps={None: BLUE}, size=(8, 8),
        ),
        bars(
            "Wait at our AdmissionCheck, 9 of 10", "How long did gangs wait from their quota until they were let go?",
            Query(
                expr=f"histogram_quantile(0.9, {held})",
                legend="until they were let go",
            ),
            unit="s", empty=_NO_CHECK, size=(24, 4),
        ),
    ]  # fmt: skip


def _harm() -> list[Any]:
    suspended = f"idle_gpu_scaler_suspensions_total{{{CLUSTER}}}"
    regretted = f"idle_gpu_scaler_regrets_total{{{CLUSTER}}}"
    return [
        row("Harm"),
        bars(
            "Suspensions and regrets", "How many were suspended, and how many of these were soon asked for again?",
            Query(expr=f"{gained(suspended, 'reason')} > 0", legend="suspended: {{reason}}"),
            Query(expr=f"{gained(regretted, 'reason')} > 0", legend="regretted: {{reason}}"),
            unit="short", empty="nobody was suspended in the chosen time", steps={None: ORANGE}, size=(12, 8),
        ),
        graph(
            "GPU time that nobody used", "What did hand-overs themselves waste?",
            Query(
                expr=rate(f"idle_gpu_scaler_wasted_gpu_seconds_total{{{CLUSTER}}}"),
                legend="between suspension and admission",
            ),
            unit="short", empty=_NOTHING, colours={"between suspension and admission": ORANGE},
        ),
    ]  # fmt: skip
