"""What does a new namespace come with? A service account, without which real servers let no pod be created in it."""

from scaler.embedded.kubeapi.cluster import Cluster
from scaler.embedded.kubeapi.options import Writing
from scaler.embedded.kubeapi.resources import Resource
from scaler.embedded.kubeapi.store import Event

_NAMESPACES = ("", "namespaces")


class Furnisher:
    """Puts into each new namespace what belongs there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def observe(self, resource: Resource, event: Event) -> None:
        """Called with every change in the store."""
        view = self._cluster.registry.view("", "v1", "serviceaccounts")
        if resource.key == _NAMESPACES and event.type == "ADDED" and view is not None:
            body = {"metadata": {"name": "default"}}
            self._cluster.create(view, event.stored.key[1], body, Writing(manager="embedded"))
