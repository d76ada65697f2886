"""Brings what only tests need, the dependency group `tests`, before pytest reads its options, half of them plugins'.

`uv run` installs what a first look at the program needs, and pytest. Where a package of the group is missing, pytest is
run anew by `uv run --group tests`, which installs it and leaves what else is there. Without `uv run` nothing is
installed: an error says what to do.

It also keeps what Python compiles, whatever PYTHONDONTWRITEBYTECODE says: workers collect thousands of tests, some of
which start processes, and compiling all anew for each takes longer than most tests.
"""

import os
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
INSTALL = ["run", "--group", "tests", "pytest"]


def missing() -> list[str]:
    """Packages of the group that are not installed, whatever their version."""
    group = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["dependency-groups"]["tests"]
    return [name for each in group if not _is_installed(name := re.split(r"[\[<>=~!; ]", each)[0])]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def bring(packages: list[str], uv: str | None) -> None:
    """Does not return where one is missing. `uv`: the program of `uv run`, where that runs this."""
    if not packages:
        return
    if uv is None:
        sys.exit(f"Tests need {', '.join(packages)}: uv sync --inexact --group tests")
    print(f"Installing what only tests need: {', '.join(packages)}", file=sys.stderr, flush=True)  # noqa: T201
    os.execv(uv, [uv, *INSTALL, *sys.argv[1:]])


sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
bring(missing(), os.environ.get("UV"))
