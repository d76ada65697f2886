"""`simulate --since 3d --gpus ...`: Workloads from the history of a real Prometheus, as from kubectl's list of them."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from app.cli.command import Done, command
from prometheus_server import PrometheusServer, require_prometheus

DAY_S, HOUR_S = 86_400, 3600
BEGIN_S = int(time.time()) // DAY_S * DAY_S - 2 * DAY_S
"""Midnight; hours count from here."""
PREFIX = "kube_kueue_workload_"


@dataclass(frozen=True, kw_only=True)
class Life:
    """A Workload, by the hours of its life."""

    name: str
    gpus: int
    created: float
    admissions: tuple[tuple[float, float], ...]
    """From and until."""
    is_deleted: bool = False
    """When its last admission ends; otherwise it has finished by then."""
    priority: int = 0

    @property
    def end(self) -> float:
        return self.admissions[-1][1] if self.admissions else 48

    def shown(self, hour: float) -> Iterator[tuple[str, dict[str, Any], float]]:
        """Series, labels and values, from its creation until it is deleted, a day later at the latest."""
        if not self.created <= hour <= self.end + 24 * (not self.is_deleted):
            return
        key = {"namespace": "team", "workload": f"job-{self.name}", "uid": self.name}
        yield "created", key | {"owner_kind": "Job", "owner_name": self.name}, self.created
        begun = [each for each in self.admissions if each[0] <= hour]
        current = begun[-1] if begun else (self.created, self.created)
        is_last = bool(begun) and current == self.admissions[-1]
        is_admitted = is_last or hour < current[1]
        labels = key | {"priority": self.priority, "status": is_admitted}
        if is_admitted:
            yield "status_admitted_time", labels | {"cluster_queue": "a"}, current[0]
            yield "podset_info", key | {"podset": "main", "resource_nvidia_com_gpu": self.gpus}, 1 / HOUR_S
        else:
            yield "status_admitted_time", labels, current[1]
        if is_last and hour >= self.end and not self.is_deleted:
            yield "status_finished_time", key, self.end

    @property
    def listed(self) -> dict[str, Any]:
        """As kubectl would print it at the end, if it was not deleted."""
        admitted, end = self.admissions[-1]
        instants = [datetime.fromtimestamp(BEGIN_S + each * HOUR_S, UTC).isoformat() for each in (admitted, end)]
        kinds = zip(("Admitted", "Finished"), instants, strict=True)
        held = {"cpu": "1", "nvidia.com/gpu": str(self.gpus)}
        return {
            "metadata": {
                "namespace": "team",
                "name": f"job-{self.name}",
                "creationTimestamp": datetime.fromtimestamp(BEGIN_S + self.created * HOUR_S, UTC).isoformat(),
                "ownerReferences": [{"kind": "Job", "name": self.name, "uid": self.name, "controller": True}],
            },
            "spec": {"priority": self.priority},
            "status": {
                "conditions": [{"type": kind, "status": "True", "lastTransitionTime": at} for kind, at in kinds],
                "admission": {"clusterQueue": "a", "podSetAssignments": [{"name": "main", "resourceUsage": held}]},
            },
        }


LIVES = (
    Life(name="nb", gpus=2, created=0, admissions=((0, 9),)),
    Life(name="gang", gpus=2, created=2, admissions=((4, 5),)),
    Life(name="evicted", gpus=1, created=8, admissions=((8, 9), (10, 12)), priority=3),
    Life(name="deleted", gpus=1, created=20, admissions=((21, 23),), is_deleted=True),
    Life(name="pending", gpus=2, created=10, admissions=()),
)
SHOWN_LATE = 25
"""In cluster `late`, kube-state-metrics shows Workloads from that hour on: the second day."""


def openmetrics() -> str:
    series: dict[tuple[str, str], list[str]] = {}

    def note(name: str, hour: float, value: float, **labels: Any) -> None:
        text = ",".join(f'{key}="{each}"' for key, each in labels.items())
        series.setdefault((name, text), []).append(f"{name}{{{text}}} {value:.15g} {round(BEGIN_S + hour * HOUR_S)}")

    for cluster in ("one", "late", "silent"):
        for minute in range(9 * 60):
            hour = minute / 60
            works = hour < 1 or hour >= 8
            pods = [("nb-0", n, 50 * works) for n in range(2)]
            pods += [(f"gang-{n}", 2 + n, 90) for n in range(2) if 4 <= hour < 5]
            for pod, gpu, value in pods:
                labels = {"cluster": cluster, "exported_namespace": "team", "exported_pod": pod, "UUID": f"GPU-{gpu}"}
                note("UTIL", hour, value, **labels)
                if not minute % 5:
                    owner = {"owner_kind": "Job", "owner_name": pod.partition("-")[0]}
                    note("kube_pod_owner", hour, 1, cluster=cluster, namespace="team", pod=pod, **owner)
    for step in range(47 * 12):
        hour = (5 * step - 1) / 60
        for cluster in ("one", "late") if hour >= SHOWN_LATE else ("one", "another"):
            for replica in ("x", "y"):
                for life in LIVES:
                    for name, labels, value in life.shown(hour):
                        at = 1 if name == "podset_info" else BEGIN_S + value * HOUR_S
                        note(f"{PREFIX}{name}", hour, at, cluster=cluster, instance=replica, **labels)
    names = sorted({name for name, _ in series})
    return "\n".join(
        line
        for name in names
        for line in (
            f"# TYPE {name} gauge",
            *(each for key, lines in series.items() if key[0] == name for each in lines),
        )
    )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_prometheus()
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), flags=["--storage.tsdb.retention.time=90d"])
    server.backfill(openmetrics())
    with server:
        yield server.url


def simulate(prometheus: str, folder: Path, *flags: str, cluster: str = "one") -> Done:
    settings = folder / "settings.yaml"
    document = {
        "signals": [{"name": "gpu_util", "metrics": ["UTIL"], "unit": "percent"}],
        "defaults": {"idleAfter": "30m"},
        "prometheus": {"url": prometheus, "matchers": {"cluster": cluster}},
    }
    settings.write_text(json.dumps(document), encoding="utf-8")
    past = ("--since", "3d", "--cache", str(folder / "cache"), "--config", str(settings))
    return command("simulate", *past, "--json", *flags)


@pytest.mark.prometheus
def test_history_gives_the_same_answer_as_the_list_of_the_same_workloads(prometheus: str, tmp_path: Path) -> None:
    """The gang waits from 2:00 to 9:00 for the notebook, and until 11:00 for what has a higher priority."""
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps({"items": [each.listed for each in LIVES if each.admissions]}), encoding="utf-8")
    from_file = simulate(prometheus, tmp_path, "--gpus", "a=2", "--workloads", str(path)).json
    from_history = simulate(prometheus, tmp_path, "--gpus", "a=2").json

    assert from_history | {"notes": []} == from_file | {"notes": []}
    assert (from_history["jobs"], from_history["sessions"], from_history["withSamples"]) == (4, 1, 2)
    assert from_history["notes"][1:] == ["samples show the pauses of 2 of 4 Workloads; the others work all the time"]
    none, always, _ = from_history["policies"]
    assert (none["gangWaitSeconds"]["p95"], always["gangWaitSeconds"]["p95"]) == (9 * HOUR_S, 0)


@pytest.mark.prometheus
def test_where_workloads_are_shown_for_a_part_of_the_time_a_note_says_since_when(
    prometheus: str, tmp_path: Path
) -> None:
    """Of the first day there are those whose objects were still there on the second."""
    answer = simulate(prometheus, tmp_path, "--gpus", "a=2", cluster="late").json
    day = datetime.fromtimestamp(BEGIN_S + DAY_S, UTC)

    assert (answer["jobs"], answer["withSamples"]) == (3, 2)
    assert answer["notes"][1] == (
        f"kube-state-metrics says nothing of Workloads before {day:%Y-%m-%d}: those that had ended by then are missing"
    )


@pytest.mark.prometheus
def test_where_none_are_shown_jobs_are_the_workloads_with_samples_and_a_note_says_so(
    prometheus: str, tmp_path: Path
) -> None:
    answer = simulate(prometheus, tmp_path, "--gpus", "2", cluster="silent").json

    assert (answer["jobs"], "withSamples" in answer) == (2, False)
    assert "kube-state-metrics names no Workload of Kueue that ran with GPUs" in answer["notes"][1]


@pytest.mark.prometheus
def test_the_clusterqueues_of_history_need_gpus(prometheus: str, tmp_path: Path) -> None:
    done = simulate(prometheus, tmp_path, "--gpus", "2")

    assert (done.status, "--gpus says nothing of ClusterQueue a; write a=GPUS, too" in done.err) == (2, True)
