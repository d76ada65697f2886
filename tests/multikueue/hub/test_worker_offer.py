"""What is known of the ClusterOffer on a worker: what holds, what may hold, and for how long it is believed."""

from datetime import timedelta
from typing import Any

import pytest
from multikueue.hub.dispatch.dispatch_builders import at
from virtual_clock import VirtualClock

from scaler.errors import KubeError
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.multikueue import (
    ClusterOffer,
    ClusterOfferSpec,
    ClusterOfferStatus,
    OfferedWorkload,
    WorkloadOffer,
)
from scaler.multikueue.hub.worker_offer import WorkerOffer

ASKED = OfferedWorkload(namespace="team", name="gang", uid="g")
MAY = OfferedWorkload(namespace="team", name="gang", uid="g", reclaim=True)


def offer(
    *entries: OfferedWorkload, generation: int = 1, observed: float | None = None, uid: str = "o"
) -> ClusterOffer:
    status = ClusterOfferStatus()
    if observed is not None:
        said = WorkloadOffer(namespace="team", name="gang", uid="g", fit="Free")
        status = ClusterOfferStatus(observed_at=at(observed), valid_until=at(observed + 45), workloads=(said,))
    metadata = ObjectMeta(name="hub", uid=uid, generation=generation)
    return ClusterOffer(metadata=metadata, spec=ClusterOfferSpec(workloads=entries), status=status)


def heard(*offers: ClusterOffer, clock: VirtualClock | None = None) -> WorkerOffer:
    found = WorkerOffer(clock=clock or VirtualClock())
    for each in offers:
        found.heard(each)
    return found


def test_a_status_counts_from_when_it_was_seen_to_change() -> None:
    clock = VirtualClock()
    found = heard(offer(observed=0), clock=clock)
    assert found.status() is None, "it may be of any age"
    found.heard(offer(observed=15))
    assert found.answers()["g"].fit == "Free"
    clock.jump(44)
    assert found.status() is not None
    clock.jump(1)
    assert found.status() is None


def test_nobodys_clock_is_trusted() -> None:
    """The worker's is a day slow, and the status is as fresh as any."""
    found = heard(offer(observed=-86400), offer(observed=-86385))
    assert found.status() is not None


def test_a_status_that_is_seen_after_a_silence_may_have_been_written_at_its_begin() -> None:
    """The worker was not reached for an hour, in which its scaler has answered once more and ended."""
    clock = VirtualClock()
    found = heard(offer(observed=0), offer(observed=15), clock=clock)
    clock.jump(3600)
    found.heard(offer(observed=30))
    assert found.status() is None
    clock.jump(15)
    found.heard(offer(observed=3630))
    assert found.status() is not None


def test_a_status_that_says_it_holds_for_ever_holds_ten_minutes() -> None:
    clock = VirtualClock()
    found = heard(offer(observed=0), clock=clock)
    long = ClusterOfferStatus(observed_at=at(1), valid_until=at(1) + timedelta(days=365))
    found.heard(ClusterOffer(metadata=ObjectMeta(name="hub", uid="o", generation=1), status=long))
    clock.jump(599)
    assert found.status() is not None
    clock.jump(1)
    assert found.status() is None


def test_the_status_of_another_object_is_not_a_change_of_this_one() -> None:
    assert heard(offer(observed=0), offer(observed=15, uid="other")).status() is None


def test_an_own_write_is_not_undone_by_a_watch_that_is_late() -> None:
    found = heard(offer(ASKED))
    found.confirmed(offer(MAY, generation=2), (MAY,))
    found.heard(offer(ASKED, observed=3))
    assert found.may_reclaim() == {"g"}


def written(found: WorkerOffer, *entries: OfferedWorkload) -> bool:
    found.wanted = entries
    return found.is_written


def test_what_is_there_is_not_written_again() -> None:
    found = heard(offer(ASKED))
    assert written(found, ASKED)
    assert not written(found, MAY)
    assert written(WorkerOffer()), "nothing has to be there"
    assert not written(WorkerOffer(), ASKED)
    assert WorkerOffer().is_written, "nothing is wanted"


def test_while_a_write_is_without_an_answer_both_may_hold() -> None:
    found = heard(offer(ASKED))
    with pytest.raises(KubeError), found.doubts.held((MAY,)):
        raise KubeError("the connection was lost")
    assert found.may_reclaim() == {"g"}
    assert not written(found, MAY), "it is to be read first"
    found.read(offer(ASKED, generation=1))
    assert found.may_reclaim() == set()


def test_a_revocation_without_an_answer_is_none() -> None:
    found = heard(offer(MAY))
    with found.doubts.held(()):
        assert found.may_reclaim() == {"g"}
        found.confirmed(offer(generation=2), ())
    assert found.may_reclaim() == set()


def test_what_was_written_counts_as_there_although_the_server_shows_it_differently() -> None:
    found = heard(offer())
    found.confirmed(offer(MAY, generation=2), (ASKED,))
    assert written(found, ASKED)
    found.heard(offer(MAY, generation=3))
    assert not written(found, ASKED), "somebody else has written since"


def test_an_object_that_is_gone_holds_nothing() -> None:
    found: Any = heard(offer(MAY))
    found.heard(None)
    assert (found.may_reclaim(), [*found.entries], found.status()) == (set(), [], None)
