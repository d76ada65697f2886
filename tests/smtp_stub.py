"""A real SMTP server for tests: it remembers mails, and answers as it is told.

with SmtpStub() as stub:
    stub.url      # smtp://127.0.0.1:41235
    stub.mails    # every mail that was accepted, in order
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from prometheus_server import free_port


@dataclass
class SmtpStub:
    answer: Callable[[EmailMessage], str] = lambda _: "250 OK"
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    """As the envelopes have them."""

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:  # noqa: N802 - as aiosmtpd calls it
        content = envelope.content
        assert isinstance(content, bytes)
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        said = self.answer(mail)
        if said.startswith("2"):
            self.mails.append(mail)
            self.recipients.append(list(envelope.rcpt_tos))
        return said

    def __enter__(self) -> Self:
        self._controller = Controller(self, hostname="127.0.0.1", port=free_port())  # type: ignore[no-untyped-call]
        self._controller.start()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()  # type: ignore[no-untyped-call]

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self._controller.port}"
