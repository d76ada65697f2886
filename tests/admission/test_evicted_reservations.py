"""Places of pods that may still come although their gang has to go: for how long they stay taken."""

from collections import Counter
from datetime import timedelta

import pytest
from builders import NOON, WorkloadJson
from provisioning_builders import flavors, gang

from scaler.admission.evicted_reservations import RELEASE_DELAY, EvictedReservations
from scaler.admission.workload import PodDemands, pod_demands_of
from scaler.kube.objects.kueue_workloads import Workload
from scaler.placement.requests import PlacementRequest

FLAVORS = flavors()
UID = "7e6b1a34"


class Place:
    """A released gang of two pods, with one of them on a node."""

    def __init__(self) -> None:
        self.released = _made(_admitted())
        self.now = NOON
        self.current: Workload | None = self.released
        self.waiting: Counter[str] = Counter()
        """Its pods that wait for a node."""
        self.flavors = FLAVORS
        self.leaving = EvictedReservations(needs=self._needs, waiting=lambda _: self.waiting)

    def _needs(self, workload: Workload) -> PodDemands | str:
        try:
            return pod_demands_of(workload, self.flavors.get)
        except ValueError as error:
            return str(error)

    def goes(self, *, bound: int = 1) -> None:
        """It has to go, with so many pods on nodes."""
        owed = pod_demands_of(self.released, FLAVORS.get).without({"main": bound})
        self.leaving.note(self.released, owed if bound < 2 else ())

    def later(self, seconds: float) -> int:
        """Places that are taken after so many seconds more."""
        self.now += timedelta(seconds=seconds)
        requests: list[PlacementRequest] = list(self.leaving.requests(self.now, lambda _: self.current))
        return sum(demand.count for request in requests for demand in request.demands)

    def unread(self, seconds: float) -> bool:
        """Whether after so many seconds more it is not known what its pods will take."""
        self.now += timedelta(seconds=seconds)
        return self.leaving.unread(self.now, lambda _: self.current) != ""


def _admitted() -> WorkloadJson:
    return gang(state="Ready").condition("Admitted", True)


def _evicted() -> WorkloadJson:
    """Kueue has evicted it, and holds its quota until its job has stopped."""
    return _admitted().condition("Evicted", True, "Deactivated").deactivated()


def _released() -> WorkloadJson:
    return _evicted().condition("QuotaReserved", False, "Pending").condition("Admitted", False, "NoReservation")


def _made(workload: WorkloadJson) -> Workload:
    return workload.decoded()


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_place_of_a_pod_that_is_on_no_node_stays_taken_until_the_job_has_stopped(place: Place) -> None:
    place.goes()
    place.current = _made(_evicted())
    assert [place.later(seconds) for seconds in (0, 1, 60)] == [1, 1, 1]


def test_and_for_a_moment_after_the_quota_was_released(place: Place) -> None:
    """Copies of Workloads and of pods are never quite in step: 3 s."""
    place.goes()
    place.current = _made(_released())
    assert [place.later(seconds) for seconds in (0, 2.9, 0.1, 60)] == [1, 1, 0, 0]
    assert timedelta(seconds=3) == RELEASE_DELAY


def test_one_that_has_vanished_is_like_one_whose_quota_was_released(place: Place) -> None:
    place.goes()
    place.current = None
    assert [place.later(seconds) for seconds in (0, 2.9, 0.1)] == [1, 1, 0]


def test_a_pod_that_waits_for_a_node_keeps_its_place_for_as_long_as_it_is_there(place: Place) -> None:
    place.goes()
    place.current, place.waiting = None, Counter(main=1)
    assert [place.later(seconds) for seconds in (0, 4, 600)] == [1, 1, 1]
    place.waiting = Counter()
    assert place.later(1) == 0


def test_what_cannot_be_read_is_unread_for_as_long_as_pods_may_come(place: Place) -> None:
    """Told once its quota was released: for 3 s longer. A pod that waits for a node, for as long as it is there."""
    place.leaving.note(place.released, "ResourceFlavor a100 is not seen")
    place.current = _made(_evicted())
    assert [place.unread(seconds) for seconds in (0, 60)] == [True, True]
    place.current = _made(_released())
    assert [place.unread(seconds) for seconds in (0, 2.9, 0.1)] == [True, True, False]
    place.leaving.note(place.released)
    place.waiting, place.flavors = Counter(main=1), {}
    assert [place.unread(seconds) for seconds in (0, 600)] == [True, True]
    assert place.later(0) == 0
    place.flavors = FLAVORS
    assert not place.unread(0)
    assert place.later(0) == 1


def test_pods_that_a_restart_finds_waiting_keep_their_places(place: Place) -> None:
    """Nothing is known of the time before. What is there is counted."""
    place.leaving.note(_made(_released()))
    place.current, place.waiting = _made(_released()), Counter(main=2)
    assert [place.later(seconds) for seconds in (0, 60)] == [2, 2]


def test_a_gang_whose_pods_were_all_on_nodes_leaves_nothing_taken(place: Place) -> None:
    place.goes(bound=2)
    place.current = _made(_evicted())
    assert place.later(0) == 0


def test_one_that_has_quota_again_keeps_its_old_places_for_a_moment_too(place: Place) -> None:
    """Kueue may release its quota and reserve it again within a second, before the copy of pods shows the old ones."""
    place.goes()
    place.current = _made(gang(state="Pending").condition("Evicted", False, "QuotaReserved"))
    assert [place.later(seconds) for seconds in (0, 2.9, 0.1)] == [1, 1, 0]


def test_one_that_was_released_again_has_its_places_as_its_own(place: Place) -> None:
    place.goes()
    place.leaving.stays(UID)
    place.current = _made(_evicted())
    assert place.later(0) == 0


@pytest.mark.parametrize("is_back", [False, True])
def test_for_a_moment_its_pods_may_be_those_of_its_earlier_run(place: Place, is_back: bool) -> None:
    place.goes(bound=2)
    if is_back:
        place.leaving.stays(UID)
    assert [place.leaving.has_earlier_run(place.released, NOON + timedelta(seconds=each)) for each in (0, 2, 3)] == [
        True,
        True,
        False,
    ]


def test_one_that_is_evicted_once_more_leaves_what_its_last_run_had_not_placed(place: Place) -> None:
    place.goes(bound=2)
    place.leaving.stays(UID)
    place.goes(bound=0)
    place.goes(bound=1)
    place.current = _made(_evicted())
    assert place.later(0) == 2


def test_another_workload_with_its_name_has_its_pods_too(place: Place) -> None:
    """Kueue makes the Workload of a job anew, and its pods are found by the job."""
    place.goes()
    admitted = _admitted()
    admitted.json["metadata"]["uid"] = "another"
    assert [place.leaving.has_earlier_run(_made(admitted), NOON + timedelta(seconds=each)) for each in (0, 3)] == [
        True,
        False,
    ]
