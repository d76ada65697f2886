"""What receivers get: real HTTP, real SMTP."""

import base64
import hashlib
import hmac
import io
import json
import re
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import trustme
from builders import NOON
from http_stub import HttpStub, Received, Reply, Wire
from PIL import Image
from smtp_stub import SmtpStub

from scaler.notifications.evidence import Evidence, SignalPicture
from scaler.notifications.senders import Content, TargetConfig, TargetKind, sender_of
from scaler.webhook import SendError

SECOND = timedelta(seconds=1)
SECRET = "xoxb-secret"
THREADS = ThreadPoolExecutor(2)


def content(*, owner: str = "team-a") -> Content:
    return Content(id="id-1", owner=owner, subject="[idle GPUs] Deployment demo/ß", text="▁▁█\n", json={"id": "id-1"})


def target(tmp_path: Path, kind: TargetKind, url: str, **more: Any) -> TargetConfig:
    file = tmp_path / "url"
    file.write_text(url + "\n", encoding="utf-8")
    return TargetConfig(name="chat", kind=kind, url_file=file, **more)


def mail_target(tmp_path: Path, url: str, **more: Any) -> TargetConfig:
    given = {"sender": "Scaler <scaler@example.com>", "recipients": ("ops@example.com",), **more}
    return target(tmp_path, TargetKind.MAIL, url, **given)


async def send(config: TargetConfig, what: Content | None = None, within: timedelta = 5 * SECOND) -> None:
    await sender_of(config, THREADS, within).send(what or content(), NOON)


def hang(wire: Wire) -> None:
    wire.closing.wait(30)


# ----------------------------------------------------------------------------------------------------------------- HTTP


async def test_a_webhook_is_signed_and_has_an_idempotency_key(tmp_path: Path) -> None:
    key, token = tmp_path / "key", tmp_path / "token"
    key.write_text("k1\n")
    token.write_text("t1\n")
    with HttpStub(lambda _: Reply(b"")) as stub:
        config = target(tmp_path, TargetKind.WEBHOOK, stub.url + "/hook", key_file=key, token_file=token)
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
            await send(target(tmp_path, TargetKind.WEBHOOK, stub.url))
        assert len(stub.received) == 1
    assert raised.value.retry_after == timedelta(minutes=2)


async def test_a_receiver_that_hangs_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(hang)) as stub, pytest.raises(SendError, match="cannot be reached: TimeoutError"):
        await send(target(tmp_path, TargetKind.WEBHOOK, stub.url), within=0.3 * SECOND)


@pytest.mark.parametrize(
    "url", [f"http://user:{SECRET}@127.0.0.1:1/{SECRET}", f"nonsense {SECRET}", f"http://[{SECRET}"]
)
@pytest.mark.parametrize("kind", [TargetKind.WEBHOOK, TargetKind.MAIL, TargetKind.APPRISE])
async def test_no_error_has_a_secret(tmp_path: Path, url: str, kind: TargetKind) -> None:
    config = mail_target(tmp_path, url) if kind is TargetKind.MAIL else target(tmp_path, kind, url)
    with pytest.raises(SendError) as raised:
        await send(config)
    assert SECRET not in str(raised.value)


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = target(tmp_path, TargetKind.WEBHOOK, "")
    with pytest.raises(SendError, match=r"address .*/url: it is empty"):
        await send(config)
    config.url_file.unlink()
    with pytest.raises(SendError, match=r"address .*/url: No such file"):
        await send(config)


# ----------------------------------------------------------------------------------------------------------------- mail


async def test_a_mail_has_the_id_and_is_no_occasion_for_an_answer(tmp_path: Path) -> None:
    with SmtpStub() as stub:
        await send(mail_target(tmp_path, stub.url))
    (mail,) = stub.mails
    assert mail["Message-ID"] == "<id-1@example.com>"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Subject"] == "[idle GPUs] Deployment demo/ß"
    assert mail.get_content().splitlines() == ["▁▁█"]
    assert stub.recipients == [["ops@example.com"]]


QUIET = SignalPicture(
    name="gr_engine_active", begin=NOON - timedelta(hours=2), end=NOON, floor_ratio=0.01, peaks=(0.6, None, 0.0, 0.0)
)
SHOWN = Evidence(workload="Deployment demo/<b>ß</b>", signals=(QUIET,), suspend_at=NOON + timedelta(minutes=30))
KEEP = "https://gpus.example.com/answer/keep/a.b-c"


def with_evidence(evidence: Evidence = SHOWN) -> Content:
    text = f"Deployment demo/<b>ß</b>\n{SHOWN.text}\n  to keep it: {KEEP}\n  see https://elsewhere.example.com\n"
    return replace(content(), text=text, evidence=(evidence,), links=(KEEP,))


async def test_a_mail_has_the_picture_inline_and_all_of_it_as_text(tmp_path: Path) -> None:
    with SmtpStub() as stub:
        await send(mail_target(tmp_path, stub.url), with_evidence())
    (mail,) = stub.mails
    kinds = [each.get_content_type() for each in mail.walk()]
    assert kinds == ["multipart/alternative", "text/plain", "multipart/related", "text/html", "image/png"]
    plain, page, picture = (each for each in mail.walk() if not each.is_multipart())
    assert plain.get_content().splitlines() == with_evidence().text.splitlines()
    shown = page.get_content()
    assert f'src="cid:{picture["Content-ID"][1:-1]}"' in shown
    assert 'alt="Deployment demo/&lt;b&gt;ß&lt;/b&gt;: gr_engine_active: peak 60 %, floor 1 %"' in shown
    assert Image.open(io.BytesIO(picture.get_content())).format == "PNG"
    assert f'<a href="{KEEP}">{KEEP}</a>' in shown
    assert "▁" not in shown, "in place of the bars"
    assert picture.get_content_disposition() == "inline"


async def test_of_a_mail_nothing_is_loaded_and_only_our_links_lead_anywhere(tmp_path: Path) -> None:
    with SmtpStub() as stub:
        await send(mail_target(tmp_path, stub.url), with_evidence())
    page = stub.mails[0].get_body(("html",))
    assert page is not None
    shown = page.get_content()
    addresses = re.findall(r'(?:src|href|action|url)="([^"]+)"', shown)
    assert [each.partition(":")[0] for each in addresses] == ["cid", "https"]
    assert addresses[1] == KEEP
    assert {*re.findall(r"<(\w+)", shown)} == {"html", "head", "meta", "body", "div", "img", "a"}
    assert "<b>" not in shown


async def test_without_a_picture_the_mail_is_sent_as_text(tmp_path: Path) -> None:
    cannot_be_drawn = replace(SHOWN, signals=(replace(QUIET, peaks=()),))
    with SmtpStub() as stub:
        await send(mail_target(tmp_path, stub.url), with_evidence(cannot_be_drawn))
    assert stub.mails[0].get_content_type() == "text/plain"
    assert stub.mails[0].get_content().splitlines() == with_evidence().text.splitlines()


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
        await send(mail_target(tmp_path, stub.url, recipients=(), owner_domains=("example.com",)))


@pytest.mark.parametrize("answer", ["451 try later", "550 no"])
async def test_a_refused_mail_is_an_error(tmp_path: Path, answer: str) -> None:
    def refuse(_: EmailMessage) -> str:
        return answer

    with SmtpStub(refuse) as stub, pytest.raises(SendError, match=answer[:3]):
        await send(mail_target(tmp_path, stub.url))
    assert stub.mails == []


AUTHORITY = trustme.CA()


def server_context(*names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(*names).configure_cert(context)
    return context


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    file = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(str(file))
    return file


@pytest.mark.parametrize("how", ["tls", "starttls"])
async def test_a_mail_goes_over_tls_to_a_server_that_its_authority_has_signed(
    tmp_path: Path, ca_file: Path, how: str
) -> None:
    """Also the password, in which special characters are escaped."""
    with SmtpStub(password="p@ss/w:rd%", **{how: server_context("localhost")}) as stub:
        await send(mail_target(tmp_path, stub.url, ca_file=ca_file))
    assert [mail["Message-ID"] for mail in stub.mails] == ["<id-1@example.com>"]
    assert stub.log_ins == ["p@ss/w:rd%"]


@pytest.mark.parametrize("how", ["tls", "starttls"])
@pytest.mark.parametrize(("name", "knows_authority"), [("elsewhere.example.com", True), ("localhost", False)])
async def test_a_server_that_cannot_prove_who_it_is_gets_nothing(
    tmp_path: Path, ca_file: Path, how: str, name: str, knows_authority: bool
) -> None:
    trusted = ca_file if knows_authority else None
    stub = SmtpStub(password="secret", **{how: server_context(name)})
    with stub, pytest.raises(SendError, match="SSLCertVerificationError"):
        await send(mail_target(tmp_path, stub.url, ca_file=trusted))
    assert (stub.mails, stub.log_ins) == ([], [])


@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
async def test_a_server_without_tls_is_not_used_in_clear(tmp_path: Path, ca_file: Path, scheme: str) -> None:
    with SmtpStub(password="secret") as stub, pytest.raises(SendError, match=r"SSLError|SMTPNotSupportedError"):
        await send(mail_target(tmp_path, stub.url.replace("smtp:", f"{scheme}:"), ca_file=ca_file))
    assert (stub.mails, stub.log_ins) == ([], [])


async def test_a_wrong_password_is_an_error_without_it(tmp_path: Path, ca_file: Path) -> None:
    stub = SmtpStub(password="right", starttls=server_context("localhost"))
    with stub, pytest.raises(SendError, match="535") as error:
        await send(mail_target(tmp_path, stub.url.replace("right", "wrong"), ca_file=ca_file))
    assert stub.mails == []
    assert "wrong" not in str(error.value)


# -------------------------------------------------------------------------------------------------------------- Apprise


async def test_apprise_tells_a_receiver(tmp_path: Path) -> None:
    statuses = iter([200, 500])

    def answer(_: Received) -> Reply:
        return Reply(b"", next(statuses))

    with HttpStub(answer) as stub:
        config = target(tmp_path, TargetKind.APPRISE, stub.url.replace("http://", "json://"))
        await send(config)
        with pytest.raises(SendError, match="not accepted"):
            await send(config)
    body = json.loads(stub.received[0].body)
    assert body["title"] == "[idle GPUs] Deployment demo/ß"
    assert body["message"].strip() == "▁▁█"
    assert body["attachments"] == []


async def test_apprise_attaches_the_picture_where_the_service_takes_one(tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(b"")) as stub:
        await send(target(tmp_path, TargetKind.APPRISE, stub.url.replace("http://", "json://")), with_evidence())
        await send(
            target(tmp_path, TargetKind.APPRISE, stub.url.replace("http://", "mmost://") + "/token"), with_evidence()
        )
    taken, other = stub.received
    [attached] = json.loads(taken.body)["attachments"]
    assert attached["mimetype"] == "image/png"
    assert Image.open(io.BytesIO(base64.b64decode(attached["base64"]))).format == "PNG"
    assert KEEP in other.body.decode(), "told all the same"
