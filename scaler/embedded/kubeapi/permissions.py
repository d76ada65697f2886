"""Who may do what? Whoever asks is told, by what they try and by access reviews.

Roles and their bindings decide (`rbac.py`); a test may take something away from everybody, with `deny`. What those did
who may not do everything is remembered, so that it can be compared with what they were granted.
"""

from typing import Any

from scaler.embedded.kubeapi.rbac import Attempt, Rbac
from scaler.embedded.kubeapi.routing import Target
from scaler.embedded.kubeapi.status import ApiError, Json, qualified
from scaler.embedded.kubeapi.users import User

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
        self.done: dict[str, set[Attempt]] = {}
        """By user, what was allowed to those who may not do everything."""

    def deny(self, verb: str, resource: str) -> None:
        """Take away a verb on `pods`, `workloads.kueue.x-k8s.io`, `workloads/status.kueue.x-k8s.io` from everybody."""
        self._denied.add((verb, resource))

    def review(self, path: str, body: Json, user: User) -> Json | None:
        """The answer to a question at that path; None where the path asks none.

        Raises: ApiError 403 for who asks about others and may not: everybody may ask about themselves.
        """
        kind = _REVIEWS.get(path)
        if kind is None:
            return None
        spec = body.get("spec", {})
        if path != _OWN:
            about_others = Attempt(verb="create", group=GROUP, resource="subjectaccessreviews")
            self._demand(user, about_others)
            user = User(name=spec.get("user", ""), groups=frozenset(spec.get("groups") or ()))
        asked = spec.get("resourceAttributes", {})
        attempt = Attempt(
            verb=asked.get("verb", ""),
            group=asked.get("group", ""),
            resource=asked.get("resource", ""),
            subresource=asked.get("subresource", ""),
            namespace=asked.get("namespace", ""),
            name=asked.get("name", ""),
        )
        return {"apiVersion": GROUP_VERSION, "kind": kind, **body, "status": {"allowed": self._allows(user, attempt)}}

    def check(self, method: str, target: Target, user: User, *, watches: bool) -> None:
        """Raises: ApiError 403 for what the user may not do."""
        resource = target.view.resource
        # A Namespace counts as being in itself, so that a Role in it may be about it.
        inside = target.name if resource.key == _NAMESPACES else target.namespace or ""
        attempt = Attempt(
            verb=_verb(method, has_name=bool(target.name), watches=watches),
            group=resource.group,
            resource=resource.plural,
            subresource=target.subresource,
            namespace=inside,
            name=target.name,
        )
        self._demand(user, attempt)

    def _demand(self, user: User, attempt: Attempt) -> None:
        if not self._allows(user, attempt):
            raise _forbidden(user, attempt)
        if not user.may_do_everything:
            self.done.setdefault(user.name, set()).add(attempt)

    def _allows(self, user: User, attempt: Attempt) -> bool:
        is_denied = (attempt.verb, qualified(attempt.group, attempt.what)) in self._denied
        return not is_denied and self._rbac.allows(user, attempt)


def _forbidden(user: User, attempt: Attempt) -> ApiError:
    name = f' "{attempt.name}"' if attempt.name else ""
    where = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    what = f'cannot {attempt.verb} resource "{attempt.what}" in API group "{attempt.group}" {where}'
    details: dict[str, Any] = {"name": attempt.name, "group": attempt.group, "kind": attempt.resource}
    message = f'{qualified(attempt.group, attempt.resource)}{name} is forbidden: User "{user.name}" {what}'
    return ApiError(403, "Forbidden", message, details={key: told for key, told in details.items() if told})


def _verb(method: str, *, has_name: bool, watches: bool) -> str:
    if method == "DELETE":
        return "delete" if has_name else "deletecollection"
    if method == "GET":
        return "watch" if watches else "get" if has_name else "list"
    return _VERBS.get(method, method.lower())
