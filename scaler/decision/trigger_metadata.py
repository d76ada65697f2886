"""What does the owner of a ScaledObject ask for? Trigger metadata (strings) → policy overrides.

Keys are those of the fields of a policy; how each is written is in `Policy`.

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
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from scaler.documents import UNREADABLE
from scaler.errors import MetadataError
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import (
    FIELDS,
    NAME_OF_KEY,
    Overrides,
    Policy,
    resolve,
    under_pressure_problem,
    wake_problem,
)
from scaler.idleness.policy_fields import LONGEST_LIST, clipped
from scaler.kube.objects.keda import Trigger

KEDA_KEYS = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey"}
)
"""Keys that KEDA reads itself and passes on. Source: KEDA, pkg/scalers/external_scaler.go."""


_EXTERNAL_TRIGGERS = frozenset({"external", "external-push"})
_MOST_TRIGGERS = 16
"""Triggers of one ScaledObject that ask this scaler: each is a decision of its own."""
_LONGEST_SOURCE = 128
_LONGEST_SOURCES = 10_000
"""Characters of the whole annotation: every key, and the longest name of a policy with each."""
_LONGEST_KEY = 60
_MOST_KEYS = 100
"""Keys of one trigger, its foreign ones too: this scaler has 20 and KEDA 7."""
_LONGEST_METADATA = 4000
"""Characters of the keys and values of this scaler together. All of them at their longest have less."""
_LISTED = 8
"""Problems that an error names."""


def own_triggers(triggers: Iterable[Trigger], addresses: Collection[str]) -> list[Trigger]:
    """The triggers that ask this scaler: external ones with one of these `scalerAddress` values; without values, all.
    There is one more where more are decided."""
    found = [
        each
        for each in triggers
        if each.type in _EXTERNAL_TRIGGERS and (not addresses or each.metadata.get("scalerAddress") in addresses)
    ]
    return found[: _MOST_TRIGGERS + 1]


def longest_asked_for(triggers: Iterable[Trigger], hooks: Mapping[str, timedelta]) -> timedelta:
    """The longest window that one of them asks for, and as much before it as it may have been warned in, or its hook
    may take.

    0 where that cannot be read, which is reported where it is evaluated.
    """
    found = none = timedelta(0)
    for each in triggers:
        try:
            asked = parse_metadata(each.metadata)
        except MetadataError:
            continue
        hook = hooks.get(asked.before_suspend or "", none)
        found = max(found, (asked.idle_after or none) + (asked.warning or none) + hook)
    return found


class TriggerPolicies(NamedTuple):
    """What the triggers of one ScaledObject ask for."""

    policies: Mapping[Overrides, Policy]
    """The policies by the fields that a trigger sets."""
    problems: tuple[str, ...]
    """Why triggers are left out."""
    ignored: tuple[str, ...]
    """Keys of their metadata that neither this scaler nor KEDA reads."""


def policies_of(
    triggers: Sequence[Trigger],
    *,
    sources: str,
    annotations: Sequence[tuple[str, Overrides]],
    defaults: Overrides,
    longest: timedelta,
    shortest: timedelta,
    hooks: Collection[str],
) -> TriggerPolicies:
    """The policy of each trigger. `sources`: the annotation of that name; all else as in `resolve_policy`."""
    policies, problems, named = dict[Overrides, Policy](), list[str](), sources_of(sources)
    if len(triggers) > _MOST_TRIGGERS:
        several = f"more than {_MOST_TRIGGERS} triggers of one ScaledObject ask this scaler; leave one"
        return TriggerPolicies({}, (several,), ())
    ignored = tuple(sorted({key for each in triggers for key in foreign_keys(each.metadata)}))
    for trigger in triggers:
        try:
            overrides = parse_metadata(trigger.metadata)
            policies[overrides] = resolve_policy(
                by_source(overrides, named),
                annotations,
                defaults=defaults,
                longest=longest,
                shortest=shortest,
                hooks=hooks,
            )
        except MetadataError as error:
            problems.append(str(error))
    if len(used := {each.before_suspend for each in policies.values()} - {""}) > 1:
        several = f"triggers of one ScaledObject name several hooks ({', '.join(sorted(used))}); name one"
        return TriggerPolicies({}, (*problems, f"trigger metadata 'beforeSuspend': {several}"), ignored)
    return TriggerPolicies(policies, tuple(problems), ignored)


def parse_metadata(metadata: Mapping[str, str]) -> Overrides:
    """The policy fields that the trigger metadata sets.

    Raises: MetadataError listing the problems, in the order of the keys.
    """
    if len(metadata) > _MOST_KEYS:
        raise MetadataError(f"trigger metadata has {len(metadata)} keys, and {_MOST_KEYS} are the most")
    items = [(key, text.strip()[: LONGEST_LIST + 1]) for key, text in metadata.items() if _intended_key(key)]
    if (length := sum(len(key) + len(text) for key, text in items)) > _LONGEST_METADATA:
        raise MetadataError(f"trigger metadata: keys of this scaler have {length} characters; write shorter values")
    parsed = _parse(frozenset(items))
    if isinstance(parsed, tuple):
        raise MetadataError(in_words(parsed), parsed)
    return parsed


def in_words(
    problems: Sequence[tuple[str, str]],
    named: Callable[[str], str] = lambda key: f"trigger metadata {clipped(key)}",
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
"""The annotation of a ScaledObject that an IdlePolicy attaches: which policy each key of the metadata is from. JSON."""
_METADATA = "trigger metadata"


def sources_of(annotation: str) -> Mapping[str, str]:
    """The source of each field of the policy. Empty for what cannot be read: it is shown, and nothing depends on it."""
    return _sources(annotation) if len(annotation) <= _LONGEST_SOURCES else {}


@lru_cache(maxsize=1024)
def _sources(annotation: str) -> Mapping[str, str]:
    try:
        named = msgspec.json.decode(annotation, type=dict[str, str]) if annotation else {}
    except UNREADABLE:
        named = {}
    return {NAME_OF_KEY[key]: source[:_LONGEST_SOURCE] for key, source in named.items() if key in NAME_OF_KEY}


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
    for key, length in (("idleAfter", resolved.idle_after), ("warning", resolved.warning)):
        if length is not None and length > longest:
            raise MetadataError(
                f"trigger metadata '{key}': {format_duration(length)} is longer than the operator allows "
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
            name = _name(key)
            given[name] = FIELDS[name].read(text)
        except ValueError as problem:
            problems.append((key, str(problem)))
    if too_long := under_pressure_problem(given.get("idle_after"), given.get("idle_after_under_pressure")):
        problems.append(("idleAfterUnderPressure", too_long))
    if back_at_once := wake_problem(given.get("wake"), given.get("reclaim")):
        problems.append(("wake", back_at_once))
    return tuple(problems) or Overrides(**given)


def _name(key: str) -> str:
    if key in NAME_OF_KEY:
        return NAME_OF_KEY[key]
    raise ValueError(f"is not a key of this scaler; did you mean {_intended_key(key)!r}?")


_KEY_BY_LETTERS = {key.lower(): key for key in NAME_OF_KEY}
_UNMISTAKABLE = tuple(letters for letters in _KEY_BY_LETTERS if len(letters) > 4)
"""The keys so long that one which begins so, like `idleAfterSeconds`, can only be meant for us."""

_OTHER_WORDS = frozenset({"claim", "claims", "code", "cpus", "make", "model", "models", "node", "take", "tpus"})
"""Words that other tools use and that merely look like `mode`, `gpus`, `reclaim` and `wake`."""

_SIMILAR_ENOUGH = 0.75
"""difflib's ratio: one wrong letter in `mode`, or two swapped, is still `mode`; `keepalive` is not `keepUntil`."""


def _intended_key(key: str) -> str:
    """The key of this scaler that this one is, or was meant to be; empty where there is none."""
    return key if key in NAME_OF_KEY else _likeness(key) if len(key) <= _LONGEST_KEY else ""


@lru_cache(maxsize=1024)
def _likeness(key: str) -> str:
    letters = re.sub(r"[^a-z0-9]", "", key.lower()).removesuffix("fromenv")
    if key in KEDA_KEYS or letters in _OTHER_WORDS:
        return ""
    # The likeness comes first: `idleAfterPressure` begins as `idleAfter` does, too.
    near = get_close_matches(letters, _KEY_BY_LETTERS, n=1, cutoff=_SIMILAR_ENOUGH)
    near = near or [known for known in _UNMISTAKABLE if letters.startswith(known)]
    return _KEY_BY_LETTERS[near[0]] if near else ""
