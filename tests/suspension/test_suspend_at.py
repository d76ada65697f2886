"""What pods are told of their suspension, against the embedded API."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import (
    BUSY,
    GPUS,
    IDLE,
    NO_ANSWER,
    NOON,
    a_target,
    at,
    decision,
    gpu_evidence,
    minutes,
    policy,
    verdict,
)
from small_cluster import NAMESPACE_NAME, PODS, SmallCluster, until
from suspension.replica import TARGET, Replica

from scaler.decision.decision import Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.gates import decide
from scaler.decision.reasons import DecisionReason
from scaler.errors import KubeError
from scaler.idleness.policy import EnforcementMode, Overrides, Reclaim
from scaler.kube.objects.core import stamp
from scaler.kube.objects.gpu_pods import gpu_pod
from scaler.kube.objects.resources import POD
from scaler.kube.writes import LeaderApi
from scaler.suspension.suspend_at import SuspendAtController, announced
from scaler.targets.cluster_state import WORKLOAD_ANNOTATION
from scaler.targets.target_state import Phase
from scaler.targets.workloads import SUSPEND_AT

TOLD, OTHER = PODS
"""Of two pods of the gang, the one that has the annotation."""
EARLIER, LATER = "2026-12-01T11:50:00Z", "2026-12-01T12:10:00Z"
WARNING = {"warning": minutes(10)}


def quiet_for(quiet: float, *, target: dict[str, Any] | None = None, **given: Any) -> Decision:
    """Of noon, about GPUs that worked last so many minutes before."""
    last = NOON - minutes(quiet)
    is_long = quiet >= 30
    seen = verdict(IDLE if is_long else BUSY, gpu_evidence(IDLE if is_long else BUSY, last_active_at=last))
    return decide(a_target(**(target or {})), seen, policy=policy(**given), now=NOON)


GRANTED = {"grant": "plan p1 for Workload team/gang"}
AT_ZERO = decision(
    Inactive(reason=DecisionReason.SUSPENDED, message="suspended"),
    target=a_target(desired_replicas=0, phase=Phase.SUSPENDED),
    verdict=None,
)
FINISHED = decision(Inactive(reason=DecisionReason.FINISHED, message="done"), target=a_target(desired_replicas=0))

CASES: dict[str, tuple[str, Decision, str]] = {
    "work was seen": (LATER, quiet_for(0), ""),
    "quiet, and it is not near": ("", quiet_for(24), ""),
    "five minutes before": ("", quiet_for(25), "2026-12-01T12:05:00Z"),
    "mode observe": ("", quiet_for(25, mode=EnforcementMode.OBSERVE), ""),
    "kept meanwhile": (LATER, quiet_for(25, keep_until=at(7200)), ""),
    "its policy warns, and no warning was given": ("", quiet_for(25, **WARNING), ""),
    "warned two minutes ago": (
        "",
        quiet_for(22, target={"warned_at": at(-120)}, **WARNING),
        "2026-12-01T12:08:00Z",
    ),
    "warned before its last work": (LATER, quiet_for(25, target={"warned_at": at(-1560)}, **WARNING), ""),
    "warned at once, and not noticeably quiet": (
        "",
        quiet_for(2, target={"warned_at": at(-60)}, warning=minutes(30)),
        "",
    ),
    "no plan takes it": (LATER, quiet_for(31, reclaim=Reclaim.ON_PRESSURE), ""),
    "a plan takes it": ("", quiet_for(31, target=GRANTED, reclaim=Reclaim.ON_PRESSURE), "2026-12-01T12:00:00Z"),
    "KEDA gets 0 from now on": (LATER, quiet_for(31), "2026-12-01T12:00:00Z"),
    "its hook has to end first": (LATER, quiet_for(31, before_suspend="checkpoint"), "2026-12-01T12:00:00Z"),
    "KEDA gets 0 since ten minutes": (EARLIER, quiet_for(40), EARLIER),
    "what it says is no time": ("soon", quiet_for(31), "2026-12-01T12:00:00Z"),
    "at 0, by whomever": ("", AT_ZERO, "2026-12-01T12:00:00Z"),
    "finished": (EARLIER, FINISHED, ""),
    "not known": (LATER, decision(NO_ANSWER), LATER),
}


@pytest.mark.parametrize(("known", "made", "expected"), CASES.values(), ids=CASES.keys())
def test_the_annotation_has_the_time_of_a_suspension_that_is_near(known: str, made: Decision, expected: str) -> None:
    assert announced(known, made, NOON) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [("", False), (179, True), (185, False), (-60, True)], ids=["empty", "near", "far", "past"]
)
def test_what_the_page_has_for_trainers_reads_it(tmp_path: Path, seconds: Any, expected: bool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    file = tmp_path / "suspend-at"
    file.write_text("" if seconds == "" else stamp(datetime.now(UTC) + timedelta(seconds=seconds)))
    assert made["is_suspended_soon"](file) is expected


# ------------------------------------------------------------------------------------------------------------ the loop


class Gang:
    """Two pods of one workload, of which one asks to be told, and the loop under test."""

    def __init__(self, cluster: SmallCluster, one: Replica) -> None:
        self.cluster = cluster
        self.one = one
        self.leads = True
        self.elapsed_s = 0.0
        api = LeaderApi(one.transport, is_leader=lambda: self.leads)
        self.decision_cache = DecisionCache(max_age=minutes(10), clock=lambda: self.elapsed_s)
        self.loop = SuspendAtController(api, one.copies, self.decision_cache, max_age=minutes(1))

    async def tick(self, *decisions: Decision, now: datetime = NOON, pods: bool = True) -> None:
        """Where these are the decisions on the workload."""
        await until(self.one.is_current)
        self.decides(*decisions, pods=pods)
        await self.loop.tick(now)

    def decides(self, *decisions: Decision, pods: bool = True) -> None:
        triggers = {Overrides(idle_after=minutes(1 + number)): each for number, each in enumerate(decisions)}
        found = [gpu_pod(each, GPUS) for each in self.one.copies.pods.items()] if pods else []
        entries = {(NAMESPACE_NAME, "gang"): EvaluatedScaledObject(target=TARGET, triggers=triggers, pods=found)}
        self.decision_cache.publish(Evaluation.of(entries if decisions else {}, at=NOON))

    async def said(self, pod: str = TOLD) -> str | None:
        found: str | None = (await self.cluster.read(POD, pod))["metadata"]["annotations"].get(SUSPEND_AT)
        return found

    @property
    def writes(self) -> list[Any]:
        return [body["metadata"]["annotations"] for path, body in self.one.patches if "/pods/" in path]


@pytest.fixture
async def gang(cluster: SmallCluster, leader: Replica) -> AsyncIterator[Gang]:
    await cluster.run_gang()
    await cluster.annotate(POD, TOLD, SUSPEND_AT, "")
    return Gang(cluster, leader)


async def test_pods_that_ask_for_it_are_told_once_and_told_when_work_is_seen(gang: Gang) -> None:
    for _ in range(3):
        await gang.tick(quiet_for(25))
    assert await gang.said() == "2026-12-01T12:05:00Z"
    assert (await gang.cluster.read(POD, TOLD))["metadata"]["annotations"][WORKLOAD_ANNOTATION]
    await gang.tick(quiet_for(0))
    await gang.tick(quiet_for(1))
    assert await gang.said() == ""
    assert await gang.said(OTHER) is None
    assert gang.writes == [{SUSPEND_AT: "2026-12-01T12:05:00Z"}, {SUSPEND_AT: ""}]


async def test_one_trigger_that_keeps_it_running_is_enough(gang: Gang) -> None:
    await gang.tick(quiet_for(31), quiet_for(0))
    assert gang.writes == []


async def test_a_pod_of_no_workload_is_told_nothing_unless_its_workload_may_be_unseen(gang: Gang) -> None:
    await gang.tick(quiet_for(25))
    await gang.tick(decision(NO_ANSWER), pods=False)
    assert await gang.said() == "2026-12-01T12:05:00Z"
    await gang.tick()
    assert await gang.said() == ""


async def test_old_decisions_are_not_told(gang: Gang) -> None:
    await until(gang.one.is_current)
    gang.decides(quiet_for(25))
    for elapsed_s, said in ((61.0, ""), (60.0, "2026-12-01T12:05:00Z")):
        gang.elapsed_s = elapsed_s
        await gang.loop.tick(NOON)
        assert await gang.said() == said


async def test_whoever_leads_no_more_writes_nothing(gang: Gang) -> None:
    gang.leads = False
    with pytest.raises(KubeError, match="no longer leads"):
        await gang.tick(quiet_for(25))
    assert gang.writes == []


async def test_a_pod_that_cannot_be_written_to_keeps_none_from_being_told(gang: Gang) -> None:
    await gang.cluster.annotate(POD, OTHER, SUSPEND_AT, "")
    with gang.cluster.refusing("PATCH", f"/pods/{TOLD}", status=403), pytest.raises(KubeError, match=TOLD):
        await gang.tick(quiet_for(25))
    assert (await gang.said(), await gang.said(OTHER)) == ("", "2026-12-01T12:05:00Z")
    await gang.tick(quiet_for(25))
    assert await gang.said() == "2026-12-01T12:05:00Z"


async def test_a_pod_that_is_gone_is_no_error(gang: Gang) -> None:
    await until(gang.one.is_current)
    gang.cluster.api.faults.silence_watches = True
    await gang.cluster.delete(POD, TOLD)
    gang.decides(quiet_for(25))
    await gang.loop.tick(NOON)
    assert len(gang.writes) == 1
