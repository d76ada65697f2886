"""What a page says to type, and what Helm makes of it.

Helm is played by the chart's renderer, as no Kubernetes is needed for that; what it knows of `helm` is what the page
uses, and a command or a flag that it does not know is an error rather than passed over.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deploy import helm_chart

ROOT = Path(__file__).parents[1]
Json = dict[str, Any]


def commands(page: Path, begin: str, end: str) -> list[list[str]]:
    """The words of each command in the shell blocks between two texts, as a shell splits them."""
    text = page.read_text(encoding="utf-8")
    first = text.index(begin)
    blocks = re.findall(r"```sh\n(.*?)```", text[first : text.index(end, first + len(begin))], re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def first_objects(notes: str) -> list[Json]:
    """The YAML in a release's notes: the first block that is indented and has objects."""
    lines = notes.splitlines()
    first = next(n for n, line in enumerate(lines) if re.match(r" +apiVersion:", line))
    block = lines[first : next((n for n, line in enumerate(lines[first:], first) if not line.strip()), len(lines))]
    indent = len(block[0]) - len(block[0].lstrip())
    return list(yaml.load_all("\n".join(line[indent:] for line in block), yaml.CSafeLoader))


def commands_in(notes: str) -> list[list[str]]:
    """The words of the commands that a release's notes show."""
    lines = re.sub(r" *\\\n *", " ", notes).splitlines()
    return [shlex.split(line) for line in lines if re.match(r" +(kubectl|idle-gpu-scaler) ", line)]


# ----------------------------------------------------------------------------------------------------------------- Helm


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A chart with values, under a name in a namespace."""

    name: str
    namespace: str
    values: Json

    def objects(self) -> list[Json]:
        return helm_chart.objects(self.values, name=self.name, namespace=self.namespace)

    def notes(self) -> str:
        return helm_chart.texts(self.values, name=self.name, namespace=self.namespace)["NOTES.txt"]


@dataclass(slots=True)
class Helm:
    """The arguments of `helm` so far."""

    beside: Json = field(default_factory=dict)
    """Values of every release beside those that the page sets: times that make an hour a second."""
    releases: dict[tuple[str, str], Release] = field(default_factory=dict)
    """By namespace and name."""

    def run(self, words: Sequence[str]) -> Release:
        """`install`, `upgrade` or `get notes`, with what follows; the release as it is now."""
        verb = " ".join(words[:2]) if words[0] == "get" else words[0]
        options = _Options(words[len(verb.split()) :])
        name, *chart = options.alone
        key = (options.given.get("--namespace", ["default"])[0], name)
        if verb == "get notes":
            assert key in self.releases, f"{' '.join(words)}: release: not found"
            return self.releases[key]
        assert [ROOT / each for each in chart] == [helm_chart.FOLDER], f"the chart is not in {chart}"
        if verb == "install":
            assert key not in self.releases, f"cannot re-use the name {name}"
            assert "--create-namespace" in options.given, "nothing else makes the namespace"
            before = self.beside
        else:
            assert verb == "upgrade", f"this test does not know what helm {verb} does"
            before = self.releases[key].values if "--reset-then-reuse-values" in options.given else self.beside
        values = helm_chart.merged(before, *map(helm_chart.set_by, options.given.get("--set", ())))
        self.releases[key] = Release(name=name, namespace=key[0], values=values)
        return self.releases[key]


class _Options:
    """Words and flags of a helm command."""

    _with_a_value = ("--set", "--namespace")
    _without = ("--create-namespace", "--reset-then-reuse-values")

    def __init__(self, words: Sequence[str]) -> None:
        self.given: dict[str, list[str]] = {}
        self.alone: list[str] = []
        left = iter({"-n": "--namespace"}.get(word, word) for word in words)
        for word in left:
            if word in self._with_a_value:
                self.given.setdefault(word, []).append(next(left))
            elif word.startswith("-"):
                assert word in self._without, f"this test does not know what helm's {word} does"
                self.given[word] = []
            else:
                self.alone.append(word)
