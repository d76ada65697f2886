"""Calls the scaler as KEDA does, from here: every different call once."""

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime
from ipaddress import ip_address

from scaler.errors import ConfigurationError
from scaler.keda.call_credentials import split_address
from scaler.keda.probe import CallResult, ScalerCall, probe
from scaler.reporting.doctor.findings import Unread
from scaler.reporting.doctor.tls_findings import CallKey, CallResults, calls_of
from scaler.reporting.doctor.trigger_authentication import AuthenticatedTrigger

_AT_ONCE = 8
_LABELS_OF_SHORT_NAMES = 2
"""`scaler` and `scaler.gpus` are names that only pods can resolve."""


def parse_connect_to(text: str) -> tuple[str, int] | None:
    """Where the scaler is reached; None for an empty text. Raises: ConfigurationError."""
    if not text:
        return None
    try:
        return split_address(text)
    except ValueError as error:
        raise ConfigurationError(f"--connect-to {error}; write for example localhost:9090") from None


async def check_calls(
    triggers: Sequence[AuthenticatedTrigger], connect_to: tuple[str, int] | None, now: datetime
) -> CallResults:
    """The result of every different call."""
    slots, calls = asyncio.Semaphore(_AT_ONCE), calls_of(triggers)

    async def one(call: CallKey, trigger: AuthenticatedTrigger) -> CallResult | Unread:
        async with slots:
            return await _result(call, trigger, connect_to, now)

    results = await asyncio.gather(*(one(call, found[0]) for call, found in calls.items()))
    return dict(zip(calls, results, strict=True))


async def _result(
    call: CallKey, trigger: AuthenticatedTrigger, connect_to: tuple[str, int] | None, now: datetime
) -> CallResult | Unread:
    address, credentials = call
    host, port = split_address(address)
    if connect_to is None and _is_of_the_cluster(host) and "KUBERNETES_SERVICE_HOST" not in os.environ:
        return Unread(f"{host} is a name within the cluster, and cannot be resolved from here")
    return await probe(
        ScalerCall(
            host=host,
            at=connect_to or (host, port),
            credentials=credentials,
            namespace=trigger.namespace,
            name=trigger.name,
            metadata=trigger.metadata,
        ),
        now,
    )


def _is_of_the_cluster(host: str) -> bool:
    """Whether only pods can resolve the name: a Service's, with or without `svc` and the cluster's domain."""
    try:
        ip_address(host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        return host != "localhost" and (len(labels) <= _LABELS_OF_SHORT_NAMES or "svc" in labels)
    return False
