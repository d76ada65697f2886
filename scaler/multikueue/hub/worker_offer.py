"""What is known of the ClusterOffer on one worker: its spec as it is there, and its status as it was received?

Laws:

* A status is fresh for as long as it says of itself, by this process's clock, from when it was seen to change. One that
  was there when it was first seen may be of any age: it counts once it has changed. So may one that is seen after a
  longer silence, when the worker was not reached: it counts once it has changed again. So no other clock is trusted,
  and nothing old is taken for new after a restart or an interruption.
* A write is confirmed by its answer. While there is none, what it would have written may hold, and what was there
  before may hold: `may_reclaim` is all of that. After one that may have been done the object has to be read again.
* An own write may be known before the watch tells of it: of two versions of an object the later generation counts.

| `wanted` against what is there                | is written |
|-----------------------------------------------|------------|
| nothing is wanted                             | yes        |
| a write is under way, or was without an answer | no        |
| nothing is there, and nothing has to be       | yes        |
| the same generation as the last own write     | where the same was written |
| otherwise                                     | where the specs are equal  |
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.kube.objects.multikueue import ClusterOffer, ClusterOfferStatus, OfferedWorkload, WorkloadOffer
from scaler.kube.writes import Doubts

_LONGEST_LIFE = timedelta(minutes=10)
"""Longest time for which a status holds, whatever it says itself."""

OfferEntries = tuple[OfferedWorkload, ...]


@dataclass(kw_only=True)
class WorkerOffer:
    clock: Clock = SYSTEM_CLOCK
    offer: ClusterOffer | None = None
    """The offer as last confirmed, also while the worker is not reached."""
    wanted: OfferEntries | None = None
    """What the spec is to be; None where nothing is known of that."""
    received_at: datetime | None = None
    """When the status was last seen to change; None where it has not."""
    read_since: datetime | None = None
    """The time since which it is known what is there, or was at times; None where this process has never known it."""
    _changed_at: float = field(default=0.0, init=False)
    """When the status was last seen to appear or change."""
    doubts: Doubts[OfferEntries] = field(default_factory=Doubts, init=False)
    _written: tuple[OfferEntries, int] | None = field(default=None, init=False)
    """What was written last, and the generation that it made."""

    # ------------------------------------------------------------------------------------------------------ reading

    @property
    def entries(self) -> Collection[OfferedWorkload]:
        return self.offer.spec.workloads if self.offer is not None else ()

    def may_reclaim(self) -> set[str]:
        """Uids of the Workloads that idle workloads of it may be suspended for, as far as is known."""
        return {each.uid for each in chain(self.entries, *self.doubts.open) if each.reclaim}

    def status(self) -> ClusterOfferStatus | None:
        """The status, while it is fresh."""
        if self.offer is None or self.received_at is None:
            return None
        age = timedelta(seconds=self.clock.monotonic() - self._changed_at)
        return self.offer.status if age < life_of(self.offer.status) else None

    def answers(self) -> Mapping[str, WorkloadOffer]:
        """What it says about Workloads, by uid on the hub; of a status that is fresh."""
        status = self.status()
        return {each.uid: each for each in status.workloads} if status is not None else {}

    @property
    def is_written(self) -> bool:
        """Whether there is nothing to write."""
        if self.wanted is None:
            return True
        if self.doubts.open:
            return False
        if self.offer is None:
            return not self.wanted
        if self._written is not None and self._written[1] == self.offer.metadata.generation:
            return self._written[0] == self.wanted
        return self.offer.spec.workloads == self.wanted

    # ------------------------------------------------------------------------------------------------------ changes

    def heard(self, offer: ClusterOffer | None) -> None:
        """The watch, or a list, has shown this version; None: it is not there."""
        known, self.read_since = self.offer, self.read_since or self.clock.now()
        if known is not None and offer is not None and known.metadata.uid == offer.metadata.uid:
            if known.metadata.generation > offer.metadata.generation:
                return
            self._note_change(known.status, offer.status)
        else:
            self.received_at = self._written = None
            self._changed_at = self.clock.monotonic()
        self.offer = offer

    def read(self, offer: ClusterOffer | None) -> None:
        """It was read after a write without an answer: this is what is there."""
        self.doubts.open.clear()
        self._written = None
        self.heard(offer)

    def confirmed(self, offer: ClusterOffer, workloads: OfferEntries) -> None:
        """The write of these was done, and has made this."""
        self.heard(offer)
        self._written = workloads, offer.metadata.generation

    def _note_change(self, before: ClusterOfferStatus, after: ClusterOfferStatus) -> None:
        """A change counts as of now only where the status before was seen to appear within the life of this one: across
        a longer silence it may have been written at any time."""
        if after.observed_at is None or after.observed_at == before.observed_at:
            return
        silence = timedelta(seconds=self.clock.monotonic() - self._changed_at)
        self._changed_at = self.clock.monotonic()
        self.received_at = self.clock.now() if silence < life_of(after) else None


def life_of(status: ClusterOfferStatus) -> timedelta:
    """The time for which a status holds, by what it says of itself."""
    if status.observed_at is None or status.valid_until is None:
        return timedelta(0)
    return min(status.valid_until - status.observed_at, _LONGEST_LIFE)
