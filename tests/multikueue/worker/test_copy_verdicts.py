"""What a hub has dispatched is judged as a workload of this cluster with the same policy would be."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from builders import NOON, WorkloadJson, minutes
from loops_builders import LONG_AGO, NAMESPACE, QUICK, TICK, Inhabitant, MemoryCluster, World, gang, pod
from scripted_metrics import Metrics, ScriptedSource, gpu

from scaler.decision.decision import Decision
from scaler.errors import MetadataError, SourceError
from scaler.idleness.verdict import Unknown, verdict_name
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN
from scaler.kube.objects.multikueue import OfferedWorkload, OfferPolicy, WorkloadOffer
from scaler.multikueue.worker.copy_verdicts import CopyVerdicts, longest_window, policy_of
from scaler.multikueue.worker.fit_answers import entry_key

POLICY = OfferPolicy(idle_after="10m", warm_up="1m", active_above=0.01, gpus="all")
"""As QUICK, and the built-in defaults."""
BUSY = 0.9
LIMITS: Mapping[str, timedelta] = {"longest": timedelta(hours=24), "shortest": timedelta(seconds=30)}


def dispatched(
    name: str, *, pods: int = 1, running: int | None = None, label: str = "multikueue", started: Any = LONG_AGO
) -> Inhabitant:
    """A remote copy with pods `NAME-0` … of two GPUs each, of which so many run."""

    def settle(cluster: MemoryCluster) -> None:
        json = WorkloadJson(name, pods=pods, gpus_per_pod=2).admitted()
        json.json["metadata"]["labels"] = {MULTIKUEUE_ORIGIN: label} if label else {}
        cluster.workloads.put(json.decoded())
        for number in range(pods if running is None else running):
            cluster.pods.put(pod(f"{name}-{number}", gpus=2, started=started, workload=name))

    return settle


def world_of(
    *inhabitants: Inhabitant, busy: Mapping[str, Callable[[float], float]] | None = None, **config: Any
) -> World:
    """Two GPUs for every pod, quiet where `busy` says nothing of it."""

    def source(world: World) -> ScriptedSource:
        pods = [(each.metadata.name, n) for each in world.cluster.pods.items() for n in range(2)]
        quiet: Callable[[float], float] = lambda _: 0.0  # noqa: E731
        series = [s for name, n in pods for s in gpu(f"GPU-{name}-{n}", pod=name, ratio=(busy or {}).get(name, quiet))]
        return ScriptedSource(metrics=Metrics(series=series), clock=lambda: world.now)

    return World(inhabitants, source, **config)


def entry(name: str = "copy", policy: OfferPolicy | None = POLICY) -> OfferedWorkload:
    return OfferedWorkload(namespace=NAMESPACE, name=name, uid=f"hub-{name}", policy=policy)


def copy_verdicts(world: World) -> CopyVerdicts:
    evaluator = world.evaluator
    return CopyVerdicts(judge=evaluator.judge, cluster=evaluator.cluster, max_window=evaluator.config.max_window)


async def judged(world: World, *entries: OfferedWorkload) -> list[WorkloadOffer]:
    verdicts = copy_verdicts(world)
    asked = entries or (entry(),)
    found = await verdicts.verdicts(asked, world.now)
    return [found[entry_key(each)] for each in asked]


def decision(world: World, name: str = "local") -> Decision:
    (found,) = world.entry(name).triggers.values()
    return found


# -------------------------------------------------------------------------------------------------------- the same code

AT_TIMES: Mapping[str, Callable[[float], float]] = {
    "quiet": lambda _: 0.0,
    "busy": lambda _: BUSY,
    "quiet for twenty minutes": lambda at_s: BUSY if at_s < NOON.timestamp() - 1200 else 0.0,
    "quiet for five minutes": lambda at_s: BUSY if at_s < NOON.timestamp() - 300 else 0.0,
}


@pytest.mark.parametrize("ratio", AT_TIMES.values(), ids=AT_TIMES.keys())
async def test_a_copy_is_judged_as_a_local_workload_is(ratio: Callable[[float], float]) -> None:
    world = world_of(gang("local"), dispatched("copy"), busy={"local-pod": ratio, "copy-0": ratio})
    await world.tick(NOON)
    (found,), local = await judged(world), decision(world)
    assert local.verdict is not None
    assert found.verdict == verdict_name(local.verdict.verdict)
    assert (found.idle_since, found.idle_at_least) == (local.idle_since, local.idle_at_least)
    assert found.running_since == local.target.running_since
    assert (found.gpus, len(found.evidence)) == (2, 2)
    assert msgspec.json.decode(found.evidence[0])["verdict"] in ("Idle", "Busy")
    assert found.judged_by == POLICY


async def test_every_state_that_the_samples_can_be_in_is_the_local_one() -> None:
    world = world_of(gang("local"), dispatched("copy"))
    await world.tick(NOON)
    source = world.source
    assert isinstance(source, ScriptedSource)
    source.failing["gpu_util"] = SourceError("gone", transient=True)
    await world.tick(NOON + TICK)
    (found,), local = await judged(world), decision(world)
    assert local.verdict is not None
    doubt = local.verdict.verdict
    assert isinstance(doubt, Unknown)
    assert (found.verdict, found.reason, found.verdict_message) == ("Unknown", str(doubt.reason), doubt.message)


async def test_stale_copies_of_the_api_are_doubted() -> None:
    world = world_of(dispatched("copy"))
    await world.tick(NOON)
    world.cluster.go_silent(10_000)
    (found,) = await judged(world)
    assert (found.verdict, found.reason) == ("Unknown", "StaleClusterView")


# ------------------------------------------------------------------------------------------------ what does not all run


async def test_idle_is_not_said_before_all_pods_are_there() -> None:
    world = world_of(dispatched("copy", pods=2, running=1))
    await world.tick(NOON)
    (found,) = await judged(world)
    assert (found.verdict, found.reason, found.running_since) == ("Unknown", "MissingGPUs", None)
    assert "1 of 2 GPU pods run" in found.verdict_message
    assert found.gpus == 2


async def test_nor_before_all_of_them_run() -> None:
    world = world_of(dispatched("copy", started=None))
    await world.tick(NOON)
    (found,) = await judged(world)
    assert (found.verdict, found.running_since) == ("Unknown", None)


async def test_it_is_idle_since_no_time_before_its_oldest_sample_and_that_is_kept() -> None:
    """The hub may have warned before a restart here, and work between the two is forgotten."""
    world = world_of(dispatched("copy"))
    await world.tick(NOON)
    (found,) = await judged(world)
    assert found.verdict == "Idle"
    assert found.idle_since is not None
    assert LONG_AGO + minutes(1) < found.idle_since < NOON - minutes(30)
    assert found.idle_at_least
    verdicts = copy_verdicts(world)
    seen = set()
    for n in range(1, 8):
        await world.tick(NOON + n * minutes(25))
        (later,) = (await verdicts.verdicts([entry()], world.now)).values()
        seen.add((later.idle_since, later.idle_at_least))
    assert len(seen) == 1


async def test_within_its_warm_up_it_is_not_idle_since_any_time() -> None:
    world = world_of(dispatched("copy", started=NOON - timedelta(seconds=30)))
    await world.tick(NOON)
    (found,) = await judged(world)
    assert found.idle_since is None
    assert found.running_since == NOON - timedelta(seconds=30)


@pytest.mark.parametrize("inhabitants", [[], [dispatched("copy", label="")]], ids=["gone", "not the hub's"])
async def test_what_is_no_remote_copy_is_not_judged(inhabitants: Sequence[Inhabitant]) -> None:
    world = world_of(*inhabitants)
    await world.tick(NOON)
    (found,) = await judged(world)
    assert (found.verdict, found.reason) == ("Unknown", "WorkloadMissing")


# ----------------------------------------------------------------------------------------------------------- its policy


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"idle_after": ""}, id="no idleAfter"),
        pytest.param({"idle_after": "soon"}, id="no duration"),
        pytest.param({"idle_after": "0s"}, id="no time to be idle in"),
        pytest.param({"idle_after": "10s"}, id="shorter than the time between two samples"),
        pytest.param({"idle_after": "25h"}, id="longer than samples are kept"),
        pytest.param({"warm_up": "-1m"}, id="a negative warm-up"),
        pytest.param({"gpus": "most"}, id="no GPU rule"),
        pytest.param({"active_above": 0.0}, id="a ratio that everything reaches"),
        pytest.param({"active_above": 1.5}, id="a ratio that nothing reaches"),
        pytest.param({"active_above": float("nan")}, id="no number"),
    ],
)
async def test_a_policy_that_cannot_be_used_is_unknown_and_harms_no_other(changes: Mapping[str, Any]) -> None:
    world = world_of(dispatched("copy"), dispatched("other"))
    await world.tick(NOON)
    bad, good = await judged(world, entry("copy", msgspec.structs.replace(POLICY, **changes)), entry("other"))
    assert (bad.verdict, bad.reason) == ("Unknown", "InvalidPolicy")
    assert bad.verdict_message
    assert good.verdict == "Idle"


async def test_each_is_judged_by_its_own_policy() -> None:
    world = world_of(dispatched("copy"), busy={"copy-0": lambda _: 0.05})
    await world.tick(NOON)
    (strict,) = await judged(world, entry())
    (lax,) = await judged(world, entry(policy=msgspec.structs.replace(POLICY, active_above=0.1)))
    assert (strict.verdict, lax.verdict) == ("Busy", "Idle")


def test_what_the_hub_leaves_out_is_the_built_in_default_and_not_that_of_the_settings_here() -> None:
    found = policy_of(OfferPolicy(idle_after="20m"), **LIMITS)
    assert (found.window, found.warm_up, found.active_above_ratio) == (minutes(20), minutes(10), 0.01)


def test_samples_are_kept_for_the_longest_window_that_can_be_used() -> None:
    policies = [msgspec.structs.replace(POLICY, idle_after=each) for each in ("20m", "3h", "25h", "soon", "")]
    entries = [entry(f"copy-{number}", each) for number, each in enumerate(policies)]
    assert longest_window([*entries, entry("asks", None)], **LIMITS) == timedelta(hours=3)
    assert longest_window([], **LIMITS) == timedelta(0)
    with pytest.raises(MetadataError):
        policy_of(policies[2], **LIMITS)


async def test_a_longer_window_is_read_back_before_it_is_judged() -> None:
    world = world_of(dispatched("copy", started=NOON - timedelta(hours=5)), gang("local"))
    asked = entry(policy=msgspec.structs.replace(POLICY, idle_after="2h"))
    await world.tick(NOON)
    assert (await judged(world, asked))[0].reason == "ColdStart"
    world.evaluator.longest_asked = lambda: longest_window([asked], **LIMITS)
    for number in range(1, 5):
        await world.tick(NOON + number * TICK)
    assert (await judged(world, asked))[0].verdict == "Idle"


async def test_evidence_of_many_is_cut_so_that_the_status_fits_an_object() -> None:
    world = world_of(dispatched("copy"))
    await world.tick(NOON)
    entries = [entry("copy"), *(entry(f"gone-{number}") for number in range(999))]
    found = await judged(world, *entries)
    assert len(found[0].evidence) == 1
    assert QUICK["idleAfter"] == POLICY.idle_after
