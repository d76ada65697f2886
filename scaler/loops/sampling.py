"""Keeps the history of every GPU's signals in step with the metrics source, with one read per signal and tick.

Laws:

* A read that failed, or a part of which cannot be read, leaves a doubt about all that it should have brought.
* A read reaches back to the newest sample that the ones before have brought, so an outage leaves no hole that the
  source could fill: neither one in which it did not answer, nor one in which it answered with nothing. The same rule
  makes the first read a backfill of the whole window.
* How many reads a tick makes depends on the number of signals, never on the number of workloads.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scaler.core.durations import format_duration
from scaler.core.gpu import GpuSeries, Signal, identify
from scaler.core.history import History
from scaler.core.idleness import Unknown
from scaler.core.policy import Trust
from scaler.core.reasons import Unknowable
from scaler.core.relabel import RelabelRules, relabel
from scaler.errors import SourceError
from scaler.ports import RawSeries, Reading, SignalSource

_YIELD_EVERY = 128
"""Series taken in before other tasks get the event loop again: about a millisecond."""
_DATE_RESOLUTION = timedelta(seconds=1)
"""A server's clock is known from a header that counts whole seconds."""


@dataclass(slots=True)
class Intake:
    """What one refresh took in."""

    doubt: Unknown | None = None
    """Why the samples cannot be trusted to be complete up to now; None where they can."""
    series: int = 0
    samples: int = 0
    blanks: int = 0
    """Samples that were no measurements."""
    unattributed: int = 0
    """Series that were dropped by relabelling, or name no GPU or no pod."""


class Sampler:
    """The history and the reads that keep it current."""

    def __init__(
        self,
        source: SignalSource,
        *,
        signals: Sequence[Signal],
        rules: RelabelRules,
        trust: Trust,
        overlap: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._rules = rules
        self._trust = trust
        self._overlap = overlap
        self._clock = clock
        self._read_until: dict[str, datetime] = {}
        """By signal, the time of the newest sample that was taken in."""
        self._identities: dict[str, dict[bytes, GpuSeries | None]] = {}
        self.history = History(signals=signals, interval=trust.interval, span=trust.interval)

    @property
    def is_backfilled(self) -> bool:
        """Whether every signal was read over the whole span at least once."""
        return len(self._read_until) == len(self.history.signals)

    async def refresh(self, *, end: datetime, span: timedelta) -> Intake:
        """Read what is new up to `end`, and hold at least `span` of it.

        A longer span than before is a new history: the whole window is read again.
        """
        if span > self.history.span:
            self.history = History(signals=self.history.signals, interval=self._trust.interval, span=span)
            self._read_until.clear()
        intake = Intake()
        readings = await asyncio.gather(*(self._read(signal, end) for signal in self.history.signals))
        for signal, reading in zip(self.history.signals, readings, strict=True):
            doubt = reading if isinstance(reading, Unknown) else await self._use(signal, reading, intake, end)
            intake.doubt = intake.doubt or doubt
        self.history.forget_before(self._oldest(end))
        return intake

    def _oldest(self, end: datetime) -> datetime:
        """The begin of the slot in which the span begins, at the latest."""
        return end - self.history.span - 2 * self._trust.interval

    async def _read(self, signal: Signal, end: datetime) -> Reading | Unknown:
        # A clock that was set back may have `end` before the newest sample.
        until = min(self._read_until.get(signal.name, self._oldest(end)), end)
        try:
            reading = await self._source.read(signal, start=max(until - self._overlap, self._oldest(end)), end=end)
        except SourceError as error:
            return _unavailable(signal, error)
        return self._skewed(reading) or reading

    def _skewed(self, reading: Reading) -> Unknown | None:
        if reading.server_time is None:
            return None
        skew = abs(self._clock() - reading.server_time)
        if skew <= self._trust.max_clock_skew + _DATE_RESOLUTION:
            return None
        return Unknown(
            reason=Unknowable.CLOCK_SKEW,
            message=f"the metrics source's clock differs from ours by {format_duration(skew)} "
            f"(limit {format_duration(self._trust.max_clock_skew)}); windows would be misplaced",
        )

    async def _use(self, signal: Signal, reading: Reading, intake: Intake, end: datetime) -> Unknown | None:
        """Why the reading is not to be trusted to be complete, after it was taken in as far as it can be read."""
        try:
            newest = await self._take_in(signal, reading, intake)
        except SourceError as error:
            return _unavailable(signal, error)
        if newest is None:
            # GPUs that nobody holds are no reason to read their whole window with every tick; no GPU at all is.
            newest = end if reading.series else self._read_until.get(signal.name, self._oldest(end))
        self._read_until[signal.name] = newest
        return None

    async def _take_in(self, signal: Signal, reading: Reading, intake: Intake) -> datetime | None:
        """The time of the newest sample, None where no pod has any. Raises: SourceError."""
        known, seen = self._identities.get(signal.name, {}), dict[bytes, GpuSeries | None]()
        newest_s = 0.0
        for count, series in enumerate(reading.series):
            key = series.key
            identity = seen[key] = known[key] if key in known else self._identify(series)
            if identity is None:
                intake.unattributed += 1
            else:
                samples = series.samples()
                intake.blanks += self.history.record(signal, identity, samples)
                intake.samples += len(samples)
                if samples:
                    newest_s = max(newest_s, samples[-1][0])
            if count % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        intake.series += len(reading.series)
        self._identities[signal.name] = seen
        return datetime.fromtimestamp(newest_s, UTC) if newest_s else None

    def _identify(self, series: RawSeries) -> GpuSeries | None:
        labels = relabel(series.labels(), self._rules)
        return None if labels is None else identify(labels)


def _unavailable(signal: Signal, error: SourceError) -> Unknown:
    return Unknown(reason=Unknowable.SOURCE_UNAVAILABLE, message=f"{signal.name}: {error}")
