"""One snapshot, kept up to date object by object, is at every moment the one that would be made anew."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quota_builders import cluster_queue, cohort, flavor, gpu, holding, local_queue, pod_set, workload

from scaler.quota.model import (
    MULTIKUEUE,
    PROVISIONING,
    QuotaAdmissionCheck,
    QuotaClusterQueue,
    QuotaCohort,
    QuotaLocalQueue,
    QuotaWorkload,
    Reservation,
    StopPolicy,
)
from scaler.quota.node import TreeNode
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree


def snapshot_with(*objects: Any) -> Snapshot:
    """Flavor `default` is there unless it is given."""
    snapshot = Snapshot()
    for obj in (flavor(), *objects):
        snapshot.put(obj)
    return snapshot


def one_tree(snapshot: Snapshot) -> Tree:
    (tree,) = snapshot.trees
    return tree


def pending(snapshot: Snapshot, queue: str = "a") -> list[str]:
    tree = snapshot.tree_of(queue)
    return sorted(each.name for each in snapshot.pending_in(tree).get(queue, ())) if tree else []


def used(snapshot: Snapshot, queue: str = "a") -> int:
    tree = snapshot.tree_of(queue)
    assert tree is not None
    return tree.queues[queue].usage.get(gpu(), 0)


# ------------------------------------------------------------------------------------------------- what it is made of


def test_a_workload_counts_where_it_holds_quota_and_waits_where_its_local_queue_leads() -> None:
    snapshot = snapshot_with(cluster_queue("a"), cluster_queue("b"), local_queue("lq", "a"))
    snapshot.put(holding("runs", queue="lq", cluster_queue="b"))
    snapshot.put(workload("waits", queue="lq"))
    assert (used(snapshot, "b"), pending(snapshot, "a"), pending(snapshot, "b")) == (1, ["waits"], [])
    places = {each.name: snapshot.cluster_queue_of(each) for each in snapshot.workloads.values()}
    assert places == {"runs": "b", "waits": "a"}


@pytest.mark.parametrize("policy", [StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN])
def test_what_a_stopped_local_queue_holds_back_is_not_pending(policy: StopPolicy) -> None:
    snapshot = snapshot_with(cluster_queue(), local_queue(), workload("waits"), holding("runs"))
    snapshot.put(local_queue(stop_policy=policy))
    assert (pending(snapshot), used(snapshot)) == ([], 1)
    snapshot.put(local_queue())
    assert pending(snapshot) == ["waits"]
    snapshot.drop(QuotaLocalQueue, ("team", "a"))
    assert pending(snapshot) == []


# ----------------------------------------------------------------------------------------------------- activity, doubts


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        pytest.param((flavor(),), "", id="everything is there"),
        pytest.param((), "FlavorNotFound", id="a flavor is missing"),
        pytest.param((flavor("other"),), "FlavorNotFound", id="another flavor is there"),
    ],
)
def test_a_queue_without_its_flavors_is_inactive(objects: Iterable[Any], reason: str) -> None:
    snapshot = Snapshot()
    snapshot.put(cluster_queue())
    for obj in objects:
        snapshot.put(obj)
    queue = one_tree(snapshot).queues["a"].spec
    assert (queue.inactive_because, queue.schedules) == (reason, not reason)


CHECKS: Mapping[str, tuple[tuple[QuotaAdmissionCheck, ...], str]] = {
    "both active": ((QuotaAdmissionCheck(name="x", active=True), QuotaAdmissionCheck(name="y", active=True)), ""),
    "one missing": ((QuotaAdmissionCheck(name="x", active=True),), "AdmissionCheckNotFound"),
    "one inactive": (
        (QuotaAdmissionCheck(name="x", active=True), QuotaAdmissionCheck(name="y")),
        "AdmissionCheckInactive",
    ),
    "two of MultiKueue": (
        tuple(QuotaAdmissionCheck(name=name, controller=MULTIKUEUE, active=True) for name in "xy"),
        "MultipleMultiKueueAdmissionChecks",
    ),
    "MultiKueue and provisioning": (
        (
            QuotaAdmissionCheck(name="x", controller=MULTIKUEUE, active=True),
            QuotaAdmissionCheck(name="y", controller=PROVISIONING, active=True),
        ),
        "MultiKueueWithProvisioningRequest",
    ),
}


@pytest.mark.parametrize(("checks", "reason"), [pytest.param(*case, id=name) for name, case in CHECKS.items()])
def test_a_queue_is_as_active_as_its_checks(checks: tuple[QuotaAdmissionCheck, ...], reason: str) -> None:
    snapshot = snapshot_with(cluster_queue(checks=frozenset("xy")), *checks)
    assert one_tree(snapshot).queues["a"].spec.inactive_because == reason


def test_a_doubt_stays_until_it_is_dispelled() -> None:
    snapshot = snapshot_with(cohort(), cluster_queue(cohort="team"), cluster_queue("apart"))
    snapshot.put(cluster_queue(cohort="team"), doubt="nominalQuota: 'x' is not a quantity")
    snapshot.put(cohort(), doubt="weight")
    assert sorted(snapshot.doubts(snapshot.tree_of("a") or one_tree(snapshot))) == [
        "ClusterQueue a: nominalQuota: 'x' is not a quantity",
        "Cohort team: weight",
    ]
    apart = snapshot.tree_of("apart")
    assert apart is not None
    assert snapshot.doubts(apart) == []
    snapshot.put(cluster_queue(cohort="team"))
    snapshot.drop(QuotaCohort, "team")
    tree = snapshot.tree_of("a")
    assert tree is not None
    assert snapshot.doubts(tree) == []


# ------------------------------------------------------------------------------------------------------------ topology

PLACED = "flavor a100 is placed by topology"
TOPOLOGY = {"with": flavor("a100", topology="racks"), "without": flavor("h100")}


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        pytest.param(("a100",), PLACED, id="its queue has only flavors with a Topology"),
        pytest.param(("a100", "h100"), "", id="its queue has others, which Kueue will give it"),
        pytest.param(("h100",), "", id="its queue has none with a Topology"),
    ],
)
def test_a_pending_workload_is_opaque_where_it_can_only_get_a_topology(offered: tuple[str, ...], reason: str) -> None:
    queue = cluster_queue(gpus=dict.fromkeys(offered, 4))
    snapshot = snapshot_with(queue, local_queue(), workload("waits"), *TOPOLOGY.values())
    found = snapshot.workload("team/waits")
    assert found is not None
    assert found.opaque_because == reason
    assert snapshot.pending_in(one_tree(snapshot))["a"] == (found,)


def test_a_workload_that_holds_a_flavor_with_a_topology_is_opaque_while_it_does() -> None:
    queue = cluster_queue(gpus={"a100": 4, "h100": 4})
    snapshot = snapshot_with(queue, *TOPOLOGY.values(), holding("runs", flavor="a100"))
    reasons = []
    for changed in (flavor("a100"), flavor("a100", topology="racks")):
        snapshot.put(changed)
        found = snapshot.workload("team/runs")
        reasons.append(found.opaque_because if found else None)
        assert one_tree(snapshot).queues["a"].workloads["team/runs"] is found
    assert reasons == ["", PLACED]


def test_what_makes_a_workload_opaque_itself_is_kept() -> None:
    snapshot = snapshot_with(
        cluster_queue(gpus={"a100": 4}), local_queue(), TOPOLOGY["with"], workload(opaque_because="it asks")
    )
    found = snapshot.workload("team/gang")
    assert found is not None
    assert found.opaque_because == "it asks"


# ------------------------------------------------------------------------------------------------ what changes cost

UNCHANGED: Mapping[str, Callable[[], Any]] = {
    "the same ClusterQueue": lambda: cluster_queue("a", cohort="left"),
    "the same Cohort": lambda: cohort("left"),
    "the same flavor": flavor,
    "the same LocalQueue": lambda: local_queue("a"),
}


@pytest.mark.parametrize("again", UNCHANGED.values(), ids=UNCHANGED)
def test_what_is_put_again_unchanged_changes_nothing(again: Callable[[], Any]) -> None:
    snapshot = snapshot_with(cluster_queue("a", cohort="left"), cohort("left"), local_queue("a"))
    tree = one_tree(snapshot)
    before = snapshot.version(tree)
    snapshot.put(again())
    assert one_tree(snapshot) is tree
    assert snapshot.version(tree) == before


def test_a_change_leaves_other_trees_alone() -> None:
    snapshot = snapshot_with(cluster_queue("a", cohort="left"), cluster_queue("b", cohort="right"), local_queue("a"))
    (other,) = (tree for tree in snapshot.trees if "b" in tree.queues)
    before = snapshot.version(other)
    for change in (cluster_queue("a", gpus=5, cohort="left"), workload("waits"), cohort("left", gpus=1)):
        snapshot.put(change)
        assert snapshot.tree_of("b") is other
        assert snapshot.version(other) == before


def test_a_clone_does_not_notice_that_its_tree_was_built_anew() -> None:
    snapshot = snapshot_with(cluster_queue("a", cohort="team"), cluster_queue("b", cohort="team"), holding("runs"))
    clone = one_tree(snapshot).clone()
    before = {name: (_node(node), node.potential(gpu())) for name, node in clone.queues.items()}
    snapshot.put(cluster_queue("a", gpus=9, cohort="team"))
    assert one_tree(snapshot).queues["b"].potential(gpu()) == 4 + 9
    assert {name: (_node(node), node.potential(gpu())) for name, node in clone.queues.items()} == before
    assert clone.queues["b"].parent is clone.root


def test_a_tree_that_is_no_more_has_no_version() -> None:
    snapshot = snapshot_with(cluster_queue("a"))
    tree = one_tree(snapshot)
    snapshot.drop(QuotaClusterQueue, "a")
    assert (snapshot.version(tree), list(snapshot.trees), snapshot.tree_of("a")) == (0, [], None)


# ---------------------------------------------------------------------------------------------------------- trees, laws


def test_queues_in_a_cycle_of_cohorts_are_in_no_tree_until_it_is_broken() -> None:
    snapshot = snapshot_with(cluster_queue("a", cohort="x"), cohort("x", parent="y"), cohort("y", parent="x"))
    assert (snapshot.tree_of("a"), list(snapshot.trees)) == (None, [])
    snapshot.put(cohort("y"))
    tree = snapshot.tree_of("a")
    assert tree is not None
    assert (tree.root.name, sorted(tree.cohorts)) == ("y", ["x", "y"])


def _node(node: TreeNode) -> tuple[Any, ...]:
    return node.subtree, {key: amount for key, amount in node.usage.items() if amount}, node.height


def _fields(workload: QuotaWorkload) -> dict[str, Any]:
    return {each.name: getattr(workload, each.name) for each in fields(workload) if each.init}


def seen(snapshot: Snapshot, tree: Tree) -> Any:
    """All that the scheduling of the tree depends on."""
    return (
        {
            name: (queue.spec, _node(queue), {key: _fields(each) for key, each in queue.workloads.items()})
            for name, queue in tree.queues.items()
        },
        {name: (each.spec, _node(each), each.parent and each.parent.name) for name, each in tree.cohorts.items()},
        {
            name: sorted((_fields(each) for each in waiting), key=lambda each: str(each["name"]))
            for name, waiting in snapshot.pending_in(tree).items()
        },
        snapshot.doubts(tree),
    )


def everything(snapshot: Snapshot) -> Any:
    trees = {(tree.root.name, bool(tree.cohorts)): seen(snapshot, tree) for tree in snapshot.trees}
    waiting = {key: [each.key for each in line] for key, line in snapshot.waiting().items()}
    uids = {uid: each.key for uid, each in snapshot.by_uid.items()}
    workloads = {key: _fields(each) for key, each in snapshot.workloads.items()}
    return trees, workloads, waiting, uids, dict(snapshot.namespaces)


NAMES = st.sampled_from(["a", "b", "c"])
COHORTS = st.sampled_from(["", "x", "y", "z"])
FLAVORS = st.sampled_from(["a100", "h100"])
SAMPLE = {name: workload(name) for name in ("one", "two", "three")}


def queue_with(name: str, gpus: int, within: str, offered: tuple[str, ...], checks: str) -> QuotaClusterQueue:
    quotas = dict.fromkeys(offered, gpus)
    return cluster_queue(name, gpus=quotas, cohort=within, checks=frozenset(checks))


@st.composite
def reservations(draw: st.DrawFn) -> Reservation | None:
    if draw(st.booleans()):
        return None
    gpus, queue = draw(st.integers(0, 5)), draw(NAMES)
    return holding(gpus=gpus, flavor=draw(FLAVORS), cluster_queue=queue, reserved_at=SAMPLE["one"].queued_at).held


OBJECTS = st.one_of(
    st.builds(
        queue_with,
        NAMES,
        st.integers(0, 8),
        COHORTS,
        st.sampled_from([("a100",), ("h100", "a100"), ("h100",)]),
        st.sampled_from(["", "k"]),
    ),
    st.builds(
        lambda name, parent, gpus: cohort(name, parent=parent, gpus={"a100": gpus}),
        COHORTS.filter(bool),
        COHORTS,
        st.integers(0, 2),
    ),
    st.builds(lambda name, topology: flavor(name, topology=topology), FLAVORS, st.sampled_from(["", "racks"])),
    st.builds(local_queue, NAMES, NAMES, st.sampled_from(list(StopPolicy))),
    st.builds(lambda active: QuotaAdmissionCheck(name="k", active=active), st.booleans()),
    st.builds(
        lambda name, queue, gpus, held: replace(
            SAMPLE[name], queue=queue, pod_sets=(pod_set(gpus=gpus),), reservation=held
        ),
        st.sampled_from(sorted(SAMPLE)),
        NAMES,
        st.integers(1, 3),
        reservations(),
    ),
)
STEPS = st.lists(st.tuples(OBJECTS, st.sampled_from(["put", "put", "drop"]), st.booleans()), min_size=3, max_size=20)


WORLD: tuple[Any, ...] = (
    flavor("a100", topology="racks"),
    flavor("h100"),
    *(cluster_queue(name, gpus={"a100": 4}, cohort=within) for name, within in (("a", "x"), ("b", "x"), ("c", "z"))),
    cohort("x", parent="y"),
    *(local_queue(name) for name in "abc"),
    *SAMPLE.values(),
)


def key_of(obj: Any) -> tuple[type, Any]:
    return type(obj), getattr(obj, "key", obj.name)


@settings(max_examples=60)
@given(STEPS, st.randoms(use_true_random=False))
def test_any_puts_and_drops_end_where_a_fresh_start_begins(steps: list[tuple[Any, str, bool]], dice: Any) -> None:
    snapshot, left = snapshot_with(*WORLD), {key_of(obj): obj for obj in (flavor(), *WORLD)}
    for obj, verb, look in steps:
        known = {(tree, snapshot.version(tree)): seen(snapshot, tree) for tree in snapshot.trees} if look else {}
        if verb == "put":
            snapshot.put(obj)
            left[key_of(obj)] = obj
        else:
            snapshot.drop(*key_of(obj))
            left.pop(key_of(obj), None)
        for (tree, version), before in known.items():
            assert snapshot.version(tree) != version or seen(snapshot, tree) == before, "a version never lies"
    objects = list(left.values())
    dice.shuffle(objects)
    fresh = Snapshot()
    for obj in objects:
        fresh.put(obj)
    assert everything(snapshot) == everything(fresh)


# ----------------------------------------------------------------------------------------------------------- MultiKueue

REMOTE = QuotaAdmissionCheck(name="remote", controller=MULTIKUEUE, active=True)
LOCAL = QuotaAdmissionCheck(name="local", controller="example.com/budget", active=True)
TWO = {"spot": 8, "default": 4}


@pytest.mark.parametrize(
    ("queue", "elsewhere"),
    [
        (cluster_queue(), False),
        (cluster_queue(checks=frozenset({"local"})), False),
        (cluster_queue(checks=frozenset({"remote", "local"})), True),
        (cluster_queue(gpus=TWO, checks=frozenset({"remote"})), True),
        (cluster_queue(gpus=TWO, checks=frozenset({"remote"}), check_flavors={"remote": frozenset({"spot"})}), False),
    ],
    ids=["no check", "another check", "MultiKueue", "on all flavors", "on one flavor of two"],
)
def test_what_a_queue_admits_runs_elsewhere_where_multikueue_dispatches_whatever_it_admits(
    queue: QuotaClusterQueue, elsewhere: bool
) -> None:
    snapshot = snapshot_with(queue, REMOTE, LOCAL)
    assert snapshot.dispatches(queue.name) is elsewhere
    assert not snapshot.dispatches("gone")
