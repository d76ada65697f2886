"""What pages show of the program itself: the folders of its code, what `--help` prints, and its permissions.

`uv run python tests/generated_pages.py` writes all of it anew.
"""

import ast
from pathlib import Path

import typer
from click.testing import CliRunner
from marked_page import MarkedPage

from scaler.app.cli.main import app
from scaler.reporting.doctor.permissions import REQUIRED_RULES, RequiredRule

ROOT = Path(__file__).parent.parent
VERBS = ("", "run", "explain", "plan", "pending", "queues", "doctor", "version", "demo")
ROOMS = (
    "samples", "idleness", "decision", "keda", "suspension", "quota", "placement", "reclaim", "admission", "reporting",
    "kube", "tls", "app",
)  # fmt: skip
"""In the order of a decision; below it what all of them stand on, and the process that they make."""


def map_of_rooms() -> str:
    """A row for each folder of the program, with the first line of its docstring, and one for the sandbox."""
    folders = [ROOT / "scaler" / room for room in ROOMS] + [ROOT / "sandbox" / "scaler_sandbox"]
    rows = (
        f"| [`{shown}`]({shown}) | {first_line(each)} |\n" for each in folders for shown in [each.relative_to(ROOT)]
    )
    return "| folder | |\n|---|---|\n" + "".join(rows)


def first_line(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert docstring, f"{package} does not say what it is"
    return docstring.splitlines()[0]


def help_of(verb: str) -> str:
    """What `idle-gpu-scaler VERB --help` prints on a terminal of 100 columns."""
    plain = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    words = [*([verb] if verb else []), "--help"]
    done = CliRunner().invoke(typer.main.get_command(app), words, prog_name="idle-gpu-scaler", env=plain)
    return "\n".join(line.rstrip() for line in done.output.strip().splitlines())


def help_of_all() -> str:
    blocks = (f"```\n$ idle-gpu-scaler {verb + ' ' if verb else ''}--help\n{help_of(verb)}\n```\n" for verb in VERBS)
    return "\n".join(blocks)


def permission_table() -> str:
    rows = [f"| {', '.join(rule.verbs)} | {objects_of(rule)} | {rule.part} |" for rule in REQUIRED_RULES]
    return "\n".join(["| its account needs to | | for |", "|---|---|---|", *rows, ""])


def objects_of(rule: RequiredRule) -> str:
    names = [str(each) for each in rule.on]
    if rule.on_targets:
        slash = f"`/{rule.subresource_of_targets}` of " if rule.subresource_of_targets else ""
        names.append(f"{slash}the kinds that are scaled (deployments.apps, …)")
    return ", ".join(names) + (" in the Lease's namespace" if rule.in_lease_namespace else "")


PAGES = (
    MarkedPage(path=ROOT / "README.md", sections={"map": map_of_rooms}),
    MarkedPage(path=ROOT / "docs" / "command-line.md", sections={"help": help_of_all}),
    MarkedPage(path=ROOT / "docs" / "install.md", sections={"permissions": permission_table}),
)


if __name__ == "__main__":
    for page in PAGES:
        page.rewrite()
