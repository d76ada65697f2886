"""Two triggers on one ScaledObject, KEDA's HTTP add-on's and ours: requests beat idle GPUs, and idle wins after."""

import pytest
from e2e import e2e_manifests as manifests
from e2e.e2e_flow import Flow, StartFlow
from http_add_on import http_add_on
from scaler_sandbox.job_manifests import scaled_object

from scaler.kube.objects.resources import DEPLOYMENT, SCALED_OBJECT

TRIGGER = {"idleAfter": "3s", "warmUp": "1s"}


def replicas(flow: Flow) -> int:
    found = flow.sandbox.find(DEPLOYMENT, flow.namespace, "model")
    return int(found["spec"]["replicas"]) if found else -1


@pytest.mark.cluster
async def test_requests_over_http_wake_a_server_and_keep_it_until_its_gpus_are_idle_without_any(
    start_flow: StartFlow,
) -> None:
    async with http_add_on("model") as add_on, start_flow(nodes={"a": 8}, gpus=8, has_check=False) as flow:
        flow.sandbox.fleet.set_activity(flow.namespace, "*", 0.0)
        await flow.bring_keda()
        address = f"127.0.0.1:{flow.scaler.grpc_port}"
        body = scaled_object("model", flow.run, DEPLOYMENT, address, TRIGGER, pollingInterval=1, cooldownPeriod=1)
        demand = {"scalerAddress": add_on.address, "interceptorRoute": "model"}
        body["spec"]["triggers"].insert(0, {"type": "external-push", "name": "http-demand", "metadata": demand})
        body["metadata"].setdefault("labels", {})[manifests.RUN_LABEL] = flow.run

        add_on.requests["model"] = 3
        await flow.sandbox.apply([manifests.deployment(flow.run, "model"), body])
        await flow.wait_until(lambda: flow.sandbox.condition(SCALED_OBJECT, flow.namespace, "model", "Ready"), "ready")
        await flow.assert_stays(lambda: replicas(flow) == 1, "1: its GPUs are idle, and requests come", seconds=8)

        add_on.requests["model"] = 0
        await flow.wait_until(lambda: replicas(flow) == 0, "0: no requests, and idle GPUs")
        await flow.assert_stays(lambda: replicas(flow) == 0, "0: nobody asks for it", seconds=3)

        add_on.requests["model"] = 1
        await flow.wait_until(lambda: replicas(flow) == 1, "1: a request has come")
        await flow.assert_stays(lambda: replicas(flow) == 1, "1: the request is under way", seconds=6)

        flow.sandbox.fleet.set_activity(flow.namespace, "*", 0.9)
        await flow.assert_stays(lambda: replicas(flow) == 1, "1: it works for the request", seconds=3)
        add_on.requests["model"] = 0
        await flow.assert_stays(lambda: replicas(flow) == 1, "1: its GPUs still work", seconds=6)
        flow.sandbox.fleet.set_activity(flow.namespace, "*", 0.0)
        await flow.wait_until(lambda: replicas(flow) == 0, "0: idle again")
