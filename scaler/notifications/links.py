"""Links by which an owner answers: signed, for one purpose, one workload and a limited time, and good for one use.

| request                               | answer                                       |
|---------------------------------------|----------------------------------------------|
| GET or HEAD, a good link              | a page that asks for confirmation            |
| POST, a good link                     | it is done, and the link is used up          |
| any, signature or purpose do not fit  | 400                                          |
| any, expired, used, or workload gone  | 410                                          |
| any other verb                        | 405                                          |

Laws:

* Reading changes nothing: mail scanners and crawlers follow links. Only the form of the page is sent with POST.
* Whoever has a link may do what it says, and nothing else. It can keep or wake one workload; both cost GPU time only.
* Used links are recorded on the ScaledObject (or what stands for one) in the very patch that does what was asked, under
  the resourceVersion that was read: two clicks at once, other replicas and restarts do not make two uses. A record is
  removed when its link has expired; with too many of them, links are refused instead of forgotten.
* The file of keys has one a line: the last one signs, all of them are accepted. So keys are replaced without breaking
  links that are under way.
"""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.decision.candidate import CandidateState
from scaler.decision.describe import timestamp
from scaler.decision.workloads import ASKED_BY, BY_LINK, KEEP_UNTIL, WAKE_ANNOTATION
from scaler.errors import KubeError, ScalerError
from scaler.idleness.durations import format_duration
from scaler.kube.objects.core import decode
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler.notifications.notice import Notice
from scaler.notifications.workloads import Source
from scaler.suspension.leader_api import PatchApi

log = structlog.get_logger(__name__)

ANSWERED = "idlegpu.io/answered"
"""On a ScaledObject: links that were used, as `id=expiry` (Unix seconds), separated by spaces."""
PATH = "/answer"
_MOST_ANSWERED = 64
_ATTEMPTS = 3
_SHORTEST_KEY = 32
_TOKEN = re.compile(r"[\w.-]{1,2000}")


class Verb(StrEnum):
    KEEP = "keep"
    WAKE = "wake"


_OFFERED = {CandidateState.WARNED: Verb.KEEP, CandidateState.SUSPENDED: Verb.WAKE}


class Link(msgspec.Struct, frozen=True):
    """What is signed. The verb is part of the key."""

    id: str
    namespace: str
    name: str
    uid: str
    """Of the ScaledObject, or the ScalableWorkload that stands for one."""
    owner: str
    expires: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    base_url: str
    key_file: Path
    valid_for: timedelta
    keep_for: timedelta


class LinkError(ScalerError):
    """A link that does nothing, and why."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Links:
    def __init__(self, config: LinkConfig) -> None:
        self.config = config

    def of_notice(self, notice: Notice, source: Source, now: datetime) -> dict[str, str]:
        """The answers that fit the notice, by verb. Empty where the keys cannot be read: a message goes out anyway."""
        verb = _OFFERED.get(CandidateState(notice.line.state))
        if verb is None:
            return {}
        metadata = source.scaled_object.metadata
        link = Link(
            id=notice.id,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            owner=notice.workload.owner,
            expires=int((now + self.config.valid_for).timestamp()),
        )
        try:
            token = self._serializer(verb).dumps(msgspec.to_builtins(link))
        except LinkError as error:
            log.warning("message without links", error=str(error))
            return {}
        return {str(verb): f"{self.config.base_url.rstrip('/')}{PATH}/{verb}/{token}"}

    def read(self, verb: Verb, token: str, now: datetime) -> Link:
        """Raises: LinkError unless it was signed for this verb, and has not expired."""
        if not _TOKEN.fullmatch(token):
            raise _forged()
        try:
            link = msgspec.convert(self._serializer(verb).loads(token), Link)
        except (BadSignature, SignatureExpired, msgspec.ValidationError):
            raise _forged() from None
        if now.timestamp() >= link.expires:
            raise LinkError(HTTPStatus.GONE, "This link has expired.")
        return link

    def _serializer(self, verb: Verb) -> URLSafeTimedSerializer:
        """Raises: LinkError where there are no keys."""
        try:
            keys = self.config.key_file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError):
            keys = []
        if not keys or min(map(len, keys)) < _SHORTEST_KEY:
            problem = f"links.keyFile needs a key of at least {_SHORTEST_KEY} characters on each line"
            raise LinkError(HTTPStatus.SERVICE_UNAVAILABLE, problem)
        return URLSafeTimedSerializer(keys, salt=f"idlegpu.io/{verb}")


def _forged() -> LinkError:
    return LinkError(HTTPStatus.BAD_REQUEST, "This link is not valid.")


class LinkPages:
    """Of any replica: what a user asks for needs no leader."""

    def __init__(
        self,
        links: Links,
        api: PatchApi,
        scaled_object: Callable[[str, str], ScaledObject | None],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._links = links
        self._api = api
        self._scaled_object = scaled_object
        self._clock = clock

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        path = f"{PATH}/{{verb:keep|wake}}/{{token}}"
        return [web.get(path, self._ask), web.post(path, self._do)]

    async def _ask(self, request: web.Request) -> web.Response:
        try:
            verb, link = self._read(request)
            self._check(link, verb, self._scaled_object(link.namespace, link.name))
        except LinkError as error:
            return _page(str(error), status=error.status)
        button = html.escape(self._words(verb))
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
        return _page(f"{link.namespace}/{link.name}: {self._words(verb)} – done.")

    def _read(self, request: web.Request) -> tuple[Verb, Link]:
        verb = Verb(request.match_info["verb"])
        return verb, self._links.read(verb, request.match_info["token"], self._clock.now())

    def _words(self, verb: Verb) -> str:
        if verb is Verb.WAKE:
            return "Resume it"
        return f"Keep it for {format_duration(self._links.config.keep_for)}"

    def _check(self, link: Link, verb: Verb, found: ScaledObject | None) -> ScaledObject:
        """Raises: LinkError unless the workload is there, and the link unused."""
        if found is None or found.metadata.uid != link.uid:
            raise LinkError(HTTPStatus.GONE, f"There is no workload {link.namespace}/{link.name} any more.")
        if _record(verb, link) in answered(found.metadata.annotations, self._clock.now()):
            raise LinkError(HTTPStatus.GONE, "This link was used already.")
        return found

    async def _carry_out(self, verb: Verb, link: Link) -> None:
        """Raises: LinkError, KubeError."""
        known = self._scaled_object(link.namespace, link.name)
        path = (known.resource if known is not None else SCALED_OBJECT).path(link.namespace, link.name)
        for attempt in range(_ATTEMPTS):
            found = self._check(link, verb, await self._fresh(path))
            try:
                await self._api.patch(path, self._patch(verb, link, found))
            except KubeError as error:
                if error.status != HTTPStatus.CONFLICT or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _fresh(self, path: str) -> ScaledObject | None:
        """As the API has it now, by a patch that changes nothing: our account may patch ScaledObjects, not get them."""
        try:
            return decode(ScaledObject, await self._api.patch(path, {}, dry_run=True))
        except KubeError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def _patch(self, verb: Verb, link: Link, found: ScaledObject) -> Mapping[str, object]:
        now, annotations = self._clock.now(), found.metadata.annotations
        records = answered(annotations, now) | {_record(verb, link): link.expires}
        if len(records) > _MOST_ANSWERED:
            raise LinkError(HTTPStatus.TOO_MANY_REQUESTS, "Too many links of this workload were used today.")
        changes = {
            ANSWERED: " ".join(f"{each}={expires}" for each, expires in records.items()),
            ASKED_BY: f"{BY_LINK}{link.owner}",
        }
        if verb is Verb.WAKE:
            changes[WAKE_ANNOTATION] = str(timestamp(now))
        else:
            until = now + self._links.config.keep_for
            changes[KEEP_UNTIL] = str(timestamp(max(until, _time(annotations.get(KEEP_UNTIL, ""), until))))
        version = found.metadata.resource_version
        return {"metadata": {"resourceVersion": version, "annotations": changes}}


def answered(annotations: Mapping[str, str], now: datetime) -> dict[str, int]:
    """The links that were used and would still be valid, with their expiry (Unix seconds)."""
    pairs = (each.partition("=") for each in annotations.get(ANSWERED, "").split())
    found = {name: int(expires) for name, _, expires in pairs if expires.isdecimal()}
    return {name: expires for name, expires in found.items() if expires > now.timestamp()}


def _record(verb: Verb, link: Link) -> str:
    return f"{verb}-{link.id}"


def _time(text: str, otherwise: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return otherwise
    return found.astimezone(UTC) if found.tzinfo else otherwise


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
