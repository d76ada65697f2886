"""The Helm chart, rendered: values in, objects out."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
FOLDER = DEPLOY / "helm" / "idle-gpu-scaler"
RELEASE = NAMESPACE = "idle-gpu-scaler"

Json = dict[str, Any]


def texts(values: Json | None = None, *, name: str = RELEASE, namespace: str = NAMESPACE) -> dict[str, str]:
    """What each template renders to, by the file's name. Raises: HelmError for values that the schema refuses."""
    return dict(_rendered(json.dumps(values or {}), name, namespace))


@cache
def _rendered(values: str, name: str, namespace: str) -> Mapping[str, str]:
    rendered = _chart().render(json.loads(values), name=name, namespace=namespace)
    return {Path(path).name: text for path, text in rendered.items()}


def objects(values: Json | None = None, *, name: str = RELEASE, namespace: str = NAMESPACE) -> list[Json]:
    """What `helm template` prints, CRDs left out."""
    manifests = [text for file, text in texts(values, name=name, namespace=namespace).items() if file != "NOTES.txt"]
    return [body for text in manifests for body in yaml.load_all(text, Loader=yaml.CSafeLoader) if body]


def one(kind: str, values: Json | None = None, name: str = RELEASE) -> Json:
    """The only object of that kind and name."""
    [found] = [each for each in objects(values) if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def settings_object(values: Json | None = None) -> Json:
    """The ConfigMap that holds the program's settings file."""
    return one("ConfigMap", values, f"{RELEASE}-settings")


def settings_of(values: Json | None = None) -> Json:
    """The program's settings file, parsed."""
    parsed: Json = yaml.safe_load(settings_object(values)["data"]["settings.yaml"])
    return parsed


def platform(name: str) -> Json:
    """The values that the chart brings for a platform; none for `kubernetes`."""
    if name == "kubernetes":
        return {}
    parsed: Json = yaml.safe_load((FOLDER / f"values-{name}.yaml").read_text(encoding="utf-8"))
    return parsed


def merged(*layers: Json) -> Json:
    """The values as Helm merges files of them: maps by key, everything else is replaced."""
    result: Json = {}
    for layer in layers:
        for key, value in layer.items():
            old = result.get(key)
            result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def given_by(words: Sequence[str]) -> Json:
    """The values that a command of Helm gives by `-f` and `--set`; files are below the project's root."""
    values: Json = {}
    for flag, given in pairwise(words):
        if flag == "-f":
            values = merged(values, yaml.safe_load((ROOT / given).read_text(encoding="utf-8")))
        elif flag == "--set":
            values = merged(values, set_by(given))
    return values


def set_by(assignment: str) -> Json:
    """`a.b=c` as Helm's `--set` reads it: numbers, booleans and null are not text, and braces hold a list."""
    path, _, text = assignment.partition("=")
    value = _value_of(text)
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def _value_of(text: str) -> Any:
    if text.startswith("{"):
        return [_value_of(each) for each in text.strip("{}").split(",")]
    return yaml.safe_load(text) if re.fullmatch(r"true|false|null|-?\d+", text) else text


@cache
def _chart() -> Chart:
    return Chart.load(str(FOLDER))


def forget() -> None:
    """Read the chart anew: its files have changed."""
    _chart.cache_clear()
    _rendered.cache_clear()
