"""Who waits for GPUs, and since when."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from builders import GPUS, NOON, WorkloadJson, at
from loops_builders import MemoryCluster

from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.loops.waits import Admitted, Waits, gpus_asked


class Town:
    """A cluster of one kind of object, whose watch tells Waits of every change."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster()
        self.admitted: list[Admitted] = []
        self.waits = Waits(self.cluster.read(), admitted=self.admitted.append, clock=lambda: self.now)

    def hears(self, json: WorkloadJson, *, when: datetime | None = None) -> None:
        self.now = when or self.now
        new = json.decoded()
        old = self.cluster.workloads.get(*new.metadata.key)
        self.cluster.workloads.put(new)
        self.waits.heard(Change(new.metadata.key, old, new))

    def drops(self, name: str) -> None:
        old = self.cluster.workloads.get("demo", name)
        self.cluster.workloads.drop(name)
        self.waits.heard(Change(("demo", name), old, None))

    def since(self) -> dict[str, datetime]:
        return {each.workload.metadata.name: each.since for each in self.waits.pending()}


def workload(name: str = "w", *, gpus: int = 2) -> WorkloadJson:
    """Created at 9:00."""
    return WorkloadJson(name, pods=1, gpus_per_pod=gpus)


CREATED = NOON - timedelta(hours=3)
LOST = CREATED + timedelta(seconds=1)
"""When the builder's conditions were last changed."""


@pytest.mark.parametrize(
    ("json", "since"),
    [
        pytest.param(workload(), CREATED, id="since it was created, where Kueue has said nothing yet"),
        pytest.param(workload().waiting("no quota"), LOST, id="since Kueue says that it has no quota"),
    ],
)
def test_of_what_waited_before_this_process_its_own_conditions_tell(json: WorkloadJson, since: datetime) -> None:
    town = Town()
    town.hears(json)
    assert town.since() == {"w": since}


def test_one_waits_until_it_is_admitted_and_not_only_until_it_has_quota() -> None:
    town = Town()
    town.hears(workload(gpus=0).waiting(""))  # asks for no GPU
    town.hears(workload().waiting(""))
    town.hears(workload().reserved(), when=at(10))
    [waiting] = town.waits.pending()
    assert waiting.has_quota
    town.hears(workload().admitted(), when=at(40))
    [admitted] = town.admitted
    assert (admitted.gpus, admitted.waited) == (2, at(40) - LOST)
    assert town.since() == {}


def test_one_that_lost_its_quota_begins_anew() -> None:
    town = Town()
    town.hears(workload().admitted())
    town.hears(workload().waiting("preempted"), when=at(100))
    assert town.since() == {"w": at(100)}
    town.hears(workload().admitted(), when=at(130))
    assert [each.waited for each in town.admitted] == [timedelta(seconds=30)]


def test_nights_that_one_was_asleep_are_no_waiting() -> None:
    town = Town()
    town.hears(workload().waiting("").deactivated())
    assert town.since() == {}
    town.hears(workload().waiting(""), when=at(100))
    assert town.since() == {"w": at(100)}


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda town: town.drops("w"), id="deleted"),
        pytest.param(lambda town: town.hears(ending()), id="told to be deleted"),
        pytest.param(lambda town: town.hears(workload().waiting("").condition("Finished", True)), id="finished"),
        pytest.param(lambda town: town.hears(workload().waiting("").deactivated()), id="deactivated"),
    ],
)
def test_nobody_waits_for_ever(end: Callable[[Town], None]) -> None:
    town = Town()
    town.hears(workload().waiting(""))
    end(town)
    assert town.since() == {}
    assert town.admitted == []


def ending() -> WorkloadJson:
    json = workload().waiting("")
    json.json["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    return json


def test_one_is_admitted_once_whatever_changes_afterwards() -> None:
    town = Town()
    town.hears(workload().waiting(""))
    town.hears(workload().admitted(), when=at(40))
    town.hears(workload().admitted().with_annotations({"a": "b"}), when=at(50))
    assert len(town.admitted) == 1


def test_what_runs_when_this_process_starts_was_not_admitted_just_now() -> None:
    town = Town()
    town.hears(workload().admitted())
    assert town.admitted == []


def test_gpus_are_those_of_all_pods_as_admitted() -> None:
    asked = WorkloadJson(pods=3, gpus_per_pod=4)
    assert gpus_asked(asked.decoded(), GPUS) == 12
    part = WorkloadJson(pods=3, gpus_per_pod=4).with_status(
        admission={"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 2}]}
    )
    assert gpus_asked(part.decoded(), GPUS) == 8  # partial admission: 2 × 4
    found: Workload = asked.decoded()
    assert found.status.admission is None
