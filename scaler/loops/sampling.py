"""Keeps the history of every GPU's signals in step with the metrics source, with one read per signal and tick.

Laws:

* A read is used whole or not at all.
* After a read that failed the next one reaches back to where the last good one ended, so an outage leaves no hole that
  the source could fill. The same rule makes the first read a backfill of the whole window.
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
            if isinstance(reading, Unknown):
                intake.doubt = intake.doubt or reading
            else:
                await self._take_in(signal, reading, intake)
                self._read_until[signal.name] = end
        self.history.forget_before(self._oldest(end))
        return intake

    def _oldest(self, end: datetime) -> datetime:
        """The begin of the slot in which the span begins, at the latest."""
        return end - self.history.span - 2 * self._trust.interval

    async def _read(self, signal: Signal, end: datetime) -> Reading | Unknown:
        until = self._read_until.get(signal.name)
        start = max(until - self._overlap, self._oldest(end)) if until else self._oldest(end)
        try:
            reading = await self._source.read(signal, start=start, end=end)
        except SourceError as error:
            return Unknown(reason=Unknowable.SOURCE_UNAVAILABLE, message=f"{signal.name}: {error}")
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

    async def _take_in(self, signal: Signal, reading: Reading, intake: Intake) -> None:
        known, seen = self._identities.get(signal.name, {}), dict[bytes, GpuSeries | None]()
        for count, series in enumerate(reading.series):
            key = series.key
            identity = seen[key] = known[key] if key in known else self._identify(series)
            if identity is None:
                intake.unattributed += 1
            else:
                samples = series.samples()
                intake.blanks += self.history.record(signal, identity, samples)
                intake.samples += len(samples)
            if count % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        intake.series += len(reading.series)
        self._identities[signal.name] = seen

    def _identify(self, series: RawSeries) -> GpuSeries | None:
        labels = relabel(series.labels(), self._rules)
        return None if labels is None else identify(labels)
