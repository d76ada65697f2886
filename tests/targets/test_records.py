"""Which ScalableWorkload has the status of what a ScaledObject scales."""

from collections.abc import Callable
from typing import Any

import pytest
from loops_builders import MemoryCluster, deployment, gang, record, scalable_workload, scaled_object
from msgspec import structs

from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import JobRef, ScalableWorkload
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.targets.records import ScalableWorkloads, is_of, job_ref, record_body, record_owner


class Heard:
    """As much of a reflector as has subscribers."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Change[ScalableWorkload]], None]] = []

    def subscribe(self, callback: Callable[[Change[ScalableWorkload]], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: None

    def tell(self, old: ScalableWorkload | None, new: ScalableWorkload | None) -> None:
        for each in self.callbacks:
            each(Change(("demo", "serve"), old, new))


@pytest.mark.parametrize(
    ("old", "new", "of_targets", "of_records"),
    [
        ("target", "target", ("target", "target"), None),
        ("record", "record", None, ("record", "record")),
        ("target", "record", ("target", None), (None, "record")),
        ("record", "target", (None, "target"), ("record", None)),
        (None, "record", None, (None, "record")),
        ("target", None, ("target", None), None),
    ],
)
def test_who_watches_targets_hears_of_no_record(old: Any, new: Any, of_targets: Any, of_records: Any) -> None:
    """Also where one was replaced by the other while nobody watched."""
    objects = {"target": scalable_workload("serve"), "record": record("serve"), None: None}
    names = {id(each): name for name, each in objects.items()}
    every, targets, records = Heard(), [], []
    view = ScalableWorkloads(every)  # type: ignore[arg-type]
    view.subscribe(lambda change: targets.append((names[id(change.old)], names[id(change.new)])))
    view.subscribe_records(lambda change: records.append((names[id(change.old)], names[id(change.new)])))
    every.tell(objects[old], objects[new])
    assert (targets, records) == ([of_targets] * (of_targets is not None), [of_records] * (of_records is not None))


def test_the_record_is_that_of_the_target_and_of_the_namespace() -> None:
    cluster = MemoryCluster()
    deployment("serve")(cluster)
    gang("train")(cluster)
    state, [serve] = cluster.read(), [x for x in cluster.scaled_objects.items() if x.metadata.name == "serve"]
    assert state.record_of(serve) is None
    ours = record("serve")
    elsewhere = structs.replace(ours, metadata=structs.replace(ours.metadata, namespace="other"))
    cluster.scalable_workloads.put(elsewhere)
    assert state.record_of(serve) is None
    cluster.scalable_workloads.put(ours)
    assert state.record_of(serve) == ours
    moved = structs.replace(ours, spec=structs.replace(ours.spec, job_ref=JobRef("apps/v1", "Deployment", "before")))
    cluster.scalable_workloads.put(moved)
    assert state.record_of(serve) is None, "what it scaled before has said that"
    assert state.own_record(serve) == moved
    [train] = [x for x in cluster.scaled_objects.items() if x.metadata.name == "train"]
    found = state.record_of(train)
    assert found is not None
    assert (found.metadata.name, found.is_record) == ("train", False)


def test_a_record_names_what_keda_takes_an_empty_kind_for() -> None:
    assert job_ref(ScaleTargetRef(name="serve", api_version="", kind="")) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "serve",
    }
    assert is_of(record("serve"), ScaleTargetRef(name="serve", api_version="", kind=""))
    assert not is_of(record("serve"), ScaleTargetRef(name="serve", api_version="apps/v1", kind="StatefulSet"))


def test_nobody_can_be_in_the_way_of_its_name_and_its_owner_is_found() -> None:
    body = record_body(scaled_object("serve", kind=("apps/v1", "Deployment")))
    assert (body["metadata"]["generateName"], body["metadata"].get("name")) == ("serve-", None)
    assert record_owner(record("serve")) == ("demo", "serve")
