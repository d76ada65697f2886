"""The README and what moved out of it show the program as it is."""

import re

import pytest
import typer
import yaml

from docs.generate import FOLDERS, PAGES, ROOT, VERBS, MarkedPage
from scaler.app.cli.main import app

SECTIONS = [(page, mark) for page in PAGES for mark in page.sections]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "mark"), SECTIONS, ids=[f"{page.path.name} {mark}" for page, mark in SECTIONS])
def test_pages_show_what_the_program_says_of_itself(page: MarkedPage, mark: str) -> None:
    assert page.shown(mark) == page.sections[mark](), "run: uv run python -m docs.generate"


def test_the_map_has_every_folder_of_the_program() -> None:
    folders = {each.parent.name for each in (ROOT / "scaler").glob("*/__init__.py")}
    assert folders == set(FOLDERS)


def test_every_folder_of_the_map_has_its_layer() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [block] = re.findall(r'^containers = \["scaler"\]\nlayers = \[\n(.*?)^\]', text, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r'"(\w+)"', block)) == {*FOLDERS, "webhook", "documents", "clock", "errors"}


def test_every_verb_has_its_help_on_the_page() -> None:
    assert {each.split()[0] for each in VERBS if each} == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 220


def test_contributors_are_led_to_enums_that_are_there() -> None:
    named = re.findall(r"\| `(\w+)` in `([\w/.]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(named) >= 5
    assert [name for name, path in named if f"class {name}(StrEnum)" not in (ROOT / path).read_text("utf-8")] == []


def test_the_ten_minutes_name_the_times_of_their_example() -> None:
    bodies = yaml.load_all((ROOT / "deploy/examples/first/holder.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    [scaled] = [body for body in bodies if body["kind"] == "ScaledObject"]
    metadata = scaled["spec"]["triggers"][0]["metadata"]
    assert (metadata["warmUp"], metadata["idleAfter"]) == ("1m", "3m")
    assert "1 minute of `warmUp` and 3 minutes of `idleAfter`" in " ".join(README.split())
