"""Random relabel rules, of every action and with every piece of RE2's syntax, and what Prometheus makes of them."""

import json
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from http_stub import HttpStub, Received, Reply
from prometheus_server import PrometheusServer, static_scrape

from scaler.idleness.relabel import parse_rules, relabel

Labels = dict[str, str]

LABELS = ("a", "b", "pod", "namespace", "Hostname", "k_v", "none")
WORDS = (
    "", "a", "b", "ab", "aab", "abc", "AB", "train-0", "ray-head-x7k2", "1", "12", "1a2b", "x y", "a\nb", "é",
    "ÉÉ", "ß", "K", "٣", "😀a", "-_.", "team-a", "a.b", "]a",
)  # fmt: skip
_ATOMS = (
    "a", "b", "ab", "1", "-", "_", "é", "K", "ß", "x", ".", ".", ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S",
    "[ab]", "[^a]", "[a-c1-3]", "[^-a]", "[[:alpha:]]", "[[:^digit:]_]", r"[\d_]", r"[^\w]", r"\pL", r"\PL",
    r"\p{Lu}", r"\p{Greek}", r"\p{^N}", r"[\pN-]", r"\x61", r"\x{e9}", r"\.", r"\-", r"\Qa.b\E", r"\Q-\E",
    r"\141", "]", "^", "$", r"\A", r"\z", r"\b", r"\B", "", r"\n", "(?i)", "(?m)", "(?U)", "(?s)", "(?-s)",
    "(?i-s)", "{", "{,2}", "}",
)  # fmt: skip
_REPEATS = ("", "", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,}", "{2,3}?", "{0}", "*", "+")


class RandomRules:
    """A stream of rules from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._groups = 0

    def regex(self) -> str:
        self._groups = 0
        return self._alternatives(3)

    def _alternatives(self, depth: int) -> str:
        count = self._random.choice((1, 1, 1, 2, 2, 3))
        return "|".join(self._sequence(depth) for _ in range(count))

    def _sequence(self, depth: int) -> str:
        return "".join(self._repeated(depth) for _ in range(self._random.choice((0, 1, 1, 2, 2, 3, 4))))

    def _repeated(self, depth: int) -> str:
        repeat = self._random.choice(_REPEATS)
        if depth and self._random.random() < 0.35:
            return self._group(depth - 1) + repeat
        atom = self._random.choice(_ATOMS)
        return atom if atom == "" or atom.startswith(("(?", "{", "}")) else atom + repeat

    def _group(self, depth: int) -> str:
        opening = self._random.choice(("(", "(", "(", "(?:", "(?i:", "(?U:", "(?P<"))
        if opening == "(?P<":
            self._groups = self._random.randint(1, self._groups + 1)
            opening = f"(?P<n{self._groups}>"
        return f"{opening}{self._alternatives(depth)})"

    def labels(self) -> dict[str, str]:
        return {name: self._random.choice(WORDS) for name in LABELS[:-1] if self._random.random() < 0.8}

    def source_labels(self) -> list[str]:
        return self._random.sample(LABELS, self._random.choice((1, 1, 1, 2, 3)))

    def writing(self, target: str) -> dict[str, Any]:
        """A rule that writes its result to `target`, where it writes one."""
        kind = self._random.choice(("replace",) * 12 + ("hashmod", "lowercase", "uppercase"))
        rule: dict[str, Any] = {"action": kind, "source_labels": self.source_labels(), "target_label": target}
        if self._random.random() < 0.3:
            rule["separator"] = self._random.choice(("", "/", "ab", "\n"))
        if kind == "hashmod":
            return rule | {"modulus": self._random.choice((1, 2, 1000, 2**64 - 1))}
        if kind == "replace":
            return rule | {"regex": self.regex(), "replacement": self._replacement()}
        return rule

    def _replacement(self) -> str:
        pieces = ("$0", "$1", "$2", "${1}", "$n1", "${n1}", "$3x", "$$", "$", "${", "-", "a", "$1_", "${9}")
        return "".join(self._random.choice(pieces) for _ in range(self._random.randint(1, 4)))

    def filtering(self) -> dict[str, Any]:
        """A rule that drops series or labels, or maps labels."""
        kind = self._random.choice(("keep", "drop", "keepequal", "dropequal", "labelmap", "labeldrop", "labelkeep"))
        if kind in {"keep", "drop"}:
            return {"action": kind, "source_labels": self.source_labels(), "regex": self.regex()}
        if kind in {"keepequal", "dropequal"}:
            return {
                "action": kind,
                "source_labels": self.source_labels()[:1],
                "target_label": self._random.choice(LABELS),
            }
        if kind == "labelmap":
            return {
                "action": kind,
                "regex": self.regex(),
                "replacement": self._random.choice(("m_$1", "${1}m", "m", "m_$0")),
            }
        return {"action": kind, "regex": self.regex() + ("|__name__|n" if kind == "labelkeep" else "")}


# ----------------------------------------------------------------------------------------------------------- Prometheus


def exposition(metric: str, labels: Mapping[str, str], value: float) -> str:
    escaped = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in labels.items()
    }
    return f"{metric}{{{','.join(f'{name}={chr(34)}{text}{chr(34)}' for name, text in escaped.items())}}} {value}\n"


def serve(pages: Mapping[str, str]) -> Callable[[Received], Reply]:
    return lambda request: Reply(pages[request.path].encode(), headers={"Content-Type": "text/plain; version=0.0.4"})


def scraped(prometheus: PrometheusServer, jobs: int, *, seconds: float = 60) -> list[tuple[Labels, float]]:
    """Every series with its value, once each job was scraped without error."""
    deadline = time.monotonic() + seconds
    while sum(value for _, value in queried(prometheus, "sum(up)")) < jobs:
        assert time.monotonic() < deadline, queried(prometheus, "up == 0")
        time.sleep(0.2)
    return queried(prometheus, '{__name__=~"case.*"}')


def queried(prometheus: PrometheusServer, promql: str) -> list[tuple[Labels, float]]:
    data = urllib.parse.urlencode({"query": promql}).encode()
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/query", data=data, timeout=30) as answer:
        return [(series["metric"], float(series["value"][1])) for series in json.load(answer)["data"]["result"]]


@dataclass(frozen=True)
class Job:
    """A list of rules and the series that it is tried on. Their values tell them apart, whatever becomes of labels."""

    number: int
    rules: Sequence[Mapping[str, Any]]
    series: Sequence[Labels]

    @property
    def page(self) -> str:
        return "".join(exposition(f"case_{n}", labels, n) for n, labels in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Labels]]:
        yield from ((100 * self.number + i, labels) for i, labels in enumerate(self.series))

    def scrape(self, address: str, seconds: int) -> dict[str, Any]:
        where = {"metrics_path": f"/{self.number}", "honor_labels": True}
        rules = [as_the_newest_reads_it(rule) for rule in self.rules]
        return static_scrape(
            f"job-{self.number}", address, interval=f"{seconds}s", metric_relabel_configs=rules, **where
        )

    def relabelled(self, address: str) -> dict[float, Labels]:
        """What our rules make of each series that they keep."""
        target, rules = {"job": f"job-{self.number}", "instance": address}, parse_rules(self.rules)
        after = {n: relabel({"__name__": f"case_{n}", **target, **labels}, rules) for n, labels in self.numbered()}
        return {n: labels for n, labels in after.items() if labels is not None}


def as_the_newest_reads_it(rule: Mapping[str, Any]) -> dict[str, Any]:
    """(?s) makes an older Prometheus, whose dot matches no newline, read the expression as the newest does."""
    return {**rule, "regex": f"(?s){rule['regex']}"} if "regex" in rule else dict(rule)


CHAIN = 250
"""Rules of one job that each write a label of their own."""


def random_jobs(count: int, seed: int, *, first: int = 0) -> Iterator[Job]:
    """Jobs with so many rules in all: ten of twelve write a label, two drop series or labels, or map labels."""
    rules = RandomRules(seed)
    filtering = first + count * 10 // 12 // CHAIN
    for number in range(first, filtering):
        yield Job(number, [rules.writing(f"r{n}") for n in range(CHAIN)], [rules.labels() for _ in range(6)])
    for number in range(filtering, filtering + count * 2 // 12):
        # Without a name a series would fail its whole scrape.
        named = {"target_label": "__name__", "replacement": f"case_{100 * number}"}
        yield Job(number, [rules.filtering(), named], [rules.labels()])


def differences(jobs: Sequence[Job], *, seconds: int) -> list[str]:
    """Every series of which Prometheus, which scrapes it once in so many seconds, makes something else than we do."""
    pages = {f"/{job.number}": job.page for job in jobs}
    with HttpStub(serve(pages)) as exporter, tempfile.TemporaryDirectory() as folder:
        scrapes = [job.scrape(exporter.address, seconds) for job in jobs]
        with PrometheusServer(Path(folder), scrapes) as prometheus:
            found = scraped(prometheus, len(jobs), seconds=seconds + 60)
    theirs = {value: labels for labels, value in found}
    ours = {value: labels for job in jobs for value, labels in job.relabelled(exporter.address).items()}
    return [
        f"series {value}: {set((ours.get(value) or {}).items()) ^ set((theirs.get(value) or {}).items())}"
        for value in sorted(ours.keys() | theirs.keys())
        if ours.get(value) != theirs.get(value)
    ]
