"""A view of the page → the answer to a request for it: who may see it, rendered once for many, or why there is none.

Laws:

* What many clients ask for at once is rendered once, and shown for a second to those who may see the same.
* Whatever a view raises is an answer: a page with the problem, which tells nothing to whom nothing is shown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web

from scaler.clock import Clock
from scaler.errors import QueryError
from scaler.reporting.page.access import EVERYTHING, NOTHING, Looker, PageAccess
from scaler.reporting.page.rendering import Renderer, answer

_SHOWN_S = 1.0
"""How long what was rendered is shown again."""
_MOST_SHOWN = 16

log = structlog.get_logger(__name__)

Context = Mapping[str, Any]


@dataclass(kw_only=True)
class PageAnswers:
    frame: Callable[[web.Request, Looker], Context]
    """What every page has."""
    access: PageAccess | None
    clock: Clock
    renderer: Renderer
    rendered: "dict[tuple[Looker, str], tuple[float, asyncio.Task[tuple[int, bytes]]]]" = field(default_factory=dict)

    def shows(
        self, template: str, view: Callable[[web.Request, Looker], Awaitable[Context]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                looker = await self.access.looker(request) if self.access is not None else EVERYTHING
            except QueryError as error:
                frame = {**self.frame(request, NOTHING), "missing": ()}
                return await answer(request, await self._problem(frame, error.status, str(error)), status=error.status)
            status, body = await self._once(request, looker, lambda: self._page(template, view, request, looker))
            return await answer(request, body, status=status)

        return handle

    async def _once(
        self, request: web.Request, looker: Looker, render: Callable[[], Awaitable[tuple[int, bytes]]]
    ) -> tuple[int, bytes]:
        """What is rendered now, or was a moment ago, for the same address and somebody who sees the same."""
        key, now = (looker, request.path_qs), self.clock.monotonic()
        self.rendered = {
            key: each for key, each in self.rendered.items() if now - each[0] < _SHOWN_S or not each[1].done()
        }
        if key not in self.rendered:
            task = asyncio.ensure_future(render())
            if len(self.rendered) >= _MOST_SHOWN:
                return await task
            self.rendered[key] = now, task
        return await asyncio.shield(self.rendered[key][1])

    async def _page(
        self,
        template: str,
        view: Callable[[web.Request, Looker], Awaitable[Context]],
        request: web.Request,
        looker: Looker,
    ) -> tuple[int, bytes]:
        frame = self.frame(request, looker)
        try:
            return 200, await self.renderer.body(template, {**frame, **await view(request, looker)})
        except QueryError as error:
            status, problem = error.status, str(error)
        except Exception:
            log.exception("a page cannot be shown", path=request.path)
            status, problem = 500, "The scaler's log says why. Other pages, and the scaler itself, are not affected."
        return status, await self._problem(frame, status, problem)

    async def _problem(self, frame: Context, status: int, problem: str) -> bytes:
        return await self.renderer.body("page/problem.html", {**frame, "status": status, "problem": problem})


async def readable(*parts: Awaitable[Context]) -> Context:
    """What the parts show. One that raises is logged and left out, and in its place its template says so."""
    found = await asyncio.gather(*parts, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            log.error("a part of a page cannot be read", exc_info=each)
    return {name: value for each in found if not isinstance(each, BaseException) for name, value in each.items()}
