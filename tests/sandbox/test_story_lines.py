"""How wide a terminal is or is not: no word of the demo's story is broken."""

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from scaler_sandbox.stories.facts import News, StoryEntry
from scaler_sandbox.timeline import FIRST_ACT, PlainTimeline, folded

WAITING = (
    "couldn't assign flavors to pod set head: insufficient unused quota for nvidia.com/gpu in flavor default-flavor, "
    "1 more needed; annotation idlegpu.io/wake on ScalableWorkload first-raycluster"
)
WORDS = st.lists(st.text("abcdefgh-/.", min_size=1, max_size=30), max_size=20)


@example(words=["a", "a" * 27], width=45, begin=19)
@example(words=["a" * 27], width=45, begin=19)
@given(words=WORDS, width=st.integers(45, 160), begin=st.integers(0, 44))
def test_a_folded_message_has_its_words_whole_and_in_order_and_fits(words: list[str], width: int, begin: int) -> None:
    text = folded(" ".join(words), width, begin=begin)
    assert text.split() == words
    first, *others = text.split("\n")
    assert begin + len(first) <= width
    assert all(len(line) <= width and line.startswith(" " * min(begin, 8)) for line in others)


@pytest.mark.parametrize("columns", [60, 80, 120, None])
def test_the_story_breaks_no_word(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    told = io.StringIO()
    timeline = PlainTimeline(Console(file=told))
    timeline._console.print(FIRST_ACT, soft_wrap=timeline._is_piped)
    timeline.tell(StoryEntry(t=2.9, news=News("Waiting", "RayCluster/second-raycluster", "", WAITING)))
    lines = told.getvalue().splitlines()
    assert {*f"{FIRST_ACT} {WAITING}".split()} <= {*told.getvalue().split()}
    assert all(len(line) <= columns for line in lines) if columns else lines[-1].endswith(WAITING)
