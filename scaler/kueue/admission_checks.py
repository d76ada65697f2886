"""Our AdmissionChecks, and our entries in the status of Workloads: how they are read, and the patches that write them.

Laws:

* Patches are made of the raw JSON that was just read, so that nothing of others is lost: JSON merge patches replace the
  whole list, and the entries of other controllers go back into it letter by letter.
* Our entry is written from scratch. Kueue carries `podSetUpdates` and `requeueAfterSeconds` over every eviction, and
  copied again they would reach the next pods. Only `retryCount` is Kueue's own, and copied.
* `lastTransitionTime` changes with the state, and only with it.
* Every patch names the uid and the resourceVersion that was decided upon: what somebody else writes meanwhile wins.
* No entry is added and none removed: that is Kueue's to do.

Source: kueue.x-k8s.io/v1beta2, AdmissionCheckState (message up to 32,768 characters, and never absent).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from scaler.core.gate_values import Answer, Entry, Yielded
from scaler.core.provisioning import PodSetUpdate
from scaler.kube.conditions import condition_patch, guard, stamp
from scaler.kube.decoding import UNREADABLE
from scaler.kube.kueue_objects import CheckState, Workload
from scaler.kube.quota_objects import AdmissionCheck

Json = Mapping[str, Any]

CONTROLLER = "idlegpu.io/reclaim"
"""The `controllerName` of our AdmissionChecks."""
POLICY_GROUP, POLICY_KIND = "idlegpu.io", "ReclaimPolicy"
"""What their parameters are."""
YIELDED_ANNOTATION = "idlegpu.io/yielded"
"""On a Workload: for whom it gave its quota back on account of our check, when, and how often."""
ACTIVE = "Active"
_NEVER_AGAIN = datetime(9000, 1, 1, tzinfo=UTC)


def is_ours(check: AdmissionCheck) -> bool:
    """Whether we are the controller of the check."""
    return check.spec.controller_name == CONTROLLER


# ------------------------------------------------------------------------------------------------------------- reading


def entry_of(state: CheckState) -> Entry:
    """An entry as the core sees it."""
    return Entry(
        state=state.state,
        message=state.message,
        since=state.last_transition_time,
        updates=tuple(
            PodSetUpdate(name=each.name, annotations=each.annotations, node_selector=each.node_selector)
            for each in state.pod_set_updates
            if each.annotations or each.node_selector
        ),
    )


class _Note(msgspec.Struct):
    to: str
    at: datetime
    times: int = 1
    of: datetime | None = None
    """When the quota was reserved."""


def yielded_of(workload: Workload) -> Yielded | None:
    """When it last gave its quota back; None where it never has.

    What somebody has garbled counts as just having been: it is not asked again.
    """
    note = workload.metadata.annotations.get(YIELDED_ANNOTATION)
    if note is None:
        return None
    try:
        found = msgspec.json.decode(note, type=_Note)
        of = _aware(found.of) if found.of else None
        return Yielded(to=found.to, at=_aware(found.at), times=max(1, found.times), reserved_at=of)
    except (*UNREADABLE, OverflowError):
        return Yielded(to="somebody (the note cannot be read)", at=_NEVER_AGAIN)


def _aware(instant: datetime) -> datetime:
    return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)


# ------------------------------------------------------------------------------------------------------------- writing


def entry_patch(workload: Json, check: str, answer: Answer, now: datetime) -> Json | None:
    """The patch of the Workload's status that makes the check's entry say the answer; None where it has no entry."""
    entries = (workload.get("status") or {}).get("admissionChecks") or []
    if not any(each.get("name") == check for each in entries):
        return None
    written = [_entry(each, answer, now) if each.get("name") == check else each for each in entries]
    return {"metadata": guard(workload), "status": {"admissionChecks": written}}


def _entry(before: Json, answer: Answer, now: datetime) -> Json:
    is_same_state = before.get("state") == answer.state and before.get("lastTransitionTime")
    entry: dict[str, Any] = {
        "name": before["name"],
        "state": str(answer.state),
        "message": answer.message,
        "lastTransitionTime": before["lastTransitionTime"] if is_same_state else stamp(now),
    }
    if before.get("retryCount") is not None:
        entry["retryCount"] = before["retryCount"]
    if answer.updates:
        entry["podSetUpdates"] = [_update(each) for each in answer.updates]
    return entry


def _update(update: PodSetUpdate) -> Json:
    fields = {"annotations": dict(update.annotations), "nodeSelector": dict(update.node_selector)}
    return {"name": update.name, **{name: value for name, value in fields.items() if value}}


def yield_patch(workload: Json, yielded: Yielded) -> Json:
    """The patch of the Workload that notes that it gives its quota back."""
    note = {"to": yielded.to, "at": stamp(yielded.at), "times": yielded.times}
    note |= {"of": stamp(yielded.reserved_at)} if yielded.reserved_at else {}
    annotations = {YIELDED_ANNOTATION: msgspec.json.encode(note).decode()}
    return {"metadata": {**guard(workload), "annotations": annotations}}


def active_patch(check: Json, *, is_active: bool, reason: str, message: str, now: datetime) -> Json | None:
    """The patch of the check's status that says whether we look after it; None where it says so already."""
    return condition_patch(check, ACTIVE, status=str(is_active), reason=reason, message=message, now=now)
