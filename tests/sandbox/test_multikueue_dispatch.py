"""How the embedded MultiKueue gets a Workload from the hub to a worker: copies, nominations, the first admission.

The facts are those of a real hub with two workers; times are in seconds after the action, to a tenth.
"""

import pytest
from scaler_sandbox.conditions import message_of, reason_of
from scaler_sandbox.multikueue import Dispatcher, HubConfig, Remedy
from sim.multikueue_clusters import ALL_AT_ONCE, running_on_w1, started, submitted

from scaler.errors import KubeError
from scaler.kube.objects.resources import MULTIKUEUE_CLUSTER, POD, WORKLOAD

ORIGIN = "kueue.x-k8s.io/multikueue-origin"


# ---------------------------------------------------------------------------------------------------------- all at once


async def test_all_at_once_puts_a_pending_copy_on_every_worker() -> None:
    clusters = await submitted({"w1": 0, "w2": 0}, ALL_AT_ONCE)
    assert clusters.nominated("gang") == ["w1", "w2"]
    assert clusters.holders("gang") == ["w1", "w2"]
    assert all(member.job("gang") is None for member in clusters.workers.values()), "no Job before it is admitted"
    assert clusters.state("gang") == "reserved", "the hub holds its quota meanwhile"
    assert reason_of(clusters.on_hub("gang"), "Admitted") == "UnsatisfiedAdmissionChecks"
    job = clusters.hub.job("gang")
    assert job is not None
    assert (job["spec"]["managedBy"], job["spec"]["suspend"]) == ("kueue.x-k8s.io/multikueue", True)


async def test_a_pending_copy_is_known_by_its_label_and_has_no_owner() -> None:
    clusters = await submitted({"w1": 0}, ALL_AT_ONCE)
    here, there = clusters.on_hub("gang"), clusters.workers["w1"].existing("gang")
    assert there["metadata"]["name"] == here["metadata"]["name"]
    assert there["spec"] == here["spec"]
    assert there["metadata"]["labels"] == {ORIGIN: "multikueue"}
    assert "ownerReferences" not in there["metadata"]


async def test_the_first_admission_wins_and_the_others_copies_go_a_second_later() -> None:
    clusters = await submitted({"w1": 4, "w2": 4}, ALL_AT_ONCE)
    assert all(member.has("gang", "Admitted") for member in clusters.workers.values()), "both, for a second"
    assert clusters.runners("gang") == []
    await clusters.passes(1)
    assert clusters.holders("gang") == clusters.runners("gang") == ["w1"]
    assert (clusters.cluster_of("gang"), clusters.nominated("gang")) == ("w1", None)
    assert clusters.says("gang") == 'Ready: The workload was admitted on "w1"'
    assert clusters.state("gang") == "reserved admitted"
    assert clusters.hub.pods("gang") == []


async def test_a_worker_that_gets_room_later_takes_the_job() -> None:
    clusters = await started({"w1": 0, "w2": 4}, ALL_AT_ONCE)
    clusters.submit("local", at="w2")
    await clusters.passes(1)
    clusters.submit("gang")
    await clusters.passes(5)
    assert clusters.holders("gang") == ["w1", "w2"]
    clusters.delete_job("local", at="w2")
    await clusters.passes(3.5)
    assert clusters.holders("gang") == clusters.runners("gang") == ["w2"]


async def test_a_running_copy_is_owned_by_a_job_that_names_it_and_its_pods_say_so() -> None:
    clusters = await running_on_w1(ALL_AT_ONCE)
    worker = clusters.workers["w1"]
    copy, job = worker.existing("gang"), worker.job("gang")
    assert job is not None
    assert copy["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert copy["metadata"]["labels"] == {ORIGIN: "multikueue", "kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    assert job["metadata"]["labels"] == {ORIGIN: "multikueue", "kueue.x-k8s.io/queue-name": "lq"}
    assert job["metadata"]["annotations"] == {"kueue.x-k8s.io/prebuilt-workload-name": copy["metadata"]["name"]}
    assert "managedBy" not in job["spec"]
    pods = worker.pods("gang")
    assert len(pods) == 4
    assert all(each["metadata"]["labels"]["kueue.x-k8s.io/multikueue-worker-workload-pod"] == "true" for each in pods)


async def test_the_hub_mirrors_the_status_of_the_job_a_second_late() -> None:
    clusters = await running_on_w1()
    assert clusters.active_pods("gang") == 4
    worker = clusters.workers["w1"].job("gang")
    hub = clusters.hub.job("gang")
    assert worker is not None
    assert hub is not None
    assert hub["status"] == worker["status"]


async def test_what_finishes_on_the_worker_is_finished_on_the_hub_and_its_copies_go() -> None:
    clusters = await running_on_w1()
    for pod in clusters.workers["w1"].pods("gang"):
        ended = {"status": {"phase": "Succeeded"}}
        clusters.workers["w1"].client.change(POD, "ns", pod["metadata"]["name"], ended, "status")
    await clusters.passes(3)
    assert clusters.state("gang") == "reserved admitted finished/Succeeded"
    assert (clusters.holders("gang"), clusters.workers["w1"].job("gang")) == ([], None)
    assert clusters.cluster_of("gang") == "w1", "it stays"


# ----------------------------------------------------------------------------------------------- an external dispatcher


async def test_without_a_nomination_nothing_is_copied() -> None:
    clusters = await submitted({"w1": 4})
    await clusters.passes(60)
    assert (clusters.state("gang"), clusters.holders("gang")) == ("reserved", [])


async def test_only_the_nominated_cluster_gets_a_copy_and_runs_it() -> None:
    clusters = await submitted({"w1": 4, "w2": 4})
    clusters.nominate("gang", "w2")
    await clusters.passes(0.1)
    assert clusters.holders("gang") == ["w2"]
    await clusters.passes(1.3)
    assert clusters.state("gang") == "reserved admitted"
    assert clusters.runners("gang") == ["w2"]


@pytest.mark.parametrize(("remedy", "left"), [(Remedy.POLICY, []), (Remedy.GATE, None)])
async def test_at_admission_nominations_are_cleared_as_the_remedy_clears_them(
    remedy: Remedy, left: list[str] | None
) -> None:
    config = HubConfig(dispatcher=Dispatcher.EXTERNAL, remedy=remedy)
    clusters = await running_on_w1(config)
    assert clusters.nominated("gang") == left


async def test_a_nomination_before_the_reservation_acts_with_it() -> None:
    clusters = await started({"w1": 4}, hub=4)
    clusters.submit("first")
    clusters.submit("gang")
    await clusters.passes(1)
    assert clusters.state("gang") == ""
    clusters.nominate("gang", "w1")
    await clusters.passes(5)
    assert clusters.holders("gang") == []
    clusters.delete_job("first")
    await clusters.passes(1.5)
    assert clusters.holders("gang") == ["w1"]


async def test_a_nomination_waits_until_the_other_checks_are_ready() -> None:
    clusters = await submitted({"w1": 4}, checks=["other"])
    clusters.nominate("gang", "w1")
    await clusters.passes(10)
    assert clusters.holders("gang") == []
    ready = clusters.entry("gang", "other") | {"state": "Ready"}
    name = clusters.on_hub("gang")["metadata"]["name"]
    entries = {"status": {"admissionChecks": [ready, clusters.entry("gang")]}}
    clusters.hub.client.change(WORKLOAD, "ns", name, entries, "status")
    await clusters.passes(0.1)
    assert clusters.holders("gang") == ["w1"]


async def test_a_worker_that_cannot_admit_is_waited_for_without_end() -> None:
    clusters = await submitted({"w1": 0, "w2": 4})
    clusters.nominate("gang", "w1")
    await clusters.passes(200)
    assert (clusters.holders("gang"), clusters.nominated("gang")) == (["w1"], ["w1"])
    assert clusters.says("gang") == "Pending: "


@pytest.mark.parametrize(
    ("nominated", "holders"), [(["w1", "w2"], ["w1", "w2"]), (["w2"], ["w2"]), ([], []), (["nope", "w1"], ["w1"])]
)
async def test_another_nomination_moves_the_copies(nominated: list[str], holders: list[str]) -> None:
    clusters = await submitted({"w1": 0, "w2": 0})
    clusters.nominate("gang", "w1")
    await clusters.passes(1)
    before = clusters.workers["w1"].existing("gang")["metadata"]["uid"]
    clusters.nominate("gang", *nominated)
    await clusters.passes(0.1)
    assert clusters.holders("gang") == holders
    if "w1" in holders:
        assert clusters.workers["w1"].existing("gang")["metadata"]["uid"] == before, "it keeps its place in the queue"


async def test_a_copy_that_is_admitted_as_another_is_nominated_is_recorded_once_it_is_nominated_again() -> None:
    """The hub hears of an admission a second later."""
    clusters = await submitted({"w1": 4, "w2": 4})
    clusters.nominate("gang", "w1")
    await clusters.passes(0.5)
    clusters.nominate("gang", "w2")
    await clusters.passes(30)
    assert (clusters.runners("gang"), clusters.holders("gang")) == (["w1"], ["w1"])
    assert (clusters.state("gang"), clusters.cluster_of("gang")) == ("reserved", "")
    clusters.nominate("gang", "w1")
    await clusters.passes(3)
    assert (clusters.state("gang"), clusters.cluster_of("gang")) == ("reserved admitted", "w1")
    assert clusters.runners("gang") == ["w1"]


async def test_an_unknown_name_is_accepted_and_does_nothing() -> None:
    clusters = await submitted({"w1": 4})
    clusters.nominate("gang", "nope")
    await clusters.passes(30)
    assert (clusters.holders("gang"), clusters.says("gang")) == ([], "Pending: ")


async def test_two_nominated_with_room_on_both_are_both_admitted_and_one_is_thrown_away() -> None:
    clusters = await submitted({"w1": 4, "w2": 4})
    clusters.nominate("gang", "w1", "w2")
    await clusters.passes(0.5)
    assert all(member.has("gang", "Admitted") for member in clusters.workers.values())
    await clusters.passes(1)
    assert clusters.holders("gang") == clusters.runners("gang") == ["w1"]


async def test_with_a_cluster_a_nomination_is_refused() -> None:
    clusters = await running_on_w1()
    with pytest.raises(KubeError, match="mutually exclusive"):
        clusters.nominate("gang", "w2")
    clusters.nominate("gang")


# ----------------------------------------------------------------------------------------------------- no remedy at all


async def test_without_a_remedy_the_job_runs_and_the_hub_waits_for_ever() -> None:
    clusters = await submitted({"w1": 4}, HubConfig(dispatcher=Dispatcher.EXTERNAL, remedy=Remedy.NONE))
    clusters.nominate("gang", "w1")
    await clusters.passes(60)
    worker, hub = clusters.workers["w1"], clusters.hub.job("gang")
    assert worker.runs("gang")
    assert hub is not None
    assert (clusters.state("gang"), clusters.says("gang"), hub["spec"]["suspend"]) == ("reserved", "Pending: ", True)
    clusters.nominate("gang")
    await clusters.passes(60)
    assert clusters.state("gang") == "reserved", "taking the nomination back does not free it"


PREFLIGHT = {"status": {"nominatedClusterNames": ["x"], "clusterName": "x"}}


@pytest.mark.parametrize(
    ("remedy", "status", "message"),
    [
        (Remedy.NONE, 422, "mutually exclusive"),
        (Remedy.GATE, 422, "mutually exclusive"),
        (Remedy.POLICY, 403, "must be one of the nominatedClusterNames"),
    ],
)
async def test_a_dry_run_tells_whether_the_policy_is_there(remedy: Remedy, status: int, message: str) -> None:
    clusters = await submitted({"w1": 4}, HubConfig(dispatcher=Dispatcher.EXTERNAL, remedy=remedy))
    name = clusters.on_hub("gang")["metadata"]["name"]
    with pytest.raises(KubeError, match=message) as caught:
        clusters.hub.client.change(WORKLOAD, "ns", name, PREFLIGHT, "status", dry_run=True)
    assert caught.value.status == status
    assert clusters.nominated("gang") is None


# -------------------------------------------------------------------------------------------------- clusters and checks


async def test_a_lost_worker_is_inactive_and_its_workload_is_waited_for() -> None:
    clusters = await running_on_w1()
    clusters.links.lost["w1"] = "connection refused"
    await clusters.passes(10)
    cluster = clusters.hub.client.find(MULTIKUEUE_CLUSTER, "", "w1")
    assert cluster is not None
    assert reason_of(cluster, "Active") == "ClientConnectionFailed"
    assert clusters.state("gang") == "reserved admitted"
    await clusters.passes(15 * 60)
    assert clusters.state("gang") == "reserved admitted evicted/AdmissionCheck"


async def test_a_job_that_is_not_given_to_multikueue_is_rejected() -> None:
    clusters = await started({"w1": 4})
    clusters.submit("gang", managedBy="kubernetes.io/job-controller", suspend=True)
    await clusters.passes(1)
    workload = clusters.on_hub("gang")
    assert not workload["spec"]["active"]
    assert (
        'Expecting spec.managedBy to be "kueue.x-k8s.io/multikueue" not "kubernetes.io/job-controller"'
        in message_of(workload, "Evicted")
    )


async def test_the_copy_of_a_workload_that_is_deleted_goes_with_it() -> None:
    clusters = await running_on_w1()
    clusters.delete_job("gang")
    await clusters.passes(3)
    assert (clusters.hub.workload("gang"), clusters.holders("gang")) == (None, [])
    assert clusters.workers["w1"].pods("gang") == []


async def test_what_is_orphaned_while_nobody_looks_is_collected_within_a_minute() -> None:
    clusters = await running_on_w1()
    clusters.delete_job("gang")
    for each in clusters.members:
        each.client.collect_garbage()
    clusters.start_dispatching()
    await clusters.passes(30)
    assert clusters.runners("gang") == ["w1"]
    await clusters.passes(35)
    assert (clusters.holders("gang"), clusters.workers["w1"].job("gang")) == ([], None)
