"""Which workloads a budget covers."""

from dataclasses import replace

import pytest

from scaler.reclaim.budgets.scopes import BudgetLocation, Each, Scope

LABELS = {"team-a": {"team": "a"}, "team-b": {"team": "b"}}


A, B = frozenset({"team-a"}), frozenset({"team-b"})
GPUS = Scope(cluster_queues=frozenset({"gpus"}))
EACH_QUEUE = Scope(each=Each.CLUSTER_QUEUE)
LABELLED = Scope(namespace_selector="team in (a,c)")
COVERED = {
    "the cluster covers all": (Scope(), ("team-a",), True),
    "its namespace": (Scope(namespaces=A), ("team-a",), True),
    "another namespace": (Scope(namespaces=A), ("team-b",), False),
    "labels that match": (LABELLED, ("team-a",), True),
    "labels that do not": (LABELLED, ("team-b",), False),
    "labels that are not known": (LABELLED, ("new",), None),
    "its queue": (GPUS, ("team-a", "gpus"), True),
    "another queue": (GPUS, ("team-a", "other"), False),
    "a queue that is not known": (GPUS, ("team-a",), None),
    "no queue": (GPUS, ("team-a", ""), False),
    "any queue, each for itself": (EACH_QUEUE, ("team-a", "gpus"), True),
    "which of them is not known": (EACH_QUEUE, ("team-a",), None),
    "none of them": (EACH_QUEUE, ("team-a", ""), False),
    "excluded by one condition, another is unknown": (replace(GPUS, namespaces=B), ("team-a",), False),
    "all conditions must hold": (Scope(namespaces=A, namespace_selector="team=b"), ("team-a",), False),
}


@pytest.mark.parametrize(("scope", "place", "expected"), COVERED.values(), ids=COVERED)
def test_a_scope_covers_what_meets_all_its_conditions(
    scope: Scope, place: tuple[str, ...], expected: bool | None
) -> None:
    assert scope.covers(BudgetLocation(*place), LABELS) is expected


def test_a_selector_that_cannot_be_read_is_an_error_even_where_labels_are_not_known() -> None:
    with pytest.raises(ValueError, match="is not a label requirement"):
        Scope(namespace_selector="team in a").covers(BudgetLocation("new"), LABELS)


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        (Scope(), "the cluster"),
        (Scope(namespaces=frozenset({"b", "a"})), "namespaces a, b"),
        (Scope(namespace_selector="team=a"), "namespaces with team=a"),
        (Scope(each=Each.NAMESPACE).part("a"), "namespace a"),
        (
            Scope(each=Each.CLUSTER_QUEUE, namespaces=frozenset({"a"})).part("q"),
            "ClusterQueue q and namespace a",
        ),
    ],
)
def test_a_scope_is_shown_in_words(scope: Scope, shown: str) -> None:
    assert str(scope) == shown
