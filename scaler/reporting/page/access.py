"""Who may see what of the page, where a proxy in front of it says who asks.

| the request comes from … | with …                    | the page, the JSON and the metrics are answered         |
|--------------------------|---------------------------|----------------------------------------------------------|
| a trusted proxy          | one user                  | as far as that user may list ScaledObjects               |
| a trusted proxy          | no user, or several       | 403                                                      |
| anywhere else            | whatever the headers say  | the page: 403; all else as without a proxy               |

Laws:

* A header is believed only by the address of the peer that sent it. What another proxy says of the peer is not read.
* Names that Kubernetes keeps for itself (`system:…`) are neither users nor groups here, but for ServiceAccounts.
* The API server decides, by SubjectAccessReviews; what is not known is not shown. Its answers count for a minute.
* JSON and metrics are about the whole cluster: through a proxy only those get them who may see all of it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from aiohttp import web

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.errors import KubeError, QueryError
from scaler.kube.reviews import AuthenticatedUser, ResourceAttributes, ReviewApi, is_allowed

_REMEMBERED_S = 60.0
_MOST_USERS = 200
_MOST_NAMESPACES = 1000
"""The most namespaces that are asked about for one user; of others nothing is shown."""
_AT_ONCE = 8
_LONGEST_NAME, _MOST_GROUPS = 256, 200
_RESERVED = "system:"
_ACCOUNT = re.compile(r"system:serviceaccount:[a-z0-9-]+:[a-z0-9.-]+")
_GUARDED = ("/api/", "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAccessConfig:
    user_header: str
    groups_header: str = ""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looker:
    """What one who looks at the page may see."""

    namespaces: frozenset[str] | None = None
    """The namespaces that the user may see; None: all, and what belongs to the whole cluster."""

    @property
    def is_restricted(self) -> bool:
        return self.namespaces is not None

    def visible(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    def mask(self, text: str) -> str:
        """The text with `…` for names in namespaces that may not be seen."""
        if self.namespaces is None:
            return text
        return _NAMED.sub(lambda found: found.group() if self.visible(found.group(1)) else "…", text)


_NAMED = re.compile(r"(?<![\w./-])([a-z0-9][-a-z0-9]*)/[a-z0-9][-a-z0-9.]*")
"""`namespace/name`, but not `nvidia.com/gpu`."""
EVERYTHING, NOTHING = Looker(), Looker(namespaces=frozenset())


@dataclass(slots=True)
class _Known:
    """What the API server has said of one user."""

    since: float
    everything: bool | None = None
    namespaces: dict[str, bool] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class PageAccess:
    def __init__(
        self,
        config: PageAccessConfig,
        api: ReviewApi,
        namespaces: Callable[[], Iterable[str]],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`namespaces`: those that there is anything to show of."""
        self._config = config
        self._api = api
        self._namespaces = namespaces
        self._clock = clock
        self._known: dict[AuthenticatedUser, _Known] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def looker(self, request: web.Request) -> Looker:
        """Raises: QueryError 403 for one who may see nothing, 503 where that cannot be known."""
        if not self._is_from_proxy(request):
            raise QueryError("this page is only for requests that come through the proxy", status=403)
        user = self._user(request)
        if user is None:
            raise QueryError("the proxy names no user", status=403)
        try:
            return await self._asked(user)
        except KubeError as error:
            raise QueryError(f"it cannot be known what {user.name} may see: {error}", status=503) from None

    @property
    def guard(self) -> Any:
        """A middleware: what is about the whole cluster is not for everybody whom the proxy lets through."""

        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if request.path.startswith(_GUARDED) and self._is_from_proxy(request):
                try:
                    looker = await self.looker(request)
                except QueryError as error:
                    return web.json_response({"error": str(error)}, status=error.status)
                if looker.is_restricted:
                    problem = "this is about all namespaces, of which the user may list ScaledObjects in some only"
                    return web.json_response({"error": problem}, status=403)
            return await handler(request)

        return guard

    # ------------------------------------------------------------------------------------------------------ who asks

    def _is_from_proxy(self, request: web.Request) -> bool:
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        if not peer:
            return False
        address = ip_address(peer[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._config.trusted_proxies)

    def _user(self, request: web.Request) -> AuthenticatedUser | None:
        config = self._config
        names = [each.strip() for each in request.headers.getall(config.user_header, ())]
        if len(names) != 1 or not _is_usable(names[0]):
            return None
        given = request.headers.getall(config.groups_header, ()) if config.groups_header else ()
        groups = {each.strip() for header in given for each in header.split(",")}
        known = sorted(each for each in groups if _is_usable(each) and not each.startswith(_RESERVED))
        # Whoever has a name has this group, too. Source: Kubernetes, "Default roles and role bindings".
        return AuthenticatedUser(name=names[0], groups=(*known[:_MOST_GROUPS], "system:authenticated"))

    # ------------------------------------------------------------------------------------------------- what they may

    async def _asked(self, user: AuthenticatedUser) -> Looker:
        """Raises: KubeError."""
        known = self._remembered(user)
        async with known.turn:
            if known.everything is None:
                known.everything = await self._may(user, "")
            if known.everything:
                return EVERYTHING
            missing = [each for each in {*self._namespaces()} if each not in known.namespaces]
            some = sorted(missing)[: max(0, _MOST_NAMESPACES - len(known.namespaces))]
            answers = await asyncio.gather(*(self._may(user, each) for each in some))
            known.namespaces |= zip(some, answers, strict=True)
        return Looker(namespaces=frozenset(name for name, may in known.namespaces.items() if may))

    def _remembered(self, user: AuthenticatedUser) -> _Known:
        now = self._clock.monotonic()
        known = self._known.get(user)
        if known is None or now - known.since >= _REMEMBERED_S:
            self._known.pop(user, None)
            if len(self._known) >= _MOST_USERS:
                del self._known[next(iter(self._known))]
            known = self._known[user] = _Known(now)
        return known

    async def _may(self, user: AuthenticatedUser, namespace: str) -> bool:
        """Whether the user may list ScaledObjects there; empty: in all namespaces. Raises: KubeError."""
        asked = ResourceAttributes(verb="list", group="keda.sh", resource="scaledobjects", namespace=namespace)
        async with self._slots:
            return await is_allowed(self._api, asked, user)


def _is_usable(name: str) -> bool:
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        return False
    return not name.startswith(_RESERVED) or _ACCOUNT.fullmatch(name) is not None
