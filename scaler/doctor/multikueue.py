"""Is MultiKueue on this hub as it has to be, and what runs on its workers that should not?

Workers are read by the kubeconfigs that Kueue has for them, also those that are in no MultiKueueConfig any more: what
was dispatched there goes on running.

| a remote copy on a worker, with quota for a while, and the hub's Workload names another cluster | finding |
|--------------------------------------------------------------------------------------------------|-------------|
| has a job of its own                                                                             | `Duplicate` |
| has none                                                                                         | `Phantom`   |

Source: seen with Kueue 0.20-devel (ff69552), when a MultiKueueConfig shrinks.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from scaler.doctor.facts import DoctorInputs
from scaler.doctor.findings import Finding, Subject, Topic, Unread, read_or_why
from scaler.errors import ConfigurationError, KubeError
from scaler.kube.access import access_of_kubeconfig
from scaler.kube.objects.core import condition, decode
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, Workload
from scaler.kube.objects.multikueue import ClusterOffer, ClusterPlacement, MultiKueueCluster, MultiKueueConfig
from scaler.kube.objects.resources import (
    CLUSTER_OFFER,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    PLACEMENT,
    WORKLOAD,
    Resource,
)
from scaler.kube.transport import KubeTransport
from scaler.kube.writes import LeaderApi
from scaler.multikueue.hub.dispatch.preflight import Preflight, PreflightResult, preflight
from scaler.multikueue.hub.dispatch.waiting import hub_cluster
from scaler.multikueue.hub.worker_connections import kubeconfig_of
from scaler.quota.model import MULTIKUEUE

T = TypeVar("T")

_PLACEMENT_CONTROLLER = "open-cluster-management.io/placement"
"""Controller of AdmissionChecks by which OCM's addon for Kueue writes MultiKueueConfigs."""
_SETTLED = timedelta(seconds=30)
"""A copy has quota for so long before it counts: Kueue takes some seconds to remove those of other clusters."""
_WORKER_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What was read of one worker."""

    copies: Sequence[Workload] | Unread = ()
    """The remote copies there."""
    offer: ClusterOffer | Unread = Unread("it was not read")  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFacts:
    configs: Sequence[MultiKueueConfig] | Unread = ()
    clusters: Sequence[MultiKueueCluster] | Unread = ()
    placements: Sequence[ClusterPlacement] | Unread = ()
    workers: Mapping[str, WorkerFacts] = field(default_factory=dict)
    """The workers by name of the MultiKueueCluster."""
    preflight: Preflight | None = None
    """Whether clusters may be nominated; None where there is no dispatcher of ours, or no Workload to find out by."""
    dispatches: bool = False
    """Whether the dispatcher of ours is configured here."""


def is_hub(facts: DoctorInputs) -> bool:
    return bool(_checks(facts))


def _checks(facts: DoctorInputs) -> list[AdmissionCheck]:
    return [each for each in facts.of(AdmissionCheck) if each.spec.controller_name == MULTIKUEUE]


# -------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReader:
    """Reads the hub and its workers, and writes nothing."""

    transport: KubeTransport
    namespace: str
    """Namespace of Kueue."""
    offer_name: str
    dispatches: bool

    async def take(self, facts: DoctorInputs) -> HubFacts:
        """Raises nothing that has to do with the clusters."""
        configs, clusters, placements = await asyncio.gather(
            _all(self.transport, MULTIKUEUE_CONFIG, MultiKueueConfig),
            _all(self.transport, MULTIKUEUE_CLUSTER, MultiKueueCluster),
            _all(self.transport, PLACEMENT, ClusterPlacement),
        )
        found = () if isinstance(clusters, Unread) else clusters
        workers = await asyncio.gather(*map(self._worker, found))
        return HubFacts(
            configs=configs,
            clusters=clusters,
            placements=placements,
            workers={each.metadata.name: worker for each, worker in zip(found, workers, strict=True)},
            preflight=await self._preflight(facts),
            dispatches=self.dispatches,
        )

    async def _worker(self, cluster: MultiKueueCluster) -> WorkerFacts:
        name = cluster.metadata.name
        try:
            async with asyncio.timeout(_WORKER_SECONDS):
                kubeconfig = await kubeconfig_of(cluster, self.transport, self.namespace)
                access = access_of_kubeconfig(kubeconfig, source=f"kubeconfig of MultiKueueCluster {name}")
                async with KubeTransport(access) as worker:
                    copies = await _all(worker, WORKLOAD, Workload, labelSelector=MULTIKUEUE_ORIGIN)
                    return WorkerFacts(copies=copies, offer=await read_or_why(_offer(worker, self.offer_name)))
        except (KubeError, ConfigurationError, TimeoutError) as error:
            unread = Unread(str(error) or "it does not answer")
            return WorkerFacts(copies=unread, offer=unread)

    async def _preflight(self, facts: DoctorInputs) -> Preflight | None:
        checks = {each.metadata.name for each in _checks(facts)}
        waiting = [
            each.metadata.key
            for each in facts.of(Workload)
            if not each.status.cluster_name and any(check.name in checks for check in each.status.admission_checks)
        ]
        if not self.dispatches or not waiting:
            return None
        return await preflight(LeaderApi(self.transport, is_leader=lambda: True), *min(waiting))


async def _all(transport: KubeTransport, resource: Resource, kind: type[T], **query: str) -> Sequence[T] | Unread:
    async def listed() -> Sequence[T]:
        pages = transport.list_pages(resource.path(), query)
        return [decode(kind, raw) async for page in pages for raw in page.items or ()]

    return await read_or_why(listed())


async def _offer(transport: KubeTransport, name: str) -> ClusterOffer:
    return decode(ClusterOffer, await transport.get(CLUSTER_OFFER.path("", name)))


# ------------------------------------------------------------------------------------------------------------- findings


def multikueue_findings(facts: DoctorInputs, hub: HubFacts, now: datetime) -> Iterator[Finding]:
    """The findings about a hub."""
    yield from _of_dispatcher(hub)
    clusters = {each.metadata.name: each for each in hub.clusters} if not isinstance(hub.clusters, Unread) else {}
    for what, found in (("MultiKueueConfigs", hub.configs), ("MultiKueueClusters", hub.clusters)):
        if isinstance(found, Unread):
            yield Subject(Topic.MULTIKUEUE, f"all {what}").fail("NotRead", found.reason)
    named: set[str] = set()
    for config in () if isinstance(hub.configs, Unread) else hub.configs:
        named |= {*config.spec.clusters}
        for name in config.spec.clusters:
            yield from _of_cluster(config, name, clusters.get(name))
    yield from _of_scores(facts, hub)
    for name, worker in hub.workers.items():
        yield from _of_copies(facts, name, worker, now, is_named=name in named)
        if hub.dispatches and name in named:
            yield from _of_offer(name, worker.offer, now)


def _of_dispatcher(hub: HubFacts) -> Iterator[Finding]:
    about = Subject(Topic.MULTIKUEUE)
    if not hub.dispatches:
        what = (
            "clusters are not nominated by this program: workers suspend idle workloads for a gang only where the hub "
        )
        yield about.ok("NoDispatcher", f"{what}opens its preemption gate, or multiKueue.planOnWorkers there is Always")
    elif hub.preflight is None:
        yield about.ok("NotTried", "no Workload waits for a cluster: whether Kueue can clear nominations is not known")
    elif hub.preflight.is_passed:
        by = {PreflightResult.POLICY: "its admission policy", PreflightResult.FEATURE_GATE: "a feature gate"}
        yield about.ok(str(hub.preflight.result), f"Kueue clears nominations, by {by[hub.preflight.result]}")
    else:
        do = "until then no cluster is nominated"
        yield about.fail(str(hub.preflight.result), hub.preflight.message, do)


def _of_cluster(config: MultiKueueConfig, name: str, cluster: MultiKueueCluster | None) -> Iterator[Finding]:
    about = Subject(Topic.MULTIKUEUE, f"MultiKueueCluster {name}")
    if cluster is None:
        do = f"create it, or take it out of MultiKueueConfig {config.metadata.name}"
        yield about.fail(
            "NoSuchCluster", f"MultiKueueConfig {config.metadata.name} names it, and it does not exist", do
        )
        return
    found = hub_cluster(cluster)
    if found.is_active:
        return
    do = "Kueue watches each integration that it has enabled on every worker: is the kind there, its user allowed?"
    yield about.fail("NotActive", f"Kueue does not reach it: {found.message or 'it has not tried yet'}", do)


def _of_offer(name: str, offer: ClusterOffer | Unread, now: datetime) -> Iterator[Finding]:
    about = Subject(Topic.MULTIKUEUE, f"worker {name}")
    if isinstance(offer, Unread):
        what = "no ClusterOffer is there" if offer.is_absent else f"its ClusterOffer cannot be read: {offer.reason}"
        do = "install idle-gpu-scaler there, and allow the hub's user clusteroffers (create, get, list, watch, patch)"
        yield about.warn("NoOffer", f"{what}; it is nominated last", do)
        return
    until = offer.status.valid_until
    if until is None or until < now:
        why = offer.status.message or "idle-gpu-scaler there does not renew it"
        yield about.warn("OfferExpired", f"its ClusterOffer has expired: {why}", "see doctor there")
    else:
        yield about.ok("Offers", f"its ClusterOffer is valid until {until:%H:%M:%S}Z")


def _of_copies(
    facts: DoctorInputs, name: str, worker: WorkerFacts, now: datetime, *, is_named: bool
) -> Iterator[Finding]:
    about = Subject(Topic.MULTIKUEUE, f"worker {name}")
    if isinstance(worker.copies, Unread):
        where = "" if is_named else ", which no MultiKueueConfig names"
        yield about.warn("NotRead", f"remote copies there{where} cannot be read: {worker.copies.reason}")
        return
    of_hub = {each.metadata.key: each for each in facts.of(Workload)}
    for copy in worker.copies:
        hubs = of_hub.get(copy.metadata.key)
        if hubs is not None and _is_left_over(copy, hubs, name, now):
            yield _left_over(copy, hubs, name)


def _is_left_over(copy: Workload, hubs: Workload, cluster: str, now: datetime) -> bool:
    reserved = condition(copy.status.conditions, "QuotaReserved")
    since = reserved.last_transition_time if reserved is not None and reserved.status == "True" else None
    is_meant = cluster == hubs.status.cluster_name or cluster in hubs.status.nominated_cluster_names
    return since is not None and now - since > _SETTLED and not is_meant


def _left_over(copy: Workload, hubs: Workload, cluster: str) -> Finding:
    about = Subject(Topic.MULTIKUEUE, f"Workload {'/'.join(copy.metadata.key)} on {cluster}")
    where = f"on cluster {hubs.status.cluster_name}" if hubs.status.cluster_name else "nowhere"
    owner = copy.metadata.controller_owner
    if owner is None:
        what = f"it has quota there and no job; the hub has it {where}: it holds GPUs that nothing uses"
        return about.fail("Phantom", what, f"delete the Workload on {cluster}")
    what = f"its {owner.kind} {owner.name} runs there, and the hub has it {where}: it runs twice, or without the hub"
    return about.fail("Duplicate", what, f"delete the {owner.kind} and then the Workload on {cluster}")


def _of_scores(facts: DoctorInputs, hub: HubFacts) -> Iterator[Finding]:
    """MultiKueueConfigs that follow scores while jobs run on their clusters."""
    driven = {
        each.spec.parameters.name
        for each in facts.of(AdmissionCheck)
        if each.spec.controller_name == _PLACEMENT_CONTROLLER and each.spec.parameters is not None
    }
    running = {each.status.cluster_name for each in facts.of(Workload) if each.status.cluster_name}
    configs = {} if isinstance(hub.configs, Unread) else {each.metadata.name: each for each in hub.configs}
    for placement in () if isinstance(hub.placements, Unread) else hub.placements:
        config = configs.get(placement.metadata.name)
        if config is None or placement.metadata.name not in driven or not placement.chooses_by_scores:
            continue
        if used := sorted(running & {*config.spec.clusters}):
            about = Subject(Topic.MULTIKUEUE, f"Placement {'/'.join(placement.metadata.key)}")
            what = f"scores decide which clusters MultiKueueConfig {config.metadata.name} has, and jobs run on "
            do = "leave numberOfClusters out of the Placement, or the AddOn scores; rank by the dispatcher instead"
            yield about.warn(
                "ScoresDriveConfig",
                f"{what}{', '.join(used)}: one that leaves it has its jobs run on there, and again elsewhere",
                do,
            )
