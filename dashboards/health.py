"""Does the scaler have all data, does it answer KEDA, and are its decisions carried out?"""

from typing import Any

import yaml

from dashboards.panels import (
    ANSWERS,
    CLUSTER,
    GREEN,
    NO_LEADER,
    ORANGE,
    RED,
    Column,
    Query,
    bars,
    board,
    fill,
    graph,
    number,
    quantile,
    rate,
    row,
    rows,
)
from dashboards.prometheus_rules import RULES

_DOWN = "no replica is scraped"
_NO_TRIGGER = f"no ScaledObject names the scaler, or {_DOWN}"


def build() -> Any:
    """The dashboard."""
    found = board(
        "health",
        "Scaler health",
        "Does the scaler have all data, does it answer KEDA, and are its decisions carried out?",
        since="now-3h",
    )
    return fill(found, *_now(), *_evidence(), *_answers(), *_kubernetes())


def _now() -> list[Any]:
    return [
        row("Now"),
        number(
            "Replicas", "How many replicas are scraped?", f"count(idle_gpu_scaler_build_info{{{CLUSTER}}})",
            unit="short", empty=_DOWN, steps={None: ORANGE, 2: GREEN}, lasts=True,
        ),
        number(
            "Leaders", "Is there just one?", f"sum(idle_gpu_scaler_leader{{{CLUSTER}}})",
            unit="short", empty=_DOWN, steps={None: RED, 1: GREEN, 2: RED}, lasts=True,
        ),
        number(
            "Evaluation", "How old is the newest evaluation?",
            f"time() - max(idle_gpu_scaler_evaluation_timestamp_seconds{{{CLUSTER}}} > 0)",
            unit="s", empty=f"nothing was evaluated since the start, or {_DOWN}",
            steps={None: GREEN, 120: ORANGE, 300: RED}, lasts=True,
        ),
        number(
            "Last call of KEDA", "How long ago was KEDA's last call?",
            f"time() - max(idle_gpu_scaler_last_rpc_timestamp_seconds{{{CLUSTER}}} > 0)",
            unit="s", empty=f"KEDA has not called since the start, or {_DOWN}",
            steps={None: GREEN, 300: ORANGE, 600: RED},
        ),
        number(
            "Failing", "How many ScalableWorkloads cannot be reconciled?",
            f'sum(idle_gpu_scaler_reconcile_queue_keys{{{CLUSTER},state="Failing"}})',
            unit="short", empty=NO_LEADER, steps={None: GREEN, 1: RED},
        ),
        number(
            "Certificate", "When does the first certificate expire?",
            f"min(idle_gpu_scaler_certificate_expiry_timestamp_seconds{{{CLUSTER}}}) - time()",
            unit="s", empty=f"TLS is off, or {_DOWN}", steps={None: RED, 86400: ORANGE, 604800: GREEN},
        ),
    ]  # fmt: skip


def _evidence() -> list[Any]:
    columns = (
        Column(field="gpu_node", title="Node"),
        Column(field="reason", title="Reason"),
        Column(field="Value", title="GPUs"),
    )
    return [
        row("Evidence"),
        graph(
            "Doubts about the metrics source", "Is the metrics source trusted as a whole?",
            Query(expr=f"max by (reason) (idle_gpu_scaler_source_doubt{{{CLUSTER}}})", legend="{{reason}}"),
            unit="short", empty=f"the source is trusted, or {_DOWN}", size=(8, 8),
        ),
        graph(
            "Coverage", "Which share of the expected samples is there?",
            Query(expr=f"max by (signal) (idle_gpu_scaler_signal_coverage_ratio{{{CLUSTER}}})", legend="{{signal}}"),
            unit="percentunit", empty=f"no GPU reports, or {NO_LEADER}", size=(8, 8),
        ),
        graph(
            "Nodes with GPUs", "Of how many nodes can all GPUs be judged?",
            Query(expr=f"sum by (state) (idle_gpu_scaler_gpu_nodes{{{CLUSTER}}})", legend="{{state}}"),
            unit="short", empty=f"no pod holds a GPU, or {NO_LEADER}", stacked=True, size=(8, 8),
            colours={"Trusted": GREEN, "Distrusted": ORANGE, "Silent": RED},
        ),
        rows(
            "GPUs that cannot be judged", "On which nodes, and why?",
            f"sum by (gpu_node, reason) (idle_gpu_scaler_distrusted_gpus{{{CLUSTER}}}) > 0",
            columns=columns, empty=f"all GPUs can be judged, or {NO_LEADER}", size=(8, 8),
        ),
        graph(
            "Time of reads", "How long do reads of the metrics source take (p90)?",
            Query(expr=quantile(0.9, "idle_gpu_scaler_source_read_seconds", "query"), legend="{{query}}"),
            unit="s", empty="nothing was read", size=(8, 8),
        ),
        graph(
            "Time of evaluations", "How long does one evaluation take (p90)?",
            Query(expr=quantile(0.9, "idle_gpu_scaler_tick_seconds"), legend="evaluation"),
            unit="s", empty=_DOWN, size=(8, 8),
        ),
    ]  # fmt: skip


def _answers() -> list[Any]:
    return [
        row("Answers to KEDA"),
        graph(
            "Triggers by answer", "What is KEDA answered?",
            Query(
                expr=f"max by (answer) (sum by (answer, instance, pod) (idle_gpu_scaler_decisions{{{CLUSTER}}}))",
                legend="{{answer}}",
            ),
            unit="short", empty=_NO_TRIGGER, stacked=True, colours=ANSWERS, size=(8, 8),
        ),
        bars(
            "Reasons", "For which reasons?",
            Query(
                expr="max by (answer, reason) (sum by (answer, reason, instance, pod) ("
                f"idle_gpu_scaler_decisions{{{CLUSTER}}}))",
                legend="{{answer}}: {{reason}}",
            ),
            unit="short", empty=_NO_TRIGGER, size=(8, 8),
        ),
        graph(
            "Calls", "How often does KEDA call, and with which result?",
            Query(
                expr=rate(f"idle_gpu_scaler_rpc_seconds_count{{{CLUSTER}}}", "method, code"),
                legend="{{method}} {{code}}",
            ),
            unit="reqps", empty="KEDA has not called", size=(8, 8),
        ),
        graph(
            "Time of answers", "How long does KEDA wait for an answer (p99)?",
            Query(expr=quantile(0.99, "idle_gpu_scaler_rpc_seconds", "method"), legend="{{method}}"),
            unit="s", empty="KEDA has not called", size=(24, 7),
        ),
    ]  # fmt: skip


def _kubernetes() -> list[Any]:
    return [
        row("Kubernetes"),
        graph(
            "Calls by status", "With which status does the Kubernetes API answer?",
            Query(expr=rate(f"idle_gpu_scaler_kube_call_seconds_count{{{CLUSTER}}}", "status"), legend="{{status}}"),
            unit="reqps", empty=_DOWN, stacked=True, size=(8, 8),
        ),
        graph(
            "Age of copies", "How old are the watched copies of the cluster's objects?",
            Query(expr=f"max by (resource) (idle_gpu_scaler_copy_age_seconds{{{CLUSTER}}})", legend="{{resource}}"),
            unit="s", empty=_DOWN, size=(8, 8),
        ),
        graph(
            "Reconciliations", "Are decisions carried out?",
            Query(expr=rate(f"idle_gpu_scaler_reconcile_seconds_count{{{CLUSTER}}}", "outcome"), legend="{{outcome}}"),
            unit="ops", empty=f"there is no ScalableWorkload, or {NO_LEADER}", size=(8, 8),
        ),
        graph(
            "Alerts", "Which alerts of idle-gpu-scaler fire?",
            Query(
                # Alerts on DCGM alone, and ScalerDown, say no cluster.
                expr="count by (alertname, alertstate) ("
                f'ALERTS{{cluster=~"$cluster|",alertname=~"{"|".join(_alerts())}"}})',
                legend="{{alertname}} ({{alertstate}})",
            ),
            unit="short", empty="no alert of dashboards/rules fires, or Prometheus does not have them", bars=True,
            size=(24, 6),
        ),
    ]  # fmt: skip


def _alerts() -> list[str]:
    """The names of the alerts in `rules`."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES.glob("*.rules.yaml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return sorted(rule["alert"] for rule in rules if "alert" in rule)
