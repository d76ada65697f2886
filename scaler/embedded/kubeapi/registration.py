"""When does a CRD take effect? As soon as it is stored: it is served at once, and its status says so."""

from scaler.embedded.kubeapi.cluster import Cluster
from scaler.embedded.kubeapi.crds import CRD_KEY, established, resource_of
from scaler.embedded.kubeapi.lifecycle import timestamp
from scaler.embedded.kubeapi.resources import Resource
from scaler.embedded.kubeapi.store import Event


class Registrar:
    """Keeps the registry in step with the stored definitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def observe(self, resource: Resource, event: Event) -> None:
        """Called with every change in the store."""
        if resource.key != CRD_KEY:
            return
        body = event.stored.body
        if event.type == "DELETED":
            self._stop_serving(body["spec"]["group"], body["spec"]["names"]["plural"])
        elif event.previous is None or event.previous.body["spec"] != body["spec"]:
            self._cluster.registry.put(resource_of(body))
            accepted = established(body, now=timestamp(self._cluster.now()))
            if accepted != body:
                self._cluster.store.put(resource, event.stored.key, accepted, event.stored.managers)

    def _stop_serving(self, group: str, plural: str) -> None:
        resource = self._cluster.registry.resource(group, plural)
        if resource is not None:
            self._cluster.registry.remove(resource)
            self._cluster.store.drop(resource)
