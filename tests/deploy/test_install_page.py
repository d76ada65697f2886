"""What docs/install.md says to type can be typed, and what it names is there."""

import json
import re
from textwrap import dedent
from typing import Any

import helm_chart
import pytest
import yaml
from helm_chart import FOLDER, ROOT

PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
SCHEMA = json.loads((FOLDER / "values.schema.json").read_text(encoding="utf-8"))


def is_value(path: str) -> bool:
    at: Any = SCHEMA
    for part in path.split("."):
        at = at.get("properties", {}).get(part)
        if at is None:
            return False
    return True


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("helm ") and "--set" in each])
def test_values_are_set_that_the_chart_takes(command: str) -> None:
    values: dict[str, Any] = {}
    for path, text in re.findall(r"--set ([\w.]+)=(\S+)", command):
        at = values
        *above, last = path.split(".")
        for part in above:
            at = at.setdefault(part, {})
        at[last] = {"true": True, "false": False, "null": None}.get(text, text)
    assert values
    assert helm_chart.objects(values)


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"(?<![\w./])deploy/[\w./-]*\w", PAGE))
    assert len(named) > 8
    assert not [path for path in named if not (ROOT / path).exists()]
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert not [link for link in links if not (ROOT / "docs" / link.partition("#")[0]).exists()]


def test_every_value_that_is_named_is_one() -> None:
    groups = "|".join(name for name, each in SCHEMA["properties"].items() if "properties" in each)
    named = re.findall(rf"`((?:{groups})\.[\w.]+)[`:]", PAGE)
    assert len(named) > 10
    files = (".yaml", ".crt", ".key")
    assert not [path for path in named if not is_value(path) and not path.endswith(files)]


def test_objects_are_called_as_the_chart_calls_them() -> None:
    names = {each["metadata"]["name"] for each in helm_chart.objects()}
    called = set(re.findall(r"`(idle-gpu-scaler-[a-z]+)`", PAGE))
    assert called
    assert called <= names


def test_what_the_first_holder_wants_on_openshift_is_what_the_release_says_there() -> None:
    """Its trigger, patched as docs/platforms.md has it, speaks TLS like that of the notes."""
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    [patch] = re.findall(r"patch scaledobject holder --type json -p '(.*?)'", page, re.DOTALL)
    added = {each["path"].rpartition("/triggers/0/")[2]: each["value"] for each in json.loads(patch)}
    notes = helm_chart.texts(helm_chart.platform("openshift"))["NOTES.txt"]
    told = re.search(r" +- type: external-push\n.*?\n\n", notes, re.DOTALL)
    assert told
    [trigger] = yaml.safe_load(dedent(told[0]))
    assert added == {
        "metadata/enableTLS": trigger["metadata"]["enableTLS"],
        "authenticationRef": trigger["authenticationRef"],
    }
