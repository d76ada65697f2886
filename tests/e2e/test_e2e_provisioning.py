"""Gangs that lack nodes: what is asked for, what becomes of it, and when the gang starts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from e2e.e2e_town import Begin, Town, attempt
from scaler_sandbox.autoscaler import Scenario, Shape

POOL = "e2e.idlegpu.io/pool"
PATIENT = {"base": "1s", "max": "1s"}
"""Not at all."""
SOON = Scenario(
    accepted_after=timedelta(seconds=0.3),
    provisioned_after=timedelta(seconds=1),
    tells_eta=True,
    counts_free=False,
    shape=Shape(labels={POOL: "{id}"}),
    details={"Pool": "{id}"},
)
"""Two nodes of 8, of a pool of their own, of which the request tells. They register before it is provisioned."""


def asks(**provisioning: Any) -> dict[str, Any]:
    """A policy that asks for nodes, and for the next ones a second after."""
    return {"provisioning": {"retry": {"limit": 3, **PATIENT}, **provisioning}}


async def test_what_a_request_has_booked_reaches_the_pods_of_the_job(begin: Begin) -> None:
    """The consume annotations, and the nodes of the request's own pool."""
    updates = {"nodeSelector": [{"key": POOL, "valueFromProvisioningClassDetail": "Pool"}]}
    async with begin(nodes={}, gpus=16, policy=asks(podSetUpdates=updates), scenario=SOON) as town:
        await town.submit("gang", pods=2, gpus=8)
        request = await town.until_asked("gang")
        assert not town.pods("gang")
        await town.until_runs("gang")
        town.assert_started_whole("gang")
        [found] = town.all_requests()
        assert found["spec"]["provisioningClassName"] == town.provisioning_class
        assert [each["count"] for each in found["spec"]["podSets"]] == [2]
        pool = found["status"]["provisioningClassDetails"]["Pool"]
        for pod in town.running("gang"):
            annotations = pod["metadata"]["annotations"]
            assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == request
            assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == town.provisioning_class
            assert pod["spec"]["nodeSelector"][POOL] == pool
        assert town.entry("gang")["state"] == "Ready"
        [template] = await town.templates()
        assert template["metadata"]["name"] == f"ppt-{request}-main"
        assert owners(template) == [("Workload", town.workload("gang")["metadata"]["name"])]
        assert owners(found) == [("PodTemplate", template["metadata"]["name"])]


def owners(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["kind"], each["name"]) for each in body["metadata"].get("ownerReferences") or ()]


@pytest.mark.cluster
async def test_a_request_that_fails_twice_is_made_a_third_time_while_the_gang_keeps_its_quota(begin: Begin) -> None:
    async with begin(nodes={}, gpus=16, policy=asks(), scenario=replace(SOON, failures=2)) as town:
        await town.submit("gang", pods=2, gpus=8)
        for number in (1, 2, 3):
            await town.until_asked("gang", number)
            assert [attempt(each) for each in town.requests("gang")] == [*range(1, number + 1)]
            assert town.is_true("gang", "QuotaReserved")
        await town.until_runs("gang")
        town.assert_started_whole("gang")
        assert not town.is_true("gang", "Evicted")
        assert "retryCount" not in town.entry("gang")


NO_CAPACITY = replace(SOON, failures=99)


@pytest.mark.cluster
async def test_past_the_limit_a_gang_that_holds_keeps_its_quota_and_asks_nobody_any_more(begin: Begin) -> None:
    """The gang has all of the quota, and half of the nodes; another one would fit these."""
    policy = asks(retry={"limit": 1, **PATIENT}, atLimit="Hold")
    async with begin(nodes={"a": 8}, gpus=16, policy=policy, scenario=NO_CAPACITY) as town:
        await town.submit("gang", pods=2, gpus=8)
        await town.until_asked("gang", 1)
        await town.submit("other", pods=1, gpus=8)
        await town.until_says("attempt 2 was the last", "gang", within=60)
        await town.stays_out("gang", seconds=4)
        assert [attempt(each) for each in town.requests("gang")] == [1, 2]
        assert not town.is_true("other", "QuotaReserved")
        assert town.evictions("gang") == 0


TAKEN_BACK = (
    "Kueue looks at the evicted gang at once, and in a BestEffortFIFO queue at others only a second later: the gang "
    "takes its quota back, unless the other one is of the same shape"
)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy",
    ["StrictFIFO", pytest.param("BestEffortFIFO", marks=pytest.mark.xfail(reason=TAKEN_BACK, strict=True))],
)
async def test_past_the_limit_a_gang_that_yields_gives_its_quota_to_another(begin: Begin, strategy: str) -> None:
    policy = asks(retry={"limit": 1, **PATIENT}, atLimit="Yield")
    async with begin(nodes={"a": 8}, gpus=16, policy=policy, scenario=NO_CAPACITY, strategy=strategy) as town:
        await town.submit("gang", pods=2, gpus=8)
        await town.until_asked("gang", 1)
        await town.submit("other", pods=1, gpus=8)
        await town.until(lambda: town.evictions("gang") == 1, "the gang to yield")
        await town.until_runs("other")
        await town.until(lambda: not town.is_true("gang", "QuotaReserved"), "the gang to be without quota")
        await town.until(lambda: not town.all_requests(), "its requests to be removed")
        town.assert_started_whole("other")
        assert not town.pods("gang")


async def booked(town: Town, name: str, number: int, *nodes: str) -> str:
    """The gang's request of that attempt is provisioned with these nodes. Its name."""
    request = await town.until_asked(name, number)
    for node in nodes:
        town.add_node(node)
    await town.answer(request, "Accepted", "Provisioned")
    return request


@pytest.mark.cluster
async def test_a_booking_that_expires_counts_before_the_gang_is_admitted_and_not_after(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=16, policy=asks()) as town:
        await town.submit("gang", pods=2, gpus=8)
        first = await booked(town, "gang", 1)
        await town.stays_out("gang", seconds=2)
        await town.answer(first, "BookingExpired")
        second = await booked(town, "gang", 2, "b")
        await town.until_runs("gang")
        town.assert_started_whole("gang")
        await town.until(lambda: names(town) == [second], "the first request to be removed")
        before = {pod["metadata"]["uid"] for pod in town.running("gang")}
        await town.answer(second, "BookingExpired")
        await town.holds(lambda: town.runs("gang") and names(town) == [second], "the gang is left alone", seconds=4)
        assert {pod["metadata"]["uid"] for pod in town.running("gang")} == before


def names(town: Town) -> list[str]:
    return [each["metadata"]["name"] for each in town.all_requests()]


@pytest.mark.cluster
async def test_a_gang_whose_capacity_is_revoked_while_it_runs_is_evicted_and_asks_again(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=16, policy=asks()) as town:
        await town.submit("gang", pods=2, gpus=8)
        first = await booked(town, "gang", 1, "b")
        await town.until_runs("gang")
        town.assert_started_whole("gang")
        uid = town.requests("gang")[0]["metadata"]["uid"]
        town.remove_node("b")
        await town.answer(first, "CapacityRevoked")
        await town.until(lambda: town.evictions("gang") == 1, "the gang to be evicted")
        await town.until(lambda: not town.pods("gang"), "all its pods to end")

        def asked_anew() -> bool:
            return [each["metadata"]["uid"] for each in town.requests("gang")] not in ([], [uid])

        await town.until(asked_anew, "another request")
        assert [attempt(each) for each in town.requests("gang")] == [1]
        town.add_node("c")
        await town.answer(names(town)[0], "Accepted", "Provisioned")
        await town.until_runs("gang")
        assert town.nodes_of("gang") == {"a", "c"}


@pytest.mark.cluster
async def test_a_request_that_somebody_deletes_is_made_again(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=16, policy=asks()) as town:
        await town.submit("gang", pods=2, gpus=8)
        first = await town.until_asked("gang")
        await town.answer(first, "Accepted")
        uid = town.requests("gang")[0]["metadata"]["uid"]
        await town.delete_request(first)
        await town.until(lambda: {each["metadata"]["uid"] for each in town.requests("gang")} - {uid}, "another request")
        await booked(town, "gang", 1, "b")
        await town.until_runs("gang")
        town.assert_started_whole("gang")
        assert len(names(town)) == 1


@pytest.mark.cluster
@pytest.mark.parametrize("gone", ["deactivated", "deleted", "deleted with its Job"])
async def test_a_workload_that_goes_while_a_request_is_open_takes_it_along(begin: Begin, gone: str) -> None:
    async with begin(nodes={"a": 8}, gpus=16, policy=asks()) as town:
        await town.submit("gang", pods=2, gpus=8)
        await town.answer(await town.until_asked("gang"), "Accepted")
        before = {each["metadata"]["uid"] for each in [*town.all_requests(), *await town.templates()]}
        assert len(before) == 2
        match gone:
            case "deactivated":
                await town.set_active("gang", active=False)
            case "deleted":
                await town.delete_workload("gang")
            case _:
                await town.end("gang")

        async def left() -> set[str]:
            return before & {each["metadata"]["uid"] for each in [*town.all_requests(), *await town.templates()]}

        await town.until_async(left, lambda found: not found, "the request and its PodTemplate to go")
        if gone == "deactivated":
            await town.holds(lambda: not town.all_requests(), "nothing is asked for", seconds=2)
            await town.set_active("gang", active=True)
        if gone != "deleted with its Job":
            await booked(town, "gang", 1, "b")
            await town.until_runs("gang")
            town.assert_started_whole("gang")


@pytest.mark.cluster
async def test_a_request_that_is_open_is_not_made_twice_when_our_process_is_killed(begin: Begin) -> None:
    async with begin(nodes={"a": 8}, gpus=16, policy=asks()) as town:
        await town.submit("gang", pods=2, gpus=8)
        request = await town.until_asked("gang")
        await town.kill_and_restart(dead_for=0)
        uids = {each["metadata"]["uid"] for each in town.all_requests()}
        assert len(uids) == 1
        await town.answer(request, "Accepted")

        def is_alone() -> bool:
            return {each["metadata"]["uid"] for each in town.all_requests()} == uids

        await town.holds(is_alone, "there is one request", seconds=5)
        await town.scaler.kill()
        town.add_node("b")
        await town.answer(request, "Provisioned")
        await town.stays_out("gang", seconds=2)
        await town.scaler.start()
        await town.until_runs("gang")
        town.assert_started_whole("gang")
        assert is_alone()
