"""A situation from the field, played by its own runner, and what came of it.

The situations lie in `reports/` of the folder that SCALER_SHARED_DATA names (see `recordings`), each with a README that
says what is expected. Their runner starts the program against an embedded API, shows it an exporter's page, asks it as
KEDA does, and prints what it answers.

    played = play("14-mig-profiling-zero", tmp_path)
    played.last("demo/x").is_active     # True, False, or None where the answer is an error
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from recordings import SHARED

FOLDER = SHARED / "reports"
RUNNER = FOLDER / "run_case.py"
PROJECT = Path(__file__).resolve().parents[2]

LONGEST_RUN_S = 300.0
"""The longest situation takes 40 s, and a busy machine ten times as long to start it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One answer to KEDA, and the decision that HTTP showed with it."""

    target: str
    is_active: bool | None
    """None where the answer is an error."""
    error: str
    decision: Mapping[str, Any]

    @property
    def message(self) -> str:
        """The reason, and its words."""
        return f"{self.decision['reason']}: {self.decision['message']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    answers: Sequence[Asked]
    """In the order in which they were given."""
    commands: Mapping[str, str]
    """What the command line wrote, by verb."""
    pages: Mapping[str, str]
    """What was fetched, by path."""

    def last(self, target: str) -> Asked:
        return [each for each in self.answers if each.target == target][-1]

    def json(self, path: str) -> Any:
        return json.loads(self.pages[path])


class NotPlayedError(Exception):
    """The runner itself failed, which says nothing of the product."""


def play(name: str, variant: str, folder: Path, *, slower: int = 1) -> Played:
    """Play it in `folder`; `slower` by how many times as long everything has. Raises: NotPlayedError."""
    case = _slowed(FOLDER / name, folder / name, slower)
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(RUNNER), str(case), *([variant] if variant else [])]
    environ = {**os.environ, "REPO": str(PROJECT), "TMPDIR": str(folder)}
    with subprocess.Popen(
        command,
        cwd=PROJECT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=LONGEST_RUN_S * slower)
        except subprocess.TimeoutExpired:
            raise NotPlayedError(f"{name} has not ended within {LONGEST_RUN_S * slower:.0f} s") from None
        finally:
            # The program and a Prometheus are its children.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode or text.startswith("ENDED") or re.search(r"^!! ", text, re.MULTILINE):
        raise NotPlayedError(text[-3000:])
    return read(text)


def _slowed(case: Path, copy: Path, slower: int) -> Path:
    """The situation, or a copy of it whose steps come so many times as late."""
    if slower == 1:
        return case
    shutil.copytree(case, copy)
    path = copy / "case.yaml"
    document = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    document["wait"] *= slower
    for step in document.get("later", []):
        step["at"] *= slower
    path.write_text(yaml.safe_dump(document), "utf-8")
    return copy


# ----------------------------------------------------------------------------------------------- what the runner prints

_ASKED = re.compile(r"\[ *[\d.]+s\] (?P<target>\S+): IsActive(?:=(?P<active>True|False)| -> (?P<error>.*))")
_RAN = re.compile(r"\$ idle-gpu-scaler (?P<verb>\S+).* -> exit (?P<code>\S+)")
_FETCHED = re.compile(r"GET (?P<path>\S+) \d+ (?P<body>.*)")


def read(text: str) -> Played:
    """What was printed, apart. Each part goes on to the next line that begins one."""
    answers, commands, pages = [], dict[str, str](), dict[str, str]()
    for part in _parts(text):
        head, _, rest = part.partition("\n")
        if match := _ASKED.fullmatch(head):
            active = {"True": True, "False": False}.get(match["active"] or "")
            decision = json.loads(rest.splitlines()[0])
            answers.append(
                Asked(target=match["target"], is_active=active, error=match["error"] or "", decision=decision)
            )
        elif match := _RAN.fullmatch(head):
            commands[match["verb"]] = rest
        elif match := _FETCHED.fullmatch(head):
            pages[match["path"]] = f"{match['body']}\n{rest}".strip()
    return Played(answers=answers, commands=commands, pages=pages)


def _parts(text: str) -> Sequence[str]:
    begins = re.compile(r"^(?=\[ *[\d.]+s\] |\$ idle-gpu-scaler |GET |log:)", re.MULTILINE)
    return [part for part in begins.split(text) if part]
