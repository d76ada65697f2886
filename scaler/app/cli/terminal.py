"""Where people read: what others have written is shown there as text, whatever it is.

A trigger's metadata, a message of a condition or of an autoscaler may hold any character, and a terminal obeys some of
them: it would wipe the line before, call itself something else or write backwards.

    scalerAddress: "a\\x1b[2Kb:9090"   shown as   a␛[2Kb:9090
"""

import os
import sys
import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_WIDTH_OF_PIPES = 160
_PICTURES = 0x2400
"""Where Unicode has pictures of the first 32 characters, in their order."""


def terminal(*, is_error: bool = False) -> Console:
    """A console for answers. What goes into a pipe is not folded to a terminal that is not there.

    No markup and no emojis: messages hold selectors and patterns, with brackets and colons of their own.
    """
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _WIDTH_OF_PIPES if is_piped and not is_error else None
    return _SanitizingConsole(markup=False, emoji=False, highlight=False, width=width, stderr=is_error)


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
