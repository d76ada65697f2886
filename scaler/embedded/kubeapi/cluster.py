"""What does the API do with a request? The verbs, over the store, without HTTP.

Every write runs the same line: checks of the request → the change → pruning and defaults → what this write may not
change is put back → validation → who owns which field → the store. A write that changes nothing is not stored, so its
object keeps its resourceVersion and nobody is woken.

All verbs are synchronous: one event loop, no locks, and every write sees the state that it then replaces.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from scaler.embedded.kubeapi import lifecycle
from scaler.embedded.kubeapi.builtins import BUILT_INS
from scaler.embedded.kubeapi.fieldsets import changes, managed_part
from scaler.embedded.kubeapi.ownership import Manager, after_update, managers_from_json
from scaler.embedded.kubeapi.resources import Registry, View, storage_view
from scaler.embedded.kubeapi.shaping import drop_nulls, fill_defaults, prune
from scaler.embedded.kubeapi.status import (
    STALE,
    Cause,
    Json,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from scaler.embedded.kubeapi.store import Store, Stored

Change = Callable[[Json], Json]
Managers = tuple[Manager, ...]
NO_FIELDS: frozenset[tuple[str, ...]] = frozenset()


def wall_clock() -> datetime:
    """The present time."""
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class Writing:
    """How a write shall be done, and the warnings that it earned."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """How a delete shall be done."""

    grace_seconds: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


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
        body = lifecycle.checked_namespace(view, namespace, lifecycle.checked_type(view, body))
        self._check_namespace_is_open(view, namespace, body)
        body = lifecycle.created(view, self._taken_in(view, body, writing), now=self.now())
        self._check_valid(view, body, None, extra=lifecycle.name_problems(body["metadata"]))
        body = view.resource.completed(body)
        managers = self._owned_after(view, {}, body, (), writing, subresource="")
        return self.store_new(view, body, managers, writing)

    def store_new(self, view: View, body: Json, managers: Managers, writing: Writing) -> Stored:
        """A complete, validated new object, stored. Raises: ApiError 409 where the name is taken."""
        name = body["metadata"]["name"]
        key = (body["metadata"].get("namespace", ""), name)
        if self.store.find(view.resource, key) is not None:
            raise already_exists(*view.resource.key, name)
        body = self._for_storage(view, body, managers)
        if writing.dry_run:
            return Stored(body, key=key, revision=0, managers=managers)
        return self.store.put(view.resource, key, body, managers)

    def update(
        self, view: View, key: tuple[str, str], change: Change, writing: Writing, *, subresource: str = ""
    ) -> Stored:
        """The object after a change, the same one where nothing changed. Raises: ApiError."""
        old = self.get(view, *key)
        new = change(old.as_served(view))
        sent = new["metadata"].get("managedFields") if not subresource else None
        managers = _managers_before(old, sent)
        new = self.settled(view, old, new, writing, subresource=subresource)
        managers = self._owned_after(view, old.as_served(view), new, managers, writing, subresource=subresource)
        return self.store_next(view, old, new, managers, writing)

    def settled(self, view: View, old: Stored, new: Json, writing: Writing, *, subresource: str) -> Json:
        """A changed object as it may be stored. Raises: ApiError."""
        before = old.as_served(view)
        new = lifecycle.checked_namespace(view, old.key[0], lifecycle.checked_type(view, new))
        lifecycle.check_identity(view, before, new)
        new = self._taken_in(view, new, writing)
        new = lifecycle.updated(view, before, new, subresource=_settling(subresource))
        lifecycle.check_finalizers(view, before, new)
        self._check_valid(view, new, before)
        return new

    def store_next(self, view: View, old: Stored, new: Json, managers: Managers, writing: Writing) -> Stored:
        """A settled object in the store; removed, where this write took the last hold off a deleted one."""
        body = self._for_storage(view, new, managers)
        if managers == old.managers and "managedFields" in old.body["metadata"]:
            body["metadata"]["managedFields"] = old.body["metadata"]["managedFields"]
        if body == old.body:
            return old
        if writing.dry_run:
            return Stored(body, key=old.key, revision=old.revision, managers=managers)
        if lifecycle.is_due_for_removal(body):
            return self.store.remove(view.resource, old.key, body)
        return self.store.put(view.resource, old.key, body, managers)

    def delete(self, view: View, namespace: str, name: str, deletion: Deletion) -> tuple[Stored, bool]:
        """The object as the delete left it, and whether it is gone. Raises: ApiError 404, 409."""
        old = self.get(view, namespace, name)
        self._check_preconditions(view, old, deletion)
        grace = lifecycle.grace_seconds(view, old.body, deletion.grace_seconds)
        finalizers = lifecycle.finalizers_for(view, old.body, deletion.propagation)
        held = bool(finalizers) or grace > 0 or lifecycle.holds_contents(old.body)
        if not held:
            return (old if deletion.dry_run else self.store.remove(view.resource, old.key)), True
        body = lifecycle.marked_deleted(old.body, grace=grace, now=self.now(), finalizers=finalizers)
        if body is old.body or deletion.dry_run:
            return old, False
        return self.store.put(view.resource, old.key, body, old.managers), False

    def _check_preconditions(self, view: View, old: Stored, deletion: Deletion) -> None:
        name = old.key[1]
        if deletion.uid and deletion.uid != old.uid:
            why = f"Precondition failed: UID in precondition: {deletion.uid}, UID in object meta: {old.uid}"
            raise conflict(*view.resource.key, name, why)
        present = str(old.revision)
        if deletion.resource_version and deletion.resource_version != present:
            asked = deletion.resource_version
            why = (
                f"Precondition failed: ResourceVersion in precondition: {asked}, "
                f"ResourceVersion in object meta: {present}"
            )
            raise conflict(*view.resource.key, name, why)

    def _check_namespace_is_open(self, view: View, namespace: str, body: Json) -> None:
        if not view.resource.namespaced:
            return
        namespaces = self.registry.resource("", "namespaces")
        found = self.store.find(namespaces, ("", namespace)) if namespaces else None
        if found is None:
            raise not_found("", "namespaces", namespace)
        if "deletionTimestamp" in found.body["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            message = f"namespace {namespace} is being terminated"
            cause = Cause(reason="NamespaceTerminating", field="metadata.namespace", message=message)
            raise forbidden(*view.resource.key, body["metadata"].get("name", ""), why, causes=[cause])

    def _taken_in(self, view: View, body: Json, writing: Writing) -> Json:
        """The body pruned, without nulls, defaulted. Raises: ApiError 400 for unknown fields where that is asked."""
        schema = view.version.schema
        pruned, dropped = prune(body, schema)
        unknown = [f'unknown field "{path}"' for path in dropped]
        if unknown and writing.field_validation == "Strict":
            raise bad_request("strict decoding error: " + ", ".join(unknown))
        if writing.field_validation == "Warn":
            writing.warnings.extend(unknown)
        complete: Json = fill_defaults(drop_nulls(pruned, schema), schema)
        return complete

    def _check_valid(self, view: View, new: Json, old: Json | None, *, extra: list[Cause] | None = None) -> None:
        causes = [*(extra or ()), *view.version.validate(new, old)]
        if causes:
            raise invalid(view.resource.group, view.resource.kind, new["metadata"].get("name", ""), causes)

    def _owned_after(
        self, view: View, old: Json, new: Json, managers: Managers, writing: Writing, *, subresource: str
    ) -> Managers:
        without = reset_fields(view, _settling(subresource))
        before, after = managed_part(old, without=without), managed_part(new, without=without)
        writer = self.manager(view, writing, "Update", subresource=subresource)
        return after_update(managers, writer, changes(before, after, view.version.schema))

    def manager(self, view: View, writing: Writing, operation: str, *, subresource: str) -> Manager:
        """Who writes, as managed fields name it."""
        return Manager(
            name=writing.manager,
            operation=operation,
            api_version=view.api_version,
            time=lifecycle.timestamp(self.now()),
            fields=NO_FIELDS,
            subresource=subresource,
        )

    def _for_storage(self, view: View, body: Json, managers: Managers) -> Json:
        """The body in the stored version, with its managed fields written out."""
        if not view.is_storage:
            stored = storage_view(view.resource)
            pruned, _ = prune(body, stored.version.schema)
            body = {**fill_defaults(pruned, stored.version.schema), "apiVersion": stored.api_version}
        metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
        if managers:
            metadata["managedFields"] = [manager.as_json() for manager in managers]
        return {**body, "metadata": metadata}


def reset_fields(view: View, subresource: str) -> frozenset[str]:
    """The top-level fields that a write to this endpoint cannot set, and so does not own."""
    if subresource == "status":
        return frozenset({"spec", "metadata"}) if view.resource.custom else frozenset({"spec"})
    return frozenset({"status"}) if view.version.has_status else frozenset()


def _settling(subresource: str) -> str:
    """A write through /scale changes spec by the rules of a write to the object."""
    return "" if subresource == "scale" else subresource


def _managers_before(old: Stored, sent: object) -> Managers:
    """The managers that a write starts from: a client may rewrite them, or reset them with one empty entry."""
    if sent == [{}]:
        return ()
    if not sent or sent == old.body["metadata"].get("managedFields"):
        return old.managers
    return managers_from_json(sent) or old.managers


__all__ = ["STALE", "Cluster", "Deletion", "Writing", "wall_clock"]
