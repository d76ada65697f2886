"""Gangs that lack nodes: which ProvisioningRequests are made, what follows from them, and when the gang starts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from e2e.e2e_flow import Flow, StartFlow, attempt
from scaler_sandbox.autoscaler import Scenario, Shape

POOL = "e2e.idlegpu.io/pool"
RETRY_AFTER_1S = {"base": "1s", "max": "1s"}
SOON = Scenario(
    accepted_after=timedelta(seconds=0.3),
    provisioned_after=timedelta(seconds=1),
    tells_eta=True,
    counts_free=False,
    shape=Shape(labels={POOL: "{id}"}),
    details={"Pool": "{id}"},
)
"""Two nodes of 8, of a pool of their own, named in the request. They register before it is provisioned."""


def provisioning_policy(**provisioning: Any) -> dict[str, Any]:
    """A policy with provisioning that retries after a second."""
    return {"provisioning": {"retry": {"limit": 3, **RETRY_AFTER_1S}, **provisioning}}


async def test_annotations_and_pool_of_a_provisioned_request_reach_the_pods_of_the_job(start_flow: StartFlow) -> None:
    updates = {"nodeSelector": [{"key": POOL, "valueFromProvisioningClassDetail": "Pool"}]}
    async with start_flow(nodes={}, gpus=16, policy=provisioning_policy(podSetUpdates=updates), scenario=SOON) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        request = await flow.wait_for_request("gang")
        assert not flow.pods("gang")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")
        [found] = flow.all_requests()
        assert found["spec"]["provisioningClassName"] == flow.provisioning_class
        assert [each["count"] for each in found["spec"]["podSets"]] == [2]
        pool = found["status"]["provisioningClassDetails"]["Pool"]
        for pod in flow.running("gang"):
            annotations = pod["metadata"]["annotations"]
            assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == request
            assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == flow.provisioning_class
            assert pod["spec"]["nodeSelector"][POOL] == pool
        assert flow.check_state("gang")["state"] == "Ready"
        [template] = flow.templates()
        assert template["metadata"]["name"] == f"ppt-{request}-main"
        assert owners(template) == [("Workload", flow.workload("gang")["metadata"]["name"])]
        assert owners(found) == [("PodTemplate", template["metadata"]["name"])]


def owners(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["kind"], each["name"]) for each in body["metadata"].get("ownerReferences") or ()]


@pytest.mark.cluster
async def test_a_request_that_fails_twice_is_made_a_third_time_while_the_gang_keeps_its_quota(
    start_flow: StartFlow,
) -> None:
    async with start_flow(nodes={}, gpus=16, policy=provisioning_policy(), scenario=replace(SOON, failures=2)) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        for number in (1, 2, 3):
            await flow.wait_for_request("gang", number)
            assert [attempt(each) for each in flow.requests("gang")] == [*range(1, number + 1)]
            assert flow.has_condition("gang", "QuotaReserved")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")
        assert not flow.has_condition("gang", "Evicted")
        assert "retryCount" not in flow.check_state("gang")


NO_CAPACITY = replace(SOON, failures=99)


@pytest.mark.cluster
async def test_past_the_limit_a_gang_that_holds_keeps_its_quota_and_makes_no_further_request(
    start_flow: StartFlow,
) -> None:
    """The gang has all of the quota and half of the nodes, on which another gang would fit."""
    policy = provisioning_policy(retry={"limit": 1, **RETRY_AFTER_1S}, atLimit="Hold")
    async with start_flow(nodes={"a": 8}, gpus=16, policy=policy, scenario=NO_CAPACITY) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        await flow.wait_for_request("gang", 1)
        await flow.submit_job("other", pods=1, gpus=8)
        await flow.wait_for_message("attempt 2 was the last", "gang")
        await flow.assert_stays_pending("gang", seconds=4)
        assert [attempt(each) for each in flow.requests("gang")] == [1, 2]
        assert not flow.has_condition("other", "QuotaReserved")
        assert flow.evictions("gang") == 0


TAKEN_BACK = (
    "Kueue schedules the evicted gang at once, and in a BestEffortFIFO queue others only a second later: the gang gets "
    "its quota back, unless the other one has the same shape"
)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy",
    ["StrictFIFO", pytest.param("BestEffortFIFO", marks=pytest.mark.xfail(reason=TAKEN_BACK, strict=True))],
)
async def test_past_the_limit_a_gang_that_yields_gives_its_quota_to_another(
    start_flow: StartFlow, strategy: str
) -> None:
    policy = provisioning_policy(retry={"limit": 1, **RETRY_AFTER_1S}, atLimit="Yield")
    async with start_flow(nodes={"a": 8}, gpus=16, policy=policy, scenario=NO_CAPACITY, strategy=strategy) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        await flow.wait_for_request("gang", 1)
        await flow.submit_job("other", pods=1, gpus=8)
        await flow.wait_until(lambda: flow.evictions("gang") == 1, "the gang to yield")
        await flow.wait_until_running("other")
        await flow.wait_until(lambda: not flow.has_condition("gang", "QuotaReserved"), "the gang to be without quota")
        await flow.wait_until(lambda: not flow.all_requests(), "its requests to be removed")
        flow.assert_started_whole("other")
        assert not flow.pods("gang")


async def provision(flow: Flow, name: str, number: int, *nodes: str) -> str:
    """Provisions the gang's request of that attempt with these nodes; the request's name."""
    request = await flow.wait_for_request(name, number)
    for node in nodes:
        flow.add_node(node)
    await flow.answer_request(request, "Accepted", "Provisioned")
    return request


@pytest.mark.cluster
async def test_an_expired_booking_counts_before_the_gang_is_admitted_and_not_after(start_flow: StartFlow) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16, policy=provisioning_policy()) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        first = await provision(flow, "gang", 1)
        await flow.assert_stays_pending("gang", seconds=2)
        await flow.answer_request(first, "BookingExpired")
        second = await provision(flow, "gang", 2, "b")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")
        await flow.wait_until(lambda: names(flow) == [second], "the first request to be removed")
        before = {pod["metadata"]["uid"] for pod in flow.running("gang")}
        await flow.answer_request(second, "BookingExpired")
        await flow.assert_stays(
            lambda: flow.is_running("gang") and names(flow) == [second], "the gang runs on, with its request", seconds=4
        )
        assert {pod["metadata"]["uid"] for pod in flow.running("gang")} == before


def names(flow: Flow) -> list[str]:
    return [each["metadata"]["name"] for each in flow.all_requests()]


@pytest.mark.cluster
async def test_a_gang_whose_capacity_is_revoked_while_it_runs_is_evicted_and_makes_a_new_request(
    start_flow: StartFlow,
) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16, policy=provisioning_policy()) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        first = await provision(flow, "gang", 1, "b")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")
        uid = flow.requests("gang")[0]["metadata"]["uid"]
        flow.remove_node("b")
        await flow.answer_request(first, "CapacityRevoked")
        await flow.wait_until(lambda: flow.evictions("gang") == 1, "the gang to be evicted")
        await flow.wait_until(lambda: not flow.pods("gang"), "all its pods to end")

        def has_new_request() -> bool:
            return [each["metadata"]["uid"] for each in flow.requests("gang")] not in ([], [uid])

        await flow.wait_until(has_new_request, "another request")
        assert [attempt(each) for each in flow.requests("gang")] == [1]
        flow.add_node("c")
        await flow.answer_request(names(flow)[0], "Accepted", "Provisioned")
        await flow.wait_until_running("gang")
        assert flow.nodes_of("gang") == {"a", "c"}


@pytest.mark.cluster
async def test_a_deleted_request_is_created_again(start_flow: StartFlow) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16, policy=provisioning_policy()) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        first = await flow.wait_for_request("gang")
        await flow.answer_request(first, "Accepted")
        uid = flow.requests("gang")[0]["metadata"]["uid"]
        await flow.delete_request(first)
        await flow.wait_until(
            lambda: {each["metadata"]["uid"] for each in flow.requests("gang")} - {uid}, "another request"
        )
        await provision(flow, "gang", 1, "b")
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")
        assert len(names(flow)) == 1


@pytest.mark.cluster
@pytest.mark.parametrize("event", ["deactivated", "deleted", "deleted with its Job"])
async def test_an_open_request_is_deleted_with_its_workload(start_flow: StartFlow, event: str) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16, policy=provisioning_policy()) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        await flow.answer_request(await flow.wait_for_request("gang"), "Accepted")
        await flow.wait_until(lambda: len(provisioning_uids(flow)) == 2, "the request and its PodTemplate")
        before = provisioning_uids(flow)
        match event:
            case "deactivated":
                await flow.set_active("gang", active=False)
            case "deleted":
                await flow.delete_workload("gang")
            case _:
                await flow.delete_job("gang")

        await flow.wait_until(lambda: not before & provisioning_uids(flow), "the deletion of both")
        if event == "deactivated":
            await flow.assert_stays(lambda: not flow.all_requests(), "there is no request", seconds=2)
            await flow.set_active("gang", active=True)
        if event != "deleted with its Job":
            await provision(flow, "gang", 1, "b")
            await flow.wait_until_running("gang")
            flow.assert_started_whole("gang")


def provisioning_uids(flow: Flow) -> set[str]:
    """The uids of the ProvisioningRequests and PodTemplates of the namespace."""
    return {each["metadata"]["uid"] for each in [*flow.all_requests(), *flow.templates()]}


@pytest.mark.cluster
async def test_an_open_request_is_not_made_twice_when_the_program_is_killed(start_flow: StartFlow) -> None:
    async with start_flow(nodes={"a": 8}, gpus=16, policy=provisioning_policy()) as flow:
        await flow.submit_job("gang", pods=2, gpus=8)
        request = await flow.wait_for_request("gang")
        await flow.kill_and_restart(dead_for=0)
        uids = {each["metadata"]["uid"] for each in flow.all_requests()}
        assert len(uids) == 1
        await flow.answer_request(request, "Accepted")

        def is_alone() -> bool:
            return {each["metadata"]["uid"] for each in flow.all_requests()} == uids

        await flow.assert_stays(is_alone, "there is one request", seconds=5)
        await flow.scaler.kill()
        flow.add_node("b")
        await flow.answer_request(request, "Provisioned")
        await flow.assert_stays_pending("gang", seconds=2)
        await flow.scaler.start()
        await flow.wait_until_running("gang")
        flow.assert_started_whole("gang")
        assert is_alone()
