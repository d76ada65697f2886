"""RequestWatch against the embedded API: which version is served, definitions that come and go, only our requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from builders import WorkloadJson
from provisioning_builders import CHECK, CLASS, flavors, gang, pod_set
from recordings import CRDS, needs_data, real_crd
from scaler_sandbox import crds
from small_cluster import embedded_api, until

from scaler.admission.policy import ProvisioningPolicy
from scaler.admission.provisioning.manifests import RequestManifests, request_manifests_of
from scaler.admission.provisioning.watch import RequestWatch
from scaler.kube.discovery import Discovery
from scaler.kube.objects.resources import (
    CUSTOM_RESOURCE_DEFINITION,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    PROVISIONING_REQUEST_BETA,
    Resource,
)
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import Backoff, WatchTiming

TIMING = WatchTiming(watch=(60, 60), lasting=0.5, absent=0.05, backoff=Backoff(base=0.02, cap=0.1))
PROVREQ_CRD = next(each for each in crds.load() if each["spec"]["names"]["kind"] == "ProvisioningRequest")


@dataclass
class Served:
    client: KubeTransport
    watch: RequestWatch

    async def make(self, workload: WorkloadJson, *, resource: Resource = PROVISIONING_REQUEST) -> RequestManifests:
        """What is written to request nodes for it."""
        found = request_manifests_of(
            workload.decoded(),
            msgspec.json.encode(workload.json),
            ProvisioningPolicy(provisioning_class=CLASS),
            check=CHECK,
            attempt=1,
            missing={},
            flavors=flavors().get,
        )
        assert isinstance(found, RequestManifests)
        for each in found.templates:
            del each["metadata"]["ownerReferences"]  # The Workload is not there, and the API would collect them.
        made = [await self.client.create(POD_TEMPLATE.path("demo"), each) for each in found.templates]
        uids = [msgspec.json.decode(each)["metadata"]["uid"] for each in made]
        await self.client.create(resource.path("demo"), found.owned_by(uids, resource))
        return found


@asynccontextmanager
async def serving(folder: Path, *definitions: dict[str, Any]) -> AsyncIterator[Served]:
    async with embedded_api(folder, *definitions) as (_, client):
        await client.create("/api/v1/namespaces", {"metadata": {"name": "demo"}})
        discovery = Discovery(client, found_seconds=0.05, missing_seconds=0.05)
        watch = RequestWatch(
            transport=client, discovery=discovery, timing=TIMING, look_again_seconds=0.05, notice_seconds=0.05
        )
        running = asyncio.create_task(watch.run())
        try:
            yield Served(client, watch)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_without_the_definition_the_reason_is_known_and_it_may_come_and_go(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.watch.wait_known()
        assert "serves no ProvisioningRequests" in served.watch.trouble
        assert "install the CustomResourceDefinition" in served.watch.trouble
        await served.client.create(CUSTOM_RESOURCE_DEFINITION.path(), PROVREQ_CRD)
        await until(lambda: not served.watch.trouble)
        await served.make(gang())
        await until(lambda: len(served.watch.items()) == 1)
        await served.client.delete(CUSTOM_RESOURCE_DEFINITION.path(name=PROVREQ_CRD["metadata"]["name"]))
        await until(lambda: served.watch.resource is None)
        assert served.watch.trouble
        assert not served.watch.items()


async def test_where_only_the_beta_is_served_that_is_used(tmp_path: Path) -> None:
    definition = deepcopy(PROVREQ_CRD)
    definition["spec"]["versions"][0]["name"] = "v1beta1"
    async with serving(tmp_path, definition) as served:
        await until(lambda: not served.watch.trouble)
        assert served.watch.resource is not None
        assert served.watch.resource.version == PROVISIONING_REQUEST_BETA.version
        made = await served.make(gang(), resource=PROVISIONING_REQUEST_BETA)
        await until(lambda: [each.metadata.name for each in served.watch.items()] == [made.name])


async def test_requests_of_others_are_not_watched(tmp_path: Path) -> None:
    async with serving(tmp_path, PROVREQ_CRD) as served:
        head = {"apiVersion": PROVISIONING_REQUEST.api_version, "kind": PROVISIONING_REQUEST.kind}
        metadata = {"name": "job-a-prov-1", "labels": {"kueue.x-k8s.io/managed": "true"}}
        spec = {"provisioningClassName": CLASS, "podSets": [{"count": 1, "podTemplateRef": {"name": "theirs"}}]}
        await served.client.create(PROVISIONING_REQUEST.path("demo"), {**head, "metadata": metadata, "spec": spec})
        made = await served.make(gang())
        uid = made.request["metadata"]["labels"]["idlegpu.io/workload-uid"]
        await until(lambda: len(served.watch.items()) == 1)
        assert [each.metadata.name for each in served.watch.of_workload(uid)] == [made.name]
        assert not served.watch.of_workload("another")


@needs_data(CRDS)
async def test_the_real_definition_takes_what_is_written(tmp_path: Path) -> None:
    async with serving(tmp_path, real_crd("provisioningrequests.autoscaling.x-k8s.io")) as served:
        await until(lambda: not served.watch.trouble)
        made = await served.make(gang(pod_set("a"), pod_set("b", gpus=4)))
        await until(lambda: [each.metadata.name for each in served.watch.items()] == [made.name])
        assert [each.count for each in served.watch.items()[0].spec.pod_sets] == [2, 2]
