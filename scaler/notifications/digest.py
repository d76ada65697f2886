"""Once a week each team (namespace) is told how long it held GPUs that were idle, and what was given back.

The numbers are the scaler's own metrics, read back from Prometheus as of the time of the digest, with the matchers of
the settings: what a process counts is lost with it, and histories in the API are too short for a week. They cover what
was scraped: hours without a leader are missing, namespaces beyond `metrics.namespaces` have no digest, and of single
workloads only those are known that had series (`metrics.workloads`). Where a query fails there is no digest until it
succeeds, never one with zeros.

When a team was told is written on one of its objects, the oldest with a history; the newest of such marks in the
namespace counts. A digest that nobody could deliver within a day is left out.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import structlog

from scaler.decision.describe import timestamp
from scaler.errors import KubeError, SourceError
from scaler.idleness.durations import format_duration
from scaler.kube.leader_api import PatchApi
from scaler.notifications.notice import NotifiedWorkload
from scaler.notifications.senders import Content, Sender
from scaler.notifications.workloads import Source
from scaler.reporting.usage.own_metrics import (
    GPU_SECONDS,
    IDLE_STATES,
    NAMESPACE,
    RECLAIMED_GPU_SECONDS,
    STATE,
    OwnMetrics,
)
from scaler.samples.source import InstantQuerySource, VectorSample
from scaler.webhook import SendError

log = structlog.get_logger(__name__)

MARK_PREFIX = "idlegpu.io/digested-"
"""With the name of a target: up to when its team was told. Written by the leader."""
_WEEK = timedelta(days=7)
_GIVE_UP_AFTER = timedelta(days=1)
_AFTER_FAILURE = timedelta(minutes=5)
_MOST_AT_ONCE = 16
_LONGEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestConfig:
    weekday: int
    """0 is Monday."""
    hour: int
    zone: ZoneInfo
    targets: tuple[str, ...]

    def last_due(self, now: datetime) -> datetime:
        """The newest time of a digest that is not after `now`."""
        local = now.astimezone(self.zone)
        for back in range(9):
            day = local.date() - timedelta(days=back)
            due = datetime.combine(day, time(self.hour), self.zone)
            if day.weekday() == self.weekday and due <= now:
                return due
        raise AssertionError("a week has every weekday")


@dataclass(slots=True)
class TeamWeek:
    """What one namespace did in a week."""

    idle_gpu_hours: float = 0.0
    given_back_gpu_hours: float = 0.0
    longest: list[tuple[timedelta, str]] = field(default_factory=list)
    """How long a workload was idle at most, and which; the longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Letter:
    target: str
    namespace: str
    carrier: Source


class WeeklyDigest:
    def __init__(
        self,
        config: DigestConfig,
        api: PatchApi,
        source: InstantQuerySource,
        own: OwnMetrics = OwnMetrics(),  # noqa: B008 (immutable)
        *,
        senders: Mapping[str, Sender],
        owner_of: Callable[[str], str],
        sent: Callable[[str, str], None],
    ) -> None:
        self._config = config
        self._api = api
        self._source = source
        self._own = own
        self._senders = {name: sender for name, sender in senders.items() if name in config.targets}
        self._owner_of = owner_of
        self._sent = sent
        self._weeks: tuple[datetime, Mapping[str, TeamWeek]] | None = None
        self._done: set[tuple[str, str, datetime]] = set()
        """(target, namespace, due): delivered by this process, whatever the copies show yet."""
        self._again_at: datetime | None = None

    async def tick(self, workloads: Collection[tuple[Source, NotifiedWorkload]], now: datetime) -> None:
        """Send some of the digests that are due; after a failure not before a while."""
        due = self._config.last_due(now)
        if now - due >= _GIVE_UP_AFTER or (self._again_at is not None and now < self._again_at):
            return
        self._done = {each for each in self._done if each[2] == due}
        letters = self._open(workloads, due)
        if not letters:
            return
        self._again_at = now + _AFTER_FAILURE
        weeks = await self._read(due)
        if weeks is None:
            return
        letters = [each for each in letters if each.namespace in weeks]
        some = letters[:_MOST_AT_ONCE]
        delivered = await asyncio.gather(*(self._deliver(each, weeks[each.namespace], due, now) for each in some))
        if all(delivered):
            self._again_at = now if len(letters) > len(some) else due + _GIVE_UP_AFTER

    def _open(self, workloads: Collection[tuple[Source, NotifiedWorkload]], due: datetime) -> list[_Letter]:
        """The teams that were not told yet, by namespace."""
        of_team: defaultdict[str, list[Source]] = defaultdict(list)
        for source, workload in workloads:
            of_team[workload.namespace].append(source)
        return [
            _Letter(target=target, namespace=namespace, carrier=min(sources, key=_age))
            for namespace, sources in sorted(of_team.items())
            for target in self._senders
            if (target, namespace, due) not in self._done and not _is_marked(sources, target, due)
        ]

    async def _read(self, due: datetime) -> Mapping[str, TeamWeek] | None:
        """By namespace, those with anything to tell; None where it cannot be known now."""
        if self._weeks is not None and self._weeks[0] == due:
            return self._weeks[1]
        try:
            held, given, longest = [await self._source.demand(each, at=due) for each in queries(self._own)]
        except SourceError as error:
            log.warning("digest not made yet", error=str(error))
            return None
        self._weeks = due, weeks_of(held, given, longest)
        return self._weeks[1]

    async def _deliver(self, letter: _Letter, week: TeamWeek, due: datetime, now: datetime) -> bool:
        holder, path = letter.carrier.holder, letter.carrier.path
        try:
            precondition = {"metadata": {"uid": holder.uid, "resourceVersion": holder.resource_version}}
            await self._api.patch(path, precondition, dry_run=True)
            said = content(letter.namespace, self._owner_of(letter.namespace), letter.target, week, due)
            await self._senders[letter.target].send(said, now)
            self._done.add((letter.target, letter.namespace, due))
            self._sent(letter.target, "delivered")
            mark = {MARK_PREFIX + letter.target: timestamp(due)}
            await self._api.patch(path, {"metadata": {"uid": holder.uid, "annotations": mark}})
        except SendError as error:
            self._sent(letter.target, "failed")
            log.warning("digest not delivered yet", target=letter.target, error=str(error))
            return False
        except KubeError as error:
            log.warning("digest not delivered or not marked yet", path=path, error=str(error))
            return False
        return True


def queries(own: OwnMetrics) -> tuple[str, str, str]:
    """GPU-hours held idle, GPU-hours given back, and the workloads that were idle longest; by namespace, of a week."""
    held = own.increase(GPU_SECONDS, (NAMESPACE,), _WEEK, f'{STATE}=~"{IDLE_STATES}"')
    given_back = own.increase(RECLAIMED_GPU_SECONDS, (NAMESPACE,), _WEEK)
    longest = f"topk by ({NAMESPACE}) ({_LONGEST}, {own.longest_idle((NAMESPACE, 'kind', 'name'), _WEEK)})"
    return f"{held} / 3600", f"{given_back} / 3600", longest


def weeks_of(
    held: Sequence[VectorSample], given: Sequence[VectorSample], longest: Sequence[VectorSample]
) -> dict[str, TeamWeek]:
    found: defaultdict[str, TeamWeek] = defaultdict(TeamWeek)
    for each in held:
        found[_namespace(each)].idle_gpu_hours = each.value
    for each in given:
        found[_namespace(each)].given_back_gpu_hours = each.value
    for each in longest:
        name = f"{each.labels.get('kind', '')} {each.labels.get('name', '')}"
        found[_namespace(each)].longest.append((timedelta(seconds=round(each.value)), name))
    for week in found.values():
        week.longest.sort(reverse=True)
    return {name: week for name, week in found.items() if name and _is_worth_telling(week)}


def _namespace(sample: VectorSample) -> str:
    return sample.labels.get("workload_namespace", "")


def _is_worth_telling(week: TeamWeek) -> bool:
    """From a tenth of a GPU-hour on."""
    return week.idle_gpu_hours >= 0.1 or week.given_back_gpu_hours >= 0.1  # NaN is not


def content(namespace: str, owner: str, target: str, week: TeamWeek, due: datetime) -> Content:
    begin, end = timestamp(due - _WEEK), timestamp(due)
    ident = hashlib.sha256(f"digest\n{namespace}\n{end}\n{target}".encode()).hexdigest()[:32]
    lines = [
        f"GPUs of namespace {namespace}, {begin} to {end}",
        f"  held idle:  {week.idle_gpu_hours:.1f} GPU-hours",
        f"  given back: {week.given_back_gpu_hours:.1f} GPU-hours, while workloads were suspended",
        *(["  idle longest:"] if week.longest else []),
        *(f"    {format_duration(length)}  {name}" for length, name in week.longest),
        "As far as Prometheus has scraped the scaler.",
        "",
    ]
    return Content(
        id=ident,
        owner=owner,
        subject=f"[idle GPUs] {namespace}: {week.idle_gpu_hours:.0f} GPU-hours held idle this week",
        text="\n".join(lines),
        json={
            "id": ident,
            "owner": owner,
            "digest": {
                "namespace": namespace,
                "from": begin,
                "to": end,
                "idleGpuHours": round(week.idle_gpu_hours, 2),
                "givenBackGpuHours": round(week.given_back_gpu_hours, 2),
                "longestIdle": [
                    {"workload": name, "seconds": int(length.total_seconds())} for length, name in week.longest
                ],
            },
        },
    )


def _age(source: Source) -> tuple[str, str]:
    return timestamp(source.holder.creation_timestamp) or "", source.holder.name


def _is_marked(sources: Sequence[Source], target: str, due: datetime) -> bool:
    """Times of one form in UTC compare as texts do."""
    marks = (each.holder.annotations.get(MARK_PREFIX + target, "") for each in sources)
    return max(marks, default="") >= (timestamp(due) or "")
