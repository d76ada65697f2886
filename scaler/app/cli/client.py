"""Who answers a verb: a running scaler over HTTP, or this process; and how the answer is printed."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
from rich.console import RenderableType

from scaler.app.cli.forward import forwarded
from scaler.app.cli.layout import print_json, show
from scaler.app.settings.load import load
from scaler.errors import ConfigurationError, ScalerError
from scaler.reporting import logs

if TYPE_CHECKING:
    from scaler.app.process import Runtime

Json = Mapping[str, Any]
LocalQuery = Callable[["Runtime"], Awaitable[Json]]
"""How this process computes the answer, once everything is listed."""
Render = Callable[[Json, int], RenderableType]
"""The answer for a terminal that is so wide."""

_HERE = "http://127.0.0.1:8080"
_TIMEOUT_SECONDS = 30.0
"""A plan may take seconds, and other queries may be ahead of it."""
_REFUSALS = frozenset({400, 404, 409, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerClient:
    server: str
    """Empty: the one in the cluster of the kubeconfig, if one is given, and else one on this machine."""
    local: bool
    config: Path | None
    flags: Mapping[str, Any]
    as_json: bool

    @contextmanager
    def reaching(self) -> Iterator["ScalerClient"]:
        """The client with an address, while this lasts. Raises: ScalerError."""
        kubeconfig = self.flags.get("kubernetes.kubeconfig")
        if self.server or self.local:
            yield self
        elif kubeconfig is None:
            yield replace(self, server=_HERE)
        else:
            with forwarded(kubeconfig) as url:
                yield replace(self, server=url)

    def answer(
        self,
        path: Sequence[str],
        query: Sequence[tuple[str, str]],
        here: LocalQuery,
        render: Render,
        *,
        key: str,
        needs_verdicts: bool = False,
    ) -> int:
        """Ask, and print the answer. The exit status. Raises: ScalerError."""
        self.show(asyncio.run(self.ask(path, query, here, key=key, needs_verdicts=needs_verdicts)), render)
        return 0

    async def ask(
        self,
        path: Sequence[str],
        query: Sequence[tuple[str, str]],
        here: LocalQuery,
        *,
        key: str,
        with_quota: bool = True,
        needs_verdicts: bool = False,
    ) -> Json:
        """The answer of the server at that path, or of this process, which contains `key`. Raises: ScalerError.

        `with_quota`, `needs_verdicts`: whether this process needs Kueue's objects and a metrics source to answer.
        """
        if not self.local:
            return await self._fetch(path, query, key)
        from scaler.app.process import Runtime

        settings = load(self.config, environ=os.environ, flags=self.flags)
        logs.configure(level="error", style="text")
        return await Runtime(settings).query_once(here, with_quota=with_quota, needs_verdicts=needs_verdicts)

    def has_metrics_source(self) -> bool:
        """Whether the settings name one. Raises: ConfigurationError."""
        settings = load(self.config, environ=os.environ, flags=self.flags)
        return bool(settings.prometheus.url or settings.dcgm.endpoints)

    async def _fetch(self, path: Sequence[str], query: Sequence[tuple[str, str]], key: str) -> Json:
        url = "/".join([f"{self.server.rstrip('/')}/api/v1", *(quote(part, safe="") for part in path)])
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, params=list(query)) as response,
            ):
                body = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._no_scaler(_why(error)) from None
        match body:
            case dict() if response.status == 200 and key in body:
                return body
            case {"error": str(problem)} if response.status in _REFUSALS:
                raise ScalerError(problem)
            case _:
                raise self._no_scaler(f"status {response.status}")

    def _no_scaler(self, why: str) -> ScalerError:
        return ScalerError(
            f"no scaler answers at {self.server} ({why}); name the cluster that has one by --kubeconfig, set "
            f"--server to the address of a running one, or use --local"
        )

    def show(self, answer: Json, render: Render) -> None:
        if self.as_json:
            print_json(answer)
        else:
            show(lambda width: render(answer, width))


def _why(error: Exception) -> str:
    """Why there is no answer, in a few words."""
    match error:
        case aiohttp.ClientConnectorError():
            return os.strerror(error.errno) if error.errno else str(error)
        case TimeoutError():
            return f"no answer within {_TIMEOUT_SECONDS:g} s"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "no http:// URL"
        case _:
            return str(error) or type(error).__name__


def parse_time(flag: str, text: str) -> datetime:
    """The time; one without a zone is in UTC. Raises: ConfigurationError that names the flag."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        example = "write for example '2026-12-24T18:00:00Z'"
        raise ConfigurationError(f"{flag}: {text!r} is not a time; {example}") from None


def check_outputs(**files: Path | None) -> None:
    """Raises: ConfigurationError, by the name of its flag, for a file that cannot be written where it shall be."""
    for flag, path in files.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            why = f"{path} is a folder; name a file" if path.is_dir() else f"the folder of {path} does not exist"
            raise ConfigurationError(f"--{flag}: {why}")


def write_output(path: Path, text: str) -> None:
    """Raises: ScalerError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScalerError(f"{path} cannot be written: {error.strerror}") from None


def parse_name(text: str) -> tuple[str, str]:
    """Namespace and name. Raises: ConfigurationError."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or name.endswith("/"):
        raise ConfigurationError(f"{text!r} is not NAMESPACE/NAME; write for example 'team-a/notebook'")
    return namespace, name
