"""What owners ask to be kept, within the limits of the policy. Pure.

| annotation                                    | becomes                                     |
|-----------------------------------------------|---------------------------------------------|
| `keep-for`                                    | `keep-until`, counted from now on           |
| `keep-until`, `exclude`: beyond `longestKeep` | as long as `longestKeep` from now on        |
| one more than `keepsPerWeek`                  | what was granted before, or removed         |
| of somebody who is not among `keepUsers`      | the same                                    |
| one that cannot be read, where keeps are limited | the same: until then nothing is decided  |

Laws:

* Only the leader limits, and a record of each use says that it has: until then a workload is kept as it was asked, and
  what was limited once is not looked at again.
* The record is one for all objects of a workload that are annotated, so that a limit holds for all of them together.
* What limits is the record that no tenant can write (`keep_record.py`). Its copy on the ScaledObject is for people.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from scaler.documents import UNREADABLE
from scaler.errors import MetadataError
from scaler.idleness.policy import Policy, is_any_of
from scaler.kube.objects.core import stamp
from scaler.targets.workloads import EXCLUDE, KEEP_FOR, KEEP_UNTIL, Asker, keep_for, keep_overrides

KEEPS_ANNOTATION = "idlegpu.io/keeps"
"""An annotation of a ScaledObject: the uses of a policy that limits them. It is shown, and limits nothing. JSON."""
_RECORDED = 128
"""More than `keepsPerWeek` can be."""
WEEK = timedelta(days=7)
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
    """The annotations of the object that was annotated."""
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
    annotations: Mapping[str, str],
    where: str,
    *,
    keeps: Sequence[Keep],
    policy: Policy | None,
    now: datetime,
    is_full: bool = False,
) -> Settled:
    """What becomes of the annotations of one object.

    A value that cannot be read is shown with the decision, which is none then; where the policy limits keeps it is
    refused. `policy` is None while it is not known: then nothing is limited yet. `is_full`: no more uses are recorded.
    """
    limits = policy if policy is not None and policy.limits_keeps else None
    ends, problems = _read(annotations, where, now)
    if problems and limits is None:
        return Settled(annotations={}, keeps=())
    texts, written = {key: annotations.get(key, "") for key in _ENDS}, dict[str, str | None]()
    if (end := ends.pop(KEEP_FOR, None)) is not None:
        ends[KEEP_UNTIL] = until = max(end, ends.get(KEEP_UNTIL) or now).replace(microsecond=0)
        written, texts[KEEP_UNTIL] = {KEEP_FOR: None, KEEP_UNTIL: stamp(until)}, texts[KEEP_FOR]
    if limits is None:
        return Settled(annotations=written, keeps=())
    found, refused, by = [*keeps], "; ".join(problems.values()), str(Asker.of(annotations))
    before = max((each.until for each in found if each.until > now), default=None)
    granted = None if before is None else stamp(before)
    written = {key: None if key == KEEP_FOR else granted for key in problems} | written
    for key, end in ends.items():
        if end is None or end <= now or any(each.until == end for each in found):
            continue
        use = _use(found, Keep(at=now, until=end, asked=texts[key], on=where, by=by), limits, is_full=is_full)
        if isinstance(use, str):
            refused, written[key] = f"{key.rpartition('/')[2]} until {stamp(end)} is refused: {use}", granted
            continue
        found += [use] if use not in found else []
        if use.until != end:
            written[key] = stamp(use.until)
    changed = () if len(found) == len(keeps) else recent(found, now)
    return Settled(annotations=written, keeps=changed, refused=refused)


def _read(
    annotations: Mapping[str, str], where: str, now: datetime
) -> tuple[dict[str, datetime | None], dict[str, str]]:
    """The end of each annotation that keeps it; and why, of those that cannot be read."""
    ends, problems = dict[str, datetime | None](), dict[str, str]()
    for key, read in _ENDS.items():
        try:
            ends[key] = read(annotations, where, now)
        except MetadataError as error:
            problems[key] = str(error)
    return ends, problems


def _for_end(annotations: Mapping[str, str], where: str, now: datetime) -> datetime | None:
    asked = keep_for(annotations, where=where)
    return None if asked is None else now + asked


_ENDS: Mapping[str, Callable[[Mapping[str, str], str, datetime], datetime | None]] = {
    KEEP_FOR: _for_end,
    KEEP_UNTIL: lambda found, where, _: keep_overrides({KEEP_UNTIL: found.get(KEEP_UNTIL, "")}, where=where).keep_until,
    EXCLUDE: lambda found, where, _: keep_overrides({EXCLUDE: found.get(EXCLUDE, "")}, where=where).exclude_until,
}
"""The reader of each annotation's end. Raises: MetadataError."""


def _use(keeps: Sequence[Keep], asked: Keep, policy: Policy, *, is_full: bool) -> Keep | str:
    """The use that is recorded for what is asked for: as long as the policy allows; or why it is refused.

    The same words by the same user a moment ago, such as a job's annotation and its copy, are the same use.
    """
    now, words = asked.at, (asked.asked, asked.by)
    if (same := next((x for x in keeps if (x.asked, x.by) == words and now - x.at < _MOMENT), None)) is not None:
        return same
    if why := _refusal(keeps, asked.by, policy, now, is_full=is_full):
        return why
    longest = asked.until if policy.longest_keep is None else (now + policy.longest_keep).replace(microsecond=0)
    return msgspec.structs.replace(asked, at=now.replace(microsecond=0), until=min(asked.until, longest))


def _refusal(keeps: Sequence[Keep], by: str, policy: Policy, now: datetime, *, is_full: bool) -> str:
    if policy.keep_users and not is_any_of(by, policy.keep_users):
        return f"asked for by {by or 'an unnamed user'}, and keepUsers are {', '.join(policy.keep_users)}"
    if is_full:
        return "more uses of this namespace, or of all, are not recorded; they count for seven days"
    used, most = sorted(each.at for each in keeps if each.at > now - WEEK), policy.keeps_per_week
    if most is None or len(used) < most:
        return ""
    again = f"; again from {stamp(used[len(used) - most] + WEEK)} on" if most else ""
    times = "once" if len(used) == 1 else f"{len(used)} times"
    return f"kept {times} within a week, and keepsPerWeek is {most}{again}"


def recent(keeps: Sequence[Keep], now: datetime) -> tuple[Keep, ...]:
    """The keeps that count: uses of a week, and those that last."""
    return tuple(each for each in keeps if each.at > now - WEEK or each.until > now)[-_RECORDED:]
