"""Authentication and authorization: tokens of ServiceAccounts, roles and their bindings, and reviews of both.

A token is asked for as everywhere (`serviceaccounts/token`, `kubectl create token`). Tokens are opaque here, do not run
out, and are valid for their audiences as long as their ServiceAccount is there. kubectl and other users of client-go
send tokens over TLS only; the project's own client sends them to a loopback address without it, too.

Roles and their bindings decide. Rules only ever allow. ClusterRoles are not aggregated here: only the rules that are
written in them count. A user may grant more than the user's own roles allow. Source: Kubernetes, "Using RBAC
Authorization". A test may take a verb away from all users, with `deny`; the requests of restricted users are recorded,
so that they can be compared with what was granted.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scaler_sandbox.kubeapi.errors import ApiError, Json, qualified
from scaler_sandbox.kubeapi.requests import RequestTarget
from scaler_sandbox.kubeapi.verbs import ApiVerbs

_AUTHENTICATION = "authentication.k8s.io/v1"
_MASTERS = "system:masters"
_SERVICE_ACCOUNTS = ("", "serviceaccounts")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An authenticated user and its groups."""

    name: str
    groups: frozenset[str] = frozenset()

    @property
    def may_do_everything(self) -> bool:
        return _MASTERS in self.groups


AUDIENCE = "https://kubernetes.default.svc"
"""The audience of the API itself."""
ADMIN = User(name="embedded", groups=frozenset({_MASTERS, "system:authenticated"}))


def service_account(namespace: str, name: str) -> User:
    """The ServiceAccount as a user. Source: Kubernetes, "Service account users"."""
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
    return User(name=f"system:serviceaccount:{namespace}:{name}", groups=frozenset(groups))


class Users:
    """Tokens and their users."""

    def __init__(self, cluster: ApiVerbs) -> None:
        self._cluster = cluster
        self._accounts: dict[str, tuple[str, str, str, frozenset[str]]] = {}
        """Namespace, name and uid of the ServiceAccount, and the audiences, by token."""

    def by_header(self, authorization: str) -> User:
        """The user of this `Authorization` header; without one, the administrator. Raises: ApiError 401."""
        token = authorization.removeprefix("Bearer ")
        if not token:
            return ADMIN
        found = self._authenticated(token, frozenset({AUDIENCE}))
        if found is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return found[0]

    def review(self, path: str, body: Json, user: User, demand: "Demand") -> Json | None:
        """The reviewed object, of a token or of the user itself; None where the path is not that of such a review.

        Raises: ApiError 403 for the review of a token without permission.
        """
        if path == f"/apis/{_AUTHENTICATION}/selfsubjectreviews":
            return {**body, "status": {"userInfo": _user_info(user)}}
        if path != f"/apis/{_AUTHENTICATION}/tokenreviews":
            return None
        demand(user, AccessRequest(verb="create", group="authentication.k8s.io", resource="tokenreviews"))
        spec = body.get("spec", {})
        found = self._authenticated(spec.get("token", ""), frozenset(spec.get("audiences") or (AUDIENCE,)))
        status: Json = {"user": {}, "error": "invalid bearer token"}
        if found is not None:
            uid = self._accounts[spec["token"]][2]
            info = _user_info(found[0]) | {"uid": uid}
            status = {"authenticated": True, "user": info, "audiences": sorted(found[1])}
        return {**body, "status": status}

    def _authenticated(self, token: str, audiences: frozenset[str]) -> tuple[User, frozenset[str]] | None:
        """The token's user, and for which of the audiences it is; None where it is for none of them, or not valid."""
        namespace, name, uid, own = self._accounts.get(token, ("", "", "", frozenset()))
        if not uid or not own & audiences or self._uid(namespace, name) != uid:
            return None
        return service_account(namespace, name), own & audiences

    def token_request(self, target: RequestTarget, body: Json) -> Json:
        """The TokenRequest with a new token. Raises: ApiError 404 where there is no such ServiceAccount."""
        namespace, name = target.key
        stored = self._cluster.get(target.view, namespace, name)
        token = f"embedded-{secrets.token_urlsafe(24)}"
        audiences = (body.get("spec") or {}).get("audiences") or (AUDIENCE,)
        self._accounts[token] = namespace, name, stored.uid, frozenset(audiences)
        metadata = {**body.get("metadata", {}), "name": name, "namespace": namespace}
        status = {"token": token, "expirationTimestamp": "9999-12-31T23:59:59Z"}
        return {
            "apiVersion": _AUTHENTICATION,
            "kind": "TokenRequest",
            "metadata": metadata,
            "spec": body.get("spec", {}),
            "status": status,
        }

    def _uid(self, namespace: str, name: str) -> str:
        resource = self._cluster.registry.resource(*_SERVICE_ACCOUNTS)
        stored = self._cluster.store.find(resource, (namespace, name)) if resource else None
        return stored.uid if stored else ""


def _user_info(user: User) -> Json:
    return {"username": user.name, "groups": sorted(user.groups)}


# --------------------------------------------------------------------------------------------------------------- roles

_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest:
    """The attributes of one request, as in a SubjectAccessReview."""

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


Demand = Callable[[User, AccessRequest], None]
"""Raises an ApiError for what the user may not do."""


class Rbac:
    """The roles and bindings of a cluster."""

    def __init__(self, cluster: ApiVerbs) -> None:
        self._cluster = cluster

    def allows(self, user: User, attempt: AccessRequest) -> bool:
        """Whether the user may."""
        if user.may_do_everything:
            return True
        return any(_covers(rule, attempt) for rule in self._rules(user, attempt.namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Json]:
        """All rules for the user in the namespace."""
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
        resource = self._cluster.registry.resource(_RBAC, plural)
        stored = self._cluster.store.find(resource, (where, role["name"])) if resource else None
        return (stored.body.get("rules") or ()) if stored else ()

    def _all(self, plural: str, namespace: str | None = None) -> Iterable[Json]:
        resource = self._cluster.registry.resource(_RBAC, plural)
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


def _covers(rule: Json, attempt: AccessRequest) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("verbs"), attempt.verb)
        and _has(rule.get("apiGroups"), attempt.group)
        and _has_resource(rule.get("resources") or (), attempt)
        and (not names or attempt.name in names)
    )


def _has(allowed: Sequence[str] | None, word: str) -> bool:
    return word in (allowed or ()) or "*" in (allowed or ())


def _has_resource(allowed: Sequence[str], attempt: AccessRequest) -> bool:
    if _has(allowed, attempt.what):
        return True
    return bool(attempt.subresource) and f"*/{attempt.subresource}" in allowed


# ----------------------------------------------------------------------------------------------------------- decisions

GROUP = "authorization.k8s.io"
GROUP_VERSION = f"{GROUP}/v1"
_OWN = f"/apis/{GROUP_VERSION}/selfsubjectaccessreviews"
_REVIEWS = {_OWN: "SelfSubjectAccessReview", f"/apis/{GROUP_VERSION}/subjectaccessreviews": "SubjectAccessReview"}
_NAMESPACES = ("", "namespaces")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Permissions:
    """What users may do, and what they did."""

    def __init__(self, rbac: Rbac) -> None:
        self._rbac = rbac
        self._denied: set[tuple[str, str]] = set()
        self.done: dict[str, set[AccessRequest]] = {}
        """The requests that were allowed, by restricted user."""

    def deny(self, verb: str, resource: str) -> None:
        """Deny all users a verb on `pods`, `workloads.kueue.x-k8s.io` or `workloads/status.kueue.x-k8s.io`."""
        self._denied.add((verb, resource))

    def review(self, path: str, body: Json, user: User) -> Json | None:
        """The reviewed object; None where the path is not that of an access review.

        Raises: ApiError 403 for a review of another user without permission; a self review is always allowed.
        """
        kind = _REVIEWS.get(path)
        if kind is None:
            return None
        spec = body.get("spec", {})
        if path != _OWN:
            about_others = AccessRequest(verb="create", group=GROUP, resource="subjectaccessreviews")
            self.demand(user, about_others)
            user = User(name=spec.get("user", ""), groups=frozenset(spec.get("groups") or ()))
        asked = spec.get("resourceAttributes", {})
        attempt = AccessRequest(
            verb=asked.get("verb", ""),
            group=asked.get("group", ""),
            resource=asked.get("resource", ""),
            subresource=asked.get("subresource", ""),
            namespace=asked.get("namespace", ""),
            name=asked.get("name", ""),
        )
        return {"apiVersion": GROUP_VERSION, "kind": kind, **body, "status": {"allowed": self._allows(user, attempt)}}

    def check(self, method: str, target: RequestTarget, user: User, *, watches: bool) -> None:
        """Raises: ApiError 403 for what the user may not do."""
        resource = target.view.resource
        # A Namespace counts as being in itself, so that a Role in it may be about it.
        inside = target.name if resource.key == _NAMESPACES else target.namespace or ""
        attempt = AccessRequest(
            verb=_verb(method, has_name=bool(target.name), watches=watches),
            group=resource.group,
            resource=resource.plural,
            subresource=target.subresource,
            namespace=inside,
            name=target.name,
        )
        self.demand(user, attempt)

    def demand(self, user: User, attempt: AccessRequest) -> None:
        """Raises: ApiError 403 for what the user may not do."""
        if not self._allows(user, attempt):
            raise _forbidden(user, attempt)
        if not user.may_do_everything:
            self.done.setdefault(user.name, set()).add(attempt)

    def _allows(self, user: User, attempt: AccessRequest) -> bool:
        is_denied = (attempt.verb, qualified(attempt.group, attempt.what)) in self._denied
        return not is_denied and self._rbac.allows(user, attempt)


def _forbidden(user: User, attempt: AccessRequest) -> ApiError:
    name = f' "{attempt.name}"' if attempt.name else ""
    where = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    what = f'cannot {attempt.verb} resource "{attempt.what}" in API group "{attempt.group}" {where}'
    details: dict[str, Any] = {"name": attempt.name, "group": attempt.group, "kind": attempt.resource}
    message = f'{qualified(attempt.group, attempt.resource)}{name} is forbidden: User "{user.name}" {what}'
    return ApiError(403, "Forbidden", message, details={key: value for key, value in details.items() if value})


def _verb(method: str, *, has_name: bool, watches: bool) -> str:
    if method == "DELETE":
        return "delete" if has_name else "deletecollection"
    if method == "GET":
        return "watch" if watches else "get" if has_name else "list"
    return _VERBS.get(method, method.lower())
