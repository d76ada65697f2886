"""Patches of checks and entries: nothing of others is lost, ours is written from scratch. By hand and as recorded."""

import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import NOON, WorkloadJson
from recordings import moments, one, recorded
from sim.client import merged

from scaler.admission.check import CheckChange, CheckEntry, CheckReason, CheckState, Yielded
from scaler.admission.provisioning.lifecycle import PodSetPatch
from scaler.admission.workload import (
    YIELDED_ANNOTATION,
    entry_patch,
    preemptor_of,
    reserved_workload_of,
    yield_patch,
    yielded_of,
)
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload

Json = dict[str, Any]

THEIRS: Json = {
    "name": "theirs",
    "state": "Ready",
    "message": "booked",
    "lastTransitionTime": "2026-12-01T11:00:00.123Z",
    "requeueAfterSeconds": 5,
    "podSetUpdates": [{"name": "main", "labels": {"a": "b"}, "tolerations": [{"key": "x", "operator": "Exists"}]}],
    "tomorrowsField": {"deep": [None, 1.5]},
}
OURS: Json = {
    "name": "gate",
    "state": "Pending",
    "message": "",
    "lastTransitionTime": "2026-12-01T11:59:00Z",
}
WAITS = CheckChange(state=CheckState.PENDING, because=CheckReason.NODES_LACKING, message="no room")
STARTS = CheckChange(
    state=CheckState.READY,
    because=CheckReason.FITS,
    message="fits",
    updates=(PodSetPatch(name="main", annotations={"consume": "r"}, node_selector={"host": "a"}),),
)


def workload(*entries: Json) -> Json:
    return WorkloadJson().reserved().with_status(admissionChecks=list(entries)).json


def entries_after(found: Json, answer: CheckChange, check: str = "gate") -> list[Json]:
    patch = entry_patch(found, check, answer, NOON)
    assert patch is not None
    entries: list[Json] = patch["status"]["admissionChecks"]
    return entries


# -------------------------------------------------------------------------------------------------------------- entries


def test_entries_of_others_go_back_letter_by_letter_and_in_their_order():
    found = workload(THEIRS, OURS, THEIRS | {"name": "third"})
    before = copy.deepcopy(found)
    entries = entries_after(found, WAITS)
    assert [entries[0], entries[2]] == [THEIRS, THEIRS | {"name": "third"}]
    assert found == before, "the object that was read is not changed"


def test_a_patch_is_of_the_object_that_was_read_and_of_nothing_else():
    patch = entry_patch(workload(OURS), "gate", WAITS, NOON)
    assert patch is not None
    assert patch["metadata"] == {"uid": "7e6b1a34", "resourceVersion": "4711"}
    assert patch.keys() == {"metadata", "status"}
    assert patch["status"].keys() == {"admissionChecks"}


def test_an_entry_that_is_not_there_is_not_made():
    assert entry_patch(workload(THEIRS), "gate", WAITS, NOON) is None
    assert entry_patch({"metadata": {"uid": "u", "resourceVersion": "1"}}, "gate", WAITS, NOON) is None


def test_our_entry_is_written_from_scratch_but_for_kueues_own_count():
    left_over = OURS | {"podSetUpdates": [{"name": "main"}], "requeueAfterSeconds": 7, "retryCount": 2, "odd": 1}
    assert entries_after(workload(left_over), WAITS) == [
        {
            "name": "gate",
            "state": "Pending",
            "message": "no room",
            "lastTransitionTime": "2026-12-01T11:59:00Z",
            "retryCount": 2,
        }
    ]


def test_the_time_of_the_transition_changes_with_the_state_only():
    same, other = entries_after(workload(OURS), WAITS)[0], entries_after(workload(OURS), STARTS)[0]
    assert same["lastTransitionTime"] == "2026-12-01T11:59:00Z"
    assert other["lastTransitionTime"] == "2026-12-01T12:00:00Z"
    assert entries_after(workload(OURS | {"lastTransitionTime": None}), WAITS)[0]["lastTransitionTime"]


def test_what_pods_are_given_stands_in_the_entry_without_empty_fields():
    assert entries_after(workload(OURS), STARTS)[0]["podSetUpdates"] == [
        {"name": "main", "annotations": {"consume": "r"}, "nodeSelector": {"host": "a"}}
    ]
    bare = CheckChange(
        state=CheckState.READY, because=CheckReason.FITS, message="m", updates=(PodSetPatch(name="main"),)
    )
    assert entries_after(workload(OURS), bare)[0]["podSetUpdates"] == [{"name": "main"}]


def test_what_was_written_is_read_again():
    written = merged(workload(OURS), {"status": {"admissionChecks": entries_after(workload(OURS), STARTS)}})
    gang = reserved_workload_of(decode(Workload, msgspec.json.encode(written)), "gate")
    assert gang.entry == CheckEntry(state="Ready", message="fits", since=NOON, updates=STARTS.updates)
    assert STARTS.equals(gang.entry)


# --------------------------------------------------------------------------------------------------------------- yields


def test_a_yield_is_noted_and_read_again():
    patch = yield_patch(workload(OURS), Yielded(to="plan p", at=NOON, times=3))
    written = decode(Workload, msgspec.json.encode(merged(workload(OURS), {"metadata": patch["metadata"]})))
    assert yielded_of(written) == Yielded(to="plan p", at=NOON, times=3)
    assert patch["metadata"]["resourceVersion"] == "4711"


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"to": "x"}', '{"to": "x", "at": "soon"}', "null"])
def test_a_note_that_somebody_has_garbled_counts_as_a_yield_for_ever(note):
    found = WorkloadJson().with_annotations({YIELDED_ANNOTATION: note}).decoded()
    yielded = yielded_of(found)
    assert yielded is not None
    assert yielded.until > datetime(3000, 1, 1, tzinfo=UTC)


def test_a_time_without_zone_is_taken_for_utc():
    found = WorkloadJson().with_annotations({YIELDED_ANNOTATION: '{"to": "x", "at": "2026-12-01T12:00:00"}'}).decoded()
    yielded = yielded_of(found)
    assert yielded is not None
    assert yielded.at == NOON
    assert yielded_of(WorkloadJson().decoded()) is None


# --------------------------------------------------------------------------------------------------------------- checks


def check(*conditions: Json) -> Json:
    metadata = {"name": "gate", "uid": "u", "resourceVersion": "9", "generation": 2}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


# ----------------------------------------------------------------------------------------------------------- recordings


@pytest.mark.parametrize("path", recorded("kueue-ac-*.json", "kueue-provreq-*.json", "multikueue-with-own-*.json"))
def test_every_recorded_entry_is_read_and_written_without_a_loss(path: Path) -> None:
    for moment in moments(path):
        recorded_entries = moment.json.get("status", {}).get("admissionChecks") or []
        for entry in recorded_entries:
            patch = entry_patch(moment.json, entry["name"], WAITS, NOON)
            assert patch is not None
            written = {each["name"]: each for each in patch["status"]["admissionChecks"]}
            for other in recorded_entries:
                if other is not entry:
                    assert written[other["name"]] == other
            mine = written[entry["name"]]
            assert mine.get("retryCount") == entry.get("retryCount")
            assert "podSetUpdates" not in mine
            is_same = entry["state"] == "Pending"
            assert (mine["lastTransitionTime"] == entry["lastTransitionTime"]) is is_same
            gang = reserved_workload_of(decode(Workload, msgspec.json.encode(moment.json)), entry["name"])
            assert gang.entry is not None
            assert gang.entry.state == entry["state"]


@one("kueue-ac-mergepatch-reset")
def test_a_recorded_eviction_leaves_what_pods_were_given_and_our_next_entry_does_not(path: Path) -> None:
    left_over = [
        moment.json
        for moment in moments(path)
        for entry in moment.json.get("status", {}).get("admissionChecks") or []
        if entry["message"].startswith("Reset to Pending") and entry.get("podSetUpdates")
    ]
    assert left_over
    for found in left_over:
        [entry] = entries_after(found, WAITS, check="k3merge-ac")
        assert "podSetUpdates" not in entry


@one("kueue-preemption-slow-terminating-pods")
def test_the_recorded_words_of_a_preemption_name_the_preemptor(path: Path) -> None:
    uids = {moment.json["metadata"]["uid"] for moment in moments(path)}
    preempted = [moment for moment in moments(path) if moment.has("Preempted") and moment.has("Evicted")]
    assert preempted
    for moment in preempted:
        found = preemptor_of(decode(Workload, msgspec.json.encode(moment.json)))
        assert found in uids
        assert found != moment.json["metadata"]["uid"]
