"""The pages that links lead to.

| request                               | answer                                       |
|---------------------------------------|----------------------------------------------|
| GET or HEAD, a good link              | a page that asks for confirmation            |
| POST, a good link                     | it is done, and the link is used up          |
| any, signature or purpose do not fit  | 400                                          |
| any, refused by the workload's policy | 403                                          |
| any, expired, used, or workload gone  | 410                                          |
| any other verb                        | 405                                          |

Laws:

* Reading changes nothing: mail scanners and crawlers follow links. Only the form of the page is sent with POST.
* Used links are recorded on the ScaledObject (or what stands for one) in the very patch that does what was asked, under
  the resourceVersion that was read: two clicks at once, other replicas and restarts do not make two uses. A record is
  removed when its link has expired; with too many of them, links are refused instead of forgotten.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus

import structlog
from aiohttp import web

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.errors import KubeError
from scaler.idleness.policy import Policy
from scaler.kube.objects.core import decode
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler.kube.writes import PatchApi
from scaler.requests.links import PATH, Link, LinkError, Links, LinkVerb

log = structlog.get_logger(__name__)

ANSWERED = "idlegpu.io/answered"
"""An annotation of a ScaledObject: links that were used, as `id=expiry` (Unix seconds), separated by spaces."""
_MOST_ANSWERED = 64
_DIGITS = 12
"""Digits of Unix seconds. Anybody who may annotate the object may write thousands, which Python does not convert."""
_ATTEMPTS = 3

PolicyOf = Callable[[tuple[str, str]], Policy | None]
"""The policy of a ScaledObject, by its key; None while it is not known."""


class LinkPages:
    """The pages of any replica: what a user asks for needs no leader."""

    def __init__(
        self,
        links: Links,
        api: PatchApi,
        scaled_object: Callable[[str, str], ScaledObject | None],
        *,
        policy_of: PolicyOf = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._links = links
        self._api = api
        self._scaled_object = scaled_object
        self._policy_of = policy_of
        self._clock = clock

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        path = f"{PATH}/{{verb:{'|'.join(LinkVerb)}}}/{{token}}"
        return [web.get(path, self._ask), web.post(path, self._do)]

    async def _ask(self, request: web.Request) -> web.Response:
        try:
            verb, link = self._read(request)
            self._check(link, verb, self._scaled_object(link.namespace, link.name))
        except LinkError as error:
            return _page(str(error), status=error.status)
        button = html.escape(self._words(verb, link))
        return _page(
            f"{link.namespace}/{link.name}: nothing has been changed yet.",
            f'<form method="post"><button type="submit">{button}</button></form>',
        )

    async def _do(self, request: web.Request) -> web.Response:
        try:
            verb, link = self._read(request)
            await self._carry_out(verb, link)
        except LinkError as error:
            return _page(str(error), status=error.status)
        except KubeError as error:
            log.warning("link not carried out", error=str(error))
            return _page("The cluster did not accept it; try again later.", status=HTTPStatus.BAD_GATEWAY)
        log.info("link used", verb=str(verb), namespace=link.namespace, name=link.name, owner=link.owner)
        return _page(f"{link.namespace}/{link.name}: {self._words(verb, link)} – done.")

    def _read(self, request: web.Request) -> tuple[LinkVerb, Link]:
        verb = LinkVerb(request.match_info["verb"])
        return verb, self._links.read(verb, request.match_info["token"], self._clock.now())

    def _words(self, verb: LinkVerb, link: Link) -> str:
        return self._links.words(verb, self._policy_of((link.namespace, link.name)))

    def _check(self, link: Link, verb: LinkVerb, found: ScaledObject | None) -> ScaledObject:
        """Raises: LinkError unless the workload is there, the link unused, and its policy lets it."""
        if found is None or found.metadata.uid != link.uid:
            raise LinkError(HTTPStatus.GONE, f"There is no workload {link.namespace}/{link.name} any more.")
        if _record(verb, link) in answered(found.metadata.annotations, self._clock.now()):
            raise LinkError(HTTPStatus.GONE, "This link was used already.")
        policy = self._policy_of((link.namespace, link.name))
        if why := self._links.refusal(verb, link, found.metadata.annotations, policy, self._clock.now()):
            raise LinkError(HTTPStatus.FORBIDDEN, f"The policy of this workload does not allow that: {why}")
        return found

    async def _carry_out(self, verb: LinkVerb, link: Link) -> None:
        """Raises: LinkError, KubeError."""
        known = self._scaled_object(link.namespace, link.name)
        path = (known.resource if known is not None else SCALED_OBJECT).path(link.namespace, link.name)
        for attempt in range(_ATTEMPTS):
            found = self._check(link, verb, await self._fresh(path))
            try:
                await self._api.patch(path, self._patch(verb, link, found))
            except KubeError as error:
                if not error.is_conflict or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _fresh(self, path: str) -> ScaledObject | None:
        """What the API has now, by a patch that changes nothing: our account may patch ScaledObjects, not get them."""
        try:
            return decode(ScaledObject, await self._api.patch(path, {}, dry_run=True))
        except KubeError as error:
            if error.is_absent:
                return None
            raise

    def _patch(self, verb: LinkVerb, link: Link, found: ScaledObject) -> Mapping[str, object]:
        now, annotations = self._clock.now(), found.metadata.annotations
        records = answered(annotations, now) | {_record(verb, link): link.expires}
        if len(records) > _MOST_ANSWERED:
            raise LinkError(HTTPStatus.TOO_MANY_REQUESTS, "Too many links of this workload were used today.")
        used = {ANSWERED: " ".join(f"{each}={expires}" for each, expires in records.items())}
        changes = used | self._links.changes(verb, link, annotations, now)
        version = found.metadata.resource_version
        return {"metadata": {"resourceVersion": version, "annotations": changes}}


def answered(annotations: Mapping[str, str], now: datetime) -> dict[str, int]:
    """The links that were used and would still be valid, with their expiry (Unix seconds)."""
    pairs = (each.partition("=") for each in annotations.get(ANSWERED, "").split())
    found = {name: int(expires) for name, _, expires in pairs if expires.isdecimal() and len(expires) <= _DIGITS}
    return {name: expires for name, expires in found.items() if expires > now.timestamp()}


def _record(verb: LinkVerb, link: Link) -> str:
    return f"{verb}-{link.id}"


_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def _page(text: str, form: str = "", *, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """`form` is HTML already."""
    body = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="robots" content="noindex, nofollow">'
        '<meta name="viewport" content="width=device-width"><title>idle-gpu-scaler</title></head>'
        f"<body><p>{html.escape(text)}</p>{form}</body></html>\n"
    )
    return web.Response(status=status, text=body, content_type="text/html", headers=_HEADERS)
