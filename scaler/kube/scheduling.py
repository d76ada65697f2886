"""May a pod run on a node (or take a flavor) with these labels and taints? Kubernetes' own rules, as values.

Laws:

* A term's expressions must all hold; of several terms one is enough; a selector without terms and labels matches all.
* A toleration without key and operator `Exists` tolerates everything; one without effect tolerates every effect.
* Label selectors are read as text, as a scale subresource gives them: `app=web,tier in (a, b),!canary`.

Source: k8s.io/component-helpers, scheduling/corev1 (FindMatchingUntoleratedTaint) and nodeaffinity;
k8s.io/apimachinery, pkg/labels, Parse.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType


class Operator(StrEnum):
    """The operator of a requirement."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequirement:
    """One expression of a node affinity term or of a label selector."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        present = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return present in self.values
            case Operator.NOT_IN:
                return present not in self.values
            case Operator.EXISTS:
                return present is not None
            case Operator.DOES_NOT_EXIST:
                return present is None
            case Operator.GT | Operator.LT:
                return self._compares(present)

    def _compares(self, present: str | None) -> bool:
        """Whether the label is a whole number above (Gt) or below (Lt) the one value."""
        try:
            number, limit = int(present or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return number > limit if self.operator is Operator.GT else number < limit


Term = tuple[NodeRequirement, ...]
"""Expressions that must all hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A taint of a node or a ResourceFlavor; decoded from the API as it is."""

    key: str = ""
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """`operator` is `Equal` or `Exists`; an empty `key` or `effect` stands for any. Decoded from the API as it is."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key != taint.key and (self.key or self.operator != "Exists"):
            return False
        return self.operator == "Exists" or self.value == taint.value


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSelection:
    """What a pod demands of its node: `nodeSelector`, required node affinity, tolerations, and pods that it avoids."""

    labels: Mapping[str, str]
    terms: tuple[Term, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    apart: tuple[str, ...] = ()
    """Marks of which a node takes one pod each: host ports, and groups whose pods keep away from each other."""
    closed: frozenset[str] = frozenset()
    """Names of nodes that have a pod with one of these marks now."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels satisfies selector and affinity."""
        if any(labels.get(key) != value for key, value in self.labels.items()):
            return False
        return not self.terms or any(all(one.matches(labels) for one in term) for term in self.terms)


ANYWHERE = NodeSelection(labels=MappingProxyType({}))
"""The selection of a pod that demands nothing."""


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps pods away and that none of the tolerations covers."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(each.covers(taint) for each in tolerations):
            return taint
    return None


# ------------------------------------------------------------------------------------------------ label selectors

_KEY = r"(?P<key>[^\s,!=()<>]+)"
_SET_BASED = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALITY = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<values>[^\s,!=()]*)")
_PRESENCE = re.compile(rf"(?P<absent>!?)\s*{_KEY}")
_LONGEST = 16 * 1024
"""Characters. Real selectors have some hundred; an object that any tenant may write must not cost seconds to read."""


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold. One without requirements matches everything."""

    requirements: tuple[NodeRequirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


@lru_cache(maxsize=1024)
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


def _requirement(text: str) -> NodeRequirement:
    if found := _SET_BASED.fullmatch(text):
        operator, values = _BY_WORD[found["operator"]], tuple(value.strip() for value in found["values"].split(","))
    elif found := _EQUALITY.fullmatch(text):
        operator, values = _BY_WORD[found["operator"]], (found["values"],)
    elif found := _PRESENCE.fullmatch(text):
        operator, values = Operator.DOES_NOT_EXIST if found["absent"] else Operator.EXISTS, ()
    else:
        raise ValueError(f"{text!r} is not a label requirement; write 'key=value', 'key in (a,b)', 'key' or '!key'")
    return NodeRequirement(key=found["key"], operator=operator, values=values)


_BY_WORD = {
    "in": Operator.IN,
    "=": Operator.IN,
    "==": Operator.IN,
    "notin": Operator.NOT_IN,
    "!=": Operator.NOT_IN,
}
