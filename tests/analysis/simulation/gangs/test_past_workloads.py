"""Workloads of Kueue that kube-state-metrics has shown: how long they ran, and when they were created."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_server import PrometheusServer, require_prometheus
from scaler_analysis.simulation.gangs.listed_workloads import listed_jobs
from scaler_analysis.simulation.gangs.past_workloads import WorkloadHistory, past_jobs
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob
from scaler_analysis.simulation.recordings.past_days import PastDays
from scaler_sandbox.manifests import objects_in
from scaler_sandbox.packaged import packaged

from scaler.kube.objects.gpu_pods import GpuResources
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import VectorSample

HERE = Path(__file__).parent
PAGE = (HERE / "kueue_workloads.prom").read_text(encoding="utf-8")
"""What kube-state-metrics 2.18 printed, with the config of deploy/examples, of the Workloads of a real Kueue."""
LISTED = (HERE / "kueue_workloads.json").read_text(encoding="utf-8")
"""What kubectl printed of the same Workloads then, as far as it is read."""
SCRAPED = datetime(2026, 11, 24, 19, 20, tzinfo=UTC)
"""At a step of five minutes, shortly after its latest instant."""
GPUS = ("nvidia.com/gpu", "nvidia.com/mig-*")
HOUR_S = 3600
SERIES = re.compile(r"^(kube_kueue_workload_\w+)\{(.*)\} (\S+)$", re.MULTILINE)


def labels_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


# ------------------------------------------------------------------------------------------------- what is said of them

WORKLOAD = {"namespace": "team", "workload": "w", "uid": "1"}


def created(hour: float, **more: str) -> tuple[str, dict[str, str]]:
    return "created", {**WORKLOAD, "owner_name": "job", "value": f"{hour * HOUR_S:g}", **more}


def admitted(hour: float, **more: str) -> tuple[str, dict[str, str]]:
    labels = {"status": "True", "cluster_queue": "a", "priority": "5"}
    return "admitted", {**WORKLOAD, **labels, "value": f"{hour * HOUR_S:g}", **more}


def evicted(hour: float) -> tuple[str, dict[str, str]]:
    return "admitted", {**WORKLOAD, "status": "False", "value": f"{hour * HOUR_S:g}"}


def finished(hour: float) -> tuple[str, dict[str, str]]:
    return "finished", {**WORKLOAD, "value": f"{hour * HOUR_S:g}"}


def seen(hour: float, gpus: int = 2, podset: str = "main", **more: str) -> tuple[str, dict[str, str]]:
    held = {"resource_cpu": "500m", "resource_nvidia_com_gpu": f"{gpus}"}
    return "podsets", {**WORKLOAD, "podset": podset, **held, "value": f"{hour * HOUR_S:g}", **more}


Said = tuple[str, dict[str, str]]


def jobs_of(*days: list[Said], begin_hour: float = 0.5) -> list[tuple[Any, ...]]:
    """Name, GPUs, and the hours at which it was created, from which it may have run, and how many it ran."""
    history = WorkloadHistory(GPUS)
    for day in days:
        topics: dict[str, list[dict[str, str]]] = {each: [] for each in ("created", "admitted", "finished", "podsets")}
        for topic, labels in day:
            topics[topic].append(labels)
        history.include(topics)
    found = history.jobs(datetime.fromtimestamp(begin_hour * HOUR_S, UTC))
    return [
        (each.name, each.gpus, each.created.timestamp() / HOUR_S, each.duration / timedelta(hours=1), each.queue)
        for each in found
    ]


SEEN_ONCE = {"value": "1"}

CASES: dict[str, tuple[list[list[Said]], list[tuple[Any, ...]]]] = {
    "from its admission until it finished": (
        [[created(1), admitted(2), finished(5), seen(9)]],
        [("team/w", 2, 1, 3, "a")],
    ),
    "until it was last seen where it did not finish": (
        [[created(1), admitted(2), seen(9)], [created(1), admitted(2), seen(30)]],
        [("team/w", 2, 1, 28, "a")],
    ),
    "until it was evicted, if it was not admitted again": (
        [[created(1), admitted(2), seen(4), evicted(4)], [created(1), evicted(4)]],
        [("team/w", 2, 1, 2, "a")],
    ),
    "until it was evicted, though its job has finished since": (
        [[created(1), admitted(2), seen(4), evicted(4), finished(9)]],
        [("team/w", 2, 1, 2, "a")],
    ),
    "from its last admission": (
        [[created(1), admitted(2), evicted(4), admitted(6), seen(4), finished(9)], [created(1), finished(9)]],
        [("team/w", 2, 1, 3, "a")],
    ),
    "from its last admission, though that was in the second of its eviction": (
        [[created(1), admitted(2), evicted(6), admitted(6), seen(9), finished(9)]],
        [("team/w", 2, 1, 3, "a")],
    ),
    "and in the ClusterQueue that it was last admitted to, with the GPUs that it was last seen with": (
        [[created(1), admitted(6, cluster_queue="b"), admitted(2), seen(9, 4), seen(4, 8)]],
        [("team/w", 4, 1, 3, "b")],
    ),
    "with the GPUs of all its pod sets, of several replicas only once": (
        [[created(1), admitted(2), *(seen(4, 3, "a", instance=each) for each in "xy"), seen(4, 2, "b"), finished(4)]],
        [("team/w", 5, 1, 2, "a")],
    ),
    "at least for a moment, where it was there between two steps only": (
        [[created(1), admitted(2), seen(0, **SEEN_ONCE)]],
        [("team/w", 2, 1, 1 / HOUR_S, "a")],
    ),
    "not, while it waits": ([[created(1), evicted(1)]], []),
    "not, without GPUs": ([[created(1), admitted(2), seen(4, 0)]], []),
    "not, where its creation is not known": ([[admitted(2), seen(4)]], []),
    "as another one, where its name is used again": (
        [
            [created(1), admitted(2), seen(3), finished(3)],
            [(topic, labels | {"uid": "2"}) for topic, labels in (created(4), admitted(5), seen(9, 1), finished(9))],
        ],
        [("team/w", 2, 1, 1, "a"), ("team/w#2", 1, 4, 4, "a")],
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_workload_ran(sentence: str) -> None:
    days, expected = CASES[sentence]
    assert jobs_of(*days) == expected


@pytest.mark.parametrize(
    ("begin_hour", "expected"),
    [
        (0.5, [("team/w", 2, 1, 3, "a")]),
        (1.5, [("team/w", 2, 1.5, 3, "a")]),
        (4, [("team/w", 2, 4, 1, "a")]),
        (5, []),
    ],
)
def test_what_was_before_the_begin_is_not_in_it(begin_hour: float, expected: list[tuple[Any, ...]]) -> None:
    assert jobs_of([created(1), admitted(2), finished(5), seen(9)], begin_hour=begin_hour) == expected


# ------------------------------------------------------------------------------------------ what is shown and asked for


def config() -> dict[str, Any]:
    """The entry of kube-state-metrics' config that the example has."""
    text = (packaged("examples") / "kube-state-metrics" / "kueue-workloads.yaml").read_text(encoding="utf-8")
    [document] = [
        yaml.load(body["data"]["workloads.yaml"], yaml.CSafeLoader) for body in objects_in(text) if "data" in body
    ]
    [entry] = document["spec"]["resources"]
    return dict(entry)


def labels_of_config() -> dict[str, set[str]]:
    """The labels that each series may have."""
    entry, found = config(), {}
    for each in entry["metrics"]:
        value = each["each"][each["each"]["type"].lower()]
        parts = (entry, each, value)
        found[f"{entry['metricNamePrefix']}_{each['name']}"] = {
            name for part in parts for name in part.get("labelsFromPath", {})
        }
    return found


def labels_of_page() -> dict[str, set[str]]:
    """The labels that each series has, without those that kube-state-metrics adds to all of custom resources."""
    found: dict[str, set[str]] = {}
    for name, labels, _ in SERIES.findall(PAGE):
        its = {"resource_*" if each.startswith("resource_") else each for each in labels_of(labels)}
        found.setdefault(name, set()).update(each for each in its if not each.startswith("customresource_"))
    return found


def test_the_page_was_printed_with_the_config_of_the_example() -> None:
    assert labels_of_config() == labels_of_page()


async def test_the_reader_asks_for_the_series_and_labels_of_the_config(tmp_path: Path) -> None:
    asked: list[str] = []

    class Source:
        async def demand(self, promql: str, *, at: datetime) -> list[VectorSample]:
            asked.append(promql)
            return []

        async def read(self, signal: object, *, start: datetime, end: datetime) -> Any:
            raise NotImplementedError

    past = PastDays(source=Source(), folder=tmp_path, gpu_resources=GPUS, matchers={"cluster": "one"})
    answer = await past_jobs(past, SCRAPED, SCRAPED + timedelta(minutes=1))
    assert (answer.jobs, answer.known_since) == ([], None)
    known = labels_of_config()
    names = [set(re.findall(r"kube_kueue_workload_\w+", promql)) for promql in asked]
    assert set().union(*names) == known.keys()
    for promql, [name] in zip(asked, names, strict=True):
        grouped = re.findall(r"by \(([^)]*)\)", promql)
        assert set(", ".join(grouped).split(", ")) - {""} <= known[name]
        assert promql.count(f'{name}{{cluster="one"}}') == promql.count(name)


# ---------------------------------------------------------------------------------------------------- a real Prometheus


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[PrometheusSource]:
    """The page, scraped once of each of two replicas, a moment before."""
    require_prometheus()
    server = PrometheusServer(tmp_path, flags=["--storage.tsdb.retention.time=90d"])
    lines = PAGE.rstrip().splitlines()
    server.backfill(
        "\n".join(
            replica
            for line in lines
            for replica in (
                [line]
                if line.startswith("#")
                else [line.replace("{", f'{{instance="{each}",') + f" {SCRAPED.timestamp() - 3:.0f}" for each in "xy"]
            )
        )
    )
    with server:
        source = PrometheusSource(PrometheusConfig(url=server.url))
        yield source
        await source.close()


@pytest.mark.prometheus
async def test_what_was_shown_of_workloads_gives_the_same_jobs_as_their_list(
    source: PrometheusSource, tmp_path: Path
) -> None:
    past = PastDays(source=source, folder=tmp_path, gpu_resources=GPUS)
    found = await past_jobs(past, SCRAPED - timedelta(days=1), SCRAPED + timedelta(hours=1))
    listed = jobs_of_list()
    assert found.jobs == listed
    assert {job.name: (job.gpus, job.priority) for job in listed} == {
        "ml/job-done-700cc": (2, 0),
        "ml/job-mig-0a83f": (2, 0),
        "ml/job-urgent-1f335": (6, 1000),
        "ml/job-victim-028b7": (4, 0),
        "ml/pair": (3, 7),
    }
    assert found.known_since == SCRAPED.replace(hour=0, minute=0)


def jobs_of_list() -> list[SimulatedJob]:
    """By their creation; what runs still runs until the page was scraped, when another Workload is created."""
    document = json.loads(LISTED)
    another = {"metadata": {"namespace": "ml", "name": "another", "creationTimestamp": SCRAPED.isoformat()}}
    found = listed_jobs(json.dumps({"items": [*document["items"], another]}), GpuResources(patterns=GPUS))
    return sorted(found, key=lambda job: (job.created, job.name))
