"""Who got the GPUs that suspended workloads gave up."""

from builders import at
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.handovers import Flow, Gift, Handovers, Receiver, Through


def receiver(name: str, *, queue: str = "cq") -> Receiver:
    return Receiver(key=f"{name}/{name}", namespace=name, cluster_queue=queue)


def gives(handovers: Handovers, name: str, gpus: int, *, seconds: float, cohort: str = "all") -> None:
    handovers.give_up(f"{name}/w", namespace=name, cohort=cohort, gpus=gpus, at=at(seconds))


def got(gifts: list[Gift]) -> list[tuple[str, int, float]]:
    return [(gift.flow.from_namespace, gift.gpus, gift.after.total_seconds()) for gift in gifts]


def test_the_next_gang_has_it_from_whoever_gave_first() -> None:
    handovers = Handovers()
    gives(handovers, "a", 4, seconds=0)
    gives(handovers, "b", 2, seconds=10)
    gifts = handovers.admit(receiver("g"), cohort="all", gpus=5, at=at(30))
    assert got(gifts) == [("a", 4, 30), ("b", 1, 20)]
    assert got(handovers.admit(receiver("h"), cohort="all", gpus=5, at=at(40))) == [("b", 1, 30)]
    assert handovers.in_use() == {
        Flow("a", "g", "cq", Through.QUEUE): 4,
        Flow("b", "g", "cq", Through.QUEUE): 1,
        Flow("b", "h", "cq", Through.QUEUE): 1,
    }


def test_another_cohort_has_nothing_of_it() -> None:
    handovers = Handovers()
    gives(handovers, "a", 4, seconds=0, cohort="theirs")
    assert handovers.admit(receiver("g"), cohort="ours", gpus=4, at=at(30)) == []


def test_nobody_gives_to_himself() -> None:
    handovers = Handovers()
    gives(handovers, "g", 4, seconds=0)
    itself = Receiver(key="g/w", namespace="g", cluster_queue="cq")
    assert handovers.admit(itself, cohort="all", gpus=4, at=at(30)) == []


def test_who_comes_back_ends_what_others_had_of_it() -> None:
    handovers = Handovers()
    gives(handovers, "a", 4, seconds=0)
    handovers.admit(receiver("g"), cohort="all", gpus=3, at=at(30))
    handovers.take_back("a/w")
    assert handovers.in_use() == {}
    assert handovers.admit(receiver("h"), cohort="all", gpus=3, at=at(40)) == []


def test_who_is_seen_to_give_up_the_same_again_gives_what_nobody_has_yet() -> None:
    handovers = Handovers()
    gives(handovers, "a", 4, seconds=0)
    handovers.admit(receiver("g"), cohort="all", gpus=3, at=at(30))
    gives(handovers, "a", 4, seconds=40)
    assert got(handovers.admit(receiver("h"), cohort="all", gpus=4, at=at(50))) == [("a", 1, 10)]


def test_a_gang_that_has_ended_has_nothing() -> None:
    handovers = Handovers()
    gives(handovers, "a", 4, seconds=0)
    handovers.admit(receiver("g"), cohort="all", gpus=4, at=at(30))
    handovers.end("g/g")
    assert handovers.in_use() == {}


def test_what_a_plan_gave_is_nobody_elses() -> None:
    handovers = Handovers()
    gives(handovers, "a", 4, seconds=0)
    flow = Flow("a", "g", "cq", Through.PLAN)
    gift = Gift(giver="a/w", receiver="g/g", flow=flow, gpus=4, after=at(7) - at(0))
    handovers.hand(gift)
    handovers.hand(gift)
    assert handovers.in_use() == {flow: 4}
    assert handovers.admit(receiver("h"), cohort="all", gpus=4, at=at(30)) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8)), max_size=8), st.lists(st.integers(0, 8)))
def test_no_more_is_given_than_was_given_up_nor_than_was_asked_for(
    supplies: list[tuple[str, int]], asked: list[int]
) -> None:
    handovers = Handovers()
    for seconds, (name, gpus) in enumerate(supplies):
        gives(handovers, name, gpus, seconds=seconds)
    supply = sum(dict(supplies).values())
    for number, gpus in enumerate(asked):
        gifts = handovers.admit(receiver(f"g{number}"), cohort="all", gpus=gpus, at=at(100))
        assert sum(gift.gpus for gift in gifts) <= gpus
        assert all(gift.gpus > 0 for gift in gifts)
    assert sum(handovers.in_use().values()) == min(supply, sum(asked))
