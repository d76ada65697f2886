"""Which pods make up a scale target: those of its selector and those that it owns, through however many owners."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from builders import WorkloadJson
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import NAMESPACE, MemoryCluster, pod
from msgspec.structs import replace

from scaler.idleness.pods import GpuPod
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.discovery import Scale
from scaler.kube.objects.core import OwnerReference, Pod
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.targets.owned_pods import OwnedPods

CUSTOM = ("ml.example.com/v1", "Inference")
DEPLOYMENT, REPLICA_SET, STATEFUL_SET = ("apps/v1", "Deployment"), ("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet")
LWS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
POD = ("v1", "Pod")
JOB, SET = ("batch/v1", "Job"), ("jobset.x-k8s.io/v1alpha2", "JobSet")
Kind = tuple[str, str]
NAME = "leaderworkerset.sigs.k8s.io/name"


def reference(kind: Kind, name: str, *, controller: bool = True) -> OwnerReference:
    return OwnerReference(api_version=kind[0], kind=kind[1], name=name, uid=f"uid-{name}", controller=controller)


def owned(made: Pod, *owners: OwnerReference) -> Pod:
    return replace(made, metadata=replace(made.metadata, uid=f"uid-{made.metadata.name}", owner_references=owners))


class Objects:
    """A target, pods, and the objects between them."""

    def __init__(self, kind: Kind = CUSTOM, *, replicas: int = 1, selector: str = "role=leader") -> None:
        self.cluster, self.target = MemoryCluster(), ScaleTargetRef(api_version=kind[0], kind=kind[1], name="target")
        self.scale = Scale(replicas=replicas, selector=selector)
        self.scales = self.cluster.scales
        self.scales.put(kind, "target")
        self.owned_pods = OwnedPods(self.cluster.read(), self.scales)

    def pod(self, name: str, *owners: OwnerReference, **more: Any) -> None:
        self.cluster.pods.put(owned(pod(name, **more), *owners))

    def found(self) -> list[str] | Unknown:
        pods = self.owned_pods.of(NAMESPACE, self.target, self.scale)
        return pods if isinstance(pods, Unknown) else names(pods)


def names(pods: Collection[GpuPod]) -> list[str]:
    return sorted(each.name for each in pods)


TARGET = reference(CUSTOM, "target")
CHAINS: Mapping[str, Sequence[tuple[Kind, str]]] = {
    "itself": [],
    "a ReplicaSet": [(REPLICA_SET, "rs")],
    "a ReplicaSet of a Deployment": [(REPLICA_SET, "rs"), (DEPLOYMENT, "roll")],
    "a StatefulSet": [(STATEFUL_SET, "workers")],
    "a StatefulSet of a leader pod of a StatefulSet": [
        (STATEFUL_SET, "group-0"),
        (POD, "lead"),
        (STATEFUL_SET, "leads"),
    ],
    "a Job of a JobSet": [(("batch/v1", "Job"), "job"), (("jobset.x-k8s.io/v1alpha2", "JobSet"), "set")],
    "kinds of an operator": [(("x.example.com/v1", "Clique"), "clique"), (("x.example.com/v1", "Group"), "group")],
    "the same kind again": [(CUSTOM, "inner")],
}


def chain(
    objects: Objects, between: Sequence[tuple[Kind, str]], *, hidden: str = "", controller: bool = True
) -> OwnerReference:
    """The objects between a pod and the target, but the one that is `hidden`; the reference to the lowest."""
    above = TARGET
    for kind, name in reversed(between):
        if kind == POD:
            objects.pod(name, above, gpus=0)
        elif name != hidden:
            objects.scales.put(kind, name, above)
        above = reference(kind, name, controller=controller)
    return above


@pytest.mark.parametrize("controller", [True, False])
@pytest.mark.parametrize("between", CHAINS)
def test_a_pod_that_the_selector_does_not_name_is_the_targets_by_ownership_through(
    between: str, controller: bool
) -> None:
    objects, other = Objects(), reference(STATEFUL_SET, "other")
    objects.pod("leader", labels={"role": "leader"})
    found = chain(objects, CHAINS[between], controller=controller)
    objects.pod("worker", *([found] if controller else [other, found]))
    objects.pod("stranger", other)
    objects.scales.put(STATEFUL_SET, "other")
    assert objects.found() == ["leader", "worker"]


@pytest.mark.parametrize(
    ("between", "hidden"), [(chain_, name) for chain_, each in CHAINS.items() for kind, name in each if kind != POD]
)
def test_a_pod_of_which_not_all_owners_are_read_may_be_the_targets(between: str, hidden: str) -> None:
    """An answer of 0 would be about a part of the target."""
    objects = Objects()
    objects.pod("leader", labels={"role": "leader"})
    objects.pod("worker", chain(objects, CHAINS[between], hidden=hidden))
    doubt = objects.found()
    assert isinstance(doubt, Unknown)
    assert doubt.reason is UnknownReason.STALE_CLUSTER_VIEW
    assert doubt.message.startswith("Pod worker may belong to Inference/target: ")
    assert hidden in doubt.message


BY_LABELS = [DEPLOYMENT, REPLICA_SET, STATEFUL_SET, LWS]


@pytest.mark.parametrize("kind", BY_LABELS)
def test_of_kinds_whose_labels_say_all_no_owner_is_read(kind: Kind) -> None:
    """So a hundred thousand pods of Deployments cost nothing."""
    objects = Objects(kind)
    objects.pod("leader", reference(REPLICA_SET, "own"), labels={"role": "leader"})
    for each in BY_LABELS:
        objects.pod(f"stranger-{each[1].lower()}", reference(each, "nobody-knows"))
    assert objects.found() == ["leader"]
    assert objects.scales.asked == []


@pytest.mark.parametrize("kind", BY_LABELS)
def test_beside_such_kinds_a_pod_is_in_doubt_while_its_owners_are_being_read(kind: Kind) -> None:
    objects = Objects(kind)
    objects.pod("leader", labels={"role": "leader"})
    objects.pod("executor", reference(JOB, "job"))
    doubt = objects.found()
    assert isinstance(doubt, Unknown)
    assert doubt.message.startswith(f"Pod executor may belong to {kind[1]}/target: ")
    objects.scales.put(JOB, "job", reference(POD, "another"))
    assert objects.found() == ["leader"]
    objects.scales.owners.clear()
    objects.scales.refused.add("Job")
    objects.pod("another")
    assert objects.found() == ["leader"]


@pytest.mark.parametrize("kind", [*BY_LABELS, CUSTOM])
@pytest.mark.parametrize(
    "between",
    [[JOB], [JOB, SET], [JOB, POD], [JOB, POD, JOB, SET]],
    ids=lambda each: "-".join(kind for _, kind in each),
)
def test_the_pods_that_a_targets_pods_own_through_other_objects_are_the_targets(
    kind: Kind, between: Sequence[Kind]
) -> None:
    """They are deleted with it, whatever the pods of its own do."""
    objects = Objects(kind)
    above = reference(STATEFUL_SET, "target")
    if kind != CUSTOM:
        objects.scales.put(STATEFUL_SET, "target")
    objects.pod("driver", above, labels={"role": "leader"})
    found, above = ["driver"], reference(POD, "driver")
    for number, each in enumerate(reversed(between)):
        name = f"inner-{number}"
        if each == POD:
            objects.pod(name, above)
            found.append(name)
        else:
            objects.scales.put(each, name, above)
        above = reference(each, name)
    objects.pod("executor", above)
    objects.scales.put(JOB, "other", reference(POD, "another"))
    objects.pod("stranger", reference(JOB, "other"))
    objects.pod("another", labels={"role": "other"})
    assert objects.found() == sorted([*found, "executor"])


@pytest.mark.parametrize("kind", [DEPLOYMENT, STATEFUL_SET, LWS, CUSTOM])
def test_the_pods_that_a_targets_pods_own_are_the_targets(kind: Kind) -> None:
    """A driver's executors are deleted with it, and work while it waits for them."""
    objects = Objects(kind)
    objects.pod("driver", labels={"role": "leader"}, workload="wl")
    objects.pod("executor", reference(POD, "driver"))
    objects.pod("helper", reference(POD, "executor", controller=False))
    objects.pod("stranger", reference(POD, "other"))
    objects.pod("other")
    assert objects.found() == ["driver", "executor", "helper"]
    workload = WorkloadJson("wl").decoded()
    assert names(objects.cluster.read().pods_of_workload(workload)) == ["driver", "executor", "helper"]


def test_a_target_at_0_is_not_in_doubt_because_of_other_pods() -> None:
    """It could not be woken any more."""
    objects = Objects(replicas=0)
    objects.pod("stranger", reference(CUSTOM, "nobody-knows"))
    assert objects.found() == []


@pytest.mark.parametrize(
    "case", ["ended", "terminating", "without GPUs", "elsewhere", "on the node itself", "no owner"]
)
def test_a_pod_that_cannot_be_one_of_its_gpu_pods_is_no_doubt(case: str) -> None:
    objects, stranger = Objects(), reference(CUSTOM, "nobody-knows")
    match case:
        case "ended":
            objects.pod("stranger", stranger, phase="Succeeded")
        case "terminating":
            made = owned(pod("stranger"), stranger)
            leaving = replace(
                made.metadata, deletion_timestamp=made.status.container_statuses[0].state.running.started_at
            )
            objects.cluster.pods.put(replace(made, metadata=leaving))
        case "without GPUs":
            objects.pod("stranger", stranger, gpus=0)
        case "elsewhere":
            objects.pod("stranger", stranger, namespace="another")
        case "on the node itself":
            objects.pod("stranger", reference(("v1", "Node"), "node-a"))
        case "no owner":
            objects.pod("stranger")
    assert objects.found() == []


def test_owners_in_a_circle_or_without_end_are_a_doubt() -> None:
    objects = Objects()
    objects.scales.put(STATEFUL_SET, "a", reference(STATEFUL_SET, "b"))
    objects.scales.put(STATEFUL_SET, "b", reference(STATEFUL_SET, "a"))
    objects.pod("worker", reference(STATEFUL_SET, "a"))
    assert isinstance(objects.found(), Unknown)


def test_an_owner_of_the_same_name_that_is_another_object_is_not_followed() -> None:
    objects = Objects()
    objects.scales.put(STATEFUL_SET, "a", TARGET)
    objects.pod("worker", replace(reference(STATEFUL_SET, "a"), uid="uid-of-the-one-before"))
    assert isinstance(objects.found(), Unknown)


def test_what_is_known_is_made_again_when_a_pod_or_an_owner_has_changed() -> None:
    objects = Objects()
    assert objects.found() == []
    objects.pod("worker", reference(STATEFUL_SET, "a"))
    assert isinstance(objects.found(), Unknown)
    objects.scales.put(STATEFUL_SET, "a", TARGET)
    assert objects.found() == ["worker"]


# ---- a LeaderWorkerSet

LEADERS = f"{NAME}=target,leaderworkerset.sigs.k8s.io/worker-index=0"


def lws(*, leader_gpus: int, of: Kind = LWS) -> Objects:
    """Two groups of a leader and a worker."""
    objects = Objects(of, replicas=2, selector=LEADERS)
    for group in range(2):
        for worker in range(2):
            labels = {NAME: "target", "leaderworkerset.sigs.k8s.io/worker-index": str(worker)}
            objects.pod(f"{group}-{worker}", labels=labels, gpus=1 if worker else leader_gpus)
    objects.pod("other", labels={NAME: "another", "leaderworkerset.sigs.k8s.io/worker-index": "0"})
    return objects


@pytest.mark.parametrize("of", [LWS, STATEFUL_SET])
def test_a_leader_worker_set_is_all_pods_of_all_its_groups(of: Kind) -> None:
    """Also where its StatefulSet of leaders is scaled: the workers go with them."""
    assert lws(leader_gpus=1, of=of).found() == ["0-0", "0-1", "1-0", "1-1"]


def test_the_workers_of_leaders_without_gpus_are_found() -> None:
    objects = lws(leader_gpus=0)
    found = objects.owned_pods.of(NAMESPACE, objects.target, objects.scale)
    assert not isinstance(found, Unknown)
    assert names([each for each in found if each.is_member]) == ["0-1", "1-1"]


# ---- any forest


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[int], dict[str, int], set[int], set[str]]:
    """The parent of each owner (-1: none; 0 is the target), the owner of each pod, owners that are not readable, and
    pods that the selector matches."""
    count = draw(st.integers(1, 7))
    parents = [-1, *(draw(st.integers(-1, n - 1)) for n in range(1, count))]
    pods = {f"pod-{n}": draw(st.integers(-1, count - 1)) for n in range(draw(st.integers(1, 6)))}
    hidden = draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
    return parents, pods, hidden, draw(st.sets(st.sampled_from(sorted(pods))))


KINDS = [REPLICA_SET, STATEFUL_SET, DEPLOYMENT, CUSTOM, ("x.example.com/v1", "Clique")]


@given(forests())
def test_the_pods_of_a_target_are_all_that_it_owns_or_it_is_not_judged(
    forest: tuple[list[int], dict[str, int], set[int], set[str]],
) -> None:
    parents, pods, hidden, selected = forest
    kinds = [CUSTOM, *(KINDS[n % len(KINDS)] for n in range(1, len(parents)))]
    named = ["target", *(f"owner-{n}" for n in range(1, len(parents)))]
    objects = Objects()
    for n, parent in enumerate(parents[1:], start=1):
        if n not in hidden:
            objects.scales.put(kinds[n], named[n], *([reference(kinds[parent], named[parent])] if parent >= 0 else []))
    for name, owner in pods.items():
        labels = {"role": "leader"} if name in selected else {}
        objects.pod(name, *([reference(kinds[owner], named[owner])] if owner >= 0 else []), labels=labels)

    def is_owned(owner: int) -> bool:
        return owner == 0 or (owner > 0 and is_owned(parents[owner]))

    whole = {name for name, owner in pods.items() if is_owned(owner)} | selected
    found = objects.found()
    assert isinstance(found, Unknown) or whole <= {*found}
    if not hidden:
        assert not isinstance(found, Unknown), "what is wholly known is judged"
