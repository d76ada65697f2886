"""Which relabel rules did the operator write? YAML's mappings in, validated rules out.

Rules that Prometheus would refuse are refused here, at start, with the rule's index, the reason and what to write;
so is what it would accept and this program cannot match alike (`go_regex`). None is skipped while series flow.

What is laxer than Prometheus: fields that an action forbids may be written if they hold their default.

Source: Prometheus documentation <relabel_config>; behaviour of model/relabel.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from scaler.core.go_regex import compile_anchored
from scaler.errors import ConfigurationError


class Action(StrEnum):
    """What a rule does."""

    REPLACE = "replace"
    KEEP = "keep"
    DROP = "drop"
    KEEPEQUAL = "keepequal"
    DROPEQUAL = "dropequal"
    HASHMOD = "hashmod"
    LABELMAP = "labelmap"
    LABELDROP = "labeldrop"
    LABELKEEP = "labelkeep"
    LOWERCASE = "lowercase"
    UPPERCASE = "uppercase"


@dataclass(frozen=True, slots=True)
class Template:
    """A text with `$1`, `${1}` or `$name` in it, resolved against the groups of one pattern."""

    parts: tuple[str | int, ...]
    """Literal texts and group numbers, in order."""

    def expand(self, match: re.Match[str]) -> str:
        """The text with each reference replaced by what its group matched; nothing for a group that took no part."""
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One validated rule."""

    action: Action
    source_labels: tuple[str, ...]
    separator: str
    pattern: re.Pattern[str]
    modulus: int
    target_label: str
    target: Template
    replacement: Template

    def source(self, labels: Mapping[str, str]) -> str:
        """The values of the source labels, joined by the separator."""
        return self.separator.join([labels.get(name, "") for name in self.source_labels])


RelabelRules = tuple[Rule, ...]


LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NAME_TEMPLATE = re.compile(r"(?:[a-zA-Z_]|\$(?:\{\w+\}|\w))(?:\w|\$(?:\{\w+\}|\w))*", re.ASCII)
_REFERENCE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")
_HIGHEST_MODULUS = 2**64 - 1

_DEFAULTS: Mapping[str, Any] = {
    "source_labels": (),
    "separator": ";",
    "regex": "(.*)",
    "modulus": 0,
    "target_label": "",
    "replacement": "$1",
    "action": "replace",
}
_NEED_TARGET = frozenset(
    {Action.REPLACE, Action.HASHMOD, Action.LOWERCASE, Action.UPPERCASE, Action.KEEPEQUAL, Action.DROPEQUAL}
)
_EQUALITY_FORBIDS = ("regex", "modulus", "separator", "replacement")
_NAMES_FORBID = ("source_labels", "target_label", "modulus", "separator", "replacement")
_FORBIDDEN: Mapping[Action, tuple[str, ...]] = {
    Action.KEEPEQUAL: _EQUALITY_FORBIDS,
    Action.DROPEQUAL: _EQUALITY_FORBIDS,
    Action.LABELDROP: _NAMES_FORBID,
    Action.LABELKEEP: _NAMES_FORBID,
    Action.LOWERCASE: ("replacement",),
    Action.UPPERCASE: ("replacement",),
}


def parse_rules(rules: Sequence[Mapping[str, Any]]) -> RelabelRules:
    """The rules as YAML gives them, validated as Prometheus validates its own.

    Raises: ConfigurationError with the index of the rule (from 0), what is wrong with it and what to write.
    """
    if isinstance(rules, str | Mapping) or not isinstance(rules, Iterable):
        raise ConfigurationError("relabel rules must be a list; start each rule with '- '")
    return tuple(_located(index, rule) for index, rule in enumerate(rules))


def _located(index: int, given: Any) -> Rule:
    try:
        return _rule(given)
    except ValueError as error:
        raise ConfigurationError(f"relabel rule [{index}]: {error}") from None


def _rule(given: Any) -> Rule:
    """Raises: ValueError."""
    if not isinstance(given, Mapping):
        raise ValueError(f"a rule is a mapping such as {{action: drop, …}}, not {given!r}")
    for key in given:
        if key not in _DEFAULTS:
            raise ValueError(f"unknown field {key!r}; {_suggestion(str(key), _DEFAULTS)}")
    fields = {**_DEFAULTS, **given}
    for key in ("separator", "regex", "target_label", "replacement", "action"):
        if not isinstance(fields[key], str):
            raise ValueError(f"{key} must be text, not {fields[key]!r}; put it in quotes")
    action = _action(fields["action"])
    fields["source_labels"] = _source_labels(fields["source_labels"])
    _check_modulus(action, fields["modulus"])
    _check_names(action, fields["target_label"], fields["replacement"])
    _check_forbidden(action, fields)
    pattern = compile_anchored(fields["regex"])
    return Rule(
        action=action,
        source_labels=fields["source_labels"],
        separator=fields["separator"],
        pattern=pattern,
        modulus=fields["modulus"],
        target_label=fields["target_label"],
        target=_template(fields["target_label"], pattern),
        replacement=_template(fields["replacement"], pattern),
    )


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _action(text: str) -> Action:
    try:
        return Action(text.lower())
    except ValueError:
        raise ValueError(f"unknown action {text!r}; {_suggestion(text, [str(known) for known in Action])}") from None


def _source_labels(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"source_labels must be a list such as [namespace, pod], not {given!r}")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ValueError(f"source_labels holds {name!r}, which is not a label name")
    return tuple(given)


def _check_modulus(action: Action, modulus: Any) -> None:
    if not isinstance(modulus, int) or isinstance(modulus, bool) or not 0 <= modulus <= _HIGHEST_MODULUS:
        raise ValueError(f"modulus must be a whole number above 0, not {modulus!r}")
    if action is Action.HASHMOD and modulus == 0:
        raise ValueError("action hashmod needs a modulus; write for example 'modulus: 8'")


def _check_names(action: Action, target_label: str, replacement: str) -> None:
    if action in _NEED_TARGET and not target_label:
        raise ValueError(f"action {action} needs a target_label; name the label to {_purpose(action)}")
    allowed = _NAME_TEMPLATE if action is Action.REPLACE else LABEL_NAME
    if action in _NEED_TARGET and not allowed.fullmatch(target_label):
        raise ValueError(f"target_label {target_label!r} is not a label name; use letters, digits and underscores")
    if action is Action.LABELMAP and not _NAME_TEMPLATE.fullmatch(replacement):
        raise ValueError(f"replacement {replacement!r} does not make a label name; write for example '$1'")


def _purpose(action: Action) -> str:
    return "compare with" if action in (Action.KEEPEQUAL, Action.DROPEQUAL) else "write to"


def _check_forbidden(action: Action, fields: Mapping[str, Any]) -> None:
    for key in _FORBIDDEN.get(action, ()):
        if fields[key] != _DEFAULTS[key]:
            raise ValueError(f"{key} means nothing to action {action}; remove it")


def _template(text: str, pattern: re.Pattern[str]) -> Template:
    """A `$` that starts no reference stands for itself, `$$` for one `$`; a group that is not there gives nothing."""
    parts: list[str | int] = []
    end = 0
    for found in _REFERENCE.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        group = "$" if found[1] else _group_number(found[2] or found[3], pattern)
        parts.append("" if group is None else group)
    parts.append(text[end:])
    return Template(tuple(part for part in parts if part != ""))


def _group_number(name: str, pattern: re.Pattern[str]) -> int | None:
    if name.isascii() and name.isdigit() and (name == "0" or name[0] != "0"):
        number = int(name[:9])
        return number if number <= pattern.groups else None
    return pattern.groupindex.get(name)


DEFAULT_RULES = parse_rules(
    [
        {"source_labels": [f"exported_{label}"], "regex": "(.+)", "target_label": label, "replacement": "$1"}
        for label in ("namespace", "pod", "container")
    ]
)
"""Where Prometheus set its target's labels (`honor_labels: false`), the workload's are in `exported_*`; they win.

Without these rules the exporter's pod would be judged in place of the workload's. Series without them stay as they are.
"""
