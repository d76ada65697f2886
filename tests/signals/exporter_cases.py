"""What exporters of the field show: their pages, how they are scraped, and which pods hold the GPUs.

The cases lie in `signals/` of the folder that SCALER_SHARED_DATA names (see `recordings`). There a collection takes
2 s; here it takes the exporters' own 30 s, so that the product's defaults mean what they mean in a cluster. When a page
was served and which pod worked when is in `case_timelines`, where the pages alone do not say it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from case_timelines import NODE_OF_ALL, TIMELINES, Timeline
from prometheus_client.parser import text_string_to_metric_families
from recordings import SHARED

FOLDER = SHARED / "signals"
DEFAULT = "default"
"""The settings that nobody has written."""

STRETCH = 15
"""Real seconds for one second of the cases."""
COLLECTIONS = 74
"""How many there are in each case."""

Labels = Mapping[str, str]


class Sample(NamedTuple):
    """One line of a page, or one sample as it is stored."""

    metric: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One page, and how Prometheus reads it."""

    page: str
    shown: Mapping[int, Sequence[Sample]]
    """What it shows, by the number of collections after which it was written down."""
    honor_labels: bool
    target_labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePod:
    name: str
    gpus: int
    truth: str
    """`idle` or `busy`, or where it is told by the timeline."""
    node: str
    resource: str
    namespace: str = "team-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    title: str
    scrapes: Sequence[Scrape]
    rules: Sequence[tuple[str, str]]
    """(name, PromQL) of recording rules. Where there are any, what they record is all that is kept."""
    pods: Sequence[CasePod]
    window: int
    """In collections."""
    delay_s: float
    """Between a sample's own time and when it can be read."""
    timeline: Timeline
    settings: Mapping[str, Path | None] = field(default_factory=lambda: {DEFAULT: None})
    """What operators wrote, by name."""

    @property
    def uses_claims(self) -> bool:
        return "DRA" in self.title

    def works(self, pod: str, collection: int) -> bool:
        """Whether the pod works between this collection and the next."""
        if pod in self.timeline.works:
            return self.timeline.works[pod](collection)
        (truth,) = (each.truth for each in self.pods if each.name == pod)
        return {"busy": True, "idle": False}[truth]


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/case.yaml"))


def runs() -> Iterator[tuple[str, str]]:
    """(case, settings) of all that is played."""
    for name in names():
        yield name, DEFAULT
        for path in sorted((FOLDER / name).glob("settings-*.yaml")):
            yield name, _settings_name(path)


@lru_cache(maxsize=8)
def load(name: str) -> Case:
    folder = FOLDER / name
    document = yaml.load((folder / "case.yaml").read_text("utf-8"), yaml.CSafeLoader)
    pages = sorted(folder.glob("page-*.txt"))
    scrapes = [_scrape(page, each) for page, each in zip(pages, document["scrapes"], strict=True)]
    timeline, given = (
        TIMELINES.get(name, Timeline()),
        {path: _settings_name(path) for path in folder.glob("settings-*")},
    )
    pods = {**document["pods"], **{each: {"gpus": 1, "truth": "timeline"} for each in timeline.others}}
    return Case(
        name=name,
        title=document["title"],
        scrapes=scrapes,
        rules=[(record, promql) for record, promql in document["rules"]],
        pods=[_pod(name, pod, each, document["resource"], scrapes) for pod, each in pods.items()],
        window=document["window_intervals"],
        delay_s=document["delay_s"] * STRETCH,
        timeline=timeline,
        settings={DEFAULT: None, **{each: path for path, each in sorted(given.items())}},
    )


def _settings_name(path: Path) -> str:
    return path.stem.removeprefix("settings-")


def stretched_settings(path: Path | None) -> dict[str, Any]:
    """What the operator wrote, its two kinds of duration in real seconds."""
    document: dict[str, Any] = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader) if path else {}
    for section, setting in (("trust", "collectionInterval"), ("evaluation", "overlap")):
        if setting in document.get(section, {}):
            seconds = int(document[section][setting].removesuffix("s"))
            document[section][setting] = f"{seconds * STRETCH}s"
    return document


# ---------------------------------------------------------------------------------------------------------------- pages

_AFTER = re.compile(r"^# after (\d+) collections$", re.MULTILINE)


def _scrape(path: Path, given: Mapping[str, Any]) -> Scrape:
    _, *parts = _AFTER.split(path.read_text("utf-8"))
    shown = {int(after): read_page(text) for after, text in zip(parts[::2], parts[1::2], strict=True)}
    page = path.stem.removeprefix("page-")
    return Scrape(page=page, shown=shown, honor_labels=given["honor_labels"], target_labels=given["target_labels"])


def read_page(text: str) -> list[Sample]:
    """The lines of a page. They are read by Prometheus' own client and not by the code under test."""
    families = text_string_to_metric_families(text)
    return [Sample(line.name, line.labels, line.value) for family in families for line in family.samples]


def stored_labels(exposed: Labels, target: Labels, *, honor_labels: bool) -> dict[str, str]:
    """The labels of a scraped series as they are stored.

    With honor_labels what is exposed wins, and an empty value takes the target's away; without it the target's win, and
    what was exposed under the same name is kept as `exported_NAME`. An empty label is none.

    Source: Prometheus 2.42, scrape/scrape.go, mutateSampleLabels and resolveConflictingExposedLabels.
    """
    if honor_labels:
        return {name: value for name, value in {**target, **exposed}.items() if value}
    stored = {name: value for name, value in {**exposed, **target}.items() if value}
    for name in sorted(target.keys() & exposed.keys(), key=len):
        if exposed[name]:
            other = f"exported_{name}"
            while stored.get(other):
                other = f"exported_{other}"
            stored[other] = exposed[name]
    return stored


# ----------------------------------------------------------------------------------------------------------------- pods

_HOST_LABELS = ("Hostname", "hostname", "node", "nodeid")
_SOME_NODE = "gpu-node-1"


def _pod(case: str, name: str, given: Mapping[str, Any], resource: str, scrapes: Sequence[Scrape]) -> CasePod:
    return CasePod(
        name=name,
        gpus=given["gpus"],
        truth=given["truth"],
        node=NODE_OF_ALL.get(case) or _node_of(name, scrapes),
        resource="amd.com/gpu" if name.endswith("-amd") else resource,
    )


def _node_of(pod: str, scrapes: Collection[Scrape]) -> str:
    """The host of a series that names the pod, or else of any; there is a name for the node where no series has one."""
    lines = [line.labels for scrape in scrapes for page in scrape.shown.values() for line in page]
    lines.sort(key=lambda labels: pod not in labels.values())
    hosts = (labels[name] for labels in lines for name in _HOST_LABELS if labels.get(name))
    return next(hosts, _SOME_NODE)
