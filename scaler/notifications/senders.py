"""How a target is told: an HTTP receiver, a mail server, or whatever Apprise has an address for.

Laws:

* The address and every secret stand in files, as those of a `webhook.Receiver`.
* A send ends within its timeout. It returns once the receiver has accepted the message, and raises otherwise.
* A message has an id that stays the same when it is sent again: `Idempotency-Key`, or `Message-ID` of a mail.
"""

import asyncio
import re
import smtplib
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from enum import StrEnum
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from scaler.notifications.drawing import drawn
from scaler.notifications.evidence import Evidence
from scaler.notifications.mail_body import fill
from scaler.webhook import Receiver, SendError, post_signed, secret_of

_MOST_ATTACHED = 4
"""Pictures of a message to a chat."""
_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+", re.ASCII)
_PORTS = {"smtp": 25, "smtps": 465, "smtp+starttls": 587}


class TargetKind(StrEnum):
    WEBHOOK = "webhook"
    MAIL = "mail"
    APPRISE = "apprise"
    ALERTMANAGER = "alertmanager"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig(Receiver):
    """One of the settings' targets. Only a webhook has a key, and only it and Alertmanager a token."""

    name: str
    kind: TargetKind
    sender: str = ""
    """Of mail: its From."""
    recipients: tuple[str, ...] = ()
    """Of mail: who gets what has no owner with an allowed address."""
    owner_domains: tuple[str, ...] = ()
    """Of mail: domains of owners' addresses that may be written to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A message as it is sent."""

    id: str
    owner: str
    subject: str
    text: str
    json: Mapping[str, object]
    evidence: tuple[Evidence, ...] = ()
    """Of which there may be pictures."""
    links: tuple[str, ...] = ()
    """Those in the text that are ours."""


class Sender(Protocol):
    async def send(self, content: Content, now: datetime) -> None:
        """Returns when it was accepted. Raises: SendError."""


def sender_of(target: TargetConfig, threads: Executor, timeout: timedelta) -> Sender:
    """Raises: KeyError for Alertmanager, which is told of states instead of messages."""
    match target.kind:
        case TargetKind.WEBHOOK:
            return Webhook(target, timeout)
        case TargetKind.MAIL:
            return Mail(target, threads, timeout)
        case TargetKind.APPRISE:
            return AppriseTarget(target, threads, timeout)
    raise KeyError(target.kind)


# ----------------------------------------------------------------------------------------------------------------- HTTP


class Webhook:
    def __init__(self, target: TargetConfig, timeout: timedelta) -> None:
        self._target = target
        self._timeout = timeout

    async def send(self, content: Content, now: datetime) -> None:
        body = msgspec.json.encode(content.json)
        await post_signed(self._target, body, content.id, self._timeout, now=now)


# ----------------------------------------------------------------------------------------------------------------- mail


class Mail:
    """Over SMTP: `smtp://`, `smtps://` or `smtp+starttls://`, with `user:password@` where the server asks for it."""

    def __init__(self, target: TargetConfig, threads: Executor, timeout: timedelta) -> None:
        self._target = target
        self._threads = threads
        self._timeout = timeout

    async def send(self, content: Content, now: datetime) -> None:
        mail = self._mail(content, now)
        await _in_thread(self._threads, self._timeout, lambda: self._hand_over(mail, content))

    def _mail(self, content: Content, now: datetime) -> EmailMessage:
        recipients = self.recipients_of(content.owner)
        if not recipients:
            raise SendError(f"owner {content.owner!r} has no address that may be written to, and `to` is empty")
        mail = EmailMessage()
        mail["From"] = self._target.sender
        mail["To"] = ", ".join(recipients)
        mail["Subject"] = content.subject
        mail["Date"] = format_datetime(now)
        mail["Message-ID"] = f"<{content.id}@{parseaddr(self._target.sender)[1].rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's absence is answered to us
        return mail

    def recipients_of(self, owner: str) -> tuple[str, ...]:
        """The owner, where the domain is allowed: tenants must not make us write to strangers."""
        domain = owner.rpartition("@")[2].lower()
        if _ADDRESS.fullmatch(owner) and domain in {each.lower() for each in self._target.owner_domains}:
            return (owner,)
        return self._target.recipients

    def _hand_over(self, mail: EmailMessage, content: Content) -> None:
        fill(mail, content.text, content.evidence, content.links)
        url, ca = secret_of(self._target.url_file, "address"), self._target.ca_file
        try:
            address = urlsplit(url)
            context = ssl.create_default_context(cafile=str(ca) if ca else None)
            host, port = address.hostname or "", address.port or _PORTS[address.scheme]
            seconds = self._timeout.total_seconds()
            with (
                smtplib.SMTP_SSL(host, port, timeout=seconds, context=context)
                if address.scheme == "smtps"
                else smtplib.SMTP(host, port, timeout=seconds)
            ) as server:
                if address.scheme == "smtp+starttls":
                    server.starttls(context=context)
                if address.username:
                    server.login(unquote(address.username), unquote(address.password or ""))
                server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            raise SendError(f"the mail server answers {error.smtp_code}") from None
        except smtplib.SMTPRecipientsRefused as error:
            codes = ", ".join(sorted({str(code) for code, _ in error.recipients.values()}))
            raise SendError(f"the mail server refuses the recipient ({codes})") from None
        except (smtplib.SMTPException, OSError, ValueError, KeyError) as error:
            raise SendError(f"the mail server cannot be used: {type(error).__name__}") from None


# -------------------------------------------------------------------------------------------------------------- Apprise


class AppriseTarget:
    """Slack, Teams and a hundred others, by their address. It says only whether it was accepted."""

    def __init__(self, target: TargetConfig, threads: Executor, timeout: timedelta) -> None:
        self._target = target
        self._threads = threads
        self._timeout = timeout

    async def send(self, content: Content, now: datetime) -> None:  # noqa: ARG002 - as the protocol has it
        await _in_thread(self._threads, self._timeout, lambda: self._notify(content))

    def _notify(self, content: Content) -> None:
        # Imported when the first such message is sent: it takes 25 MB.
        import apprise
        from apprise.attachment.memory import AttachMemory

        address = secret_of(self._target.url_file, "address")
        notifier = apprise.Apprise()
        if not notifier.add(address):
            raise SendError(f"address {self._target.url_file}: is none that Apprise knows")
        try:
            pictures = [
                AttachMemory(content=png, name=f"{number}.png", mimetype="image/png")  # type: ignore[no-untyped-call]
                for number, each in enumerate(content.evidence[:_MOST_ATTACHED], start=1)
                if (png := drawn(each)) is not None
            ]
            accepted = notifier.notify(
                title=content.subject, body=content.text, body_format=apprise.NotifyFormat.TEXT, attach=pictures or None
            )
        except Exception as error:  # of a hundred plugins; their words may quote the address
            raise SendError(f"Apprise failed: {type(error).__name__}") from None
        if not accepted:
            raise SendError("it was not accepted")


async def _in_thread(threads: Executor, within: timedelta, work: Callable[[], None]) -> None:
    """A thread cannot be stopped: after the timeout nobody waits for it any more. Raises: SendError."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            await asyncio.get_running_loop().run_in_executor(threads, work)
    except TimeoutError:
        raise SendError(f"no answer within {within.total_seconds():g} s") from None
