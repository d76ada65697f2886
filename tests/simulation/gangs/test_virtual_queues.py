from gang_builders import at, job

from scaler.simulation.gangs.virtual_queues import VirtualQueues


def test_a_workload_holds_the_quota_of_all_its_gpus_or_none():
    queues = VirtualQueues({"default": 6})
    for each in (job("first", 1, gpus=4), job("second", 1, gpus=3, created=1)):
        queues.enqueue(each)

    assert queues.admit(at(1)) == ["first"]
    assert list(queues.workload("first").held.usage.values()) == [4]
    assert [each.name for each in queues.waiting] == ["second"]


def test_what_is_released_is_given_to_the_next():
    queues = VirtualQueues({"default": 4})
    queues.enqueue(job("first", 1))
    queues.admit(at(0))
    queues.enqueue(job("second", 1, created=1))

    assert queues.admit(at(1)) == []
    queues.release("first")
    assert queues.admit(at(2)) == ["second"]
    assert queues.workload("first") is None


def test_one_that_comes_back_has_the_place_that_its_age_gives_it():
    queues = VirtualQueues({"default": 4})
    queues.enqueue(job("younger", 1, created=5))
    queues.enqueue(job("older", 1))

    assert queues.admit(at(6)) == ["older"]


def test_what_is_planned_on_is_made_anew_only_when_something_has_changed():
    queues = VirtualQueues({"default": 4})
    queues.enqueue(job("large", 1, gpus=5))
    before = queues.planning_tree(at(0))

    assert queues.admit(at(1)) == []
    assert queues.planning_tree(at(2)) is before
    queues.enqueue(job("small", 1, created=3))
    assert queues.planning_tree(at(3)) is not before
