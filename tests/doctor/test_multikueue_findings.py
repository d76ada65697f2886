"""What `doctor` finds on a hub of MultiKueue, as a table; and how it reads a hub and its workers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from scaler.doctor.facts import DoctorInputs, Listing
from scaler.doctor.findings import Severity, Unread
from scaler.doctor.multikueue import HubFacts, WorkerFacts, is_hub, multikueue_findings
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, Workload
from scaler.kube.objects.multikueue import ClusterOffer, ClusterPlacement, MultiKueueCluster, MultiKueueConfig
from scaler.multikueue.hub.dispatch.preflight import Preflight, PreflightResult

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
OK, WARN, FAIL = Severity.OK, Severity.WARN, Severity.FAIL
LONG_AGO, JUST_NOW = NOW - timedelta(minutes=5), NOW - timedelta(seconds=2)


def made(kind: Any, name: str, namespace: str = "", **parts: Any) -> Any:
    labels = parts.pop("labels", {})
    owners = parts.pop("owners", [])
    metadata = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owners}
    return msgspec.convert({"metadata": metadata, **parts}, kind)


def check(controller: str, parameters: str = "gpu") -> AdmissionCheck:
    ref = {"apiGroup": "x", "kind": "x", "name": parameters}
    return made(AdmissionCheck, "check", spec={"controllerName": controller, "parameters": ref})


DISPATCH = check("kueue.x-k8s.io/multikueue")
OF_OCM = check("open-cluster-management.io/placement")


def on_hub(cluster: str = "", nominated: tuple[str, ...] = ()) -> Workload:
    status = {"clusterName": cluster, "nominatedClusterNames": list(nominated)}
    return made(Workload, "gang", "team", status=status)


def copy(*, since: datetime = LONG_AGO, reserved: str = "True", owned: bool = True) -> Workload:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "gang", "controller": True}] if owned else []
    conditions = [{"type": "QuotaReserved", "status": reserved, "lastTransitionTime": since}]
    labels = {MULTIKUEUE_ORIGIN: "multikueue"}
    return made(Workload, "gang", "team", labels=labels, owners=owners, status={"conditions": conditions})


def cluster(name: str, active: str = "True", message: str = "Connected") -> MultiKueueCluster:
    condition = {"type": "Active", "status": active, "reason": "x", "message": message}
    return made(MultiKueueCluster, name, status={"conditions": [condition]})


def config(*names: str) -> MultiKueueConfig:
    return made(MultiKueueConfig, "gpu", spec={"clusters": list(names)})


def placement(number: int | None, kind: str) -> ClusterPlacement:
    policy = {"configurations": [{"scoreCoordinate": {"type": kind}}]}
    spec = {"prioritizerPolicy": policy} | ({} if number is None else {"numberOfClusters": number})
    return made(ClusterPlacement, "gpu", "team", spec=spec)


def offer(until: datetime, message: str = "") -> ClusterOffer:
    return made(ClusterOffer, "hub", status={"validUntil": until, "message": message})


def found(facts: DoctorInputs, **hub: Any) -> list[tuple[Severity, str, str]]:
    findings = multikueue_findings(facts, HubFacts(**hub), NOW)
    return [(each.severity, each.check, each.where) for each in findings]


def facts(*workloads: Workload, checks: tuple[AdmissionCheck, ...] = (DISPATCH,)) -> DoctorInputs:
    listings = {AdmissionCheck: Listing(items=checks), Workload: Listing(items=workloads)}
    return DoctorInputs(version="v1", served={}, listings=listings)


def of_copies(workload: Workload, *copies: Workload) -> list[str]:
    workers = {"b": WorkerFacts(copies=copies)}
    return [name for _, name, _ in found(facts(workload), workers=workers, dispatches=False)[1:]]


@pytest.mark.parametrize(
    ("what", "workload", "there", "expected"),
    [
        ("the cluster that runs it", on_hub("b"), copy(), []),
        ("a cluster that is nominated", on_hub(nominated=("b",)), copy(), []),
        ("another one, with a job", on_hub("a"), copy(), ["Duplicate"]),
        ("another one, without a job", on_hub("a"), copy(owned=False), ["Phantom"]),
        ("one that was evicted on the hub", on_hub(), copy(), ["Duplicate"]),
        ("another one, still without quota", on_hub("a"), copy(reserved="False", owned=False), []),
        ("another one, a moment ago", on_hub("a"), copy(since=JUST_NOW, owned=False), []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_left_on_a_worker_is_found(
    what: str, workload: Workload, there: Workload, expected: list[str]
) -> None:
    assert of_copies(workload, there) == expected, what


def test_a_copy_of_another_hub_is_not_this_hubs_matter() -> None:
    assert of_copies(made(Workload, "other", "team"), copy()) == []


def test_clusters_of_the_config_have_to_be_there_and_active() -> None:
    clusters = [cluster("a"), cluster("b", "False", "trainjobs is forbidden"), cluster("c", "False")]
    assert found(facts(), configs=[config("a", "b", "lost")], clusters=clusters)[1:] == [
        (FAIL, "NotActive", "MultiKueueCluster b"),
        (FAIL, "NoSuchCluster", "MultiKueueCluster lost"),
    ]
    assert (FAIL, "NotRead", "all MultiKueueClusters") in found(facts(), clusters=Unread("403"))


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (offer(NOW + timedelta(seconds=30)), (OK, "Offers")),
        (offer(NOW - timedelta(seconds=1), "samples cannot be trusted"), (WARN, "OfferExpired")),
        (Unread("404", is_absent=True), (WARN, "NoOffer")),
        (Unread("403"), (WARN, "NoOffer")),
    ],
)
def test_workers_that_do_not_answer_are_named(there: Any, expected: tuple[Severity, str]) -> None:
    hub = {"configs": [config("b")], "clusters": [cluster("b")], "workers": {"b": WorkerFacts(offer=there)}}
    assert [each[:2] for each in found(facts(), dispatches=True, **hub)][1:] == [expected]
    assert found(facts(), dispatches=False, **hub)[1:] == []


def test_a_worker_whose_copies_cannot_be_read_is_named() -> None:
    workers = {"b": WorkerFacts(copies=Unread("it does not answer"))}
    assert found(facts(), workers=workers)[1:] == [(WARN, "NotRead", "worker b")]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (PreflightResult.POLICY, OK),
        (PreflightResult.FEATURE_GATE, OK),
        (PreflightResult.NO_REMEDY, FAIL),
        (PreflightResult.KUEUE_DISPATCHES, FAIL),
        (PreflightResult.NOT_KNOWN, FAIL),
    ],
)
def test_whether_kueue_can_clear_nominations_is_said(result: PreflightResult, expected: Severity) -> None:
    [first, *_] = found(facts(), preflight=Preflight(result=result, message="it cannot"), dispatches=True)
    assert first[:2] == (expected, str(result))
    assert found(facts(), dispatches=True) == [(OK, "NotTried", "")]
    assert found(facts()) == [(OK, "NoDispatcher", "")]


@pytest.mark.parametrize(
    ("what", "chosen", "checks", "running", "expected"),
    [
        ("scores choose two clusters", placement(2, "AddOn"), (DISPATCH, OF_OCM), "a", ["ScoresDriveConfig"]),
        ("scores only order all clusters", placement(None, "AddOn"), (DISPATCH, OF_OCM), "a", []),
        ("no scores", placement(2, "BuiltIn"), (DISPATCH, OF_OCM), "a", []),
        ("the config is not written by OCM", placement(2, "AddOn"), (DISPATCH,), "a", []),
        ("no job runs there", placement(2, "AddOn"), (DISPATCH, OF_OCM), "", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_scores_must_not_drive_a_config_whose_clusters_run_jobs(
    what: str, chosen: ClusterPlacement, checks: tuple[AdmissionCheck, ...], running: str, expected: list[str]
) -> None:
    inputs = facts(on_hub(running), checks=checks)
    hub = {"configs": [config("a")], "clusters": [cluster("a")], "placements": [chosen]}
    assert [name for _, name, _ in found(inputs, **hub)[1:]] == expected, what


def test_only_a_cluster_with_a_check_of_multikueue_is_a_hub() -> None:
    assert is_hub(facts())
    assert not is_hub(facts(checks=(OF_OCM,)))
