"""The metrics of the whole program in a small cluster: whoever shows them, and what is shown when something fails."""

from contextlib import AsyncExitStack

import pytest
from running_scaler import TRIGGER, gpus, keda, metric, run_gang, runtime, settings_document
from small_cluster import NAME, until

from scaler.kube.objects.resources import POD, SCALED_OBJECT


@pytest.fixture
async def fleet_and_document(cluster):
    async with gpus() as (fleet, exporter):
        yield fleet, settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])


async def has(port: int, name: str, value: float, **labels: str) -> bool:
    return await metric(port, f"idle_gpu_scaler_{name}", **labels) == value


async def above(port: int, name: str, value: float = 0, **labels: str) -> bool:
    return await metric(port, f"idle_gpu_scaler_{name}", **labels) > value


# ------------------------------------------------------------------------------------------------- several replicas


async def test_a_sum_over_replicas_is_right_before_and_after_the_leader_changes(cluster, fleet_and_document):
    _, document = fleet_and_document
    await run_gang(cluster, TRIGGER | {"mode": "observe"})
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(runtime(document)) for _ in range(2)]

        async def shown() -> list[float]:
            return [await metric(each.http_port, "idle_gpu_scaler_gpus") for each in both]

        async def one_shows_both_gpus() -> bool:
            return sorted(await shown()) == [0, 2]

        await until(one_shows_both_gpus)
        assert sorted([await metric(each.http_port, "idle_gpu_scaler_leader") for each in both]) == [0, 1]
        leader, follower = both if (await shown())[0] else reversed(both)
        await until(lambda: above(leader.http_port, "gpu_seconds_total", state="HeldIdle"))
        counted = await metric(leader.http_port, "idle_gpu_scaler_gpu_seconds_total")
        assert await has(follower.http_port, "gpu_seconds_total", 0)
        # What every replica shows is the same on both, and not to be summed.
        assert [await metric(each.http_port, "idle_gpu_scaler_scaled_objects") for each in both] == [1, 1]
        leader.stop()
        await until(lambda: has(follower.http_port, "gpus", 2))
        await until(lambda: above(follower.http_port, "gpu_seconds_total"))
        # It begins at 0, as a counter of another process does: `rate` adds up.
        assert await metric(follower.http_port, "idle_gpu_scaler_gpu_seconds_total") < counted + 2


@pytest.mark.parametrize(
    ("components", "fleet", "shows"),
    [
        pytest.param(["scaler"], None, True, id="a single replica shows what the leader would"),
        pytest.param(["scaler"], "Leader", False, id="unless another one does"),
        pytest.param(["scaler"], "Always", True, id="or where it is set"),
    ],
)
async def test_a_process_that_cannot_lead_shows_it_too(cluster, fleet_and_document, components, fleet, shows):
    _, document = fleet_and_document
    document = {**document, "components": components, "metrics": {"fleet": fleet}}
    del document["kubernetes"]["lease"]["namespace"]
    await run_gang(cluster)
    async with runtime(document) as one:
        await until(lambda: has(one.http_port, "scaled_objects", 1))
        await until(lambda: above(one.http_port, "tick_seconds_count", 3))
        assert await has(one.http_port, "gpus", 2 if shows else 0)
        assert "leader" not in str([family.name for family in one.metrics.registry.collect()])


async def test_who_reconciles_nothing_keeps_nobody_from_leading(cluster, fleet_and_document):
    """They have a Lease of their own: otherwise no replica would reconcile what KEDA scales."""
    _, document = fleet_and_document
    await run_gang(cluster)
    async with runtime({**document, "components": ["scaler"]}) as first:
        await until(lambda: has(first.http_port, "leader", 1))
        async with runtime({**document, "components": ["reconciler"]}) as second:

            async def both_lead() -> bool:
                return [await metric(each.http_port, "idle_gpu_scaler_leader") for each in (first, second)] == [1, 1]

            await until(both_lead)


# ------------------------------------------------------------------------------------------------------- what fails


async def test_what_goes_wrong_is_counted(cluster, fleet_and_document):
    """One thing after the other, in one program."""
    fleet, document = fleet_and_document
    await run_gang(cluster)
    await cluster.is_scaled_by({"idleAfter": "soon"}, name="mistyped")
    async with runtime(document) as one:
        port = one.http_port
        await until(lambda: has(port, "unusable_triggers", 1))
        await cluster.delete(SCALED_OBJECT, "mistyped")
        await until(lambda: has(port, "unusable_triggers", 0))
        await until(lambda: has(port, "scaled_objects", 1))

        await until(lambda: has(port, "gpu_nodes", 1, state="Trusted"))
        fleet.faults.exporter_down("node-a")
        await until(lambda: has(port, "source_doubt", 1, reason="SourceUnavailable"))
        await until(lambda: has(port, "gpus", 2, state="Unknown"))
        await until(lambda: has(port, "distrusted_gpus", 2, gpu_node="node-a"))
        fleet.faults.clear()
        await until(lambda: has(port, "source_doubt", 0))
        await until(lambda: has(port, "distrusted_gpus", 0))
        fleet.faults.blank("DCGM_FI_DEV_GPU_UTIL", uuid=fleet.gpus[0].uuid)
        await until(lambda: above(port, "blank_samples_total"))
        fleet.faults.clear()

        assert await has(port, "last_rpc_timestamp_seconds", 0)
        async with keda(one.grpc_port) as client:
            await client.is_active()
        assert await above(port, "last_rpc_timestamp_seconds", 1.7e9)
        assert await metric(port, "idle_gpu_scaler_copy_age_seconds", resource=POD.qualified_name) >= 0

        with cluster.refusing("PATCH", f"/scalableworkloads/{NAME}/status"):
            await cluster.scale(0)
            await until(lambda: above(port, "reconcile_queue_keys", state="Failing"))
        with cluster.refusing("POST", "/events", status=403):
            await cluster.evict()
            await cluster.end_pods()
            await cluster.release()
            await until(lambda: above(port, "events_lost_total"))
