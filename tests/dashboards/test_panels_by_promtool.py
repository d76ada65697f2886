"""What panels show of series that are given: nothing where it cannot be known, and of alerts only ours."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import needs

from dashboards import build
from dashboards.answers import Asker

pytestmark = [needs("promtool"), pytest.mark.prometheus]

PANELS = {
    (path.stem, panel["title"]): panel
    for path in sorted(build.FOLDER.glob("*.json"))
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
}
Samples = list[dict[str, Any]]


def query_of(board: str, title: str, **variables: str) -> str:
    [target] = PANELS[board, title]["targets"]
    return Asker(url="", start=0, end=3600, variables={"cluster": ".*", "queue": ".*"} | variables).filled(
        target["expr"]
    )


def tell(folder: Path, series: Mapping[str, float], expected: Mapping[str, Samples]) -> None:
    """Raises: AssertionError where the queries say something else of series that have stood for a minute."""
    test = {
        "input_series": [{"series": name, "values": f"{value}x4"} for name, value in series.items()],
        "interval": "15s",
        "promql_expr_test": [
            {"expr": query, "eval_time": "1m", "exp_samples": samples} for query, samples in expected.items()
        ],
    }
    file = folder / "panels.test.yaml"
    file.write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    ran = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout


def replicas(*, leading: int, **gauges: float) -> dict[str, float]:
    """Two of them, of which so many lead; gauges without labels are 0 at whoever does not."""
    found: dict[str, float] = {}
    for n in range(2):
        found[f'idle_gpu_scaler_build_info{{pod="{n}"}}'] = 1
        found[f'idle_gpu_scaler_leader{{pod="{n}"}}'] = float(n < leading)
        for name in ("reclaimable_gpus", "active_plans", "planning_blind"):
            found[f'idle_gpu_scaler_{name}{{pod="{n}"}}'] = gauges.get(name, 0.0) if n < leading else 0.0
    return found


NUMBERS = ("Pending Workloads", "Reclaimable GPUs", "Active plans", "Suspended GPUs")
NOW = {title: query_of("reclaim", title) for title in NUMBERS}
LEASELESS = {name: value for name, value in replicas(leading=1).items() if "leader" not in name and 'pod="0"' in name}
ZERO, NOTHING = [{"labels": "{}", "value": 0}], list[dict[str, Any]]()
CASES: dict[str, tuple[dict[str, float], dict[str, Samples]]] = {
    "without a leader it is not known": (replicas(leading=0), dict.fromkeys(NOW, NOTHING)),
    "one leads, and there is nothing": (replicas(leading=1), dict.fromkeys(NOW, ZERO)),
    "the one that leads sees no quota": (
        replicas(leading=1, planning_blind=1),
        dict.fromkeys(NOW, ZERO) | {"Reclaimable GPUs": NOTHING},
    ),
    "without a Lease one process tells all": (LEASELESS, dict.fromkeys(NOW, ZERO)),
    "nothing is scraped": ({}, dict.fromkeys(NOW, NOTHING)),
}


@pytest.mark.parametrize(("series", "shown"), CASES.values(), ids=CASES)
def test_a_number_is_0_only_where_it_is_known(
    series: dict[str, float], shown: dict[str, Samples], tmp_path: Path
) -> None:
    tell(tmp_path, series, {NOW[title]: samples for title, samples in shown.items()})


@pytest.mark.parametrize(
    ("title", "metric"),
    [("Evaluation", "evaluation_timestamp_seconds"), ("Last call of KEDA", "last_rpc_timestamp_seconds")],
)
def test_what_has_never_happened_is_not_long_ago(title: str, metric: str, tmp_path: Path) -> None:
    """It is 0 then, and that would be half a century."""
    query, never = query_of("health", title), {f'idle_gpu_scaler_{metric}{{pod="new"}}': 0.0}
    tell(tmp_path, never, {query: NOTHING})
    tell(tmp_path, never | {f'idle_gpu_scaler_{metric}{{pod="old"}}': 45.0}, {query: [{"labels": "{}", "value": 15}]})


def test_of_alerts_only_ours_are_shown_those_of_the_cluster_and_those_that_name_none(tmp_path: Path) -> None:
    series = {
        'ALERTS{alertname="NoLeader",alertstate="firing",cluster="a"}': 1,
        'ALERTS{alertname="TwoLeaders",alertstate="firing",cluster="b"}': 1,
        'ALERTS{alertname="ScalerDown",alertstate="pending"}': 1,
        'ALERTS{alertname="NodeFilesystemAlmostOutOfSpace",alertstate="firing",cluster="a"}': 1,
        'ALERTS{alertname="KEDAOperatorDown",alertstate="firing",cluster="a"}': 1,
    }
    expected = [
        {"labels": '{alertname="NoLeader",alertstate="firing"}', "value": 1},
        {"labels": '{alertname="ScalerDown",alertstate="pending"}', "value": 1},
    ]
    tell(tmp_path, series, {query_of("health", "Alerts", cluster="a"): expected})


def test_of_a_hub_it_is_shown_what_workers_answer_and_what_they_did_not_admit(tmp_path: Path) -> None:
    """Also by a replica that led before: its counters stand as they are."""
    series = {
        'idle_gpu_scaler_worker_status_fresh{pod="0",worker="w1"}': 1,
        'idle_gpu_scaler_worker_status_fresh{pod="0",worker="w2"}': 0,
        'idle_gpu_scaler_dispatch_pending_workloads{pod="0",reason="Patience"}': 2,
        'idle_gpu_scaler_dispatch_pending_workloads{pod="0",reason="NoCandidate"}': 1,
        'idle_gpu_scaler_nominations_total{pod="0",fit="Free"}': 3,
        'idle_gpu_scaler_nominations_total{pod="1",fit="Free"}': 2,
        'idle_gpu_scaler_nominations_not_admitted_total{pod="0",worker="w1"}': 0,
        'idle_gpu_scaler_nominations_not_admitted_total{pod="0",worker="w2"}': 4,
    }
    shown: dict[str, Samples] = {
        "Workers that answer": [{"labels": '{worker="w1"}', "value": 1}, {"labels": '{worker="w2"}', "value": 0}],
        "Workloads that wait for a cluster": [
            {"labels": '{reason="NoCandidate"}', "value": 1},
            {"labels": '{reason="Patience"}', "value": 2},
        ],
        "Nominations by answer": [{"labels": '{fit="Free"}', "value": 5}],
        "Not admitted by worker": [{"labels": '{worker="w2"}', "value": 4}],
    }
    tell(tmp_path, series, {query_of("reclaim", title): samples for title, samples in shown.items()})
    tell(tmp_path, {}, {query_of("reclaim", title): NOTHING for title in shown})
