"""What follows from a write? Within it: CRDs are served, namespaces get their service account. After it: garbage
collection of objects whose owners are gone, of the contents of namespaces and of the instances of CRDs.

Garbage collection runs beside the API, a moment after the
change, never within the request. A dependent with another living owner stays. Deletion is always in the background:
the other propagation policies are refused.
"""

import asyncio
from collections import defaultdict

from scaler_sandbox.kubeapi.errors import ApiError, Json
from scaler_sandbox.kubeapi.schema.crds import CLEANUP_FINALIZER, CRD_KEY, established, resource_of
from scaler_sandbox.kubeapi.schema.resources import Resource, storage_view
from scaler_sandbox.kubeapi.storage.store import Event, Key, Stored
from scaler_sandbox.kubeapi.verbs import ApiVerbs
from scaler_sandbox.kubeapi.writes.deletion import is_due_for_removal
from scaler_sandbox.kubeapi.writes.lifecycle import timestamp
from scaler_sandbox.kubeapi.writes.typed import DeletionOptions, WriteOptions

_NAMESPACES = ("", "namespaces")


class Registrar:
    """Keeps the registry in step with the stored definitions."""

    def __init__(self, cluster: ApiVerbs) -> None:
        self._cluster = cluster

    def observe(self, resource: Resource, event: Event) -> None:
        """The store calls it with every change."""
        if resource.key != CRD_KEY:
            return
        body = event.stored.body
        if event.type == "DELETED":
            self._stop_serving(body["spec"]["group"], body["spec"]["names"]["plural"])
        elif event.previous is None or event.previous.body["spec"] != body["spec"]:
            self._cluster.registry.put(resource_of(body))
            accepted = established(body, now=timestamp(self._cluster.now()))
            if accepted != body:
                self._cluster.store.put(resource, event.stored.key, accepted)

    def _stop_serving(self, group: str, plural: str) -> None:
        resource = self._cluster.registry.resource(group, plural)
        if resource is not None:
            self._cluster.registry.remove(resource)
            self._cluster.store.drop(resource)


class DefaultServiceAccounts:
    """Puts into each new namespace what belongs there."""

    def __init__(self, cluster: ApiVerbs) -> None:
        self._cluster = cluster

    def observe(self, resource: Resource, event: Event) -> None:
        """The store calls it with every change."""
        view = self._cluster.registry.view("", "v1", "serviceaccounts")
        if resource.key == _NAMESPACES and event.type == "ADDED" and view is not None:
            body = {"metadata": {"name": "default"}}
            self._cluster.create(view, event.stored.key[1], body, WriteOptions())


_Place = tuple[Resource, Key]


class GarbageCollector:
    """Follows the store and cleans up after it."""

    def __init__(self, cluster: ApiVerbs) -> None:
        self._cluster = cluster
        self._places: dict[str, _Place] = {}
        """The place of each living object, by uid."""
        self._dependents: defaultdict[str, set[str]] = defaultdict(set)
        """The uids of the objects that name an owner, by the owner's uid."""
        self._suspects: dict[str, None] = {}
        """Objects to look at, by uid, in the order in which they came under suspicion."""
        self._terminating: dict[str, None] = {}
        """Namespaces and definitions that wait for their contents to go."""
        self._news = asyncio.Event()

    def observe(self, resource: Resource, event: Event) -> None:
        """The store calls it with every change."""
        uid = event.stored.uid
        self._forget_owners(uid, event.previous)
        if event.type == "DELETED":
            self._places.pop(uid, None)
            self._suspects.update(dict.fromkeys(self._dependents.get(uid, ())))
        else:
            self._places[uid] = (resource, event.stored.key)
            for owner in _owner_uids(event.stored):
                self._dependents[owner].add(uid)
            if _owner_uids(event.stored):
                self._suspects[uid] = None
            if resource.key in (_NAMESPACES, CRD_KEY) and "deletionTimestamp" in event.stored.body["metadata"]:
                self._terminating[uid] = None
        if self._suspects or self._terminating:
            self._news.set()

    def _forget_owners(self, uid: str, previous: Stored | None) -> None:
        for owner in _owner_uids(previous) if previous else ():
            self._dependents[owner].discard(uid)
            if not self._dependents[owner]:
                del self._dependents[owner]

    async def run(self) -> None:
        """Clean up whenever there is something to clean up."""
        # A new one for each run: an event belongs to one event loop, the collector to none.
        self._news = asyncio.Event()
        if self._suspects or self._terminating:
            self._news.set()
        while True:
            await self._news.wait()
            self._news.clear()
            self.collect()
            # Let requests in between two rounds of a long cascade.
            await asyncio.sleep(0)

    def collect(self) -> None:
        """One round: every suspect and every terminating container, once."""
        suspects, self._suspects = self._suspects, {}
        for uid in suspects:
            self._judge(uid)
        for uid in list(self._terminating):
            self._empty(uid)

    def _living(self, uid: str) -> tuple[Resource, Stored] | None:
        place = self._places.get(uid)
        stored = self._cluster.store.find(*place) if place else None
        return (place[0], stored) if place and stored else None

    def _judge(self, uid: str) -> None:
        """Deletes an object whose owners are all gone; the references to those that are gone go in any case."""
        found = self._living(uid)
        if found is None or "deletionTimestamp" in found[1].body["metadata"]:
            return
        resource, stored = found
        references = stored.body["metadata"].get("ownerReferences") or []
        living = [reference for reference in references if self._living(reference["uid"])]
        if references and not living:
            self._delete(resource, stored)
        elif len(living) < len(references):
            metadata = {**stored.body["metadata"], "ownerReferences": living}
            self._store(resource, stored, {**stored.body, "metadata": metadata})

    def _lift(self, resource: Resource, stored: Stored, finalizer: str) -> None:
        present = self._cluster.store.find(resource, stored.key) or stored
        kept = [name for name in present.body["metadata"].get("finalizers") or [] if name != finalizer]
        metadata = {k: v for k, v in present.body["metadata"].items() if k != "finalizers"}
        if kept:
            metadata["finalizers"] = kept
        self._store(resource, present, {**present.body, "metadata": metadata})

    def _store(self, resource: Resource, stored: Stored, body: Json) -> None:
        if is_due_for_removal(body):
            self._cluster.store.remove(resource, stored.key, body)
        else:
            self._cluster.store.put(resource, stored.key, body)

    def _delete(self, resource: Resource, stored: Stored) -> None:
        try:
            self._cluster.delete(storage_view(resource), *stored.key, DeletionOptions(uid=stored.uid))
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _empty(self, uid: str) -> None:
        """Delete what a terminating namespace or definition holds; lift its finalizer when nothing is left."""
        found = self._living(uid)
        if found is None:
            self._terminating.pop(uid)
            return
        resource, container = found
        contents = self._contents(resource, container)
        for of, stored in contents:
            if "deletionTimestamp" not in stored.body["metadata"]:
                self._delete(of, stored)
        if self._contents(resource, container):
            return
        self._terminating.pop(uid)
        if resource.key == CRD_KEY:
            self._lift(resource, container, CLEANUP_FINALIZER)
        else:
            self._lift_namespace(resource, container)

    def _contents(self, resource: Resource, container: Stored) -> list[tuple[Resource, Stored]]:
        registry, store = self._cluster.registry, self._cluster.store
        if resource.key == CRD_KEY:
            spec = container.body["spec"]
            of = registry.resource(spec["group"], spec["names"]["plural"])
            return [(of, stored) for stored in store.collection(of).ordered()] if of else []
        inside = container.key[1]
        return [(of, stored) for of in registry if of.namespaced for stored in store.collection(of).ordered(inside)]

    def _lift_namespace(self, resource: Resource, container: Stored) -> None:
        spec = {key: value for key, value in container.body["spec"].items() if key != "finalizers"}
        self._store(resource, container, {**container.body, "spec": spec})


def _owner_uids(stored: Stored) -> list[str]:
    return [reference["uid"] for reference in stored.body["metadata"].get("ownerReferences") or ()]
