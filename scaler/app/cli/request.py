"""`keep` and `wake`: what people ask for one workload, as annotations of its ScaledObject."""

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime

from rich.text import Text

from scaler.app.cli.client import ScalerClient, parse_name
from scaler.app.cli.layout import terminal
from scaler.app.settings.load import load
from scaler.decision.workloads import KEEP_UNTIL, WAKE_ANNOTATION
from scaler.errors import ConfigurationError, ScalerError
from scaler.idleness.durations import parse_duration
from scaler.kube.objects.core import decode, stamp
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler.kube.transport import KubeTransport


def run_keep(client: ScalerClient, name: str, *, duration: str, until: str) -> int:
    """Raises: ScalerError."""
    instant = _instant(duration, until, datetime.now(UTC))
    found = _annotate(client, name, {KEEP_UNTIL: stamp(instant)})
    _say(f"{found} is not suspended before {stamp(instant)}.")
    return 0


def run_wake(client: ScalerClient, name: str) -> int:
    """Raises: ScalerError."""
    found = _annotate(client, name, {WAKE_ANNOTATION: "true"})
    _say(f"{found} comes back as soon as it gets its quota.")
    return 0


def _instant(duration: str, until: str, now: datetime) -> datetime:
    """Raises: ConfigurationError."""
    if bool(duration) == bool(until):
        raise ConfigurationError("say how long: --for 4h, or --until 2026-12-24T18:00:00Z")
    try:
        instant = now + parse_duration(duration) if duration else datetime.fromisoformat(until)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{'--for' if duration else '--until'}: {error}") from None
    if instant.tzinfo is None:
        raise ConfigurationError(f"--until: {until!r} has no zone; write for example '{until}Z'")
    if instant <= now:
        raise ConfigurationError(f"{'--for' if duration else '--until'}: {duration or until} is over")
    return instant


def _annotate(client: ScalerClient, name: str, annotations: Mapping[str, str]) -> str:
    """Patch the ScaledObject of that name, or of the job of that name; returns what it is. Raises: ScalerError."""
    settings = load(client.config, environ=os.environ, flags=client.flags).kubernetes
    namespace, wanted = parse_name(name)

    async def patch() -> str:
        async with await KubeTransport.connect(settings.kubeconfig, settings.context) as kube:
            pages = kube.list_pages(SCALED_OBJECT.path(namespace))
            listed = [decode(ScaledObject, item) async for page in pages for item in page.items or ()]
            found = _the_one(listed, wanted, namespace)
            path = SCALED_OBJECT.path(namespace, found.metadata.name)
            await kube.patch(path, {"metadata": {"annotations": dict(annotations)}})
            return f"{found.spec.scale_target_ref.kind} {namespace}/{_job(found)}"

    return asyncio.run(patch())


def _the_one(listed: list[ScaledObject], wanted: str, namespace: str) -> ScaledObject:
    """Raises: ScalerError where none is meant, or several are."""
    named = [each for each in listed if each.metadata.name == wanted]
    found = named or [each for each in listed if wanted in (each.spec.scale_target_ref.name, _job(each))]
    if len(found) == 1:
        return found[0]
    if not found:
        known = ", ".join(sorted(each.metadata.name for each in listed)[:10]) or "none"
        raise ScalerError(f"no ScaledObject scales {namespace}/{wanted}; in namespace {namespace} there are: {known}")
    names = ", ".join(sorted(each.metadata.name for each in found))
    raise ScalerError(f"several ScaledObjects scale something named {wanted}: {names}; name one of them")


def _job(scaled_object: ScaledObject) -> str:
    """The job that an IdlePolicy has attached it to, or else its target."""
    owner = next(iter(scaled_object.metadata.owner_references), None)
    return owner.name if owner is not None else scaled_object.spec.scale_target_ref.name


def _say(words: str) -> None:
    terminal().print(Text(words), soft_wrap=True)
