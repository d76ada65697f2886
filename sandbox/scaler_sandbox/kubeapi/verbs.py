"""What does the API do with a request? The verbs, over the store, without HTTP.

Every write runs the same line: checks of the request → the change → pruning and defaults → what this write may not
change is put back → validation → the store. A write that changes nothing is not stored, so its
object keeps its resourceVersion and no watch event is sent.

All verbs are synchronous: one event loop, no locks, and every write sees the state that it then replaces.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from scaler_sandbox.kubeapi.errors import Json, already_exists, not_found
from scaler_sandbox.kubeapi.schema.builtins import BUILT_INS
from scaler_sandbox.kubeapi.schema.resources import Registry, View, storage_view
from scaler_sandbox.kubeapi.schema.shaping import fill_defaults, prune
from scaler_sandbox.kubeapi.schema.structural import same
from scaler_sandbox.kubeapi.storage.store import Key, Store, Stored
from scaler_sandbox.kubeapi.writes import lifecycle
from scaler_sandbox.kubeapi.writes.admission import (
    ResourceAdmission,
    check_namespace_is_open,
    check_not_denied,
    check_preconditions,
    check_valid,
    taken_in,
)
from scaler_sandbox.kubeapi.writes.deletion import (
    check_finalizers,
    check_not_deleted_by_hand,
    finalizers_for,
    grace_seconds,
    holds_contents,
    is_due_for_removal,
    marked_deleted,
)
from scaler_sandbox.kubeapi.writes.patches import applied
from scaler_sandbox.kubeapi.writes.typed import DeletionOptions, WriteOptions

Change = Callable[[Json], Json]


class ApiVerbs:
    """Registry and store, and the verbs on them."""

    def __init__(self, *, history: int = 20_000) -> None:
        self.registry = Registry(BUILT_INS)
        self.store = Store(history=history)
        self.admission: dict[str, ResourceAdmission] = {}
        """What policies and webhooks do to the writes of a resource (`workloads.kueue.x-k8s.io`)."""

    def now(self) -> datetime:
        """The present time."""
        return datetime.now(UTC)

    def get(self, view: View, namespace: str, name: str) -> Stored:
        """The object. Raises: ApiError 404."""
        stored = self.store.find(view.resource, (namespace, name))
        if stored is None:
            raise not_found(*view.resource.key, name)
        return stored

    def create(self, view: View, namespace: str, body: Json, writing: WriteOptions) -> Stored:
        """The new object. Raises: ApiError."""
        return self._store_new(view, self._accepted(view, namespace, body, writing), writing)

    def _accepted(self, view: View, namespace: str, body: Json, writing: WriteOptions) -> Json:
        """A new object as the server takes it in. Raises: ApiError."""
        body = lifecycle.checked_namespace(view, namespace, lifecycle.checked_type(view, body))
        if view.resource.namespaced:
            namespaces = self.registry.resource("", "namespaces")
            found = self.store.find(namespaces, ("", namespace)) if namespaces else None
            check_namespace_is_open(view, found, namespace, body)
        body = lifecycle.created(view, taken_in(view, body, writing), now=self.now())
        return view.resource.completed(self._admitted(view, None, body))

    def _admitted(self, view: View, old: Json | None, new: Json) -> Json:
        """The object as policies, rules and webhooks let it in. Raises: ApiError."""
        admission = self.admission.get(view.resource.qualified)
        new = _without_owners(new)
        new = new if admission is None else admission.mutated(old, new)
        check_valid(view, new, old)
        check_not_denied(admission, old, new)
        return new

    def _store_new(self, view: View, body: Json, writing: WriteOptions) -> Stored:
        name = body["metadata"]["name"]
        key = (body["metadata"].get("namespace", ""), name)
        if self.store.find(view.resource, key) is not None:
            raise already_exists(*view.resource.key, name)
        body = _for_storage(view, body)
        if writing.dry_run:
            return Stored(body, key=key, revision=0)
        return self.store.put(view.resource, key, body)

    def update(self, view: View, key: Key, change: Change, writing: WriteOptions, *, subresource: str = "") -> Stored:
        """The object after a change, the same one where nothing changed. Raises: ApiError."""
        old = self.get(view, *key)
        changed = lifecycle.checked_type(view, change(old.as_served(view)))
        return self._store_next(view, old, self._settled(view, old, changed, writing, subresource=subresource), writing)

    def apply(
        self, view: View, key: Key, config: Json, writing: WriteOptions, *, subresource: str = ""
    ) -> tuple[Stored, bool]:
        """The object after a server-side apply, and whether that created it. Raises: ApiError."""
        config = lifecycle.checked_namespace(view, key[0], lifecycle.checked_type(view, config))
        config = {**config, "metadata": {"name": key[1], **config["metadata"]}}
        lifecycle.check_name(config, key[1])
        old = self.store.find(view.resource, key)
        if old is None and subresource:
            raise not_found(*view.resource.key, key[1])
        body = applied(old.as_served(view) if old else {}, config, view.version.schema)
        if old is None:
            return self._store_new(view, self._accepted(view, key[0], body, writing), writing), True
        new = self._settled(view, old, body, writing, subresource=subresource)
        return self._store_next(view, old, new, writing), False

    def _settled(self, view: View, old: Stored, new: Json, writing: WriteOptions, *, subresource: str) -> Json:
        """A changed object as it may be stored. Raises: ApiError."""
        before = old.as_served(view)
        new = lifecycle.checked_namespace(view, old.key[0], new)
        lifecycle.check_identity(view, before, new)
        check_not_deleted_by_hand(view, before, new)
        new = taken_in(view, new, writing)
        new = lifecycle.updated(view, before, new, subresource=subresource)
        check_finalizers(view, before, new)
        return self._admitted(view, before, new)

    def _store_next(self, view: View, old: Stored, new: Json, writing: WriteOptions) -> Stored:
        """A settled object in the store; removed, where this write took the last hold off a deleted one."""
        body = _for_storage(view, new)
        if same(body, old.body):
            return old
        if writing.dry_run:
            return Stored(body, key=old.key, revision=old.revision)
        if is_due_for_removal(body):
            return self.store.remove(view.resource, old.key, body)
        return self.store.put(view.resource, old.key, body)

    def delete(self, view: View, namespace: str, name: str, deletion: DeletionOptions) -> tuple[Stored, bool]:
        """The object as the delete left it, and whether it is gone. Raises: ApiError 404, 409."""
        old = self.get(view, namespace, name)
        check_preconditions(view, old, deletion)
        grace = grace_seconds(view, old.body, deletion.grace_seconds)
        finalizers = finalizers_for(view, old.body)
        held = bool(finalizers) or grace > 0 or holds_contents(old.body)
        if not held:
            return (old if deletion.dry_run else self.store.remove(view.resource, old.key)), True
        body = marked_deleted(old.body, grace=grace, now=self.now(), finalizers=finalizers)
        if body is old.body or deletion.dry_run:
            return old, False
        return self.store.put(view.resource, old.key, body), False


def _for_storage(view: View, body: Json) -> Json:
    """The body in the stored version."""
    if view.is_storage:
        return body
    stored = storage_view(view.resource)
    pruned, _ = prune(body, stored.version.schema)
    return {**fill_defaults(pruned, stored.version.schema), "apiVersion": stored.api_version}


def _without_owners(body: Json) -> Json:
    """Fields have no owners here, so what a client says of them is dropped."""
    return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key != "managedFields"}}
