"""Nothing that is written into an object controls the reader's terminal."""

import pytest
from app.cli.command import command
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.layout import labelled_rows, sanitized, terminal


def printed(*renderables: RenderableType) -> str:
    console = terminal()
    with console.capture() as told:
        console.print(Group(*renderables))
    return told.get()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        pytest.param("a\x1b[2Kb:9090", "a␛[2Kb:9090", id="a line is not wiped"),
        pytest.param("\x1b]0;root\x07", "␛]0;root␇", id="a window is not renamed"),
        pytest.param("ok\rfail", "ok␍fail", id="nothing is written over"),
        pytest.param("a\x9b31m", "a\N{REPLACEMENT CHARACTER}31m", id="the codes above 127"),
        pytest.param("a\N{RIGHT-TO-LEFT OVERRIDE}b", "a\N{REPLACEMENT CHARACTER}b", id="nothing reads backwards"),
        pytest.param("größer, 日本, 100 %", "größer, 日本, 100 %", id="words of any language stay"),
        pytest.param("two\nlines\tand a tab", "two\nlines\tand a tab", id="and so do lines"),
    ],
)
def test_what_a_terminal_would_obey_is_seen(written: str, shown: str) -> None:
    assert sanitized(written) == shown


@given(st.text())
def test_whatever_is_written_into_an_object_is_text_in_the_end(text: str) -> None:
    told = printed(labelled_rows([("address", Text(text)), ("message", text)]), Text(text, style="red"))
    assert not {each for each in told if each < " "} - {"\n"}
    assert "\x9b" not in told


def test_what_looks_like_markup_or_an_emoji_is_text() -> None:
    """It is a selector, a pattern, or a label."""
    assert "'[/red]' [bold] :warning:" in printed(labelled_rows([("message", "'[/red]' [bold] :warning:")]))


def test_colours_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[31ma␛b\x1b[0m" in printed(Text("a\x1bb", style="red"))


def test_an_error_is_text_too() -> None:
    told = command("plan", "vision/\x1b[2Kgang", "--server", "nowhere")
    assert told.status == 2
    assert "\x1b" not in told.err
    assert "nowhere" in told.err
