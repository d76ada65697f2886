"""The README's command-line section is what `--help` prints. `uv run python tests/readme_help.py` writes it anew."""

import os
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- help -->\n", "<!-- /help -->\n"
VERBS = ("", "demo", "run", "explain", "plan", "pending", "queues", "version")


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


def current() -> str:
    text = README.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def rewrite() -> None:
    text = README.read_text(encoding="utf-8")
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    README.write_text(head + section() + tail, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
