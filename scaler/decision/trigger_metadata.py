"""What does the owner of a ScaledObject ask for? Trigger metadata (strings) → policy overrides.

| key                    | meaning                                         | written as                         |
|------------------------|-------------------------------------------------|------------------------------------|
| idleAfter              | quiet this long before the answer is 0          | a duration above 0: 30m, 1h30m     |
| warmUp                 | answer 1 this long after the containers started | a duration, 0s for none            |
| activeAbove            | a GPU signal that reaches this share shows work | a percentage above 0 %: 1%, 0.5 %  |
| gpus                   | the GPUs that must be idle                      | all, any, quorum:0.8               |
| mode                   | suspend, or only report                         | enforce, observe                   |
| reclaim                | what takes its quota away while it is idle      | Always, OnPressure, PriorityBoost  |
| idleAfterUnderPressure | quiet this long before a plan may take it       | a duration up to idleAfter: 5m     |
| warning                | suspended after a warning that stood so long    | a duration above 0: 30m            |
| requireDelivery        | and only if its owner was told of it so long    | true, false                        |
| beforeSuspend          | this hook of the settings ends before that      | a name: checkpoint                 |
| beforeSuspendOnFailure | if the hook fails                               | Hold, Continue                     |
| allowedDuring          | suspended at these hours only                   | Mon-Fri 19:00-07:00 Europe/Berlin  |
| wakeAt                 | resumed then, if it is suspended                | Mon-Fri 08:00 Europe/Berlin        |
| wake                   | when it comes back after a plan took it         | OnRequest, WhenFree                |
| keepUntil              | answer 1 until then                             | RFC 3339: 2026-12-01T18:00:00Z     |
| suspendedAtOnce        | so many of the policy's are suspended at once   | a number: 2                        |
| suspendedPerPeriod     | so many of them within any such period          | 5 per 24h                          |
| longestKeep            | kept or excluded by annotations at most so long | a duration above 0: 8h             |
| keepsPerWeek           | kept so often within seven days                 | a number: 3                        |
| keepUsers              | kept by these users only                        | *@example.com, alice               |

Laws of this file:

* Metadata is a tenant's input. It sets these values, within bounds, and nothing else: no URL, no query.
* All problems are reported at once, so that an owner does not fix them one KEDA event at a time.
* A misspelt key of this scaler is an error. To ignore it is to apply a default that its owner believes replaced, and to
  suspend a workload that was only to be observed.
* KEDA hands over the whole map: its own keys and those of other tools pass.
* What is read is bounded before it is read, and so is what is said about it: the API lets a tenant write a megabyte,
  and every poll of KEDA's hands it over again. What was refused is not read twice either.

`activeAbove` needs its `%`, because for the same thing some write 0.01 and others 1. Two characters are cheaper than
being wrong by a hundred about what counts as work.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from scaler.documents import UNREADABLE
from scaler.errors import MetadataError
from scaler.idleness.durations import LONGEST_DURATION, format_duration, parse_duration
from scaler.idleness.hooks import OnFailure
from scaler.idleness.hours import parse_day_times, parse_hours
from scaler.idleness.policy import (
    EnforcementMode,
    GpuRule,
    Overrides,
    PerPeriod,
    Policy,
    Reclaim,
    WakeRule,
    resolve,
    under_pressure_problem,
    wake_problem,
)

KEDA_KEYS = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey"}
)
"""Keys that KEDA reads itself and passes on. Source: KEDA, pkg/scalers/external_scaler.go."""


_LONGEST_SOURCE = 128
_LONGEST_SOURCES = 10_000
"""Characters of the whole annotation: every key, and the longest name of a policy with each."""
_LONGEST_VALUE = 60
"""Characters. No sensible value is longer, and an error that repeats it has to fit a gRPC trailer and an Event."""
_LONGEST_LIST = 500
"""The same of a value with several parts."""
_LONGEST_KEY = 60
_MOST_KEYS = 100
"""Of one trigger, its foreign ones too: this scaler has 20 and KEDA 7."""
_LONGEST_METADATA = 4000
"""Characters of the keys and values of this scaler together. All of them at their longest have less."""
_LISTED = 8
"""Problems that an error names."""


def parse_metadata(metadata: Mapping[str, str]) -> Overrides:
    """The policy fields that the trigger metadata sets.

    Raises: MetadataError listing the problems, in the order of the keys.
    """
    if len(metadata) > _MOST_KEYS:
        raise MetadataError(f"trigger metadata has {len(metadata)} keys, and {_MOST_KEYS} are the most")
    items = [(key, text.strip()[: _LONGEST_LIST + 1]) for key, text in metadata.items() if _intended_key(key)]
    if (length := sum(len(key) + len(text) for key, text in items)) > _LONGEST_METADATA:
        raise MetadataError(f"trigger metadata: keys of this scaler have {length} characters; write shorter values")
    parsed = _parse(frozenset(items))
    if isinstance(parsed, tuple):
        raise MetadataError(in_words(parsed), parsed)
    return parsed


def in_words(
    problems: Sequence[tuple[str, str]],
    named: Callable[[str], str] = lambda key: f"trigger metadata {_clipped(key)}",
) -> str:
    """What is wrong with the values. `named`: how a key is called where they were written."""
    more = [f"{len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
    return " | ".join([*(f"{named(key)}: {what}" for key, what in problems[:_LISTED]), *more])


def foreign_keys(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that neither this scaler nor KEDA reads, sorted. They have no effect, and `explain` says so.

    Of more keys than are read there are none.
    """
    if len(metadata) > _MOST_KEYS:
        return ()
    return tuple(sorted(key[:_LONGEST_KEY] for key in metadata if key not in KEDA_KEYS and not _intended_key(key)))


SOURCES_ANNOTATION = "idlegpu.io/policy-sources"
"""On a ScaledObject that an IdlePolicy attaches: which policy each key of the trigger metadata is from. JSON."""
_METADATA = "trigger metadata"


def sources_of(annotation: str) -> Mapping[str, str]:
    """By field of the policy. Empty for what cannot be read: it is shown, and nothing depends on it."""
    return _sources(annotation) if len(annotation) <= _LONGEST_SOURCES else {}


@lru_cache(maxsize=1024)
def _sources(annotation: str) -> Mapping[str, str]:
    try:
        named = msgspec.json.decode(annotation, type=dict[str, str]) if annotation else {}
    except UNREADABLE:
        named = {}
    return {FIELD_OF_KEY[key]: source[:_LONGEST_SOURCE] for key, source in named.items() if key in FIELD_OF_KEY}


def by_source(trigger: Overrides, sources: Mapping[str, str]) -> list[tuple[str, Overrides]]:
    """The trigger metadata as one layer for each source, that of the cluster first."""
    given: dict[str, dict[str, Any]] = {}
    for name, value in trigger.given().items():
        given.setdefault(sources.get(name, _METADATA), {})[name] = value
    return [(source, Overrides(**given[source])) for source in sorted(given)]


def resolve_policy(
    trigger: Sequence[tuple[str, Overrides]],
    annotations: Iterable[tuple[str, Overrides]],
    *,
    defaults: Overrides,
    longest: timedelta,
    shortest: timedelta,
    hooks: Collection[str] = (),
) -> Policy:
    """The policy of a trigger, whose metadata comes `by_source`. `annotations` are nearer, the last one nearest.

    `hooks`: names of those that the settings have. Raises: MetadataError where its window is not within `shortest` (one
    collection interval) and `longest`, its warning is longer, or there is no such hook.
    """
    nearer = (each for each in annotations if each[1] != _SILENT)
    resolved = _resolve(("settings", defaults), *trigger, *nearer)
    if resolved.idle_after > longest:
        raise MetadataError(
            f"trigger metadata 'idleAfter': {format_duration(resolved.idle_after)} is longer than the "
            f"operator allows ({format_duration(longest)}, evaluation.maxWindow of the settings)"
        )
    if resolved.warning is not None and resolved.warning > longest:
        raise MetadataError(
            f"trigger metadata 'warning': {format_duration(resolved.warning)} is longer than the operator allows "
            f"({format_duration(longest)}, evaluation.maxWindow of the settings)"
        )
    if problem := hook_problem(resolved.before_suspend, hooks):
        raise MetadataError(f"trigger metadata 'beforeSuspend': {problem}")
    if resolved.idle_after_if_pressed < shortest:
        key = "idleAfter" if resolved.idle_after < shortest else "idleAfterUnderPressure"
        raise MetadataError(
            f"trigger metadata '{key}': {format_duration(resolved.idle_after_if_pressed)} is shorter than the time "
            f"between two samples ({format_duration(shortest)}, trust.collectionInterval of the settings); nothing "
            "could be seen in it"
        )
    return resolved


def hook_problem(name: str, hooks: Collection[str]) -> str:
    """What is wrong with the hook, and what to write; empty where nothing is."""
    if not name or name in hooks:
        return ""
    known = f"write {' or '.join(map(repr, sorted(hooks)))}" if hooks else "they have none"
    return f"the settings have no hook {name!r}; {known}"


_SILENT = Overrides()
_resolve = lru_cache(maxsize=1024)(resolve)
"""Most triggers are set alike, and what is alike is one object."""


# Only our part is remembered, which is bounded. So a tenant cannot fill the memory with what is ignored, and
# ScaledObjects that are set alike share an entry.
@lru_cache(maxsize=8192)
def _parse(items: frozenset[tuple[str, str]]) -> Overrides | tuple[tuple[str, str], ...]:
    """What is set, or what is wrong with it, by key: an exception would not be remembered."""
    given: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for key, text in sorted(items):
        try:
            field = _field(key)
            given[field.name] = _value(field, text)
        except ValueError as problem:
            problems.append((key, str(problem)))
    if too_long := under_pressure_problem(given.get("idle_after"), given.get("idle_after_under_pressure")):
        problems.append(("idleAfterUnderPressure", too_long))
    if back_at_once := wake_problem(given.get("wake"), given.get("reclaim")):
        problems.append(("wake", back_at_once))
    return tuple(problems) or Overrides(**given)


class _Field(NamedTuple):
    name: str
    """The field of `Overrides`."""
    parse: Callable[[str], Any]
    """Raises ValueError saying what is wrong and what to write."""
    example: str
    longest: int = _LONGEST_VALUE


def _field(key: str) -> _Field:
    if key in _FIELDS:
        return _FIELDS[key]
    raise ValueError(f"is not a key of this scaler; did you mean {_intended_key(key)!r}?")


def _value(field: _Field, text: str) -> Any:
    if not text:
        raise ValueError(f"the value is empty; write for example {field.example!r} or leave the key out")
    if len(text) > field.longest:
        raise ValueError(f"{_clipped(text)} is too long to be a value; write for example {field.example!r}")
    return field.parse(text)


def _clipped(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…")


def _duration(text: str) -> timedelta:
    try:
        duration = parse_duration(text)
    except OverflowError:
        duration = timedelta.max
    if duration > LONGEST_DURATION:
        raise ValueError(f"{text!r} is too long; write at most '{format_duration(LONGEST_DURATION)}'")
    return duration


def _positive_duration(text: str) -> timedelta:
    duration = _duration(text)
    if not duration:
        raise ValueError(f"{text!r} leaves no time to be idle in; write a duration above 0, for example '30m'")
    return duration


_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)(\s*%)?")


def _percentage(text: str) -> float:
    """The ratio 0..1 that a percentage means."""
    match = _NUMBER.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a percentage; write for example '1%'")
    number, sign = match.groups()
    if not sign:
        raise ValueError(f"{text!r} is ambiguous without a % sign; write for example '1%'")
    ratio = float(number) / 100
    if not 0 < ratio <= 1:
        raise ValueError(f"{text!r} is out of range; write a percentage above 0% and up to 100%")
    return ratio


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,2}", text):
        raise ValueError(f"{text!r} is not a number up to 99; write for example '3'")
    return int(text)


def _per_period(text: str) -> PerPeriod:
    count, separator, period = text.partition(" per ")
    if not separator:
        raise ValueError(f"{text!r} is not a number in a period; write for example '5 per 24h'")
    return PerPeriod(count=_number(count.strip()), period=_positive_duration(period.strip()))


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is unknown; write 'true' or 'false'")
    return text == "true"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} has an empty name; write for example '*@example.com, alice'")
    return names


def _hook_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", text):
        raise ValueError(f"{text!r} is no name of a hook; write one of the settings' hooks, such as 'checkpoint'")
    return text


def _one_of(words: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        try:
            return words(text)
        except ValueError:
            raise ValueError(f"{text!r} is unknown; write {' or '.join(repr(str(each)) for each in words)}") from None

    return parse


_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE
)


def _instant(text: str) -> datetime:
    """The instant in UTC, so that however it is written it is one and the same policy."""
    try:
        if _RFC3339.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is not an RFC 3339 time with a zone; write for example '2026-12-01T18:00:00Z'")


_FIELDS = {
    "idleAfter": _Field("idle_after", _positive_duration, "30m"),
    "warmUp": _Field("warm_up", _duration, "10m"),
    "activeAbove": _Field("active_above_ratio", _percentage, "1%"),
    "gpus": _Field("gpus", GpuRule.parse, "all"),
    "mode": _Field("mode", _one_of(EnforcementMode), "observe"),
    "reclaim": _Field("reclaim", _one_of(Reclaim), "OnPressure"),
    "idleAfterUnderPressure": _Field("idle_after_under_pressure", _positive_duration, "5m"),
    "warning": _Field("warning", _positive_duration, "30m"),
    "requireDelivery": _Field("require_delivery", _yes_or_no, "true"),
    "beforeSuspend": _Field("before_suspend", _hook_name, "checkpoint"),
    "beforeSuspendOnFailure": _Field("before_suspend_on_failure", _one_of(OnFailure), "Hold"),
    "allowedDuring": _Field("allowed_during", parse_hours, "Mon-Fri 19:00-07:00 Europe/Berlin", _LONGEST_LIST),
    "wakeAt": _Field("wake_at", parse_day_times, "Mon-Fri 08:00 Europe/Berlin", _LONGEST_LIST),
    "wake": _Field("wake", _one_of(WakeRule), "WhenFree"),
    "suspendedAtOnce": _Field("suspended_at_once", _number, "2"),
    "suspendedPerPeriod": _Field("suspended_per_period", _per_period, "5 per 24h"),
    "longestKeep": _Field("longest_keep", _positive_duration, "8h"),
    "keepsPerWeek": _Field("keeps_per_week", _number, "3"),
    "keepUsers": _Field("keep_users", _names, "*@example.com, alice", _LONGEST_LIST),
    "keepUntil": _Field("keep_until", _instant, "2026-12-01T18:00:00Z"),
}

FIELD_OF_KEY = {key: field.name for key, field in _FIELDS.items()}
"""The field of a policy that each key sets."""

_KEY_BY_LETTERS = {key.lower(): key for key in _FIELDS}
_UNMISTAKABLE = tuple(letters for letters in _KEY_BY_LETTERS if len(letters) > 4)
"""Long enough that a key which begins so, like `idleAfterSeconds`, can only be meant for us."""

_OTHER_WORDS = frozenset({"claim", "claims", "code", "cpus", "make", "model", "models", "node", "take", "tpus"})
"""Words that other tools use and that merely look like `mode`, `gpus`, `reclaim` and `wake`."""

_SIMILAR_ENOUGH = 0.75
"""difflib's ratio: one wrong letter in `mode`, or two swapped, is still `mode`; `keepalive` is not `keepUntil`."""


def _intended_key(key: str) -> str:
    """The key of this scaler that this one is, or was meant to be; empty where there is none."""
    return key if key in _FIELDS else _likeness(key) if len(key) <= _LONGEST_KEY else ""


@lru_cache(maxsize=1024)
def _likeness(key: str) -> str:
    letters = re.sub(r"[^a-z0-9]", "", key.lower()).removesuffix("fromenv")
    if key in KEDA_KEYS or letters in _OTHER_WORDS:
        return ""
    # The likeness comes first: `idleAfterPressure` begins as `idleAfter` does, too.
    near = get_close_matches(letters, _KEY_BY_LETTERS, n=1, cutoff=_SIMILAR_ENOUGH)
    near = near or [known for known in _UNMISTAKABLE if letters.startswith(known)]
    return _KEY_BY_LETTERS[near[0]] if near else ""
