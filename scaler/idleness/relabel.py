"""Which labels does a series have after the operator's relabel rules? Prometheus' `relabel_config`, rule by rule.

Laws of this file:

* A label with an empty value and a missing label are the same. Rules read "" from it, and writing "" deletes it.
* Rules run in order, each on the result of the one before; the first that drops the series ends it.
* Regular expressions match the whole text. A `replace` whose regex does not match changes nothing.

Where generations of Prometheus differ, the newest is followed (dots match newlines; an empty replacement deletes the
expanded target) with label names of the legacy alphabet. A `replace` whose expanded target is no label name changes
nothing; a `labelmap` whose result is none leaves that label alone, where Prometheus would fail the whole scrape.

Worked example: {source_labels: [pod], regex: "(.+)-head-.*", target_label: cluster, replacement: "$1"} on
{pod: "ray-head-x7k2"} gives {pod: "ray-head-x7k2", cluster: "ray"}; on {pod: "web-0"} it gives the same labels back.

Source: Prometheus documentation <relabel_config>; behaviour of model/relabel.
"""

import hashlib
from collections.abc import Callable, Mapping

from scaler.idleness.relabel_rules import (
    DEFAULT_RULES,
    LABEL_NAME,
    RelabelAction,
    RelabelRule,
    RelabelRules,
    parse_rules,
)

__all__ = ["DEFAULT_RULES", "RelabelRules", "parse_rules", "relabel"]

_Labels = dict[str, str]


def relabel(labels: Mapping[str, str], rules: RelabelRules) -> dict[str, str] | None:
    """The labels after all rules, or None where a rule dropped the series."""
    current = {name: value for name, value in labels.items() if value}
    for rule in rules:
        if not _EFFECTS[rule.action](rule, current):
            return None
    return current


# ---- effects: each changes `labels` in place and returns whether the series is kept


def _set(labels: _Labels, name: str, value: str) -> None:
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _replace(rule: RelabelRule, labels: _Labels) -> bool:
    match = rule.expression.match(rule.source(labels))
    if match and LABEL_NAME.fullmatch(target := rule.target.expand(match)):
        _set(labels, target, rule.replacement.expand(match))
    return True


def _keep(rule: RelabelRule, labels: _Labels) -> bool:
    return rule.expression.match(rule.source(labels)) is not None


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
        match = rule.expression.match(name)
        if match and LABEL_NAME.fullmatch(target := rule.replacement.expand(match)):
            _set(labels, target, value)
    return True


def _labeldrop(rule: RelabelRule, labels: _Labels) -> bool:
    for name in [name for name in labels if rule.expression.match(name)]:
        del labels[name]
    return True


def _labelkeep(rule: RelabelRule, labels: _Labels) -> bool:
    for name in [name for name in labels if not rule.expression.match(name)]:
        del labels[name]
    return True


def _lowercase(rule: RelabelRule, labels: _Labels) -> bool:
    _set(labels, rule.target_label, _char_by_char(str.lower, rule.source(labels)))
    return True


def _uppercase(rule: RelabelRule, labels: _Labels) -> bool:
    _set(labels, rule.target_label, _char_by_char(str.upper, rule.source(labels)))
    return True


def _char_by_char(change: Callable[[str], str], text: str) -> str:
    """Go changes the case of single characters; Python's `upper` makes SS of ß and looks at a word's end for Σ."""
    if text.isascii():
        return change(text)
    return "".join(changed if len(changed := change(char)) == 1 else char for char in text)


_EFFECTS: Mapping[RelabelAction, Callable[[RelabelRule, _Labels], bool]] = {
    RelabelAction.REPLACE: _replace,
    RelabelAction.KEEP: _keep,
    RelabelAction.DROP: _drop,
    RelabelAction.KEEPEQUAL: _keepequal,
    RelabelAction.DROPEQUAL: _dropequal,
    RelabelAction.HASHMOD: _hashmod,
    RelabelAction.LABELMAP: _labelmap,
    RelabelAction.LABELDROP: _labeldrop,
    RelabelAction.LABELKEEP: _labelkeep,
    RelabelAction.LOWERCASE: _lowercase,
    RelabelAction.UPPERCASE: _uppercase,
}
