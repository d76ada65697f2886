r"""Which labels does a series have after the operator's relabel rules? Prometheus' `relabel_config`, rule by rule.

Laws of this file:

* A label with an empty value and a missing label are the same. Rules read "" from it, and writing "" deletes it.
* Rules run in order, each on the result of the one before; the first that drops the series ends it.
* Regular expressions match the whole text. A `replace` whose regex does not match changes nothing.
* Rules that Prometheus would refuse are refused at start, with the rule's index, the reason and what to write. Laxer
  than Prometheus: fields that an action forbids may be written if they hold their default.
* Regular expressions are RE2's, matched by RE2 itself in time linear in a label's length: tenants write label values.
  RE2 in C++ takes a little that RE2 in Go does not (`\C`, names of groups beyond ASCII), and that is refused.

Where generations of Prometheus differ, the newest is followed (dots match newlines; an empty replacement deletes the
expanded target) with label names of the legacy alphabet. A `replace` whose expanded target is no label name changes
nothing; a `labelmap` whose result is none leaves that label alone, where Prometheus would fail the whole scrape.

Worked example: {source_labels: [pod], regex: "(.+)-head-.*", target_label: cluster, replacement: "$1"} on
{pod: "ray-head-x7k2"} gives {pod: "ray-head-x7k2", cluster: "ray"}; on {pod: "web-0"} it gives the same labels back.

Source: Prometheus documentation <relabel_config>; behaviour of model/relabel.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import re2

from scaler.errors import ConfigurationError

Template = tuple[str | tuple[int, ...], ...]
"""A text with `$1`, `${1}` or `$name` in it: literal texts, and for each reference the groups that it may mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelabelRule:
    action: str
    source_labels: tuple[str, ...]
    separator: str
    regex: Any
    """A pattern of `re2`, which has no types: `^(?s:…)$`, as Prometheus compiles it; or an `_AnyText`."""
    modulus: int
    target_label: str
    target: Template
    replacement: Template

    def source(self, labels: Mapping[str, str]) -> str:
        return self.separator.join([labels.get(name, "") for name in self.source_labels])


RelabelRules = tuple[RelabelRule, ...]


# ---- effects


_Labels = dict[str, str]


def relabel(labels: Mapping[str, str], rules: RelabelRules) -> dict[str, str] | None:
    """The labels after all rules, or None where a rule dropped the series."""
    current = {name: value for name, value in labels.items() if value}
    for rule in rules:
        if not _EFFECTS[rule.action](rule, current):
            return None
    return current


def _set(labels: _Labels, name: str, value: str) -> None:
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _expanded(template: Template, match: Any) -> str:
    """The text with each reference replaced by what the first of its groups that took part has matched."""
    return "".join(part if isinstance(part, str) else _first(match, part) for part in template)


def _first(match: Any, groups: Iterable[int]) -> str:
    return next((match[number] for number in groups if match[number] is not None), "")


def _replace(rule: RelabelRule, labels: _Labels) -> bool:
    match = rule.regex.search(rule.source(labels))
    if match and _LABEL_NAME.fullmatch(target := _expanded(rule.target, match)):
        _set(labels, target, _expanded(rule.replacement, match))
    return True


def _keep(rule: RelabelRule, labels: _Labels) -> bool:
    return rule.regex.search(rule.source(labels)) is not None


def _drop(rule: RelabelRule, labels: _Labels) -> bool:
    return not _keep(rule, labels)


def _keepequal(rule: RelabelRule, labels: _Labels) -> bool:
    return labels.get(rule.target_label, "") == rule.source(labels)


def _dropequal(rule: RelabelRule, labels: _Labels) -> bool:
    return not _keepequal(rule, labels)


def _hashmod(rule: RelabelRule, labels: _Labels) -> bool:
    digest = hashlib.md5(rule.source(labels).encode(), usedforsecurity=False).digest()
    _set(labels, rule.target_label, str(int.from_bytes(digest[8:], "big") % rule.modulus))
    return True


def _labelmap(rule: RelabelRule, labels: _Labels) -> bool:
    """Labels are mapped as they were before the rule, in alphabetical order: of two with one target the last wins."""
    for name, value in sorted(labels.items()):
        match = rule.regex.search(name)
        if match and _LABEL_NAME.fullmatch(target := _expanded(rule.replacement, match)):
            _set(labels, target, value)
    return True


def _drop_or_keep_labels(rule: RelabelRule, labels: _Labels) -> bool:
    drops = rule.action == "labeldrop"
    for name in [name for name in labels if (rule.regex.search(name) is not None) is drops]:
        del labels[name]
    return True


def _change_case(rule: RelabelRule, labels: _Labels) -> bool:
    change = str.lower if rule.action == "lowercase" else str.upper
    _set(labels, rule.target_label, _char_by_char(change, rule.source(labels)))
    return True


def _char_by_char(change: Callable[[str], str], text: str) -> str:
    """Go changes the case of single characters; Python's `upper` makes SS of ß and looks at a word's end for Σ."""
    if text.isascii():
        return change(text)
    return "".join(changed if len(changed := change(char)) == 1 else char for char in text)


_EFFECTS: Mapping[str, Callable[[RelabelRule, _Labels], bool]] = {
    "replace": _replace,
    "keep": _keep,
    "drop": _drop,
    "keepequal": _keepequal,
    "dropequal": _dropequal,
    "hashmod": _hashmod,
    "labelmap": _labelmap,
    "labeldrop": _drop_or_keep_labels,
    "labelkeep": _drop_or_keep_labels,
    "lowercase": _change_case,
    "uppercase": _change_case,
}


# ---- rules as they are written

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
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
_NEED_TARGET = frozenset({"replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal"})
_EQUALITY_FORBIDS = ("regex", "modulus", "separator", "replacement")
_NAMES_FORBID = ("source_labels", "target_label", "modulus", "separator", "replacement")
_FORBIDDEN: Mapping[str, tuple[str, ...]] = {
    "keepequal": _EQUALITY_FORBIDS,
    "dropequal": _EQUALITY_FORBIDS,
    "labeldrop": _NAMES_FORBID,
    "labelkeep": _NAMES_FORBID,
    "lowercase": ("replacement",),
    "uppercase": ("replacement",),
}


def parse_rules(rules: Sequence[Mapping[str, Any]]) -> RelabelRules:
    """The rules as YAML gives them, validated as Prometheus validates its own.

    Raises: ConfigurationError with the index of the rule (from 0), what is wrong with it and what to write.
    """
    if isinstance(rules, str | Mapping) or not isinstance(rules, Iterable):
        raise ConfigurationError("relabel rules must be a list; start each rule with '- '")
    return tuple(_located(index, rule) for index, rule in enumerate(rules))


def _located(index: int, given: Any) -> RelabelRule:
    try:
        return _rule(given)
    except ValueError as error:
        raise ConfigurationError(f"relabel rule [{index}]: {error}") from None


def _rule(given: Any) -> RelabelRule:
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
    regex = _compiled(fields["regex"])
    group_names = _group_names(fields["regex"])
    return RelabelRule(
        **{
            **fields,
            "action": action,
            "regex": regex,
            "target": _template(fields["target_label"], group_names),
            "replacement": _template(fields["replacement"], group_names),
        }
    )


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _action(text: str) -> str:
    if text.lower() not in _EFFECTS:
        raise ValueError(f"unknown action {text!r}; {_suggestion(text, _EFFECTS)}")
    return text.lower()


def _source_labels(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"source_labels must be a list such as [namespace, pod], not {given!r}")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ValueError(f"source_labels holds {name!r}, which is not a label name")
    return tuple(given)


def _check_modulus(action: str, modulus: Any) -> None:
    if not isinstance(modulus, int) or isinstance(modulus, bool) or not 0 <= modulus <= _HIGHEST_MODULUS:
        raise ValueError(f"modulus must be a whole number above 0, not {modulus!r}")
    if action == "hashmod" and modulus == 0:
        raise ValueError("action hashmod needs a modulus; write for example 'modulus: 8'")


def _check_names(action: str, target_label: str, replacement: str) -> None:
    if action in _NEED_TARGET and not target_label:
        raise ValueError(f"action {action} needs a target_label")
    allowed = _NAME_TEMPLATE if action == "replace" else _LABEL_NAME
    if action in _NEED_TARGET and not allowed.fullmatch(target_label):
        raise ValueError(f"target_label {target_label!r} is not a label name; use letters, digits and underscores")
    if action == "labelmap" and not _NAME_TEMPLATE.fullmatch(replacement):
        raise ValueError(f"replacement {replacement!r} does not make a label name; write for example '$1'")


def _check_forbidden(action: str, fields: Mapping[str, Any]) -> None:
    for key in _FORBIDDEN.get(action, ()):
        if fields[key] != _DEFAULTS[key]:
            raise ValueError(f"{key} means nothing to action {action}; remove it")


# ---- regular expressions

_MOST_MEMORY = 64 * 2**20
"""Bytes for one compiled expression. Go's own limit is reached far below."""
_LITERAL = re.compile(r"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]", re.DOTALL)
"""Quoted text, escapes and classes: parentheses in them open no group."""
_GROUP = re.compile(r"\((?!\?)|\(\?P?<(\w+)>")


class _AnyText:
    """What `(.*)` and `(.+)` match, as most rules have it, without a call to RE2 for every series."""

    def __init__(self, least: int) -> None:
        self._least = least

    def search(self, text: str) -> tuple[str, str] | None:
        """The groups 0 and 1 of the match."""
        return (text, text) if len(text) >= self._least else None


_ANY_TEXT = {"(.*)": _AnyText(0), "(.+)": _AnyText(1)}


def _compiled(regex: str) -> Any:
    """Raises: ValueError with RE2's own words."""
    if regex in _ANY_TEXT:
        return _ANY_TEXT[regex]
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    try:
        return re2.compile(f"^(?s:{regex})$", options)
    except re2.error as error:
        words = _words(error).removesuffix(f": ^(?s:{regex})$")
        raise ValueError(f"regex {regex!r} cannot be used: {words}; write it in RE2's syntax") from None


def _group_names(regex: str) -> tuple[str, ...]:
    """Names by number: of the whole match, which has none, and of every group; several may share one.

    Raises: ValueError.
    """
    names = ("", *(group[1] or "" for group in _GROUP.finditer(_LITERAL.sub(".", regex))))
    if r"\C" in _LITERAL.findall(regex):
        raise ValueError(rf"regex {regex!r} cannot be used: \C matches single bytes; write a dot")
    if not all(map(str.isascii, names)):
        raise ValueError(f"regex {regex!r} cannot be used: name groups by ASCII letters, digits and underscores")
    return names


def _words(error: Exception) -> str:
    [words] = error.args
    return words.decode(errors="replace") if isinstance(words, bytes) else str(words)


def _template(text: str, group_names: Sequence[str]) -> Template:
    """A `$` that starts no reference is itself, `$$` is one `$`; a group that is not there gives nothing."""
    parts: list[str | tuple[int, ...]] = []
    end = 0
    for found in _REFERENCE.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        parts.append("$" if found[1] else _groups(found[2] or found[3], group_names))
    parts.append(text[end:])
    return tuple(filter(None, parts))


def _groups(name: str, group_names: Sequence[str]) -> tuple[int, ...]:
    if name.isascii() and name.isdigit() and (name == "0" or name[0] != "0"):
        number = int(name[:9])
        return (number,) if number < len(group_names) else ()
    return tuple(number for number, known in enumerate(group_names) if known == name)


DEFAULT_RULES = parse_rules(
    [
        {"source_labels": [f"exported_{label}"], "regex": "(.+)", "target_label": label, "replacement": "$1"}
        for label in ("namespace", "pod", "container")
    ]
)
"""The rules where Prometheus set its target's labels (`honor_labels: false`): the workload's, in `exported_*`, win.

Without these rules the exporter's pod would be judged in place of the workload's. Series without them stay as they are.
"""
