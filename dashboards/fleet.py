"""GPUs by state, idle GPUs by owner, their cost, and what was reclaimed."""

from typing import Any

from dashboards.panels import (
    CLUSTER,
    GREEN,
    NO_LEADER,
    ORANGE,
    RED,
    SCOPE,
    STATES,
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

_IDLE = f'idle_gpu_scaler_gpus{{{SCOPE},state=~"Idle|HeldIdle"}}'
_HELD = f"idle_gpu_scaler_gpus{{{SCOPE}}}"
_NONE = f"no GPU is held by any pod, or {NO_LEADER}"
_QUIET = f"nothing is idle, or {NO_LEADER}"
_FREE = "no prices are set: metrics.prices"
_WORKLOAD = (
    "/d/idle-gpu-scaler-workload?var-namespace=${__data.fields.Namespace}&var-workload=${__data.fields.Workload}"
    "&${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
)


def build() -> Any:
    """The dashboard."""
    fleet = board("fleet", "Fleet", "GPUs by state, idle GPUs by owner, their cost, and what was reclaimed.")
    fleet.with_variable(choice("namespace", "Namespace", "label_values(idle_gpu_scaler_gpus, workload_namespace)"))
    fleet.with_variable(choice("queue", "ClusterQueue", "label_values(idle_gpu_scaler_gpus, cluster_queue)"))
    return fill(fleet, *_now(), *_over_time(), *_whose(), *_won())


def _now() -> list[Any]:
    share = {None: GREEN, 0.1: ORANGE, 0.3: RED}
    return [
        row("Now"),
        number("Held", "How many GPUs do pods hold?", f"sum({_HELD})", unit="short", empty=_NONE, lasts=True),
        number(
            "Idle", "How many of them are idle?", f"sum({_IDLE}) or vector(0) and on () sum({_HELD})",
            unit="short", empty=_NONE, steps={None: GREEN, 1: ORANGE}, lasts=True,
        ),
        number(
            "Idle share", "Which share of the held GPUs is idle?",
            f"(sum({_IDLE}) or vector(0)) / sum({_HELD})", unit="percentunit", empty=_NONE, steps=share, lasts=True,
        ),
        number(
            "Free", "How many allocatable GPUs does no pod hold? In the whole cluster, whatever is selected above.",
            f"sum(idle_gpu_scaler_node_gpus{{{CLUSTER}}}) - (sum(idle_gpu_scaler_gpus{{{CLUSTER}}}) or vector(0))",
            unit="short", empty=f"no node offers GPUs, nodes are not known, or {NO_LEADER}", lasts=True,
        ),
        number(
            "Idle cost", "What have idle GPUs cost in the selected time range?",
            f"sum by (currency) (increase(idle_gpu_scaler_idle_cost_total{{{SCOPE}}}[$__range]))",
            unit="short", empty=_FREE, legend="{{currency}}", steps={None: ORANGE},
        ),
        number(
            "Reclaimed", "How many GPU-hours did admitted Workloads get on reclaimed GPUs in the time range?",
            gained(f"idle_gpu_scaler_given_gpu_seconds_total{{{CLUSTER}}}", "cluster") + " / 3600",
            unit="h", empty="no GPUs were reclaimed", legend="{{cluster}}", steps={None: GREEN},
        ),
    ]  # fmt: skip


def _over_time() -> list[Any]:
    return [
        row("Over time"),
        graph(
            "GPUs by state", "What is the state of the GPUs that pods hold?",
            Query(expr=f"sum by (state) ({_HELD})", legend="{{state}}"),
            unit="short", empty=_NONE, colours=STATES, stacked=True, size=(24, 9),
        ),
        heat(
            "Idle share by namespace", "Which share of its GPUs does each namespace leave idle, and at which hours?",
            Query(
                expr=f"(sum by (workload_namespace) ({_IDLE}) or 0 * sum by (workload_namespace) ({_HELD})) / "
                f"sum by (workload_namespace) ({_HELD})",
                legend="{{workload_namespace}}",
            ),
            unit="percentunit", empty=_NONE,
            steps={None: GREEN, 0.1: "#7FBF7B", 0.25: "#F0E442", 0.5: ORANGE, 0.75: RED},
        ),
    ]  # fmt: skip


def _whose() -> list[Any]:
    name = "workload_namespace, cluster_queue, kind, name"
    columns = (
        Column(field="workload_namespace", title="Namespace"),
        Column(field="name", title="Workload", link=_WORKLOAD),
        Column(field="kind", title="Kind"),
        Column(field="cluster_queue", title="ClusterQueue"),
        Column(field="Value #A", title="Idle for", unit="s"),
        Column(field="Value #B", title="GPUs"),
        Column(field="Value #C", title="Desired replicas"),
    )
    return [
        row("By owner"),
        graph(
            "Idle GPUs by namespace", "Which namespaces hold idle GPUs?",
            Query(expr=f"sum by (workload_namespace) ({_IDLE})", legend="{{workload_namespace}}"),
            unit="short", empty=_QUIET, stacked=True, size=(9, 8),
        ),
        graph(
            "Idle GPUs by model", "Which GPUs are idle?",
            Query(expr=f"sum by (model) ({_IDLE})", legend="{{model}}"),
            unit="short", empty=_QUIET, stacked=True, size=(8, 8),
        ),
        bars(
            "Why they are still held", "Why are workloads with idle GPUs not suspended?",
            Query(expr=f"sum by (reason) ({_IDLE})", legend="{{reason}}"),
            unit="short", empty=_QUIET, steps={None: ORANGE}, size=(7, 8),
        ),
        rows(
            "Idle longest", "Which workloads have been idle longest? The scaler shows the longest metrics.workloads.",
            f"max by ({name}) (idle_gpu_scaler_workload_idle_seconds{{{SCOPE}}})",
            f"sum by ({name}) (idle_gpu_scaler_workload_gpus{{{SCOPE}}})"
            f" and on ({name}) idle_gpu_scaler_workload_idle_seconds",
            f"max by ({name}) (idle_gpu_scaler_workload_desired_replicas{{{SCOPE}}})"
            f" and on ({name}) idle_gpu_scaler_workload_idle_seconds",
            columns=columns, empty=f"no workload is idle, or {NO_LEADER}",
        ),
    ]  # fmt: skip


def _won() -> list[Any]:
    return [
        row("Cost and savings"),
        graph(
            "Cost of idle GPUs", "What do idle GPUs cost per hour?",
            Query(
                expr=rate(f"idle_gpu_scaler_idle_cost_total{{{SCOPE}}}", "workload_namespace, currency") + " * 3600",
                legend="{{workload_namespace}} ({{currency}})",
            ),
            unit="short", empty=_FREE, stacked=True, size=(8, 8),
        ),
        graph(
            "GPU time by state", "How is GPU time distributed over states?",
            Query(expr=rate(f"idle_gpu_scaler_gpu_seconds_total{{{SCOPE}}}", "state"), legend="{{state}}"),
            unit="short", empty=_NONE, colours=STATES, stacked=True, size=(8, 8),
        ),
        graph(
            "Suspended", "How many GPUs would the suspended workloads hold if they ran?",
            Query(
                expr=f"sum by (workload_namespace) (idle_gpu_scaler_suspended_gpus{{{SCOPE}}})",
                legend="{{workload_namespace}}",
            ),
            unit="short", empty=f"nothing is suspended, or {NO_LEADER}", stacked=True, colours={}, size=(8, 8),
        ),
    ]  # fmt: skip
