"""The record of limited keeps: what no tenant writes, through other leaders, conflicts and deletions."""

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest
from builders import NOON, decision, minutes, policy
from small_cluster import NAME, NAMESPACE_NAME, SmallCluster, until
from suspension.replica import Replica

from scaler.decision.decision import Active
from scaler.decision.decision_cache import Key
from scaler.decision.reasons import DecisionReason
from scaler.errors import KubeError
from scaler.kube.objects.core import stamp
from scaler.kube.objects.resources import CONFIG_MAP, SCALED_OBJECT
from scaler.suspension import keep_record
from scaler.suspension.keep_record import KeepLimiter
from scaler.suspension.keeps import WEEK, Keep
from scaler.suspension.reconciler import SuspensionReconciler

UNTIL, KEEPS, BY = "idlegpu.io/keep-until", "idlegpu.io/keeps", "idlegpu.io/asked-by"
PLACE = "default", "idle-gpu-scaler-keeps"
ACTIVE = Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="m")


def use(*, hours_ago: float = 0, hours: float = 1, by: str = "anna") -> Keep:
    at = NOON - minutes(60 * hours_ago)
    return Keep(at=at, until=at + minutes(60 * hours), asked="x", on="ScaledObject train", by=by)


def record(leader: Replica, exists: Callable[[Key], bool] = lambda _: True) -> KeepLimiter:
    return KeepLimiter(api=leader.transport, announcer=leader.recorder, record=PLACE, exists=exists, clock=lambda: NOON)


async def limited(leader: Replica, cluster: SmallCluster, annotations: dict[str, str], **limits: object) -> str | None:
    """Until when a leader that has just begun keeps what is annotated so."""
    for key, value in annotations.items():
        await cluster.annotate(SCALED_OBJECT, NAME, key, value)
    leader.decides(decision(ACTIVE, policy=policy(**limits)))
    reconciler = SuspensionReconciler(
        leader.transport, leader.copies, leader.decision_cache, leader.recorder, clock=lambda: NOON
    )
    await until(leader.is_current)
    await reconciler.reconcile_scaled_object((NAMESPACE_NAME, NAME))
    found = (await cluster.read(SCALED_OBJECT, NAME))["metadata"].get("annotations", {})
    return found.get(UNTIL)


FAR = stamp(NOON + minutes(60_000))
FORGED = msgspec.json.encode([Keep(at=NOON - 2 * WEEK, until=NOON + minutes(60_000))]).decode()


@pytest.mark.parametrize("forged", [FORGED, "[]", "[", ""])
async def test_what_an_owner_writes_as_the_record_allows_nothing(cluster, leader, forged) -> None:
    await cluster.is_scaled_by({})
    limits = {"longest_keep": minutes(60), "keeps_per_week": 1}
    assert await limited(leader, cluster, {UNTIL: FAR, KEEPS: forged}, **limits) == stamp(NOON + minutes(60))
    again = {UNTIL: stamp(NOON + minutes(30)), KEEPS: forged, BY: "another"}
    assert await limited(leader, cluster, again, **limits) == stamp(NOON + minutes(60)), "the one of the week is used"


async def test_who_makes_a_scaled_object_anew_has_used_what_was_used(cluster, leader) -> None:
    await cluster.is_scaled_by({})
    assert await limited(leader, cluster, {UNTIL: FAR}, keeps_per_week=1) == FAR
    await cluster.delete(SCALED_OBJECT, NAME)
    await cluster.is_scaled_by({})
    other = stamp(NOON + minutes(70_000))
    assert await limited(leader, cluster, {UNTIL: other}, keeps_per_week=1) == FAR, "granted before"


async def test_without_the_record_nothing_is_limited_and_later_it_is(cluster, leader) -> None:
    await cluster.is_scaled_by({})
    with cluster.refusing("GET", "/configmaps/", status=403):
        assert await limited(leader, cluster, {UNTIL: FAR}, longest_keep=minutes(60)) == FAR
    assert await limited(leader, cluster, {UNTIL: FAR}, longest_keep=minutes(60)) == stamp(NOON + minutes(60))


async def test_another_leader_finds_what_was_recorded_and_of_two_one_reads_again(leader) -> None:
    one, other = record(leader), record(leader)
    assert await one.write(("a", "x"), (use(),), NOON)
    assert await other.of(("a", "x")) == (use(),)
    assert await other.write(("a", "y"), (use(),), NOON)
    with pytest.raises(KubeError) as conflict:
        await one.write(("a", "z"), (use(),), NOON)
    assert conflict.value.status == 409
    assert await one.write(("a", "z"), (use(),), NOON)
    assert [await record(leader).of(("a", name)) for name in "xyz"] == [(use(),)] * 3


async def test_uses_that_count_no_more_are_left_out(leader) -> None:
    lasts, over = use(hours_ago=200, hours=300), use(hours_ago=200)
    exists = {("a", "kept")}
    ours = record(leader, exists.__contains__)
    for name, uses in (("kept", lasts), ("gone", lasts), ("over", over), ("recent", use())):
        assert await ours.write(("a", name), (uses,), NOON)
    assert [len(await record(leader).of(("a", name))) for name in ("kept", "gone", "over", "recent")] == [1, 0, 0, 1]


async def test_a_namespace_fills_its_own_part_only(leader, monkeypatch) -> None:
    monkeypatch.setattr(keep_record, "_MOST", 5_000)
    ours = record(leader)
    written = [await ours.write(("greedy", f"x{n}"), (use(),), NOON) for n in range(20)]
    assert written[0]
    assert not written[-1]
    assert await ours.write(("other", "x"), (use(),), NOON)
    text = json.loads(await leader.transport.get(CONFIG_MAP.path(*PLACE)))["data"]["keeps"]
    assert len(text) < 5_000


async def test_one_that_cannot_be_recorded_is_refused(cluster, leader, monkeypatch) -> None:
    monkeypatch.setattr(keep_record, "_MOST", 100)
    await cluster.is_scaled_by({})
    assert await limited(leader, cluster, {UNTIL: FAR}, longest_keep=minutes(60)) is None
    assert any("are not recorded" in each for each in await leader.events("ScaledObject"))


@pytest.mark.parametrize("text", ["[", '{"a/x": 1}', "[" * 10_000, '{"a/x": [{"at": "2026-12-01T12:00:00"}]}'])
async def test_a_record_that_no_leader_has_written_says_what_to_do(leader, text) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PLACE[1]}, "data": {"keeps": text}}
    await leader.transport.create(CONFIG_MAP.path(PLACE[0]), body)
    with pytest.raises(KubeError, match="delete it: keeps are counted anew"):
        await record(leader).of(("a", "x"))


async def test_of_uses_at_the_same_time_each_counts(cluster, leader) -> None:
    """As by the workers of one leader, of a ScaledObject and of what it scales."""
    await cluster.is_scaled_by({})
    await cluster.annotate(SCALED_OBJECT, NAME, UNTIL, FAR)
    await until(leader.is_current)
    [ours] = leader.copies.scaled_objects.items()
    limiter = record(leader)
    metas = [
        msgspec.structs.replace(ours.metadata, annotations={UNTIL: stamp(NOON + minutes(60_000 + n))}) for n in range(4)
    ]
    limit = policy(keeps_per_week=2)
    found = await asyncio.gather(*(limiter._settled(ours.metadata.key, each, "it", limit) for each in metas))
    assert sorted(bool(each.refused) for each in found) == [False, False, True, True]
    assert len(await record(leader).of(ours.metadata.key)) == 2
