"""Who answers a verb: a running scaler over HTTP, or this process; and how the answer is printed."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
from rich.console import RenderableType

from scaler.app.cli.layout import terminal
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

_TIMEOUT_SECONDS = 30.0
"""A plan may take seconds, and other queries may be ahead of it."""
_REFUSALS = frozenset({400, 404, 409, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerClient:
    server: str
    local: bool
    config: Path | None
    flags: Mapping[str, Any]
    as_json: bool

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
            f"no scaler answers at {self.server} ({why}); set --server to the address of a running one (kubectl -n "
            f"idle-gpu-scaler port-forward deployment/idle-gpu-scaler 8080:8080), or use --local"
        )

    def show(self, answer: Json, render: Render) -> None:
        if self.as_json:
            print(json.dumps(answer, indent=2))  # noqa: T201 (the program's output)
            return
        console = terminal()
        with console.capture() as printed:
            console.print(render(answer, console.width))
        # Tables pad their lines with spaces, which would be copied along.
        print("\n".join(line.rstrip() for line in printed.get().rstrip().splitlines()))  # noqa: T201


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


def parse_name(text: str) -> tuple[str, str]:
    """Namespace and name. Raises: ConfigurationError."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or name.endswith("/"):
        raise ConfigurationError(f"{text!r} is not NAMESPACE/NAME; write for example 'team-a/notebook'")
    return namespace, name
