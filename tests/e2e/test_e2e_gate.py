"""Gangs at the gate: each starts whole, on GPUs that are really free, or not at all."""

import pytest
from e2e.e2e_town import Begin, Town

HALF = 8
"""GPUs of one node, and of one pod of these gangs."""


@pytest.mark.cluster
async def test_a_gang_stays_out_until_the_last_of_its_victims_pods_has_ended_20_seconds_late(begin: Begin) -> None:
    async with begin(nodes={"a": 8, "b": 8}, gpus=16, preempts=True) as town:
        await town.submit("victim", pods=2, gpus=8, ends_in="5s")
        await town.until_runs("victim")
        last = town.pods("victim")[0]["metadata"]["name"]
        await town.takes_to_end(last, "20s")
        await town.submit("gang", pods=2, gpus=8, is_preferred=True)
        await town.until_says("waits for 2 pods of", "gang")
        await town.until(lambda: len(town.pods("victim")) == 1, "the other pod to end")
        assert [pod["metadata"]["name"] for pod in town.pods("victim")] == [last]
        await town.stays_out("gang", seconds=8)

        def is_gone() -> bool:
            assert not (town.pods("victim") and town.pods("gang")), "the gang was let go before the last pod had ended"
            return not town.pods("victim")

        await town.until(is_gone, "the last pod to end")
        await town.until_runs("gang")
        town.assert_started_whole("gang")


async def test_a_gang_that_fits_in_part_starts_nothing_until_a_node_comes(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=16) as town:
        await town.submit("gang", pods=2, gpus=8)
        await town.until_says("not fit", "gang")
        await town.stays_out("gang", seconds=1)
        town.add_node("b")
        await town.until_runs("gang")
        assert town.nodes_of("gang") == {"a", "b"}
        town.assert_started_whole("gang")


@pytest.mark.cluster
async def test_of_two_gangs_that_race_for_the_same_gpus_one_starts_whole_and_the_other_waits(begin: Begin) -> None:
    async with begin(nodes={"a": 8, "b": 8}, gpus=32) as town:
        await town.submit("one", pods=2, gpus=8)
        await town.submit("two", pods=2, gpus=8)
        await town.until(lambda: town.runs("one") or town.runs("two"), "one of them to run")
        winner, other = ("one", "two") if town.runs("one") else ("two", "one")
        await town.stays_out(other, seconds=4)
        await town.end(winner)
        await town.until_runs(other)
        town.assert_started_whole("one", "two")


@pytest.mark.cluster
async def test_a_gang_waits_for_idle_ones_that_are_suspended_for_it_and_starts_whole(begin: Begin) -> None:
    """16 GPUs, all taken: 8 of them by two that are idle, and whose pods end late; 8 by one that works."""
    async with begin(nodes={"a": 8, "b": 8}, gpus=16) as town:
        for name in ("jupyter-1", "jupyter-2"):
            await town.submit(name, pods=1, gpus=4, ends_in="6s")
        await town.submit("train", pods=1, gpus=8)
        for name in ("jupyter-1", "jupyter-2", "train"):
            await town.until_runs(name)
        works = [pod["metadata"]["uid"] for pod in town.pods("train")]
        town.world.fleet.set_activity(town.namespace, "train-*", 0.9)
        await town.scale("jupyter-1", "jupyter-2", "train")
        await town.submit("gang", pods=2, gpus=4)
        await town.until_says("1 pod of", "gang", within=60)
        assert not town.pods("gang")
        await town.until_runs("gang", within=60)
        town.assert_started_whole("gang")
        assert {name: town.scalable(name).get("phase") for name in ("jupyter-1", "jupyter-2")} == {
            "jupyter-1": "Suspended",
            "jupyter-2": "Suspended",
        }
        assert [pod["metadata"]["uid"] for pod in town.running("train")] == works


# -------------------------------------------------------------------------------------------------------- our process


@pytest.mark.cluster
async def test_a_gang_that_waits_is_not_lost_when_our_process_is_killed(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=16) as town:
        await town.submit("gang", pods=2, gpus=8)
        await town.until_says("not fit", "gang")
        reserved = since(town, "gang")
        await town.kill_and_restart(dead_for=3)
        assert town.is_active()
        await town.stays_out("gang", seconds=4)
        assert since(town, "gang") == reserved
        await town.scaler.kill()
        town.add_node("b")
        await town.stays_out("gang", seconds=2)
        await town.scaler.start()
        await town.until_runs("gang")
        town.assert_started_whole("gang")


def since(town: Town, name: str) -> str:
    """When its quota was reserved."""
    conditions = town.workload(name)["status"]["conditions"]
    return str(next(each["lastTransitionTime"] for each in conditions if each["type"] == "QuotaReserved"))


# ---------------------------------------------------------------------------------------------------------- the check


@pytest.mark.cluster
async def test_a_check_without_its_parameters_is_inactive_and_active_once_they_are_there(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=8, policy=None) as town:
        await town.submit("gang", pods=1, gpus=8)
        condition = town.check_condition()
        assert (condition["status"], condition["reason"]) == ("False", "Unusable")
        assert f"no ReclaimPolicy '{town.run}'" in condition["message"]
        await town.holds(lambda: not town.is_true("gang", "Admitted"), "the gang stays out", seconds=2)
        await town.write_policy({})
        await town.until(town.is_active, "the check to be active")
        await town.until_runs("gang")
        town.assert_started_whole("gang")


@pytest.mark.cluster
async def test_a_job_that_runs_when_the_check_is_added_to_its_queue_keeps_running(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=16, is_guarded=False) as town:
        await town.submit("old", pods=2, gpus=4)
        await town.until_runs("old")
        before = {pod["metadata"]["uid"] for pod in town.running("old")}
        await town.guard()
        await town.until(lambda: town.entry("old")["state"] == "Ready", "the running one to be let be")
        await town.submit("new", pods=1, gpus=8)
        await town.until_says("not fit", "new")
        assert {pod["metadata"]["uid"] for pod in town.running("old")} == before
        assert town.is_true("old", "Admitted")
        await town.stays_out("new", seconds=1)
