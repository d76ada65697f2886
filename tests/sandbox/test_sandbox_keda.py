"""The embedded KEDA asks, scales and tells what KEDA 2.18 does, over real gRPC and a real scale subresource.

Intervals are a tenth of a second here; cooldowns are whole seconds, as the ScaledObject has them.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from sandbox.scripted_scaler import ScriptedScaler, scripted_scaler
from scaler_sandbox.conditions import reason_of
from scaler_sandbox.job_manifests import deployment, scaled_object
from scaler_sandbox.keda import KedaTiming
from scaler_sandbox.keda.scaledobjects import read_scaled_object
from scaler_sandbox.kinds import Json
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig

from scaler.errors import ConfigurationError
from scaler.kube.objects.resources import DEPLOYMENT, EVENT, SCALED_OBJECT

POLLING = 0.1
ANNOTATION = "autoscaling.keda.sh/"


def app(name: str = "app", replicas: int = 1) -> Json:
    return deployment(name, "default", replicas=replicas, gpus=0)


def scaled(address: str, name: str = "app", *, kind: str = "external", **spec: Any) -> Json:
    trigger = {"idleAfter": "30m", "enableTLS": "false"} | spec.pop("metadata", {})
    body = scaled_object(name, "default", DEPLOYMENT, address, trigger, **spec)
    for each in body["spec"]["triggers"] if "triggers" not in spec else ():
        each["type"] = kind
    return body


@pytest.fixture
async def world() -> AsyncIterator[Sandbox]:
    base = SandboxConfig.fast()
    keda = KedaTiming(
        polling=timedelta(seconds=POLLING), push_backoff=timedelta(seconds=0.1), retry=timedelta(seconds=0.1)
    )
    config = dataclasses.replace(
        base, keda=keda, parts=frozenset({Component.KEDA, Component.DEPLOYMENTS, Component.KUBELETS})
    )
    async with Sandbox(config) as world:
        yield world


@pytest.fixture
async def scaler() -> AsyncIterator[ScriptedScaler]:
    async with scripted_scaler() as scaler:
        yield scaler


def replicas(world: Sandbox, name: str = "app") -> int | None:
    found = world.find(DEPLOYMENT, "default", name)
    return int(found["spec"]["replicas"]) if found else None


def shown(world: Sandbox, name: str = "app") -> Json:
    return world.find(SCALED_OBJECT, "default", name) or {"metadata": {}, "status": {}}


def are_settled_at(world: Sandbox, replicas: int) -> bool:
    """Whether all Deployments are at so many replicas, and their controller has written so and is done with them."""
    found = world.all(DEPLOYMENT)
    return bool(found) and all(
        each["status"].get("observedGeneration") == each["metadata"]["generation"]
        and each["spec"]["replicas"] == each["status"].get("replicas", 0) == each["status"].get("readyReplicas", 0)
        and each["spec"]["replicas"] == replicas
        for each in found
    )


async def annotate(world: Sandbox, **annotations: str | None) -> None:
    named = {ANNOTATION + key.replace("_", "-"): value for key, value in annotations.items()}
    await world.patch(SCALED_OBJECT, "default", "app", {"metadata": {"annotations": named}})


async def event(world: Sandbox, reason: str) -> Json:
    """The one Event with that reason, which is written a moment after what it tells of."""
    for _ in range(100):
        found = [each for each in await world.read_all(EVENT, "default") if each["reason"] == reason]
        if found:
            assert len(found) == 1
            return found[0]
        await asyncio.sleep(0.02)
    raise AssertionError(f"there is no event {reason}")


async def stays(predicate: Callable[[], bool], seconds: float) -> bool:
    """Whether the predicate holds all the time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        if not predicate():
            return False
        await asyncio.sleep(0.02)
    return True


async def polled(scaler: ScriptedScaler, world: Sandbox, times: int = 2) -> None:
    """A number of further polls."""
    before = scaler.rpcs().count("IsActive")
    await world.wait_for(lambda: scaler.rpcs().count("IsActive") >= before + times, "polls")


async def test_a_deployment_goes_from_1_to_0_and_back(world: Sandbox, scaler: ScriptedScaler) -> None:
    scaler.active = True
    await world.apply([app(), scaled(scaler.address, cooldownPeriod=300)])
    await world.wait_for(lambda: reason_of(shown(world), "Active") == "ScalerActive", "activity")
    scaler.active = False
    await world.wait_for(lambda: reason_of(shown(world), "Active") == "ScalerCooldown", "cool-down")
    await polled(scaler, world)
    assert replicas(world) == 1
    await world.patch(SCALED_OBJECT, "default", "app", {"spec": {"cooldownPeriod": 1}})
    await world.wait_for(lambda: replicas(world) == 0, "scaling to 0")
    await world.wait_for(lambda: reason_of(shown(world), "Active") == "ScalerNotActive", "inactivity")
    scaler.active = True
    await world.wait_for(lambda: replicas(world) == 1, "scaling to 1")
    down = await event(world, "KEDAScaleTargetDeactivated")
    up = await event(world, "KEDAScaleTargetActivated")
    assert down["message"] == "Deactivated apps/v1.Deployment default/app from 1 to 0"
    assert up["message"] == "Scaled apps/v1.Deployment default/app from 0 to 1, triggered by externalScaler"


async def test_a_poll_asks_for_the_spec_the_metrics_and_the_activity_in_this_order(
    world: Sandbox, scaler: ScriptedScaler
) -> None:
    scaler.active, loop = True, asyncio.get_running_loop()
    began = loop.time()
    metadata = {"Weird_Key-1": "a b=c,d", "empty": "", "queryFromEnv": "QUERY"}
    await world.apply([app(), scaled(scaler.address, metadata=metadata)])
    await polled(scaler, world, 6)
    # One GetMetricSpec of the reconciliation, then polls.
    assert scaler.rpcs()[:7] == ["GetMetricSpec", *["GetMetricSpec", "GetMetrics", "IsActive"] * 2]
    # Counted and not measured between two: where one came late, the next comes soon after it.
    assert scaler.rpcs().count("IsActive") <= 1 + (loop.time() - began) / POLLING
    # What comes from an environment that is not known is left out.
    passed = {"scalerAddress": scaler.address, "idleAfter": "30m", "enableTLS": "false"}
    assert scaler.asked[-1].metadata == passed | {"Weird_Key-1": "a b=c,d", "empty": ""}


async def test_an_error_is_asked_about_twice_and_freezes_the_replicas(world: Sandbox, scaler: ScriptedScaler) -> None:
    calls_of_a_poll = ["GetMetricSpec", "GetMetrics", "IsActive", "GetMetrics", "IsActive"]
    scaler.active = True
    await world.apply([app(), scaled(scaler.address, cooldownPeriod=0)])
    await world.wait_for(lambda: reason_of(shown(world), "Active") == "ScalerActive")
    scaler.failing["IsActive"], scaler.active = "no data", False
    await world.wait_for(lambda: reason_of(shown(world), "Ready") == "TriggerError", "the error to show")
    scaler.asked.clear()
    one_poll = "".join(f"{name} " for name in calls_of_a_poll)
    seen = set()

    def has_polled_thrice() -> bool:
        seen.add(replicas(world))
        return "".join(f"{name} " for name in scaler.rpcs()).count(one_poll) >= 3

    await world.wait_for(has_polled_thrice, "three more polls")
    assert seen == {1}
    assert set(scaler.rpcs()) == set(calls_of_a_poll)
    failed = await event(world, "KEDAScalerFailed")
    assert (failed["type"], failed["message"]) == ("Warning", "rpc error: code = Unavailable desc = no data")
    assert failed["count"] > 2
    # No poll without an error has refreshed lastActiveTime, so on recovery the first inactive answer acts at once.
    scaler.failing.clear()
    await world.wait_for(lambda: replicas(world) == 0, "scaling to 0 after recovery")


async def test_a_scaler_that_is_gone_freezes_deployments_up_and_down(world: Sandbox) -> None:
    """What docs/troubleshooting.md has for stopping everything, and what it says of the way back."""
    async with scripted_scaler() as busy, scripted_scaler() as idle:
        busy.active, addresses = True, {"up": busy.address, "down": idle.address}
        for name, address in addresses.items():
            await world.apply([app(name), scaled(address, name, cooldownPeriod=0)])
        await world.wait_for(lambda: (replicas(world, "up"), replicas(world, "down")) == (1, 0))
        await world.wait_for(lambda: reason_of(shown(world, "up"), "Active") == "ScalerActive")
    is_failing = [lambda name=name: reason_of(shown(world, name), "Ready") == "TriggerError" for name in addresses]
    for each in is_failing:
        await world.wait_for(each, "the error to show")
    assert await stays(lambda: (replicas(world, "up"), replicas(world, "down")) == (1, 0), 5 * POLLING)
    await world.patch(DEPLOYMENT, "default", "down", {"spec": {"replicas": 1}})
    await world.wait_for(lambda: replicas(world, "down") == 1, "what was scaled by hand")
    assert await stays(lambda: replicas(world, "down") == 1, 5 * POLLING)


async def test_a_scaler_that_never_answers_stops_the_loop_until_the_spec_changes(
    world: Sandbox, scaler: ScriptedScaler
) -> None:
    scaler.active = True
    await world.apply([app(), scaled(scaler.address)])
    await polled(scaler, world)
    scaler.asked.clear()
    scaler.hanging.add("GetMetrics")
    await world.wait_for(lambda: "GetMetrics" in scaler.rpcs(), "the call that is not answered")
    scaler.asked.clear()
    await asyncio.sleep(5 * POLLING)
    assert scaler.rpcs() == []
    await world.patch(SCALED_OBJECT, "default", "app", {"spec": {"cooldownPeriod": 2}})
    await world.wait_for(lambda: scaler.rpcs() == ["GetMetricSpec", "GetMetricSpec", "GetMetrics"], "the new loop")


async def test_a_pushed_true_scales_up_at_once_and_a_pushed_false_does_nothing(
    world: Sandbox, scaler: ScriptedScaler
) -> None:
    polling = KedaTiming(polling=timedelta(minutes=1))
    async with Sandbox(dataclasses.replace(world.config, keda=polling)) as world:
        # A scale write that meets a conflict waits for the next poll, a minute away: each side is done before the next.
        await world.apply([app()])
        await world.wait_for(lambda: are_settled_at(world, 1), "its controller to be done at 1")
        await world.apply([scaled(scaler.address, kind="external-push")])
        await world.wait_for(lambda: are_settled_at(world, 0), "its controller to be done at 0")
        await world.wait_for(lambda: bool(scaler.pushes), "the stream")
        scaler.push(True)
        await world.wait_for(lambda: replicas(world) == 1, "scaling to 1")
        up = await event(world, "KEDAScaleTargetActivated")
        assert up["message"].endswith("from 0 to 1, triggered by ")
        scaler.push(False)
        assert await stays(lambda: replicas(world) == 1, 0.3)


async def test_paused_stops_asking_and_goes_on_with_a_poll_at_once(world: Sandbox, scaler: ScriptedScaler) -> None:
    scaler.active = True
    await world.apply([app(), scaled(scaler.address)])
    await polled(scaler, world)
    await annotate(world, paused="true")
    await world.wait_for(lambda: reason_of(shown(world), "Paused") == "ScaledObjectPaused")
    scaler.asked.clear()
    scaler.active = False
    await asyncio.sleep(4 * POLLING)
    assert scaler.rpcs() == []
    assert replicas(world) == 1
    await annotate(world, paused=None)
    await world.wait_for(lambda: replicas(world) == 0, "the next poll")
    assert reason_of(shown(world), "Paused") == "ScaledObjectUnpaused"


async def test_deleting_restores_the_original_replicas_only_where_asked(world: Sandbox, scaler: ScriptedScaler) -> None:
    await world.apply([app("left"), app("back")])
    await world.apply(scaled(scaler.address, "left"))
    await world.apply(scaled(scaler.address, "back", advanced={"restoreToOriginalReplicaCount": True}))
    await world.wait_for(lambda: replicas(world, "left") == replicas(world, "back") == 0)
    # KEDA restores with one write and gives up on a conflict, so its controller has to be done with the Deployment.
    await world.wait_for(lambda: are_settled_at(world, 0))
    for name in ("left", "back"):
        await world.delete(SCALED_OBJECT, "default", name)
    await world.wait_for(lambda: not world.all(SCALED_OBJECT), "the finalizers")
    await world.wait_for(lambda: replicas(world, "back") == 1)
    assert replicas(world, "left") == 0
    before = len(scaler.asked)
    await asyncio.sleep(3 * POLLING)
    assert len(scaler.asked) == before


async def test_a_missing_target_is_reported_and_picked_up_when_it_appears(
    world: Sandbox, scaler: ScriptedScaler
) -> None:
    await world.apply(scaled(scaler.address))
    await world.wait_for(lambda: reason_of(shown(world), "Ready") == "ScaledObjectCheckFailed")
    assert scaler.rpcs() == []
    scaler.active = True
    await world.apply(app(replicas=0))
    await world.wait_for(lambda: replicas(world) == 1, "the target to be found")


@pytest.mark.parametrize(
    "spec",
    [
        {"fallback": {"failureThreshold": 3, "replicas": 0}},
        {"idleReplicaCount": 0},
        {"triggers": [{"type": "prometheus", "metadata": {"query": "up"}}]},
        {"metadata": {"enableTLS": "true"}},
    ],
    ids=["fallback", "idleReplicaCount", "another trigger type", "TLS"],
)
def test_what_is_not_simulated_is_refused(spec: Json) -> None:
    with pytest.raises(ConfigurationError, match="not simulated"):
        read_scaled_object(scaled("localhost:1", **spec))
