"""Nodes are asked for through the embedded API; the test plays Kueue, the gate and the autoscaler."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from builders import NOON, WorkloadJson, at
from provisioning_builders import CHECK, CLASS, CONSUME, condition, flavors, gang, pod_set
from scaler_sandbox import crds
from scaler_sandbox.kubeapi import KubeApi

from scaler.admission.plan import AdmissionInputs, AdmissionPlan, CheckedWorkload, plan_step
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.policy import CheckPolicy, ProvisioningPolicy, Retry
from scaler.admission.provisioning.controller import ProvisioningController, ProvisioningCount
from scaler.admission.provisioning.lifecycle import ProvisioningStep, StepKind
from scaler.admission.provisioning.watch import RequestWatch
from scaler.admission.workload import reserved_workload_of
from scaler.errors import KubeError
from scaler.kube.discovery import Discovery
from scaler.kube.events import ObjectReference
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import ProvisioningRequest
from scaler.kube.objects.resources import (
    CUSTOM_RESOURCE_DEFINITION,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    PROVISIONING_REQUEST_BETA,
    WORKLOAD,
    Resource,
)
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import Backoff, WatchTiming
from scaler.placement.requests import Insufficient
from scaler.placement.shortage import Misfit, Shortage
from scaler.quota.watch import NotSynced
from scaler.suspension.leader_api import NOT_LEADING, LeaderApi, WriteApi

NAMESPACE = "demo"
TIMING = WatchTiming(watch=(60, 60), lasting=0.5, absent=0.05, backoff=Backoff(base=0.02, cap=0.1))
POLICY = ProvisioningPolicy(provisioning_class=CLASS, retry=Retry(limit=2))
FLAVORS = flavors()
FIRST = "job-a-reclaim-1"
LACKS = {"main": 2}
CRDS = {each["spec"]["names"]["kind"]: each for each in crds.load()}
PROVREQ_CRD = CRDS["ProvisioningRequest"]
REAL = Path(os.environ.get("SCALER_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data")) / "crds"
REAL_PROVREQ = REAL / "autoscaling.x-k8s.io_provisioningrequests.yaml"


@dataclass
class Announcements:
    """What owners were told."""

    reasons: list[str] = field(default_factory=list)

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        self.reasons.append(reason)


@dataclass
class Writes:
    """The leader's API, which counts what is sent and may break at a write: before it is sent, or after."""

    api: WriteApi
    sent: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None
    after: Callable[[str], None] = lambda _: None

    async def get(self, path: str) -> bytes:
        return await self.api.get(path)

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        return await self._send(f"patch {path}", self.api.patch(path, body, dry_run=dry_run))

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._send(f"create {path}", self.api.create(path, body))

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        return await self._send(f"delete {path}", self.api.delete(path, uid=uid))

    async def _send(self, what: str, call: Awaitable[bytes]) -> bytes:
        try:
            self.before(what)
        except BaseException:
            call.close()  # type: ignore[attr-defined]
            raise
        self.sent.append(what)
        answer = await call
        self.after(what)
        return answer


@dataclass
class Cluster:
    """An API server, and one replica of ours that leads."""

    client: KubeTransport
    watch: RequestWatch
    writes: Writes
    resource: Resource = PROVISIONING_REQUEST
    told: Announcements = field(default_factory=Announcements)
    seen: list[ProvisioningCount] = field(default_factory=list)
    leads: bool = True

    def __post_init__(self) -> None:
        self.provisioning = self.restarted()

    def restarted(self) -> ProvisioningController:
        """A process that remembers nothing."""
        return ProvisioningController(self.writes, self.watch, FLAVORS.get, self.told, observe=self.seen.append)

    # ------------------------------------------------------------------------------------------------------- Kueue

    async def put(self, workload: WorkloadJson) -> None:
        """The Workload as it shall stand, whatever it was."""
        name = workload.json["metadata"]["name"]
        body = deepcopy(workload.json)
        body["metadata"] = {
            key: body["metadata"][key] for key in ("name", "namespace", "annotations") if key in body["metadata"]
        }
        try:
            await self.client.create(WORKLOAD.path(NAMESPACE), body)
        except KubeError as error:
            if error.status != 409:
                raise
            await self.client.patch(WORKLOAD.path(NAMESPACE, name), {"spec": body["spec"]})
        await self.client.patch(WORKLOAD.path(NAMESPACE, name, "status"), {"status": body["status"]})

    async def workload(self, name: str = "job-a") -> Workload:
        return decode(Workload, await self.client.get(WORKLOAD.path(NAMESPACE, name)))

    # --------------------------------------------------------------------------------------------------- the gate

    async def case(self, name: str = "job-a", **given: Any) -> CheckedWorkload:
        """The Workload as observed."""
        options: dict[str, Any] = {"policy": POLICY, "missing": LACKS, "reuse": ""} | given
        workload, missing = await self.workload(name), options["missing"]
        lacks = Misfit(why=Shortage.NOT_ENOUGH_FREE, pod_set="main", count=2, missing=2, resource="cpu")
        return CheckedWorkload(
            workload=workload,
            check=CHECK,
            policy=CheckPolicy(provisioning=options["policy"]),
            reserved=reserved_workload_of(workload, CHECK),
            reclaim=options["reuse"],
            placement=Insufficient(because=lacks, missing=missing) if missing else None,
        )

    async def follow(self, case: CheckedWorkload, now: datetime) -> ProvisioningStep:
        """The provisioning step of a plan, executed; or, where it was not done, the one of the next plan."""
        planned = self._planned(case, now)
        done = planned.step.kind not in (StepKind.CREATE, StepKind.REMOVE)
        failed = await self.provisioning.execute(AdmissionPlan(at=now, workloads=(planned,)), now)
        if done:
            return planned.step
        stuck = self._planned(case, now).step
        return stuck if failed and stuck.kind is StepKind.STUCK else replace(planned.step, kind=StepKind.WAIT)

    def _planned(self, case: CheckedWorkload, now: datetime) -> CheckedWorkload:
        nothing: Any = None
        planner = AdmissionPlanner(
            nothing, nothing, nothing, self.watch, FLAVORS.get, capacity=nothing, quota=lambda: NotSynced("")
        )
        planner.leader.refusals = self.provisioning.refusals(now)
        inputs = AdmissionInputs(at=now, capacity=NotSynced(""), unknown_requests=self.watch.trouble)
        return plan_step(planner.with_requests(case, now), inputs)

    async def look(self, now: datetime = NOON, **given: Any) -> ProvisioningStep:
        """One look at the gang as it stands, once our copy has caught up."""
        await self.caught_up()
        return await self.follow(await self.case(**given), now)

    async def settle(self, now: datetime = NOON, **given: Any) -> ProvisioningStep:
        """Looks until nothing is left to do; the last one."""
        for _ in range(10):
            sent = len(self.writes.sent)
            found = await self.look(now, **given)
            if len(self.writes.sent) == sent:
                return found
        raise AssertionError("it goes on and on")

    # ------------------------------------------------------------------------------------------------ the autoscaler

    async def answer(self, *conditions: Mapping[str, Any], name: str = FIRST, **status: Any) -> None:
        path = self.resource.path(NAMESPACE, name, "status")
        await self.client.patch(path, {"status": {"conditions": list(conditions), **status}})

    # ------------------------------------------------------------------------------------------------------ looking

    async def names(self, resource: Resource | None = None) -> list[str]:
        resource = resource or self.resource
        pages = [page async for page in self.client.list_pages(resource.path(NAMESPACE))]
        bodies = [msgspec.json.decode(item) for page in pages for item in page.items or ()]
        return sorted(each["metadata"]["name"] for each in bodies)

    async def templates(self) -> list[str]:
        return await self.names(POD_TEMPLATE)

    async def stored(self, resource: Resource, name: str) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(await self.client.get(resource.path(NAMESPACE, name)))
        return found

    async def caught_up(self) -> None:
        """Until our copy is what the API has."""
        if self.watch.resource is None:
            return
        pages = [page async for page in self.client.list_pages(self.resource.path(NAMESPACE))]
        found = [decode(ProvisioningRequest, item).metadata for page in pages for item in page.items or ()]
        versions = {each.resource_version for each in found if each.labels.get("idlegpu.io/managed") == "true"}
        await until(lambda: {each.metadata.resource_version for each in self.watch.items()} == versions)


@asynccontextmanager
async def serving(folder: Path, *definitions: dict[str, Any], **given: Any) -> AsyncIterator[Cluster]:
    api = KubeApi()
    api.install_crds([CRDS["Workload"], *definitions])
    await api.start()
    api.write_kubeconfig(folder / "kubeconfig")
    async with await KubeTransport.connect(folder / "kubeconfig") as client:
        discovery = Discovery(client, found_seconds=0.05, missing_seconds=0.05)
        watch = RequestWatch(
            transport=client, discovery=discovery, timing=TIMING, look_again_seconds=0.05, notice_seconds=0.05
        )
        leader = LeaderApi(client, is_leader=lambda: started.leads)
        started = Cluster(client=client, watch=watch, writes=Writes(leader), **given)
        running = asyncio.create_task(watch.run())
        try:
            await client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            if definitions:
                await until(lambda: not watch.trouble)
            yield started
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await api.stop()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with serving(tmp_path, PROVREQ_CRD) as started:
        yield started


@pytest.fixture
async def asked(cluster: Cluster) -> Cluster:
    """A gang of 2 pods for which nodes were asked for."""
    await cluster.put(gang())
    assert (await cluster.look()).kind is StepKind.WAIT
    assert await cluster.names() == [FIRST]
    return cluster


PROVISIONED = condition("Provisioned", message="capacity is there")


def failed(seconds: float = 0.0) -> dict[str, Any]:
    return condition("Failed", message="no capacity in zone", reason="NoCapacity", since=at(seconds))


# ------------------------------------------------------------------------------------------------------- asking


async def test_nodes_are_asked_for_once(asked: Cluster) -> None:
    request = await asked.stored(PROVISIONING_REQUEST, FIRST)
    (template,) = await asked.templates()
    assert request["spec"]["podSets"] == [{"podTemplateRef": {"name": template}, "count": 2}]
    assert [owner["name"] for owner in request["metadata"]["ownerReferences"]] == [template]
    waiting = await asked.settle()
    assert (waiting.kind, waiting.request and waiting.request.name, waiting.attempt) == (StepKind.WAIT, FIRST, 1)
    assert await asked.names() == [FIRST]
    assert asked.told.reasons == ["ProvisioningRequestCreated"]
    assert [(each.what, each.pods) for each in asked.seen] == [("Created", 2)]


async def test_a_copy_that_lags_does_not_ask_twice(cluster: Cluster) -> None:
    await cluster.put(gang())
    case = await cluster.case()
    for _ in range(3):  # without waiting for our copy
        assert (await cluster.follow(case, NOON)).kind is StepKind.WAIT
    assert await cluster.names() == [FIRST]
    assert len([each for each in cluster.writes.sent if each.startswith("create")]) == 2


STALE: dict[str, WorkloadJson] = {
    "evicted": gang().condition("Evicted", True),
    "deactivated": gang().deactivated(),
    "let go": gang(state="Ready"),
    "without an entry": gang().with_status(admissionChecks=[]),
    "reserved anew": gang().with_status(conditions=[condition("QuotaReserved", reason="QuotaReserved", since=at(1))]),
}


@pytest.mark.parametrize("meanwhile", STALE)
async def test_nothing_is_asked_for_a_gang_that_has_changed_meanwhile(cluster: Cluster, meanwhile: str) -> None:
    await cluster.put(gang())
    case = await cluster.case()
    await cluster.put(STALE[meanwhile])
    assert (await cluster.follow(case, NOON)).kind is StepKind.WAIT
    assert cluster.writes.sent == []


# ------------------------------------------------------------------------------------------------------ being answered


async def test_an_expectation_is_passed_on_and_provisioned_nodes_are_consumed(asked: Cluster) -> None:
    await asked.answer(condition("Accepted"), condition("Provisioned", False, message="ETA: 2026-12-01T12:30:00Z"))
    waiting = await asked.look()
    assert (waiting.kind, waiting.until, waiting.message) == (StepKind.WAIT, at(1800), "ETA: 2026-12-01T12:30:00Z")
    await asked.answer(PROVISIONED)
    ready = await asked.look()
    assert (ready.kind, ready.message) == (StepKind.PROVISIONED, "capacity is there")
    (update,) = ready.patches
    assert (update.name, update.annotations[CONSUME]) == ("main", FIRST)
    assert (await asked.look()).kind is StepKind.PROVISIONED
    assert asked.told.reasons[1:] == ["NodesAccepted", "NodesProvisioned"], "once each"


# ----------------------------------------------------------------------------------------------------------- the end


ENDS: dict[str, WorkloadJson] = {
    "evicted": gang().condition("Evicted", True),
    "finished": gang().condition("Finished", True),
    "deactivated": gang().deactivated(),
    "without quota": gang().condition("QuotaReserved", False),
}


@pytest.mark.parametrize("end", ENDS)
async def test_nothing_is_left_of_a_gang_that_is_gone(asked: Cluster, end: str) -> None:
    await asked.answer(failed())
    await asked.settle(at(60))
    assert await asked.names() == [FIRST, "job-a-reclaim-2"]
    await asked.put(ENDS[end])
    await asked.settle(at(60))
    assert (await asked.names(), await asked.templates()) == ([], [])


async def test_with_its_workload_everything_goes_by_itself(asked: Cluster) -> None:
    await asked.client.delete(WORKLOAD.path(NAMESPACE, "job-a"))
    async with asyncio.timeout(30):
        while await asked.names() or await asked.templates():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ENDS)
async def test_a_new_process_removes_at_once_what_a_gang_has_asked_for_that_is_gone(asked: Cluster, end: str) -> None:
    await asked.put(ENDS[end])
    asked.provisioning = asked.restarted()
    await asked.provisioning.remove_unowned(set(), at(0))
    assert (await asked.names(), await asked.templates()) == ([], [])


async def test_what_is_nobodys_is_removed_after_a_while(asked: Cluster) -> None:
    await asked.caught_up()
    uid = (await asked.workload()).metadata.uid
    await asked.provisioning.remove_unowned({uid}, at(0))
    await asked.provisioning.remove_unowned({uid}, at(60))
    assert await asked.names() == [FIRST]
    await asked.provisioning.remove_unowned(set(), at(61))
    assert await asked.names() == [FIRST], "copies of two kinds are never quite in step"
    await asked.provisioning.remove_unowned(set(), at(91))
    assert (await asked.names(), await asked.templates()) == ([], [])


# ----------------------------------------------------------------------------------------------- crashes and conflicts


class CrashError(Exception):
    """The process is gone."""


def crash_at(count: int) -> Callable[[str], None]:
    left = count

    def crash(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise CrashError

    return crash


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", [1, 2, 3])
async def test_a_restart_at_any_write_of_asking_ends_in_one_request(cluster: Cluster, write: int, moment: str) -> None:
    await cluster.put(gang(pod_set("a"), pod_set("b")))
    setattr(cluster.writes, moment, crash_at(write))
    with pytest.raises(CrashError):
        await cluster.look(missing={"a": 2})
    setattr(cluster.writes, moment, lambda _: None)
    cluster.provisioning = cluster.restarted()
    waiting = await cluster.settle(missing={"a": 2})
    assert (waiting.kind, waiting.attempt) == (StepKind.WAIT, 1)
    assert await cluster.names() == [FIRST]
    assert await cluster.templates() == [f"ppt-{FIRST}-a", f"ppt-{FIRST}-b"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", [1, 2])
async def test_a_restart_at_any_write_of_removing_leaves_nothing_that_matters(
    asked: Cluster, write: int, moment: str
) -> None:
    await asked.put(gang().condition("Evicted", True))
    setattr(asked.writes, moment, crash_at(write))
    with suppress(CrashError):  # The garbage collector may be faster than the second write, which then is none.
        await asked.settle()
    setattr(asked.writes, moment, lambda _: None)
    asked.provisioning = asked.restarted()
    await asked.settle()
    assert await asked.names() == []
    other = gang(pod_set(count=3, gpus=4)).with_status(conditions=[condition("QuotaReserved", since=at(30))])
    await asked.put(other)
    assert (await asked.settle(at(31))).kind is StepKind.WAIT
    assert await asked.names() == [FIRST]
    template = await asked.stored(POD_TEMPLATE, f"ppt-{FIRST}-main")
    limits = template["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "4"}, "not what was left behind"


async def test_a_restart_forgets_nothing_that_matters(asked: Cluster) -> None:
    """At every state of the request the next process goes on where this one stopped."""
    for conditions in ([], [condition("Accepted")], [failed()], [PROVISIONED]):
        await asked.answer(*conditions)
        before = await asked.look(at(30))
        asked.provisioning = asked.restarted()
        assert await asked.look(at(30)) == before


async def test_the_successor_of_what_was_to_be_deleted_is_spared(asked: Cluster) -> None:
    await asked.caught_up()
    stale = ProvisioningController(asked.writes, Frozen(asked.watch), FLAVORS.get, asked.told)
    await asked.client.delete(PROVISIONING_REQUEST.path(NAMESPACE, FIRST))
    await asked.settle()
    successor = await asked.stored(PROVISIONING_REQUEST, FIRST)
    await stale.remove_unowned(set(), at(0))
    await stale.remove_unowned(set(), at(60))
    assert await asked.stored(PROVISIONING_REQUEST, FIRST) == successor
    assert await asked.templates() == [f"ppt-{FIRST}-main"]


class Frozen:
    """A copy that is never brought up to date."""

    def __init__(self, watch: RequestWatch) -> None:
        self.resource = watch.resource
        self.trouble = ""
        self._items = watch.items()

    def items(self) -> list[ProvisioningRequest]:
        return self._items

    def of_workload(self, uid: str) -> list[ProvisioningRequest]:
        return self._items


@pytest.mark.parametrize("resource", [POD_TEMPLATE, PROVISIONING_REQUEST])
async def test_what_is_somebody_elses_is_not_touched(cluster: Cluster, resource: Resource) -> None:
    name = FIRST if resource is PROVISIONING_REQUEST else f"ppt-{FIRST}-main"
    pods = [{"count": 1, "podTemplateRef": {"name": "mine"}}]
    content = {"spec": {"provisioningClassName": "mine", "podSets": pods}} if name == FIRST else {"template": {}}
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
    await cluster.client.create(resource.path(NAMESPACE), {**head, **content})
    before = await cluster.stored(resource, name)
    await cluster.put(gang())
    stuck = await cluster.settle()
    assert stuck.kind is StepKind.STUCK
    assert f"{NAMESPACE}/{name} is not managed by this scaler" in stuck.message
    assert await cluster.stored(resource, name) == before


# ----------------------------------------------------------------------------------------------------------- refusals


async def test_the_api_is_left_alone_after_a_refusal(cluster: Cluster) -> None:
    """5, 10, 20, 40, 80, 160 and then 300 s between tries: 9 within 20 minutes of looking every second."""
    tries = 0

    def refuse(what: str) -> None:
        nonlocal tries
        tries += 1
        raise KubeError(f"{what}: 403 Forbidden", status=403)

    cluster.writes.before = refuse
    await cluster.put(gang())
    case = await cluster.case()
    for second in range(20 * 60):
        stuck = await cluster.follow(case, at(second))
        assert stuck.kind is StepKind.STUCK
        assert "403 Forbidden" in stuck.message
    # At 0, 5, 15, 35, 75, 155, 315, 615 and 915 s; the next is at 1215 s.
    assert tries == 9
    cluster.writes.before = lambda _: None
    assert (await cluster.follow(case, at(1300))).kind is StepKind.WAIT


async def test_one_that_no_longer_leads_writes_nothing(cluster: Cluster) -> None:
    await cluster.put(gang())
    cluster.leads = False
    with pytest.raises(KubeError) as refused:
        await cluster.look()
    assert refused.value.reason == NOT_LEADING
    assert (await cluster.names(), await cluster.templates()) == ([], [])


async def test_one_that_no_longer_leads_removes_nothing(asked: Cluster) -> None:
    await asked.put(gang().condition("Evicted", True))
    asked.leads = False
    with pytest.raises(KubeError) as refused:
        await asked.look()
    assert refused.value.reason == NOT_LEADING
    with pytest.raises(KubeError) as refused:
        await asked.provisioning.remove_unowned(set(), at(0))
    assert refused.value.reason == NOT_LEADING
    assert await asked.names() == [FIRST]


# ------------------------------------------------------------------------------------------------------ the definition


async def test_without_the_definition_it_is_said_and_afterwards_it_works(tmp_path: Path) -> None:
    async with serving(tmp_path) as cluster:
        await cluster.put(gang())
        await until(lambda: "serves no ProvisioningRequests" in cluster.watch.trouble)
        stuck = await cluster.look()
        assert stuck.kind is StepKind.STUCK
        assert "install the CustomResourceDefinition" in stuck.message
        assert (await cluster.look(missing={})).kind is StepKind.NOTHING, "a gang that fits is not held for it"
        await cluster.client.create(CUSTOM_RESOURCE_DEFINITION.path(), PROVREQ_CRD)
        await until(lambda: not cluster.watch.trouble)
        assert (await cluster.settle()).kind is StepKind.WAIT
        assert await cluster.names() == [FIRST]


async def test_a_definition_that_is_removed_is_noticed(asked: Cluster) -> None:
    await asked.client.delete(CUSTOM_RESOURCE_DEFINITION.path(name=PROVREQ_CRD["metadata"]["name"]))
    await until(lambda: asked.watch.resource is None)
    assert (await asked.follow(await asked.case(), NOON)).kind is StepKind.STUCK


def only_beta() -> dict[str, Any]:
    definition = deepcopy(PROVREQ_CRD)
    definition["spec"]["versions"][0]["name"] = "v1beta1"
    return definition


async def test_where_only_the_beta_is_served_that_is_used(tmp_path: Path) -> None:
    async with serving(tmp_path, only_beta(), resource=PROVISIONING_REQUEST_BETA) as cluster:
        await cluster.put(gang())
        await cluster.settle()
        await cluster.answer(PROVISIONED)
        assert (await cluster.look()).kind is StepKind.PROVISIONED


@pytest.mark.skipif(not REAL_PROVREQ.is_file(), reason="no real definitions: set SCALER_SHARED_DATA")
async def test_the_real_definition_takes_what_is_written(tmp_path: Path) -> None:
    definition = yaml.load(REAL_PROVREQ.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    async with serving(tmp_path, definition) as cluster:
        await cluster.put(gang(pod_set("a"), pod_set("b", gpus=4)))
        await cluster.settle(missing={"a": 2})
        await cluster.answer(PROVISIONED, provisioningClassDetails={"ResizeRequestName": "rr-42"})
        ready = await cluster.look(missing={"a": 2})
        assert [each.name for each in ready.patches] == ["a", "b"]


async def test_requests_of_others_are_not_even_seen(cluster: Cluster) -> None:
    pods = [{"count": 1, "podTemplateRef": {"name": "theirs"}}]
    head = {"apiVersion": PROVISIONING_REQUEST.api_version, "kind": PROVISIONING_REQUEST.kind}
    metadata = {"name": "job-a-prov-1", "labels": {"kueue.x-k8s.io/managed": "true"}}
    spec = {"provisioningClassName": CLASS, "podSets": pods}
    await cluster.client.create(PROVISIONING_REQUEST.path(NAMESPACE), {**head, "metadata": metadata, "spec": spec})
    await cluster.put(gang())
    await cluster.settle()
    await cluster.put(gang().condition("Evicted", True))
    await cluster.settle()
    await cluster.provisioning.remove_unowned(set(), NOON + timedelta(hours=1))
    assert await cluster.names() == ["job-a-prov-1"]
