"""Which Workload and which pods belong to what is scaled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from builders import GPUS, WorkloadJson, at
from loops_builders import MemoryCluster, MemoryStore, pod, scalable_workload, stamp
from msgspec import structs

from scaler.idleness import pods as core
from scaler.kube.objects.core import ObjectMeta, Pod
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaledObjectSpec, Trigger
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.reflector import Absent, Denied, Disconnected, NotWatched, Reflecting, State
from scaler.targets.cluster_state import (
    PerObjectCache,
    pod_indexes,
    scalable_workload_indexes,
    scaled_by_key,
    scaled_object_indexes,
    workload_indexes,
)
from scaler.targets.target_state import WakeCause, WakeRequest

RAY = ("ray.io/v1", "RayCluster", "first-raycluster")


@pytest.fixture
def memory() -> MemoryCluster:
    return MemoryCluster()


def names(pods: Sequence[core.GpuPod]) -> list[str]:
    return sorted(each.name for each in pods)


def named(name: str) -> Workload:
    return WorkloadJson(name).decoded()


# ---- grants


@pytest.mark.parametrize(
    ("seconds", "expires", "expected"),
    [
        pytest.param(599, 600, "plan p for Workload demo/gang", id="active"),
        pytest.param(600, 600, "", id="expired"),
        pytest.param(-1, 0, "", id="withdrawn"),
    ],
)
def test_a_grant_counts_until_it_expires_or_is_withdrawn(
    memory: MemoryCluster, seconds: float, expires: float, expected: str
) -> None:
    grant = {
        "plan": "p",
        "workload": "demo/gang",
        "workloadUID": "1234",
        "victims": ["demo/first-raycluster"],
        "grantedAt": stamp(at(0)),
        "expiresAt": stamp(at(expires)),
    }
    target = memory.read().situation(scalable_workload("first-raycluster", grant=grant), at=at(seconds))
    assert (target.grant, target.is_held) == (expected, True)


# ---- ScaledObjects that the leader acts on


@pytest.mark.parametrize(
    ("annotations", "limits", "awaits"),
    [
        ({}, {}, False),
        ({"idlegpu.io/wake": "true"}, {}, True),
        ({"idlegpu.io/wake": "WhenFree"}, {}, True),
        ({"idlegpu.io/wake": " False "}, {}, False),
        ({"idlegpu.io/keep-for": "4h"}, {}, True),
        ({"idlegpu.io/keep-until": "2026-12-24T18:00:00Z"}, {}, False),
        ({"idlegpu.io/keep-until": "2026-12-24T18:00:00Z"}, {"longestKeep": "8h"}, True),
        ({"idlegpu.io/exclude": "true"}, {"keepsPerWeek": "1"}, True),
        ({"idlegpu.io/wake": "false", "idlegpu.io/exclude": "true"}, {}, False),
    ],
    ids=str,
)
def test_scaled_objects_are_found_whose_annotations_the_leader_acts_on(
    annotations: dict[str, str], limits: dict[str, str], awaits: bool
) -> None:
    spec = ScaledObjectSpec(triggers=(Trigger(metadata=limits),))
    scaled = ScaledObject(metadata=ObjectMeta(name="a", annotations=annotations), spec=spec)
    assert bool([*scaled_object_indexes()["wake"](scaled)]) == awaits


# ---- pods of a Workload


def test_pods_of_a_workload_are_those_that_its_annotation_names(memory: MemoryCluster) -> None:
    memory.pods.put(pod("one", workload="wl"), pod("two", workload="wl"), pod("other", workload="wl-2"))
    memory.pods.put(pod("elsewhere", workload="wl", namespace="another"))
    assert names(memory.read().pods_of_workload(named("wl"))) == ["one", "two"]


def test_pods_without_gpus_are_found_too_and_hold_none(memory: MemoryCluster) -> None:
    """A Ray head without a GPU is part of the gang: a suspension is over only when it too is gone."""
    memory.pods.put(pod("head", gpus=0, workload="wl"), pod("worker", gpus=2, workload="wl"))
    found = memory.read().pods_of_workload(named("wl"))
    assert {each.name: (each.gpus, each.holds_gpus) for each in found} == {"head": (0, False), "worker": (2, True)}


def test_without_annotations_pods_are_those_whose_owner_is_the_job(memory: MemoryCluster) -> None:
    memory.pods.put(pod("one", owner="uid-train"), pod("other", owner="uid-other"))
    workload = WorkloadJson("wl").owned_by("batch/v1", "Job", "train").decoded()
    assert names(memory.read().pods_of_workload(workload)) == ["one"]


LABELS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
    "RayCluster": "ray.io/cluster",
    "PyTorchJob": "training.kubeflow.org/job-name",
    "MPIJob": "training.kubeflow.org/job-name",
}


@pytest.mark.parametrize(("kind", "label"), LABELS.items())
def test_without_either_pods_are_those_that_the_jobs_label_names(memory: MemoryCluster, kind: str, label: str) -> None:
    """A JobSet's pods are owned by its Jobs, a RayCluster's submitter by no object."""
    memory.pods.put(pod("one", owner="uid-child", labels={label: "train"}), pod("other", labels={label: "train-2"}))
    memory.pods.put(pod("elsewhere", labels={label: "train"}, namespace="another"))
    workload = WorkloadJson("wl").owned_by("any/v1", kind, "train").decoded()
    assert names(memory.read().pods_of_workload(workload)) == ["one"]


def test_pods_that_are_annotated_owned_and_labelled_are_the_workloads_all(memory: MemoryCluster) -> None:
    """One that is missed may work."""
    label = {"batch.kubernetes.io/job-name": "train"}
    workload = WorkloadJson("wl").owned_by("batch/v1", "Job", "train").decoded()
    memory.pods.put(pod("labelled", labels=label))
    memory.pods.put(pod("owned", owner="uid-train", labels=label))
    memory.pods.put(pod("annotated", workload="wl", owner="uid-train"))
    memory.pods.put(pod("of-one-that-is-gone", workload="wl-0", owner="uid-train"))
    assert names(memory.read().pods_of_workload(workload)) == ["annotated", "labelled", "of-one-that-is-gone", "owned"]


def test_pods_that_share_a_controller_with_annotated_ones_are_the_workloads_too(memory: MemoryCluster) -> None:
    """A RayJob's pods are owned by its RayCluster."""
    workload = WorkloadJson("wl").owned_by("ray.io/v1", "RayJob", "train").decoded()
    memory.pods.put(pod("one", workload="wl", owner="uid-cluster"), pod("two", owner="uid-cluster"))
    memory.pods.put(pod("other", owner="uid-other"))
    assert names(memory.read().pods_of_workload(workload)) == ["one", "two"]


@pytest.mark.parametrize(("is_over", "expected"), [(False, ["one"]), (True, ["one", "two"])])
def test_a_pod_that_names_another_workload_is_that_ones_until_it_is_over(
    memory: MemoryCluster, is_over: bool, expected: list[str]
) -> None:
    """Each group of a LeaderWorkerSet has a Workload of its own."""
    job = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve")
    label = {"leaderworkerset.sigs.k8s.io/name": "serve"}
    workload = of_job("wl", job=job)
    memory.workloads.put(workload, of_job("wl-2", job=job, finished=is_over))
    memory.pods.put(pod("one", workload="wl", labels=label), pod("two", workload="wl-2", labels=label))
    assert names(memory.read().pods_of_workload(workload)) == expected


# ---- slices of an elastic job


def slice_(name: str, *, replaces: str = "", first: str = "", finished: bool = False) -> Workload:
    """A Workload of an elastic job, as Kueue annotates it."""
    json = WorkloadJson(name).owned_by(*RAY)
    json.json["metadata"]["annotations"] = {
        **({"kueue.x-k8s.io/workload-slice-replacement-for": f"demo/{replaces}"} if replaces else {}),
        **({"kueue.x-k8s.io/workload-slice-name": first} if first else {}),
    }
    return (json.condition("Finished", True) if finished else json).decoded()


def of_slice(made: Pod, first: str) -> Pod:
    annotations = made.metadata.annotations | {"kueue.x-k8s.io/workload-slice-name": first}
    return structs.replace(made, metadata=structs.replace(made.metadata, annotations=annotations))


SLICES: dict[str, tuple[list[Workload], list[Pod]]] = {
    "names the slice that was replaced": (
        [slice_("one", finished=True), slice_("two", finished=True, replaces="one"), slice_("now", replaces="two")],
        [pod("old", workload="one"), pod("middle", workload="two"), pod("new", workload="now")],
    ),
    "names a slice that is gone": ([slice_("now", replaces="one")], [pod("old", workload="one")]),
    "names the first slice, which later ones name": (
        [slice_("now", replaces="two", first="one")],
        [of_slice(pod("old", workload="one"), "one"), of_slice(pod("new", workload="now"), "one")],
    ),
    "names only the first slice": ([slice_("now", first="one")], [of_slice(pod("old"), "one")]),
    "names the only slice as the first": ([slice_("now")], [of_slice(pod("old"), "now")]),
    "names a slice that is not over yet": (
        [slice_("one"), slice_("now", replaces="one")],
        [pod("old", workload="one"), pod("new", workload="now")],
    ),
    "names a slice, in a circle": (
        [slice_("one", replaces="now"), slice_("now", replaces="one")],
        [pod("old", workload="one")],
    ),
}


@pytest.mark.parametrize("how", SLICES)
def test_a_pod_is_an_elastic_jobs_if_it(memory: MemoryCluster, how: str) -> None:
    """Kueue makes another Workload for each change of the size, and pods that run on keep the name of theirs."""
    workloads, pods = SLICES[how]
    memory.workloads.put(*workloads)
    memory.pods.put(*pods, pod("other", workload="other"))
    assert names(memory.read().pods_of_workload(workloads[-1])) == sorted(each.metadata.name for each in pods)


def test_a_workload_without_an_owner_has_only_annotated_pods(memory: MemoryCluster) -> None:
    memory.pods.put(pod("one", workload="wl"), pod("other", owner="uid-train"))
    workload = WorkloadJson("wl").owned_by("batch/v1", "Job", "train", controller=False).decoded()
    assert names(memory.read().pods_of_workload(workload)) == ["one"]


def test_a_pod_is_looked_at_again_only_when_it_has_changed(memory: MemoryCluster) -> None:
    cluster = memory.read()
    memory.pods.put(pod("one", workload="wl", started=None, phase="Pending"))
    (before,) = cluster.pods_of_workload(named("wl"))
    assert cluster.pods_of_workload(named("wl"))[0] is before
    memory.pods.put(pod("one", workload="wl"))
    (after,) = cluster.pods_of_workload(named("wl"))
    assert (before.is_running, after.is_running) == (False, True)


async def test_what_is_remembered_of_pods_that_are_gone_is_bounded(memory: MemoryCluster) -> None:
    remembered: PerObjectCache[Pod, str] = PerObjectCache()
    memory.pods.put(pod("lasting"))
    for n in range(5000):
        memory.pods.put(pod(f"pod-{n}"))
        for each in memory.pods.items():
            assert remembered.of(each, lambda it: it.metadata.name) == each.metadata.name
        memory.pods.drop(f"pod-{n}")
        await remembered.forget_gone(memory.pods)
    assert 1 < len(remembered) <= 1024 + 2


# ---- the Workload of a ScalableWorkload


def of_job(name: str, *, created: float = 0, finished: bool = False, job: tuple[str, str, str] = RAY) -> Workload:
    json = WorkloadJson(name).owned_by(*job)
    json.json["metadata"]["creationTimestamp"] = stamp(at(created))
    return (json.condition("Finished", True) if finished else json).decoded()


def test_a_workload_is_found_by_its_job_whatever_the_version(memory: MemoryCluster) -> None:
    """KubeRay serves v1 and v1alpha1 of the same objects; owner references keep the one that wrote them."""
    memory.workloads.put(of_job("wl", job=("ray.io/v1alpha1", "RayCluster", "first-raycluster")))
    found = memory.read().workload_of(scalable_workload("train", job=RAY))
    assert found is not None
    assert found.metadata.name == "wl"


@pytest.mark.parametrize(
    "job",
    [
        ("ray.io/v1", "RayJob", "first-raycluster"),
        ("other.io/v1", "RayCluster", "first-raycluster"),
        ("ray.io/v1", "RayCluster", "second-raycluster"),
        ("v1", "RayCluster", "first-raycluster"),
    ],
)
def test_another_kind_group_or_name_is_another_job(memory: MemoryCluster, job: tuple[str, str, str]) -> None:
    memory.workloads.put(of_job("wl", job=job))
    assert memory.read().workload_of(scalable_workload("train", job=RAY)) is None


SEVERAL: dict[str, tuple[list[Workload], str]] = {
    "the youngest": ([of_job("a", created=10), of_job("b", created=20), of_job("c", created=0)], "b"),
    "of equally old ones the last by name": ([of_job("a"), of_job("c"), of_job("b")], "c"),
    "an unfinished one before a younger finished one": ([of_job("a"), of_job("b", created=9, finished=True)], "a"),
    "of finished ones the youngest": ([of_job("a", created=9, finished=True), of_job("b", finished=True)], "a"),
}


@pytest.mark.parametrize("which", SEVERAL)
def test_of_several_workloads_of_a_job_it_is(memory: MemoryCluster, which: str) -> None:
    workloads, expected = SEVERAL[which]
    for order in (workloads, workloads[::-1]):
        memory = MemoryCluster()
        memory.workloads.put(*order)
        found = memory.read().workload_of(scalable_workload("train", job=RAY))
        assert found is not None
        assert found.metadata.name == expected


def test_a_situation_is_what_is_observed_and_requested(memory: MemoryCluster) -> None:
    memory.workloads.put(WorkloadJson("wl", pods=1).admitted().decoded())
    memory.pods.put(pod("worker", workload="wl"))
    demand = WakeRequest(WakeCause.DEMAND, "demand query 'queued'")
    wished = scalable_workload("train", workload="wl", replicas=0, annotations={"idlegpu.io/wake": "true"})
    situation = memory.read().situation(wished, wake=demand)
    assert situation.workload is not None
    assert (situation.workload.admitted, names(situation.pods)) == (True, ["worker"])
    assert (situation.desired_replicas, situation.was_bound, situation.wakes_foreign) == (0, False, True)
    assert situation.wake_request == (
        WakeCause.ANNOTATION,
        "annotation idlegpu.io/wake on ScalableWorkload train",
    )

    unwished = scalable_workload("train", workload="gone", workloadUID="7e6b1a34")
    situation = memory.read().situation(unwished, wake=demand)
    assert (situation.workload, situation.pods, situation.was_bound) == (None, (), True)
    assert (situation.wake_request, situation.wakes_foreign) == (demand, False)


# ---- pods of a selector


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=web", ["web-1", "web-2"]),
        ("app=web,tier=gpu", ["web-1"]),
        ("tier=gpu,app=web", ["web-1"]),
        ("app in (web, db)", ["db-1", "web-1", "web-2"]),
        ("app notin (web)", ["db-1", "plain"]),
        ("app!=web", ["db-1", "plain"]),
        ("app", ["db-1", "web-1", "web-2"]),
        ("!app", ["plain"]),
        ("app=web,tier!=gpu", ["web-2"]),
        ("pod-template-hash=6cd3b", ["web-2"]),
        ("app=nobody", []),
        ("", []),
        ("  ", []),
    ],
)
def test_gpu_pods_of_a_selector(memory: MemoryCluster, selector: str, expected: list[str]) -> None:
    memory.pods.put(
        pod("web-1", labels={"app": "web", "tier": "gpu"}),
        pod("web-2", labels={"app": "web", "pod-template-hash": "6cd3b"}),
        pod("db-1", labels={"app": "db"}),
        pod("plain"),
        pod("without-gpus", gpus=0, labels={"app": "web"}),
        pod("elsewhere", labels={"app": "web"}, namespace="another"),
    )
    assert names(memory.read().pods_of_selector("demo", selector)) == expected


class CountingStore(MemoryStore[Pod]):
    """Counts the pods that it hands out."""

    def __init__(self) -> None:
        super().__init__(pod_indexes(GPUS))
        self.given = 0

    def by_index(self, name: str, key: Any) -> list[Pod]:
        found = super().by_index(name, key)
        self.given += len(found)
        return found


def test_a_selector_looks_at_no_more_pods_than_bear_its_rarest_label() -> None:
    """A thousand targets in a namespace would otherwise look at a million pods a tick."""
    pods = CountingStore()
    for n in range(200):
        pods.put(pod(f"web-{n}", labels={"instance": f"i{n}", "team": f"team-{n % 10}"}))
    cluster = MemoryCluster(pods=pods).read()
    assert names(cluster.pods_of_selector("demo", "instance=i17,team=team-7")) == ["web-17"]
    assert pods.given == 1 + 20


# ---- indexes of the other stores


def test_a_scalable_workload_and_its_workload_are_found_by_the_same_key() -> None:
    scalable = scalable_workload("train", job=("ray.io/v1", "RayCluster", "first-raycluster"))
    (key,) = workload_indexes()["owner"](of_job("wl", job=("ray.io/v1beta7", "RayCluster", "first-raycluster")))
    assert scaled_by_key(scalable) == key == ("demo", "ray.io", "RayCluster", "first-raycluster")
    assert list(scalable_workload_indexes()["subject"](scalable_workload("train", workload="wl"))) == [("demo", "wl")]


def test_of_those_that_name_a_workload_the_oldest_acts_that_stays(memory: MemoryCluster) -> None:
    def made(name: str, minute: int, *, leaves: bool = False) -> ScalableWorkload:
        one = scalable_workload(name, workload="wl")
        times = {"creation_timestamp": at(60 * minute), "deletion_timestamp": at(0) if leaves else None}
        return structs.replace(one, metadata=structs.replace(one.metadata, **times))

    memory.scalable_workloads.put(made("a", 3), made("b", 2), made("c", 1, leaves=True))
    assert acting_for("wl", memory) == "b"
    memory.scalable_workloads.drop("a")
    memory.scalable_workloads.drop("b")
    assert acting_for("wl", memory) == "c"
    assert acting_for("another", memory) == ""


def acting_for(workload: str, memory: MemoryCluster) -> str:
    found = memory.read().scaler_of(named(workload))
    return found.metadata.name if found is not None else ""


# ---- how old the view is


def test_a_part_that_was_never_listed_says_which_and_why(memory: MemoryCluster) -> None:
    memory.pods.age, memory.pods.state = math.inf, Denied("403: pods is forbidden")
    memory.workloads.age = math.inf
    memory.scaled_objects.age, memory.scaled_objects.state = 10, Disconnected("connection refused")
    assert memory.read().view_age_s() == math.inf
    assert memory.read().unlisted() == "Workloads, Pods: 403: pods is forbidden"
    memory.pods.age, memory.pods.state = 7, Reflecting()
    memory.workloads.state = Absent("404: no such resource")
    assert (memory.read().view_age_s(), memory.read().unlisted()) == (10, ""), "a kind that is not installed is known"


def test_a_namespace_that_is_hidden_says_nothing_of_the_others(memory: MemoryCluster) -> None:
    memory.pods.age = 7
    memory.workloads.hidden["b"] = NotWatched("b")
    memory.pods.hidden["c"] = Silent(80)
    cluster = memory.read()
    assert [cluster.view_age_s(each) for each in "abc"] == [7, math.inf, 80]
    assert [cluster.unlisted(each) for each in "abc"] == ["", "Workloads: namespace b is not watched", ""]
    assert cluster.view_age_s() == 7


@dataclass
class Silent:
    """Heard of so many seconds ago."""

    age: float
    state: State = Reflecting()  # noqa: RUF009 - frozen
