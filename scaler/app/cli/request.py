"""What people ask for one workload, and what became of it: `keep`, `wake`, `exclude`, `suspend`, `history`.

Annotations of its ScaledObject (of its ScalableWorkload, where that is scaled directly), or its scale; with the
permissions of whoever asks. No running scaler is needed.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient, parse_name, parse_time
from scaler.app.cli.layout import table_or_list, terminal
from scaler.app.settings.load import load
from scaler.documents import UNREADABLE
from scaler.errors import ConfigurationError, KubeError, ScalerError
from scaler.idleness.durations import parse_duration
from scaler.idleness.policy import WakeRule
from scaler.kube.discovery import Discovery
from scaler.kube.objects.core import decode, stamp
from scaler.kube.objects.direct_scaling import direct_scaling
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, is_scalable_workload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, Resource
from scaler.kube.transport import KubeTransport
from scaler.suspension.keeps import KEEPS_ANNOTATION
from scaler.targets.workloads import ASKED_BY, EXCLUDE, KEEP_UNTIL, WAKE_ANNOTATION

R = TypeVar("R")
T = TypeVar("T")


def run_keep(client: ScalerClient, name: str, *, duration: str, until: str) -> int:
    """Raises: ScalerError."""
    instant = _instant(duration, until, datetime.now(UTC))
    found = _annotate(client, name, {KEEP_UNTIL: stamp(instant)})
    _say(f"{_words(found)} is not suspended before {stamp(instant)}{_within_limits(found)}.")
    return 0


def run_wake(client: ScalerClient, name: str, *, when_free: bool) -> int:
    """Raises: ScalerError."""
    found = _annotate(client, name, {WAKE_ANNOTATION: WakeRule.WHEN_FREE if when_free else "true"})
    then = (
        "when its quota and nodes are free and no Workload waits for them"
        if when_free
        else "as soon as it gets its quota"
    )
    _say(f"{_words(found)}, if it is suspended, comes back {then}.")
    return 0


def run_exclude(client: ScalerClient, name: str, *, duration: str, until: str, remove: bool) -> int:
    """Raises: ScalerError."""
    if remove:
        _say(f"{_words(_annotate(client, name, {EXCLUDE: None}))} is not excluded any more.")
        return 0
    instant = stamp(_instant(duration, until, datetime.now(UTC))) if duration or until else ""
    found = _annotate(client, name, {EXCLUDE: instant or "true"})
    until_when = f"until {instant}" if instant else "until that is removed"
    _say(f"{_words(found)} is excluded {until_when}{_within_limits(found)}.")
    return 0


def run_suspend(client: ScalerClient, name: str) -> int:
    """Raises: ScalerError."""

    async def scale(kube: KubeTransport, found: ScaledObject) -> str:
        target, namespace = found.spec.scale_target_ref, found.metadata.namespace
        resource = await Discovery(kube).resolve_kind(target.api_version, target.kind)
        await kube.patch(resource.path(namespace, target.name, "scale"), {"spec": {"replicas": 0}})
        return _words(found)

    _say(f"{_with(client, name, scale)} is scaled to 0. It comes back when it is woken.")
    return 0


def run_history(client: ScalerClient, name: str) -> int:
    """Raises: ScalerError."""

    async def read(kube: KubeTransport, found: ScaledObject) -> Json:
        record = await _record_of(kube, found)
        lines = [msgspec.json.decode(each) for each in record.status.history] if record is not None else []
        keeps = _decoded(found.metadata.annotations.get(KEEPS_ANNOTATION, "[]"))
        return {"workload": _words(found), "history": lines, "keeps": keeps}

    client.show(_with(client, name, read), _render_history)
    return 0


async def _record_of(kube: KubeTransport, found: ScaledObject) -> ScalableWorkload | None:
    """The ScalableWorkload with the status of what it scales; None where there is none yet. Raises: KubeError."""
    target, namespace = found.spec.scale_target_ref, found.metadata.namespace
    if is_scalable_workload(target):
        return decode(ScalableWorkload, await kube.get(SCALABLE_WORKLOAD.path(namespace, target.name)))
    for each in await _listed(kube, SCALABLE_WORKLOAD, ScalableWorkload, namespace):
        owner = each.metadata.controller_owner
        if each.is_record and owner is not None and owner.uid == found.metadata.uid:
            return each
    return None


def _decoded(text: str) -> list[Json]:
    try:
        found: list[Json] = msgspec.json.decode(text, type=list[dict[str, Any]])
        return found
    except UNREADABLE:
        return []


def _render_history(answer: Json, width: int) -> RenderableType:
    lines = answer["history"]
    if not lines:
        return Text(f"{answer['workload']}: nothing has been recorded yet.")
    rows = [[str(each.get(x) or "") for x in ("at", "state", "reason", "by", "message")] for each in lines]
    history = table_or_list(("AT", "STATE", "REASON", "ASKED BY", "MESSAGE"), rows, width, words=range(5), prose=True)
    if not answer["keeps"]:
        return history
    rows = [[str(each.get(x) or "") for x in ("at", "until", "by", "on")] for each in answer["keeps"]]
    return Group(history, Text(), table_or_list(("KEPT AT", "UNTIL", "ASKED BY", "ON"), rows, width, words=range(4)))


def _instant(duration: str, until: str, now: datetime) -> datetime:
    """Raises: ConfigurationError."""
    if bool(duration) == bool(until):
        raise ConfigurationError("say how long: --for 4h, or --until 2026-12-24T18:00:00Z")
    try:
        instant = now + parse_duration(duration) if duration else parse_time("--until", until)
    except ValueError as error:
        raise ConfigurationError(f"--for: {error}") from None
    except OverflowError:
        raise ConfigurationError(f"--for: no calendar goes so far as {duration}; write for example '4h'") from None
    if until and datetime.fromisoformat(until).tzinfo is None:
        raise ConfigurationError(f"--until: {until!r} has no zone; write for example '{until}Z'")
    if instant <= now:
        raise ConfigurationError(f"{'--for' if duration else '--until'}: {duration or until} is over")
    return instant


def _annotate(client: ScalerClient, name: str, annotations: Mapping[str, str | None]) -> ScaledObject:
    """Patch the ScaledObject that is meant, and note who asks; returns it. Raises: ScalerError."""

    async def patch(kube: KubeTransport, found: ScaledObject) -> ScaledObject:
        metadata = found.metadata
        body = {"metadata": {"annotations": {**annotations, ASKED_BY: await _user(kube) or None}}}
        await kube.patch(found.resource.path(metadata.namespace, metadata.name), body)
        return found

    return _with(client, name, patch)


def _within_limits(found: ScaledObject) -> str:
    """What its policy limits of that, in words that go on a sentence."""
    given = {key: value for each in found.spec.triggers for key, value in each.metadata.items()}
    limits = [
        f"{words} {given[key]}{after}"
        for key, words, after in (
            ("longestKeep", "for at most", " from now on"),
            ("keepsPerWeek", "at most", " times within seven days"),
            ("keepUsers", "if asked for by", ""),
        )
        if key in given
    ]
    return f", {', '.join(limits)}, as its policy says" if limits else ""


async def _user(kube: KubeTransport) -> str:
    """The user as whom the API knows us; empty where it does not say."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with suppress(KubeError, *UNREADABLE, AttributeError):
        answer = msgspec.json.decode(await kube.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review))
        return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")
    return ""


def _with(client: ScalerClient, name: str, act: Callable[[KubeTransport, ScaledObject], Awaitable[R]]) -> R:
    """Act on the ScaledObject of that name, or of the job of that name, or what stands for one. Raises: ScalerError."""
    settings = load(client.config, environ=os.environ, flags=client.flags).kubernetes
    namespace, wanted = parse_name(name)

    async def run() -> R:
        async with await KubeTransport.connect(settings.kubeconfig, settings.context) as kube:
            listed = await _listed(kube, SCALED_OBJECT, ScaledObject, namespace)
            if not (found := _meant(listed, wanted)):
                scalable = await _listed(kube, SCALABLE_WORKLOAD, ScalableWorkload, namespace)
                listed += [each for each in map(direct_scaling, scalable) if each is not None]
                found = _meant(listed, wanted)
            return await act(kube, _the_one(found, listed, wanted, namespace))

    return asyncio.run(run())


async def _listed(kube: KubeTransport, resource: Resource, kind: type[T], namespace: str) -> list[T]:
    """The objects of the kind; empty where it is not served. Raises: KubeError."""
    try:
        pages = kube.list_pages(resource.path(namespace))
        return [decode(kind, item) async for page in pages for item in page.items or ()]
    except KubeError as error:
        if not error.is_absent:
            raise
        return []


def _meant(listed: list[ScaledObject], wanted: str) -> list[ScaledObject]:
    named = [each for each in listed if each.metadata.name == wanted]
    return named or [each for each in listed if wanted in (each.spec.scale_target_ref.name, _job(each))]


def _the_one(found: list[ScaledObject], listed: list[ScaledObject], wanted: str, namespace: str) -> ScaledObject:
    """Raises: ScalerError where none is meant, or several are."""
    if len(found) == 1:
        return found[0]
    if not found:
        known = ", ".join(sorted(each.metadata.name for each in listed)[:10]) or "none"
        raise ScalerError(f"no ScaledObject scales {namespace}/{wanted}; in namespace {namespace} there are: {known}")
    names = ", ".join(sorted(each.metadata.name for each in found))
    raise ScalerError(f"several ScaledObjects scale something named {wanted}: {names}; name one of them")


def _words(scaled_object: ScaledObject) -> str:
    """What it scales."""
    return f"{scaled_object.spec.scale_target_ref.kind} {scaled_object.metadata.namespace}/{_job(scaled_object)}"


def _job(scaled_object: ScaledObject) -> str:
    """The job that an IdlePolicy has attached it to, or else its target."""
    owner = next(iter(scaled_object.metadata.owner_references), None)
    return owner.name if owner is not None else scaled_object.spec.scale_target_ref.name


def _say(words: str) -> None:
    terminal().print(Text(words), soft_wrap=True)
