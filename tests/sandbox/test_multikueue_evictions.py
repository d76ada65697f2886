"""How the embedded MultiKueue ends what runs on a worker: evictions there and here, a MultiKueueConfig that shrinks.

The facts are those of a real hub with two workers. What they rest on: with an external dispatcher a Workload that is
evicted on the hub keeps its quota until somebody nominates a cluster. Its copy then brings the news that nothing runs.
"""

from datetime import timedelta

import pytest
from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS
from scaler_sandbox.multikueue import Dispatcher, HubConfig, Remedy
from sim.multikueue_clusters import ALL_AT_ONCE, EXTERNAL, STEP, DispatchedClusters, running_on_w1, started, submitted

from scaler.kube.objects.resources import CLUSTER_QUEUE

BOTH = pytest.mark.parametrize("config", [ALL_AT_ONCE, EXTERNAL], ids=["all-at-once", "external"])
STUCK = "reserved admitted evicted"
"""What an evicted Workload says that has its quota no more, while the hub's Job counts pods that nobody runs."""


async def seconds_until(clusters: DispatchedClusters, wanted: str, *, within: float = 20.0) -> float:
    """How long the Workload of the gang took to be in that state."""
    for step in range(round(within / STEP.total_seconds())):
        if clusters.state("gang") == wanted:
            return step * STEP.total_seconds()
        await clusters.passes(STEP.total_seconds())
    raise AssertionError(f"after {within} s: {clusters.state('gang')}")


def is_stuck(clusters: DispatchedClusters) -> bool:
    return clusters.state("gang").startswith(STUCK) and clusters.active_pods("gang") == 4


# ----------------------------------------------------------------------------------------------- deactivated on the hub


@BOTH
async def test_deactivated_on_the_hub_the_remote_job_is_deleted_at_once(config: HubConfig) -> None:
    clusters = await running_on_w1(config)
    clusters.set_active("gang", False)
    await clusters.passes(0.1)
    assert clusters.workers["w1"].job("gang") is None
    assert (clusters.cluster_of("gang"), clusters.entry("gang")["state"]) == ("", "Pending")
    hub = clusters.hub.job("gang")
    assert hub is not None
    assert hub["spec"]["suspend"]


@BOTH
async def test_deactivated_on_the_hub_its_quota_is_free_there_after_a_second(config: HubConfig) -> None:
    clusters = await running_on_w1(config)
    clusters.submit("competitor", pods=98)
    await clusters.passes(3)
    assert not clusters.hub.has("competitor", "QuotaReserved")
    clusters.set_active("gang", False)
    await clusters.passes(1.2)
    assert clusters.hub.has("competitor", "QuotaReserved")


async def test_all_at_once_takes_the_quota_of_a_deactivated_one_off_the_books_after_two_seconds() -> None:
    clusters = await running_on_w1(ALL_AT_ONCE)
    clusters.set_active("gang", False)
    assert await seconds_until(clusters, "evicted/Deactivated") == pytest.approx(2.1)
    await clusters.passes(1)
    assert clusters.holders("gang") == [], "the inactive copies go"
    clusters.set_active("gang", True)
    await clusters.passes(2.3)
    assert clusters.runners("gang") != []


async def test_with_an_external_dispatcher_that_never_happens_unless_it_nominates() -> None:
    clusters = await running_on_w1()
    clusters.set_active("gang", False)
    await clusters.passes(45)
    assert is_stuck(clusters)
    assert (clusters.nominated("gang"), clusters.holders("gang")) == ([], [])
    clusters.set_active("gang", True)
    await clusters.passes(10)
    assert is_stuck(clusters), "activation alone changes nothing"
    clusters.nominate("gang", "w1")
    assert await seconds_until(clusters, "reserved admitted") == pytest.approx(4.1, abs=1)
    assert clusters.runners("gang") == ["w1"]


async def test_an_inactive_one_that_is_nominated_comes_clean_and_takes_no_quota() -> None:
    clusters = await running_on_w1()
    clusters.set_active("gang", False)
    await clusters.passes(5)
    clusters.nominate("gang", "w2")
    await clusters.passes(1)
    assert not clusters.workers["w2"].has("gang", "QuotaReserved")
    await clusters.passes(1.5)
    assert clusters.state("gang") == "evicted/Deactivated"
    assert (clusters.holders("gang"), clusters.nominated("gang")) == ([], ["w2"])
    clusters.set_active("gang", True)
    await clusters.passes(3)
    assert clusters.runners("gang") == ["w2"], "the nomination stays, and serves then"


async def test_off_and_on_is_clean_while_it_waits() -> None:
    clusters = await submitted({"w1": 0})
    clusters.nominate("gang", "w1")
    await clusters.passes(1)
    clusters.set_active("gang", False)
    await clusters.passes(0.5)
    assert (clusters.state("gang"), clusters.holders("gang")) == ("evicted/Deactivated", [])
    clusters.set_active("gang", True)
    await clusters.passes(1.5)
    assert clusters.state("gang") == "reserved"


# ------------------------------------------------------------------------------------------------ evicted on the worker


@BOTH
async def test_deactivated_on_the_worker_it_is_evicted_on_the_hub_and_its_copy_is_removed(config: HubConfig) -> None:
    clusters = await running_on_w1(config)
    clusters.set_active("gang", False, at="w1")
    await clusters.passes(1.1)
    assert clusters.state("gang") == f"{STUCK}/AdmissionCheck"
    assert clusters.entry("gang")["retryCount"] == 1
    assert clusters.workers["w1"].job("gang") is None


async def test_all_at_once_runs_it_again_where_it_was_deactivated() -> None:
    clusters = await running_on_w1(ALL_AT_ONCE)
    clusters.set_active("gang", False, at="w1")
    await clusters.passes(9)
    assert clusters.runners("gang") == ["w1"], "for nothing: the hub undoes what is done to a copy"


async def test_with_an_external_dispatcher_it_is_stuck_until_it_is_nominated_again() -> None:
    clusters = await running_on_w1()
    clusters.set_active("gang", False, at="w1")
    await clusters.passes(25)
    assert is_stuck(clusters)
    clusters.nominate("gang", "w2")
    await clusters.passes(1.5)
    assert clusters.workers["w2"].has("gang", "QuotaReserved"), "a first copy holds quota there in vain"
    await clusters.passes(3)
    assert (clusters.runners("gang"), clusters.state("gang")) == (["w2"], "reserved admitted")


@BOTH
async def test_a_pending_copy_that_is_deactivated_is_made_anew(config: HubConfig) -> None:
    clusters = await submitted({"w1": 0, "w2": 0}, config)
    if config is EXTERNAL:
        clusters.nominate("gang", "w1")
    await clusters.passes(1)
    before = clusters.workers["w1"].existing("gang")["metadata"]["uid"]
    clusters.set_active("gang", False, at="w1")
    await clusters.passes(1.5)
    after = clusters.workers["w1"].existing("gang")
    assert after["metadata"]["uid"] != before
    assert after["spec"]["active"]


async def preempted_on_w1(config: HubConfig) -> DispatchedClusters:
    clusters = await running_on_w1(config)
    worker = clusters.workers["w1"].client
    worker.change(CLUSTER_QUEUE, "", "cq", {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})
    worker.add(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
    clusters.submit("local", at="w1", labels={"kueue.x-k8s.io/priority-class": "high"})
    return clusters


async def test_preempted_on_the_worker_it_comes_clean_by_itself_and_waits_for_a_nomination() -> None:
    clusters = await preempted_on_w1(EXTERNAL)
    await clusters.passes(5)
    assert (clusters.state("gang"), clusters.holders("gang")) == ("reserved", [])
    assert clusters.entry("gang")["retryCount"] == 1
    assert not clusters.nominated("gang")
    clusters.nominate("gang", "w2")
    await clusters.passes(2)
    assert clusters.runners("gang") == ["w2"]


async def test_preempted_on_the_worker_all_at_once_sends_it_elsewhere() -> None:
    clusters = await preempted_on_w1(ALL_AT_ONCE)
    await clusters.passes(8)
    assert clusters.runners("gang") == ["w2"]
    assert clusters.workers["w1"].runs("local")


@pytest.mark.parametrize(("remedy", "left"), [(Remedy.POLICY, []), (Remedy.GATE, None), (Remedy.NONE, ["w1"])])
async def test_preempted_on_the_hub_while_it_waits_nominations_go_as_the_remedy_has_it(
    remedy: Remedy, left: list[str] | None
) -> None:
    config = HubConfig(dispatcher=Dispatcher.EXTERNAL, remedy=remedy)
    clusters = await started({"w1": 0}, config, hub=4)
    hub = clusters.hub.client
    hub.change(CLUSTER_QUEUE, "", "cq", {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})
    hub.add(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
    clusters.submit("gang")
    await clusters.passes(1)
    clusters.nominate("gang", "w1")
    await clusters.passes(1)
    clusters.submit("competitor", labels={"kueue.x-k8s.io/priority-class": "high"})
    await clusters.passes(3)
    assert not has(clusters.on_hub("gang"), "QuotaReserved")
    assert (clusters.nominated("gang"), clusters.holders("gang")) == (left, [])


# ------------------------------------------------------------------------------------------------ a config that shrinks


@BOTH
async def test_a_config_that_shrinks_evicts_on_the_hub_and_leaves_the_job_running(config: HubConfig) -> None:
    clusters = await running_on_w1(config)
    clusters.configure("w2")
    await clusters.passes(1.1)
    assert clusters.state("gang") == f"{STUCK}/AdmissionCheck"
    assert clusters.runners("gang") == ["w1"]


@BOTH
async def test_it_then_runs_on_two_clusters(config: HubConfig) -> None:
    clusters = await running_on_w1(config)
    clusters.configure("w2")
    await clusters.passes(1.5)
    if config is EXTERNAL:
        await clusters.passes(30)
        assert is_stuck(clusters)
        clusters.nominate("gang", "w2")
    await clusters.passes(8)
    assert clusters.runners("gang") == ["w1", "w2"]
    await clusters.passes(100)
    assert clusters.runners("gang") == ["w1", "w2"], "as long as the hub's Workload lives"
    clusters.delete_job("gang")
    await clusters.passes(3)
    assert clusters.runners("gang") == ["w1"]
    await clusters.passes(60)
    assert clusters.runners("gang") == [], "collected"


async def test_a_cluster_that_comes_back_with_the_older_admission_takes_the_job_back() -> None:
    clusters = await running_on_w1(ALL_AT_ONCE)
    clusters.configure("w2")
    await clusters.passes(10)
    clusters.configure("w1", "w2")
    await clusters.passes(3)
    assert clusters.runners("gang") == ["w1"]
    assert clusters.cluster_of("gang") == "w2", "and the hub says otherwise"


async def test_a_config_that_shrinks_and_grows_within_a_second_changes_nothing() -> None:
    clusters = await running_on_w1(ALL_AT_ONCE)
    clusters.configure("w2")
    await clusters.passes(0.3)
    clusters.configure("w1", "w2")
    await clusters.passes(10)
    assert (clusters.state("gang"), clusters.runners("gang")) == ("reserved admitted", ["w1"])


async def test_a_waiting_copy_on_a_cluster_that_left_the_config_becomes_a_phantom() -> None:
    clusters = await started({"w1": 4, "w2": 0}, ALL_AT_ONCE)
    clusters.submit("local", at="w1")
    await clusters.passes(1)
    clusters.submit("gang")
    await clusters.passes(1)
    clusters.configure("w2")
    await clusters.passes(2)
    assert (clusters.nominated("gang"), clusters.holders("gang")) == (["w2"], ["w1", "w2"])
    clusters.delete_job("local", at="w1")
    await clusters.passes(30)
    phantom = clusters.workers["w1"].existing("gang")
    assert has(phantom, "Admitted")
    assert "ownerReferences" not in phantom["metadata"]


async def test_a_cluster_that_joins_gets_copies_of_what_waits() -> None:
    clusters = await started({"w1": 0, "w2": 4}, ALL_AT_ONCE)
    clusters.configure("w1")
    clusters.submit("gang")
    await clusters.passes(2)
    assert clusters.holders("gang") == ["w1"]
    clusters.configure("w1", "w2")
    await clusters.passes(0.5)
    assert clusters.holders("gang") == ["w1"]
    await clusters.passes(2.5)
    assert clusters.runners("gang") == ["w2"]


async def test_a_worker_that_was_lost_takes_the_job_when_it_has_admitted_its_copy_before() -> None:
    """What was nominated and then lost may admit its copy meanwhile, without a Job: the older admission wins."""
    clusters = await started({"w1": 4, "w2": 4})
    clusters.submit("local", at="w1")
    await clusters.passes(1)
    clusters.submit("gang")
    await clusters.passes(1)
    clusters.nominate("gang", "w1")
    await clusters.passes(1)
    clusters.links.lost["w1"] = "connection refused"
    clusters.delete_job("local", at="w1")
    await clusters.passes(3)
    clusters.nominate("gang", "w2")
    await clusters.passes(3)
    assert clusters.runners("gang") == ["w2"]
    del clusters.links.lost["w1"]
    await clusters.passes(4)
    assert clusters.runners("gang") == ["w1"]
    assert clusters.cluster_of("gang") == "w2", "it cannot be changed any more"


# ----------------------------------------------------------------------------------------------------------- in general


@BOTH
@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.6, 1.1, 1.6, 2.2, 3.4])
async def test_kueue_on_the_hub_may_stop_at_any_moment_of_a_return(config: HubConfig, seconds: float) -> None:
    clusters = await running_on_w1(config)
    clusters.set_active("gang", False, at="w1")
    await clusters.passes(1.5)
    if config is EXTERNAL:
        clusters.nominate("gang", "w2")
    await clusters.passes(seconds)
    clusters.start_dispatching()
    clusters.hub.start_controllers()
    await clusters.passes(timedelta(seconds=12).total_seconds())
    assert (len(clusters.runners("gang")), clusters.state("gang")) == (1, "reserved admitted")
