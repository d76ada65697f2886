"""Scales of targets of any kind, read from a real HTTP API, and only when something changed."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from loops_builders import DEPLOYMENT_KIND, scaled_object
from small_cluster import SmallCluster, small_cluster, until

from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.api_requests import ApiRequest
from scaler.kube.discovery import Scale
from scaler.kube.objects.core import OwnerReference
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef
from scaler.kube.objects.resources import CUSTOM_RESOURCE_DEFINITION, DEPLOYMENT, STATEFUL_SET, Resource
from scaler.kube.transport import KubeTransport
from scaler.targets.scale_subresources import ScaleSubresources

NAMESPACE = "demo"
SERVE = scaled_object("serve", kind=DEPLOYMENT_KIND)
INFERENCE = Resource(group="ml.example.com", version="v1", plural="inferences", kind="Inference")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    async with small_cluster(tmp_path) as started:
        yield started


class Reader:
    """Scales with a transport of their own, and what they asked the API for."""

    def __init__(self, transport: KubeTransport, calls: list[ApiRequest]) -> None:
        self.transport = transport
        self.calls = calls
        self.changes: list[tuple[str, ScaleTargetRef]] = []
        self.scales = ScaleSubresources(
            transport, max_age=timedelta(minutes=3), changed=lambda *change: self.changes.append(change)
        )

    async def refresh(self, *scaled_objects: ScaledObject) -> None:
        await self.scales.refresh(scaled_objects)

    def of(self, scaled: ScaledObject = SERVE) -> Scale | Unknown:
        return self.scales.of(NAMESPACE, scaled.spec.scale_target_ref)

    def reads(self) -> int:
        """GETs of scales so far."""
        return sum(call.verb == "get" and call.resource.endswith("/scale") for call in self.calls)

    def asked(self) -> Counter[tuple[str, str]]:
        """(verb, resource) of all requests since the last time, watches left out."""
        found = Counter((each.verb, each.resource) for each in self.calls if each.verb != "watch")
        self.calls.clear()
        return found


@pytest.fixture
async def reader(cluster: SmallCluster) -> AsyncIterator[Reader]:
    calls: list[ApiRequest] = []
    async with await KubeTransport.connect(cluster.kubeconfig, call_seconds=30, observe=calls.append) as transport:
        reading = Reader(transport, calls)
        yield reading
        await reading.scales.close()


def deployment(name: str = "serve", *, replicas: int = 1) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "serve:1"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def why(scale: Scale | Unknown) -> UnknownReason | None:
    return scale.reason if isinstance(scale, Unknown) else None


async def scale_to(
    cluster: SmallCluster, replicas: int, *, resource: Resource = DEPLOYMENT, name: str = "serve"
) -> None:
    await cluster.change(resource, name, {"spec": {"replicas": replicas}}, "scale")


# ---- what is read


async def test_nothing_is_read_while_nothing_changes(cluster: SmallCluster, reader: Reader) -> None:
    """However many ScaledObjects there are, a tick without news costs the API nothing."""
    names = [f"serve-{n}" for n in range(20)]
    for name in names:
        await cluster.create(DEPLOYMENT, deployment(name))
    scaled_objects = [scaled_object(name, kind=DEPLOYMENT_KIND) for name in names]
    await reader.refresh(*scaled_objects)
    assert reader.asked() == {("list", "deployments"): 1, ("get", "deployments/scale"): 20}
    for _ in range(3):
        await reader.refresh(*scaled_objects)
    assert reader.asked() == {}


async def test_only_the_scale_of_what_changed_is_read_again(cluster: SmallCluster, reader: Reader) -> None:
    for name in ("serve", "other"):
        await cluster.create(DEPLOYMENT, deployment(name))
    other = scaled_object("other", kind=DEPLOYMENT_KIND)
    await reader.refresh(SERVE, other)
    reader.asked()
    await scale_to(cluster, 0)
    await until(lambda: len(reader.changes) == 3)
    await reader.refresh(SERVE, other)
    assert reader.asked() == {("get", "deployments/scale"): 1}
    assert reader.of() == Scale(replicas=0, selector="app=serve")


async def test_every_change_of_a_specification_is_reported(cluster: SmallCluster, reader: Reader) -> None:
    await cluster.create(DEPLOYMENT, deployment())
    await reader.refresh(SERVE)
    await scale_to(cluster, 0)
    await cluster.change(DEPLOYMENT, "serve", {"status": {"readyReplicas": 1, "replicas": 1}}, "status")
    await cluster.delete(DEPLOYMENT, "serve")
    await until(lambda: len(reader.changes) >= 3)
    assert reader.changes == [(NAMESPACE, SERVE.spec.scale_target_ref)] * 3  # its status is no wish of anybody's


async def test_a_kind_is_followed_once_however_many_ask_at_once(cluster: SmallCluster, reader: Reader) -> None:
    """Ticks and changes in between refresh at the same time; a second watch of a kind would stay for ever."""
    await cluster.create(CUSTOM_RESOURCE_DEFINITION, inference_crd())
    await asyncio.gather(*(reader.refresh(OF_CRD) for _ in range(5)))
    await until(lambda: any(call.verb == "watch" for call in reader.calls))
    assert Counter(call.verb for call in reader.calls if call.resource == "inferences") == {"list": 1, "watch": 1}


async def test_the_scale_of_scalable_workloads_is_not_read(reader: Reader) -> None:
    """More is known of them than their scale, from their own reflector."""
    await reader.refresh(scaled_object("train"))
    assert reader.asked() == {}


async def test_targets_without_a_scaled_object_are_forgotten(cluster: SmallCluster, reader: Reader) -> None:
    await cluster.create(DEPLOYMENT, deployment())
    await reader.refresh(SERVE)
    reader.scales.forget_others([])
    assert why(reader.of()) is UnknownReason.STALE_CLUSTER_VIEW
    await reader.refresh(SERVE)
    assert isinstance(reader.of(), Scale)


# ---- kinds


def inference_crd(*, with_scale: bool = True) -> dict[str, Any]:
    names = {"plural": "inferences", "singular": "inference", "kind": "Inference", "listKind": "InferenceList"}
    paths = {
        "specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.size",
        "labelSelectorPath": ".status.pods",
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "subresources": {"status": {}, **({"scale": paths} if with_scale else {})},
    }
    spec = {"group": "ml.example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "inferences.ml.example.com"}, "spec": spec}


OF_CRD = scaled_object("llm", kind=("ml.example.com/v1", "Inference"))


async def test_any_custom_resource_with_a_scale_is_a_target(cluster: SmallCluster, reader: Reader) -> None:
    await cluster.create(CUSTOM_RESOURCE_DEFINITION, inference_crd())
    llm = {"metadata": {"name": "llm"}, "spec": {"size": 3}, "status": {"size": 2, "pods": "model=llm,!canary"}}
    await cluster.create(INFERENCE, llm)
    await reader.refresh(OF_CRD)
    assert reader.of(OF_CRD) == Scale(replicas=3, selector="model=llm,!canary")
    await scale_to(cluster, 0, resource=INFERENCE, name="llm")
    await until(lambda: len(reader.changes) == 2)
    await reader.refresh(OF_CRD)
    assert reader.of(OF_CRD) == Scale(replicas=0, selector="model=llm,!canary")


async def test_a_custom_resource_without_a_scale_is_no_target(cluster: SmallCluster, reader: Reader) -> None:
    await cluster.create(CUSTOM_RESOURCE_DEFINITION, inference_crd(with_scale=False))
    await cluster.create(INFERENCE, {"metadata": {"name": "llm"}})
    await reader.refresh(OF_CRD)
    assert why(reader.of(OF_CRD)) is UnknownReason.TARGET_NOT_FOUND


async def test_a_kind_that_is_installed_later_is_found(
    cluster: SmallCluster, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader.scales._discovery, "_missing_seconds", 0.0)
    await reader.refresh(OF_CRD)
    assert why(reader.of(OF_CRD)) is UnknownReason.TARGET_NOT_FOUND
    await cluster.create(CUSTOM_RESOURCE_DEFINITION, inference_crd())
    await cluster.create(INFERENCE, {"metadata": {"name": "llm"}, "spec": {"size": 1}, "status": {"pods": "model=llm"}})
    await reader.refresh(OF_CRD)
    assert reader.of(OF_CRD) == Scale(replicas=1, selector="model=llm")


async def test_names_that_lead_elsewhere_ask_nothing(cluster: SmallCluster, reader: Reader) -> None:
    await cluster.create(DEPLOYMENT, deployment())
    evil = [
        scaled_object("a", kind=DEPLOYMENT_KIND, target="../secrets/x"),
        scaled_object("b", kind=("apps/v1/../../api/v1", "Secret")),
    ]
    await reader.refresh(*evil)
    assert [why(reader.of(each)) for each in evil] == [UnknownReason.TARGET_NOT_FOUND] * 2
    assert {call.resource for call in reader.calls} <= {"deployments"}


# ---- what owns pods


def owned_by(kind: str, name: str, uid: str, *, api_version: str = "apps/v1") -> OwnerReference:
    return OwnerReference(api_version=api_version, kind=kind, name=name, uid=uid, controller=True)


async def test_the_kind_of_an_owner_is_followed_from_when_it_is_asked_for(
    cluster: SmallCluster, reader: Reader
) -> None:
    """Its objects are read by one list, however many pods name them."""
    await cluster.create(STATEFUL_SET, {"metadata": {"name": "leads", "labels": {"a": "b"}}, "spec": {}})
    uid = (await cluster.read(STATEFUL_SET, "leads"))["metadata"]["uid"]
    asked = owned_by("StatefulSet", "leads", uid)
    assert isinstance(reader.scales.owner(NAMESPACE, asked), Unknown)
    before = reader.scales.revision(NAMESPACE)
    await reader.refresh()
    found = reader.scales.owner(NAMESPACE, asked)
    assert not isinstance(found, Unknown)
    assert (found.name, found.uid, found.labels) == ("leads", uid, {})
    assert reader.scales.revision(NAMESPACE) != before
    assert isinstance(reader.scales.owner(NAMESPACE, owned_by("StatefulSet", "leads", "uid-before")), Unknown)
    assert reader.asked() == {("list", "statefulsets"): 1}


async def test_a_kind_that_is_listed_may_be_read(reader: Reader) -> None:
    asked = owned_by("StatefulSet", "leads", "u")
    reader.scales.owner(NAMESPACE, asked)
    await reader.refresh()
    assert reader.scales.may_read(NAMESPACE, asked)


async def test_an_owner_that_gets_an_owner_is_news(cluster: SmallCluster, reader: Reader) -> None:
    """Its generation stays the same."""
    for name in ("workers", "leads"):
        await cluster.create(STATEFUL_SET, {"metadata": {"name": name}, "spec": {}})
    uid = (await cluster.read(STATEFUL_SET, "leads"))["metadata"]["uid"]
    reader.scales.owner(NAMESPACE, owned_by("StatefulSet", "workers", "any"))
    await reader.refresh()
    before = reader.scales.revision(NAMESPACE)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "leads", "uid": uid, "controller": True}
    await cluster.change(STATEFUL_SET, "workers", {"metadata": {"ownerReferences": [owner]}})
    await until(lambda: reader.scales.revision(NAMESPACE) != before)


async def test_a_kind_of_owners_that_is_not_served_or_hidden_says_so(cluster: SmallCluster, reader: Reader) -> None:
    unserved, hidden = owned_by("Clique", "a", "u", api_version="x.example.com/v1"), owned_by("ReplicaSet", "a", "u")
    with cluster.refusing("GET", "/replicasets", status=403):
        for each in (unserved, hidden):
            assert isinstance(reader.scales.owner(NAMESPACE, each), Unknown)
        assert all(reader.scales.may_read(NAMESPACE, each) for each in (unserved, hidden))
        await reader.refresh()
        doubts = [reader.scales.owner(NAMESPACE, each) for each in (unserved, hidden)]
        assert not any(reader.scales.may_read(NAMESPACE, each) for each in (unserved, hidden))
    assert all(isinstance(each, Unknown) for each in doubts)
    assert "kind 'Clique' of apiVersion 'x.example.com/v1'" in str(doubts[0])
    assert "ReplicaSet objects cannot be listed (value targets of the chart): " in str(doubts[1])


async def test_how_many_kinds_are_followed_for_pods_is_bounded(reader: Reader) -> None:
    """Whoever makes pods writes what owns them."""
    for n in range(1000):
        reader.scales.owner(NAMESPACE, owned_by(f"Kind{n}", "a", "u", api_version=f"g{n}.example.com/v1"))
    assert not reader.scales.may_read(NAMESPACE, owned_by("Another", "a", "u"))
    await reader.refresh()
    assert len(reader.calls) <= 64


# ---- what is missing or not heard of


async def test_a_namespace_that_hides_its_objects_says_so_and_no_other_suffers(cluster: SmallCluster) -> None:
    """What is not shown is not what does not exist."""
    await cluster.create(DEPLOYMENT, deployment())
    with cluster.refusing("GET", "/namespaces/hidden/deployments", status=403):
        async with await KubeTransport.connect(cluster.kubeconfig, call_seconds=30) as transport:
            scales = ScaleSubresources(transport, namespaces=(NAMESPACE, "hidden"), max_age=timedelta(minutes=3))
            try:
                await scales.refresh([SERVE])
                await until(
                    lambda: why(scales.of("hidden", SERVE.spec.scale_target_ref)) is UnknownReason.STALE_CLUSTER_VIEW
                )
                assert isinstance(scales.of(NAMESPACE, SERVE.spec.scale_target_ref), Scale)
            finally:
                await scales.close()


async def test_a_target_that_appears_is_read_and_one_that_goes_is_missing(
    cluster: SmallCluster, reader: Reader
) -> None:
    await reader.refresh(SERVE)
    await cluster.create(DEPLOYMENT, deployment())
    await until(lambda: len(reader.changes) == 1)
    assert why(reader.of()) is UnknownReason.STALE_CLUSTER_VIEW  # there, and not read yet
    await reader.refresh(SERVE)
    assert isinstance(reader.of(), Scale)
    await cluster.delete(DEPLOYMENT, "serve")
    await until(lambda: len(reader.changes) == 2)
    assert why(reader.of()) is UnknownReason.TARGET_NOT_FOUND


async def test_a_scale_that_could_not_be_read_is_tried_again(cluster: SmallCluster, reader: Reader) -> None:
    """It is not known, which is another thing than not there."""
    await cluster.create(DEPLOYMENT, deployment())
    with cluster.refusing("GET", "/scale", status=403):
        await reader.refresh(SERVE)
        assert why(reader.of()) is UnknownReason.STALE_CLUSTER_VIEW
    await reader.refresh(SERVE)
    assert isinstance(reader.of(), Scale)


async def test_what_was_read_before_a_change_is_not_answered_after_it(cluster: SmallCluster, reader: Reader) -> None:
    """The Deployment was scaled to 0 and its new scale cannot be read: 1 would be a lie."""
    await cluster.create(DEPLOYMENT, deployment())
    await reader.refresh(SERVE)
    await scale_to(cluster, 0)
    await until(lambda: len(reader.changes) == 2)
    with cluster.refusing("GET", "/scale", status=403):
        await reader.refresh(SERVE)
    assert why(reader.of()) is UnknownReason.STALE_CLUSTER_VIEW


async def test_a_kind_that_may_not_be_listed_says_why(cluster: SmallCluster, reader: Reader) -> None:
    with cluster.refusing("GET", "/deployments", status=403):
        refreshing = asyncio.create_task(reader.refresh(SERVE))
        await until(lambda: any(call.status == 403 for call in reader.calls))
        await until(lambda: "403" in str(reader.of()))
        assert why(reader.of()) is UnknownReason.STALE_CLUSTER_VIEW
        refreshing.cancel()


async def test_a_kind_that_is_not_heard_of_is_stale(cluster: SmallCluster, reader: Reader) -> None:
    await cluster.create(DEPLOYMENT, deployment())
    patient, hasty = reader, ScaleSubresources(reader.transport, max_age=timedelta(milliseconds=50))
    for scales in (patient.scales, hasty):
        await scales.refresh([SERVE])
    cluster.api.faults.silence_watches = True
    await asyncio.sleep(0.1)
    assert isinstance(patient.of(), Scale)
    assert why(hasty.of(NAMESPACE, SERVE.spec.scale_target_ref)) is UnknownReason.STALE_CLUSTER_VIEW
    await hasty.close()


async def test_slow_reads_do_not_hold_up_a_tick_for_long(cluster: SmallCluster, reader: Reader) -> None:
    """What is not read in time is not known at this tick, and read at one of the next."""
    names = [f"serve-{n}" for n in range(64)]
    for name in names:
        await cluster.create(DEPLOYMENT, deployment(name))
    scaled_objects = [scaled_object(name, kind=DEPLOYMENT_KIND) for name in names]
    hasty = ScaleSubresources(reader.transport, max_age=timedelta(minutes=3), patience=timedelta(seconds=0.3))
    await hasty.refresh(scaled_objects[:1])
    cluster.api.faults.latency_seconds = 60.0
    started = time.monotonic()
    await hasty.refresh(scaled_objects)
    assert time.monotonic() - started < 30
    found = [hasty.of(NAMESPACE, each.spec.scale_target_ref) for each in scaled_objects]
    assert Counter(map(why, found)) == {None: 1, UnknownReason.STALE_CLUSTER_VIEW: 63}
    cluster.api.faults.latency_seconds = 0

    async def are_read() -> bool:
        await hasty.refresh(scaled_objects)
        return all(isinstance(hasty.of(NAMESPACE, each.spec.scale_target_ref), Scale) for each in scaled_objects)

    await until(are_read)
    await hasty.close()
