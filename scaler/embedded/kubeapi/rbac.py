"""May this user do that? By roles and their bindings, as RBAC decides it.

Rules only ever allow. Of aggregated ClusterRoles only what is written in them counts: nobody aggregates them here. Nor
is anybody kept from granting more than they may do themselves. Source: Kubernetes, "Using RBAC Authorization".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scaler.embedded.kubeapi.cluster import Cluster
from scaler.embedded.kubeapi.status import Json
from scaler.embedded.kubeapi.users import User

GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What somebody wants to do."""

    verb: str
    group: str
    resource: str
    """The plural name."""
    subresource: str = ""
    namespace: str = ""
    """Empty: cluster-scoped objects, or those of all namespaces."""
    name: str = ""
    """Empty where it is not about one object."""

    @property
    def what(self) -> str:
        """The resource as rules name it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Rbac:
    """The roles and bindings of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def allows(self, user: User, attempt: Attempt) -> bool:
        """Whether the user may."""
        if user.may_do_everything:
            return True
        return any(_covers(rule, attempt) for rule in self._rules(user, attempt.namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Json]:
        """All that speak of the user, there."""
        for binding in self._all("clusterrolebindings"):
            if _binds(binding, user, ""):
                yield from self._rules_of(binding, "")
        if namespace:
            for binding in self._all("rolebindings", namespace):
                if _binds(binding, user, namespace):
                    yield from self._rules_of(binding, namespace)

    def _rules_of(self, binding: Json, namespace: str) -> Sequence[Json]:
        role = binding["roleRef"]
        plural, where = ("clusterroles", "") if role["kind"] == "ClusterRole" else ("roles", namespace)
        resource = self._cluster.registry.resource(GROUP, plural)
        stored = self._cluster.store.find(resource, (where, role["name"])) if resource else None
        return (stored.body.get("rules") or ()) if stored else ()

    def _all(self, plural: str, namespace: str | None = None) -> Iterable[Json]:
        resource = self._cluster.registry.resource(GROUP, plural)
        if resource is None:
            return ()
        return [each.body for each in self._cluster.store.collection(resource).ordered(namespace)]


def _binds(binding: Json, user: User, namespace: str) -> bool:
    return any(_is(subject, user, namespace) for subject in binding.get("subjects") or ())


def _is(subject: Json, user: User, namespace: str) -> bool:
    match subject["kind"]:
        case "User":
            return bool(subject["name"] == user.name)
        case "Group":
            return subject["name"] in user.groups
        case "ServiceAccount":
            where = subject.get("namespace") or namespace
            return user.name == f"system:serviceaccount:{where}:{subject['name']}"
        case _:
            return False


def _covers(rule: Json, attempt: Attempt) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("verbs"), attempt.verb)
        and _has(rule.get("apiGroups"), attempt.group)
        and _has_resource(rule.get("resources") or (), attempt)
        and (not names or attempt.name in names)
    )


def _has(allowed: Sequence[str] | None, word: str) -> bool:
    return word in (allowed or ()) or "*" in (allowed or ())


def _has_resource(allowed: Sequence[str], attempt: Attempt) -> bool:
    if _has(allowed, attempt.what):
        return True
    return bool(attempt.subresource) and f"*/{attempt.subresource}" in allowed
