"""What goes when something else went? Objects whose owners are gone, the contents of namespaces, instances of CRDs.

The part of a real cluster's controller manager that controllers rely on: it runs beside the API, a moment after the
change, never within the request. Foreground deletion waits for dependents, orphaning cuts them loose, a dependent with
another living owner stays.
"""

import asyncio
from collections import defaultdict
from typing import Any

from scaler.embedded.kubeapi.cluster import Cluster
from scaler.embedded.kubeapi.crds import CLEANUP_FINALIZER, CRD_KEY
from scaler.embedded.kubeapi.deletion import FOREGROUND, ORPHAN, is_due_for_removal
from scaler.embedded.kubeapi.options import Deletion
from scaler.embedded.kubeapi.resources import Resource, storage_view
from scaler.embedded.kubeapi.status import ApiError, Json
from scaler.embedded.kubeapi.store import Event, Key, Stored

_NAMESPACES = ("", "namespaces")
_Place = tuple[Resource, Key]


class Collector:
    """Follows the store and cleans up after it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._places: dict[str, _Place] = {}
        """Where each living object is, by uid."""
        self._dependents: defaultdict[str, set[str]] = defaultdict(set)
        """The uids of the objects that name an owner, by the owner's uid."""
        self._suspects: dict[str, None] = {}
        """Objects to look at, by uid, in the order in which they came under suspicion."""
        self._terminating: dict[str, None] = {}
        """Namespaces and definitions that wait for their contents to go."""
        self._news = asyncio.Event()

    def observe(self, resource: Resource, event: Event) -> None:
        """Called with every change in the store."""
        uid = event.stored.uid
        self._forget_owners(uid, event.previous)
        if event.type == "DELETED":
            self._places.pop(uid, None)
            self._suspects.update(dict.fromkeys(self._dependents.get(uid, ())))
            self._suspects.update(dict.fromkeys(_owner_uids(event.stored)))
        else:
            self._places[uid] = (resource, event.stored.key)
            for owner in _owner_uids(event.stored):
                self._dependents[owner].add(uid)
            if _is_suspect(event.stored):
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
        found = self._living(uid)
        if found is None:
            return
        resource, stored = found
        finalizers = stored.body["metadata"].get("finalizers") or []
        if "deletionTimestamp" in stored.body["metadata"]:
            if ORPHAN in finalizers:
                self._orphan_dependents(uid)
                self._lift(resource, stored, ORPHAN)
            elif FOREGROUND in finalizers:
                self._wait_for_dependents(resource, stored)
        else:
            self._judge_by_owners(resource, stored)

    def _orphan_dependents(self, owner: str) -> None:
        for uid in sorted(self._dependents.get(owner, ())):
            found = self._living(uid)
            if found is not None:
                self._keep_owners(*found, keep=lambda reference: reference["uid"] != owner)

    def _wait_for_dependents(self, resource: Resource, owner: Stored) -> None:
        dependents = [found for uid in self._dependents.get(owner.uid, ()) if (found := self._living(uid))]
        for of, dependent in dependents:
            if "deletionTimestamp" not in dependent.body["metadata"]:
                self._judge_by_owners(of, dependent)
        if not any(_blocks(dependent, owner.uid) for _, dependent in dependents if self._living(dependent.uid)):
            self._lift(resource, owner, FOREGROUND)

    def _judge_by_owners(self, resource: Resource, stored: Stored) -> None:
        references = stored.body["metadata"].get("ownerReferences") or []
        solid = [reference for reference in references if self._is_solid(reference)]
        if not references or len(solid) == len(references):
            return
        if solid:
            self._keep_owners(resource, stored, keep=lambda reference: reference in solid)
        else:
            self._delete(resource, stored)

    def _is_solid(self, reference: Json) -> bool:
        """Whether an owner lives and is not itself waiting for this dependent to go."""
        found = self._living(reference["uid"])
        if found is None:
            return False
        metadata = found[1].body["metadata"]
        return "deletionTimestamp" not in metadata or FOREGROUND not in (metadata.get("finalizers") or [])

    def _keep_owners(self, resource: Resource, stored: Stored, *, keep: Any) -> None:
        kept = [r for r in stored.body["metadata"]["ownerReferences"] if keep(r)]
        metadata = {k: v for k, v in stored.body["metadata"].items() if k != "ownerReferences"}
        if kept:
            metadata["ownerReferences"] = kept
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
            self._cluster.store.put(resource, stored.key, body, stored.managers)

    def _delete(self, resource: Resource, stored: Stored) -> None:
        try:
            self._cluster.delete(
                storage_view(resource), *stored.key, Deletion(uid=stored.uid, propagation="Background")
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _empty(self, uid: str) -> None:
        """Delete what a terminating namespace or definition holds; let it go when nothing is left."""
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
        body = {**container.body, "spec": spec}
        if is_due_for_removal(body):
            self._cluster.store.remove(resource, container.key, body)
        else:
            self._cluster.store.put(resource, container.key, body, container.managers)


def _owner_uids(stored: Stored) -> list[str]:
    return [reference["uid"] for reference in stored.body["metadata"].get("ownerReferences") or ()]


def _is_suspect(stored: Stored) -> bool:
    metadata = stored.body["metadata"]
    held = {FOREGROUND, ORPHAN} & set(metadata.get("finalizers") or ())
    return bool(metadata.get("ownerReferences")) or ("deletionTimestamp" in metadata and bool(held))


def _blocks(dependent: Stored, owner: str) -> bool:
    references = dependent.body["metadata"].get("ownerReferences") or ()
    return any(reference["uid"] == owner and reference.get("blockOwnerDeletion") for reference in references)
