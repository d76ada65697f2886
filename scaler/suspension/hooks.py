"""What saves the state of a workload before it is suspended: a webhook, or an object whose condition is waited for.

| a webhook's answer              | an object                                       | outcome   |
|---------------------------------|-------------------------------------------------|-----------|
| 2xx, but for 202                | its condition is True                           | Succeeded |
| 202, 408, 429, 5xx, none at all | its condition is not, or the API has no answer  | none yet  |
| any other                       | its failure condition is True, or the condition | Failed    |
|                                 | False with reason Failed; it is refused or gone |           |
| not in time                     | not in time                                     | TimedOut  |

Laws:

* Operators declare hooks; tenants only name them. What is put into a template is put into its parsed values, so that
  no name of a tenant's becomes part of its structure.
* An attempt may be repeated, by this process or by the next leader: the key of a run, and the name of its object,
  follow from the run.
* An object is made in the namespace of the workload only, and goes with its ScaledObject.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Any, Protocol

import msgspec

from scaler.decision.describe import timestamp
from scaler.documents import document, read_text
from scaler.errors import ConfigurationError, KubeError, ScalerError
from scaler.idleness.hooks import HookOutcome, HookRun
from scaler.kube.discovery import Discovery
from scaler.kube.objects.resources import SCALED_OBJECT, Resource
from scaler.kube.writes import WriteApi
from scaler.webhook import Receiver, SendError, post_signed

_ATTEMPT = timedelta(seconds=10)
"""How long one call of a webhook may take."""
_AGAIN = timedelta(seconds=5)
_ACCEPTED = 202
_GIVEN_UP = ("False", "Failed")
"""Status and reason of a condition that does not become True any more."""
_PASSING = frozenset({408, 429, *range(500, 600)})
"""Statuses after which the same request may succeed."""


class HookKind(StrEnum):
    WEBHOOK = "Webhook"
    OBJECT = "Object"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookConfig:
    """One of the settings' hooks."""

    name: str
    kind: HookKind
    timeout: timedelta
    receiver: Receiver | None = None
    """Receiver of a webhook."""
    template_file: Path | None = None
    """File with the manifest of an object."""
    condition: str = ""
    """Type of an object's condition, or a field of its status, that becomes true."""
    reason: str = ""
    """The reason that the condition has then; empty: any."""
    failure_condition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """What a run is about."""

    id: str
    """One id for all attempts of the run."""
    hook: str
    namespace: str
    kind: str
    """Kind of what is scaled: the job, Deployment or Notebook."""
    name: str
    scaled_object: str
    uid: str
    """Uid of the ScaledObject."""
    owner: Resource = SCALED_OBJECT
    """What that is: a ScalableWorkload that stands for one is its own."""
    workload: str = ""
    """Name of its Kueue Workload; empty where it has none."""
    pod: str = ""
    """The first of its pods with GPUs by name."""
    idle_since: datetime | None
    started_at: datetime
    deadline: datetime
    evidence: Sequence[Mapping[str, Any]] = ()

    @property
    def values(self) -> dict[str, str]:
        """What templates may name."""
        names = ("id", "hook", "namespace", "kind", "name", "uid", "workload", "pod")
        return {name: getattr(self, name) for name in names} | {"scaledobject": self.scaled_object}

    @property
    def body(self) -> bytes:
        """What a webhook gets."""
        times = {"idleSince": self.idle_since, "startedAt": self.started_at, "deadline": self.deadline}
        content = self.values | {name: timestamp(at) for name, at in times.items()} | {"evidence": list(self.evidence)}
        return msgspec.json.encode(content)


def run_id(uid: str, run: HookRun) -> str:
    """The id of the run of a ScaledObject with that uid."""
    return hashlib.sha256(f"{uid}/{run.hook}/{timestamp(run.started_at)}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookProgress:
    """What an attempt came to."""

    outcome: HookOutcome | None
    """How the hook ended; None: it is to be repeated."""
    message: str = ""
    again_after: timedelta = _AGAIN


SUCCEEDED = HookProgress(outcome=HookOutcome.SUCCEEDED)


def _failed(message: str) -> HookProgress:
    return HookProgress(outcome=HookOutcome.FAILED, message=message)


class Hook(Protocol):
    async def attempt(self, call: HookCall, now: datetime) -> HookProgress:
        """Ends within seconds. Raises: KubeError where this replica leads no more."""


def hook_of(config: HookConfig, api: WriteApi, discovery: Discovery) -> Hook:
    """The hook for one run."""
    if config.receiver is not None:
        return WebhookHook(config.receiver)
    return ObjectHook(config, api, discovery)


class WebhookHook:
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def attempt(self, call: HookCall, now: datetime) -> HookProgress:
        within = min(_ATTEMPT, call.deadline - now)
        try:
            status = await post_signed(self._receiver, call.body, call.id, within, now=now)
        except SendError as error:
            if error.status is None or error.status in _PASSING:
                return HookProgress(outcome=None, message=str(error), again_after=max(_AGAIN, error.retry_after))
            return _failed(str(error))
        return HookProgress(outcome=None, message="accepted, and not done") if status == _ACCEPTED else SUCCEEDED


# -------------------------------------------------------------------------------------------------------------- objects


class TemplateError(ScalerError):
    """The template cannot be used."""


def object_of(template: Any, call: HookCall) -> dict[str, Any]:
    """The object to create. Raises: TemplateError."""
    filled = _filled(template, call.values)
    if not isinstance(filled, dict) or not all(isinstance(filled.get(key), str) for key in ("apiVersion", "kind")):
        raise TemplateError("it is no manifest: apiVersion and kind are missing")
    given = filled.get("metadata")
    kept = {key: given[key] for key in ("labels", "annotations") if key in given} if isinstance(given, dict) else {}
    owner = {"apiVersion": call.owner.api_version, "kind": call.owner.kind}
    metadata = {
        "namespace": call.namespace,
        "name": f"{call.hook}-{call.id[:16]}",
        "ownerReferences": [{**owner, "name": call.scaled_object, "uid": call.uid}],
    }
    return {**filled, "metadata": kept | metadata}


def _filled(template: Any, values: Mapping[str, str]) -> Any:
    """The template with the values in its texts; keys stay as they are. Raises: TemplateError."""
    match template:
        case dict():
            return {key: _filled(each, values) for key, each in template.items()}
        case list():
            return [_filled(each, values) for each in template]
        case str():
            try:
                return Template(template).substitute(values)
            except (KeyError, ValueError) as error:
                known = ", ".join(f"${name}" for name in sorted(values))
                raise TemplateError(f"{template!r}: {error} cannot be filled in; there are {known}") from None
    return template


class ObjectHook:
    def __init__(self, config: HookConfig, api: WriteApi, discovery: Discovery) -> None:
        self.config = config
        self.api = api
        self.discovery = discovery
        self._made: tuple[Resource, str] | None = None
        """The kind and the name of its object, once that is there."""

    async def attempt(self, call: HookCall, now: datetime) -> HookProgress:  # noqa: ARG002 - as the protocol has it
        try:
            if self._made is None:
                self._made = await self._create(call)
            resource, name = self._made
            found = msgspec.json.decode(await self.api.get(resource.path(call.namespace, name)))
        except TemplateError as error:
            return _failed(f"template {self.config.template_file}: {error}")
        except ConfigurationError as error:
            return _failed(f"template {error}")
        except KubeError as error:
            if error.is_not_leading:
                raise
            is_passing = error.status == 0 or error.status in _PASSING
            return HookProgress(outcome=None, message=str(error)) if is_passing else _failed(str(error))
        return self._progress(found, f"{resource.kind} {name}")

    async def _create(self, call: HookCall) -> tuple[Resource, str]:
        """The kind and the name of its object, which is there. Raises: KubeError, TemplateError, ConfigurationError."""
        body = object_of(self._template(), call)
        resource = await self.discovery.resolve_kind(body["apiVersion"], body["kind"])
        if not resource.namespaced:
            raise TemplateError(f"{resource.kind} is of the whole cluster; only objects in namespaces are made")
        name = body["metadata"]["name"]
        try:
            await self.api.create(resource.path(call.namespace), body)
        except KubeError as error:
            if not error.is_conflict:
                raise
            await self._check_owner(resource, call, name)
        return resource, name

    async def _check_owner(self, resource: Resource, call: HookCall, name: str) -> None:
        """Raises: TemplateError where another object has its name."""
        found = msgspec.json.decode(await self.api.get(resource.path(call.namespace, name)))
        owners = found.get("metadata", {}).get("ownerReferences") or []
        if call.uid not in [each.get("uid") for each in owners]:
            raise TemplateError(f"{resource.kind} {name} is there already, and not the ScaledObject's")

    def _template(self) -> Any:
        """Raises: ConfigurationError."""
        file = self.config.template_file
        return document(read_text(file), str(file)) if file is not None else None

    def _progress(self, found: Mapping[str, Any], what: str) -> HookProgress:
        status, config = found.get("status") or {}, self.config
        if config.failure_condition and is_so(status, config.failure_condition):
            return _failed(f"{what}: {config.failure_condition}{_details(status, config.failure_condition)}")
        if is_so(status, config.condition, reason=config.reason):
            return SUCCEEDED
        if any((each.get("status"), each.get("reason")) == _GIVEN_UP for each in _conditions(status, config.condition)):
            return _failed(f"{what}: {config.condition} is False, Failed{_details(status, config.condition)}")
        return HookProgress(
            outcome=None, message=f"{what} is not {config.condition}{_details(status, config.condition)}"
        )


def _conditions(status: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    listed = status.get("conditions")
    return [each for each in listed or () if isinstance(each, dict) and each.get("type") == name]


def is_so(status: Mapping[str, Any], name: str, *, reason: str = "") -> bool:
    """Whether the condition of that type is True, or a field of that name is there and not false."""
    if found := _conditions(status, name):
        return any(each.get("status") == "True" and reason in ("", each.get("reason")) for each in found)
    return name != "conditions" and bool(status.get(name))


def _details(status: Mapping[str, Any], name: str) -> str:
    words = next((str(each.get("message") or "") for each in _conditions(status, name)), "")
    return f" ({words[:100]})" if words else ""
