import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from builders import GPUS, NOON, WorkloadJson, at
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import MetadataError
from scaler.idleness.policy import Overrides
from scaler.targets.target_state import ObservedWorkload, WakeCause, WakeRequest
from scaler.targets.workloads import (
    ASKED_BY,
    EXCLUDE,
    KEEP_FOR,
    KEEP_UNTIL,
    SUSPENDED_ANNOTATION,
    WAKE_ANNOTATION,
    Asker,
    expected_gpu_pods,
    keep_overrides,
    observe,
    wake_request,
    wake_time,
    when_free_request,
)

CAUSE = json.dumps({"at": "2026-12-01T12:00:00Z", "by": "ScalableWorkload/first-raycluster", "reason": "GPUsIdle"})
MORE_NEEDED = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu, 2 more needed"


def seen(workload: WorkloadJson) -> ObservedWorkload:
    return observe(workload.decoded(), GPUS)


def flags(workload: WorkloadJson) -> dict[str, bool]:
    found = seen(workload)
    names = ("active", "finished", "quota_reserved", "admitted", "suspended_by_us")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        pytest.param(WorkloadJson(), ["active"], id="just created, no status"),
        pytest.param(WorkloadJson().waiting(MORE_NEEDED), ["active"], id="pending"),
        pytest.param(WorkloadJson().reserved(), ["active", "quota_reserved"], id="quota reserved"),
        pytest.param(WorkloadJson().admitted(), ["active", "quota_reserved", "admitted"], id="admitted"),
        pytest.param(
            WorkloadJson().admitted().condition("Finished", True, "Succeeded"),
            ["active", "finished", "quota_reserved", "admitted"],
            id="finished",
        ),
        pytest.param(
            WorkloadJson().admitted().deactivated().with_annotations({SUSPENDED_ANNOTATION: CAUSE}),
            ["quota_reserved", "admitted", "suspended_by_us"],
            id="deactivated by us a moment ago: its status lags",
        ),
        pytest.param(
            WorkloadJson()
            .condition("QuotaReserved", False, "PendingEvaluation")
            .condition("Admitted", False, "NoReservation")
            .condition("Evicted", True, "Deactivated")
            .deactivated(),
            [],
            id="deactivated by another client",
        ),
        pytest.param(WorkloadJson().condition("Finished", False), ["active"], id="a condition that is False"),
    ],
)
def test_a_workload_is_what_its_spec_and_conditions_say(workload: WorkloadJson, expected: list[str]) -> None:
    assert list(flags(workload)) == expected


def test_spec_active_is_true_where_it_is_left_out() -> None:
    workload = WorkloadJson()
    del workload.json["spec"]["active"]
    assert seen(workload).active


def test_an_eviction_is_named_while_it_stands() -> None:
    assert seen(WorkloadJson().condition("Evicted", True, "Preempted")).eviction_reason == "Preempted"
    assert seen(WorkloadJson().condition("Evicted", False, "Preempted")).eviction_reason == ""


# ------------------------------------------------------------------------------------------------------ Kueue's words


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        pytest.param(WorkloadJson(), "", id="nothing said yet"),
        pytest.param(WorkloadJson().waiting(MORE_NEEDED), MORE_NEEDED, id="why there is no quota"),
        pytest.param(
            WorkloadJson()
            .reserved()
            .with_status(
                admissionChecks=[
                    {"name": "reclaim", "state": "Pending", "message": "waiting for 2 pod(s)"},
                    {"name": "provision", "state": "Pending", "message": ""},
                    {"name": "topology", "state": "Ready", "message": "fits"},
                ]
            ),
            "reclaim: waiting for 2 pod(s); provision: Pending",
            id="which admission checks are not ready",
        ),
        pytest.param(WorkloadJson().admitted(), "", id="admitted"),
    ],
)
def test_why_it_is_not_admitted_is_said_in_kueues_words(workload: WorkloadJson, message: str) -> None:
    assert seen(workload).status_message == message


# ------------------------------------------------------------------------------------------------------ our annotation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(CAUSE, at(0), id="as we write it"),
        pytest.param('{"reason": "GPUsIdle"}', None, id="without a time"),
        pytest.param("", None, id="empty"),
        pytest.param("true", None, id="no object"),
        pytest.param("{", None, id="no JSON"),
        pytest.param('{"at": "yesterday"}', None, id="no time"),
        pytest.param('{"at": "2026-12-01T12:00:00"}', None, id="a time without a zone"),
        pytest.param('{"at": 17}', None, id="a number"),
        pytest.param('{"at": "2026-12-01T14:00:00+02:00"}', at(0), id="in another zone"),
        pytest.param('{"at": "9999-12-31T23:59:59-05:00"}', None, id="beyond the calendar in UTC"),
        pytest.param('{"x": ' + "[" * 100_000, None, id="nested without end"),
    ],
)
def test_our_annotation_is_ours_however_it_was_garbled(text: str, expected: Any) -> None:
    found = seen(WorkloadJson().deactivated().with_annotations({SUSPENDED_ANNOTATION: text}))
    assert found.suspended_by_us
    assert found.suspended_at == expected


# --------------------------------------------------------------------------------------------------------- plain pods

GROUP = {"kueue.x-k8s.io/is-group-workload": "true"}


def of_pods(*names: str, group: bool = True, pods: int = 2) -> WorkloadJson:
    owned = WorkloadJson("pods", pods=pods).owned_by("v1", "Pod", *names, controller=not group)
    return owned.with_annotations(GROUP) if group else owned


@pytest.mark.parametrize(
    ("workload", "is_plain"),
    [
        pytest.param(of_pods("solo", group=False, pods=1), True, id="a plain Pod"),
        pytest.param(of_pods("g0", "g1"), False, id="a group of two"),
        pytest.param(of_pods("g0", pods=1), False, id="a group of one, such as a StatefulSet with one replica"),
        pytest.param(of_pods("g0"), False, id="a group of two of which one pod exists"),
        pytest.param(WorkloadJson().owned_by("batch/v1", "Job", "train"), False, id="a Job"),
        pytest.param(WorkloadJson().owned_by("example.com/v1", "Pod", "odd"), False, id="a Pod of another API"),
        pytest.param(WorkloadJson().owned_by("v1", "Pod"), False, id="without an owner"),
    ],
)
def test_a_plain_pod_is_distinguished_from_a_group_of_pods(workload: WorkloadJson, is_plain: bool) -> None:
    assert seen(workload).is_plain_pod is is_plain


# ------------------------------------------------------------------------------------------------------- expected pods


def pod_set(name: str, count: int, gpus: str | None) -> dict[str, Any]:
    resources = {"requests": {"nvidia.com/gpu": gpus}} if gpus else {}
    return {
        "name": name,
        "count": count,
        "template": {"spec": {"containers": [{"name": "main", "resources": resources}]}},
    }


RAY = WorkloadJson().with_pod_sets(pod_set("head", 1, None), pod_set("small", 4, "1"), pod_set("large", 2, "8"))


def test_only_pods_with_gpus_are_expected_to_show_any() -> None:
    assert expected_gpu_pods(RAY.decoded(), GPUS) == 4 + 2


def test_as_many_pods_are_expected_as_were_admitted() -> None:
    counts = [{"name": "head", "count": 1}, {"name": "small", "count": 3}, {"name": "large", "count": 2}]
    partly = (
        WorkloadJson()
        .with_pod_sets(*RAY.json["spec"]["podSets"])
        .with_status(admission={"clusterQueue": "cluster-queue", "podSetAssignments": counts})
    )
    assert expected_gpu_pods(partly.decoded(), GPUS) == 3 + 2


def test_pods_that_kueue_knows_to_be_done_are_not_expected() -> None:
    job = WorkloadJson(pods=4).admitted().with_status(reclaimablePods=[{"name": "main", "count": 3}])
    assert expected_gpu_pods(job.decoded(), GPUS) == 1
    over = WorkloadJson(pods=2).admitted().with_status(reclaimablePods=[{"name": "main", "count": 3}])
    assert expected_gpu_pods(over.decoded(), GPUS) == 0


# ------------------------------------------------------------------------------------------------- annotations

WHERE = "ScaledObject first-raycluster"


def requested(value: str, suspended_at: datetime | None = NOON) -> WakeRequest | None:
    return wake_request({WAKE_ANNOTATION: value}, where=WHERE, suspended_at=suspended_at)


@pytest.mark.parametrize("value", ["true", "True", "1", "please", "2026-12-01T12:00:01Z", "2026-12-01T14:00:01+02:00"])
def test_a_wake_up_names_the_annotation_that_requests_it(value: str) -> None:
    words = "annotation idlegpu.io/wake on ScaledObject first-raycluster"
    assert requested(value) == WakeRequest(WakeCause.ANNOTATION, words)


@pytest.mark.parametrize("value", ["", " ", "false", "False", "no", "0"])
def test_a_no_is_no_wake_up(value: str) -> None:
    assert requested(value) is wake_request({"other": "true"}, where=WHERE, suspended_at=None) is None


@pytest.mark.parametrize("value", ["WhenFree", " whenfree "])
def test_to_come_back_when_there_is_room_is_no_wake_up_for_now(value: str) -> None:
    assert requested(value) is None
    asked = when_free_request({WAKE_ANNOTATION: value}, where=WHERE)
    assert asked == "annotation idlegpu.io/wake on ScaledObject first-raycluster"
    assert when_free_request({WAKE_ANNOTATION: "true"}, where=WHERE) == when_free_request({}, where=WHERE) == ""


@pytest.mark.parametrize(
    ("written", "asker"),
    {
        "anna": Asker("anna"),
        "": Asker(),
        "link to anna": Asker("anna", WakeCause.LINK),
        "anna over HTTP": Asker("anna", WakeCause.HTTP),
        "IdlePolicy/a, WhenFree": Asker("IdlePolicy/a", WakeCause.WHEN_FREE),
    }.items(),
)
def test_who_asks_says_through_what_and_reads_as_it_was_written(written: str, asker: Asker) -> None:
    annotations = {WAKE_ANNOTATION: "true", ASKED_BY: written}
    assert (Asker.of(annotations), str(asker)) == (asker, written)
    found = wake_request(annotations, where=WHERE, suspended_at=None)
    assert found is not None
    assert found.cause is asker.through


@given(st.text(max_size=400))
def test_whatever_is_written_as_who_asks_is_no_longer_than_a_name(text: str) -> None:
    assert len(Asker.of({ASKED_BY: text}).name) <= 128


@given(st.integers(0, 3_000_000))
def test_a_wake_up_of_now_is_later_than_any_suspension_before(microseconds: int) -> None:
    now = NOON + timedelta(microseconds=microseconds)
    before = (now - timedelta(microseconds=1)).replace(microsecond=0)
    written = datetime.fromisoformat(wake_time(now))
    assert now <= written < now + timedelta(seconds=1)
    assert requested(wake_time(now), suspended_at=before)


@pytest.mark.parametrize("value", ["2026-12-01T12:00:00Z", "2026-12-01T13:59:59+02:00", "2020-01-01T00:00:00Z"])
def test_a_wake_up_not_younger_than_the_suspension_was_left_behind(value: str) -> None:
    assert requested(value) is None
    assert requested(value, suspended_at=None), "nothing was suspended yet"


# -------------------------------------------------------------------------------------------------------------- keeping


def test_keeping_sets_one_field_of_the_policy() -> None:
    assert keep_overrides({KEEP_UNTIL: " 2026-12-01T12:00:30Z "}, where=WHERE) == Overrides(keep_until=at(30))


def test_keeping_is_one_and_the_same_in_every_zone() -> None:
    overrides = keep_overrides({KEEP_UNTIL: "2026-12-01T14:00:30+02:00"}, where=WHERE)
    assert overrides.keep_until is not None
    assert overrides.keep_until.isoformat() == "2026-12-01T12:00:30+00:00"


@pytest.mark.parametrize("annotations", [{}, {KEEP_UNTIL: ""}, {KEEP_UNTIL: "  "}])
def test_without_a_time_nothing_is_kept(annotations: dict[str, str]) -> None:
    assert keep_overrides(annotations, where=WHERE) == Overrides()


@pytest.mark.parametrize(
    "value",
    ["tomorrow", "2026-12-24", "2026-12-24T18:00:00", "true", "9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"],
)
def test_a_keep_until_that_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(MetadataError) as refusal:
        keep_overrides({KEEP_UNTIL: value}, where=WHERE)
    assert str(refusal.value) == (
        f"annotation idlegpu.io/keep-until on ScaledObject first-raycluster: {value!r} is not a time; "
        "write it with its zone, such as '2026-12-24T18:00:00Z'"
    )


@pytest.mark.parametrize("key", [KEEP_UNTIL, KEEP_FOR, EXCLUDE])
@pytest.mark.parametrize("value", ["9" * 200_000, "1h" * 100_000, "2026-12-24T18:00:00." + "0" * 200_000 + "Z"])
def test_a_value_of_any_length_is_refused_in_few_words(key: str, value: str) -> None:
    with pytest.raises(MetadataError) as refusal:
        keep_overrides({key: value}, where=WHERE)
    assert len(str(refusal.value)) < 300


FOR_GOOD = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({EXCLUDE: "true"}, Overrides(exclude_until=FOR_GOOD)),
        ({EXCLUDE: "2026-12-01T12:00:30Z"}, Overrides(exclude_until=at(30))),
        ({EXCLUDE: "false"}, Overrides()),
        ({KEEP_FOR: "4h"}, Overrides(keep_until=FOR_GOOD)),
        ({KEEP_FOR: "4h", KEEP_UNTIL: "2026-12-01T12:00:30Z"}, Overrides(keep_until=FOR_GOOD)),
    ],
)
def test_it_is_excluded_or_kept_for_good_until_the_leader_has_written_how_long(
    annotations: dict[str, str], found: Overrides
) -> None:
    assert keep_overrides(annotations, where=WHERE) == found


@pytest.mark.parametrize("annotations", [{EXCLUDE: "maybe"}, {KEEP_FOR: "4"}, {EXCLUDE: "2026-12-01"}])
def test_an_annotation_that_cannot_be_read_is_an_error_that_says_where(annotations: dict[str, str]) -> None:
    with pytest.raises(MetadataError, match=rf"annotation {next(iter(annotations))} on {WHERE}"):
        keep_overrides(annotations, where=WHERE)
