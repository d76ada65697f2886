"""A signed POST of JSON to a receiver that the operator has set up.

Laws:

* The address and every secret stand in files, which are read for each request, so that a new one is used at once. No
  secret is part of an error or a log line.
* A request ends within its timeout. Redirects are refused: what is signed is for one receiver.

The body is signed: `Idlegpu-Signature: t=UNIXTIME,v1=HEX` has the HMAC-SHA256 of `UNIXTIME.BODY` with the key of the
receiver. Receivers refuse old times, and compare in constant time (docs/notifications.md).
"""

import hashlib
import hmac
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import aiohttp

from scaler.documents import read_secret
from scaler.errors import ConfigurationError, ScalerError

_OK = range(200, 300)
_MOST_RETRY_AFTER_S = 24 * 3600.0


class SendError(ScalerError):
    """It was not accepted, or nobody knows whether it was. Without secrets."""

    def __init__(self, message: str, *, retry_after: timedelta = timedelta(0), status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        """Status of HTTP; None where there was no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    url_file: Path
    key_file: Path | None = None
    """The key of the signature. None: nothing is signed."""
    token_file: Path | None = None
    """A bearer token."""
    ca_file: Path | None = None


def secret_of(file: Path, what: str) -> str:
    """What the file holds now, on one line. Raises: SendError."""
    try:
        text = read_secret(file).strip()
    except ConfigurationError as error:
        raise SendError(f"{what} {error}") from None
    if not text or not text.isprintable():
        raise SendError(f"{what} {file}: must be one line of text")
    return text


def signature(key: str, body: bytes, at: datetime) -> str:
    """`t=UNIXTIME,v1=HEX`."""
    seconds = int(at.timestamp())
    digest = hmac.new(key.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


async def post_signed(to: Receiver, body: bytes, key: str, within: timedelta, *, now: datetime) -> int:
    """Posts with an idempotency key, signed where the receiver has a key; the status is 2xx. Raises: SendError."""
    url, headers = secret_of(to.url_file, "address"), {"Content-Type": "application/json", "Idempotency-Key": key}
    if to.key_file is not None:
        headers["Idlegpu-Signature"] = signature(secret_of(to.key_file, "key"), body, now)
    if to.token_file is not None:
        headers["Authorization"] = f"Bearer {secret_of(to.token_file, 'token')}"
    limit = aiohttp.ClientTimeout(total=within.total_seconds())
    try:
        context = ssl.create_default_context(cafile=str(to.ca_file)) if to.ca_file else None
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(
                url,
                data=body,
                headers=headers,
                ssl=context if context is not None else True,
                allow_redirects=False,
            ) as answer,
        ):
            if answer.status not in _OK:
                wait = _retry_after(answer.headers.get("Retry-After", ""))
                raise SendError(f"it answers HTTP {answer.status}", retry_after=wait, status=answer.status)
            return answer.status
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
        # Its words may quote the URL, which may be a secret.
        raise SendError(f"it cannot be reached: {type(error).__name__}") from None


def _retry_after(value: str) -> timedelta:
    with suppress(ValueError):
        return timedelta(seconds=max(0.0, min(float(value), _MOST_RETRY_AFTER_S)))
    return timedelta(0)
