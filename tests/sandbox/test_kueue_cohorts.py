"""Teams in a cohort: who may use whose quota, who gets it back, and what the statuses say. The embedded Kueue."""

from datetime import timedelta

import pytest
from scaler_sandbox.actions import Action
from scaler_sandbox.conditions import message_of
from scaler_sandbox.kinds import CLUSTER_QUEUE, COHORT, JOB, LOCAL_QUEUE, NAMESPACE, RESOURCE_FLAVOR, WORKLOAD
from scaler_sandbox.kueue import KueueConfig
from sim.client import states_of
from sim.kueue_cluster import GPU, LOWER_FIRST, RECLAIM_ANY, Teams, flavor_quota, job, team, template

FAIR = KueueConfig(fair_sharing=True)


async def test_a_team_borrows_what_the_other_leaves_unused() -> None:
    world = Teams(team("a"), team("b"))
    await world.start("wide", "a", 6)
    assert world.admitted == {"wide"}  # 6 of 4 + 4


async def test_limits_on_borrowing_and_lending_hold() -> None:
    # a may use 4 + 1; b lends 1 of its 4, so c (0 of its own) may use 4 - 4 + 1 = 1 while a uses its 4.
    world = Teams(
        team("a", flavors=[flavor_quota("flavor", 4, borrowingLimit=1)]),
        team("b", flavors=[flavor_quota("flavor", 4, lendingLimit=1)]),
        team("c", 0),
    )
    await world.start("a-six", "a", 6)
    assert "QuotaReserved=False/ExceedsMaxQuota" in world.state("a-six")
    await world.start("a-four", "a", 4)
    await world.start("c-two", "c", 2)
    await world.start("c-one", "c", 1)
    await world.start("b-four", "b", 4)
    assert world.admitted == {"a-four", "c-one"}
    assert world.why_waiting("b-four").endswith(
        "insufficient unused quota for nvidia.com/gpu in flavor flavor, 1 more needed"
    )


async def test_cohorts_above_cohorts_share_quota_of_their_own() -> None:
    roots = tuple(
        {"metadata": {"name": name}, "spec": spec}
        for name, spec in {
            "root": {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor_quota("flavor", 3)]}]},
            "left": {"parentName": "root"},
            "right": {"parentName": "root"},
        }.items()
    )
    world = Teams(team("a", 1, cohort="left"), team("b", 1, cohort="right"), cohorts=roots)
    await world.start("all", "a", 5)  # 1 + 3 + 1
    assert world.admitted == {"all"}
    world.client.change(COHORT, "", "left", {"spec": {"parentName": "elsewhere"}})
    await world.start("more", "b", 4)  # 1 + 3, now that a is in another tree
    assert world.admitted == {"all", "more"}


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


async def test_without_a_policy_nothing_is_taken_back() -> None:
    world = Teams(team("a"), team("b"))
    await world.start("borrower", "b", 6)
    await world.start("owner", "a", 4)
    assert world.admitted == {"borrower"}
    assert world.why_waiting("owner").endswith("2 more needed")


async def test_a_strict_head_blocks_its_own_queue_and_not_what_others_own() -> None:
    world = Teams(team("a", queueingStrategy="StrictFIFO"), team("b", 3))
    await world.start("runs", "b", 2)
    await world.start("runs-too", "a", 1)
    await world.start("head", "a", 5)  # 7 - 3 = 4 are free
    await world.start("behind", "a", 1)
    await world.start("neighbour", "b", 1)
    assert world.admitted == {"runs", "runs-too", "neighbour"}
    assert world.state("behind") == ("active",)


async def test_quota_is_kept_for_a_strict_head_that_cannot_reclaim_it() -> None:
    # The head wants the 4 GPUs that a owns; one is lent, 3 are free. Nobody may borrow these meanwhile.
    world = Teams(team("a", queueingStrategy="StrictFIFO"), team("b", 2))
    await world.start("borrower", "b", 3)
    await world.start("head", "a", 4)
    await world.start("neighbour", "b", 1)
    assert world.admitted == {"borrower"}
    assert world.why_waiting("neighbour") == "Workload no longer fits after processing another workload"


async def test_freed_quota_goes_to_a_late_comer_of_another_team_before_the_retry() -> None:
    world = Teams(team("a"), team("b"))
    await world.start("victim", "a", 8)
    await world.start("gang", "a", 6)
    await world.settle(5)
    await world.set_active("victim", False)
    await world.settle(0.3)
    await world.submit(job("thief", pods=3, queue="b"))
    assert world.admitted == {"thief"}
    await world.settle(1)
    assert world.admitted == {"thief"}
    assert world.why_waiting("gang").endswith("1 more needed")  # 6 - (8 - 3)


async def test_a_late_comer_of_the_same_shape_does_not_overtake_those_it_equals() -> None:
    world = Teams(team("a", 2))
    await world.start("victim", "a", 2)
    await world.start("first", "a", 2)
    await world.settle(5)
    await world.set_active("victim", False)
    await world.start("second", "a", 2)
    await world.settle(1)
    assert world.admitted == {"first"}


async def test_a_retry_reaches_the_whole_tree_and_no_other() -> None:
    world = Teams(team("a"), team("b"), team("alone", 1, cohort=""))
    await world.start("victim", "a", 8)
    await world.start("single", "alone", 1)
    await world.start("waits", "b", 4)
    await world.start("waits-too", "alone", 1)
    await world.set_active("victim", False)
    await world.settle(1)
    assert world.admitted == {"single", "waits"}


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


# ------------------------------------------------------------------------------------------------------- fair sharing


async def test_with_fair_sharing_the_richest_gives_until_shares_are_equal() -> None:
    # c lends 8 GPUs; b uses all of them in four Workloads of 2. a wants 2 + 2 + 2 and gets 4: then 4:4.
    world = Teams(team("a", 0, preemption=RECLAIM_ANY), team("b", 0, preemption=RECLAIM_ANY), team("c", 8), config=FAIR)
    for number in range(4):
        await world.start(f"b{number}", "b", 2)
    for number in range(3):
        await world.start(f"a{number}", "a", 2)
        await world.run(1)
    assert world.admitted == {"b0", "b1", "a0", "a1"}
    assert world.why_preempted("b3") == "InCohortFairSharing"
    assert world.why_preempted("b2") == "InCohortFairSharing"


# ------------------------------------------------------------------------------------------------ flavors and messages


async def test_flavors_are_tried_in_order_and_every_lack_is_told() -> None:
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
async def test_a_drained_queue_lets_go_and_takes_back_when_it_runs_again(
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


async def test_more_quota_lets_those_in_that_were_set_aside_a_second_later() -> None:
    world = Teams(team("a", 2, cohort=""))
    await world.start("gang", "a", 4)
    offered = [{"coveredResources": [GPU], "flavors": [flavor_quota("flavor", 4)]}]
    world.client.change(CLUSTER_QUEUE, "", "a", {"spec": {"resourceGroups": offered}})
    await world.settle()
    await world.settle(0.9)
    assert world.admitted == set()
    await world.settle(0.1)
    assert world.admitted == {"gang"}


async def test_what_cannot_be_read_keeps_nobody_else_from_being_admitted() -> None:
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


async def test_after_a_restart_everybody_is_looked_at_again_at_once() -> None:
    world = Teams(team("a"), team("b", preemption=LOWER_FIRST))
    await world.start("victim", "a", 8)
    await world.start("gang", "a", 6)
    await world.settle(5)
    await world.set_active("victim", False)
    world.start_controllers()
    await world.settle()
    assert world.admitted == {"gang"}
