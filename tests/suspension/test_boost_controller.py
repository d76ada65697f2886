"""Priority boosts against the embedded API, behind a webhook that treats them as Kueue's does."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from builders import BUSY, IDLE, NOON, WorkloadJson, a_target, at, minutes, observed, policy, unknown, verdict
from small_cluster import NAME, WORKLOAD_NAME, SmallCluster, small_cluster, until
from suspension.replica import Replica, replica

from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.gates import decide
from scaler.errors import KubeError
from scaler.idleness.policy import Policy, Reclaim
from scaler.idleness.verdict import Verdict
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.kube.writes import LeaderApi
from scaler.quota.from_objects.workloads import BOOST_ANNOTATION
from scaler.suspension.boost_controller import (
    BOOST_OWNER_ANNOTATION,
    PriorityBoostController,
    boost_of,
    is_reconsidered,
    note,
    patch,
)
from scaler.suspension.boost_gate import ASK_AGAIN, HOW_TO_SWITCH_ON, FeatureGate
from scaler.suspension.priority_boost import PATIENCE, Boost, BoostOwner, BoostStep, BoostSwitch, PriorityBoost
from scaler.targets.target_state import Phase

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


class BoostedGang:
    """A gang that runs, its ScaledObject's decisions, and the loop under test."""

    def __init__(self, cluster: SmallCluster, one: Replica) -> None:
        self.cluster = cluster
        self.one = one
        self.api = KueuesWebhook(one.transport)
        self.spared: dict[str, str] = {}
        self.boosting = self.boosts()

    def boosts(self, *, max_age: timedelta = VERDICTS_HOLD, **given: Any) -> PriorityBoostController:
        one, setting = self.one, PriorityBoost(**given)
        return PriorityBoostController(
            self.api,
            one.copies,
            one.decision_cache,
            one.recorder,
            setting,
            max_age=max_age,
            spares=lambda: self.spared,
        )

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


@pytest.fixture
async def gang(tmp_path):
    async with small_cluster(tmp_path) as cluster, replica(cluster) as one:
        await cluster.run_gang()
        yield BoostedGang(cluster, one)


# ----------------------------------------------------------------------------------------------------- while it is idle


async def test_idle_is_boosted_once_and_both_objects_get_the_event(gang):
    assert await gang.tick(IS_IDLE) == (BoostStep.WRITE,)
    assert await gang.boost() == "-1000"
    quiet = "every required GPU stayed below 1 % for 30m; Kueue preempts it first where it must"
    assert await gang.note() == {
        "value": -1000,
        "at": "2026-12-01T12:00:00Z",
        "by": f"ScalableWorkload/{NAME}",
        "message": quiet,
        "idleSince": "2026-12-01T10:10:00Z",
    }
    [told] = await gang.one.events()
    assert told.startswith(f"PriorityBoosted: priority boost -1000: {quiet}; it has no WorkloadPriorityClass, so that")
    assert await gang.one.events("Workload") == [told]
    assert await gang.tick(IS_IDLE, seconds=15) == ()
    assert await gang.one.reasons() == ["PriorityBoosted"]


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        pytest.param([IS_BUSY], "GPUsBusy: work seen within the last 30m", id="it works"),
        pytest.param([], "no ScaledObject has the policy", id="its ScaledObject is gone"),
    ],
)
async def test_the_boost_is_taken_back_when(gang, decisions, why):
    await gang.tick(IS_IDLE)
    assert await gang.tick(*decisions, seconds=15) == (BoostStep.REMOVE,)
    assert (await gang.boost(), await gang.note()) == (None, None)
    assert (await gang.one.events("Workload"))[-1].startswith(
        f"PriorityBoostRemoved: its priority boost is removed because {why}"
    )


async def test_the_boost_goes_with_the_scalable_workload(gang):
    await gang.tick(IS_IDLE)
    await gang.cluster.delete(SCALABLE_WORKLOAD, NAME)
    assert await gang.tick(IS_IDLE, seconds=15) == (BoostStep.REMOVE,)
    assert await gang.boost() is None


async def test_unknown_removes_the_boost_after_a_while_and_writes_none(gang):
    assert await gang.tick(IS_UNKNOWN) == ()
    await gang.tick(IS_IDLE)
    assert await gang.tick(IS_UNKNOWN, seconds=15) == ()
    late = 15 + PATIENCE.total_seconds()
    assert await gang.tick(IS_UNKNOWN, seconds=late - 1) == ()
    assert await gang.tick(IS_UNKNOWN, seconds=late) == (BoostStep.REMOVE,)


async def test_old_verdicts_count_as_unknown(gang):
    gang.boosting = gang.boosts(max_age=minutes(-1))
    assert await gang.tick(IS_IDLE) == ()
    assert await gang.tick(IS_IDLE, seconds=PATIENCE.total_seconds()) == ()
    assert await gang.boost() is None


# ----------------------------------------------------------------------------------------------------------- MultiKueue


@pytest.mark.parametrize("queue", ["", "cluster-queue"], ids=["where its tree is not known", "in its tree"])
async def test_while_a_copy_waits_that_is_not_for_this_cluster_nothing_is_boosted(gang, queue):
    await gang.tick(IS_IDLE)
    admission = (await gang.cluster.observed_workload())["status"]["admission"]
    gang.spared = {queue and admission["clusterQueue"]: "Workload team/copy waits, and it is a remote copy"}
    assert await gang.tick(IS_IDLE, seconds=15) == (BoostStep.REMOVE,)
    assert (await gang.one.events("Workload"))[-1].endswith("because Workload team/copy waits, and it is a remote copy")
    assert await gang.tick(IS_IDLE, seconds=30) == ()
    gang.spared = {"another": "Workload team/copy waits, and it is a remote copy"}
    assert await gang.tick(IS_IDLE, seconds=45) == (BoostStep.WRITE,)


async def test_a_remote_copy_is_never_boosted(gang):
    await gang.cluster.change(WORKLOAD, WORKLOAD_NAME, {"metadata": {"labels": {MULTIKUEUE_ORIGIN: "multikueue"}}})
    assert await gang.tick(IS_IDLE) == ()
    assert await gang.boost() is None


# --------------------------------------------------------------------------------------------- what others have written


async def test_a_boost_of_another_client_stays_and_is_one_event(gang):
    await gang.cluster.annotate(WORKLOAD, WORKLOAD_NAME, BOOST_ANNOTATION, "-50")
    for seconds, now in ((0, IS_IDLE), (15, IS_IDLE), (30, IS_BUSY)):
        assert await gang.tick(now, seconds=seconds) == ()
    assert await gang.boost() == "-50"
    told = f"idle, but another client has given Workload {WORKLOAD_NAME} the priority boost -50; it is not changed"
    assert await gang.one.events() == [f"BoostedByOther: {told}"]


async def test_of_two_scalable_workloads_only_the_older_speaks_for_the_workload(gang):
    reference = {"workloadRef": {"name": WORKLOAD_NAME}}
    await gang.cluster.wants(1, name="younger", **reference)
    younger = ScaleTargetRef(api_version=SCALABLE_WORKLOAD.api_version, kind=SCALABLE_WORKLOAD.kind, name="younger")
    assert await gang.tick(IS_IDLE, target=younger, name="younger") == ()
    assert await gang.boost() is None


# ----------------------------------------------------------------------------------------------- whether Kueue reads it


async def test_without_the_feature_gate_nothing_is_written_but_one_event(gang):
    gang.api.gate_is_on = False
    assert await gang.tick(IS_IDLE) == ()
    assert await gang.tick(IS_IDLE, seconds=15) == ()
    assert (await gang.boost(), await gang.note()) == (None, None)
    [told] = await gang.one.events()
    assert told.startswith("PriorityBoostOff: idle, but not boosted: Kueue does not read priority boosts; ")
    assert HOW_TO_SWITCH_ON in told
    assert gang.api.asked == 1


async def test_the_feature_gate_is_probed_again_and_then_boosts_begin(gang):
    gang.api.gate_is_on = False
    await gang.tick(IS_IDLE)
    gang.api.gate_is_on = True
    again = ASK_AGAIN[FeatureGate.OFF].total_seconds()
    assert await gang.tick(IS_IDLE, seconds=again - 1) == ()
    assert await gang.tick(IS_IDLE, seconds=again) == (BoostStep.WRITE,)
    assert gang.api.asked == 1 + 2


async def test_a_gate_that_is_switched_off_takes_the_boosts_back(gang):
    await gang.tick(IS_IDLE)
    gang.api.gate_is_on = False
    assert await gang.tick(IS_IDLE, seconds=ASK_AGAIN[FeatureGate.ON].total_seconds()) == (BoostStep.REMOVE,)
    assert await gang.one.reasons() == ["PriorityBoosted", "PriorityBoostOff", "PriorityBoostRemoved"]


async def test_a_refusal_that_is_not_about_the_number_is_no_sign_of_the_gate(gang):
    gang.api.refuses_all = True
    assert await gang.tick(IS_IDLE) == ()
    [told] = await gang.one.events()
    assert told.startswith("PriorityBoostUnknown: idle, but not boosted: whether Kueue reads priority boosts")
    gang.api.refuses_all = False
    assert await gang.tick(IS_IDLE, seconds=ASK_AGAIN[FeatureGate.UNKNOWN].total_seconds()) == (BoostStep.WRITE,)


async def test_the_feature_gate_is_not_probed_while_no_workload_is_idle(gang):
    await gang.tick(IS_BUSY)
    await gang.tick(IS_UNKNOWN, seconds=15)
    assert gang.api.asked == 0


async def test_a_workload_that_is_gone_meanwhile_says_nothing_about_the_gate(gang):
    gang.one.decides(IS_IDLE)
    await until(gang.one.is_current)
    with gang.cluster.refusing("PATCH", WORKLOAD_NAME, status=404):
        assert await gang.boosting.tick(NOON) == ()
    assert await gang.one.events() == [
        "PriorityBoostUnknown: idle, but not boosted: no Workload is idle, so it was not checked"
    ]


@pytest.mark.parametrize("gate_is_on", [True, False])
async def test_the_settings_override_the_probe(gang, gate_is_on):
    """Where Kueue runs without its webhooks nothing refuses anything."""
    gang.api.gate_is_on = gate_is_on
    gang.boosting = gang.boosts(enabled=BoostSwitch.ON)
    assert await gang.tick(IS_IDLE) == (BoostStep.WRITE,)
    gang.boosting = gang.boosts(enabled=BoostSwitch.OFF)
    assert await gang.tick(decided(phase=Phase.WAITING_FOR_QUOTA), seconds=15) == (BoostStep.REMOVE,)
    assert await gang.tick(IS_IDLE, seconds=30) == ()
    assert gang.api.asked == 0
    assert (await gang.one.events())[-1] == (
        "PriorityBoostOff: idle, but not boosted: reclaim.priorityBoost.enabled is off in the settings"
    )


# ------------------------------------------------------------------------------------------------------------- failures


async def test_nothing_is_done_before_the_first_verdicts(gang):
    await gang.tick(IS_IDLE)
    one, decision_cache = gang.one, DecisionCache(max_age=minutes(10))
    successor = PriorityBoostController(
        gang.api, one.copies, decision_cache, one.recorder, PriorityBoost(), max_age=VERDICTS_HOLD
    )
    assert await successor.tick(NOON) == ()
    assert await gang.boost() == "-1000"


async def test_a_conflict_is_looked_at_again(gang):
    gang.boosting = gang.boosts(enabled=BoostSwitch.ON)
    with gang.cluster.refusing("PATCH", WORKLOAD_NAME, status=409):
        assert await gang.tick(IS_IDLE) == ()
    assert await gang.one.events() == []
    assert await gang.tick(IS_IDLE, seconds=15) == (BoostStep.WRITE,)


# -------------------------------------------------------------------------------------------- what cannot be boosted


async def test_a_target_without_a_workload_is_one_event_on_its_scaled_object(gang):
    await gang.cluster.is_scaled_by({"reclaim": "PriorityBoost"})
    for seconds in (0, 15):
        assert await gang.tick(IS_IDLE, target=DEPLOYMENT, seconds=seconds) == ()
    [told] = await gang.one.events("ScaledObject")
    assert told.startswith(f"CannotBeBoosted: 'reclaim: PriorityBoost' does nothing for Deployment/{NAME}: ")


# ---------------------------------------------------------------------------------------- the boost on a Workload

NOTE = note(value=-1000, at="2026-12-01T12:00:00Z", by="ScalableWorkload/first", message="idle")


def boost(*, value: str | None = None, mark: str | None = None) -> Boost:
    annotations = {BOOST_ANNOTATION: value, BOOST_OWNER_ANNOTATION: mark}
    return boost_of(
        WorkloadJson().with_annotations({key: text for key, text in annotations.items() if text is not None}).decoded()
    )


@pytest.mark.parametrize(
    ("value", "mark", "holder"),
    [
        pytest.param(None, None, BoostOwner.NONE, id="there is none"),
        pytest.param("", None, BoostOwner.NONE, id="it is empty"),
        pytest.param("-1000", NOTE, BoostOwner.US, id="the note names its value"),
        pytest.param("-1000", None, BoostOwner.OTHER, id="there is no note"),
        pytest.param("50", NOTE, BoostOwner.REPLACED, id="the note names another value"),
        pytest.param("-1000", "yes", BoostOwner.REPLACED, id="the note was garbled"),
        pytest.param("-1000", '{"value": "-1000"}', BoostOwner.REPLACED, id="the note's value is no number"),
        pytest.param(None, NOTE, BoostOwner.TAKEN_OFF, id="only the note is left"),
    ],
)
def test_whose_boost_it_is_when(value: str | None, mark: str | None, holder: BoostOwner) -> None:
    assert boost(value=value, mark=mark) == Boost(holder=holder, value=value or "")


def test_the_note_says_what_is_known_and_nothing_else() -> None:
    assert msgspec.json.decode(note(value=-5, at="2026-12-01T12:00:00Z", by="", idleSince=None)) == {
        "value": -5,
        "at": "2026-12-01T12:00:00Z",
    }


@pytest.mark.parametrize(
    ("step", "annotations"),
    [
        pytest.param(BoostStep.WRITE, {BOOST_ANNOTATION: "-1000", BOOST_OWNER_ANNOTATION: NOTE}, id="boost and note"),
        pytest.param(BoostStep.REMOVE, {BOOST_ANNOTATION: None, BOOST_OWNER_ANNOTATION: None}, id="neither"),
        pytest.param(BoostStep.RELEASE_OWNERSHIP, {BOOST_OWNER_ANNOTATION: None}, id="the note alone"),
    ],
)
def test_a_step_writes_at_once_and_only_what_was_decided_upon(
    step: BoostStep, annotations: dict[str, str | None]
) -> None:
    body = patch(step, observed(), value=-1000, cause=NOTE)
    assert body == {"metadata": {"uid": "7e6b1a34", "resourceVersion": "4711", "annotations": annotations}}


def test_a_written_boost_is_read_as_ours() -> None:
    written = patch(BoostStep.WRITE, observed(), value=-7, cause=note(value=-7))["metadata"]["annotations"]
    assert boost_of(WorkloadJson().with_annotations(written).decoded()) == Boost(holder=BoostOwner.US, value="-7")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (None, False),
        ({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "normal"}, True),
        ({"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "normal"}, False),
    ],
)
def test_kueue_reconsiders_who_waits_only_for_a_class_of_its_own(
    reference: dict[str, str] | None, expected: bool
) -> None:
    workload = WorkloadJson()
    if reference:
        workload.json["spec"]["priorityClassRef"] = reference
    assert is_reconsidered(workload.decoded()) is expected
