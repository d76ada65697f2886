"""Templates → answers of HTTP: in pieces, so that KEDA gets its answers meanwhile; escaped, tagged, and compressed.

Laws:

* Everything that a template writes is escaped; nothing is marked as safe.
* A part that cannot be rendered takes nothing else from the page.
* The page loads its own style and its own script, and nothing else from anywhere: the policy in the header forbids it,
  even to what somebody might find a way to write into the page.
* An answer is tagged by its content: while nothing changes, a client that asks again gets 304. So a page shows no time
  but those of what it tells.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import structlog
from aiohttp import hdrs, web

from scaler.clock import Turns
from scaler.idleness.durations import format_duration
from scaler.kube.objects.core import stamp
from scaler.reporting.connections import compressed
from scaler.reporting.page.workloads import STATES

if TYPE_CHECKING:
    from jinja2 import Environment, Template

log = structlog.get_logger(__name__)

_TEMPLATES = Path(__file__).parent.parent / "templates"
_STATIC = Path(__file__).parent / "static"
_TYPES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_PIECES = 200
"""Pieces of a template in one part."""
_SECOND = timedelta(seconds=1)

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex, nofollow",
    "Cache-Control": "private, no-cache",
}


def environment(*more: Path) -> "Environment":
    """The environment of all templates, with those of more folders; static files are there to be included in pages of
    one file."""
    # Imported when somebody opens the page for the first time: it takes some megabytes.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([_TEMPLATES, _STATIC, *more]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made.filters |= {
        "when": when,
        "iso": stamp,
        "duration": whole_duration,
        "number": number,
        "percent": lambda ratio: f"{100 * ratio:.3g} %",
        "segment": lambda text: quote(text, safe=""),
        "state_class": state_class,
        "counted": counted,
        "counted_number": lambda amount, word: counted(round(amount), word),
    }
    made.globals |= {"version_of": static_version, "shielded": shielded}
    return made


class Renderer:
    def __init__(self, *more: Path) -> None:
        """`more`: folders of templates."""
        self._more = more
        self._is_loaded = False

    @cached_property
    def _templates(self) -> "Mapping[str, Template]":
        made = environment(*self._more)
        return {name: made.get_template(name) for name in made.list_templates(extensions=["html"])}

    async def body(self, template: str, context: Mapping[str, Any]) -> bytes:
        """The page; other tasks run between its parts."""
        if not self._is_loaded:  # which takes a tenth of a second
            await asyncio.to_thread(lambda: self._templates)
            self._is_loaded = True
        turns, parts = Turns(), []
        html = self._templates[template].stream(context)
        html.enable_buffering(_PIECES)
        for part in html:
            parts.append(part.encode())
            await turns.give_way()
        return b"".join(parts)


def shielded(name: str, *, caller: Callable[[], str]) -> str | None:
    """A part of a page; None where it cannot be rendered, and all other parts are shown."""
    try:
        return caller()
    except Exception:
        log.exception("a part of a page cannot be shown", part=name)
        return None


def tag_of(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=12).hexdigest()


async def answer(request: web.Request, body: bytes, *, status: int = 200) -> web.Response:
    """The page, or 304 for a client that has it already."""
    tag = tag_of(body)
    known = request.if_none_match or ()
    if status == 200 and any(each.value == tag for each in known):
        response = web.Response(status=304, headers=HEADERS)
        response.etag = tag
        return response
    headers = dict(HEADERS)
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        headers |= {hdrs.CONTENT_ENCODING: "gzip", hdrs.VARY: hdrs.ACCEPT_ENCODING}
        body = await _compressed(body)
    response = web.Response(status=status, body=body, content_type="text/html", charset="utf-8", headers=headers)
    response.etag = tag
    return response


async def _compressed(body: bytes) -> bytes:
    """The page by gzip, a part at a time."""
    turns, found = Turns(), []
    for part in compressed(body[begin : begin + 2**16] for begin in range(0, len(body), 2**16)):
        found.append(part)
        await turns.give_way()
    return b"".join(found)


# --------------------------------------------------------------------------------------------------------- static files


_FILES = {name: (_STATIC / name).read_bytes() for name in _TYPES}


def static_version(name: str) -> str:
    """A version by which a changed file has another address, so that a client may keep it for good."""
    return tag_of(_FILES[name])[:12]


async def static(request: web.Request) -> web.Response:
    name = request.match_info["file"]
    lasts = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=_FILES[name], content_type=_TYPES[name], charset="utf-8", headers=lasts)


STATIC_PATH = f"/page/{{file:{'|'.join(_TYPES)}}}"


# -------------------------------------------------------------------------------------------------------------- filters


def when(instant: datetime | str | None, at: datetime) -> str:
    """The time of the day, with the date where that is another one; also of a time as `explain` writes it."""
    if not instant:
        return "–"
    if isinstance(instant, str):
        instant = datetime.fromisoformat(instant)
    if instant.year >= 9999:
        return "for good"
    instant = instant.astimezone(UTC)
    return f"{instant:%H:%M:%S} UTC" if instant.date() == at.date() else f"{instant:%d %b %Y %H:%M} UTC"


def whole_duration(duration: timedelta) -> str:
    """The duration in whole seconds, of at most two units."""
    return format_duration(max(timedelta(0), duration - duration % _SECOND))


def number(amount: float) -> str:
    return f"{amount:,.1f}" if amount % 1 and amount < 100 else f"{amount:,.0f}"


def counted(amount: int, word: str) -> str:
    """`1 GPU`, `2 GPUs`"""
    return f"{amount:,} {word}{'' if amount == 1 else 's'}"


def state_class(state: str) -> str:
    """Part of a class's name; of a state that there is not, as a tenant may write it, that of none."""
    return state if state in STATES else "Other"
