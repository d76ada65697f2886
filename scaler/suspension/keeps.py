"""What owners ask to be kept, within the limits of the policy. Pure.

| annotation                                    | becomes                                     |
|-----------------------------------------------|---------------------------------------------|
| `keep-for`                                    | `keep-until`, counted from now on           |
| `keep-until`, `exclude`: beyond `longestKeep` | as long as `longestKeep` from now on        |
| one more than `keepsPerWeek`                  | what was granted before, or removed         |
| of somebody who is not among `keepUsers`      | the same                                    |

Laws:

* Only the leader limits, and a record of each use says that it has: until then a workload is kept as it was asked, and
  what was limited once is not looked at again.
* The record is on the ScaledObject, whichever object was annotated, so that a limit holds for all of them together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from scaler.decision.workloads import ASKED_BY, EXCLUDE, KEEP_FOR, KEEP_UNTIL, keep_for, keep_overrides
from scaler.errors import MetadataError
from scaler.idleness.policy import Policy, is_any_of
from scaler.kube.objects.core import UNREADABLE, stamp

KEEPS_ANNOTATION = "idlegpu.io/keeps"
"""On a ScaledObject: the uses of a policy that limits them. JSON."""
_RECORDED = 32
_WEEK = timedelta(days=7)
_MOMENT = timedelta(minutes=10)


class Keep(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One use: when it was asked for, until when it is kept, in which words, on which object, and by whom."""

    at: datetime
    until: datetime
    asked: str = ""
    on: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What is to be written; both empty where everything is as it shall be."""

    annotations: Mapping[str, str | None]
    """On the object that was annotated."""
    keeps: tuple[Keep, ...]
    """The record, where it changes."""
    refused: str = ""
    """Why a keep is refused, in words."""


def keeps_of(annotations: Mapping[str, str]) -> tuple[Keep, ...]:
    """The record, without uses whose times have no zone; empty where it cannot be read."""
    try:
        found = msgspec.json.decode(annotations.get(KEEPS_ANNOTATION) or "[]", type=tuple[Keep, ...])
    except UNREADABLE:
        return ()
    return tuple(each for each in found if each.at.tzinfo and each.until.tzinfo)


def encode_keeps(keeps: Sequence[Keep]) -> str:
    return msgspec.json.encode(keeps).decode()


def settle(
    annotations: Mapping[str, str], where: str, *, keeps: Sequence[Keep], policy: Policy | None, now: datetime
) -> Settled:
    """What becomes of the annotations of one object. A value that cannot be read is told with the decision.

    `policy` is None while it is not known: then nothing is limited yet.
    """
    try:
        asked = keep_for(annotations, where=where)
        until = keep_overrides({KEEP_UNTIL: annotations.get(KEEP_UNTIL, "")}, where=where).keep_until
        exclude_until = keep_overrides({EXCLUDE: annotations.get(EXCLUDE, "")}, where=where).exclude_until
    except MetadataError:
        return _NOTHING
    written: dict[str, str | None] = {}
    if asked is not None:
        until = max(now + asked, until or now).replace(microsecond=0)
        written = {KEEP_FOR: None, KEEP_UNTIL: stamp(until)}
    if policy is None or not policy.limits_keeps:
        return Settled(annotations=written, keeps=())
    found, refused, by = [*keeps], "", annotations.get(ASKED_BY, "")
    for key, end in ((KEEP_UNTIL, until), (EXCLUDE, exclude_until)):
        if end is None or end <= now or any(each.until == end for each in found):
            continue
        text = annotations.get(KEEP_FOR if key == KEEP_UNTIL and asked else key, "")
        use = _same(found, text, by, now)
        if use is None and (why := _refusal(found, by, policy, now)):
            before = max((each.until for each in found if each.until > now), default=None)
            refused = f"{key.rpartition('/')[2]} until {stamp(end)} is refused: {why}"
            written[key] = None if before is None else stamp(before)
            continue
        if use is None:
            longest = end if policy.longest_keep is None else (now + policy.longest_keep).replace(microsecond=0)
            use = Keep(at=now.replace(microsecond=0), until=min(end, longest), asked=text, on=where, by=by)
            found.append(use)
        if use.until != end:
            written[key] = stamp(use.until)
    changed = () if len(found) == len(keeps) else _recent(found, now)
    return Settled(annotations=written, keeps=changed, refused=refused)


def _same(keeps: Sequence[Keep], asked: str, by: str, now: datetime) -> Keep | None:
    """The use that this is: the same words by the same user a moment ago, such as a job's annotation and its copy."""
    return next((each for each in keeps if (each.asked, each.by) == (asked, by) and now - each.at < _MOMENT), None)


_NOTHING = Settled(annotations={}, keeps=())


def _refusal(keeps: Sequence[Keep], by: str, policy: Policy, now: datetime) -> str:
    if policy.keep_users and not is_any_of(by, policy.keep_users):
        return f"asked for by {by or 'an unnamed user'}, and keepUsers are {', '.join(policy.keep_users)}"
    used, most = sorted(each.at for each in keeps if each.at > now - _WEEK), policy.keeps_per_week
    if most is None or len(used) < most:
        return ""
    again = f"; again from {stamp(used[len(used) - most] + _WEEK)} on" if most else ""
    times = "once" if len(used) == 1 else f"{len(used)} times"
    return f"kept {times} within a week, and keepsPerWeek is {most}{again}"


def _recent(keeps: Sequence[Keep], now: datetime) -> tuple[Keep, ...]:
    return tuple(each for each in keeps if each.at > now - _WEEK or each.until > now)[-_RECORDED:]
