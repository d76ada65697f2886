"""What receivers get: real HTTP, real SMTP."""

import hashlib
import hmac
import json
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme
from builders import NOON
from http_stub import HttpStub, Received, Reply, Wire
from smtp_stub import SmtpStub

from scaler.app.settings.load import load
from scaler.app.targets import configured_notifications
from scaler.notifications import targets
from scaler.notifications.senders import Content, TargetConfig, target_kind
from scaler.webhook import SendError

SECOND = timedelta(seconds=1)
SECRET = "xoxb-secret"
THREADS = ThreadPoolExecutor(2)


def content(*, owner: str = "team-a") -> Content:
    subject, text = "[idle GPUs] Deployment demo/ß", "▁▁█\n  <b>\n"
    return Content(id="id-1", owner=owner, subject=subject, text=text, json={"id": "id-1"})


def target(tmp_path: Path, kind: str, url: str, **more: Any) -> TargetConfig:
    file = tmp_path / "url"
    file.write_text(url + "\n", encoding="utf-8")
    return TargetConfig(name="chat", kind=kind, url_file=file, **more)


def mail_target(tmp_path: Path, url: str, *, to: str = "&to=ops@example.com", **more: Any) -> TargetConfig:
    return target(tmp_path, "apprise", f"{url}from={quote('Scaler <scaler@example.com>')}{to}", **more)


async def send(config: TargetConfig, what: Content | None = None, within: timedelta = 20 * SECOND) -> None:
    await target_kind(config.kind).sender(config, THREADS, within).send(what or content(), NOON)


def hang(wire: Wire) -> None:
    wire.closing.wait(30)


# ----------------------------------------------------------------------------------------------------------------- HTTP


async def test_a_webhook_is_signed_and_has_an_idempotency_key(tmp_path: Path) -> None:
    key, token = tmp_path / "key", tmp_path / "token"
    key.write_text("k1\n")
    token.write_text("t1\n")
    with HttpStub(lambda _: Reply(b"")) as stub:
        config = target(tmp_path, "webhook", stub.url + "/hook", key_file=key, token_file=token)
        await send(config)
        key.write_text("k2")  # a new key is used at once
        await send(config)
    for request, secret in zip(stub.received, ("k1", "k2"), strict=True):
        assert (request.method, request.path) == ("POST", "/hook")
        assert request.headers["Idempotency-Key"] == "id-1"
        assert request.headers["Authorization"] == "Bearer t1"
        time, _, signature = request.headers["Idlegpu-Signature"].partition(",v1=")
        assert time == f"t={int(NOON.timestamp())}"
        signed = time.removeprefix("t=").encode() + b"." + request.body
        assert hmac.compare_digest(signature, hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest())
        assert json.loads(request.body) == {"id": "id-1"}


@pytest.mark.parametrize("status", [301, 400, 401, 429, 500, 503])
async def test_only_2xx_is_accepted(tmp_path: Path, status: int) -> None:
    with HttpStub(lambda _: Reply(b"", status, {"Retry-After": "120", "Location": "/elsewhere"})) as stub:
        with pytest.raises(SendError, match=str(status)) as raised:
            await send(target(tmp_path, "webhook", stub.url))
        assert len(stub.received) == 1
    assert raised.value.retry_after == timedelta(minutes=2)


async def test_a_receiver_that_hangs_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(hang)) as stub, pytest.raises(SendError, match="cannot be reached: TimeoutError"):
        await send(target(tmp_path, "webhook", stub.url), within=0.3 * SECOND)


@pytest.mark.parametrize(
    "url", [f"http://user:{SECRET}@127.0.0.1:1/{SECRET}", f"nonsense {SECRET}", f"http://[{SECRET}"]
)
@pytest.mark.parametrize("kind", ["webhook", "apprise"])
async def test_no_error_has_a_secret(tmp_path: Path, url: str, kind: str) -> None:
    with pytest.raises(SendError) as raised:
        await send(target(tmp_path, kind, url))
    assert SECRET not in str(raised.value)


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = target(tmp_path, "webhook", "")
    with pytest.raises(SendError, match=r"address .*/url: it is empty"):
        await send(config)
    config.url_file.unlink()
    with pytest.raises(SendError, match=r"address .*/url: No such file"):
        await send(config)


# ----------------------------------------------------------------------------------------------------------------- mail


async def test_a_mail_is_text_and_no_occasion_for_an_answer(tmp_path: Path) -> None:
    with SmtpStub() as stub:
        await send(mail_target(tmp_path, stub.url))
    (mail,) = stub.mails
    assert mail["From"] == "Scaler <scaler@example.com>"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Subject"] == "[idle GPUs] Deployment demo/ß"
    assert mail.get_content_type() == "text/plain"
    assert mail.get_content().splitlines() == ["▁▁█", "  <b>"]
    assert stub.recipients == [["ops@example.com"]]


@pytest.mark.parametrize(
    ("owner", "recipient"),
    [
        ("ada@example.com", "ada@example.com"),
        ("ada@EXAMPLE.com", "ada@EXAMPLE.com"),
        ("ada@elsewhere.org", "ops@example.com"),
        ("ada@sub.example.com", "ops@example.com"),
        ("ada@elsewhere.org@example.com", "ops@example.com"),
        ("team-a", "ops@example.com"),
        ("@example.com", "ops@example.com"),
        ("all:ada@example.com", "ops@example.com"),
        ("ada@example.com@example.com", "ops@example.com"),
        ("ada lovelace@example.com", "ops@example.com"),
    ],
)
async def test_only_owners_of_allowed_domains_are_written_to(tmp_path: Path, owner: str, recipient: str) -> None:
    with SmtpStub() as stub:
        await send(mail_target(tmp_path, stub.url, owner_domains=("example.com",)), content(owner=owner))
    assert stub.recipients == [[recipient]]


async def test_an_owner_without_an_address_is_an_error_where_nobody_else_is_named(tmp_path: Path) -> None:
    with SmtpStub() as stub, pytest.raises(SendError, match="no address that may be written to"):
        await send(mail_target(tmp_path, stub.url, to="", owner_domains=("example.com",)))


@pytest.mark.parametrize("answer", ["451 try later", "550 no"])
async def test_a_refused_mail_is_an_error(tmp_path: Path, answer: str) -> None:
    def refuse(_: EmailMessage) -> str:
        return answer

    with SmtpStub(refuse) as stub, pytest.raises(SendError, match="not accepted"):
        await send(mail_target(tmp_path, stub.url))
    assert stub.mails == []


AUTHORITY = trustme.CA()


def server_context(*names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(*names).configure_cert(context)
    return context


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority is one of the system's."""
    file = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("how", ["tls", "starttls"])
async def test_a_mail_goes_over_tls_to_a_server_that_the_systems_authorities_have_signed(
    tmp_path: Path, how: str
) -> None:
    """Also the password, in which special characters are escaped."""
    with SmtpStub(password="p@ss/w:rd%", **{how: server_context("localhost")}) as stub:
        await send(mail_target(tmp_path, stub.url))
    assert stub.recipients == [["ops@example.com"]]
    assert stub.log_ins == ["p@ss/w:rd%"]


@pytest.mark.parametrize("how", ["tls", "starttls"])
@pytest.mark.parametrize(("name", "knows_authority"), [("elsewhere.example.com", True), ("localhost", False)])
async def test_a_server_that_cannot_prove_who_it_is_gets_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, how: str, name: str, knows_authority: bool
) -> None:
    if knows_authority:
        request.getfixturevalue("trusted")
    stub = SmtpStub(password="secret", **{how: server_context(name)})
    with stub, pytest.raises(SendError, match="not accepted"):
        await send(mail_target(tmp_path, stub.url))
    assert (stub.mails, stub.log_ins) == ([], [])


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("mode", ["ssl", "starttls"])
async def test_a_server_without_tls_is_not_used_in_clear(tmp_path: Path, mode: str) -> None:
    with SmtpStub(password="secret") as stub:
        config = mail_target(tmp_path, f"{stub.url.replace('mailto:', 'mailtos:')}mode={mode}&")
        with pytest.raises(SendError, match="not accepted"):
            await send(config)
    assert (stub.mails, stub.log_ins) == ([], [])


# -------------------------------------------------------------------------------------------------------------- Apprise


async def test_apprise_tells_a_receiver(tmp_path: Path) -> None:
    statuses = iter([200, 500])

    def answer(_: Received) -> Reply:
        return Reply(b"", next(statuses))

    with HttpStub(answer) as stub:
        config = target(tmp_path, "apprise", stub.url.replace("http://", "json://"))
        await send(config)
        with pytest.raises(SendError, match="not accepted"):
            await send(config)
    body = json.loads(stub.received[0].body)
    assert body["title"] == "[idle GPUs] Deployment demo/ß"
    assert body["message"].splitlines() == ["▁▁█", "  <b>"]
    assert body["attachments"] == []


async def test_domains_of_owners_are_of_mail_only(tmp_path: Path) -> None:
    with pytest.raises(SendError, match="ownerDomains is of mail only"):
        await send(target(tmp_path, "apprise", "json://localhost", owner_domains=("example.com",)))


async def test_an_apprise_target_that_hangs_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(hang)) as stub, pytest.raises(SendError, match=r"no answer within 0\.3 s"):
        await send(target(tmp_path, "apprise", stub.url.replace("http://", "json://")), within=0.3 * SECOND)


# ------------------------------------------------------------------------------------------------------- another kind

PRINTER = """
TAKES = frozenset({"token_file"})


def sender(target, threads, timeout):
    return Printer(target)


class Printer:
    def __init__(self, target):
        self._target = target

    async def send(self, content, now):
        self._target.url_file.write_text(f"{content.owner}: {content.text}", encoding="utf-8")
"""


async def test_a_new_kind_of_target_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "printer.py").write_text(PRINTER)
    monkeypatch.setattr(targets, "__path__", [*targets.__path__, str(tmp_path)])
    paper = tmp_path / "paper"
    given = {"name": "office", "kind": "printer", "urlFile": str(paper), "tokenFile": "/t"}
    flags = {"prometheus": {"url": "http://p:9090"}, "notifications": {"targets": [given]}}
    try:
        made = configured_notifications(load(None, environ={}, flags=flags).notifications)
        await made.senders["office"].send(content(), NOON)
    finally:
        sys.modules.pop(f"{targets.__name__}.printer", None)
    assert paper.read_text(encoding="utf-8") == "team-a: ▁▁█\n  <b>\n"
