"""Why was this workload suspended, or why not? Its signals, verdicts, thresholds and actions on one time axis."""

from typing import Any

from dashboards.panels import (
    ANSWERS,
    CLUSTER,
    GREEN,
    GREY,
    ORANGE,
    RED,
    STATES,
    Query,
    board,
    choice,
    fill,
    graph,
    number,
    row,
    timeline,
)

_ITS = f'{CLUSTER},workload_namespace=~"$namespace",name=~"$workload"'
_LEFT_OUT = "not among the workloads that are shown one by one (metrics.workloads), or the scaler knows nothing of it"
_NOT_FORESEEN = "no suspension is due"
_PODS = 'pod=~"$workload.*"'
_NOT_EXPORTERS = 'pod!="",pod!~"(.*-)?dcgm-exporter-.*"'
_RAW = "DCGM_FI_PROF_GR_ENGINE_ACTIVE|DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"


def build() -> Any:
    """The dashboard."""
    found = board("workload", "Workload", "One workload: its signals, its verdicts, and what was done.")
    found.with_variable(
        choice("namespace", "Namespace", "label_values(idle_gpu_scaler_workload_answer, workload_namespace)")
    )
    names = 'label_values(idle_gpu_scaler_workload_answer{workload_namespace=~"$namespace"}, name)'
    found.with_variable(choice("workload", "Workload", names, multi=False))
    return fill(found, *_now(), *_axis(), *_raw())


def _now() -> list[Any]:
    return [
        row("Now"),
        number(
            "Idle for", "How long have its GPUs been quiet?",
            f"max(idle_gpu_scaler_workload_idle_seconds{{{_ITS}}})",
            unit="s", empty="it is busy, or its state is unknown", steps={None: ORANGE}, size=(5, 4),
        ),
        number(
            "Idle after", "How long must it be quiet to be idle?",
            f"max(idle_gpu_scaler_workload_idle_after_seconds{{{_ITS}}})", unit="s", empty=_LEFT_OUT, size=(5, 4),
        ),
        number(
            "Suspended in", "When will it be suspended if it stays quiet?",
            f"min(idle_gpu_scaler_workload_suspend_timestamp_seconds{{{_ITS}}}) - time()",
            unit="s", empty=_NOT_FORESEEN, steps={None: RED}, size=(5, 4),
        ),
        number(
            "GPUs", "How many GPUs do its pods hold?", f"sum(idle_gpu_scaler_workload_gpus{{{_ITS}}})",
            unit="short", empty="its pods hold none", size=(4, 4),
        ),
        number(
            "Desired replicas", "How many replicas are desired?",
            f"max(idle_gpu_scaler_workload_desired_replicas{{{_ITS}}})",
            unit="short", empty=_LEFT_OUT, steps={None: GREY, 1: GREEN}, size=(5, 4),
        ),
    ]  # fmt: skip


def _axis() -> list[Any]:
    return [
        row("On one time axis"),
        timeline(
            "Answer to KEDA", "What was KEDA answered?",
            Query(expr=f"max by (answer) (idle_gpu_scaler_workload_answer{{{_ITS}}})", legend="{{answer}}"),
            empty=_LEFT_OUT, colours=ANSWERS, size=(24, 5),
        ),
        timeline(
            "Why", "For which reason?",
            Query(expr=f"max by (reason) (idle_gpu_scaler_workload_answer{{{_ITS}}})", legend="{{reason}}"),
            empty=_LEFT_OUT, colours={}, size=(24, 6),
        ),
        graph(
            "Signals and threshold", "Was there work? The highest sample of its GPUs within the window, by signal.",
            Query(expr=f"max by (signal) (idle_gpu_scaler_workload_peak_ratio{{{_ITS}}})", legend="{{signal}}"),
            Query(
                expr=f"max(idle_gpu_scaler_workload_active_above_ratio{{{_ITS}}})",
                legend="counts as work (activeAbove)",
            ),
            unit="percentunit", empty="no sample within its window", colours={"counts as work (activeAbove)": RED},
            size=(24, 8),
        ),
        graph(
            "Quiet for", "How long was it quiet, and how long must it be?",
            Query(expr=f"max(idle_gpu_scaler_workload_idle_seconds{{{_ITS}}})", legend="quiet for"),
            Query(
                expr=f"max(idle_gpu_scaler_workload_idle_after_seconds{{{_ITS}}})", legend="idle after (idleAfter)"
            ),
            unit="s", empty=_LEFT_OUT, colours={"quiet for": ORANGE, "idle after (idleAfter)": RED}, size=(12, 8),
        ),
        graph(
            "GPUs and replicas", "When was it suspended, when woken, and when were its GPUs really free?",
            Query(expr=f"sum by (state) (idle_gpu_scaler_workload_gpus{{{_ITS}}})", legend="{{state}}"),
            Query(expr=f"max(idle_gpu_scaler_workload_desired_replicas{{{_ITS}}})", legend="desired replicas"),
            unit="short", empty=_LEFT_OUT, colours={**STATES, "desired replicas": GREY}, size=(12, 8),
        ),
    ]  # fmt: skip


def _raw() -> list[Any]:
    return [
        row("Raw metrics of dcgm-exporter"),
        graph(
            "Engine active", "What does dcgm-exporter report for its GPUs, with either label convention?",
            Query(
                expr=f'{{__name__=~"{_RAW}",exported_namespace=~"$namespace",exported_{_PODS}}}',
                legend="{{exported_pod}} {{UUID}}",
            ),
            Query(
                expr=f'{{__name__=~"{_RAW}",exported_pod="",namespace=~"$namespace",{_PODS},{_NOT_EXPORTERS}}}',
                legend="{{pod}} {{UUID}}",
            ),
            unit="percentunit", empty="dcgm-exporter names none of its pods; their names begin with the workload's",
            size=(24, 8),
        ),
    ]  # fmt: skip
