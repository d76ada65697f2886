"""The command line in this process: `idle-gpu-scaler` with some arguments, and what became of it."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from scaler.app.cli.main import main


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    out: str
    err: str


def command(*arguments: str) -> Done:
    """Runs to its end. For verbs that set up logging use a process of its own: that is global and stays."""
    out, err = io.StringIO(), io.StringIO()
    status: int | str | None = 0
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["idle-gpu-scaler", *arguments]):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    return Done(status=int(status or 0), out=out.getvalue(), err=err.getvalue())
