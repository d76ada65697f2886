"""Priority boosts against the embedded API, behind a webhook that treats them as Kueue's does."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from builders import BUSY, IDLE, NOON, a_target, at, minutes, policy, unknown, verdict
from small_cluster import NAME, WORKLOAD_NAME, SmallCluster, small_cluster, until
from suspension.replica import Replica, replica

from scaler.decision.decision import Decision, decide
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.target_state import Phase
from scaler.errors import KubeError
from scaler.idleness.policy import Policy, Reclaim
from scaler.idleness.verdict import Verdict
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.quota.from_objects.workloads import BOOST_ANNOTATION
from scaler.suspension.boost_annotations import BOOST_OWNER_ANNOTATION
from scaler.suspension.boost_controller import PriorityBoostController
from scaler.suspension.boost_gate import ASK_AGAIN, HOW_TO_SWITCH_ON, FeatureGate
from scaler.suspension.leader_api import NOT_LEADING, LeaderApi
from scaler.suspension.priority_boost import PATIENCE, BoostStep, PriorityBoost, Switch

LEFT = policy(reclaim=Reclaim.PRIORITY_BOOST)
VERDICTS_HOLD = minutes(10)
DEPLOYMENT = ScaleTargetRef(api_version="apps/v1", kind="Deployment", name=NAME)


def decided(found: Verdict = IDLE, *, by: Policy = LEFT, **standing_fields: Any) -> Decision:
    return decide(a_target(**standing_fields), verdict(found), policy=by, now=NOON)


IS_IDLE, IS_BUSY, IS_UNKNOWN = decided(), decided(BUSY), decided(unknown())


class KueuesWebhook(LeaderApi):
    """The API behind Kueue's webhook: it refuses a boost that is no number, with the gate on."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport, is_leader=lambda: self.leads)
        self.leads = True
        self.gate_is_on = True
        self.refuses_all = False
        self.asked = 0

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        self.asked += dry_run
        value = body["metadata"]["annotations"].get(BOOST_ANNOTATION)
        if self.refuses_all or (self.gate_is_on and value is not None and not re.fullmatch(r"[+-]?\d+", value)):
            told = f'admission webhook "vworkload.kb.io" denied the request: priority-boost: Invalid value: "{value}"'
            raise KubeError(told, status=403, reason="Forbidden")
        return await super().patch(path, body, dry_run=dry_run)


class Scene:
    """A gang that runs, its ScaledObject's decisions, and the loop under test."""

    def __init__(self, cluster: SmallCluster, one: Replica) -> None:
        self.cluster = cluster
        self.one = one
        self.api = KueuesWebhook(one.transport)
        self.boosting = self.boosts()

    def boosts(self, *, max_age: timedelta = VERDICTS_HOLD, **given: Any) -> PriorityBoostController:
        one, setting = self.one, PriorityBoost(**given)
        return PriorityBoostController(self.api, one.copies, one.board, one.recorder, setting, max_age=max_age)

    async def begin(self) -> None:
        await self.cluster.wants(1)
        await self.cluster.submit()
        await self.cluster.admit()
        await self.cluster.run_pods()

    async def tick(self, *decisions: Decision, seconds: float = 0.0, **where: Any) -> tuple[BoostStep, ...]:
        """The steps of one tick, so many seconds after noon, where these are the decisions."""
        self.one.decides(*decisions, **where)
        await until(self.one.is_current)
        return await self.boosting.tick(at(seconds))

    async def boost(self) -> str | None:
        found: str | None = (await self._annotations()).get(BOOST_ANNOTATION)
        return found

    async def note(self) -> Any:
        text = (await self._annotations()).get(BOOST_OWNER_ANNOTATION)
        return msgspec.json.decode(text) if text else None

    async def _annotations(self) -> dict[str, str]:
        found: dict[str, str] = (await self.cluster.observed_workload())["metadata"].get("annotations") or {}
        return found

    async def events(self, kind: str = "ScalableWorkload") -> list[str]:
        assert await self.one.recorder.drain(5)
        return [f"{reason}: {message}" for about, reason, message in await self.cluster.events() if about == kind]

    async def reasons(self, kind: str = "ScalableWorkload") -> list[str]:
        return [event.partition(":")[0] for event in await self.events(kind)]


@pytest.fixture
async def scene(tmp_path):
    async with small_cluster(tmp_path) as cluster, replica(cluster) as one:
        started = Scene(cluster, one)
        await started.begin()
        yield started


# ----------------------------------------------------------------------------------------------------- while it is idle


async def test_idle_is_boosted_once_and_both_objects_tell(scene):
    assert await scene.tick(IS_IDLE) == (BoostStep.WRITE,)
    assert await scene.boost() == "-1000"
    quiet = "every required GPU stayed below 1 % for 30m; Kueue preempts it first where it must"
    assert await scene.note() == {
        "value": -1000,
        "at": "2026-12-01T12:00:00Z",
        "by": f"ScalableWorkload/{NAME}",
        "message": quiet,
        "idleSince": "2026-12-01T10:10:00Z",
    }
    [told] = await scene.events()
    assert told.startswith(f"PriorityBoosted: priority boost -1000: {quiet}; it has no WorkloadPriorityClass, so that")
    assert await scene.events("Workload") == [told]
    assert await scene.tick(IS_IDLE, seconds=15) == ()
    assert await scene.reasons() == ["PriorityBoosted"]


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        pytest.param([IS_BUSY], "GPUsBusy: work seen within the last 30m", id="it works"),
        pytest.param([], "no ScaledObject has the policy", id="its ScaledObject is gone"),
    ],
)
async def test_the_boost_is_taken_back_when(scene, decisions, why):
    await scene.tick(IS_IDLE)
    assert await scene.tick(*decisions, seconds=15) == (BoostStep.REMOVE,)
    assert (await scene.boost(), await scene.note()) == (None, None)
    assert (await scene.events("Workload"))[-1].startswith(
        f"PriorityBoostRemoved: its priority boost is removed because {why}"
    )


async def test_the_boost_goes_with_the_scalable_workload(scene):
    await scene.tick(IS_IDLE)
    await scene.cluster.delete(SCALABLE_WORKLOAD, NAME)
    assert await scene.tick(IS_IDLE, seconds=15) == (BoostStep.REMOVE,)
    assert await scene.boost() is None


async def test_not_to_know_takes_the_boost_back_after_a_while_and_gives_none(scene):
    assert await scene.tick(IS_UNKNOWN) == ()
    await scene.tick(IS_IDLE)
    assert await scene.tick(IS_UNKNOWN, seconds=15) == ()
    late = 15 + PATIENCE.total_seconds()
    assert await scene.tick(IS_UNKNOWN, seconds=late - 1) == ()
    assert await scene.tick(IS_UNKNOWN, seconds=late) == (BoostStep.REMOVE,)


async def test_verdicts_that_are_not_renewed_are_not_known(scene):
    scene.boosting = scene.boosts(max_age=minutes(-1))
    assert await scene.tick(IS_IDLE) == ()
    assert await scene.tick(IS_IDLE, seconds=PATIENCE.total_seconds()) == ()
    assert await scene.boost() is None


async def test_what_kueue_has_preempted_keeps_its_boost_until_somebody_asks_for_it(scene):
    """Else it would take its quota back from the gang that it was preempted for, being older."""
    await scene.tick(IS_IDLE)
    await scene.cluster.evict("Preempted")
    assert await scene.tick(decided(phase=Phase.STARTING), seconds=15) == ()
    await scene.cluster.release()
    assert await scene.tick(decided(phase=Phase.WAITING_FOR_QUOTA), seconds=30) == ()
    assert await scene.boost() == "-1000"
    kept = policy(reclaim=Reclaim.PRIORITY_BOOST, keep_until=at(3600))
    assert await scene.tick(decided(by=kept, phase=Phase.WAITING_FOR_QUOTA), seconds=45) == (BoostStep.REMOVE,)


# --------------------------------------------------------------------------------------------- what others have written


async def test_somebody_elses_boost_is_left_alone_and_told_of_once(scene):
    await scene.cluster.annotate(WORKLOAD, WORKLOAD_NAME, BOOST_ANNOTATION, "-50")
    for seconds, now in ((0, IS_IDLE), (15, IS_IDLE), (30, IS_BUSY)):
        assert await scene.tick(now, seconds=seconds) == ()
    assert await scene.boost() == "-50"
    told = f"idle, but another client has given Workload {WORKLOAD_NAME} the priority boost -50; it is not changed"
    assert await scene.events() == [f"BoostedByOther: {told}"]


async def test_a_boost_that_somebody_has_replaced_is_theirs_from_then_on(scene):
    await scene.tick(IS_IDLE)
    await scene.cluster.annotate(WORKLOAD, WORKLOAD_NAME, BOOST_ANNOTATION, "50")
    assert await scene.tick(IS_IDLE, seconds=15) == (BoostStep.RELEASE_OWNERSHIP,)
    assert (await scene.boost(), await scene.note()) == ("50", None)
    assert await scene.tick(IS_BUSY, seconds=30) == ()
    assert await scene.boost() == "50"


async def test_of_two_scalable_workloads_only_the_older_speaks_for_the_workload(scene):
    reference = {"workloadRef": {"name": WORKLOAD_NAME}}
    await scene.cluster.wants(1, name="younger", **reference)
    younger = ScaleTargetRef(api_version=SCALABLE_WORKLOAD.api_version, kind=SCALABLE_WORKLOAD.kind, name="younger")
    assert await scene.tick(IS_IDLE, target=younger, name="younger") == ()
    assert await scene.boost() is None


# ----------------------------------------------------------------------------------------------- whether Kueue reads it


async def test_without_kueues_gate_nothing_is_written_and_the_owner_is_told_once(scene):
    scene.api.gate_is_on = False
    assert await scene.tick(IS_IDLE) == ()
    assert await scene.tick(IS_IDLE, seconds=15) == ()
    assert (await scene.boost(), await scene.note()) == (None, None)
    [told] = await scene.events()
    assert told.startswith("PriorityBoostOff: idle, but not boosted: Kueue does not read priority boosts; ")
    assert HOW_TO_SWITCH_ON in told
    assert scene.api.asked == 1


async def test_kueue_is_asked_again_and_then_boosts_begin(scene):
    scene.api.gate_is_on = False
    await scene.tick(IS_IDLE)
    scene.api.gate_is_on = True
    again = ASK_AGAIN[FeatureGate.OFF].total_seconds()
    assert await scene.tick(IS_IDLE, seconds=again - 1) == ()
    assert await scene.tick(IS_IDLE, seconds=again) == (BoostStep.WRITE,)
    assert scene.api.asked == 1 + 2


async def test_a_gate_that_is_switched_off_takes_the_boosts_back(scene):
    await scene.tick(IS_IDLE)
    scene.api.gate_is_on = False
    assert await scene.tick(IS_IDLE, seconds=ASK_AGAIN[FeatureGate.ON].total_seconds()) == (BoostStep.REMOVE,)
    assert await scene.reasons() == ["PriorityBoosted", "PriorityBoostOff", "PriorityBoostRemoved"]


async def test_a_refusal_that_is_not_about_the_number_is_no_sign_of_the_gate(scene):
    scene.api.refuses_all = True
    assert await scene.tick(IS_IDLE) == ()
    [told] = await scene.events()
    assert told.startswith("PriorityBoostUnknown: idle, but not boosted: whether Kueue reads priority boosts")
    scene.api.refuses_all = False
    assert await scene.tick(IS_IDLE, seconds=ASK_AGAIN[FeatureGate.UNKNOWN].total_seconds()) == (BoostStep.WRITE,)


async def test_nobody_is_asked_while_nobody_is_idle(scene):
    await scene.tick(IS_BUSY)
    await scene.tick(IS_UNKNOWN, seconds=15)
    assert scene.api.asked == 0


async def test_a_workload_that_is_gone_meanwhile_says_nothing_about_the_gate(scene):
    scene.one.decides(IS_IDLE)
    await until(scene.one.is_current)
    with scene.cluster.refusing("PATCH", WORKLOAD_NAME, status=404):
        assert await scene.boosting.tick(NOON) == ()
    assert await scene.events() == [
        "PriorityBoostUnknown: idle, but not boosted: no Workload is idle, so it was not checked"
    ]


@pytest.mark.parametrize("gate_is_on", [True, False])
async def test_the_operator_knows_better(scene, gate_is_on):
    """Where Kueue runs without its webhooks nothing refuses anything."""
    scene.api.gate_is_on = gate_is_on
    scene.boosting = scene.boosts(enabled=Switch.ON)
    assert await scene.tick(IS_IDLE) == (BoostStep.WRITE,)
    scene.boosting = scene.boosts(enabled=Switch.OFF)
    assert await scene.tick(decided(phase=Phase.WAITING_FOR_QUOTA), seconds=15) == (BoostStep.REMOVE,)
    assert await scene.tick(IS_IDLE, seconds=30) == ()
    assert scene.api.asked == 0
    assert (await scene.events())[-1] == (
        "PriorityBoostOff: idle, but not boosted: reclaim.priorityBoost.enabled is off in the settings"
    )


# ------------------------------------------------------------------------------------------------------------- failures


async def test_nothing_is_done_before_the_first_verdicts(scene):
    await scene.tick(IS_IDLE)
    one, board = scene.one, DecisionCache(max_age=minutes(10))
    successor = PriorityBoostController(
        scene.api, one.copies, board, one.recorder, PriorityBoost(), max_age=VERDICTS_HOLD
    )
    assert await successor.tick(NOON) == ()
    assert await scene.boost() == "-1000"


async def test_a_conflict_is_looked_at_again(scene):
    scene.boosting = scene.boosts(enabled=Switch.ON)
    with scene.cluster.refusing("PATCH", WORKLOAD_NAME, status=409):
        assert await scene.tick(IS_IDLE) == ()
    assert await scene.events() == []
    assert await scene.tick(IS_IDLE, seconds=15) == (BoostStep.WRITE,)


async def test_who_does_not_lead_writes_nothing(scene):
    scene.api.leads = False
    with pytest.raises(KubeError) as refusal:
        await scene.tick(IS_IDLE)
    assert refusal.value.reason == NOT_LEADING
    assert await scene.boost() is None


# -------------------------------------------------------------------------------------------- what cannot be boosted


async def test_a_target_without_a_workload_is_told_on_its_scaled_object_once(scene):
    await scene.cluster.is_scaled_by({"reclaim": "PriorityBoost"})
    for seconds in (0, 15):
        assert await scene.tick(IS_IDLE, target=DEPLOYMENT, seconds=seconds) == ()
    [told] = await scene.events("ScaledObject")
    assert told.startswith(f"CannotBeBoosted: 'reclaim: PriorityBoost' does nothing for Deployment/{NAME}: ")
