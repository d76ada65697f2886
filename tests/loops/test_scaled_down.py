"""Suspensions and returns of Deployments, from one evaluation to the next."""

from collections import Counter
from datetime import timedelta

from builders import ACTIVE, IDLE, INACTIVE, NOON, at, decision, minutes, standing, verdict

from scaler.core.reasons import Because
from scaler.core.replicas import Answer, Inactive, Stage
from scaler.core.usage import State
from scaler.loops.handovers import Event, Resumed, Suspended
from scaler.loops.scaled_down import ScaledDown
from scaler.loops.usage import Title, Usage, WorkloadUsage

ASLEEP = Inactive(because=Because.SUSPENDED, message="")


def seen(answer: Answer, *, replicas: int = 1, gpus: int = 4, kind: str = "Deployment") -> WorkloadUsage:
    made = decision(
        answer,
        standing=standing(desired_replicas=replicas, stage=Stage.RUNNING if replicas else Stage.SUSPENDED),
        verdict=verdict(IDLE),
        idle_since=NOON - minutes(30) if answer is INACTIVE else None,
    )
    states = Counter({State.IDLE: gpus} if gpus else {})
    return WorkloadUsage(title=Title("team-a", "", kind, "serve"), decision=made, states=states, peaks={})


def told(*steps: tuple[float, WorkloadUsage]) -> tuple[ScaledDown, list[Event]]:
    following = ScaledDown()
    events = [event for t, each in steps for event in following.follow(Usage(at=at(t), workloads=[each]))]
    return following, events


def test_one_that_was_told_to_go_and_went_was_suspended() -> None:
    following, events = told(
        (0, seen(INACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)), (90, seen(ASLEEP, replicas=0))
    )
    assert events == [Suspended(namespace="team-a", reason="GPUsIdle", gpus=4, idle_for=minutes(31))]
    assert following.gpus() == {("team-a", ""): 4}


def test_one_that_somebody_scaled_down_while_it_worked_was_not_found_idle() -> None:
    _, events = told((0, seen(ACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)))
    assert events == [Suspended(namespace="team-a", reason="ScaledToZero", gpus=4, idle_for=None)]


def test_one_that_comes_back_tells_how_long_it_slept() -> None:
    following, events = told(
        (0, seen(INACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)), (360, seen(ACTIVE, gpus=0)), (390, seen(ACTIVE))
    )
    assert events[1:] == [Resumed(namespace="team-a", reason="GPUsIdle", after=timedelta(minutes=5))]
    assert following.gpus() == {}


def test_what_slept_when_we_began_is_nobodys_suspension() -> None:
    following, events = told((0, seen(ASLEEP, replicas=0, gpus=0)), (60, seen(ACTIVE)))
    assert (events, following.gpus()) == ([], {})


def test_pods_that_cannot_be_seen_for_a_moment_are_not_forgotten() -> None:
    _, events = told((0, seen(INACTIVE)), (30, seen(INACTIVE, gpus=0)), (60, seen(ASLEEP, replicas=0, gpus=0)))
    assert [each.gpus for each in events if isinstance(each, Suspended)] == [4]


def test_of_scalable_workloads_their_workloads_tell() -> None:
    kind = "ScalableWorkload"
    _, events = told((0, seen(INACTIVE, kind=kind)), (60, seen(ASLEEP, replicas=0, gpus=0, kind=kind)))
    assert events == []


def test_one_that_is_deleted_while_it_sleeps_saves_nothing_any_more() -> None:
    following, _ = told((0, seen(INACTIVE)), (60, seen(ASLEEP, replicas=0, gpus=0)))
    following.follow(Usage(at=at(90)))
    assert following.gpus() == {}


def test_one_that_is_deleted_while_it_runs_is_not_suspended_by_being_made_anew_at_0() -> None:
    following, _ = told((0, seen(INACTIVE)))
    following.follow(Usage(at=at(30)))
    assert following.follow(Usage(at=at(60), workloads=[seen(ASLEEP, replicas=0, gpus=0)])) == []


def test_another_leader_begins_anew() -> None:
    following, _ = told((0, seen(INACTIVE)))
    following.forget()
    assert following.follow(Usage(at=at(60), workloads=[seen(ASLEEP, replicas=0, gpus=0)])) == []
