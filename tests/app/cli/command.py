"""The command line in this process: `idle-gpu-scaler` with some arguments, and what became of it."""

import asyncio
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO
from unittest.mock import patch

import structlog
from rich.console import Console, RenderableType

from scaler.app.cli.main import main


class _OfThisThread(io.StringIO):
    """What the thread that made it writes; what others write goes where it went before."""

    def __init__(self, others: TextIO) -> None:
        super().__init__()
        self._thread, self._others = threading.get_ident(), others

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._thread else self._others.write(text)


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert (self.status, self.err) in {(0, ""), (1, "")}, self
        return json.loads(self.out)


def command(*arguments: str) -> Done:
    """Runs to its end."""
    out, err = io.StringIO(), _OfThisThread(sys.stderr)
    status: int | str | None = 0
    with (
        _logging_as_before(),
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", ["idle-gpu-scaler", *arguments]),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    return Done(status=int(status or 0), out=out.getvalue(), err=err.getvalue())


def printed(renderable: RenderableType, width: int = 120) -> str:
    """On a terminal that is so wide."""
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


async def command_beside(*arguments: str) -> Done:
    """In a thread, where what it queries runs in this event loop."""
    return await asyncio.to_thread(command, *arguments)


@contextmanager
def _logging_as_before() -> Iterator[None]:
    """Verbs that compute by themselves set up logging for the whole process."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level = [*root.handlers], root.level
    try:
        yield
    finally:
        structlog.configure(**configuration)
        root.handlers[:] = handlers
        root.setLevel(level)
