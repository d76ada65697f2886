"""Mail, Slack, Teams and a hundred others, by an address of Apprise. It says only whether the message was accepted.

Mail (`mailto://`, `mailtos://`) goes to the owner where that is an address of an allowed domain, and to those in the
address otherwise: tenants write annotations, and must not make the scaler write to strangers.

Source: Apprise, `url_to_dict` and `Apprise.instantiate`; RFC 3834 (Auto-Submitted).
"""

import asyncio
import re
from collections.abc import Collection, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scaler.errors import need_extra
from scaler.notifications.senders import Content, Sender, TargetConfig
from scaler.webhook import SendError, secret_of

TAKES = frozenset({"owner_domains"})
_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+", re.ASCII)
_MAIL = ("mailto", "mailtos")


def sender(target: TargetConfig, threads: Executor, timeout: timedelta) -> Sender:
    """Raises: ConfigurationError where Apprise is not installed."""
    need_extra("notifications", module="apprise", use=f"target {target.name} of kind apprise")
    return AppriseTarget(target, threads, timeout)


@dataclass(frozen=True, slots=True)
class AppriseTarget:
    _target: TargetConfig
    _threads: Executor
    _timeout: timedelta

    async def send(self, content: Content, now: datetime) -> None:  # noqa: ARG002 - as the protocol has it
        """A thread cannot be stopped: after the timeout nobody waits for it any more."""
        # Parsing is outside of the timeout: the first time it loads all plugins, which takes a second and 25 MB.
        parsed = await asyncio.to_thread(self._parsed, content.owner)
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._notify, parsed, content)
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                await work
        except TimeoutError:
            raise SendError(f"no answer within {self._timeout.total_seconds():g} s") from None

    def _parsed(self, owner: str) -> dict[str, Any]:
        """The address as Apprise reads it, with the owner in it."""
        from apprise.plugins import url_to_dict

        address = secret_of(self._target.url_file, "address")
        with _without_words():
            parsed = url_to_dict(address)  # type: ignore[no-untyped-call]
        if parsed is None:
            raise self._unknown()
        return self._to(owner, parsed)

    def _notify(self, parsed: dict[str, Any], content: Content) -> None:
        from apprise import Apprise, NotifyFormat

        with _without_words():
            plugin = Apprise.instantiate(parsed)
            if plugin is None:
                raise self._unknown()
            if not plugin.notify(title=content.subject, body=content.text, body_format=NotifyFormat.TEXT):
                raise SendError("it was not accepted")

    def _unknown(self) -> SendError:
        return SendError(f"address {self._target.url_file}: is none that Apprise knows")

    def _to(self, owner: str, parsed: dict[str, Any]) -> dict[str, Any]:
        """The parsed address; of mail, with whom it goes to, and that nobody's absence is answered to us."""
        domains = self._target.owner_domains
        if parsed["schema"] not in _MAIL:
            if domains:
                raise SendError("ownerDomains is of mail only, whose address begins with mailto:// or mailtos://")
            return parsed
        targets = [owner] if is_of_domain(owner, domains) else parsed["targets"]
        if not targets:  # Apprise would write to the sender
            raise SendError(f"owner {owner!r} has no address that may be written to, and the mail's address has no to=")
        return parsed | {"targets": targets, "headers": {"Auto-Submitted": "auto-generated"} | parsed["headers"]}


@contextmanager
def _without_words() -> Iterator[None]:
    """Errors of a hundred plugins, whose words may quote the address, by their type alone."""
    try:
        yield
    except SendError:
        raise
    except Exception as error:
        raise SendError(f"Apprise failed: {type(error).__name__}") from None


def is_of_domain(owner: str, domains: Collection[str]) -> bool:
    """Whether the owner is a mail address of one of these domains."""
    domain = owner.rpartition("@")[2].lower()
    return bool(_ADDRESS.fullmatch(owner)) and domain in {each.lower() for each in domains}
