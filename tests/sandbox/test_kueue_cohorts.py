"""Teams in a cohort: who may use whose quota, who gets it back, and what the statuses say. The embedded Kueue."""

from datetime import timedelta

import pytest
from scaler_sandbox.actions import Action
from scaler_sandbox.conditions import message_of
from scaler_sandbox.kueue import KueueConfig
from sim.client import states_of
from sim.kueue_cluster import GPU, LOWER_FIRST, RECLAIM_ANY, Teams, flavor_quota, job, team, template

from scaler.kube.objects.resources import CLUSTER_QUEUE, JOB, LOCAL_QUEUE, NAMESPACE, RESOURCE_FLAVOR, WORKLOAD


async def test_a_team_takes_back_its_quota_and_the_borrower_comes_back_later() -> None:
    world = Teams(team("a", preemption=RECLAIM_ANY), team("b"))
    await world.start("old", "b", 4)
    await world.start("borrower", "b", 2)
    await world.start("owner", "a", 4)  # 8 - 6 = 2 are free
    assert "Evicted=True/Preempted" in world.state("borrower")
    assert world.why_preempted("borrower") == "InCohortReclamation"
    assert world.admitted == {"old", "owner"}
    assert world.evicted_message("borrower").endswith(
        "due to reclamation within the cohort; preemptor path: /all/a; preemptee path: /all/b"
    )
    assert world.job("borrower")["spec"]["suspend"] is True
    await world.set_active("owner", False)
    await world.run(1)
    assert world.admitted == {"old", "borrower"}
    assert "Evicted=False/QuotaReserved" in world.state("borrower")
    assert message_of(world.workload("borrower"), "Preempted").startswith("Previously: Preempted to accommodate")


async def test_one_that_is_deactivated_while_a_cycle_is_written_is_not_admitted() -> None:
    world = Teams(team("a"), team("b"))
    await world.start("victim", "a", 8)
    await world.start("first", "a", 4)
    await world.start("second", "b", 4)
    name = world.workload("second")["metadata"]["name"]

    def deactivate_second(action: Action) -> None:
        if any(note.reason == "Admitted" for note in action.notes):
            world.client.meddle = lambda _: None
            world.client.change(WORKLOAD, "ns", name, {"spec": {"active": False}})

    world.client.meddle = deactivate_second
    await world.set_active("victim", False)
    await world.settle(1)
    assert world.admitted == {"first"}
    assert not any("QuotaReserved=True/QuotaReserved" in state for state in states_of(world.client.history, name))


# ------------------------------------------------------------------------------------------------ flavors and messages


async def test_flavors_are_tried_in_order_and_the_message_has_what_each_lacks() -> None:
    offered = [flavor_quota("a100", 2), flavor_quota("h100", 4)]
    world = Teams(team("a", flavors=offered, cohort=""))
    world.add_flavor("a100")
    world.add_flavor("h100")
    await world.start("one", "a", 2)
    await world.start("two", "a", 3)
    assert (world.flavors_of("one"), world.flavors_of("two")) == (["a100"], ["h100"])
    await world.start("three", "a", 3)
    assert world.why_waiting("three") == (
        "couldn't assign flavors to pod set main: "
        "insufficient quota for nvidia.com/gpu in flavor a100, previously considered podsets requests (0) + current "
        "podset request (3) > maximum capacity (2), "
        "insufficient unused quota for nvidia.com/gpu in flavor h100, 2 more needed"
    )
    assert "QuotaReserved=False/WaitingForQuota" in world.state("three")


async def test_a_flavor_that_the_pods_may_not_use_is_refused_in_kueues_words() -> None:
    world = Teams(team("a", flavors=[flavor_quota("spot", 4), flavor_quota("zone", 4)], cohort=""))
    world.add_flavor("spot", nodeTaints=[{"key": "spot", "value": "yes", "effect": "NoSchedule"}])
    world.add_flavor("zone", nodeLabels={"zone": "a"})
    body = template()
    body["spec"]["nodeSelector"] = {"zone": "b"}
    await world.submit(job("picky", queue="a", template=body))
    assert "QuotaReserved=False/NoMatchingFlavor" in world.state("picky")
    assert world.why_waiting("picky") == (
        "couldn't assign flavors to pod set main: flavor zone doesn't match node affinity, "
        "untolerated taint {spot yes NoSchedule <nil>} in flavor spot"
    )


async def test_a_resource_without_quota_fits_nowhere_unless_it_is_ignored() -> None:
    strict, lax = (Teams(team("a"), config=KueueConfig(ignore_undeclared=each)) for each in (False, True))
    for world in (strict, lax):
        await world.start("needs-cpu", "a", 1)
    assert lax.admitted == {"needs-cpu"}
    assert strict.why_waiting("needs-cpu") == (
        "couldn't assign flavors to pod set main: resource cpu unavailable in ClusterQueue"
    )


async def test_what_was_counted_is_shown_while_a_workload_waits() -> None:
    world = Teams(team("a", 1, cohort=""))
    await world.start("holder", "a", 1)
    await world.start("waits", "a", 1)
    assert world.workload("waits")["status"]["resourceRequests"] == [
        {"name": "main", "resources": {"cpu": "500m", GPU: "1"}}
    ]
    await world.set_active("holder", False)
    await world.settle(1)
    assert "resourceRequests" not in world.workload("waits")["status"]


# ------------------------------------------------------------------------------------------------------ stopped queues


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "evicted", "restarted"),
    [
        (LOCAL_QUEUE, "ns", "a", "LocalQueueStopped", "LocalQueueRestarted"),
        (CLUSTER_QUEUE, "", "a", "ClusterQueueStopped", "ClusterQueueRestarted"),
    ],
)
async def test_a_drained_queue_evicts_and_requeues_once_it_runs_again(
    resource: object, namespace: str, name: str, evicted: str, restarted: str
) -> None:
    world = Teams(team("a", 2), team("b", 0))
    await world.start("runs", "a", 2)
    world.client.change(resource, namespace, name, {"spec": {"stopPolicy": "HoldAndDrain"}})  # type: ignore[arg-type]
    await world.run()
    assert f"Evicted=True/{evicted}" in world.state("runs")
    assert f"Requeued=False/{evicted}" in world.state("runs")
    assert "QuotaReserved=False/Suspended" in world.state("runs")
    assert world.job("runs")["spec"]["suspend"] is True
    world.client.change(resource, namespace, name, {"spec": {"stopPolicy": "None"}})  # type: ignore[arg-type]
    await world.run(1)
    assert world.admitted == {"runs"}
    assert f"Requeued=True/{restarted}" in world.state("runs")


async def test_a_queue_on_hold_keeps_what_runs_and_admits_nothing_new() -> None:
    world = Teams(team("a", 2), team("b", 0))
    await world.start("runs", "a", 1)
    world.client.change(CLUSTER_QUEUE, "", "a", {"spec": {"stopPolicy": "Hold"}})
    await world.start("new", "a", 1)
    await world.start("borrower", "b", 1)
    assert world.admitted == {"runs", "borrower"}  # quota of a stopped queue can still be borrowed
    world.client.change(CLUSTER_QUEUE, "", "a", {"spec": {"stopPolicy": "None"}})
    await world.set_active("borrower", False)
    await world.run(1)
    assert world.admitted == {"runs", "new"}


async def test_a_namespace_that_is_labelled_later_is_admitted_then() -> None:
    world = Teams(team("a", 2, namespaceSelector={"matchLabels": {"team": "ml"}}))
    await world.start("gang", "a", 1)
    assert world.why_waiting("gang") == "Workload namespace doesn't match ClusterQueue selector"
    world.client.change(NAMESPACE, "", "ns", {"metadata": {"labels": {"team": "ml"}}})
    await world.settle()
    await world.settle(1)
    assert world.admitted == {"gang"}


async def test_an_object_that_cannot_be_read_affects_no_other() -> None:
    world = Teams(team("a", 2), team("broken", 2, cohort=""))
    body = {"spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": "none"}]}}
    world.client.change(CLUSTER_QUEUE, "", "broken", body)
    await world.start("gang", "a", 2)
    assert world.admitted == {"gang"}
    world.client.remove(RESOURCE_FLAVOR, "", "flavor")
    world.client.remove(JOB, "ns", "gang")
    world.client.now += timedelta(seconds=2)
    await world.settle()
    assert world.queue("a")["conditions"][0]["reason"] == "FlavorNotFound"


async def test_after_a_restart_pending_workloads_are_tried_at_once() -> None:
    world = Teams(team("a"), team("b", preemption=LOWER_FIRST))
    await world.start("victim", "a", 8)
    await world.start("gang", "a", 6)
    await world.settle(5)
    await world.set_active("victim", False)
    world.start_controllers()
    await world.settle()
    assert world.admitted == {"gang"}
