"""How long nodes are not requested because reclaim has not decided yet."""

from builders import NOON, at

from scaler.admission.planner import ReclaimAnswers


def test_a_decision_is_waited_for_from_when_nodes_are_lacking_and_not_for_long() -> None:
    answers = ReclaimAnswers()
    answers.lacking({"uid"}, NOON)
    answers.lacking({"uid"}, at(10))
    assert answers.is_pending("uid", at(14))
    assert not answers.is_pending("uid", at(15))


def test_a_decision_counts_until_the_workload_has_its_nodes_and_wakes_once() -> None:
    answers, woken = ReclaimAnswers(), []
    answers.subscribe(lambda: woken.append("woken"))
    answers.lacking({"uid"}, NOON)
    answers.decided("uid")
    answers.decided("uid")
    assert (answers.is_pending("uid", at(1)), woken) == (False, ["woken"])
    answers.lacking(set(), at(2))
    assert answers.is_pending("uid", at(3))


def test_nothing_is_waited_for_where_reclaim_makes_no_plans() -> None:
    answers = ReclaimAnswers(is_planning=False)
    answers.lacking({"uid"}, NOON)
    assert not answers.is_pending("uid", at(1))
