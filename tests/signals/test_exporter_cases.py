"""What the product makes of what exporters of the field show, with its defaults and with what operators write.

Two laws hold for every case and all settings: a pod that works is never judged idle, and never suspended; and `doctor`
has a word where one cannot be judged. In which cases idle pods are found is a table. `show_cases` shows what is judged
of a case over time.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from builders import NOON
from diagnosed_cases import problems
from exporter_cases import COLLECTIONS, DEFAULT, FOLDER, Case, load, names, runs, stored_labels
from http_stub import HttpStub, Reply
from judged_cases import Clock, judge, judged, metrics_of, settings_of
from prometheus_server import PrometheusServer, require_prometheus, static_scrape
from recordings import needs_data
from scripted_prometheus import ExactNamesOnly

from scaler.doctor.findings import Severity
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import SignalSource

ONE_WITNESS = "one signal alone decides, and it is wrong"

KNOWN = {
    "a21-transcoding": "the video engines work, and no kernel does",
    "a23r-light-work": "0.6 % is below the floor of 1 %",
    "b07-amd-cpx+gfx_and_umc": "of partitions other than the first both signals are 0, whatever they do",
    "c02-burst-in-gap-03": "the work lies within a hole that trust allows",
    "c02-burst-in-gap-05": "the work lies within a hole that trust allows",
    "c02-burst-in-gap-06": "the work lies within a hole that trust allows",
    "c04c-swap": "the exporter names the wrong pod, and nothing contradicts it",
    "d03-notebook-cpu": "the notebook works on its CPU",
}
"""Where a pod that works would be suspended, and why."""

ONLY_OBSERVED = {
    "b07-amd-cpx+configured": ONE_WITNESS,
    "c07b-mixed-stuck+configured": ONE_WITNESS,
}
"""Where a pod that works is judged idle, and yet would not be suspended, and why it is judged so."""

FOUND = {
    *("a01-dcgm3-honor-false", "a02-dcgm3-honor-true", "a03-dcgm4-hostname", "a04-old-namespace+configured"),
    *("a05-dcgm46-names", "a05b-dcgm46-true-ratio", "a06-no-profiling+configured", "a07-util-missing+configured"),
    *("a08-mig", "a13-virtual-gpus-exclusive", "a13-virtual-gpus-exclusive+configured", "a20-lower-case+configured"),
    *("a21-transcoding", "a21-transcoding+configured", "a22-blip+configured", "a22r-blip+configured"),
    *("b01-gke-dcgm-gmp", "b01-gke-dcgm-gmp+configured", "b03-tpu+configured"),
    *("b04-amd+configured", "b04-amd+gfx_and_umc", "b05-amd-honor-false+configured", "b06-amd-prefix+configured"),
    *("b07-amd-cpx+configured", "b07-amd-cpx+gfx_and_umc", "b08-intel-xpum1+configured", "b12-neuron-otel+configured"),
    *("b14-hami-legacy+configured", "b15-hami-new+configured", "b15-hami-new+unit_ratio_as_the_name_says"),
    *("b18-runai+configured", "b18-runai+target_node_label_replaced", "b19-otel-renamed+configured"),
    *("c01-gap-01", "c01-gap-02", "c01-gap-03", "c01-gap-05", "c01-gap-06", "c01-gap-07", "c01-gap-10"),
    *("c04-gpu-moves", "c06-old-node+configured", "c07-mixed-vendors+configured", "c08-duplicate-jobs"),
    *("c09-federated-60s+configured", "c09b-scrape-45s", "c09b-scrape-45s+configured", "c10-rules-only+configured"),
    *("c11-delay-1min", "c11-delay-2min+maxAgeIntervals_12_overlap_10m", "c12-churn", "c14-statefulset"),
    *("c15-multi-container", "c16-init-container", "c22-ha-pair", "d01-inference-between-requests"),
    *("d04-nccl-hang+configured", "d05-execution-idle", "e01-more-witnesses", "e01-more-witnesses+configured"),
    *("e04-ack+configured",),
}
"""Where idle pods are found in the end, all of them; anywhere else some are not, which is safe."""

NO_MATTER = {"a09-mig-stuck-zero", "b08-intel-xpum1+unit_percent_as_HELP_says"}
"""Where what the idle pod shows cannot be told from what one shows that works."""


def _key(case: str, settings: str) -> str:
    return case if settings == DEFAULT else f"{case}+{settings}"


def played(known: Mapping[str, str], *, without: frozenset[str] = frozenset()) -> Any:
    """Parametrizes a test over all cases and settings; those that are known to fail have to.

    By default the cases are judged with the settings that nobody has written.
    """
    found = [(_key(*each), *each) for each in runs() if _key(*each) not in without]
    if not found:
        return pytest.mark.parametrize(
            ("name", "settings"), [pytest.param("", "", id="cases", marks=needs_data(FOLDER))]
        )
    fails = {key: [pytest.mark.xfail(strict=True, raises=AssertionError, reason=why)] for key, why in known.items()}
    slow = {key: [pytest.mark.slow] for key, _, settings in found if settings != DEFAULT}
    params = [pytest.param(*each, id=key, marks=fails.get(key, []) + slow.get(key, [])) for key, *each in found]
    # By their scope all tests of one case come one after the other, and it is judged once.
    return pytest.mark.parametrize(("name", "settings"), params, scope="module")


@played(KNOWN)
def test_a_pod_that_works_is_never_suspended_nor_one_that_has_just_started(name: str, settings: str) -> None:
    assert [*judged(name, settings).answered_0()] == []


@played({**KNOWN, **ONLY_OBSERVED})
def test_a_pod_that_works_is_never_judged_idle(name: str, settings: str) -> None:
    assert [*judged(name, settings).wrong()] == []


@played({}, without=frozenset(NO_MATTER))
def test_idle_pods_are_found_where_the_table_says_so(name: str, settings: str) -> None:
    found = judged(name, settings).idle_in_the_end
    if found:
        assert all(found.values()) is (_key(name, settings) in FOUND), found


OLDER = {"c02-burst-in-gap-07": "the hole is older than the ten minutes that doctor reads; the leader's word is left"}


@played(OLDER)
def test_doctor_has_a_word_where_a_pod_cannot_be_judged_and_no_failure_where_all_can(name: str, settings: str) -> None:
    in_the_end = [each[-1] for each in judged(name, settings).verdicts.values() if each]
    words = {each.word for each in in_the_end if each.collection == COLLECTIONS}
    found = problems(name, settings)
    failures = [f"{each.check}: {each.what}" for each in found if each.severity is Severity.FAIL]
    if words <= {"Idle", "Busy"}:
        assert not failures, words
    else:
        assert found, words


@needs_data(FOLDER)
def test_the_tables_name_cases_that_there_are() -> None:
    named = {*KNOWN, *ONLY_OBSERVED, *FOUND, *NO_MATTER}
    assert named <= {_key(*each) for each in runs()}
    assert len(names()) == 91


# ------------------------------------------------------------------------------------------ beside what the pages say


def _without_devices(case: Case) -> Case:
    """Only the series that name a pod are left."""
    scrapes = [
        replace(each, shown={n: [line for line in lines if line.labels.get("pod")] for n, lines in each.shown.items()})
        for each in case.scrapes
    ]
    return replace(case, scrapes=scrapes)


@needs_data(FOLDER)
async def test_zeros_of_a_pod_alone_on_a_gpu_that_its_node_offers_more_than_once_are_no_proof() -> None:
    case = _without_devices(load("a14-false-zero-alone"))
    shared = replace(case, timeline=replace(case.timeline, node_labels={"nvidia.com/gpu.replicas": "4"}))

    run = await judge(shared, settings_of(case, "configured"))

    assert [*run.wrong()] == []


@needs_data(FOLDER)
async def test_defaults_read_a_server_that_knows_exact_names_only() -> None:
    case = load("b01-gke-dcgm-gmp")
    with ExactNamesOnly(metrics_of(case), clock=lambda: NOON) as prometheus:
        source = PrometheusSource(PrometheusConfig(url=prometheus.url, timeout=timedelta(minutes=1)))

        def over_http(_: Case, clock: Clock) -> SignalSource:
            prometheus.clock = clock
            return source

        run = await judge(case, settings_of(case, DEFAULT), source_of=over_http)
        await source.close()

    assert {pod: verdicts[-1].word for pod, verdicts in run.verdicts.items()} == {"idle": "Idle", "busy": "Busy"}


# --------------------------------------------------------------------------------- what Prometheus makes of the labels


def test_labels_of_targets_and_pages_are_told_apart_as_prometheus_does() -> None:
    exposed = {"pod": "train", "exported_pod": "old", "namespace": "", "gpu": "0"}
    target = {"pod": "exporter", "namespace": "gpu-operator", "job": "gpus"}

    assert stored_labels(exposed, target, honor_labels=False) == {
        "pod": "exporter",
        "exported_pod": "old",
        "exported_exported_pod": "train",
        "namespace": "gpu-operator",
        "gpu": "0",
        "job": "gpus",
    }
    assert stored_labels(exposed, target, honor_labels=True) == {
        "pod": "train",
        "exported_pod": "old",
        "gpu": "0",
        "job": "gpus",
    }


LABELLED = ("b04-amd", "b05-amd-honor-false", "a13-virtual-gpus-exclusive")
"""With and without honor_labels, and with labels that are empty."""


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[PrometheusServer]:
    require_prometheus()
    pages = {name: (FOLDER / name / "page-x.txt").read_bytes() for name in LABELLED}
    with HttpStub(lambda request: Reply(pages[request.path.strip("/")])) as exporter:
        address = exporter.url.removeprefix("http://")
        jobs = [_job(load(name), address) for name in LABELLED]
        with PrometheusServer(tmp_path, jobs) as prometheus:
            yield prometheus


def _job(case: Case, address: str) -> dict[str, Any]:
    (scrape,) = case.scrapes
    return static_scrape(
        case.name,
        honor_labels=scrape.honor_labels,
        metrics_path=f"/{case.name}",
        static_configs=[{"targets": [address], "labels": dict(scrape.target_labels)}],
    )


@needs_data(FOLDER)
@pytest.mark.prometheus
def test_a_real_prometheus_stores_the_same_labels(scraped: PrometheusServer) -> None:
    for name in LABELLED:
        (scrape,) = load(name).scrapes
        found = _stored_by(scraped, name)
        target = {**scrape.target_labels, "job": name, "instance": found[0]["instance"]}
        expected = [
            {**stored_labels(line.labels, target, honor_labels=scrape.honor_labels), "__name__": line.metric}
            for line in scrape.shown[10]
        ]

        assert sorted(found, key=_text) == sorted(expected, key=_text)


def _text(labels: Mapping[str, str]) -> str:
    return str(sorted(labels.items()))


def _stored_by(prometheus: PrometheusServer, job: str) -> list[dict[str, str]]:
    """The labels of what it has scraped of the job; it begins within five seconds of its start."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with urlopen(f"{prometheus.url}/api/v1/series?match[]=%7Bjob=%22{job}%22%7D") as answer:
            series = json.load(answer)["data"]
        found = [each for each in series if not each["__name__"].startswith(("up", "scrape_"))]
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"nothing was scraped of {job}")
