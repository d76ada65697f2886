"""The dispatcher on a hub: what is nominated, who may reclaim, what workers are asked, and what is told."""

from datetime import timedelta
from typing import Any

import pytest
from multikueue.hub.dispatch.dispatch_site import LIFE, NAMESPACE_NAME, PATIENCE, SECOND, Site
from scaler_sandbox.kinds import Json
from scaler_sandbox.multikueue import Remedy

from scaler.kube.objects.multikueue import OfferedWorkload, OfferPolicy
from scaler.kube.objects.resources import (
    ADD_ON_PLACEMENT_SCORE,
    LOCAL_QUEUE,
    PLACEMENT_DECISION,
    PROFILE_DECISION,
    WORKLOAD,
    Resource,
)
from scaler.multikueue.hub.dispatch.waiting import DECISION_KEY_LABEL, PLACEMENT_ANNOTATION, PLACEMENT_LABEL

MINUTE = timedelta(minutes=1)


async def test_a_gang_goes_to_the_cluster_with_the_best_answer_and_only_that_may_reclaim() -> None:
    site = Site("w1", "w2", "w3")
    site.waits("gang")
    await site.answers(w1="Wait", w2={"fit": "Reclaim", "cost": 4000}, w3={"fit": "Reclaim", "cost": 1000})
    assert site.nominated("gang") == site.reclaiming() == ["w3"]
    assert site.messages("Nominated") == [
        "nominated w3, which may suspend idle workloads for it. w3: Reclaim: cost 1; w2: Reclaim: cost 4; w1: Wait"
    ]


async def test_workers_are_asked_with_what_the_gang_requests_and_nothing_else() -> None:
    site = Site("w1")
    site.waits("gang", gpus=2, priority=7)
    await site.settles()
    entry = site.entries("w1")["gang"]
    assert set(entry) == {"namespace", "name", "uid", "request"}
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    assert {**entry["request"], "createdAt": ""} == {
        "queueName": "lq",
        "priority": 7,
        "createdAt": "",
        "podSets": [{"count": 2, "template": {"spec": {"containers": [container]}}}],
    }


async def test_nothing_is_written_where_nothing_has_changed() -> None:
    site = Site("w1", "w2")
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    before = site.dispatcher.lifetime.writes
    site.jump(SECOND)
    await site.settles()
    assert site.dispatcher.lifetime.writes == before


async def test_what_workers_do_not_answer_is_waited_for_a_minute_and_not_longer() -> None:
    site = Site("w1", "w2")
    site.waits("gang")
    await site.answers(w2="Wait")
    assert site.nominated("gang") == []
    await site.pass_time(MINUTE)
    assert site.nominated("gang") == ["w2"]


async def test_a_gang_that_is_not_admitted_within_the_patience_is_nominated_for_the_next_one() -> None:
    site = Site("w1", "w2")
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    await site.pass_time(PATIENCE - SECOND)
    assert site.nominated("gang") == ["w1"]
    await site.pass_time(SECOND)
    assert site.nominated("gang") == site.reclaiming() == ["w2"]
    assert "nominatedAt" not in site.entries("w1")["gang"]


async def test_a_worker_that_is_not_reached_keeps_reclaim_until_the_patience_is_over() -> None:
    site = Site("w1", "w2")
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    site.links.lost["w1"], site.fits["w1"] = "connection refused", {}
    site.is_active("w1", active=False)
    await site.pass_time()
    assert site.nominated("gang") == ["w2"]
    assert site.reclaiming() == ["w1"], "nobody knows whether w1 has heard of it"
    site.unreachable.add("w1")
    await site.pass_time(SECOND)
    assert site.reclaiming() == ["w1", "w2"], "as far as is known"
    site.links.lost.clear()
    await site.settles()
    assert site.reclaiming() == ["w2"]


async def test_an_admitted_gang_leaves_nothing_on_the_workers_and_an_evicted_one_is_nominated_again() -> None:
    site = Site("w1", "w2")
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    site.is_admitted("gang", "w1")
    await site.settles()
    assert site.entries("w1") == site.entries("w2") == {}
    site.jump(SECOND)
    site.is_evicted("gang")
    await site.answers(w1="Wait", w2="Free")
    assert site.nominated("gang") == ["w2"]


async def test_a_gang_that_waits_for_another_check_is_not_nominated() -> None:
    site = Site("w1")
    site.waits("gang")
    site.has_status("gang", admissionChecks=site.checks(other="Pending"))
    await site.settles()
    assert site.entries("w1") == {}


async def test_an_inactive_gang_is_nominated_so_that_its_quota_is_released_and_nobody_is_suspended_for_it() -> None:
    site = Site("w1", "w2")
    site.waits("gang", active=False)
    await site.settles()
    assert site.nominated("gang") == ["w1"]
    assert site.entries("w1") == site.entries("w2") == {}
    site.change(WORKLOAD, "gang", {"spec": {"active": True}})
    await site.answers(w1="Wait", w2="Free")
    assert site.nominated("gang") == site.reclaiming() == ["w2"], "its clusters are chosen anew"


@pytest.mark.parametrize(("free_after", "at_once", "later"), [(0, 1, 2), (4, 2, 3)], ids=["for one", "for two"])
async def test_several_gangs_are_not_sent_to_the_same_room(free_after: int, at_once: int, later: int) -> None:
    """The third one of 4 GPUs has to wait, or the second one, until the worker has looked again."""
    site = Site("w1", "w2")
    for number in range(3):
        site.waits(f"gang-{number}", priority=-number)
    await site.answers(w1={"fit": "Free", "freeAfter": free_after}, w2="Wait")

    def sent() -> int:
        return sum(site.nominated(f"gang-{number}") == ["w1"] for number in range(3))

    assert (sent(), site.nominated("gang-2")) == (at_once, [])
    await site.pass_time(4 * SECOND)
    assert sent() == later


async def test_as_many_as_the_settings_say_are_asked_about_those_of_high_priority_first() -> None:
    site = Site("w1", requests=1)
    site.waits("low")
    site.waits("high", priority=10)
    await site.settles()
    assert list(site.entries("w1")) == ["high"]
    await site.answers(w1={"fit": "Free", "freeAfter": 64})
    assert site.nominated("high") == site.nominated("low") == ["w1"]


def of_profile(name: str) -> Json:
    return {"decisions": [{"clusterProfileRef": {"name": name, "namespace": "fleet"}}]}


@pytest.mark.parametrize(
    ("resource", "name", "labels", "body"),
    [
        (PLACEMENT_DECISION, "gpus-1", {PLACEMENT_LABEL: "gpus"}, {"status": {"decisions": [{"clusterName": "w2"}]}}),
        (PROFILE_DECISION, "gpus", {}, of_profile("w2")),
        (PROFILE_DECISION, "gpus-0", {DECISION_KEY_LABEL: "gpus"}, of_profile("w2")),
    ],
    ids=["of Open Cluster Management", "on cluster profiles", "on cluster profiles, in slices with one key"],
)
async def test_a_placement_of_the_local_queue_says_which_clusters_are_in_question(
    resource: Resource, name: str, labels: Json, body: Any
) -> None:
    site = Site("w1", "w2")
    site.change(LOCAL_QUEUE, "lq", {"metadata": {"annotations": {PLACEMENT_ANNOTATION: "gpus"}}})
    other = {"labels": {DECISION_KEY_LABEL: "other"}}
    site.add(PROFILE_DECISION, "other", namespace=NAMESPACE_NAME, metadata=other, **of_profile("w1"))
    site.add(resource, name, namespace=NAMESPACE_NAME, metadata={"labels": labels}, **body)
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    assert site.nominated("gang") == ["w2"]


async def test_without_a_candidate_it_is_told_why_and_what_comes_back_is_nominated() -> None:
    site = Site("w1")
    site.is_active("w1", active=False)
    site.waits("gang")
    await site.settles()
    assert site.messages("NoCandidate") == [
        "no cluster may take it: w1: the MultiKueueCluster is not Active: no route to host"
    ]
    site.is_active("w1")
    await site.answers(w1="Free")
    assert site.nominated("gang") == ["w1"]


# ------------------------------------------------------------------------------------------------------- the preflight


@pytest.mark.parametrize("remedy", [Remedy.POLICY, Remedy.GATE, Remedy.NONE])
async def test_clusters_are_nominated_only_where_kueue_can_clear_that(remedy: Remedy) -> None:
    """Where it cannot every gang is told the cure, and afterwards it is nominated."""
    site = Site("w1", remedy=remedy)
    site.waits("gang")
    await site.answers(w1="Free")
    expected = [] if remedy is Remedy.NONE else ["w1"]
    assert site.nominated("gang") == site.reclaiming() == expected
    if remedy is Remedy.NONE:
        [message] = site.messages("NotNominated")
        assert "clear-nominated-cluster-names" in message
        assert "WorkloadRequestUseMergePatch" in message
        site.set_remedy(Remedy.POLICY)
        await site.pass_time(MINUTE)
        assert site.nominated("gang") == ["w1"]


async def test_a_preflight_without_an_answer_changes_nothing_that_has_passed() -> None:
    site = Site("w1")
    site.waits("gang")
    await site.answers(w1="Free")
    site.jump(timedelta(minutes=10))
    site.dispatcher.api.is_down = True
    assert (await site.settles()).preflight.is_passed
    assert site.reclaiming() == ["w1"]


# ---------------------------------------------------------------------------------------------------------- the workers


async def test_an_answer_that_is_not_renewed_expires() -> None:
    site = Site("w1")
    site.waits("gang")
    await site.answers(w1="Free")
    site.jump(LIFE)
    assert (await site.settles()).workers["w1"].answers == {}
    site.jump(MINUTE)
    assert (await site.settles()).workers["w1"].silence == (
        "its ClusterOffer has no current status: idle-gpu-scaler there does not renew it"
    )


async def test_workloads_that_are_judged_are_part_of_what_workers_are_told() -> None:
    site = Site("w1")
    policy = OfferPolicy(idle_after="30m")
    site.dispatcher.judged = {"w1": [OfferedWorkload(namespace="team", name="runs", uid="u", policy=policy)]}
    site.waits("gang")
    await site.settles()
    assert set(site.entries("w1")) == {"gang", "runs"}
    assert site.entries("w1")["runs"]["policy"] == {"idleAfter": "30m"}


async def test_scores_are_written_for_the_managed_cluster_and_expire_with_the_offer() -> None:
    site = Site("w1", with_scores=True)
    site.waits("gang")
    await site.settles()
    flavor = {"name": "a100", "resource": "nvidia.com/gpu", "free": 16, "reclaimable": 32}
    queue = {"name": "cq", "flavors": [flavor], "largestGang": {"now": 16, "afterReclaim": 48}}

    def scores() -> Json:
        [found] = site.hub.client.all(ADD_ON_PLACEMENT_SCORE)
        assert found["metadata"]["namespace"] == "w1"
        return found["status"]

    for _ in range(2):
        site.publishes("w1", clusterQueues=[queue])
        await site.settles()
    found = scores()
    values = {"gpu-free": -50, "gpu-reclaimable": 0, "gpu-gang": 50}
    assert {each["name"]: each["value"] for each in found["scores"]} == values
    site.jump(LIFE)
    await site.settles()
    assert scores() == found, "what is not known is not written"


async def test_gangs_that_fit_nowhere_do_not_keep_others_from_being_asked_about() -> None:
    """Two are asked about at a time, and the two before it never fit."""
    site = Site("w1", requests=2)
    for name in ("huge", "larger"):
        site.waits(name, priority=9)
    site.waits("gang")
    site.fits["w1"] = {"gang": {"fit": "Free"}, "*": {"fit": "Never"}}
    await site.settles()
    for _ in range(3):
        await site.renewed()
    assert (site.nominated("gang"), site.nominated("huge")) == (["w1"], [])


async def test_a_gang_that_was_nominated_blindly_and_never_fits_does_not_stay_there() -> None:
    """Else its copy would be the head of a queue on the worker, and let no other start."""
    site = Site("w1", "w2")
    site.waits("gang")
    await site.settles()
    site.jump(MINUTE + SECOND)
    await site.settles()
    assert len(site.nominated("gang")) == 1
    await site.answers(w1="Never", w2="Never")
    assert len(site.nominated("gang")) == 1, "within the patience it stays"
    await site.pass_time()
    assert site.nominated("gang") == site.reclaiming() == []
    assert "request" in site.entries("w1")["gang"], "it is asked about further on"
    await site.answers(w1="Never", w2="Free")
    await site.pass_time()
    assert site.nominated("gang") == ["w2"]


# ------------------------------------------------------------------------------------------------------------ restarts


async def the_story(ends_after: int | None = None) -> Site:
    """A nomination, and the next one; after that write the leader is killed, and another one goes on."""
    site = Site("w1", "w2", "w3")
    site.dispatcher.lifetime.ends_after = ends_after
    site.waits("gang")
    await site.answers(w1={"fit": "Reclaim", "cost": 1000}, w2="Wait", w3="Wait")
    await site.answers(w1="Wait", w3={"fit": "Free", "freeAfter": 99})
    await site.pass_time()
    if site.nominated("gang") != ["w3"]:
        await site.pass_time()
    return site


async def test_a_dispatcher_that_is_killed_after_any_write_ends_where_one_ends_that_is_not() -> None:
    whole = await the_story()
    assert whole.dispatcher.lifetime.writes > 8
    for ends_after in range(1, whole.dispatcher.lifetime.writes + 1):
        site = await the_story(ends_after)
        assert site.dispatcher.deaths == 1
        assert site.nominated("gang") == site.reclaiming() == ["w3"], f"after {ends_after} writes"
