"""What does the API do with a request? The verbs, over the store, without HTTP.

Every write runs the same line: checks of the request → the change → pruning and defaults → what this write may not
change is put back → validation → who owns which field → the store. A write that changes nothing is not stored, so its
object keeps its resourceVersion and nobody is woken.

All verbs are synchronous: one event loop, no locks, and every write sees the state that it then replaces.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from scaler.embedded.kubeapi import lifecycle
from scaler.embedded.kubeapi.admission import (
    check_namespace_is_open,
    check_preconditions,
    check_valid,
    taken_in,
)
from scaler.embedded.kubeapi.apply import applied
from scaler.embedded.kubeapi.builtins import BUILT_INS
from scaler.embedded.kubeapi.deletion import (
    check_finalizers,
    check_not_deleted_by_hand,
    finalizers_for,
    grace_seconds,
    holds_contents,
    is_due_for_removal,
    marked_deleted,
)
from scaler.embedded.kubeapi.fieldsets import changes, managed_part
from scaler.embedded.kubeapi.json_values import same
from scaler.embedded.kubeapi.options import Deletion, Writing
from scaler.embedded.kubeapi.ownership import Manager, after_scaling, after_update, managers_from_json
from scaler.embedded.kubeapi.resources import Registry, View, storage_view
from scaler.embedded.kubeapi.scaling import value_at
from scaler.embedded.kubeapi.shaping import fill_defaults, prune
from scaler.embedded.kubeapi.status import Json, already_exists, bad_request, conflict, not_found
from scaler.embedded.kubeapi.store import Key, Store, Stored

Change = Callable[[Json], Json]
Managers = tuple[Manager, ...]


def wall_clock() -> datetime:
    """The present time."""
    return datetime.now(UTC)


class Cluster:
    """Registry and store, and the verbs on them."""

    def __init__(self, *, now: Callable[[], datetime] = wall_clock, history: int = 20_000) -> None:
        self.now = now
        self.registry = Registry(BUILT_INS)
        self.store = Store(history=history)

    def get(self, view: View, namespace: str, name: str) -> Stored:
        """The object. Raises: ApiError 404."""
        stored = self.store.find(view.resource, (namespace, name))
        if stored is None:
            raise not_found(*view.resource.key, name)
        return stored

    def create(self, view: View, namespace: str, body: Json, writing: Writing) -> Stored:
        """The new object. Raises: ApiError."""
        body = self._accepted(view, namespace, body, writing)
        managers = self._owned_after(view, {}, body, (), writing, subresource="")
        return self._store_new(view, body, managers, writing)

    def _accepted(self, view: View, namespace: str, body: Json, writing: Writing) -> Json:
        """A new object as the server takes it in. Raises: ApiError."""
        body = lifecycle.checked_namespace(view, namespace, lifecycle.checked_type(view, body))
        if view.resource.namespaced:
            namespaces = self.registry.resource("", "namespaces")
            found = self.store.find(namespaces, ("", namespace)) if namespaces else None
            check_namespace_is_open(view, found, namespace, body)
        body = lifecycle.created(view, taken_in(view, body, writing), now=self.now())
        check_valid(view, body, None)
        return view.resource.completed(body)

    def _store_new(self, view: View, body: Json, managers: Managers, writing: Writing) -> Stored:
        name = body["metadata"]["name"]
        key = (body["metadata"].get("namespace", ""), name)
        if self.store.find(view.resource, key) is not None:
            raise already_exists(*view.resource.key, name)
        body = _for_storage(view, body, managers)
        if writing.dry_run:
            return Stored(body, key=key, revision=0, managers=managers)
        return self.store.put(view.resource, key, body, managers)

    def update(self, view: View, key: Key, change: Change, writing: Writing, *, subresource: str = "") -> Stored:
        """The object after a change, the same one where nothing changed. Raises: ApiError."""
        old = self.get(view, *key)
        before = old.as_served(view)
        changed = lifecycle.checked_type(view, change(before))
        managers = _managers_before(old, changed["metadata"].get("managedFields") if not subresource else None)
        new = self._settled(view, old, changed, writing, subresource=subresource)
        if managers:
            # Real servers do not begin to record owners with an update: it could not tell who wrote all the rest.
            managers = self._owned_after(view, before, new, managers, writing, subresource=subresource)
        return self._store_next(view, old, new, managers, writing)

    def apply(
        self, view: View, key: Key, config: Json, writing: Writing, *, subresource: str = ""
    ) -> tuple[Stored, bool]:
        """The object after a server-side apply, and whether that created it. Raises: ApiError."""
        config = lifecycle.checked_namespace(view, key[0], lifecycle.checked_type(view, config))
        config = {**config, "metadata": {"name": key[1], **config["metadata"]}}
        if config["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        lifecycle.check_name(config, key[1])
        old = self.store.find(view.resource, key)
        if old is None and subresource:
            raise not_found(*view.resource.key, key[1])
        outcome = applied(
            old.as_served(view) if old else {},
            config,
            schema=view.version.schema,
            managers=old.managers if old else (),
            applier=self._manager(view, writing, "Apply", subresource=subresource),
            without=lifecycle.reset_fields(view, subresource),
            force=writing.force,
        )
        if old is None:
            self._check_expects_nothing(view, config)
            body = self._accepted(view, key[0], outcome.body, writing)
            return self._store_new(view, body, outcome.managers, writing), True
        claimed = {name: config["metadata"][name] for name in ("uid", "resourceVersion") if name in config["metadata"]}
        body = {**outcome.body, "metadata": outcome.body["metadata"] | claimed}
        new = self._settled(view, old, body, writing, subresource=subresource)
        return self._store_next(view, old, new, outcome.managers, writing), False

    def _check_expects_nothing(self, view: View, config: Json) -> None:
        """Raises: ApiError 409 where a configuration speaks of an object that should be there and is not."""
        uid, name = config["metadata"].get("uid"), config["metadata"]["name"]
        if uid:
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict(*view.resource.key, name, why)

    def _settled(self, view: View, old: Stored, new: Json, writing: Writing, *, subresource: str) -> Json:
        """A changed object as it may be stored. Raises: ApiError."""
        before = old.as_served(view)
        new = lifecycle.checked_namespace(view, old.key[0], new)
        lifecycle.check_identity(view, before, new)
        check_not_deleted_by_hand(view, before, new)
        new = taken_in(view, new, writing)
        new = lifecycle.updated(view, before, new, subresource=subresource)
        check_finalizers(view, before, new)
        check_valid(view, new, before)
        return new

    def _store_next(self, view: View, old: Stored, new: Json, managers: Managers, writing: Writing) -> Stored:
        """A settled object in the store; removed, where this write took the last hold off a deleted one."""
        body = _for_storage(view, new, managers)
        if managers == old.managers and "managedFields" in old.body["metadata"]:
            body["metadata"]["managedFields"] = old.body["metadata"]["managedFields"]
        if same(body, old.body):
            return old
        if writing.dry_run:
            return Stored(body, key=old.key, revision=old.revision, managers=managers)
        if is_due_for_removal(body):
            return self.store.remove(view.resource, old.key, body)
        return self.store.put(view.resource, old.key, body, managers)

    def delete(self, view: View, namespace: str, name: str, deletion: Deletion) -> tuple[Stored, bool]:
        """The object as the delete left it, and whether it is gone. Raises: ApiError 404, 409."""
        old = self.get(view, namespace, name)
        check_preconditions(view, old, deletion)
        grace = grace_seconds(view, old.body, deletion.grace_seconds)
        finalizers = finalizers_for(view, old.body, deletion.propagation)
        held = bool(finalizers) or grace > 0 or holds_contents(old.body)
        if not held:
            return (old if deletion.dry_run else self.store.remove(view.resource, old.key)), True
        body = marked_deleted(old.body, grace=grace, now=self.now(), finalizers=finalizers)
        if body is old.body or deletion.dry_run:
            return old, False
        return self.store.put(view.resource, old.key, body, old.managers), False

    def _owned_after(
        self, view: View, old: Json, new: Json, managers: Managers, writing: Writing, *, subresource: str
    ) -> Managers:
        without = lifecycle.reset_fields(view, subresource)
        before, after = managed_part(old, without=without), managed_part(new, without=without)
        writer = self._manager(view, writing, "Update", subresource=subresource)
        changed = changes(before, after, view.version.schema)
        if subresource == "scale" and changed and view.version.scale:
            steps = view.version.scale.spec
            path = tuple(f"f:{step}" for step in steps)
            return after_scaling(managers, writer, path, value_at(new, steps))
        return after_update(managers, writer, changed)

    def _manager(self, view: View, writing: Writing, operation: str, *, subresource: str) -> Manager:
        return Manager(
            name=writing.manager,
            operation=operation,
            api_version=view.api_version,
            time=lifecycle.timestamp(self.now()),
            fields=frozenset(),
            subresource=subresource,
        )


def _for_storage(view: View, body: Json, managers: Managers) -> Json:
    """The body in the stored version, with its managed fields written out."""
    if not view.is_storage:
        stored = storage_view(view.resource)
        pruned, _ = prune(body, stored.version.schema)
        body = {**fill_defaults(pruned, stored.version.schema), "apiVersion": stored.api_version}
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    if managers:
        metadata["managedFields"] = [manager.as_json() for manager in managers]
    return {**body, "metadata": metadata}


def _managers_before(old: Stored, sent: object) -> Managers:
    """The managers that a write starts from: a client may rewrite them, or reset them with one empty entry."""
    if sent == [{}]:
        return ()
    if not sent or sent == old.body["metadata"].get("managedFields"):
        return old.managers
    return managers_from_json(sent) or old.managers
