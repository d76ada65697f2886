"""The leader's loop on a real API: everything is told once, whatever fails and whoever leads."""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from builders import ACTIVE, NOON, a_target, decision
from notifications.notification_builders import LIMITS, TARGET, Receiver, states_of
from small_cluster import NAME, NAMESPACE_NAME, SmallCluster, until
from suspension.replica import Replica, replica
from virtual_clock import VirtualClock

from scaler.decision.decision import Active, Inactive
from scaler.decision.describe import timestamp
from scaler.decision.reasons import DecisionReason
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.resources import DEPLOYMENT, SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.writes import LeaderApi, PatchApi
from scaler.notifications.controller import NotificationController, Notifications
from scaler.notifications.message import Details
from scaler.notifications.senders import Content
from scaler.notifications.workloads import NotifiedWorkloads
from scaler.targets.owners import OWNER, Owners
from scaler.targets.workloads import NOTIFY_ANNOTATION as NOTIFY
from scaler.targets.workloads import NotifyTargets
from scaler.webhook import SendError

OWNERS, TARGETS = Owners(labels=("team",)), NotifyTargets(names=(TARGET,), default=(TARGET,))
TRIGGER = {"idleAfter": "1s"}


class Observer:
    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.age = timedelta(0)

    def sent(self, target: str, outcome: str) -> None:
        self.outcomes.append(outcome)

    def oldest_pending(self, age: timedelta) -> None:
        self.age = age


class Leader:
    """A replica's notifications; its loop runs when a test says so."""

    def __init__(self, one: Replica, receiver: Receiver, *, api: PatchApi | None = None) -> None:
        self.replica, self.receiver, self.observer = one, receiver, Observer()
        self.clock = VirtualClock(NOON)
        self.workloads = NotifiedWorkloads(one.copies, OWNERS, TARGETS)
        self.controller = NotificationController(
            api or one.transport,
            self.workloads,
            Notifications(limits=LIMITS, senders={TARGET: receiver}),
            lambda *_: Details(),
            self.observer,
            clock=self.clock,
        )

    async def ticks(self, after_s: float) -> None:
        await until(self.replica.is_current)
        await self.clock.advance((NOON + timedelta(seconds=after_s) - self.clock.now()).total_seconds())
        await self.controller.tick(self.clock.now())


async def enters(cluster: SmallCluster, *history: tuple[str, float], name: str = NAME) -> None:
    """(state, seconds after noon)"""
    lines = [
        {"at": timestamp(NOON + timedelta(seconds=after)), "state": state, "reason": "GPUsIdle", "message": "quiet"}
        for state, after in history
    ]
    await cluster.change(SCALABLE_WORKLOAD, name, {"status": {"history": lines, "state": lines[-1]["state"]}}, "status")


@pytest.fixture
async def cluster(cluster: SmallCluster) -> SmallCluster:
    await cluster.wants(1)
    await cluster.is_scaled_by(TRIGGER)
    return cluster


async def test_each_state_is_told_once_in_order(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        ours = Leader(one, Receiver())
        await enters(cluster, ("Busy", 0), ("Warned", 10))
        await ours.ticks(69)
        assert ours.receiver.got == []
        assert ours.observer.age == timedelta(seconds=59)
        await ours.ticks(70)
        await ours.ticks(71)
        assert ours.receiver.states == [["Warned"]]
        await enters(cluster, ("Busy", 0), ("Warned", 10), ("Suspending", 100), ("Suspended", 105), ("Waking", 130))
        for second in (110, 165, 166, 300):
            await ours.ticks(second)
        assert ours.receiver.states == [["Warned"], ["Suspended", "Waking"]]
        assert ours.observer.outcomes == ["delivered", "delivered"]
        assert (await cluster.status())["notified"][TARGET]["state"] == "Waking"


async def test_another_leader_repeats_nothing_and_loses_nothing(cluster: SmallCluster) -> None:
    receiver = Receiver()
    async with replica(cluster) as one:
        await enters(cluster, ("Warned", 0))
        await Leader(one, receiver).ticks(60)
    await enters(cluster, ("Warned", 0), ("Suspended", 70))
    async with replica(cluster) as other:
        after = Leader(other, receiver)
        await after.ticks(90)
        assert receiver.states == [["Warned"]]
        await after.ticks(130)
    assert receiver.states == [["Warned"], ["Suspended"]]


async def test_a_leader_with_an_old_copy_sends_nothing(cluster: SmallCluster) -> None:
    receiver = Receiver()
    async with replica(cluster) as one, replica(cluster) as other:
        await enters(cluster, ("Warned", 0))
        await until(other.is_current)
        deposed = Leader(other, receiver)
        old_copy = list(deposed.workloads.all())
        await Leader(one, receiver).ticks(60)
        deposed.workloads.all = lambda: iter(old_copy)  # type: ignore[method-assign]
        await deposed.ticks(61)
        await deposed.ticks(120)
        assert receiver.states == [["Warned"]]
        assert deposed.observer.outcomes == []


async def test_one_that_does_not_lead_any_more_sends_nothing(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        await enters(cluster, ("Warned", 0))
        leads = [False]
        ours = Leader(one, Receiver(), api=LeaderApi(one.transport, is_leader=lambda: leads[0]))
        await ours.ticks(60)
        assert ours.receiver.got == []
        leads[0] = True
        await ours.ticks(61)
        assert ours.receiver.states == [["Warned"]]


async def test_what_is_being_sent_when_it_stops_is_marked(cluster: SmallCluster) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Receiver):
        async def send(self, content: Content, now: datetime) -> None:
            began.set()
            await go_on.wait()
            await super().send(content, now)

    receiver = Slow()
    async with replica(cluster) as one:
        await enters(cluster, ("Warned", 0))
        tick = asyncio.create_task(Leader(one, receiver).ticks(60))
        await began.wait()
        tick.cancel()
        await asyncio.sleep(0.05)
        assert not tick.done()
        go_on.set()
        await asyncio.gather(tick, return_exceptions=True)
        assert tick.cancelled()
    async with replica(cluster) as other:
        await Leader(other, receiver).ticks(120)
    assert receiver.states == [["Warned"]]


async def test_a_failure_is_told_later_with_what_happened_since(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        ours = Leader(one, Receiver(failures=[SendError("it answers HTTP 500")] * 2))
        await enters(cluster, ("Warned", 0))
        await ours.ticks(60)
        await ours.ticks(89)
        assert ours.observer.outcomes == ["failed"]
        await ours.ticks(90)
        await enters(cluster, ("Warned", 0), ("Suspended", 100))
        await ours.ticks(149)
        assert ours.observer.outcomes == ["failed", "failed"]
        await ours.ticks(150)
        assert ours.receiver.states == [["Warned", "Suspended"]]


async def test_what_is_too_old_is_given_up_and_counted(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        ours = Leader(one, Receiver(failures=[SendError("down")] * 99))
        await enters(cluster, ("Suspended", 0))
        await ours.ticks(60)
        await ours.ticks(6 * 3600 + 1)
        assert ours.observer.outcomes == ["failed", "expired"]
        assert ours.observer.age == timedelta(0)


async def test_a_warning_that_stands_is_told_as_soon_as_that_is_possible_again(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        ours = Leader(one, Receiver(failures=[SendError("down")]))
        await enters(cluster, ("Warned", 0))
        await ours.ticks(60)
        await ours.ticks(9 * 3600)
        assert ours.receiver.states == [["Warned"]]


async def test_a_mark_that_cannot_be_written_is_written_later(cluster: SmallCluster) -> None:
    class NoMarks:
        """The API of a leader that may not write for a while."""

        is_down = True

        def __init__(self, one: Replica) -> None:
            self.get, self._patch = one.transport.get, one.transport.patch

        async def patch(self, path: str, body: object, *, dry_run: bool = False) -> bytes:
            if self.is_down and not dry_run:
                from scaler.errors import KubeError

                raise KubeError("etcd is down", status=503)
            return await self._patch(path, body, dry_run=dry_run)

    async with replica(cluster) as one:
        api = NoMarks(one)
        ours = Leader(one, Receiver(), api=api)
        await enters(cluster, ("Warned", 0))
        for second in (60, 70, 80):
            await ours.ticks(second)
        assert ours.receiver.states == [["Warned"]]
        api.is_down = False
        await ours.ticks(90)
        assert TARGET in (await cluster.status())["notified"]


async def test_owners_and_targets_are_as_annotated(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        ours = Leader(one, Receiver())
        await enters(cluster, ("Warned", 0))
        await cluster.annotate(SCALED_OBJECT, NAME, OWNER, "ada@example.com")
        await cluster.annotate(SCALED_OBJECT, NAME, NOTIFY, "none")
        await ours.ticks(60)
        assert ours.receiver.got == []
        await cluster.annotate(SCALED_OBJECT, NAME, NOTIFY, f"pager, {TARGET}")
        await ours.ticks(61)
        assert [each.owner for each in ours.receiver.got] == ["ada@example.com"]


async def test_what_tenants_write_stays_on_its_line(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        ours = Leader(one, Receiver())
        lines = [
            {"at": timestamp(NOON), "state": "Warned", "message": "x\n  to keep it: <http://evil>\r\n" + "y" * 200}
        ]
        await cluster.change(SCALABLE_WORKLOAD, NAME, {"status": {"history": lines}}, "status")
        await ours.ticks(60)
    (text,) = [each.text for each in ours.receiver.got]
    assert [each for each in text.splitlines() if "to keep it" in each][-1].startswith("  to keep it: kubectl")
    assert "  : x to keep it: ‹http://evil›" in text
    assert max(map(len, text.splitlines())) < 200


async def test_a_message_that_cannot_be_made_harms_no_other(cluster: SmallCluster) -> None:
    class Broken(Receiver):
        async def send(self, content: Content, now: datetime) -> None:
            if content.owner == "demo":
                raise RuntimeError
            await super().send(content, now)

    await cluster.wants(1, name="other")
    await cluster.is_scaled_by(TRIGGER, name="other")
    await cluster.annotate(SCALED_OBJECT, "other", OWNER, "team-b")
    async with replica(cluster) as one:
        ours = Leader(one, Broken())
        await enters(cluster, ("Warned", 0))
        await enters(cluster, ("Warned", 0), name="other")
        await ours.ticks(60)
        assert [each.owner for each in ours.receiver.got] == ["team-b"]
        assert sorted(ours.observer.outcomes) == ["delivered", "failed"]
        await ours.ticks(61)
        assert len(ours.observer.outcomes) == 2  # tried again later


SERVE = ScaleTargetRef(api_version=DEPLOYMENT.api_version, kind=DEPLOYMENT.kind, name="serve")


async def serves(cluster: SmallCluster, **annotations: str) -> None:
    """A ScaledObject of a Deployment."""
    target = {"apiVersion": SERVE.api_version, "kind": SERVE.kind, "name": SERVE.name}
    trigger = {"type": "external-push", "metadata": {"scalerAddress": "scaler:9090", **TRIGGER}}
    body = {
        "metadata": {"name": "serve", "annotations": annotations},
        "spec": {"scaleTargetRef": target, "triggers": [trigger]},
    }
    await cluster.create(SCALED_OBJECT, body)


async def decides(one: Replica, answer: Active | Inactive) -> None:
    """The reconciler of this replica writes at noon what is decided."""
    one.decides(decision(answer, target=a_target(desired_replicas=int(answer is ACTIVE))), target=SERVE, name="serve")
    await until(one.is_current)
    await one.reconciler.reconcile_scaled_object((NAMESPACE_NAME, "serve"))


SUSPENDED = Inactive(reason=DecisionReason.SUSPENDED, message="suspended; no wake-up requested")
HISTORY = "idlegpu.io/history"


def forged(*states: str) -> str:
    words = {"reason": "GPUsIdle", "message": "call me: http://evil", "by": "http://evil"}
    return json.dumps([{"at": timestamp(NOON), "state": each, **words} for each in states])


async def test_a_deployment_has_its_history_and_its_mark_in_its_record(cluster: SmallCluster) -> None:
    await serves(cluster)
    async with replica(cluster) as one:
        one.now = NOON
        await decides(one, ACTIVE)
        await decides(one, SUSPENDED)
        ours = Leader(one, Receiver())
        await ours.ticks(60)
        await ours.ticks(61)
    assert ours.receiver.states == [["Suspended"]]
    assert f"Deployment {NAMESPACE_NAME}/serve is suspended" in ours.receiver.got[0].subject
    found = (await cluster.record("serve"))["status"]
    assert found["notified"][TARGET]["state"] == "Suspended"
    assert [each["state"] for each in found["history"]] == ["Busy", "Suspended"]


async def test_no_message_is_made_of_a_history_that_a_tenant_may_have_written(cluster: SmallCluster) -> None:
    """Neither before this leader has decided anything, nor later, however often it is written."""
    await serves(cluster, **{HISTORY: forged("Warned", "Suspended"), OWNER: "boss@example.com"})
    async with replica(cluster) as one:
        one.now = NOON
        ours = Leader(one, Receiver())
        await ours.ticks(60)
        await decides(one, ACTIVE)
        for second in (200, 300):
            await cluster.annotate(SCALED_OBJECT, "serve", HISTORY, forged("Warned", "Suspended"))
            await decides(one, ACTIVE)
            await ours.ticks(second)
        assert {each for got in ours.receiver.states for each in got} <= {"Waking"}
    assert "evil" not in "".join(each.text + str(each.json) for each in ours.receiver.got)


async def test_what_another_leader_has_written_is_continued_without_its_words(cluster: SmallCluster) -> None:
    await serves(cluster, **{HISTORY: forged("Busy", "Suspended"), OWNER: "boss@example.com"})
    async with replica(cluster) as one:
        one.now = NOON
        ours = Leader(one, Receiver())
        await decides(one, SUSPENDED)
        await ours.ticks(60)
    assert ours.receiver.states == [["Suspended"]], "it is, and nobody has been told"
    assert "evil" not in "".join(each.text + str(each.json) for each in ours.receiver.got)


async def test_messages_have_no_words_of_those_who_asked_nor_of_hooks(cluster: SmallCluster) -> None:
    async with replica(cluster) as one:
        ours = Leader(one, Receiver())
        words = {"by": "http://evil", "message": "http://evil"}
        lines = [
            {"at": timestamp(NOON), "state": "Suspended", "reason": "BeforeSuspendFailed", **words},
            {"at": timestamp(NOON), "state": "Waking", "reason": "Waking", "message": "woken", "by": "http://evil"},
        ]
        await cluster.change(SCALABLE_WORKLOAD, NAME, {"status": {"history": lines}}, "status")
        await ours.ticks(60)
    [got] = ours.receiver.got
    assert "evil" not in got.text + str(got.json)
    assert "woken" in got.text


async def test_the_same_message_has_the_same_id_in_another_process(cluster: SmallCluster) -> None:
    """The one case that cannot be avoided: killed between delivery and mark."""
    receiver, killed = Receiver(), pytest.raises(_Killed)

    async def patch(path: str, body: object, *, dry_run: bool = False) -> bytes:
        if not dry_run:
            raise _Killed
        return b""

    await enters(cluster, ("Warned", 0))
    async with replica(cluster) as one:
        api = type("Api", (), {"patch": staticmethod(patch), "get": one.transport.get})()
        with killed:
            await _only_error(Leader(one, receiver, api=api).ticks, 60)
    async with replica(cluster) as other:
        await Leader(other, receiver).ticks(61)
    assert len(receiver.got) == 2
    assert receiver.got[0].id == receiver.got[1].id
    assert states_of(receiver.got[0].json) == ["Warned"]


class _Killed(Exception):  # noqa: N818 - no error of ours
    """As SIGKILL between two statements."""


async def _only_error(tick: Callable[[float], object], second: float) -> None:
    try:
        await tick(second)  # type: ignore[misc]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
