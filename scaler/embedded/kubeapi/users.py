"""Who asks? Whoever comes without a token may do everything, ServiceAccounts what roles grant them.

A token is asked for as everywhere (`serviceaccounts/token`, `kubectl create token`). Tokens are opaque here, do not run
out, and are valid for as long as their ServiceAccount is there. kubectl and other users of client-go send tokens over
TLS only; the project's own client sends them to a loopback address without it, too.
"""

import hmac
import secrets
from dataclasses import dataclass

from scaler.embedded.kubeapi.cluster import Cluster
from scaler.embedded.kubeapi.routing import Target
from scaler.embedded.kubeapi.status import ApiError, Json

_MASTERS = "system:masters"
_SERVICE_ACCOUNTS = ("", "serviceaccounts")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who asks, and the groups that they belong to."""

    name: str
    groups: frozenset[str] = frozenset()

    @property
    def may_do_everything(self) -> bool:
        return _MASTERS in self.groups


ADMIN = User(name="embedded", groups=frozenset({_MASTERS, "system:authenticated"}))


def service_account(namespace: str, name: str) -> User:
    """The ServiceAccount as a user. Source: Kubernetes, "Service account users"."""
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
    return User(name=f"system:serviceaccount:{namespace}:{name}", groups=frozenset(groups))


class Users:
    """Tokens, and whose they are."""

    def __init__(self, cluster: Cluster, *, admin_token: str = "") -> None:
        """With an `admin_token` nobody is let in without a token."""
        self._cluster = cluster
        self._admin_token = admin_token
        self._accounts: dict[str, tuple[str, str, str]] = {}
        """By token: namespace, name and uid of the ServiceAccount."""

    def by_header(self, authorization: str) -> User:
        """Who sends this `Authorization` header. Raises: ApiError 401."""
        token = authorization.removeprefix("Bearer ")
        if not token and not self._admin_token:
            return ADMIN
        if self._admin_token and hmac.compare_digest(token.encode(), self._admin_token.encode()):
            return ADMIN
        namespace, name, uid = self._accounts.get(token, ("", "", ""))
        if not uid or self._uid(namespace, name) != uid:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return service_account(namespace, name)

    def token_request(self, target: Target, body: Json) -> Json:
        """The TokenRequest with a new token. Raises: ApiError 404 where there is no such ServiceAccount."""
        namespace, name = target.key
        stored = self._cluster.get(target.view, namespace, name)
        token = f"embedded-{secrets.token_urlsafe(24)}"
        self._accounts[token] = namespace, name, stored.uid
        metadata = {**body.get("metadata", {}), "name": name, "namespace": namespace}
        status = {"token": token, "expirationTimestamp": "9999-12-31T23:59:59Z"}
        return {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": metadata,
            "spec": body.get("spec", {}),
            "status": status,
        }

    def _uid(self, namespace: str, name: str) -> str:
        resource = self._cluster.registry.resource(*_SERVICE_ACCOUNTS)
        stored = self._cluster.store.find(resource, (namespace, name)) if resource else None
        return stored.uid if stored else ""
