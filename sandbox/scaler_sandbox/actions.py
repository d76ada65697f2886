"""What a simulated controller wants done to the API, as values: a plan is made purely and applied elsewhere.

Every change of an existing object carries the resourceVersion that the plan was made from, so that a plan made from an
outdated view fails with a conflict and is made again, instead of overwriting the changes of another writer.
"""

from dataclasses import dataclass, field

from scaler.kube.objects.resources import Resource
from scaler_sandbox.kinds import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvent:
    """An Event to be recorded once the action that it belongs to has succeeded."""

    reason: str
    message: str
    type: str = "Normal"
    about: Json | None = None
    """The object that it is about, where that is another than the action's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """A new object. AlreadyExists is not a failure."""

    resource: Resource
    body: Json
    notes: tuple[RecordEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A JSON merge patch of an observed object or of one of its subresources."""

    resource: Resource
    observed: Json
    body: Json
    subresource: str = ""
    notes: tuple[RecordEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """The deletion of an observed object; `grace_seconds` 0 says that nothing is left to wait for."""

    resource: Resource
    observed: Json
    grace_seconds: int | None = None
    notes: tuple[RecordEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """The scheduler's decision: this pod runs on that node."""

    pod: Json
    node: str
    annotations: Json = field(default_factory=dict)
    """Set on the pod before it is bound."""
    notes: tuple[RecordEvent, ...] = ()


Action = Create | Patch | Delete | Bind


def merge_patch(old: Json, new: Json) -> Json:
    """The JSON merge patch that turns the old object into the new one; empty where they are equal."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if deeper := merge_patch(before, value):
                patch[key] = deeper
        elif key not in old or value != before:
            patch[key] = value
    return patch


def status_patch(resource: Resource, observed: Json, status: Json, *notes: RecordEvent) -> Patch | None:
    """The patch that makes `status` the object's status; None where it is that already."""
    change = merge_patch(observed.get("status") or {}, status)
    if not change:
        return None
    return Patch(resource=resource, observed=observed, body={"status": change}, subresource="status", notes=notes)
