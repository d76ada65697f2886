"""What the README shows of the program itself: what `--help` prints, and the permissions that its account needs.

`uv run python tests/readme_help.py` writes it anew.
"""

import os
import subprocess
import sys
from pathlib import Path

from marked_page import MarkedPage

from scaler.loops.diagnosis import permissions

VERBS = ("", "demo", "run", "explain", "plan", "pending", "queues", "doctor", "version")


def help_of(verb: str) -> str:
    """What `idle-gpu-scaler VERB --help` prints on a terminal of 100 columns."""
    command = [sys.executable, "-m", "scaler", *([verb] if verb else []), "--help"]
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    shown = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return shown.replace("python -m scaler", "idle-gpu-scaler")


def section() -> str:
    """The section between the marks."""
    blocks = (f"```\n$ idle-gpu-scaler {verb + ' ' if verb else ''}--help\n{help_of(verb)}\n```\n" for verb in VERBS)
    return "\n".join(blocks)


README = MarkedPage(
    path=Path(__file__).parent.parent / "README.md", sections={"help": section, "permissions": permissions.table}
)


if __name__ == "__main__":
    README.rewrite()
