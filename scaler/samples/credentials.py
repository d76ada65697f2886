"""How a request proves who it is: a bearer token or a password, read from its file for each request.

Tokens of service accounts are replaced about every hour. Reading a small file costs some 20 µs a request, of which
there are a few per tick; remembering it by its modification time would save that and would miss a second change
within one tick of the file system's clock. A secret is never part of a message.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

from requests import PreparedRequest
from requests.auth import AuthBase

from scaler.samples.config import PrometheusConfig
from scaler.samples.failures import AccessDeniedError

_SHORTEST_SECRET = 4
"""Shorter ones are not hidden in a server's words: they would hide half of every message, and protect nothing."""


class BearerFile(AuthBase):
    """`Authorization: Bearer` with what the file holds now."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["Authorization"] = f"Bearer {_token(self._path)}"
        return request


class BasicFile(AuthBase):
    """`Authorization: Basic` with the password that the file holds now."""

    def __init__(self, username: str, path: Path) -> None:
        self._username = username
        self._path = path

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        pair = f"{self._username}:{_content(self._path)}".encode()
        request.headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return request


def credentials(config: PrometheusConfig) -> AuthBase | None:
    """What proves who we are, or None where nothing needs to."""
    if config.bearer_token_file:
        return BearerFile(config.bearer_token_file)
    if config.username is not None and config.password_file:
        return BasicFile(config.username, config.password_file)
    return None


def without_secrets(text: bytes | bytearray, request: PreparedRequest) -> bytes:
    """What a server wrote, with the request's own secrets replaced: servers do echo headers."""
    clean = bytes(text)
    for secret in _secrets_of(str(request.headers.get("Authorization", ""))):
        if len(secret) >= _SHORTEST_SECRET:
            for written in (secret, json.dumps(secret)[1:-1]):
                clean = clean.replace(written.encode(), b"***")
    return clean


def _secrets_of(authorization: str) -> Iterator[str]:
    scheme, _, value = authorization.partition(" ")
    yield value
    if scheme == "Basic":
        yield base64.b64decode(value).decode().partition(":")[2]


def _token(path: Path) -> str:
    """Raises: AccessDeniedError. The HTTP library would quote a token that is no header in its own error."""
    token = _content(path).strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise AccessDeniedError(f"credentials file {path}: is not a token of one word", transient=True)
    return token


def _content(path: Path) -> str:
    """The text without the newline at its end.

    Raises: AccessDeniedError, transient because files are replaced while we look.
    """
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise AccessDeniedError(f"credentials file {path}: {reason}", transient=True) from None
    if not text:
        raise AccessDeniedError(f"credentials file {path}: is empty", transient=True)
    return text
