"""What do the worker clusters say of the Workloads that are dispatched to them? For the decisions on the hub.

The hub's leader writes into the ClusterOffer of a worker by which policy a Workload is judged there (`judged.py`), and
the worker writes what its GPUs do into the status. Every replica on the hub reads that.

| of the Workload                                                          | here                          |
|--------------------------------------------------------------------------|-------------------------------|
| the worker is not connected, or its status is not fresh                  | Unknown: RemoteVerdictMissing |
| it says nothing of the Workload with that uid                            | Unknown: RemoteVerdictMissing |
| what it says is about pods from before Kueue admitted the Workload       | Unknown: RemoteVerdictMissing |
| otherwise                                                                | as the worker says            |

Laws:

* Only the cluster where Kueue says that it runs now is asked, whatever others still say of it.
* No clock of a worker is trusted. Of what it says only durations count: how long before its own `observedAt` the GPUs
  got quiet and the pods started. They count from when the status was received here, which is later, so that nothing
  looks idle for longer than it was.
* What differs by a few seconds only is the same: else every decision would change with each status.

Worked example: observedAt 12:00:00 and idleSince 11:30:00, by a clock that is an hour slow; received at 13:00:02. It is
idle since 12:30:02.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from scaler.documents import UNREADABLE
from scaler.idleness.durations import parse_duration
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.remote import JudgedBy, RemoteAnswer
from scaler.idleness.verdict import Busy, Idle, Unknown, Verdict
from scaler.kube.objects.multikueue import ClusterOfferStatus, OfferPolicy, WorkloadOffer
from scaler.multikueue.hub.worker_connections import WorkerConnections
from scaler.targets.target_state import ObservedWorkload

_JITTER = timedelta(seconds=5)
"""Time by which the way of a status may differ without being another one."""
_EARLIER_RUN = timedelta(minutes=1)
"""Time by which pods may seem to have started before Kueue admitted their Workload on the hub: its clock may be apart
from the one here, and times are in whole seconds."""


@dataclass(kw_only=True, eq=False)
class RemoteAnswers:
    """What workers say of the Workloads that are dispatched to them."""

    workers: WorkerConnections
    _ahead: dict[str, timedelta] = field(default_factory=dict, init=False)
    """How far the clock here is ahead of each worker's, the way of a status included."""
    _read: dict[str, tuple[ClusterOfferStatus, Mapping[str, RemoteAnswer]]] = field(default_factory=dict, init=False)
    """The status of each worker as it was read last, and what it says by uid of the Workload."""

    def of(self, workload: ObservedWorkload) -> RemoteAnswer | Unknown:
        name, worker = workload.cluster, self.workers.get(workload.cluster)
        if worker is None:
            return _missing(name, "is not connected: it has no MultiKueueCluster here, or none is read")
        if worker.problem:
            return _missing(name, f"is not connected: {worker.problem}")
        status, received_at = worker.offer.status(), worker.offer.received_at
        if status is None or status.observed_at is None or received_at is None:
            return _missing(name, "has not been heard of for too long")
        answer = self._answers(name, status, status.observed_at, received_at).get(workload.uid)
        if answer is None:
            return _missing(name, "does not say yet what its GPUs do")
        return _of_this_run(answer, workload.admitted_at)

    def _answers(
        self, name: str, status: ClusterOfferStatus, observed_at: datetime, received_at: datetime
    ) -> Mapping[str, RemoteAnswer]:
        """The answers by uid of the Workload. A status is read once."""
        known = self._read.get(name)
        if known is not None and known[0] is status:
            return known[1]
        ahead = self._clock_ahead(name, received_at - observed_at)
        offers = [each for each in status.workloads if each.verdict]
        found = {each.uid: answer_of(name, each, observed_at=observed_at, ahead=ahead) for each in offers}
        self._read[name] = status, found
        return found

    def _clock_ahead(self, name: str, found: timedelta) -> timedelta:
        """The difference as it was before, where it has changed by jitter only."""
        known = self._ahead.get(name)
        if known is None or abs(found - known) > _JITTER:
            self._ahead[name] = known = found
        return known


def answer_of(cluster: str, offer: WorkloadOffer, *, observed_at: datetime, ahead: timedelta) -> RemoteAnswer:
    """What the worker said at that moment, with times by the clock here, which is so far ahead of the worker's."""
    return RemoteAnswer(
        cluster=cluster,
        verdict=_verdict(cluster, offer),
        by=_judged_by(offer.judged_by),
        message=f"on cluster {cluster}: {offer.verdict_message}" if offer.verdict_message else "",
        idle_since=offer.idle_since + ahead if offer.idle_since else None,
        idle_at_least=offer.idle_at_least,
        idle_for=observed_at - offer.idle_since if offer.idle_since else None,
        running_since=offer.running_since + ahead if offer.running_since else None,
        gpus=offer.gpus,
        evidence=_Evidence(offer.evidence),
    )


def _of_this_run(answer: RemoteAnswer, admitted_at: datetime | None) -> RemoteAnswer | Unknown:
    """The answer, unless it is about pods of an earlier time there."""
    started = answer.running_since
    if started is not None and (admitted_at is None or started < admitted_at - _EARLIER_RUN):
        return _missing(answer.cluster, "still speaks of pods from before Kueue admitted it")
    return answer


def _verdict(cluster: str, offer: WorkloadOffer) -> Verdict:
    match offer.verdict:
        case "Idle":
            return Idle()
        case "Busy":
            return Busy()
    known = offer.reason in set(UnknownReason)
    reason = UnknownReason(offer.reason) if known else UnknownReason.REMOTE_VERDICT_MISSING
    return Unknown(
        reason=reason, message=f"on cluster {cluster}: {offer.verdict_message or offer.reason or offer.verdict}"
    )


def _judged_by(asked: OfferPolicy | None) -> JudgedBy | None:
    if asked is None or asked.active_above is None:
        return None
    try:
        return JudgedBy(parse_duration(asked.idle_after), parse_duration(asked.warm_up), asked.active_above, asked.gpus)
    except ValueError:
        return None


class _Gpu(msgspec.Struct, omit_defaults=True):
    """A GPU as the definition of ScalableWorkloads has it: another form would make the API refuse a whole status."""

    pod: str
    gpu: str
    verdict: str
    node: str = ""
    reason: str = ""
    signals: list[dict[str, str]] = msgspec.field(default_factory=list)


class _Evidence(Sequence[Mapping[str, Any]]):
    """The evidence by GPU, without what cannot be read. It is read when it is looked at, which is seldom."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Sequence[msgspec.Raw]) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len([*self])

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for each in self._raw:
            with suppress(*UNREADABLE):
                yield msgspec.to_builtins(msgspec.json.decode(each, type=_Gpu))


def _missing(cluster: str, why: str) -> Unknown:
    return Unknown(reason=UnknownReason.REMOTE_VERDICT_MISSING, message=f"it runs on cluster {cluster}, which {why}")
