"""Every line of the gate's table and of the promises', played in the embedded cluster in virtual time.

A line that the documentation gets and no scenario has, or the other way round, fails the tests.

| what has to be shown                                    | where it is played                                 |
|--------------------------------------------------------|----------------------------------------------------|
| every line of the tables of check.py, reservations.py  | here                                               |
| every line of the table of provisioning/lifecycle.py   | test_scenarios_requests                            |
| victims that end after 90 s, a partial fit, preempted  | test_admission_controller                          |
| of two gangs one starts whole while the other waits    | test_admission_controller, test_scenarios_requests |
| failed, expired, revoked, deleted requests; limits     | test_scenarios_requests                            |
| capacity that gets free while a request runs           | test_scenarios_requests                            |
| evicted, finished, deleted, deactivated, at each state | test_scenarios_endings                             |
| a process that dies after any of its writes            | test_scenarios_restarts                            |
| parameters, onFlavors, Kueue's own check, MultiKueue   | test_scenarios_checks                              |
| Events                                                 | test_scenarios_events                              |
| the same over HTTP and in real time                    | test_admission_sandbox                             |
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from decision.documented import rows
from scaler_sandbox.conditions import make, with_conditions
from scaler_sandbox.kinds import Json
from sim.cluster import CHECK, SimCluster
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

from scaler.admission import check
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    LOCAL_QUEUE,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    WORKLOAD,
)
from scaler.placement import reservations
from scaler.placement.requests import Blocked, PlacementResult

Row = tuple[str, str, str]
Story = Callable[[], Awaitable[ProvisioningCluster]]
"""Leads to the moment at which the gate looks at `gang`, which nobody has looked at before."""
STORIES: dict[Row, dict[str, Story]] = {}


def of(*row: str) -> Callable[[Story], Story]:
    """The story is one of that line of the table."""

    def add(story: Story) -> Story:
        STORIES.setdefault((row[0], row[1], row[2]), {})[story.__name__] = story
        return story

    return add


# ---------------------------------------------------------------------------------------------- the table of the gate


async def waiting(nodes: Mapping[str, int], *, pods: int = 1, **town: Any) -> ProvisioningCluster:
    """A gang that has its quota and an entry, of which nothing was said yet."""
    made = ProvisioningCluster(nodes, scenarios=NOBODY, **town)
    made.add_check("foreign", "example.com/other")
    await made.passes(1)
    made.submit("gang", pods=pods, gpus=8)
    await made.passes(1, gate=False)
    return made


async def running(**town: Any) -> ProvisioningCluster:
    made = ProvisioningCluster({"a": 8}, scenarios=NOBODY, **town)
    made.submit("gang", gpus=8)
    await made.passes(2)
    assert made.is_running("gang")
    return made


def set_entry(town: SimCluster, **fields: Any) -> None:
    workload = town.workload("gang")
    entries = [{**each, **fields} if each["name"] == CHECK else each for each in workload["status"]["admissionChecks"]]
    town.change(WORKLOAD, workload["metadata"]["name"], {"status": {"admissionChecks": entries}}, "status")


def set_condition(town: SimCluster, kind: str, reason: str) -> None:
    workload = town.workload("gang")
    conditions = with_conditions(workload["status"]["conditions"], make(kind, "True", reason, "", now=town.client.now))
    town.change(WORKLOAD, workload["metadata"]["name"], {"status": {"conditions": conditions}}, "status")


NOTHING_DUE = ("finished, deactivated, evicted, without quota", "any", "–")


@of(*NOTHING_DUE)
async def finished_before_it_was_let_go() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    set_condition(town, "Finished", "Succeeded")
    return town


@of(*NOTHING_DUE)
async def finished_after_it_has_run() -> ProvisioningCluster:
    town = await running()
    town.finish("gang")
    await town.passes(1, gate=False)
    assert town.is_done("gang")
    return town


@of(*NOTHING_DUE)
async def deactivated_before_it_was_let_go() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    town.change(WORKLOAD, town.workload("gang")["metadata"]["name"], {"spec": {"active": False}})
    return town


@of(*NOTHING_DUE)
async def deactivated_while_its_pods_end() -> ProvisioningCluster:
    town = await running()
    town.termination["gang"] = 30.0
    town.change(WORKLOAD, town.workload("gang")["metadata"]["name"], {"spec": {"active": False}})
    await town.passes(1, gate=False)
    assert town.entry("gang")["state"] == "Pending"
    return town


@of(*NOTHING_DUE)
async def evicted_before_it_was_let_go() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    set_condition(town, "Evicted", "Preempted")
    assert town.holds_quota("gang")
    return town


@of(*NOTHING_DUE)
async def evicted_while_its_queue_is_drained() -> ProvisioningCluster:
    town = await running()
    town.change(LOCAL_QUEUE, "lq", {"spec": {"stopPolicy": "HoldAndDrain"}})
    await town.passes(3, gate=False)
    assert not town.holds_quota("gang")
    return town


@of(*NOTHING_DUE)
async def without_quota() -> ProvisioningCluster:
    town = await waiting({"a": 8}, quota=4)
    assert town.entry("gang")["state"] == "Pending"
    return town


@of("with quota", "none", "–")
async def its_entry_is_not_there_yet() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    name = town.workload("gang")["metadata"]["name"]
    town.change(WORKLOAD, name, {"status": {"admissionChecks": None}}, "status")
    return town


@of("with quota", "Retry, Rejected", "Kueue acts on it")
async def somebody_has_said_retry() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    set_entry(town, state="Retry", message="somebody")
    return town


@of("with quota", "Retry, Rejected", "Kueue acts on it")
async def somebody_has_rejected_it() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    set_entry(town, state="Rejected", message="somebody")
    return town


@of("with quota", "Pending", "another check: Retry or Rejected")
async def another_check_waits_a_while_before_it_sends_it_back() -> ProvisioningCluster:
    """It keeps its quota for a minute, and could have places: they would be kept for nothing."""
    town = await waiting({"a": 8}, checks=(CHECK, "foreign"))
    return await sent_back(town)


async def sent_back(town: ProvisioningCluster) -> ProvisioningCluster:
    workload = town.workload("gang")
    retry = {"state": "Retry", "message": "failed", "requeueAfterSeconds": 60}
    entries = [each if each["name"] == CHECK else {**each, **retry} for each in workload["status"]["admissionChecks"]]
    town.change(WORKLOAD, workload["metadata"]["name"], {"status": {"admissionChecks": entries}}, "status")
    return town


@of("with quota", "Ready", "its nodes are revoked")
async def its_capacity_is_revoked() -> ProvisioningCluster:
    town = await waiting({"a": 8}, pods=2)
    await town.passes(1)
    town.answer(town.newest("gang"), "Provisioned")
    town.add_node("b", 8)
    await town.passes(2)
    assert town.is_running("gang")
    town.answer(town.newest("gang"), "CapacityRevoked", "spot")
    return town


@of("with quota", "Ready", "–")
async def it_runs() -> ProvisioningCluster:
    return await running()


@of("with quota", "Ready", "–")
async def it_waits_for_the_check_of_another() -> ProvisioningCluster:
    """Meanwhile the nodes are gone and nobody can follow the policy: what was said stays said."""
    town = ProvisioningCluster({"a": 8}, checks=(CHECK, "foreign"))
    town.add_check("foreign", "example.com/other")
    town.submit("gang", gpus=8)
    await town.passes(2)
    assert town.entry("gang")["state"] == "Ready"
    town.fleet.remove("a")
    town.client.remove(RECLAIM_POLICY, "", "policy")
    await town.passes(1, gate=False)
    assert not town.is_admitted("gang")
    return town


@of("admitted", "Pending", "–")
async def the_check_was_added_while_it_ran() -> ProvisioningCluster:
    town = ProvisioningCluster({"a": 8}, checks=())
    town.submit("gang", gpus=8)
    await town.passes(2)
    assert town.is_running("gang")
    town.add(ADMISSION_CHECK, CHECK, spec=_check_spec())
    town.change(CLUSTER_QUEUE, "cq", {"spec": town.queue_spec(1000)})
    town.blind = "nobody needs to see"
    await town.passes(1, gate=False)
    return town


def _check_spec() -> Json:
    parameters = {"apiGroup": "idlegpu.io", "kind": "ReclaimPolicy", "name": "policy"}
    return {"controllerName": "idlegpu.io/reclaim", "parameters": parameters}


@of("with quota", "Pending", "the policy cannot be used")
async def its_policy_is_gone() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    town.client.remove(RECLAIM_POLICY, "", "policy")
    return town


@of("with quota", "Pending", "the policy cannot be used")
async def its_policy_contradicts_itself() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    town.change(RECLAIM_POLICY, "policy", {"spec": {"requireFit": False, "pin": {"enabled": True}}})
    return town


@of("with quota", "Pending", "pods of its victims terminate")
async def its_victim_ends_slowly() -> ProvisioningCluster:
    """Although it would fit on node b: what was freed for it is waited for."""
    town = ProvisioningCluster({"a": 8, "b": 8}, quota=8, scenarios=NOBODY)
    town.termination["victim"] = 90.0
    town.submit("victim", gpus=8)
    await town.passes(2)
    town.submit("gang", gpus=8)
    await town.passes(1)
    town.deactivate("victim", for_gang="gang")
    await town.passes(5, gate=False)
    assert town.holds_quota("gang")
    return town


@of("with quota", "Pending", "it runs on another cluster")
async def multikueue_dispatches_it() -> ProvisioningCluster:
    town = ProvisioningCluster({}, checks=(CHECK, "multikueue"))
    town.add_check("multikueue", "kueue.x-k8s.io/multikueue")
    await town.passes(1)
    town.submit("gang", gpus=8)
    await town.passes(1, gate=False)
    return town


@of("with quota", "Pending", "it need not fit")
async def only_pods_are_waited_for() -> ProvisioningCluster:
    policy = {"requireFit": False, "provisioning": None, "reuse": {"enabled": False}}
    town = await waiting({}, policy=policy)
    town.blind = "nobody needs to see"
    return town


@of("with quota", "Pending", "node capacity is not known")
async def nodes_cannot_be_listed() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    town.blind = "not synced: Nodes (403)"
    return town


@of("with quota", "Pending", "node capacity is not known")
async def its_flavor_is_not_seen() -> ProvisioningCluster:
    town = await waiting({"a": 8})
    town.client.remove(RESOURCE_FLAVOR, "", "flavor")
    return town


@of("with quota", "Pending", "its places may be booked yet")
async def a_node_comes_while_its_request_is_open() -> ProvisioningCluster:
    """A minute after the node has come it is used as any other."""
    town = await waiting({"a": 8}, pods=2)
    await town.passes(31)  # by then a message is written anew although the gang waits for the same as before
    town.answer(town.newest("gang"), "Accepted")
    town.add_node("b", 8)
    await town.passes(59, gate=False)
    return town


@of("with quota", "Pending", "it has places for all of its pods")
async def a_node_has_come_and_its_request_does_not_book_it() -> ProvisioningCluster:
    town = await a_node_comes_while_its_request_is_open()
    await town.passes(1, gate=False)
    return town


@of("with quota", "Pending", "it has places for all of its pods")
async def a_node_comes_and_its_request_has_failed() -> ProvisioningCluster:
    town = await a_node_comes_while_its_request_is_open()
    town.answer(town.newest("gang"), "Failed", "no capacity")
    return town


@of("with quota", "Pending", "it has places for all of its pods")
async def it_fits() -> ProvisioningCluster:
    return await waiting({"a": 8, "b": 8}, pods=2)


@of("with quota", "Pending", "it is to yield, and may")
async def it_is_at_its_limit_and_another_waits_for_quota() -> ProvisioningCluster:
    town = await waiting({"a": 8}, pods=2, quota=16, provisioning={"retry": {"limit": 0}, "atLimit": "Yield"})
    await town.passes(1)
    town.answer(town.newest("gang"), "Failed", "no capacity", ago=3600.0)
    await town.passes(1)
    assert town.entry("gang")["state"] == "Pending", "nobody could use the quota"
    town.submit("other", gpus=8)
    await town.passes(2, gate=False)
    return town


@of("with quota", "Pending", "–")
async def it_fits_in_part_only() -> ProvisioningCluster:
    return await waiting({"a": 8, "b": 4}, pods=2)


DOCUMENTED = {tuple(row[:3]): row[3] for row in rows(check, "the Workload", "its entry")}


def test_every_line_of_the_gates_table_is_played() -> None:
    assert STORIES.keys() == DOCUMENTED.keys()


@pytest.mark.parametrize(
    ("row", "story"),
    [pytest.param(row, story, id=name) for row, stories in STORIES.items() for name, story in stories.items()],
)
async def test_the_gate_says_what_its_table_says(row: Row, story: Story) -> None:
    town = await story()
    before = len(town.api.patches)
    await look(town)
    assert said_of(town, before) == DOCUMENTED[row]
    await town.passes(3)
    assert town.half_started() == []


async def look(town: SimCluster) -> None:
    """Once, at what there is, and before Kueue does anything about it."""
    town.follow()
    await town.gate.tick(town.client.now)


def said_of(town: SimCluster, before: int) -> str:
    """What was first written to the entry of the gang; `nothing` where nothing was."""
    path = WORKLOAD.path("ns", town.workload("gang")["metadata"]["name"], "status")
    for written, body in town.api.patches[before:]:
        if written == path:
            return next(str(each["state"]) for each in body["status"]["admissionChecks"] if each["name"] == CHECK)
    return "nothing"


# ------------------------------------------------------------------------------------------- the table of the promises

PROMISES: dict[tuple[str, str], Callable[[], Awaitable[ProvisioningCluster]]] = {}


def promise_of(now: str, later: str) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        PROMISES[now, later] = story
        return story

    return add


@promise_of("for sure, and delays none before it", "–")
async def it_is_alone() -> ProvisioningCluster:
    return await waiting({"a": 8})


@promise_of("for sure, but delays one before it", "–")
async def its_pod_may_take_the_place_of_one_before_it() -> ProvisioningCluster:
    """Two nodes of 8, on one of which pods still end: the first gang keeps both. A pod of 4 has room on the third, but
    the scheduler may put it elsewhere."""
    town = ProvisioningCluster({"a": 8, "b": 8, "c": 4}, scenarios=NOBODY)
    town.termination["other"] = 60.0
    town.submit("other", gpus=8)
    await town.passes(2)
    town.submit("first", pods=2, gpus=8)
    await town.passes(1, gate=False)
    town.change(WORKLOAD, town.workload("other")["metadata"]["name"], {"spec": {"active": False}})
    await town.passes(1, gate=False)
    town.submit("gang", gpus=4)
    await town.passes(1, gate=False)
    return town


@promise_of("not for sure while pods of others are coming", "–")
async def a_pod_that_is_on_its_way_may_take_its_place() -> ProvisioningCluster:
    """8 and 1 free: the pod of 1 GPU that is on its way may go to either, and the gang needs all 8."""
    town = ProvisioningCluster({"a": 8, "b": 1}, scenarios=NOBODY)
    town.hold_pods()
    town.submit("single", gpus=1)
    await town.passes(2)
    assert town.is_admitted("single")
    town.submit("gang", gpus=8)
    await town.passes(1, gate=False)
    return town


@promise_of("not for sure, even alone", "–")
async def its_own_head_may_take_its_workers_place() -> ProvisioningCluster:
    """A head of 1 GPU and a worker of 4 on nodes with 4 and 1 free."""
    town = ProvisioningCluster({"a": 4, "b": 8}, scenarios=NOBODY)
    town.submit("filler", gpus=7)
    await town.passes(2)
    town.submit_ray("gang", head=1, workers=1, gpus=4)
    await town.passes(1, gate=False)
    return town


@promise_of("no", "fits")
async def pods_end_on_its_node() -> ProvisioningCluster:
    town = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    town.termination["other"] = 60.0
    town.submit("other", gpus=8)
    await town.passes(2)
    town.change(WORKLOAD, town.workload("other")["metadata"]["name"], {"spec": {"active": False}})
    await town.passes(1)
    town.submit("gang", gpus=8)
    await town.passes(1, gate=False)
    return town


@promise_of("no", "does not fit")
async def nothing_ends_and_nothing_is_free() -> ProvisioningCluster:
    return await waiting({"a": 4})


VERDICTS = {(now, later): (verdict, keeps) for now, later, verdict, keeps in rows(reservations, "fits now")}


def test_every_line_of_the_promises_table_is_played() -> None:
    assert PROMISES.keys() == VERDICTS.keys()


@pytest.mark.parametrize(("row", "story"), PROMISES.items(), ids=[each.__name__ for each in PROMISES.values()])
async def test_a_gang_is_promised_what_the_table_says(row: tuple[str, str], story: Story) -> None:
    town = await story()
    await look(town)
    key = f"ns/{town.workload('gang')['metadata']['name']}"
    report = town.reports[-1]
    found = {each.key: _name_of(each.placement) for each in report.plan.pending}
    found |= {each.key: "Fits" for each in report.released}
    assert found[key] == VERDICTS[row][0]


def _name_of(verdict: PlacementResult | None) -> str:
    return str(verdict.why) if isinstance(verdict, Blocked) else type(verdict).__name__


KEEPS: dict[str, tuple[Story, int, bool]] = {
    # the story, GPUs of one more gang that would fit what the first one could have, and whether that one is let go
    "promised places": (it_is_alone, 8, False),
    "a place beside those of one before it": (its_pod_may_take_the_place_of_one_before_it, 4, False),
    "places that a pod on its way may take": (a_pod_that_is_on_its_way_may_take_its_place, 8, False),
    "places that its own pods may take from each other": (its_own_head_may_take_its_workers_place, 4, True),
    "places where pods end": (pods_end_on_its_node, 8, False),
    "what is too little for any pod of its": (nothing_ends_and_nothing_is_free, 4, True),
}


@pytest.mark.parametrize(("story", "gpus", "is_let_go"), KEEPS.values(), ids=KEEPS)
async def test_who_waits_keeps_the_places_that_the_table_says(story: Story, gpus: int, is_let_go: bool) -> None:
    town = await story()
    await town.passes(1)
    town.submit("next", gpus=gpus)
    await town.passes(3)
    assert town.is_admitted("next") is is_let_go, town.says("next")


COMING: dict[str, tuple[str, float, bool]] = {
    # what is said of its request, how long before, and whether a gang of 8 may have the 8 that it has found
    "a request is open": ("Accepted", 0, False),
    "it is open for so long that its nodes are late": ("Accepted", 660, True),
    "it has failed": ("Failed", 0, True),
}


@pytest.mark.parametrize(("answer", "ago", "is_let_go"), COMING.values(), ids=COMING)
async def test_a_gang_keeps_what_it_has_found_while_nodes_come_for_the_rest(
    answer: str, ago: float, is_let_go: bool
) -> None:
    """2 x 8 GPUs, 8 of which are there."""
    town = await waiting({"a": 8}, pods=2, provisioning={"retry": {"base": "20m"}})
    await town.passes(1)
    town.answer(town.newest("gang"), answer, ago=ago)
    town.submit("next", gpus=8)
    await town.passes(3)
    assert town.is_admitted("next") is is_let_go
    assert town.says("gang").startswith("Pending: PodSet main: 1 of 2 pods does not fit")
