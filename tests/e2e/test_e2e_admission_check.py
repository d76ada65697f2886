"""The AdmissionCheck of gangs: each starts whole, on GPUs that are really free, or not at all."""

import pytest
from e2e.e2e_flow import Flow, StartFlow


@pytest.mark.cluster
async def test_a_gang_stays_pending_until_the_last_pod_of_its_victim_has_ended_20_seconds_late(
    start_flow: StartFlow,
) -> None:
    async with start_flow(nodes={"a": 8, "b": 8}, gpus=16, preempts=True) as flow:
        await flow.submit_job("victim", pods=2, gpus=8, ends_in="5s")
        await flow.wait_until_running("victim")
        last = flow.pods("victim")[0]["metadata"]["name"]
        await flow.set_termination(last, "20s")
        await flow.submit_job("gang", pods=2, gpus=8, is_preferred=True)
        await flow.wait_for_message("waits for 2 pods of", "gang")
        await flow.wait_until(lambda: len(flow.pods("victim")) == 1, "the other pod to end")
        assert [pod["metadata"]["name"] for pod in flow.pods("victim")] == [last]
        await flow.assert_stays_pending("gang", seconds=8)

        def is_gone() -> bool:
            assert not (flow.pods("victim") and flow.pods("gang")), (
                "the gang was admitted before the last pod had ended"
            )
            return not flow.pods("victim")

        await flow.wait_until(is_gone, "the last pod to end")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")


async def test_a_gang_that_fits_in_part_does_not_start_until_a_node_is_added(start_flow: StartFlow) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        await flow.wait_for_message("not fit", "gang")
        await flow.assert_stays_pending("gang", seconds=1)
        flow.add_node("b")
        await flow.wait_until_running("gang")
        assert flow.nodes_of("gang") == {"a", "b"}
        flow.assert_started_whole("gang")


@pytest.mark.cluster
async def test_of_two_gangs_that_race_for_the_same_gpus_one_starts_whole_and_the_other_waits(
    start_flow: StartFlow,
) -> None:
    async with start_flow(nodes={"a": 8, "b": 8}, gpus=32) as flow:
        await flow.submit_job("one", pods=2, gpus=8)
        await flow.submit_job("two", pods=2, gpus=8)
        await flow.wait_until(lambda: flow.is_running("one") or flow.is_running("two"), "one of them to run")
        winner, other = ("one", "two") if flow.is_running("one") else ("two", "one")
        await flow.assert_stays_pending(other, seconds=4)
        await flow.delete_job(winner)
        await flow.wait_until_running(other)
        flow.assert_started_whole("one", "two")


@pytest.mark.cluster
async def test_a_gang_waits_for_idle_workloads_that_are_suspended_for_it_and_starts_whole(
    start_flow: StartFlow,
) -> None:
    """16 GPUs, all allocated: 8 of them to two Jobs that are idle, whose pods end late; 8 to a busy one."""
    async with start_flow(nodes={"a": 8, "b": 8}, gpus=16) as flow:
        await flow.submit_job("train", pods=1, gpus=8)
        await flow.wait_until_running("train")  # first: a scheduler may put the others on two nodes
        for name in ("jupyter-1", "jupyter-2"):
            await flow.submit_job(name, pods=1, gpus=4, ends_in="6s")
            await flow.wait_until_running(name)
        busy = [pod["metadata"]["uid"] for pod in flow.pods("train")]
        flow.sandbox.fleet.set_activity(flow.namespace, "train-*", 0.9)
        await flow.make_scalable("jupyter-1", "jupyter-2", "train")
        await flow.submit_job("gang", pods=2, gpus=4)
        await flow.wait_for_message("1 pod of", "gang")
        assert not flow.pods("gang")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")
        assert {name: flow.scalable(name).get("phase") for name in ("jupyter-1", "jupyter-2")} == {
            "jupyter-1": "Suspended",
            "jupyter-2": "Suspended",
        }
        assert [pod["metadata"]["uid"] for pod in flow.running("train")] == busy


@pytest.mark.cluster
async def test_idle_workloads_come_back_when_the_gang_has_ended_and_not_before_one_that_waits(
    start_flow: StartFlow,
) -> None:
    async with start_flow(nodes={"a": 4}, gpus=4, has_check=False, strategy="StrictFIFO") as flow:
        names = "jupyter-1", "jupyter-2"
        for name in names:
            await flow.submit_job(name, pods=1, gpus=2)
            await flow.wait_until_running(name)
        await flow.make_scalable(*names, wake="WhenFree")
        await flow.submit_job("gang", pods=1, gpus=4)
        await flow.wait_until_running("gang")
        await flow.wait_until(lambda: not any(map(flow.pods, names)), "both Jobs to be suspended")
        await flow.submit_job("next", pods=1, gpus=4)
        await flow.delete_job("gang")
        await flow.wait_until_running("next")
        assert not any(map(flow.pods, names))
        flow.sandbox.fleet.set_activity(flow.namespace, "*", 0.9)
        await flow.delete_job("next")
        for name in names:
            await flow.wait_until_running(name)
            await flow.wait_until(lambda of=name: woken_by(flow, of), f"the history of {name}")
            assert woken_by(flow, name) == ["trigger metadata, WhenFree"]


def woken_by(flow: Flow, name: str) -> list[str]:
    history = flow.scalable(name).get("history") or ()
    return [line.get("by", "") for line in history if line["state"] == "Waking" and line.get("by")]


# -------------------------------------------------------------------------------------------------------- the program


@pytest.mark.cluster
async def test_a_pending_gang_is_not_lost_when_the_program_is_killed(start_flow: StartFlow) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        await flow.wait_for_message("not fit", "gang")
        reserved = since(flow, "gang")
        await flow.kill_and_restart(dead_for=3)
        assert flow.is_active()
        await flow.assert_stays_pending("gang", seconds=4)
        assert since(flow, "gang") == reserved
        await flow.scaler.kill()
        flow.add_node("b")
        await flow.assert_stays_pending("gang", seconds=2)
        await flow.scaler.start()
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")


def since(flow: Flow, name: str) -> str:
    """When its quota was reserved."""
    conditions = flow.workload(name)["status"]["conditions"]
    return str(next(each["lastTransitionTime"] for each in conditions if each["type"] == "QuotaReserved"))


# ---------------------------------------------------------------------------------------------------------- the check


@pytest.mark.cluster
async def test_a_check_without_its_parameters_is_inactive_and_active_once_they_are_there(start_flow: StartFlow) -> None:
    async with start_flow(nodes={"a": 8}, gpus=8, policy=None) as flow:
        await flow.submit_job("gang", pods=1, gpus=8)
        condition = flow.check_condition()
        assert (condition["status"], condition["reason"]) == ("False", "Unusable")
        assert f"no ReclaimPolicy '{flow.run}'" in condition["message"]
        await flow.assert_stays(lambda: not flow.has_condition("gang", "Admitted"), "the gang stays pending", seconds=2)
        await flow.write_policy({})
        await flow.wait_until(flow.is_active, "the check to be active")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")


@pytest.mark.cluster
async def test_a_job_that_runs_when_the_check_is_added_to_its_queue_keeps_running(start_flow: StartFlow) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16, has_check=False) as flow:
        await flow.submit_job("old", pods=2, gpus=4)
        await flow.wait_until_running("old")
        before = {pod["metadata"]["uid"] for pod in flow.running("old")}
        await flow.add_check()
        await flow.wait_until(
            lambda: flow.check_state("old")["state"] == "Ready", "the running gang's check to be Ready"
        )
        await flow.submit_job("new", pods=1, gpus=8)
        await flow.wait_for_message("not fit", "new")
        assert {pod["metadata"]["uid"] for pod in flow.running("old")} == before
        assert flow.has_condition("old", "Admitted")
        await flow.assert_stays_pending("new", seconds=1)
