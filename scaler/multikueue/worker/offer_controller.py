"""Answers the ClusterOffers of this cluster, which the dispatchers of hubs have created. Leader only.

Laws:

* Each has its whole status written once per evaluation, and not without one: that is the heartbeat. It is valid for
  three intervals.
* Where quota, nodes or verdicts are not known nothing new is said, so that the status expires; `message` says why.
* What was computed answers the spec that it was computed from (`observedGeneration`), although that may have changed.
* Of a ClusterOffer that cannot be read nothing is said: its status expires, and a metric and the log say why.
* Without ClusterOffers, or without their CustomResourceDefinition, nothing is computed.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, ClassVar

import msgspec
import structlog

from scaler.clock import Turns, every
from scaler.idleness.pods import GpuPod
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.multikueue import ClusterOffer, ClusterQueueOffer, OfferedWorkload, WorkloadOffer
from scaler.kube.objects.resources import CLUSTER_OFFER
from scaler.kube.reflector import Reflector
from scaler.kube.writes import PatchApi, is_written
from scaler.multikueue.worker.copy_verdicts import CopyVerdicts
from scaler.multikueue.worker.fit import FitAnswer
from scaler.multikueue.worker.fit_answers import EntryKey, FitAnswers, entry_key
from scaler.multikueue.worker.offer import OfferInputs, cluster_queue_offers
from scaler.quota.watch import NotSynced
from scaler.reclaim.candidates import idle_workloads
from scaler.reclaim.planner import Planner, PlanningSnapshot

log = structlog.get_logger(__name__)

_REST = timedelta(seconds=1)
"""The longest rest, else a quarter of the interval: after it the own write has been heard of."""
_VALID_INTERVALS = 3
_LONGEST_MESSAGE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferReport:
    at: datetime
    written: int = 0
    """ClusterOffers whose status was written."""
    unknown: str = ""
    """Why nothing could be said; empty where it could."""
    fits: Collection[FitAnswer] = ()
    """The answers to all requests."""
    verdicts: Collection[WorkloadOffer] = ()
    """The verdicts on all that a hub has judged here."""


@dataclass(kw_only=True)
class OfferController:
    """`models` gives the models of a pod's GPUs as far as they were seen; `observe` gets the report of every tick that
    had anything to say."""

    name: ClassVar[str] = "offer"
    api: PatchApi
    offers: Reflector[ClusterOffer]
    planning: Planner
    doubt: Callable[[], Unknown | None]
    """What the samples of the last evaluation are not trusted for."""
    fits: FitAnswers
    verdicts: CopyVerdicts
    interval: timedelta
    models: Callable[[GpuPod], Collection[str]]
    observe: Callable[[OfferReport], None] = lambda _: None
    _answered: dict[str, datetime] = field(default_factory=dict, init=False)
    """The evaluation that the status written last is of, by uid."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and after evaluations."""
        await every(self.interval, self.tick, self._wake, name=self.name, rest=min(_REST, self.interval / 4))

    def wake(self) -> None:
        """There is a new evaluation."""
        self._wake.set()

    async def tick(self, now: datetime) -> OfferReport | None:
        """What was offered; None where there was nothing to say. Raises: KubeError with the reason NotLeading."""
        offers, evaluation = self.offers.items(), self.planning.decisions.evaluation
        if not offers and (self._answered or self.offers.undecodable):
            self.observe(OfferReport(at=now, unknown=self._unreadable()))
        self._answered = {each.metadata.uid: at for each in offers if (at := self._answered.get(each.metadata.uid))}
        at = evaluation.at if evaluation is not None else None
        due = [each for each in offers if at is None or self._answered.get(each.metadata.uid) != at]
        if not offers or not (due or self.planning.unjudged):
            return None
        state = await self._look(now)
        report = await (self._tell_unknown(offers, state, now) if isinstance(state, str) else self._offer(due, state))
        report = replace(report, unknown=report.unknown or self._unreadable())
        self.observe(report)
        return report

    def _unreadable(self) -> str:
        """Which ClusterOffers cannot be read, and why; empty where all can."""
        found = [f"ClusterOffer {name} cannot be read: {why}" for (_, name), why in self.offers.undecodable.items()]
        for each in found:
            log.warning(each)
        return "; ".join(found)

    async def _look(self, now: datetime) -> PlanningSnapshot | str:
        """What there is to answer from, or why there is not."""
        if (doubt := self.doubt()) is not None:
            return f"samples cannot be trusted: {doubt.message}"
        state = await self.planning.look(now)
        if isinstance(state, NotSynced):
            return state.reason
        return f"it is not known where pods fit: {state.nodes_unseen}" if state.nodes_unseen else state

    async def _tell_unknown(self, offers: Sequence[ClusterOffer], why: str, now: datetime) -> OfferReport:
        for each in offers:
            if not each.status.message:
                await self._write(each, {"message": why[:_LONGEST_MESSAGE]})
        return OfferReport(at=now, unknown=why)

    # ---------------------------------------------------------------------------------------------------- what is known

    async def _offer(self, due: Sequence[ClusterOffer], state: PlanningSnapshot) -> OfferReport:
        cluster_queues = await asyncio.to_thread(cluster_queue_offers, await self._inputs(state))
        entries = [*chain.from_iterable(each.spec.workloads for each in self.offers.items())]
        fits = await self.fits.answers(state, entries)
        verdicts = await self.verdicts.verdicts(entries, state.evaluation.at)
        written = 0
        for each in due:
            status = self._status(each, state, cluster_queues, _said(each.spec.workloads, fits, verdicts))
            if await self._write(each, status):
                self._answered[each.metadata.uid] = state.evaluation.at
                written += 1
        return OfferReport(at=state.now, written=written, fits=[*fits.values()], verdicts=[*verdicts.values()])

    def _status(
        self,
        offer: ClusterOffer,
        state: PlanningSnapshot,
        cluster_queues: Sequence[ClusterQueueOffer],
        workloads: Iterable[WorkloadOffer],
    ) -> dict[str, Any]:
        return {
            "observedGeneration": offer.metadata.generation,
            "observedAt": _instant(state.now),
            "validUntil": _instant(state.now + _VALID_INTERVALS * self.interval),
            "message": None,
            "clusterQueues": msgspec.to_builtins(cluster_queues),
            "workloads": [msgspec.json.decode(msgspec.json.encode(each)) for each in workloads],
        }

    async def _inputs(self, state: PlanningSnapshot) -> OfferInputs:
        turns, trees = Turns(), []
        for tree in state.snapshot.trees:
            if not state.snapshot.doubts(tree):
                trees.append(tree.clone())
            await turns.give_way()
        cluster = self.planning.cluster
        candidates = state.candidates if self.planning.policy.pressure else ()
        return OfferInputs(
            trees=trees,
            flavors=dict(state.snapshot.flavors),
            is_gpu=cluster.gpus.matches,
            idle=idle_workloads(state.evaluation, cluster, state.snapshot),
            reclaimable=frozenset(each.workload for each in candidates),
            leaving=state.leaving,
            models=await self._models(state),
            capacity=state.capacity,
        )

    async def _models(self, state: PlanningSnapshot) -> Mapping[str, Collection[str]]:
        """The models of the GPUs of Workloads with quota, by key."""
        cluster, turns, found = self.planning.cluster, Turns(), dict[str, Collection[str]]()
        for each in [*state.snapshot.reserved]:
            workload = cluster.workloads.get(each.namespace, each.name)
            if workload is not None:
                pods = cluster.pods_of_workload(workload)
                found[each.key] = {model for pod in pods for model in self.models(pod) if model}
            await turns.give_way()
        return found

    # -------------------------------------------------------------------------------------------------------- writing

    async def _write(self, offer: ClusterOffer, status: Mapping[str, Any]) -> bool:
        """Whether it was written. Raises: KubeError with the reason NotLeading."""
        fresh = self.offers.get("", offer.metadata.name)
        if fresh is None or fresh.metadata.uid != offer.metadata.uid:
            return False
        metadata = {"uid": fresh.metadata.uid, "resourceVersion": fresh.metadata.resource_version}
        path = CLUSTER_OFFER.path("", offer.metadata.name, "status")
        sent = self.api.patch(path, {"metadata": metadata, "status": status})
        return await is_written(sent, log, "ClusterOffer not answered; the next tick does", name=offer.metadata.name)


def _instant(at: datetime) -> str:
    """The instant with milliseconds: how long a status holds is the difference of two, and intervals may be short."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(
    entries: Iterable[OfferedWorkload],
    fits: Mapping[EntryKey, FitAnswer],
    verdicts: Mapping[EntryKey, WorkloadOffer],
) -> Iterator[WorkloadOffer]:
    """What is said of those of which anything was asked."""
    for each in entries:
        key, is_asked = entry_key(each), each.request is not None or each.policy is not None
        found = WorkloadOffer(namespace=each.namespace, name=each.name, uid=each.uid)
        if each.policy is not None:
            found = verdicts.get(key, found)
        if each.request is not None and (fit := fits.get(key)) is not None:
            found = _with_fit(found, fit)
        if is_asked:
            yield found


def _with_fit(offer: WorkloadOffer, found: FitAnswer) -> WorkloadOffer:
    return msgspec.structs.replace(
        offer,
        fit=str(found.fit),
        cost=found.cost,
        victims=found.victims[:256],
        free_after=found.free_after,
        message=found.message[:_LONGEST_MESSAGE],
    )
