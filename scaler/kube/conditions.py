"""Patches that set a condition in the status of an object, and times as the API writes them. Pure.

Laws:

* Conditions of others go back into the list as they were read: a JSON merge patch replaces all of it.
* `lastTransitionTime` moves only when the status does.
* Every patch names the uid and the resourceVersion that was decided upon: what another client writes meanwhile wins.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Json = Mapping[str, Any]


def stamp(instant: datetime) -> str:
    """The instant as the API keeps times: whole seconds, UTC."""
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def guard(obj: Json) -> Json:
    """The metadata of a patch that is refused if another client has written to the object since it was read."""
    return {"uid": obj["metadata"]["uid"], "resourceVersion": obj["metadata"]["resourceVersion"]}


def condition_patch(obj: Json, kind: str, *, status: str, reason: str, message: str, now: datetime) -> Json | None:
    """The patch of the status that lets the object's condition say this; None where it says so already."""
    conditions: Sequence[Json] = (obj.get("status") or {}).get("conditions") or []
    before: Json = next((each for each in conditions if each.get("type") == kind), {})
    is_same_status = before.get("status") == status and before.get("lastTransitionTime")
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": before["lastTransitionTime"] if is_same_status else stamp(now),
        "observedGeneration": obj["metadata"].get("generation", 0),
    }
    if condition == before:
        return None
    others = [each for each in conditions if each.get("type") != kind]
    return {"metadata": guard(obj), "status": {"conditions": [*others, condition]}}
