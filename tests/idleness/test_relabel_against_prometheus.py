"""Our relabelling and expressions against those of a real Prometheus, on the same series."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from idleness.random_rules import Job, differences, random_jobs
from programs import needs
from prometheus_server import require_prometheus

from scaler.errors import ConfigurationError
from scaler.idleness.relabel import parse_rules

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    require_prometheus()
    return tmp_path


def test_relabels_as_a_real_prometheus_does(folder: Path) -> None:
    """One Prometheus for all, because it waits 5 s before its first scrape."""
    written = [Job(n, rules, SERIES) for n, rules in enumerate(RULE_LISTS.values())]
    assert differences([*written, *random_jobs(900, seed=20, first=len(written))], seconds=5) == []


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
            *(
                "(?P=n)",
                "(?#c)",
                "(?>a)",
                "\\Z",
                "\\q",
                "\\u0041",
                "a\\",
                "[[:letter:]]",
                "(?x)a",
                "\\C",
                "(?P<é>a)",
                "\\p{Nope}",
                "a)",
            ),
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
