"""How verbs ask: a running scaler over HTTP, or this process itself; and how they print what they hear."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
from rich.console import RenderableType

from scaler.cli.terminal import terminal
from scaler.errors import ConfigurationError, ScalerError
from scaler.settings.load import load
from scaler.telemetry import logs

if TYPE_CHECKING:
    from scaler.loops.outlook import Inquiry

Json = Mapping[str, Any]
Look = Callable[["Inquiry"], Awaitable[Json]]
"""How this process would find the answer by itself."""

_TIMEOUT_SECONDS = 30.0
"""A plan may take seconds, and others may have asked before."""
_REFUSALS = frozenset({400, 404, 409, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whom to ask, and how to show the answer."""

    server: str
    local: bool
    config: Path | None
    flags: Mapping[str, Any]
    as_json: bool

    async def ask(
        self,
        path: Sequence[str],
        query: Sequence[tuple[str, str]],
        here: Look,
        *,
        key: str,
        needs_verdicts: bool = False,
    ) -> Json:
        """The answer of the server at that path, or of this process. `key` is in every answer of a scaler.

        `needs_verdicts`: whether this process needs a metrics source for it. Raises: ScalerError.
        """
        if self.local:
            return await _look(self.config, self.flags, here, needs_verdicts=needs_verdicts)
        return await fetch(self.server, path, query, key=key)

    def show(self, answer: Json, render: Callable[[Json, int], RenderableType]) -> None:
        """Print it; `render` is told how wide it may get."""
        if self.as_json:
            print(json.dumps(answer, indent=2))  # noqa: T201 (the program's output)
            return
        console = terminal()
        with console.capture() as printed:
            console.print(render(answer, console.width))
        # Tables fill their lines up with spaces, which nobody wants to copy.
        print("\n".join(line.rstrip() for line in printed.get().rstrip().splitlines()))  # noqa: T201


async def fetch(server: str, path: Sequence[str], query: Sequence[tuple[str, str]], *, key: str) -> Json:
    """What a running scaler answers. Raises: ScalerError."""
    url = "/".join([f"{server.rstrip('/')}/api/v1", *(quote(part, safe="") for part in path)])
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, params=list(query)) as response:
            body = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise nobody_at(server, type(error).__name__) from None
    match body:
        case dict() if response.status == 200 and key in body:
            return body
        case {"error": str(problem)} if response.status in _REFUSALS:
            raise ScalerError(problem)
        case _:
            raise nobody_at(server, f"status {response.status}")


def nobody_at(server: str, why: str) -> ScalerError:
    return ScalerError(
        f"no scaler answers at {server} ({why}); name a running one with --server, or evaluate here with --local"
    )


async def _look(config: Path | None, flags: Mapping[str, Any], here: Look, *, needs_verdicts: bool) -> Json:
    """What this process finds by itself, from the same sources. Writes nothing."""
    from scaler.cli.runtime import Runtime

    settings = load(config, environ=os.environ, flags=flags)
    logs.configure(level="error", style="text")
    return await Runtime(settings).ask_now(here, needs_verdicts=needs_verdicts)


def named(text: str) -> tuple[str, str]:
    """Namespace and name. Raises: ConfigurationError."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or name.endswith("/"):
        raise ConfigurationError(f"{text!r} is not NAMESPACE/NAME; write for example 'team-a/notebook'")
    return namespace, name
