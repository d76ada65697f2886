import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement.placement_builders import node

from scaler.kube.scheduling import NodeRequirement, NodeSelection, Operator, Taint, Toleration, untolerated
from scaler.placement.node_index import NodeIndex, NodeInfo, grade, members

KEYS, VALUES = st.sampled_from(["zone", "size"]), st.sampled_from(["a", "b", "4", "16", ""])
TAINTS = st.builds(
    Taint,
    key=st.sampled_from(["dedicated", "spot"]),
    value=st.sampled_from(["", "x"]),
    effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
)
TOLERATIONS = st.builds(
    Toleration,
    key=st.sampled_from(["", "dedicated", "spot"]),
    operator=st.sampled_from(["Equal", "Exists"]),
    value=st.sampled_from(["", "x"]),
    effect=st.sampled_from(["", "NoSchedule"]),
)
REQUIREMENTS = st.builds(
    NodeRequirement, key=KEYS, operator=st.sampled_from(list(Operator)), values=st.lists(VALUES, max_size=2).map(tuple)
)
SELECTIONS = st.builds(
    NodeSelection,
    labels=st.dictionaries(KEYS, VALUES, max_size=1),
    terms=st.lists(st.lists(REQUIREMENTS, max_size=2).map(tuple), max_size=2).map(tuple),
    tolerations=st.lists(TOLERATIONS, max_size=2).map(tuple),
)
NODES = st.lists(
    st.builds(
        NodeInfo,
        name=st.uuids().map(str),
        labels=st.dictionaries(KEYS, VALUES),
        taints=st.lists(TAINTS, max_size=2).map(tuple),
        unschedulable=st.booleans(),
        ready=st.booleans(),
        allocatable=st.just({"cpu": 1}),
    ),
    max_size=6,
    unique_by=lambda each: each.name,
)


@settings(max_examples=60, deadline=None)
@given(NODES, SELECTIONS)
def test_the_set_of_eligible_nodes_is_that_of_asking_each_one(nodes: list[NodeInfo], selection: NodeSelection) -> None:
    index = NodeIndex(nodes)
    expected = [
        position
        for position, each in enumerate(sorted(nodes, key=lambda each: each.name))
        if each.ready
        and not each.unschedulable
        and selection.matches(each.labels)
        and untolerated(each.taints, selection.tolerations) is None
    ]
    assert list(members(index.eligible(selection))) == expected
    assert len(expected) + sum(index.exclusions(selection)) == len(nodes)


def test_grades_tell_something_from_nothing_and_eighths_of_an_amount_apart() -> None:
    assert grade(-1) == grade(0) == 0
    assert grade(1) > 0
    assert len({grade(2**30 * eighths // 8) for eighths in range(8, 16)}) == 8
    assert len({grade(amount) for amount in range(2**30, 2**31, 2**20)}) == 8


def test_two_nodes_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="two nodes have the same name"):
        NodeIndex([node("a"), node("a")])


def test_at_their_best_nodes_are_open_and_keep_the_taints_that_somebody_chose() -> None:
    chosen, passing = Taint(key="dedicated"), Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
    best = NodeIndex([node("a", taints=(chosen, passing), ready=False, unschedulable=True)]).at_its_best
    assert best.nodes == (node("a", taints=(chosen,)),)


def test_answers_are_forgotten_before_they_fill_the_memory() -> None:
    index = NodeIndex([node("a", labels={"zone": "1"})])
    for number in range(10_000):
        index.eligible(NodeSelection(labels={"zone": str(number)}))
    assert len(index._eligible) <= 4096
    assert index.eligible(NodeSelection(labels={"zone": "1"})) == 1
