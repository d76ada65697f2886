"""Links by which an owner answers: signed, for one purpose, one workload and a limited time. What each of them does.

| purpose   | offered with | changes on the ScaledObject                                            |
|-----------|--------------|------------------------------------------------------------------------|
| `keep`    | Warned       | `keep-until`, as long as the settings say; a later one that is there stays |
| `exclude` | Warned       | `exclude: true`                                                        |
| `wake`    | Suspended    | `wake`                                                                 |

Laws:

* Whoever has a link may do what it says, and nothing else. It can keep, exclude or wake one workload; all of them cost
  GPU time only.
* The limits of its policy hold for a link as for whoever else asks, under the name `link to OWNER`: what they refuse is
  not offered, and not done.
* The file of keys has one a line: the last one signs, all of them are accepted. So keys are replaced without breaking
  links that are under way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from scaler.decision.describe import timestamp
from scaler.decision.reasons import CandidateState
from scaler.documents import read_secret
from scaler.errors import ConfigurationError, ScalerError, need_extra
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Policy
from scaler.notifications.notice import Notice
from scaler.notifications.workloads import Source
from scaler.suspension.keeps import keeps_of, settle
from scaler.targets.target_state import WakeCause
from scaler.targets.workloads import ASKED_BY, EXCLUDE, KEEP_UNTIL, WAKE_ANNOTATION, Asker, instant_of

if TYPE_CHECKING:
    from itsdangerous import URLSafeTimedSerializer

log = structlog.get_logger(__name__)

PATH = "/answer"
_SHORTEST_KEY = 32
_TOKEN = re.compile(r"[\w.-]{1,2000}")


class LinkVerb(StrEnum):
    KEEP = "keep"
    EXCLUDE = "exclude"
    WAKE = "wake"


_OFFERED = {CandidateState.WARNED: (LinkVerb.KEEP, LinkVerb.EXCLUDE), CandidateState.SUSPENDED: (LinkVerb.WAKE,)}


class Link(msgspec.Struct, frozen=True):
    """What is signed. The verb is part of the key."""

    id: str
    namespace: str
    name: str
    uid: str
    """Uid of the ScaledObject, or of the ScalableWorkload that stands for one."""
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
    """Raises: ConfigurationError where what signs them is not installed."""

    def __init__(self, config: LinkConfig) -> None:
        need_extra("notifications", module="itsdangerous", use="notifications.links")
        self.config = config

    def of_notice(self, notice: Notice, source: Source, now: datetime, policy: Policy | None = None) -> dict[str, str]:
        """The answers that fit the notice, by verb. Empty where the keys cannot be read: a message goes out anyway."""
        metadata = source.scaled_object.metadata
        link = Link(
            id=notice.id,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            owner=notice.workload.owner,
            expires=int((now + self.config.valid_for).timestamp()),
        )
        offered = [
            verb
            for verb in _OFFERED.get(CandidateState(notice.line.state), ())
            if not self.refusal(verb, link, metadata.annotations, policy, now)
        ]
        try:
            return {str(verb): self._url(verb, link) for verb in offered}
        except LinkError as error:
            log.warning("message without links", error=str(error))
            return {}

    def _url(self, verb: LinkVerb, link: Link) -> str:
        token = self._serializer(verb).dumps(msgspec.to_builtins(link))
        return f"{self.config.base_url.rstrip('/')}{PATH}/{verb}/{token}"

    def read(self, verb: LinkVerb, token: str, now: datetime) -> Link:
        """Raises: LinkError unless it was signed for this verb, and has not expired."""
        from itsdangerous import BadSignature

        if not _TOKEN.fullmatch(token):
            raise _forged()
        try:
            link = msgspec.convert(self._serializer(verb).loads(token), Link)
        except (BadSignature, msgspec.ValidationError):
            raise _forged() from None
        if now.timestamp() >= link.expires:
            raise LinkError(HTTPStatus.GONE, "This link has expired.")
        return link

    def changes(self, verb: LinkVerb, link: Link, annotations: Mapping[str, str], now: datetime) -> dict[str, str]:
        """The annotations that the link sets where there are these."""
        asked = {ASKED_BY: str(Asker(link.owner, WakeCause.LINK))}
        match verb:
            case LinkVerb.WAKE:
                return asked | {WAKE_ANNOTATION: str(timestamp(now))}
            case LinkVerb.EXCLUDE:
                return asked | {EXCLUDE: "true"}
            case LinkVerb.KEEP:
                until = now + self.config.keep_for
                return asked | {
                    KEEP_UNTIL: str(timestamp(max(until, instant_of(annotations.get(KEEP_UNTIL, "")) or until)))
                }

    def refusal(
        self, verb: LinkVerb, link: Link, annotations: Mapping[str, str], policy: Policy | None, now: datetime
    ) -> str:
        """Why the limits of the workload's policy do not allow it, in words; empty where they do, or are not known."""
        changes = {} if verb is LinkVerb.WAKE else self.changes(verb, link, annotations, now)
        return settle(changes, "link", keeps=keeps_of(annotations), policy=policy, now=now).refused

    def words(self, verb: LinkVerb, policy: Policy | None) -> str:
        """What it does, for as long as the policy lets it last."""
        longest = policy.longest_keep if policy is not None else None
        match verb:
            case LinkVerb.WAKE:
                return "Resume it"
            case LinkVerb.EXCLUDE:
                return f"Exclude it from suspension {f'for {format_duration(longest)}' if longest else 'for good'}"
            case LinkVerb.KEEP:
                return f"Keep it for {format_duration(min(self.config.keep_for, longest or self.config.keep_for))}"

    def _serializer(self, verb: LinkVerb) -> "URLSafeTimedSerializer":
        """Raises: LinkError where there are no keys."""
        from itsdangerous import URLSafeTimedSerializer

        try:
            keys = read_secret(self.config.key_file).split()
        except ConfigurationError:
            keys = []
        if not keys or min(map(len, keys)) < _SHORTEST_KEY:
            problem = f"links.keyFile needs a key of at least {_SHORTEST_KEY} characters on each line"
            raise LinkError(HTTPStatus.SERVICE_UNAVAILABLE, problem)
        return URLSafeTimedSerializer(keys, salt=f"idlegpu.io/{verb}")


def _forged() -> LinkError:
    return LinkError(HTTPStatus.BAD_REQUEST, "This link is not valid.")
