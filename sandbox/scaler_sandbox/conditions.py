"""Conditions and times in Kubernetes' JSON: found, tested and set purely.

Law: `lastTransitionTime` moves only when the status does, as the API conventions have it.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from scaler_sandbox.kinds import Json


def timestamp(moment: datetime) -> str:
    """The time as `metav1.Time` is written: whole seconds. What is measured against it may be off by one."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> datetime | None:
    """The time in the text, aware; None where there is none."""
    return datetime.fromisoformat(text) if text else None


def condition(owner: Json, kind: str) -> Json | None:
    """The object's condition of that type."""
    found: Json
    for found in (owner.get("status") or {}).get("conditions") or ():
        if found["type"] == kind:
            return found
    return None


def has(owner: Json, kind: str, status: str = "True", *reasons: str) -> bool:
    """Whether the condition is set to that status, for one of the reasons where any are given."""
    found = condition(owner, kind)
    return found is not None and found["status"] == status and (not reasons or found.get("reason") in reasons)


def reason_of(owner: Json, kind: str) -> str:
    """The reason of the condition; empty where it is not set."""
    return str((condition(owner, kind) or {}).get("reason", ""))


def message_of(owner: Json, kind: str) -> str:
    """The message of the condition; empty where it is not set."""
    return str((condition(owner, kind) or {}).get("message", ""))


def make(kind: str, status: str, reason: str, message: str, *, now: datetime, generation: int | None = None) -> Json:
    """A condition that changes to this status now."""
    made: Json = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(now),
    }
    return made if generation is None else made | {"observedGeneration": generation}


def with_conditions(existing: Iterable[Json] | None, *wanted: Json) -> list[Json]:
    """The conditions with the wanted ones in them, each in its old place and with its old time where it stands."""
    result = [dict(each) for each in existing or ()]
    places = {each["type"]: index for index, each in enumerate(result)}
    for new in wanted:
        place = places.get(new["type"])
        if place is None:
            places[new["type"]] = len(result)
            result.append(dict(new))
        else:
            result[place] = _carried_over(result[place], new)
    return result


def _carried_over(old: Json, new: Json) -> Json:
    if old["status"] != new["status"] or "lastTransitionTime" not in new:
        return dict(new)
    return {**new, "lastTransitionTime": old.get("lastTransitionTime") or new["lastTransitionTime"]}
