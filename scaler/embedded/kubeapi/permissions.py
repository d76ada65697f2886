"""Who may do what? Everybody everything, until a test takes something away; and whoever asks is told.

Answers SelfSubjectAccessReviews and SubjectAccessReviews, of whoever they speak, and refuses what was taken away.
"""

from typing import Any

from scaler.embedded.kubeapi.routing import Target
from scaler.embedded.kubeapi.status import ApiError, Json

GROUP_VERSION = "authorization.k8s.io/v1"
_REVIEWS = {
    f"/apis/{GROUP_VERSION}/selfsubjectaccessreviews": "SelfSubjectAccessReview",
    f"/apis/{GROUP_VERSION}/subjectaccessreviews": "SubjectAccessReview",
}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Permissions:
    """What is taken away from everybody."""

    def __init__(self) -> None:
        self._denied: set[tuple[str, str]] = set()

    def deny(self, verb: str, resource: str) -> None:
        """Take away a verb on `pods`, `workloads.kueue.x-k8s.io`, `workloads/status.kueue.x-k8s.io`."""
        self._denied.add((verb, resource))

    def review(self, path: str, body: Json) -> Json | None:
        """The answer to a question at that path; None where the path asks none."""
        kind = _REVIEWS.get(path)
        if kind is None:
            return None
        asked = body.get("spec", {}).get("resourceAttributes", {})
        resource = _named(asked.get("resource", ""), asked.get("subresource", ""), asked.get("group", ""))
        allowed = (asked.get("verb", ""), resource) not in self._denied
        return {"apiVersion": GROUP_VERSION, "kind": kind, **body, "status": {"allowed": allowed}}

    def check(self, method: str, target: Target, *, watches: bool) -> None:
        """Raises: ApiError 403 for what was taken away."""
        verb = _verb(method, has_name=bool(target.name), watches=watches)
        resource = target.view.resource
        if (verb, _named(resource.plural, target.subresource, resource.group)) not in self._denied:
            return
        plural = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
        details: dict[str, Any] = {"group": resource.group, "kind": resource.plural}
        what = f'User "embedded" cannot {verb} resource "{plural}" in API group "{resource.group}"'
        raise ApiError(403, "Forbidden", f"{_named(plural, '', resource.group)} is forbidden: {what}", details=details)


def _named(resource: str, subresource: str, group: str) -> str:
    name = f"{resource}/{subresource}" if subresource else resource
    return f"{name}.{group}" if group else name


def _verb(method: str, *, has_name: bool, watches: bool) -> str:
    if method == "DELETE":
        return "delete" if has_name else "deletecollection"
    if method == "GET":
        return "watch" if watches else "get" if has_name else "list"
    return _VERBS.get(method, method.lower())
