"""On a hub of MultiKueue: a gang waits for quota that idle a and b hold, whose pods run on worker clusters."""

from datetime import datetime
from typing import Any

import msgspec
from reclaim.reclaim_world import ON_PRESSURE, PressureWorld
from reclaim.test_controller import outcome

from scaler.decision.trigger_metadata import parse_metadata
from scaler.idleness.durations import parse_duration
from scaler.idleness.policy import resolve
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.remote import RemoteAnswer, judged_by
from scaler.idleness.verdict import Idle, Unknown, Verdict
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import decode
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.placement.capacity import capacity_of
from scaler.quota.model import MULTIKUEUE
from scaler.reclaim.search.values import NoPlanReason
from scaler.reclaim.transitions import LedgerStage
from scaler.reclaim.wake_planner import WakePlanner
from scaler.targets.target_state import ObservedWorkload, Phase

POLICY = resolve(("trigger metadata", parse_metadata(ON_PRESSURE)))
WORKERS = {
    "metadata": {"name": "workers"},
    "spec": {"controllerName": MULTIKUEUE},
    "status": {"conditions": [{"type": "Active", "status": "True", "reason": "Active", "message": ""}]},
}
SILENT = Unknown(reason=UnknownReason.REMOTE_VERDICT_MISSING, message="cluster w1 has not been heard of")


class Workers:
    """What the workers say of each workload. A stand-in for RemoteAnswers."""

    def __init__(self, started: datetime) -> None:
        self.started = started
        self.said: dict[str, Verdict] = {}

    def of(self, workload: ObservedWorkload) -> RemoteAnswer | Unknown:
        verdict = self.said.get(workload.name, SILENT)
        if isinstance(verdict, Unknown):
            return verdict
        idle_for = parse_duration("1h") if isinstance(verdict, Idle) else None
        return RemoteAnswer(
            cluster=workload.cluster,
            verdict=verdict,
            by=judged_by(POLICY),
            idle_since=self.started - idle_for if idle_for is not None else None,
            idle_for=idle_for,
            running_since=self.started - parse_duration("90m"),
            gpus=2,
        )


class HubWorld(PressureWorld):
    """Its workloads run on w1."""

    def __init__(self, quota: int = 8, **options: Any) -> None:
        super().__init__(quota, **options)
        self.workers = Workers(self.now)
        self.cluster.remote = self.workers.of
        self.restarts()

    def runs_there(self, *names: str, verdict: Verdict = Idle()) -> None:  # noqa: B008 (immutable)
        for name in names:
            self.runs(name)
            self.change(WORKLOAD, name, status={"clusterName": "w1"})
            self.ends_pods(name)
            self.workers.said[name] = verdict


async def waiting(verdict: Verdict = Idle()) -> HubWorld:  # noqa: B008 (immutable)
    made = HubWorld()
    made.runs_there("a", "b", verdict=verdict)
    made.waits("gang")
    await made.judged()
    return made


async def test_what_is_idle_on_a_worker_is_suspended_on_the_hub_for_a_gang_that_lacks_quota() -> None:
    made = await waiting()
    assert made.read(SCALABLE_WORKLOAD, "a")["spec"]["replicas"] == 1
    await made.passes(minutes=5)
    assert outcome(made, "a", "b") == ["suspended", "suspended"]
    assert made.is_admitted("gang")
    assert made.stage("a") == LedgerStage.ADMITTED
    status = made.read(SCALABLE_WORKLOAD, "a")["status"]
    assert status["phase"] == Phase.SUSPENDED


async def test_a_gang_that_multikueue_dispatches_needs_no_nodes_of_the_hub() -> None:
    for dispatches in (False, True):
        made = HubWorld(consider_nodes=True)
        made.capacity = lambda: capacity_of([], [])
        if dispatches:
            made.has_checks("workers")
            made.view.filing.put(decode(kube.AdmissionCheck, msgspec.json.encode(WORKERS)))
        made.runs_there("a", "b")
        made.waits("gang")
        await made.judged()
        report = await made.ticks()
        assert [each.gang for each in report.made] == (["demo/gang"] if dispatches else [])
        assert [each.why for each in report.refused] == ([] if dispatches else [NoPlanReason.PLACEMENT_IMPOSSIBLE])


async def test_what_was_suspended_comes_back_when_the_hubs_quota_is_free_whatever_nodes_the_hub_has() -> None:
    made = HubWorld(consider_nodes=True)
    made.capacity = lambda: capacity_of([], [])
    made.has_checks("workers")
    made.view.filing.put(decode(kube.AdmissionCheck, msgspec.json.encode(WORKERS)))
    made.runs_there("a", "b")
    made.is_scaled_by("a", {"wake": "WhenFree"})
    made.waits("gang")
    await made.passes(minutes=5)
    assert outcome(made, "a", "b") == ["suspended", "suspended"]
    planner = WakePlanner(made.pressure.planning)
    await made.passes(minutes=2)
    assert (await planner.plan(made.now)).woken == ()
    made.finishes("gang")
    await made.passes(minutes=1)
    assert [each.key for each in (await planner.plan(made.now)).woken] == [("demo", "a")]
