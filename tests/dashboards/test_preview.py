"""The preview's command line says what is wrong in one sentence."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from http_stub import HttpStub, Reply

from dashboards import preview

Said = Callable[..., tuple[object, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Said:
    """The exit status of a command line, and what is on stderr."""

    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["preview", *arguments, "--out", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            preview.main()
        return ended.value.code, capsys.readouterr().err

    return run


def test_a_prometheus_that_does_not_answer_is_one_line(said: Said) -> None:
    with socket.socket() as taken:  # bound, and nothing listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, line = said("--prometheus", url)
    assert (status, line.count("\n")) == (1, 1)
    assert line.startswith(f"preview: {url} cannot be reached (")


def test_an_invalid_url_or_duration_is_refused_with_what_to_write(said: Said) -> None:
    refused = (1, "preview: prometheus:9090: write http://… or https://…\n")
    assert said("--prometheus", "prometheus:9090") == refused
    status, lines = said("--prometheus", "http://p", "--since", "half an hour")
    assert (status, "such as 30m" in lines) == (2, True)


@pytest.mark.parametrize(
    ("reply", "message"),
    [(Reply(b"not found", 404), "answers 404 "), (Reply(b"<html>"), "answers something that is no JSON")],
)
def test_another_server_is_no_prometheus(reply: Reply, message: str, said: Said) -> None:
    with HttpStub(lambda _: reply) as stub:
        status, line = said("--prometheus", stub.url)
    assert status == 1
    assert message in line
    assert "is that the address of a Prometheus?" in line
