"""Kubernetes label selectors as text, as a scale subresource gives them: `app=web,tier in (a, b),!canary`.

Source: k8s.io/apimachinery/pkg/labels, Parse.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

_KEY = r"(?P<key>[^\s,!=()<>]+)"
_SET_BASED = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALITY = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<values>[^\s,!=()]*)")
_PRESENCE = re.compile(rf"(?P<absent>!?)\s*{_KEY}")
_LONGEST = 16 * 1024
"""Characters. Real selectors have some hundred; an object that anybody may write must not cost seconds to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement. `values` is None where only the presence of the key counts."""

    key: str
    values: frozenset[str] | None
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.values is None:
            return (self.key in labels) is not self.negated
        return (labels.get(self.key) in self.values) is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold. One without requirements matches everything."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


@lru_cache(maxsize=4096)
def parse_selector(text: str) -> Selector:
    """The selector that the text means. Raises: ValueError naming the part that cannot be read."""
    if len(text) > _LONGEST:
        raise ValueError(f"a label selector of {len(text)} characters is too long; {_LONGEST} are the most")
    return Selector(tuple(_requirement(part) for part in _parts(text) if part))


def _parts(text: str) -> Iterator[str]:
    """The requirements: what stands between commas, those within parentheses excepted."""
    begin = depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            yield text[begin:place].strip()
            begin = place + 1
    yield text[begin:].strip()


def _requirement(text: str) -> Requirement:
    if found := _SET_BASED.fullmatch(text):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(key=found["key"], values=values, negated=found["operator"] == "notin")
    if found := _EQUALITY.fullmatch(text):
        return Requirement(key=found["key"], values=frozenset({found["values"]}), negated=found["operator"] == "!=")
    if found := _PRESENCE.fullmatch(text):
        return Requirement(key=found["key"], values=None, negated=bool(found["absent"]))
    raise ValueError(f"{text!r} is not a label requirement; write 'key=value', 'key in (a,b)', 'key' or '!key'")
