"""The dispatcher on a hub with real API servers: what is nominated, who may reclaim, and what is told."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from multikueue.hub.dispatch.hub_and_workers import LIFE, NAMESPACE_NAME, PATIENCE, Site, check, site

from scaler.kube.objects.multikueue import OfferedWorkload, OfferPolicy
from scaler.kube.objects.resources import (
    ADD_ON_PLACEMENT_SCORE,
    LOCAL_QUEUE,
    MULTIKUEUE_CONFIG,
    NAMESPACE,
    PLACEMENT_DECISION,
    WORKLOAD,
)
from scaler.multikueue.hub.dispatch.waiting import DECISION_KEY_LABEL, PLACEMENT_ANNOTATION, PLACEMENT_LABEL

SECOND = timedelta(seconds=1)


def reclaiming(at: Site, name: str = "gang") -> list[str]:
    """The workers that may suspend idle workloads for it."""
    return [worker for worker, each in at.workers.items() if name in each.reclaims()]


async def test_a_gang_goes_to_the_cluster_with_the_best_answer_and_only_that_may_reclaim() -> None:
    async with site("w1", "w2", "w3") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Wait", w2={"fit": "Reclaim", "cost": 4000}, w3={"fit": "Reclaim", "cost": 1000})
        assert await at.hub.nominated("gang") == ["w3"]
        assert reclaiming(at) == ["w3"]
        [(*_, message)] = [each for each in await at.hub.events() if each[1] == "Nominated"]
        assert message == (
            "nominated w3, which may suspend idle workloads for it. w3: Reclaim: cost 1; w2: Reclaim: cost 4; w1: Wait"
        )


async def test_workers_are_asked_with_what_the_gang_requests_and_nothing_else() -> None:
    async with site("w1") as at, at.process() as process:
        await at.hub.waits("gang", gpus=2, priority=7)
        await process.settles()
        entry = (await at.workers["w1"].entries())["gang"]
        assert set(entry) == {"namespace", "name", "uid", "request"}
        assert {**entry["request"], "createdAt": ""} == {
            "queueName": "lq",
            "priority": 7,
            "createdAt": "",
            "podSets": [
                {
                    "count": 2,
                    "template": {
                        "spec": {"containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
                    },
                }
            ],
        }


async def test_nothing_is_written_where_nothing_has_changed() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        before = process.written
        for _ in range(3):
            await process.tick()
        assert process.written == before


async def test_what_workers_do_not_answer_is_waited_for_a_minute_and_not_longer() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w2="Wait")
        assert await at.hub.nominated("gang") == []
        at.clock.ahead += timedelta(minutes=1)
        await at.renewed(process)
        assert await at.hub.nominated("gang") == ["w2"]


async def test_a_gang_that_is_not_admitted_within_the_patience_is_nominated_for_the_next_one() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        await at.pass_time(process, PATIENCE - 10 * SECOND)
        assert await at.hub.nominated("gang") == ["w1"]
        await at.pass_time(process, 10 * SECOND)
        assert await at.hub.nominated("gang") == ["w2"]
        assert reclaiming(at) == ["w2"]
        assert "nominatedAt" not in (await at.workers["w1"].entries())["gang"]
        await at.pass_time(process)
        assert await at.hub.nominated("gang") == ["w1"], "there is no third one"


async def test_a_gang_goes_to_where_there_is_room_once_the_first_has_none() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Reclaim", w2="Wait")
        await at.answers(process, w1="Wait", w2="Free")
        assert reclaiming(at) == ["w1"]
        await at.pass_time(process)
        assert await at.hub.nominated("gang") == ["w2"]
        assert reclaiming(at) == ["w2"]


async def test_a_worker_that_is_not_reached_keeps_reclaim_until_the_patience_is_over() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        await at.workers["w1"].api.stop()
        at.workers["w1"].fits = {}
        await at.hub.is_active("w1", active=False, since=at.clock.now() + PATIENCE)
        await process.settles()
        at.clock.ahead += PATIENCE
        await at.answers(process, w2="Free")
        assert await at.hub.nominated("gang") == ["w2"]
        assert reclaiming(at) == ["w1"], "nobody knows whether w1 has heard of it"
        at.lost.add("w1")
        await at.pass_time(process, PATIENCE + SECOND)
        assert [name for name, each in at.workers.items() if each.reclaims()] == ["w1", "w2"], "as far as is known"
        await at.workers["w1"].api.start()
        async with asyncio.timeout(60):
            while reclaiming(at) != ["w2"]:
                await process.settles()


async def test_an_admitted_gang_leaves_nothing_on_the_workers_and_an_evicted_one_is_nominated_again() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        await at.hub.is_admitted("gang", "w1")
        await process.settles()
        assert [await each.entries() for each in at.workers.values()] == [{}, {}]
        at.clock.ahead += SECOND
        await at.hub.is_evicted("gang")
        await at.answers(process, w1="Wait", w2="Free")
        assert await at.hub.nominated("gang") == ["w2"]


async def test_a_gang_that_waits_for_another_check_is_not_nominated() -> None:
    async with site("w1") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.hub.has_status("gang", admissionChecks=[check("multikueue"), check("other")])
        await process.settles()
        assert await at.workers["w1"].entries() == {}


async def test_an_inactive_gang_is_nominated_so_that_its_quota_is_released_and_nobody_is_suspended_for_it() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang", active=False)
        await process.settles()
        assert await at.hub.nominated("gang") == ["w1"]
        assert [await each.entries() for each in at.workers.values()] == [{}, {}]
        await at.hub.change(WORKLOAD, "gang", {"spec": {"active": True}}, namespace=NAMESPACE_NAME)
        await at.answers(process, w1="Wait", w2="Free")
        assert await at.hub.nominated("gang") == ["w2"], "its clusters are chosen anew"
        assert reclaiming(at) == ["w2"]


async def test_several_gangs_are_not_sent_to_room_for_one() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        for number in range(3):
            await at.hub.waits(f"gang-{number}", priority=-number)
        await at.answers(process, w1={"fit": "Free", "freeAfter": 0}, w2="Wait")
        assert [await at.hub.nominated(f"gang-{number}") for number in range(3)] == [["w1"], [], []]
        at.clock.ahead += timedelta(seconds=4)
        await at.renewed(process)
        assert [await at.hub.nominated(f"gang-{number}") for number in range(3)] == [["w1"], ["w1"], []]


async def test_several_gangs_are_sent_to_room_for_all_of_them() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        for number in range(3):
            await at.hub.waits(f"gang-{number}", gpus=4, priority=-number)
        await at.answers(process, w1={"fit": "Free", "freeAfter": 4}, w2="Wait")
        assert [await at.hub.nominated(f"gang-{number}") for number in range(3)] == [["w1"], ["w1"], []]


async def test_as_many_as_the_settings_say_are_asked_about_those_of_high_priority_first() -> None:
    async with site("w1") as at, at.process(requests=1) as process:
        await at.hub.waits("low")
        await at.hub.waits("high", priority=10)
        await process.settles()
        assert list(await at.workers["w1"].entries()) == ["high"]
        await at.answers(process, w1={"fit": "Free", "freeAfter": 64})
        assert await at.hub.nominated("high") == await at.hub.nominated("low") == ["w1"]


async def test_a_placement_of_the_local_queue_says_which_clusters_are_in_question() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.change(
            LOCAL_QUEUE, "lq", {"metadata": {"annotations": {PLACEMENT_ANNOTATION: "gpus"}}}, namespace=NAMESPACE_NAME
        )
        await at.hub.create(
            PLACEMENT_DECISION,
            "gpus-decision-1",
            namespace=NAMESPACE_NAME,
            metadata={"labels": {PLACEMENT_LABEL: "gpus"}},
            status={"decisions": [{"clusterName": "w2", "reason": ""}]},
        )
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        assert await at.hub.nominated("gang") == ["w2"]


@pytest.mark.parametrize(
    ("name", "labels"),
    [("gpus", {}), ("gpus-0", {DECISION_KEY_LABEL: "gpus"})],
    ids=["a decision that is whole", "slices with one key"],
)
async def test_so_do_decisions_on_cluster_profiles(name: str, labels: dict[str, str]) -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.change(
            LOCAL_QUEUE, "lq", {"metadata": {"annotations": {PLACEMENT_ANNOTATION: "gpus"}}}, namespace=NAMESPACE_NAME
        )
        await at.hub.decides_on_profiles("other", {DECISION_KEY_LABEL: "other"}, "w1")
        await at.hub.decides_on_profiles(name, labels, "w2")
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        assert await at.hub.nominated("gang") == ["w2"]


async def test_without_a_candidate_it_is_told_why_and_what_comes_back_is_nominated() -> None:
    async with site("w1") as at, at.process() as process:
        await at.hub.is_active("w1", active=False)
        await at.hub.waits("gang")
        await process.settles()
        assert await process.recorder.drain(5)
        assert [each for each in await at.hub.events() if each[1] == "NoCandidate"] == [
            (
                "gang",
                "NoCandidate",
                "no cluster may take it: w1: the MultiKueueCluster is not Active: no route to host",
            )
        ]
        await at.hub.is_active("w1")
        await at.answers(process, w1="Free")
        assert await at.hub.nominated("gang") == ["w1"]


async def test_a_name_in_the_config_without_a_cluster_is_never_nominated() -> None:
    async with site("w1") as at, at.process() as process:
        await at.hub.change(MULTIKUEUE_CONFIG, "gpus", {"spec": {"clusters": ["nope", "w1"]}})
        await at.hub.waits("gang")
        await at.answers(process, w1="Wait")
        await at.pass_time(process)
        assert await at.hub.nominated("gang") == ["w1"]


# ------------------------------------------------------------------------------------------------------- the preflight


@pytest.mark.parametrize(
    ("remedy", "expected"), [("policy", ["w1"]), ("gate", ["w1"]), ("none", [])], ids=["policy", "feature gate", "none"]
)
async def test_clusters_are_nominated_only_where_kueue_can_clear_that(remedy: str, expected: list[str]) -> None:
    async with site("w1") as at, at.process() as process:
        at.hub.kube.remedy = remedy
        await at.hub.waits("gang")
        await at.answers(process, w1="Free")
        assert await at.hub.nominated("gang") == expected
        assert reclaiming(at) == expected


async def test_without_a_remedy_every_gang_is_told_the_cure_and_afterwards_it_is_nominated() -> None:
    async with site("w1") as at, at.process() as process:
        at.hub.kube.remedy = "none"
        await at.hub.waits("gang")
        await at.answers(process, w1="Free")
        assert await process.recorder.drain(5)
        [(_, _, message)] = [each for each in await at.hub.events() if each[1] == "NotNominated"]
        assert "clear-nominated-cluster-names" in message
        assert "WorkloadRequestUseMergePatch" in message
        at.hub.kube.remedy = "policy"
        await at.pass_time(process, timedelta(minutes=1))
        assert await at.hub.nominated("gang") == ["w1"]


async def test_where_kueue_dispatches_by_itself_nothing_is_nominated() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        at.hub.kube.nominates = "kueue-admission"
        await at.hub.waits("gang")
        await at.hub.has_status("gang", nominatedClusterNames=["w1", "w2"])
        await at.answers(process, w1="Wait", w2="Free")
        assert await at.hub.nominated("gang") == ["w1", "w2"]
        assert process.reports[-1].preflight.message.startswith("Kueue's own dispatcher is configured")
        assert reclaiming(at) == []


async def test_a_preflight_without_an_answer_changes_nothing_that_has_passed() -> None:
    async with site("w1") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Free")
        at.clock.ahead += timedelta(minutes=10)
        at.hub.api.faults.fail_next(100, status=500, method="GET", path_part="/workloads/gang")
        await process.settles()
        assert process.reports[-1].preflight.is_passed
        assert reclaiming(at) == ["w1"]


# ---------------------------------------------------------------------------------------------------------- the workers


async def test_a_worker_without_cluster_offers_is_nominated_last_and_may_not_reclaim() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await at.workers["w1"].kube.delete(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusteroffers.idlegpu.io"
        )
        await at.hub.waits("gang")
        await at.answers(process, w2="Wait")
        assert await at.hub.nominated("gang") == ["w2"]
        await at.pass_time(process)
        assert await at.hub.nominated("gang") == ["w1"]
        assert reclaiming(at) == []
        words = {each.name: each.words for each in process.reports[-1].plan.workloads[0].ranking.all}  # type: ignore[union-attr]
        assert words["w1"] == "Unknown: it has no ClusterOffers: idle-gpu-scaler is not installed there"


async def test_a_worker_that_hangs_delays_no_other() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        await process.settles()
        at.workers["w1"].api.faults.latency_seconds = 60
        process.hanging.add("w1")
        process.connections.connections["w1"].read_anew()
        await at.hub.waits("gang")
        await at.answers(process, w2="Free")
        at.clock.ahead += timedelta(minutes=1)
        await at.renewed(process)
        assert await at.hub.nominated("gang") == ["w2"]


async def test_a_status_of_before_the_start_is_not_taken_for_new() -> None:
    async with site("w1") as at:
        async with at.process() as first:
            await at.hub.waits("gang")
            await at.answers(first, w1="Wait")
        async with at.process() as process:
            report = await process.settles()
            assert report.workers["w1"].answers == {}
            await at.workers["w1"].publishes()
            assert (await process.settles()).workers["w1"].answers != {}


async def test_what_the_one_before_wrote_last_is_read_before_anything_is_decided() -> None:
    """A watch may be late, and two workers would have `reclaim` for the same gang."""
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        for each in process.connections.connections.values():
            each.read_anew()
        report = await process.tick()
        assert report is not None
        assert report.problem == "workers are being connected: w1, w2"
        await process.settles()
        assert reclaiming(at) == ["w1"]


async def test_an_answer_that_is_not_renewed_expires() -> None:
    async with site("w1") as at, at.process() as process:
        await at.hub.waits("gang")
        await at.answers(process, w1="Free")
        at.clock.ahead += LIFE
        report = await process.settles()
        assert report.workers["w1"].answers == {}
        at.clock.ahead += timedelta(minutes=1)
        report = await process.settles()
        assert report.workers["w1"].silence == (
            "its ClusterOffer has no current status: idle-gpu-scaler there does not renew it"
        )


async def test_workloads_that_are_judged_are_part_of_what_workers_are_told() -> None:
    async with site("w1") as at, at.process() as process:
        policy = OfferPolicy(idle_after="30m")
        process.judged = {"w1": [OfferedWorkload(namespace="team", name="runs", uid="u", policy=policy)]}
        await at.hub.waits("gang")
        await process.settles()
        entries = await at.workers["w1"].entries()
        assert set(entries) == {"gang", "runs"}
        assert entries["runs"]["policy"] == {"idleAfter": "30m"}


async def test_scores_are_written_for_the_managed_cluster_and_expire_with_the_offer() -> None:
    async with site("w1") as at, at.process(scores=True) as process:
        await at.hub.create(NAMESPACE, "w1")
        await at.hub.waits("gang")
        await process.settles()
        queues: list[Mapping[str, Any]] = [
            {
                "name": "cq",
                "flavors": [{"name": "a100", "resource": "nvidia.com/gpu", "free": 16, "reclaimable": 32}],
                "largestGang": {"now": 16, "afterReclaim": 48},
            }
        ]
        for _ in range(2):
            await at.workers["w1"].publishes(clusterQueues=queues)
            await process.settles()
        found = (await at.hub.read(ADD_ON_PLACEMENT_SCORE, "idle-gpu-scaler", namespace="w1"))["status"]
        assert {each["name"]: each["value"] for each in found["scores"]} == {
            "gpu-free": -50,
            "gpu-reclaimable": 0,
            "gpu-gang": 50,
        }
        at.clock.ahead += LIFE
        await process.settles()
        after = (await at.hub.read(ADD_ON_PLACEMENT_SCORE, "idle-gpu-scaler", namespace="w1"))["status"]
        assert after == found, "what is not known is not written"


# ------------------------------------------------------------------------------------------------------------ restarts


async def the_story(at: Site, writes: int | None) -> tuple[Mapping[str, Any], int]:
    """A nomination, and the next one; after a write the process dies, and another one goes on."""
    written = 0
    async with at.process(writes=writes) as first:
        await at.hub.waits("gang")
        await at.answers(first, w1={"fit": "Reclaim", "cost": 1000}, w2="Wait", w3="Wait")
        await at.answers(first, w1="Wait", w3={"fit": "Free", "freeAfter": 99})
        await at.pass_time(first)
        written = first.written
    if writes is not None:
        async with at.process() as second:
            for _ in range(2):
                if await at.hub.nominated("gang") != ["w3"]:
                    await at.pass_time(second)
            await at.renewed(second)
    return await at.state(), written


async def test_a_dispatcher_that_is_stopped_after_any_write_ends_where_one_ends_that_is_not() -> None:
    async with site("w1", "w2", "w3") as at:
        expected, count = await the_story(at, None)
        assert expected["nominated"]["gang"] == ["w3"]
    assert count > 8
    for writes in range(1, count + 1):
        async with site("w1", "w2", "w3") as at:
            found, _ = await the_story(at, writes)
            assert found["nominated"]["gang"] == ["w3"], f"after {writes} writes: {found}"
            assert reclaiming(at) == ["w3"], f"after {writes} writes"


async def test_gangs_that_fit_nowhere_do_not_keep_others_from_being_asked_about() -> None:
    """Two are asked about at a time, and the two before it never fit."""
    async with site("w1") as at, at.process(requests=2) as process:
        for name in ("huge", "larger"):
            await at.hub.waits(name, priority=9)
        await at.hub.waits("gang")
        at.workers["w1"].fits = {"gang": {"fit": "Free"}, "*": {"fit": "Never"}}
        await process.settles()
        for _ in range(3):
            await at.renewed(process)
        assert await at.hub.nominated("gang") == ["w1"]
        assert await at.hub.nominated("huge") == []


async def test_a_gang_that_was_nominated_blindly_and_never_fits_does_not_stay_there() -> None:
    """Else its copy would be the head of a queue on the worker, and let no other start."""
    async with site("w1", "w2") as at, at.process() as process:
        await at.hub.waits("gang")
        await process.settles()
        at.clock.ahead += timedelta(minutes=1, seconds=1)
        await process.settles()
        assert len(await at.hub.nominated("gang")) == 1
        await at.answers(process, w1="Never", w2="Never")
        assert len(await at.hub.nominated("gang")) == 1, "within the patience it stays"
        await at.pass_time(process)
        assert await at.hub.nominated("gang") == []
        assert reclaiming(at) == []
        assert "request" in (await at.workers["w1"].entries())["gang"], "it is asked about further on"
        await at.answers(process, w1="Never", w2="Free")
        await at.pass_time(process)
        assert await at.hub.nominated("gang") == ["w2"]
