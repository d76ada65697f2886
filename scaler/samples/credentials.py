"""How a request proves who it is: a bearer token or a password, read from its file for each request.

Tokens of service accounts are replaced about every hour. Reading a small file costs some 20 µs a request, of which
there are a few per tick; remembering it by its modification time would save that and would miss a second change
within one tick of the file system's clock. A secret is never part of a message.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from requests import PreparedRequest

from scaler.documents import read_secret
from scaler.errors import ConfigurationError
from scaler.samples.config import PrometheusConfig
from scaler.samples.source import ReadError, ReadOutcome

_SHORTEST_SECRET = 4
"""The length below which no secret is hidden in a server's words: that would hide half of every message."""


def credentials(config: PrometheusConfig) -> Callable[[PreparedRequest], PreparedRequest] | None:
    """What writes the header that proves who we are, with what the file holds now; None where nothing needs to."""
    token, username, password = config.bearer_token_file, config.username, config.password_file
    if token:
        return lambda request: _authorized(request, f"Bearer {_token(token)}")
    if username is not None and password:
        return lambda request: _authorized(request, _basic(username, _content(password)))
    return None


def _authorized(request: PreparedRequest, value: str) -> PreparedRequest:
    request.headers["Authorization"] = value
    return request


def _basic(username: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


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
    """Raises: ReadError. The HTTP library would quote a token that is no header in its own error."""
    token = _content(path).strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ReadError(ReadOutcome.DENIED, f"credentials file {path}: is not a token of one word", transient=True)
    return token


def _content(path: Path) -> str:
    """Raises: ReadError, transient because files are replaced while we look."""
    try:
        return read_secret(path)
    except ConfigurationError as error:
        raise ReadError(ReadOutcome.DENIED, f"credentials file {error}", transient=True) from None
