"""Who wrote which field last? `metadata.managedFields`, kept for every write, so that server-side apply can tell.

Laws: writing a field takes it from whoever owned it; a write that changes nothing takes nothing; a manager that owns
nothing any more is forgotten.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from scaler.embedded.kubeapi.fieldsets import (
    Changes,
    Fields,
    Path,
    from_fields_v1,
    to_fields_v1,
)
from scaler.embedded.kubeapi.status import Json

_MOST_UPDATERS = 10
_ANCIENT = "ancient-changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """One entry of `managedFields`."""

    name: str
    operation: str
    api_version: str
    time: str
    fields: Fields
    subresource: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What makes two entries the same manager."""
        return self.name, self.operation, self.api_version, self.subresource

    def as_json(self) -> Json:
        """The entry as it stands in the object."""
        entry: Json = {
            "manager": self.name,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_fields_v1(self.fields),
        }
        return {**entry, "subresource": self.subresource} if self.subresource else entry


def managers_from_json(entries: Any) -> tuple[Manager, ...]:
    """The managers of a client-sent `managedFields`; entries that make no sense are left out."""
    if not isinstance(entries, list):
        return ()
    return tuple(
        Manager(
            name=str(entry.get("manager", "unknown")),
            operation=str(entry["operation"]),
            api_version=str(entry.get("apiVersion", "")),
            time=str(entry.get("time", "")),
            fields=from_fields_v1(entry.get("fieldsV1")),
            subresource=str(entry.get("subresource", "")),
        )
        for entry in entries
        if isinstance(entry, dict) and entry.get("operation") in ("Apply", "Update")
    )


def after_update(managers: tuple[Manager, ...], writer: Manager, changed: Changes) -> tuple[Manager, ...]:
    """The managers after `writer` (its `fields` are ignored) wrote the changes."""
    if not changed:
        return managers
    earlier = find_manager(managers, writer)
    held = earlier.fields if earlier else frozenset()
    mine = replace(writer, fields=(held | changed.written) - changed.removed)
    lost = changed.written | changed.removed
    others = (replace(m, fields=m.fields - lost) for m in managers if m.identity != writer.identity)
    return arranged([*others, mine])


def after_scaling(managers: tuple[Manager, ...], writer: Manager, path: Path, replicas: int) -> tuple[Manager, ...]:
    """The managers after `writer` set the number of replicas through /scale.

    Ownership moves only where somebody had it, and a 0 is owned by nobody: in a Scale, 0 is written as nothing.
    """
    if not any(path in manager.fields for manager in managers):
        return managers
    kept = [replace(m, fields=m.fields - {path}) for m in managers if m.identity != writer.identity]
    return arranged([*kept, replace(writer, fields=frozenset({path} if replicas else ()))])


def find_manager(managers: Iterable[Manager], wanted: Manager) -> Manager | None:
    """The entry of the same manager, if there is one."""
    return next((manager for manager in managers if manager.identity == wanted.identity), None)


def arranged(managers: Iterable[Manager]) -> tuple[Manager, ...]:
    """The managers that own something, in the order in which they are listed, the oldest updates thrown together."""
    owning = [manager for manager in managers if manager.fields]
    return tuple(sorted(_capped(owning), key=lambda m: (m.operation, m.time, m.name)))


def _capped(managers: list[Manager]) -> list[Manager]:
    """Controllers with a random name per process would let the list grow without bound."""
    updates = sorted((m for m in managers if m.operation == "Update"), key=lambda m: m.time)
    surplus = len(updates) - _MOST_UPDATERS
    if surplus <= 0:
        return managers
    old = updates[: surplus + 1]
    everything = frozenset[tuple[str, ...]]().union(*(m.fields for m in old))
    ancient = replace(old[-1], name=_ANCIENT, fields=everything, subresource="")
    return [m for m in managers if m not in old] + [ancient]
