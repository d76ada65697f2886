"""How answers are laid out on a terminal: labels beside sentences, numbers in columns, names never cut off.

What other clients have written is shown as text, whatever it is: a trigger's metadata or a message of a condition may
hold any character, and a terminal obeys some of them: `a\x1b[2Kb` is shown as `a␛[2Kb`.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

REASONS = {
    "Planned": "green",
    "PlanUnderWay": "green",
    "UnderWay": "green",
    "FitsAlready": "green",
    "Queued": "green",
    "NeverFits": "red",
    "QueueStopped": "red",
    "Evicted": "magenta",
    "WaitingForAdmissionChecks": "cyan",
}
"""Colours of reasons; what is not among them is a reason to wait."""
WAITS = "yellow"

Row = tuple[str, RenderableType | str]


def labelled_rows(rows: Sequence[Row], *, indent: int = 0) -> RenderableType:
    """A label and what is to be said, line by line; long sentences go on below themselves."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label, style="dim"), value)
    return Padding(grid, (0, 0, 0, indent))


def reason_text(name: str, message: str = "") -> Text:
    """`Reason  message`, the reason in its colour."""
    return Text.assemble((name, f"bold {REASONS.get(name, WAITS)}"), f"  {message}" if message else "")


Cells = Sequence[str | Text]

_SENTENCE = 26
"""Columns that a sentence needs to be readable."""


def table_or_list(
    headings: Sequence[str], rows: Sequence[Cells], width: int, *, words: Sequence[int] = (0,), prose: bool = False
) -> RenderableType:
    """A table where there is room for one; else every row as lines of its own, each value with its heading.

    Columns are numbers, aligned right, but for those of `words`. With `prose` the last one is a sentence, and folds.
    """
    if _width_of(headings, rows, prose=prose) <= width:
        return _table(headings, rows, words)
    return Group(*(_stacked(headings, row) for row in rows))


def _table(headings: Sequence[str], rows: Sequence[Cells], words: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    last = len(headings) - 1
    for place, heading in enumerate(headings):
        justify: Literal["left", "right"] = "left" if place in words else "right"
        table.add_column(heading, justify=justify, no_wrap=place != last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _width_of(headings: Sequence[str], rows: Sequence[Cells], *, prose: bool) -> int:
    widths = [max(Text.assemble(cell).cell_len for cell in column) for column in zip(headings, *rows, strict=True)]
    if prose:
        widths[-1] = min(widths[-1], _SENTENCE)
    return sum(widths) + 2 * (len(widths) - 1)


def _stacked(headings: Sequence[str], row: Cells) -> RenderableType:
    """The first value is a title; what is empty is left out."""
    first, *rest = row
    values = [(heading.lower(), value) for heading, value in zip(headings[1:], rest, strict=True) if str(value)]
    return Group(first, labelled_rows(values, indent=2))


def count(amount: int, word: str) -> str:
    """`1 gang`, `2 gangs`."""
    return f"{amount} {word}" if amount == 1 else f"{amount} {word}s"


def in_hours(amount: float) -> str:
    """GPU-hours, with a decimal where there are few."""
    return f"{amount:,.1f}" if amount < 10 else f"{amount:,.0f}"


def in_seconds(instant: str | None) -> str:
    """An instant of an answer in whole seconds; `-` where there is none."""
    return f"{datetime.fromisoformat(instant).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if instant else "-"


def number_text(value: Any) -> str:
    """A number as short as it can be written."""
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------------------------------------------- a terminal

_WIDTH_OF_PIPES = 160
_PICTURES = 0x2400
"""The place in Unicode of pictures of the first 32 characters, in their order."""


def terminal(*, is_error: bool = False) -> Console:
    """A console for answers. What goes into a pipe is not folded to a terminal that is not there.

    No markup and no emojis: messages hold selectors and patterns, with brackets and colons of their own.
    """
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _WIDTH_OF_PIPES if is_piped and not is_error else None
    return _SanitizingConsole(markup=False, emoji=False, highlight=False, width=width, stderr=is_error)


def show(render: Callable[[int], RenderableType]) -> None:
    """Print what is rendered for a width."""
    console = terminal()
    print(_text(console, render(console.width)))  # noqa: T201 (the program's output)


def print_json(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer, indent=2))  # noqa: T201 (the program's output)


def plain_text(renderable: RenderableType, width: int) -> str:
    """The text that a terminal of that width would show, without colours."""
    console = _SanitizingConsole(markup=False, emoji=False, highlight=False, width=width, color_system=None)
    return _text(console, renderable)


def _text(console: Console, renderable: RenderableType) -> str:
    """What the console would print. Tables pad their lines with spaces, which would be copied along."""
    with console.capture() as printed:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in printed.get().rstrip().splitlines())


def sanitized(text: str) -> str:
    """The text with what a terminal would obey, or read in another direction, made visible."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp"):
        return character
    return chr(_PICTURES + ord(character)) if ord(character) < ord(" ") else "\N{REPLACEMENT CHARACTER}"


class _SanitizingConsole(Console):
    """Disarms every segment but its own control codes: colours are added to segments when they are written."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(sanitized(segment.text), segment.style)
