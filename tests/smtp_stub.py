"""A real SMTP server for tests: it remembers mails, and answers as it is told.

with SmtpStub() as stub:
    stub.url      # mailto://localhost:41235/? for Apprise, which more parameters follow
    stub.mails    # every mail that was accepted, in order

`tls` makes it serve TLS only, `starttls` lets clients turn it on and takes nothing before that.
"""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self
from urllib.parse import quote

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from prometheus_server import free_port


@dataclass
class SmtpStub:
    answer: Callable[[EmailMessage], str] = lambda _: "250 OK"
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    """As the envelopes have them."""
    tls: ssl.SSLContext | None = None
    starttls: ssl.SSLContext | None = None
    password: str = ""
    """Of user `scaler`, who has to log in then."""
    log_ins: list[str] = field(default_factory=list)
    """Passwords that were tried."""

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

    def _authenticate(self, *given: Any) -> AuthResult:
        login: LoginPassword = given[-1]
        self.log_ins.append(login.password.decode())
        is_right = (login.login, login.password) == (b"scaler", self.password.encode())
        return AuthResult(success=is_right, handled=False)

    def __enter__(self) -> Self:
        more: dict[str, Any] = {"tls_context": self.starttls, "require_starttls": True} if self.starttls else {}
        if self.password:
            more |= {
                "auth_required": True,
                "authenticator": self._authenticate,
                "auth_require_tls": bool(self.starttls),
            }
        self._controller = _Controller(
            self, hostname="127.0.0.1", port=free_port(), ssl_context=self.tls, server_hostname="stub", **more
        )  # type: ignore[no-untyped-call]
        self._controller.start()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()  # type: ignore[no-untyped-call]

    @property
    def url(self) -> str:
        scheme = "mailtos" if self.tls or self.starttls else "mailto"
        user = f"scaler:{quote(self.password, safe='')}@" if self.password else ""
        return f"{scheme}://{user}localhost:{self._controller.port}/?{'mode=ssl&' if self.tls else ''}"


class _Controller(Controller):
    def _trigger_server(self) -> None:
        """As aiosmtpd does, which would use the server's own TLS context for that."""
        with socket.create_connection((self.hostname, self.port), 5) as client:
            if self.ssl_context is not None:
                client = _UNVERIFIED.wrap_socket(client)
            client.recv(1)


_UNVERIFIED = ssl.create_default_context()
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE
