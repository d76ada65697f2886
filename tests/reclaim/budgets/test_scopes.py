import pytest

from scaler.reclaim.budgets.scopes import BudgetLocation, Each, Scope

LABELS = {"team-a": {"team": "a"}, "team-b": {"team": "b"}}


@pytest.mark.parametrize(
    ("scope", "place", "expected"),
    [
        pytest.param(Scope(), BudgetLocation("team-a"), True, id="the cluster covers what nobody knows more of"),
        pytest.param(Scope(namespaces=frozenset({"team-a"})), BudgetLocation("team-a"), True, id="its namespace"),
        pytest.param(Scope(namespaces=frozenset({"team-a"})), BudgetLocation("team-b"), False, id="another namespace"),
        pytest.param(Scope(namespace_selector="team in (a,c)"), BudgetLocation("team-a"), True, id="labels that match"),
        pytest.param(
            Scope(namespace_selector="team in (a,c)"), BudgetLocation("team-b"), False, id="labels that do not"
        ),
        pytest.param(Scope(namespace_selector="team"), BudgetLocation("new"), None, id="labels that are not known"),
        pytest.param(Scope(cluster_queues=frozenset({"gpus"})), BudgetLocation("team-a", "gpus"), True, id="its queue"),
        pytest.param(
            Scope(cluster_queues=frozenset({"gpus"})), BudgetLocation("team-a", "other"), False, id="another queue"
        ),
        pytest.param(
            Scope(cluster_queues=frozenset({"gpus"})), BudgetLocation("team-a"), None, id="a queue that is not known"
        ),
        pytest.param(Scope(cluster_queues=frozenset({"gpus"})), BudgetLocation("team-a", ""), False, id="no queue"),
        pytest.param(
            Scope(each=Each.CLUSTER_QUEUE), BudgetLocation("team-a", "gpus"), True, id="any queue, each for itself"
        ),
        pytest.param(Scope(each=Each.CLUSTER_QUEUE), BudgetLocation("team-a"), None, id="which of them is not known"),
        pytest.param(Scope(each=Each.CLUSTER_QUEUE), BudgetLocation("team-a", ""), False, id="none of them"),
        pytest.param(
            Scope(namespaces=frozenset({"team-b"}), cluster_queues=frozenset({"gpus"})),
            BudgetLocation("team-a"),
            False,
            id="excluded by the one condition, whatever the unknown says of the other",
        ),
        pytest.param(
            Scope(namespaces=frozenset({"team-a"}), namespace_selector="team=b"),
            BudgetLocation("team-a"),
            False,
            id="all conditions must hold",
        ),
    ],
)
def test_a_scope_covers_what_meets_all_its_conditions(
    scope: Scope, place: BudgetLocation, expected: bool | None
) -> None:
    assert scope.covers(place, LABELS) is expected


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
