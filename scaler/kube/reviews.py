"""Who has sent this bearer token, and what may they do? The API server is asked, by its reviews.

Laws:

* No answer, a broken answer and a refusal are errors, never a user or a permission.
* A token for other audiences than those asked for belongs to nobody, also where the API server does not know audiences.
* Answers are kept for ANSWERS_SECONDS, so a token that is revoked counts for that long; tokens only as digests.
* Few tokens are reviewed at a time: whoever tries many, each another one, keeps no API server busy.

Source: Kubernetes, "TokenReview v1" and "SubjectAccessReview v1".
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.objects.core import decode
from scaler.kube.objects.resources import SELF_SUBJECT_ACCESS_REVIEW, SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW, Resource

T = TypeVar("T")

REVIEW_SECONDS = 5.0
"""The time that one review may take: somebody waits for the answer."""
ANSWERS_SECONDS = 10.0
_MOST_ANSWERS = 1000
_AT_ONCE = 4
_LONGEST_TOKEN = 16_384


class ReviewApi(Protocol):
    """The part of the Kubernetes API that reviews need. A KubeTransport is one."""

    async def create(self, path: str, body: Mapping[str, Any], *, within: float | None = None) -> bytes:
        """The review with its status. Raises: KubeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatedUser:
    """A user as the API server knows it."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    """What authorizers may also look at, such as the scopes of a token of OpenShift."""

    @property
    def as_spec(self) -> dict[str, Any]:
        """The user in the spec of a SubjectAccessReview."""
        given = {"user": self.name, "groups": list(self.groups), "uid": self.uid, "extra": dict(self.extra)}
        return {key: value for key, value in given.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAttributes:
    """One question to the API: may the user do this?"""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    """Empty: in all of them."""
    name: str = ""
    """Empty: on all objects."""

    def __str__(self) -> str:
        kind = self.resource + (f"/{self.subresource}" if self.subresource else "")
        which = f" {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {kind}{f'.{self.group}' if self.group else ''}{which}{where}"


class TokenReviews:
    """The users whose tokens these are. Every replica reviews for itself."""

    def __init__(self, api: ReviewApi, *, audiences: Sequence[str] = (), clock: Clock = SYSTEM_CLOCK) -> None:
        """`audiences`: one of them has to be the token's. Empty: those of the API server."""
        self._api = api
        self._audiences = tuple(audiences)
        self._answers = _RecentAnswers[AuthenticatedUser | None](clock)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def user_of(self, token: str) -> AuthenticatedUser | None:
        """The user that the token authenticates; None where it authenticates none. Raises: KubeError."""
        if not token or len(token) > _LONGEST_TOKEN:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        if digest in self._answers:
            return self._answers[digest]
        spec = {"token": token} | ({"audiences": list(self._audiences)} if self._audiences else {})
        async with self._slots:
            self._answers[digest] = user = self._user(await _reviewed(self._api, TOKEN_REVIEW, spec))
        return user

    def _user(self, review: "_Review") -> AuthenticatedUser | None:
        status = review.status
        is_for_us = not self._audiences or not set(self._audiences).isdisjoint(status.audiences)
        if not (status.authenticated and status.user.username and is_for_us):
            return None
        found = status.user
        return AuthenticatedUser(name=found.username, groups=tuple(found.groups), uid=found.uid, extra=found.extra)


class AccessReviews:
    """May users do it? Of any replica."""

    def __init__(self, api: ReviewApi, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._api = api
        self._answers = _RecentAnswers[bool](clock)

    async def may(self, user: AuthenticatedUser, asked: ResourceAttributes) -> bool:
        """Raises: KubeError."""
        key = msgspec.json.encode((user, asked), order="deterministic")
        if key not in self._answers:
            self._answers[key] = await is_allowed(self._api, asked, user)
        return self._answers[key]


async def is_allowed(api: ReviewApi, asked: ResourceAttributes, user: AuthenticatedUser | None = None) -> bool:
    """Whether the user may, or without one whoever asks. Raises: KubeError."""
    kind = SUBJECT_ACCESS_REVIEW if user else SELF_SUBJECT_ACCESS_REVIEW
    attributes = {key: value for key, value in asdict(asked).items() if value}
    review = await _reviewed(api, kind, (user.as_spec if user else {}) | {"resourceAttributes": attributes})
    return review.status.allowed


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _UserInfo = _UserInfo()
    audiences: list[str] = []
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Status


async def _reviewed(api: ReviewApi, kind: Resource, spec: Mapping[str, Any]) -> _Review:
    """Raises: KubeError."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
    answer = await api.create(kind.path(), body, within=REVIEW_SECONDS)
    try:
        return decode(_Review, answer)
    except UNREADABLE as error:
        raise KubeError(f"create {kind.path()}: the answer is not a {kind.kind}", reason="NotAReview") from error


class _RecentAnswers(Generic[T]):
    """Answers for ANSWERS_SECONDS, the last _MOST_ANSWERS of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[bytes, tuple[float, T]] = {}
        """The answers with their ends, in whose order they are."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept and self._kept[key][0] > self._clock.monotonic()

    def __getitem__(self, key: bytes) -> T:
        return self._kept[key][1]

    def __setitem__(self, key: bytes, value: T) -> None:
        self._kept.pop(key, None)
        if len(self._kept) >= _MOST_ANSWERS:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = self._clock.monotonic() + ANSWERS_SECONDS, value
