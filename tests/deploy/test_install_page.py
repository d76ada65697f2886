"""What docs/install.md says to type can be typed, and what it names is there."""

import json
import re
from typing import Any

import helm_chart
import pytest
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
