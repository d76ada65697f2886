"""Every page of the documentation, whoever wrote it: links lead somewhere, commands can be typed, settings exist."""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from deploy import helm_chart
from docs import settings_page
from scaler.app.cli.main import app
from scaler.app.settings.model import Settings

ROOT = Path(__file__).parent.parent
PROGRAM = "idle-gpu-scaler"


@cache
def pages() -> tuple[Path, ...]:
    """Markdown that belongs to the project."""
    folders = ("benchmarks", "dashboards", "deploy", "docs")
    return tuple(sorted([*ROOT.glob("*.md"), *(page for each in folders for page in (ROOT / each).rglob("*.md"))]))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_blocks(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------------------------------------------------------- links


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", without_blocks(text_of(page)))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r'(?:src|href|srcset)="([^"]+)"', text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", without_blocks(text_of(page)), re.MULTILINE)
    found = set()
    for heading in headings:
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return frozenset(found)


def leads_somewhere(link: str, page: Path) -> bool:
    """Whether its file is one of the project, and its anchor a heading there. Others' pages are not asked."""
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    is_ours = target.exists() and ROOT in [target, *target.parents]
    return is_ours and (not anchor or target.suffix != ".md" or anchor in anchors(target))


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not leads_somewhere(link, page)] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        paths = (link.partition("#")[0] for link in links(page) if not re.match(r"[a-z]+:", link))
        left += [found for path in paths if path and (found := (page.parent / path).resolve()).is_file()]
    assert {page for page in pages() if page.parent == ROOT / "docs"} <= reached


# ------------------------------------------------------------------------------------------------------------- commands


class Typed(NamedTuple):
    """A command line of ours on a page."""

    page: Path
    words: tuple[str, ...]
    """What follows the program's name."""
    is_whole: bool
    """Whether it stands there to be typed; a verb that is only mentioned may lack its arguments."""


def typed(page: Path) -> Iterator[Typed]:
    text = text_of(page)
    for block in re.findall(r"^ *```(?:sh|shell|bash|console)?\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        is_transcript = re.search(r"^\$ ", block, re.MULTILINE)
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            if not is_transcript or line.startswith("$ "):
                yield from (Typed(page, words, True) for words in ours(line.strip().removeprefix("$ ")))
    for code in re.findall(r"`([^`\n]+)`", without_blocks(text)):
        yield from (Typed(page, words, False) for words in ours(code))


def ours(line: str) -> Iterator[tuple[str, ...]]:
    """The program's arguments in a line of shell, wherever it is called there."""
    if PROGRAM not in line:
        return
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose with an apostrophe
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word in {"|", "&&", "||", ";", "&"}:
            yield from _called(command)
            command = []
        else:
            command.append(word)


def _called(command: list[str]) -> Iterator[tuple[str, ...]]:
    if command[:1] == ["kubectl"] and "--" in command:
        command = command[command.index("--") + 1 :]
    if command[:2] == ["uv", "run"]:
        command = [word for word in command[2:] if word != "--no-sync"]
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    if command[:1] == [PROGRAM] and len(command) > 1:
        pairs = pairwise(command)
        yield tuple(word for before, word in pairs if word != "…" or before.startswith("-"))


def problem(command: Typed) -> str:
    """What the program's own parser has against it; empty where it takes it."""
    root = typer.main.get_command(app)
    try:
        with root.make_context(PROGRAM, list(command.words)) as context:
            name, verb, rest = root.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
            assert verb is not None
            verb.make_context(name, rest, parent=context)
    except Exception as error:
        kind = type(error).__name__
        if kind in {"Exit", "NoArgsIsHelpError"} or (kind == "MissingParameter" and not command.is_whole):
            return ""
        return f"{kind}: {error}"
    return ""


COMMANDS = [command for page in pages() for command in typed(page)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: f"{shown(each.page)}: {shlex.join(each.words)}"[:120])
def test_the_program_takes_every_command_that_is_shown(command: Typed) -> None:
    assert problem(command) == ""


# ----------------------------------------------------------------------------------------------------------------- Helm


def installed() -> Iterator[tuple[str, list[str]]]:
    """Commands of Helm on all pages that set values, with the page."""
    for page in pages():
        text = re.sub(r" *\\\n *", " ", text_of(page))
        for line in re.findall(r"^(helm (?:install|upgrade|template) .*(?:--set|-f) .*)$", text, re.MULTILINE):
            yield shown(page), shlex.split(line, comments=True)


HELM = list(installed())


@pytest.mark.parametrize(("page", "words"), HELM, ids=[f"{page} {n}" for n, (page, _) in enumerate(HELM)])
def test_the_chart_takes_every_value_that_is_shown(page: str, words: list[str]) -> None:
    values = helm_chart.given_by(words)
    assert values
    found = helm_chart.objects(values)
    assert {"Deployment", "ServiceAccount"} <= {each["kind"] for each in found}
    [settings] = [each for each in found if each["kind"] == "ConfigMap" and "settings.yaml" in each["data"]]
    document = yaml.load(settings["data"]["settings.yaml"], yaml.CSafeLoader)
    assert Settings.model_validate(document)


@pytest.mark.parametrize("page", [page for page in pages() if page.parent.name in {"docs", ROOT.name}], ids=shown)
def test_files_that_are_named_are_there(page: Path) -> None:
    assert not [path for path in files_named(page) if not (ROOT / path).exists()]


def files_named(page: Path) -> list[str]:
    return re.findall(r"(?<![\w./-])((?:deploy|dashboards|docs|benchmarks|tests)/[\w./-]*\w)", text_of(page))


# -------------------------------------------------------------------------------------------------- values and settings

SCHEMA = json.loads((helm_chart.FOLDER / "values.schema.json").read_text(encoding="utf-8"))
NEITHER = {"dashboards.mutations", "grpc.health.v1"}
"""What else is written as code and begins like a value or a setting: a module, and the name of an API."""
REMOVED = {
    page: {"reclaim.onTheft", "reclaim.budgets", "notifications.digest", "defaults.mode"}
    for page in ("CHANGELOG.md", "docs/upgrade.md")
}
"""Settings of the past, by the pages that say what became of them."""


@cache
def named_ones() -> frozenset[str]:
    """The paths of all values of the chart, of all settings, and of what is above them."""
    settings = re.findall(r"^\| `([^`]+)` \|", settings_page.tables(), re.MULTILINE)
    parts = [path.replace("[]", "").split(".") for path in settings]
    return frozenset({*_below(SCHEMA, ""), *(".".join(each[:n]) for each in parts for n in range(1, len(each) + 1))})


def _below(schema: dict[str, Any], above: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{above}{name}"
        yield from _below(inner, f"{above}{name}.")


def paths_named(text: str) -> list[str]:
    """What is written as code and begins like one of them; `tls.crt` is a file."""
    tops = "|".join(sorted(path for path in named_ones() if "." not in path))
    found = re.findall(rf"`((?:{tops})\.[\w.]+)[`:=]", text)
    return [path for path in found if path not in NEITHER and not path.endswith((".yaml", ".crt", ".key"))]


@pytest.mark.parametrize("page", [page for page in pages() if paths_named(text_of(page))], ids=shown)
def test_values_and_settings_that_are_named_are_there(page: Path) -> None:
    assert set(paths_named(text_of(page))) - named_ones() == REMOVED.get(str(page.relative_to(ROOT)), set())


# ------------------------------------------------------------------------------------------------------------- settings

SETTINGS = text_of(ROOT / "docs" / "settings.md")


def test_every_setting_says_what_it_means() -> None:
    silent = re.findall(r"^\| `([^`]+)` \| .* \|  \|$", settings_page.tables(), re.MULTILINE)
    assert silent == [], "write a string below the field"


def test_the_page_of_settings_has_each_of_them() -> None:
    """Counted otherwise than the page is made: by the documents that the program itself would print."""
    dumped = Settings().model_dump(by_alias=True)
    paths = {f"{top}.{name}" for top, found in dumped.items() if isinstance(found, dict) for name in found}
    assert len(paths) > 40
    assert not [path for path in paths if f"| `{path}" not in SETTINGS]


def yaml_blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in pages() if yaml_blocks(page)], ids=shown)
def test_what_is_shown_as_yaml_is_yaml_and_settings_in_it_can_be_loaded(page: Path) -> None:
    known = {str(field.alias) for field in Settings.model_fields.values()}
    for block in yaml_blocks(page):
        for document in yaml.load_all(block, yaml.CSafeLoader):
            if isinstance(document, dict) and set(document) <= known:
                Settings.model_validate({"prometheus": {"url": "http://prometheus:9090"}} | document)


# ------------------------------------------------------------------------------------- what looks for them finds them


def test_links_commands_files_and_settings_are_found_and_wrong_ones_are_told_apart() -> None:
    readme = ROOT / "README.md"
    assert {"docs/images/decision.svg", "docs/concepts.md", "https://keda.sh"} <= set(links(readme))
    wrong = ("docs/nowhere.md", "docs/tls.md#the-dark-side", "#the-mop", "../elsewhere", "tls.md")
    assert not [link for link in wrong if leads_somewhere(link, readme)]
    assert len(COMMANDS) > 40
    assert {verb for command in COMMANDS for verb in command.words[:1]} >= {"demo", "run", "explain", "plan", "doctor"}
    for line in ("explian a/b", "explain", "plan", "demo --act", "run --config a extra", "queues --queue x"):
        assert problem(Typed(ROOT, tuple(line.split()), True))
    line = "kubectl -n x exec deployment/idle-gpu-scaler -- idle-gpu-scaler doctor --json | jq"
    assert [*ours(line)] == [("doctor", "--json")]
    assert {"README.md", "docs/install.md", "docs/platforms.md"} <= {page for page, _ in HELM}
    assert "deploy/helm/idle-gpu-scaler/values-gke.yaml" in files_named(ROOT / "docs" / "install.md")
    text = "`networkPolicy.kedaPeers`, `reclaim.pressure: false`, `tls.crt`, `metrics.price`"
    assert set(paths_named(text)) - named_ones() == {"metrics.price"}
