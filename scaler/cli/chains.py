"""How `doctor` calls the scaler as KEDA does: where from here, and each way once."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address

from scaler.errors import ConfigurationError
from scaler.keda.probe import Asked, ask
from scaler.loops.diagnosis.callers import Caller
from scaler.loops.diagnosis.chains import Way, ways_of
from scaler.loops.diagnosis.findings import Unread
from scaler.tls.calling import split_address
from scaler.tls.probe import Call, Examined, examine

_AT_ONCE = 8
_LABELS_OF_SHORT_NAMES = 2
"""`scaler` and `scaler.gpus` are names that only pods can look up."""


def parse_connect_to(text: str) -> tuple[str, int] | None:
    """Where the scaler is reached; None where nothing is said. Raises: ConfigurationError."""
    if not text:
        return None
    try:
        return split_address(text)
    except ValueError as error:
        raise ConfigurationError(f"--connect-to {error}; write for example localhost:9090") from None


async def look(
    callers: Sequence[Caller], connect_to: tuple[str, int] | None, now: datetime
) -> Mapping[Way, Examined | Unread]:
    """What became of calls in each of the ways."""
    slots = asyncio.Semaphore(_AT_ONCE)
    ways = ways_of(callers)

    async def one(way: Way, caller: Caller) -> Examined | Unread:
        async with slots:
            return await _look(way, caller, connect_to, now)

    seen = await asyncio.gather(*(one(way, found[0]) for way, found in ways.items()))
    return dict(zip(ways, seen, strict=True))


async def _look(way: Way, caller: Caller, connect_to: tuple[str, int] | None, now: datetime) -> Examined | Unread:
    address, terms = way
    host, port = split_address(address)
    if connect_to is None and _is_of_the_cluster(host) and "KUBERNETES_SERVICE_HOST" not in os.environ:
        return Unread(f"{host} is a name within the cluster, and cannot be looked up from here")
    call = Call(host=host, at=connect_to or (host, port), terms=terms)
    examined = await asyncio.to_thread(examine, call, now)
    if examined.faults or (terms.encrypted and not terms.verifies):
        return examined
    fault = await ask(call, Asked(namespace=caller.namespace, name=caller.name, metadata=caller.metadata))
    return replace(examined, faults=(fault,)) if fault else examined


def _is_of_the_cluster(host: str) -> bool:
    """Whether only pods can look the name up: a Service's, with or without `svc` and the cluster's domain."""
    try:
        ip_address(host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        return host != "localhost" and (len(labels) <= _LABELS_OF_SHORT_NAMES or "svc" in labels)
    return False
