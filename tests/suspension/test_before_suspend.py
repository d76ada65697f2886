"""The leader's loop that runs hooks, against the embedded API, in virtual time. What hooks do is in test_hooks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from builders import BUSY, IDLE, NOON, a_target, at, gpu_evidence, minutes, policy, unknown, verdict, window
from http_stub import HttpStub, Reply
from small_cluster import NAME, NAMESPACE_NAME, SmallCluster, until
from suspension.replica import TARGET, Replica, replica
from virtual_clock import VirtualClock, settle

from scaler.decision.annotated_status import annotated_status
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.gates import decide
from scaler.errors import KubeError
from scaler.idleness.hooks import HookOutcome, HookRun, OnFailure
from scaler.idleness.policy import Overrides, Reclaim
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef
from scaler.kube.objects.resources import DEPLOYMENT, SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.writes import LeaderApi
from scaler.suspension.before_suspend import BeforeSuspendController
from scaler.suspension.hooks import SUCCEEDED, HookCall, HookConfig, HookKind, HookProgress, WebhookHook
from scaler.targets.records import record_body
from scaler.targets.target_state import TargetState
from scaler.targets.workloads import hook_run_of
from scaler.webhook import Receiver

PENDING = HookProgress(outcome=None, message="it answers HTTP 500")
REFUSED = HookProgress(outcome=HookOutcome.FAILED, message="it answers HTTP 403")
HOOK = {"before_suspend": "checkpoint"}
CONFIGS = {"checkpoint": HookConfig(name="checkpoint", kind=HookKind.WEBHOOK, timeout=minutes(5))}
TRIGGER = {"beforeSuspend": "checkpoint"}


class ScriptedHook:
    """Answers as it is told; without an answer it is not done."""

    def __init__(self) -> None:
        self.calls: list[HookCall] = []
        self.called_at: list[datetime] = []
        self.answers: list[HookProgress] = []
        self.default = PENDING
        self.before: Callable[[], None] = lambda: None

    async def attempt(self, call: HookCall, now: datetime) -> HookProgress:
        self.before()
        self.calls.append(call)
        self.called_at.append(now)
        await asyncio.sleep(0)
        return self.answers.pop(0) if self.answers else self.default

    @property
    def ids(self) -> list[str]:
        return list(dict.fromkeys(each.id for each in self.calls))


class Leader:
    """One process that leads, at noon."""

    def __init__(self, cluster: SmallCluster, one: Replica, clock: VirtualClock, hook: Any) -> None:
        self.cluster, self.one, self.clock, self.hook = cluster, one, clock, hook
        self.leads = True
        self.ended: list[tuple[str, str]] = []
        self.decision_cache = DecisionCache(max_age=minutes(60), clock=clock.monotonic)
        self.controller = BeforeSuspendController(
            LeaderApi(
                one.transport, is_leader=lambda: self.leads, copies={each.resource: each for each in one.reflectors.all}
            ),
            one.copies,
            self.decision_cache,
            one.recorder,
            CONFIGS,
            make=lambda _: hook,
            max_age=minutes(1),
            ended=lambda *each: self.ended.append(each),
            clock=clock,
        )

    async def tick(
        self,
        *,
        quiet_for: float = 40,
        missing: bool = False,
        after_s: float = 0.0,
        target: ScaleTargetRef = TARGET,
        name: str = NAME,
        grant: str = "",
        **given: Any,
    ) -> Decision:
        """The evaluator decides, after so many seconds, and the loop has its turn."""
        await self.clock.advance(after_s)
        await until(self.one.is_current)
        made = self.decided(quiet_for, missing, self.record(name), grant, given)
        before = self.decision_cache.evaluation.entries if self.decision_cache.evaluation else {}
        entry = EvaluatedScaledObject(target=target, triggers={Overrides(): made})
        entries = {**before, (NAMESPACE_NAME, name): entry}
        self.decision_cache.publish(Evaluation.of(entries, at=self.clock.now()))
        await self.turn()
        return made

    async def turn(self) -> None:
        await self.controller.tick(self.clock.now())
        await settle()

    def decided(
        self, quiet_for: float, missing: bool, run: HookRun | None, grant: str, given: dict[str, Any]
    ) -> Decision:
        now = self.clock.now()
        found = unknown() if missing else IDLE if quiet_for >= 30 else BUSY
        windows = {"gpu_util": window(last=now)}
        seen = verdict(found, gpu_evidence(found, last_active_at=now - minutes(quiet_for), windows=windows))
        target: TargetState = a_target(hook_run=run, grant=grant)
        return decide(target, seen, policy=policy(**{**HOOK, **given}), now=now)

    def record(self, name: str = NAME) -> HookRun | None:
        """As the copies have it."""
        found = self.one.copies.scaled_objects.get(NAMESPACE_NAME, name)
        record = self.one.copies.record_of(found) if found is not None else None
        return hook_run_of(record.status.before_suspend) if record is not None else None

    async def status(self) -> Any:
        return (await self.cluster.status()).get("beforeSuspend")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOON)


@asynccontextmanager
async def leading(cluster: SmallCluster, clock: VirtualClock, hook: Any) -> AsyncIterator[Leader]:
    async with replica(cluster) as one:
        leader = Leader(cluster, one, clock, hook)
        try:
            yield leader
        finally:
            await leader.controller.stop()


@pytest.fixture
async def leader(cluster: SmallCluster, clock: VirtualClock) -> AsyncIterator[Leader]:
    await cluster.run_gang()
    await cluster.is_scaled_by(TRIGGER)
    async with leading(cluster, clock, ScriptedHook()) as found:
        yield found


NOW, LATER = "2026-12-01T12:00:00Z", "2026-12-01T12:00:15Z"


async def test_a_run_is_written_down_before_its_first_call_and_then_its_end(leader: Leader) -> None:
    written: list[int] = []
    leader.hook.before = lambda: written.append(len(leader.one.patches))
    leader.hook.answers = [PENDING, SUCCEEDED]
    made = await leader.tick()
    assert made.answer.reason == "BeforeSuspend"
    assert await leader.status() == {"hook": "checkpoint", "startedAt": NOW}
    await leader.tick(after_s=15)
    assert written == [1, 1]
    assert await leader.status() == {
        "hook": "checkpoint",
        "startedAt": NOW,
        "endedAt": LATER,
        "outcome": "Succeeded",
        "savedAt": NOW,
    }
    made = await leader.tick(after_s=15)
    assert made.answer.reason == "GPUsIdle"
    assert leader.ended == [("checkpoint", "Succeeded")]
    assert (len(leader.hook.calls), len(leader.one.patches)) == (2, 2)
    events = await leader.one.events()
    assert "BeforeSuspendSucceeded: hook checkpoint has succeeded" in events


async def test_a_hook_is_told_what_it_is_about(leader: Leader) -> None:
    await leader.tick()
    [call] = leader.hook.calls
    assert (call.kind, call.name, call.scaled_object) == ("RayCluster", NAME, NAME)
    assert (call.idle_since, call.started_at, call.deadline) == (at(-2400), NOON, at(300))
    assert len(call.evidence) == 1
    body = json.loads(call.body)
    assert (body["deadline"], body["idleSince"]) == ("2026-12-01T12:05:00Z", "2026-12-01T11:20:00Z")
    assert (body["namespace"], body["id"]) == (NAMESPACE_NAME, call.id)


async def test_a_hook_that_goes_on_failing_times_out_and_holds_its_workload_for_a_while(leader: Leader) -> None:
    await leader.tick()
    await leader.tick(after_s=299)
    assert (await leader.status()).get("outcome") is None
    await leader.tick(after_s=2)
    ended = await leader.status()
    assert (ended["outcome"], ended["message"]) == ("TimedOut", "not done within 5m: it answers HTTP 500")
    assert len(leader.hook.calls) == 60  # every 5 s
    made = await leader.tick(after_s=15)
    assert made.answer.reason == "BeforeSuspendFailed"
    assert "again from 2026-12-01T12:35:01Z on" in made.answer.message
    await leader.tick(after_s=29 * 60)
    assert len(leader.hook.ids) == 1
    await leader.tick(after_s=60)
    assert len(leader.hook.ids) == 2


async def test_with_continue_it_is_suspended_although_its_hook_has_failed(leader: Leader) -> None:
    leader.hook.answers = [REFUSED]
    goes_on = {"before_suspend_on_failure": OnFailure.CONTINUE}
    await leader.tick(**goes_on)
    await leader.tick(after_s=15, **goes_on)
    made = await leader.tick(after_s=15, **goes_on)
    assert made.answer.reason == "GPUsIdle"
    assert "hook checkpoint has failed: it answers HTTP 403" in made.answer.message
    assert leader.ended == [("checkpoint", "Failed")]


async def test_another_leader_goes_on_with_the_same_run_within_the_same_time(
    leader: Leader, cluster: SmallCluster, clock: VirtualClock
) -> None:
    await leader.tick()
    await leader.controller.stop()
    other = ScriptedHook()
    async with leading(cluster, clock, other) as successor:
        await successor.tick(after_s=120)
        assert other.ids == leader.hook.ids
        assert other.calls[0].deadline == at(300)
        assert await successor.status() == {"hook": "checkpoint", "startedAt": NOW}
        await successor.controller.stop()
    async with leading(cluster, clock, third := ScriptedHook()) as last:
        await last.tick(after_s=200)
        await last.tick(after_s=15)
        assert third.calls == []
        assert (await last.status())["outcome"] == "TimedOut"


async def test_a_run_whose_process_ended_before_its_first_call_begins_with_the_next(
    leader: Leader, cluster: SmallCluster, clock: VirtualClock
) -> None:
    await leader.tick()
    first = leader.hook.ids
    leader.hook.calls.clear()
    await leader.controller.stop()
    async with leading(cluster, clock, hook := ScriptedHook()) as successor:
        await successor.tick(after_s=15)
        assert hook.ids == first


async def test_whoever_leads_no_more_begins_nothing(leader: Leader) -> None:
    leader.leads = False
    with pytest.raises(KubeError, match="no longer leads"):
        await leader.tick()
    assert leader.hook.calls == []
    assert await leader.status() is None


async def test_an_end_that_could_not_be_written_is_written_later(leader: Leader, cluster: SmallCluster) -> None:
    leader.hook.answers = [SUCCEEDED]
    await leader.tick()
    with cluster.refusing("PATCH", "/scalableworkloads/"):
        await leader.tick(after_s=15)
        await leader.tick(after_s=15)
    assert leader.ended == []
    await leader.tick(after_s=15)
    assert leader.ended == [("checkpoint", "Succeeded")]
    assert len(leader.hook.calls) == 1


async def test_a_run_begins_and_ends_once_while_watches_are_silent(leader: Leader, cluster: SmallCluster) -> None:
    leader.hook.answers = [SUCCEEDED]
    cluster.api.faults.silence_watches = True
    await leader.tick()
    for _ in range(3):
        await leader.clock.advance(5)
        await leader.turn()
    assert (len(leader.hook.calls), len(leader.one.patches)) == (1, 2)
    assert leader.ended == [("checkpoint", "Succeeded")]


async def test_one_busy_sample_ends_a_run_and_the_next_one_is_another(leader: Leader) -> None:
    await leader.tick()
    await leader.tick(after_s=15, quiet_for=0.1)
    ended = await leader.status()
    assert (ended["outcome"], "savedAt" in ended) == ("Outdated", False)
    assert leader.ended == [("checkpoint", "Outdated")]
    calls = len(leader.hook.calls)
    await leader.tick(after_s=1800, quiet_for=29)
    assert len(leader.hook.calls) == calls, "it is not waited for any more"
    made = await leader.tick(after_s=120, quiet_for=31)
    assert made.answer.reason == "BeforeSuspend"
    assert len(leader.hook.ids) == 2


@pytest.mark.parametrize("seen", [{"quiet_for": 0.1}, {"missing": True}], ids=["work", "missing samples"])
async def test_what_may_have_been_work_after_its_end_makes_it_run_again(leader: Leader, seen: dict[str, Any]) -> None:
    leader.hook.answers = [SUCCEEDED]
    await leader.tick()
    await leader.tick(after_s=15)
    await leader.tick(after_s=15, **seen)
    ended = await leader.status()
    assert (ended["outcome"], ended["endedAt"], ended["savedAt"]) == ("Outdated", LATER, NOW)
    assert leader.ended == [("checkpoint", "Succeeded")], "it is told of once"
    # The sample has left what is held of the samples, so that the workload looks idle since before.
    made = await leader.tick(after_s=15)
    assert made.answer.reason == "BeforeSuspend"
    assert len(leader.hook.ids) == 2
    assert (await leader.status())["savedAt"] == NOW


async def test_once_suspended_the_run_stays_as_it_ended(leader: Leader) -> None:
    leader.hook.answers = [SUCCEEDED]
    await leader.tick()
    await leader.tick(after_s=15)
    asleep = decide(a_target(desired_replicas=0, hook_run=leader.record()), None, policy=policy(**HOOK), now=at(30))
    entry = EvaluatedScaledObject(target=TARGET, triggers={Overrides(): asleep})
    leader.decision_cache.publish(Evaluation.of({(NAMESPACE_NAME, NAME): entry}, at=at(30)))
    await leader.turn()
    assert (await leader.status())["outcome"] == "Succeeded"


async def test_a_hook_runs_only_where_nothing_else_keeps_its_workload(leader: Leader) -> None:
    await leader.tick(keep_until=at(3600))
    await leader.tick(reclaim=Reclaim.ON_PRESSURE)
    await leader.tick(warning=minutes(10))
    assert leader.hook.calls == []
    await leader.tick(reclaim=Reclaim.ON_PRESSURE, grant="plan p1 for Workload team/gang")
    assert len(leader.hook.calls) == 1


async def test_a_hook_that_breaks_has_failed(leader: Leader) -> None:
    def breaks() -> None:
        raise ZeroDivisionError

    leader.hook.before = breaks
    await leader.tick()
    await leader.tick(after_s=15)
    assert (await leader.status())["message"] == "internal error: ZeroDivisionError"
    assert leader.ended == [("checkpoint", "Failed")]


# ------------------------------------------------------------------------------------------------------ other targets


async def deployment(cluster: SmallCluster, name: str) -> ScaleTargetRef:
    """A ScaledObject of a Deployment, and its record."""
    target = {"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.kind, "name": name}
    triggers = [{"type": "external", "metadata": {"scalerAddress": "scaler:9090", **TRIGGER}}]
    spec = {"scaleTargetRef": target, "triggers": triggers}
    made = await cluster.create(SCALED_OBJECT, {"metadata": {"name": name}, "spec": spec})
    scaled_object = decode(ScaledObject, json.dumps(made).encode())
    await cluster.create(SCALABLE_WORKLOAD, record_body(scaled_object))
    return ScaleTargetRef(api_version=DEPLOYMENT.api_version, kind=DEPLOYMENT.kind, name=name)


async def test_of_any_other_target_the_run_stands_in_its_record(leader: Leader, cluster: SmallCluster) -> None:
    target = await deployment(cluster, "web")
    leader.hook.answers = [SUCCEEDED]
    await leader.tick(target=target, name="web")
    await leader.tick(target=target, name="web", after_s=15)
    found = (await cluster.record("web"))["status"]["beforeSuspend"]
    assert {key: value for key, value in found.items() if value} == {
        "hook": "checkpoint",
        "startedAt": NOW,
        "endedAt": LATER,
        "outcome": "Succeeded",
        "savedAt": NOW,
    }
    made = await leader.tick(target=target, name="web", after_s=15)
    assert made.answer.reason == "GPUsIdle"


async def test_where_no_keda_scales_it_the_run_is_the_scalable_workloads_own(
    cluster: SmallCluster, clock: VirtualClock
) -> None:
    job = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME}
    await cluster.wants(1, jobRef=job, actuator="Direct", triggerMetadata=TRIGGER)
    async with leading(cluster, clock, ScriptedHook()) as leader:
        await leader.tick()
        [call] = leader.hook.calls
        assert (call.owner, call.scaled_object, call.name) == (SCALABLE_WORKLOAD, NAME, NAME)
        assert await leader.status() == {"hook": "checkpoint", "startedAt": NOW}


async def test_victims_of_plans_come_first_and_no_more_run_than_there_are_places(
    leader: Leader, cluster: SmallCluster
) -> None:
    targets = {name: await deployment(cluster, name) for name in (f"web-{number:02}" for number in range(33))}
    await until(leader.one.is_current)
    entries = {
        (NAMESPACE_NAME, name): EvaluatedScaledObject(
            target=target, triggers={Overrides(): leader.decided(40, False, None, "", {})}
        )
        for name, target in targets.items()
    }
    granted = leader.decided(40, False, None, "plan p1", {"reclaim": Reclaim.ON_PRESSURE})
    entries[NAMESPACE_NAME, NAME] = EvaluatedScaledObject(target=TARGET, triggers={Overrides(): granted})
    leader.decision_cache.publish(Evaluation.of(entries, at=NOON))
    await leader.turn()
    assert len(leader.hook.ids) == 32
    assert leader.hook.calls[0].scaled_object == NAME
    leader.hook.default = SUCCEEDED
    await leader.clock.advance(5)
    await until(leader.one.is_current)
    await leader.turn()
    await until(leader.one.is_current)
    assert len(leader.hook.ids) == 34


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[]", '{"hook": "checkpoint"}', '{"hook": "h", "startedAt": "2026-12-01T12:00:00", "outcome": ""}'],
)
def test_a_run_of_0_1_0_that_cannot_be_read_is_none(text: str) -> None:
    found = annotated_status({"idlegpu.io/before-suspend": text}, NOON)
    assert hook_run_of(found.before_suspend) is None


def test_a_record_with_an_outcome_that_nobody_knows_is_none() -> None:
    body = {"metadata": {"name": "a"}, "status": {"beforeSuspend": {"hook": "h", "startedAt": NOW, "outcome": "Fine"}}}
    found = decode(ScalableWorkload, json.dumps({**body, "spec": {}}).encode())
    assert hook_run_of(found.status.before_suspend) is None


# ----------------------------------------------------------------------------------------------------- a real receiver


async def test_a_receiver_that_fails_is_asked_again_with_the_same_key_by_the_next_leader_too(
    leader: Leader, tmp_path: Path, cluster: SmallCluster, clock: VirtualClock
) -> None:
    statuses = iter([500, 503, 202, 500, 204])
    with HttpStub(lambda _: Reply(b"", next(statuses))) as stub:
        (tmp_path / "url").write_text(stub.url)
        for calls in (2, 5):
            async with leading(cluster, clock, WebhookHook(Receiver(url_file=tmp_path / "url"))) as ours:

                async def has_called(calls: int = calls, ours: Leader = ours) -> bool:
                    if (due := clock.next_due) is not None:
                        await clock.advance(due - clock.monotonic())
                    await ours.tick()
                    return bool(ours.ended) if calls == 5 else len(stub.received) >= calls

                await until(has_called)
        assert (await ours.status())["outcome"] == "Succeeded"
        assert len(stub.received) == 5
        assert len({each.headers["Idempotency-Key"] for each in stub.received}) == 1
        assert len({each.body for each in stub.received}) <= 2, "idleSince and evidence may differ for another leader"
        assert {json.loads(each.body)["startedAt"] for each in stub.received} == {NOW}
