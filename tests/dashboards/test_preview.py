"""The preview's command line tells what is wrong in one sentence."""

import socket
import sys
from pathlib import Path

import pytest
from http_stub import HttpStub, Reply

from dashboards import preview


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """The exit status, and what is on stderr."""
    monkeypatch.setattr(sys, "argv", ["preview", *arguments])
    with pytest.raises(SystemExit) as ended:
        preview.main()
    return ended.value.code, capsys.readouterr().err


def test_a_prometheus_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket() as taken:  # bound, and nothing listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, line = said(monkeypatch, capsys, "--prometheus", url, "--out", str(tmp_path))
    assert status == 1
    assert line.startswith(f"preview: {url} cannot be reached (")
    assert line.count("\n") == 1


def test_an_invalid_url_or_duration_is_refused_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path))
    assert said(monkeypatch, capsys, "--prometheus", "prometheus:9090", *out) == (
        1,
        "preview: prometheus:9090: write http://… or https://…\n",
    )
    status, lines = said(monkeypatch, capsys, "--prometheus", "http://p", "--since", "half an hour", *out)
    assert status == 2
    assert "such as 30m" in lines


OTHERS = {
    "another server": (Reply(b"not found", 404), "answers 404 "),
    "a page for people": (Reply(b"<html>"), "answers something that is no JSON"),
}


@pytest.mark.parametrize(("reply", "message"), OTHERS.values(), ids=OTHERS)
def test_another_server_is_no_prometheus(
    reply: Reply, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with HttpStub(lambda _: reply) as stub:
        status, line = said(monkeypatch, capsys, "--prometheus", stub.url, "--out", str(tmp_path))
    assert status == 1
    assert message in line
    assert "is that the address of a Prometheus?" in line
