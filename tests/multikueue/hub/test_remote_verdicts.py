"""A gang of the hub runs on worker w1: what is decided about it on the hub, by what the workers say?"""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from builders import minutes
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import TICK
from multikueue.hub.hub_world import HubWorld

from scaler.decision.decision import Active, Inactive
from scaler.decision.describe import decision_status, explain
from scaler.decision.reasons import DecisionReason
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.multikueue import OfferPolicy
from scaler.multikueue.hub.worker_offer import WorkerOffer
from scaler.targets.target_state import Phase

MISSING = UnknownReason.REMOTE_VERDICT_MISSING
SILENT = ("w1", "w2")


async def hub(**metadata: str) -> HubWorld:
    """The gang runs on w1, and the hub has asked w1 by which policy it is to be judged."""
    made = HubWorld()
    made.dispatches("gang", to="w1", **metadata)
    await made.passes(minutes=1)
    return made


def unknown_because(made: HubWorld) -> UnknownReason | None:
    answer = made.answer("gang")
    return answer.reason if isinstance(answer, Unknown) else None


# ------------------------------------------------------------------------------------------------------ what is said


async def test_idle_there_is_idle_here() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=1)
    answer = made.answer("gang")
    assert isinstance(answer, Inactive)
    assert answer.reason is DecisionReason.GPUS_IDLE
    target = made.decision("gang").target
    assert (target.phase, target.admitted_replicas) == (Phase.RUNNING, 1)
    assert target.message == "admitted by cluster-queue; all GPU pods run on cluster w1"


async def test_busy_there_is_busy_here() -> None:
    made = await hub()
    made.says("w1", "gang", "Busy", idle_since=None)
    await made.passes(minutes=1)
    assert made.answer("gang") == Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")


async def test_unknown_there_is_unknown_here_and_says_where() -> None:
    made = await hub()
    made.says("w1", "gang", "Unknown", reason="NoSamples", verdict_message="DCGM_FI_PROF_SM_ACTIVE has no sample")
    await made.passes(minutes=1)
    expected = "on cluster w1: DCGM_FI_PROF_SM_ACTIVE has no sample"
    assert made.answer("gang") == Unknown(reason=UnknownReason.NO_SAMPLES, message=expected)


async def test_while_its_pods_do_not_all_run_there_it_is_starting() -> None:
    made = await hub()
    made.says("w1", "gang", "Unknown", runs_for=None, reason="MissingGPUs", verdict_message="1 of 2 GPU pods run")
    await made.passes(minutes=1)
    answer = made.answer("gang")
    assert isinstance(answer, Active)
    assert answer.reason is DecisionReason.STARTING
    assert "on cluster w1: 1 of 2 GPU pods run" in answer.message


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"mode": "observe"}, DecisionReason.OBSERVE_ONLY),
        ({"reclaim": "OnPressure"}, DecisionReason.IDLE_NOT_NEEDED),
        ({"warning": "10m"}, DecisionReason.WARNED),
        ({"allowedDuring": "Mon-Sun 02:00-03:00 UTC"}, DecisionReason.OUTSIDE_HOURS),
    ],
    ids=["observed only", "for plans", "warned before", "at certain hours"],
)
async def test_what_follows_an_idle_verdict_is_as_for_any_workload(
    metadata: dict[str, str], reason: DecisionReason
) -> None:
    made = await hub(**metadata)
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=1)
    assert made.answer("gang").reason is reason


async def test_the_warm_up_counts_from_the_start_of_its_pods_there() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle", runs_for=minutes(35), idle_for=minutes(34))
    await made.passes(minutes=1)
    assert made.answer("gang").reason is DecisionReason.IDLE_NOT_LONG_ENOUGH
    await made.passes(minutes=6)
    assert made.answer("gang").reason is DecisionReason.GPUS_IDLE


# --------------------------------------------------------------------------------------------- what is not believed


def other_uid(made: HubWorld) -> None:
    made.says("w1", "gang", "Idle")
    entry = made.workers.all["w1"].entries.pop("uid-gang")
    made.workers.all["w1"].entries["x"] = msgspec.structs.replace(entry, uid="of an earlier gang")


def not_connected(made: HubWorld) -> None:
    made.says("w1", "gang", "Idle")
    made.workers.all["w1"].problem = "no route to host"


def without_connection(made: HubWorld) -> None:
    made.says("w1", "gang", "Idle")
    del made.workers.all["w1"]


NOT_BELIEVED: dict[str, Callable[[HubWorld], None]] = {
    "nothing is said": lambda _: None,
    "nothing is said of its GPUs": lambda made: made.says("w1", "gang", ""),
    "another workload of that name": other_uid,
    "by another policy": lambda made: made.says("w1", "gang", "Idle", judged_by=OfferPolicy(idle_after="5m")),
    "by a policy that cannot be read": lambda made: made.says(
        "w1", "gang", "Idle", judged_by=OfferPolicy(idle_after="soon", warm_up="0s", active_above=0.01, gpus="all")
    ),
    "by no policy": lambda made: made.says("w1", "gang", "Idle", judged_by=None),
    "idle, and not since when": lambda made: made.says("w1", "gang", "Idle", idle_for=None),
    "by a word that is not known": lambda made: made.says("w1", "gang", "Sleepy"),
    "by another cluster": lambda made: made.says("w2", "gang", "Idle"),
    "the worker is not connected": not_connected,
    "no such worker is known": without_connection,
    "of pods that are older than its admission": lambda made: made.says(
        "w1", "gang", "Idle", runs_for=timedelta(hours=3)
    ),
}


@pytest.mark.parametrize("happens", NOT_BELIEVED.values(), ids=NOT_BELIEVED)
async def test_what_cannot_be_believed_never_shrinks(happens: Callable[[HubWorld], None]) -> None:
    made = await hub()
    happens(made)
    await made.passes(minutes=2)
    assert unknown_because(made) is MISSING


async def test_a_worker_that_falls_silent_is_believed_for_three_intervals_and_no_longer() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=1)
    await made.passes(minutes=1, silent=SILENT)
    assert isinstance(made.answer("gang"), Inactive)
    await made.passes(minutes=1, silent=SILENT)
    assert unknown_because(made) is MISSING
    await made.passes(minutes=1)
    assert isinstance(made.answer("gang"), Inactive), "it is heard of again"


async def test_a_status_that_was_there_before_this_process_is_not_believed_until_it_changes() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle")
    again = HubWorld()
    again.dispatches("gang", to="w1")
    again.workers.all["w1"].offer = WorkerOffer(clock=again.clock)
    again.workers.all["w1"].offer.heard(made.workers.all["w1"].offer.offer)
    await again.passes(minutes=1, silent=SILENT)
    assert unknown_because(again) is MISSING


async def test_a_gang_that_has_moved_is_not_judged_by_the_cluster_where_it_was() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=1)
    made.dispatches("gang", to="w2", admitted_at=made.now)
    await made.passes(minutes=2)
    assert unknown_because(made) is MISSING
    made.says("w2", "gang", "Busy", runs_for=minutes(1))
    await made.passes(minutes=1)
    assert made.answer("gang").reason is DecisionReason.WARMING_UP


async def test_a_gang_that_has_come_back_is_not_judged_by_what_was_said_of_its_earlier_run() -> None:
    """It was suspended and woken, and runs where it ran before; the worker has not judged it again yet."""
    made = await hub()
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=1)
    made.dispatches("gang", to="w1", admitted_at=made.now)
    await made.passes(minutes=1)
    assert unknown_because(made) is MISSING
    made.says("w1", "gang", "Unknown", runs_for=timedelta(seconds=10), reason="ColdStart")
    await made.passes(minutes=1)
    assert made.answer("gang").reason is DecisionReason.WARMING_UP


# ------------------------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("hours", [-3, -0.5, 0.5, 3])
async def test_no_clock_of_a_worker_is_trusted(hours: float) -> None:
    made = await hub()
    made.workers.all["w1"].clock_ahead = timedelta(hours=hours)
    made.says("w1", "gang", "Idle", idle_for=minutes(31), runs_for=minutes(50))
    await made.passes(minutes=1)
    decision = made.decision("gang")
    assert isinstance(decision.answer, Inactive)
    assert decision.idle_since is not None
    assert abs(made.now - decision.idle_since - minutes(32)) <= timedelta(seconds=1)


async def test_a_status_that_takes_longer_makes_no_other_decision_and_nothing_look_idle_for_longer() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=1)
    before = made.decision("gang")
    made.clock.jump(2.0)
    made.workers.all["w1"].clock_ahead = -timedelta(seconds=2)  # on the way for 2 s more
    await made.passes(minutes=1)
    after = made.decision("gang")
    assert after.idle_since == before.idle_since
    made.workers.all["w1"].clock_ahead = -timedelta(minutes=2)
    await made.passes(minutes=1)
    assert made.decision("gang").idle_since == (before.idle_since or made.now) + timedelta(minutes=2)


async def test_while_nothing_changes_but_evidence_no_decision_is_made_again() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=2)
    before = made.decision("gang")
    newer = (msgspec.Raw(b'{"pod":"gang-0","gpu":"0","verdict":"Idle","signals":[{"name":"x","lastSample":"now"}]}'),)
    entry = made.workers.all["w1"].entries["uid-gang"]
    made.workers.all["w1"].entries["uid-gang"] = msgspec.structs.replace(entry, evidence=newer)
    await made.passes(minutes=2)
    assert made.decision("gang") is before


# ------------------------------------------------------------------------------------------------------- what is shown


async def test_status_and_explain_show_the_cluster_with_each_gpu() -> None:
    made = await hub()
    made.says("w1", "gang", "Idle")
    await made.passes(minutes=1)
    gpu = {"pod": "gang-0", "gpu": "0", "node": "w1/node-a", "verdict": "Idle"}
    assert decision_status(made.decision("gang"))["evidence"] == [gpu]
    shown = explain(made.decision_cache, ("demo", "gang"))
    assert shown is not None
    assert shown["triggers"][0]["gpus"] == [gpu]


async def test_evidence_that_no_status_could_have_is_left_out() -> None:
    made = await hub()
    bad = [
        b'{"pod":1,"gpu":"0","verdict":"Idle"}',
        b'{"gpu":"0"}',
        b"[]",
        b'{"pod":"p","gpu":"1","verdict":"Busy","x":1}',
    ]
    made.says("w1", "gang", "Idle", evidence=tuple(map(msgspec.Raw, bad)))
    await made.passes(minutes=1)
    shown = decision_status(made.decision("gang"))["evidence"]
    assert shown == [{"pod": "p", "gpu": "1", "verdict": "Busy", "node": "w1"}]


# ------------------------------------------------------------------------------------------------- what is asked


async def test_the_hub_asks_each_worker_about_what_runs_there() -> None:
    made = HubWorld()
    made.dispatches("one", to="w1")
    made.dispatches("two", to="w2", idleAfter="90m30s", activeAbove="0.5%", gpus="quorum:0.8", warmUp="1500ms")
    made.dispatches("waits", to="")
    assert made.judged() == {}, "before the first evaluation"
    await made.passes(minutes=1)
    asked = {name: {each.name: each.policy for each in entries} for name, entries in made.judged().items()}
    assert asked == {
        "w1": {"one-workload": OfferPolicy(idle_after="1800s", warm_up="600s", active_above=0.01, gpus="all")},
        "w2": {
            "two-workload": OfferPolicy(idle_after="5430s", warm_up="1500ms", active_above=0.005, gpus="quorum:0.8")
        },
    }
    [entry] = made.judged()["w1"]
    assert (entry.namespace, entry.uid, entry.reclaim, entry.request) == ("demo", "uid-one", False, None)


# ---------------------------------------------------------------------------------------------------------------- laws

WORDS = st.sampled_from(["Idle", "Busy", "Unknown", "", "Sleepy"])
SAID = st.tuples(
    st.sampled_from(["w1", "w2"]), WORDS, st.booleans(), st.booleans(), st.timedeltas(timedelta(0), timedelta(hours=2))
)
STEPS = st.lists(
    st.one_of(SAID, st.sampled_from(["w1 silent", "w1 not connected", "w1 connected", "moves", "passes"])),
    min_size=1,
    max_size=8,
)


@given(STEPS)
async def test_0_needs_an_idle_verdict_of_the_cluster_where_it_runs_that_is_fresh(steps: list[object]) -> None:
    made = await hub()
    place, admitted_at, heard_at = "w1", made.now - timedelta(hours=2), {"w1": made.now, "w2": made.now}
    said: dict[str, bool] = {}
    for step in steps:
        silent: tuple[str, ...] = ()
        match step:
            case (str(worker), str(word), bool(is_right_policy), bool(is_running), timedelta() as idle_for):
                by = {} if is_right_policy else {"judged_by": OfferPolicy(idle_after="1s")}
                runs_for = minutes(90) if is_running else None
                made.says(worker, "gang", word, idle_for=idle_for, runs_for=runs_for, **by)
                asked = worker in made.judged()
                said[worker] = word == "Idle" and is_right_policy and is_running and asked
            case "w1 silent":
                silent = ("w1",)
            case "w1 not connected":
                made.workers.all["w1"].problem = "no route to host"
            case "w1 connected":
                made.workers.all["w1"].problem = ""
            case "moves":
                place, admitted_at = ("w2" if place == "w1" else "w1"), made.now
                made.dispatches("gang", to=place, admitted_at=admitted_at)
        await made.passes(minutes=2, silent=silent)
        for name in ("w1", "w2"):
            heard_at[name] = heard_at[name] if name in silent else made.now
        if isinstance(made.answer("gang"), Inactive):
            assert said.get(place)
            assert not made.workers.all[place].problem
            assert made.now - heard_at[place] < 3 * TICK
            since = made.decision("gang").idle_since
            assert since is not None
            assert made.now - since >= minutes(30) - timedelta(seconds=5)
            assert (made.decision("gang").target.running_since or made.now) >= admitted_at - timedelta(minutes=1)
