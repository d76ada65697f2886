"""May a pod run on a node (or take a flavor) with these labels and taints? Kubernetes' own rules, as values.

Laws:

* A term's expressions must all hold; of several terms one is enough; a selector without terms and labels matches all.
* A toleration without key and operator `Exists` tolerates everything; one without effect tolerates every effect.

Source: k8s.io/component-helpers, scheduling/corev1 (FindMatchingUntoleratedTaint) and nodeaffinity.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Operator(StrEnum):
    """Of a node selector requirement."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One expression of a node affinity term."""

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


Term = tuple[Requirement, ...]
"""Expressions that must all hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """`operator` is `Equal` or `Exists`; an empty `key` or `effect` stands for any."""

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
    """What a pod demands of its node: `nodeSelector`, required node affinity, what it tolerates, whom it avoids."""

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
"""Of a pod that demands nothing."""


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps pods away and that none of the tolerations covers."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(each.covers(taint) for each in tolerations):
            return taint
    return None
