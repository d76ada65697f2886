"""Our relabelling and expressions against those of a real Prometheus, on the same series."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from http_stub import HttpStub, Received, Reply
from programs import needs
from prometheus_server import PrometheusServer, require_prometheus, static_scrape

from scaler.core.go_regex import compile_anchored
from scaler.core.relabel import parse_rules, relabel
from scaler.errors import ConfigurationError

Labels = dict[str, str]
pytestmark = pytest.mark.prometheus

SERIES: tuple[Labels, ...] = (
    {
        "namespace": "gpu-operator",
        "pod": "dcgm-exporter-1",
        "exported_namespace": "team-a",
        "exported_pod": "ray-head-0",
    },
    {"namespace": "team-b", "pod": "train-0", "UUID": "GPU-1", "Hostname": "Node-A", "a": "x", "b": "x"},
    {"namespace": "team-b", "pod": "Ünïcode;ß", "a": "x", "b": "y", "k_v": "1", "v_k": "2"},
)
"""Every rule list is tried on each of these."""

RULE_LISTS: dict[str, Sequence[Mapping[str, Any]]] = {
    "no rules": [],
    "replace with a group": [
        {"source_labels": ["pod"], "regex": "(.+)-(\\d+)", "target_label": "index", "replacement": "$2"}
    ],
    "replace with braces and a missing group": [
        {"source_labels": ["pod"], "regex": "(.+)-.+", "target_label": "base", "replacement": "<${1}$9$1x>"}
    ],
    "replace with a named group": [
        {"source_labels": ["pod"], "regex": "(?P<base>.+)-.+", "target_label": "base", "replacement": "$base.${base}"}
    ],
    "replace with dollars": [
        {"source_labels": ["pod"], "regex": "(.+)-.+", "target_label": "t", "replacement": "$$1|$|${|$ {1}|${1"}
    ],
    "replace without a match": [
        {"source_labels": ["pod"], "regex": "nothing", "target_label": "pod", "replacement": "gone"}
    ],
    "replace with an empty result": [
        {"source_labels": ["pod"], "regex": "(.*)", "target_label": "namespace", "replacement": ""}
    ],
    "replace from missing labels": [{"source_labels": ["none", "never"], "target_label": "joined"}],
    "replace with a separator": [{"source_labels": ["namespace", "pod"], "separator": "/", "target_label": "joined"}],
    "replace without a separator": [{"source_labels": ["namespace", "pod"], "separator": "", "target_label": "joined"}],
    "replace with a constant": [{"target_label": "cluster", "replacement": "prod"}],
    "replace to an expanded target": [
        {"source_labels": ["pod"], "regex": "([a-z]+)-(.*)", "target_label": "from_${1}", "replacement": "$2"}
    ],
    "replace to an expanded target that is no name": [
        {"source_labels": ["pod"], "regex": "(.+)", "target_label": "${1}", "replacement": "v"}
    ],
    "replace the metric's name": [
        {"source_labels": ["__name__"], "regex": "(.*)", "target_label": "__name__", "replacement": "${1}_renamed"}
    ],
    "replace case-insensitively": [
        {"source_labels": ["Hostname"], "regex": "(?i)node-(.)", "target_label": "node", "replacement": "$1"}
    ],
    "keep": [{"source_labels": ["namespace"], "regex": "team-.*", "action": "keep"}],
    "keep is anchored": [{"source_labels": ["namespace"], "regex": "team", "action": "keep"}],
    "keep alternatives": [{"source_labels": ["namespace"], "regex": "team|gpu-operator", "action": "keep"}],
    "drop": [{"source_labels": ["namespace", "pod"], "regex": "team-b;train-.*", "action": "drop"}],
    "keepequal": [{"source_labels": ["a"], "target_label": "b", "action": "keepequal"}],
    "dropequal": [{"source_labels": ["a"], "target_label": "b", "action": "dropequal"}],
    "hashmod": [{"source_labels": ["namespace", "pod"], "modulus": 1000, "target_label": "shard", "action": "hashmod"}],
    "hashmod of the largest modulus": [
        {"source_labels": ["pod"], "modulus": 2**64 - 1, "target_label": "shard", "action": "hashmod"}
    ],
    "keep a shard": [
        {"source_labels": ["pod"], "modulus": 2, "target_label": "shard", "action": "hashmod"},
        {"source_labels": ["shard"], "regex": "1", "action": "keep"},
    ],
    "labelmap": [{"regex": "exported_(.+)", "action": "labelmap"}],
    "labelmap with a replacement": [{"regex": "exported_(.+)", "replacement": "workload_${1}", "action": "labelmap"}],
    "labelmap that swaps": [{"regex": "(.)_(.)", "replacement": "${2}_$1", "action": "labelmap"}],
    "labelmap of several to one": [{"regex": "[ab]", "replacement": "c", "action": "labelmap"}],
    "labeldrop": [{"regex": "exported_.+|UUID", "action": "labeldrop"}],
    "labelkeep": [{"regex": "__name__|pod|job", "action": "labelkeep"}],
    "lowercase": [{"source_labels": ["Hostname", "UUID"], "target_label": "id", "action": "lowercase"}],
    "uppercase": [{"source_labels": ["pod"], "target_label": "pod", "action": "uppercase"}],
    "actions in any case": [{"regex": "UUID", "action": "LABELDROP"}],
    "the default rules": [
        {"source_labels": [f"exported_{name}"], "regex": "(.+)", "target_label": name}
        for name in ("namespace", "pod", "container")
    ],
    "rules in a chain": [
        {"source_labels": ["pod"], "regex": "(.+)-(.+)", "target_label": "a", "replacement": "$2"},
        {"source_labels": ["a"], "target_label": "b", "action": "dropequal"},
        {"source_labels": ["a", "b"], "target_label": "a", "action": "uppercase"},
        {"regex": "(a)", "replacement": "${1}${1}", "action": "labelmap"},
        {"regex": "b|UUID", "action": "labeldrop"},
    ],
}

EXPRESSIONS = (
    "", "(.*)", "(.+)-(.+)", "([a-z]+)(\\d*).*", "(a|ab)(c|bcd)?(.*)", "(a+?)(a*)", "(?i)(ABC)(.*)", "a(?i)b|(c)",
    "(\\w+)\\W(\\w+)", "([[:alpha:]]+)([[:^alpha:]].*)?", "[]a]+(.*)", "([^\\d]+)(.*)", "(a{1,2})(a{0,2})", "a{,2}(.*)",
    "\\Qa.b\\E+(.*)", "(\\x61)\\x{62}(.*)", "(.*)$", "^(.*)", "(.*?)(\\s+)(.*)", "(\\S+)[\\s\\v](.*)", "(.*)\\b(.)",
    "(?:(a)|(b))+(.*)", "(?P<x>.)(?P<y>.*)", "([a-c-]+)(.*)", "(\\.|-|_)*(.*)", "(é)(.*)", "([^a])(.*)", "(?-s)(.*)",
    "(|a)(|b)(.*)", "((a)(b)?)?(.*)", "(.)(?:(.)(.))?", "[\\W]+(.*)", "(a|b){2}(.*)", "([a\\]]+)(.*)",
)  # fmt: skip
SUBJECTS = (
    "", "a", "aa", "aaa", "ab", "abc", "abcd", "ABC", "aB", "C", "c", "bab", "train-0", "ray-head-x7k2", "a.b", "a.bbb",
    "abb", "a{,2}", "]a", "12", "1a2b", "x y", "x\ty", "a\n", "\na", "a\nb", "é", "éa", "aé", "ÉÉ", "-_.", "a-c", "٣",
    "a]b", "K", "😀a",
)  # fmt: skip


def exposition(metric: str, labels: Mapping[str, str], value: float) -> str:
    escaped = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in labels.items()
    }
    return f"{metric}{{{','.join(f'{name}={chr(34)}{text}{chr(34)}' for name, text in escaped.items())}}} {value}\n"


def serve(pages: Mapping[str, str]) -> Callable[[Received], Reply]:
    return lambda request: Reply(pages[request.path].encode(), headers={"Content-Type": "text/plain; version=0.0.4"})


def scraped(prometheus: PrometheusServer, jobs: int) -> list[tuple[Labels, float]]:
    """Every series with its value, once each job was scraped without error."""
    deadline = time.monotonic() + 60
    while sum(value for _, value in queried(prometheus, "up")) < jobs:
        assert time.monotonic() < deadline, queried(prometheus, "up == 0")
        time.sleep(0.05)
    return queried(prometheus, '{__name__=~"case.*"}')


def queried(prometheus: PrometheusServer, promql: str) -> list[tuple[Labels, float]]:
    data = urllib.parse.urlencode({"query": promql}).encode()
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/query", data=data, timeout=5) as answer:
        return [(series["metric"], float(series["value"][1])) for series in json.load(answer)["data"]["result"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    require_prometheus()
    return tmp_path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[float, Labels]]:
    """The exporter's address, and what one Prometheus made of every case: by value the labels of the scraped series.

    Prometheus waits 5 s before its first scrape, so that all cases share one. The value tells which input a series
    came from, whatever became of its labels: 100 * list + series, or -1 - subject.
    """
    require_prometheus()
    lists = list(RULE_LISTS.values())
    pages = {f"/{n}": case_page(n) for n in range(len(lists))} | {"/regex": subject_page()}
    with HttpStub(serve(pages)) as exporter:
        scrapes = [
            static_scrape(
                f"job-{n}", exporter.address, metrics_path=f"/{n}", metric_relabel_configs=rules, honor_labels=True
            )
            for n, rules in enumerate(lists)
        ]
        regexes = static_scrape("r", exporter.address, metrics_path="/regex", metric_relabel_configs=expression_rules())
        with PrometheusServer(tmp_path_factory.mktemp("relabel"), [*scrapes, regexes]) as prometheus:
            found = scraped(prometheus, len(lists) + 1)
    return exporter.address, {value: labels for labels, value in found}


def case_page(n: int) -> str:
    return "".join(exposition(f"case_{n}", labels, 100 * n + i) for i, labels in enumerate(SERIES))


def subject_page() -> str:
    return "".join(exposition("case", {"subject": text, "n": str(i)}, -1 - i) for i, text in enumerate(SUBJECTS))


def expression_rules() -> list[dict[str, Any]]:
    """(?s) makes an older Prometheus, whose dot matches no newline, read the expression as the newest does."""
    return [
        {
            "source_labels": ["subject"],
            "regex": f"(?s){regex}",
            "target_label": f"result_{n}",
            "replacement": "<$0|$1|$2>",
        }
        for n, regex in enumerate(EXPRESSIONS)
    ]


def test_relabels_as_a_real_prometheus_does(results: tuple[str, dict[float, Labels]]) -> None:
    address, found = results
    theirs = {value: labels for value, labels in found.items() if value >= 0}
    ours = {}
    for n, rules in enumerate(RULE_LISTS.values()):
        target = {"__name__": f"case_{n}", "job": f"job-{n}", "instance": address}
        for i, labels in enumerate(SERIES):
            if (after := relabel({**target, **labels}, parse_rules(rules))) is not None:
                ours[100.0 * n + i] = after
    assert ours == theirs


def test_expressions_match_as_in_a_real_prometheus(results: tuple[str, dict[float, Labels]]) -> None:
    theirs = {
        (SUBJECTS[int(-1 - value)], regex): labels.get(f"result_{n}")
        for value, labels in results[1].items()
        if value < 0
        for n, regex in enumerate(EXPRESSIONS)
    }
    assert {(text, regex): our_result(text, regex) for text in SUBJECTS for regex in EXPRESSIONS} == theirs


def our_result(text: str, regex: str) -> str | None:
    match = compile_anchored(regex).fullmatch(text)
    groups = (match.group(*range(match.re.groups + 1)) if match and match.re.groups else (text,)) if match else ()
    found = [*groups, "", "", ""]
    return f"<{found[0] or ''}|{found[1] or ''}|{found[2] or ''}>" if match else None


REFUSED_BY_BOTH: tuple[dict[str, Any], ...] = (
    {"action": "remove"},
    {"action": ""},
    {"source_label": ["a"], "target_label": "b"},
    {"source_labels": ["a"]},
    {"source_labels": ["a"], "target_label": "a-b"},
    {"source_labels": ["a"], "target_label": "1a"},
    {"source_labels": ["a"], "target_label": "a$"},
    {"action": "hashmod", "target_label": "a"},
    {"action": "hashmod", "modulus": 2},
    {"action": "hashmod", "modulus": 2, "target_label": "${1}"},
    {"action": "lowercase", "source_labels": ["a"]},
    {"action": "uppercase", "target_label": "a", "replacement": "x"},
    {"action": "labelmap", "regex": "a", "replacement": "a-"},
    {"action": "labelmap", "regex": "a", "replacement": ""},
    {"action": "labeldrop", "source_labels": ["a"]},
    {"action": "labeldrop", "regex": "a", "target_label": "b"},
    {"action": "labelkeep", "regex": "a", "modulus": 3},
    {"action": "keepequal", "source_labels": ["a"]},
    {"action": "keepequal", "target_label": "a", "regex": "x"},
    {"action": "dropequal", "target_label": "a", "separator": ","},
    *(
        {"action": "drop", "regex": regex}
        for regex in (
            *("(", ")", "[", "[b-a]", "*", "a**", "a++", "a{2}{3}", "a{1001}", "a{3,2}", "\\1", "(?=a)", "(?<!a)"),
            *("(?P=n)", "(?#c)", "(?>a)", "\\Z", "\\q", "\\u0041", "a\\", "[[:letter:]]", "(?x)a"),
        )
    ),
)


@needs("promtool")
def test_what_we_refuse_prometheus_refuses_too(folder: Path) -> None:
    for rule in REFUSED_BY_BOTH:
        with pytest.raises(ConfigurationError):
            parse_rules([rule])
    configs = []
    for n, rule in enumerate([*REFUSED_BY_BOTH, {"action": "drop", "regex": "accepted"}]):
        configs.append(folder / f"{n}.yml")
        configs[n].write_text(json.dumps({"scrape_configs": [{"job_name": "a", "metric_relabel_configs": [rule]}]}))
    check = subprocess.run(["promtool", "check", "config", *configs], capture_output=True, text=True, check=False)
    valid = [line for line in check.stdout.splitlines() if "SUCCESS" in line]
    assert (check.stderr.count("FAILED:"), len(valid)) == (len(REFUSED_BY_BOTH), 1), check.stdout + check.stderr
    assert str(configs[-1]) in valid[0]
