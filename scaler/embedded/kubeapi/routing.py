"""What does a URL speak of? A resource, an object or a subresource, under `/api/v1/…` or `/apis/GROUP/VERSION/…`."""

from dataclasses import dataclass

from scaler.embedded.kubeapi.resources import Registry, View

_SUBRESOURCES_OF_NAMESPACES = frozenset({"status", "finalize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one request is about."""

    view: View
    namespace: str | None
    """None where the URL speaks of all namespaces; "" for cluster-scoped resources."""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the object."""
        return self.namespace or "", self.name


def target_of(path: str, registry: Registry) -> Target | None:
    """The target of a URL path; None where nothing is served there."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        return _target("", parts[1:], registry)
    if parts[:1] == ["apis"] and len(parts) > 1:
        return _target(parts[1], parts[2:], registry)
    return None


def _target(group: str, parts: list[str], registry: Registry) -> Target | None:
    if len(parts) < 2:
        return None
    version, *rest = parts
    namespace: str | None = None
    if _speaks_of_namespace_contents(group, rest):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        return None
    view = registry.view(group, version, rest[0])
    if view is None or (namespace is not None and not view.resource.namespaced):
        return None
    if not view.resource.namespaced:
        namespace = ""
    elif namespace is None and len(rest) > 1:
        return None
    name, subresource, *_ = [*rest[1:], "", ""]
    return Target(view=view, namespace=namespace, name=name, subresource=subresource)


def _speaks_of_namespace_contents(group: str, parts: list[str]) -> bool:
    if parts[0] != "namespaces" or len(parts) < 3:
        return False
    return bool(group) or parts[2] not in _SUBRESOURCES_OF_NAMESPACES
