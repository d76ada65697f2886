"""Our relabelling and expressions against a real Prometheus: the tables of `test_relabel`, and random rules."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from idleness.random_rules import Job, differences, random_jobs
from idleness.test_relabel import CASES, REFUSED
from programs import needs
from prometheus_server import require_prometheus

from scaler.errors import ConfigurationError
from scaler.idleness.relabel import parse_rules

pytestmark = pytest.mark.prometheus

NEWER = {"of groups that share a name the first that took part counts"}
"""What only Prometheus as built with Go 1.22 and later takes."""
DELIBERATE = {"labelmap to no name leaves the label alone"}
"""Prometheus would fail the whole scrape."""


def table_jobs() -> list[Job]:
    """The table's rules; each series keeps a metric's name, without which its scrape would fail."""
    cases = [case for name, case in CASES.items() if name not in NEWER | DELIBERATE]
    return [
        Job(n, [*rules, {"target_label": "__name__", "replacement": f"case_{100 * n}"}], [before])
        for n, (rules, before, _) in enumerate(cases)
    ]


@pytest.mark.parametrize("count", [120, pytest.param(2000, marks=pytest.mark.slow)])
def test_relabels_as_a_real_prometheus_does(count: int) -> None:
    """One Prometheus for all, because it waits 5 s before its first scrape."""
    require_prometheus()
    written = table_jobs()
    assert differences([*written, *random_jobs(count, seed=20, first=len(written))], seconds=5) == []


LAXER = {"a regex that is a number", "a regex that is nothing", "uppercase to an expanded target"}
"""What Prometheus' YAML reader lets pass, and what only the newest refuses."""
NO_EXPRESSIONS = (
    *("(", ")", "[", "[b-a]", "*", "a**", "a++", "a{2}{3}", "a{1001}", "a{3,2}", "\\1", "(?=a)", "(?<!a)", "(?P=n)"),
    *("(?#c)", "(?>a)", "\\Z", "\\q", "\\u0041", "a\\", "[[:letter:]]", "(?x)a", "\\C", "(?P<é>a)", "\\p{Nope}", "a)"),
)


@needs("promtool")
def test_what_we_refuse_prometheus_refuses_too(tmp_path: Path) -> None:
    refused: list[Any] = [rule for name, (rule, _) in REFUSED.items() if name not in LAXER]
    refused += [{"action": "drop", "regex": regex} for regex in NO_EXPRESSIONS]
    for rule in refused:
        with pytest.raises(ConfigurationError):
            parse_rules([rule])
    configs = []
    for n, rule in enumerate([*refused, {"action": "drop", "regex": "accepted"}]):
        configs.append(tmp_path / f"{n}.yml")
        configs[n].write_text(json.dumps({"scrape_configs": [{"job_name": "a", "metric_relabel_configs": [rule]}]}))
    check = subprocess.run(["promtool", "check", "config", *configs], capture_output=True, text=True, check=False)
    valid = [line for line in check.stdout.splitlines() if "SUCCESS" in line]
    assert (check.stderr.count("FAILED:"), len(valid)) == (len(refused), 1), check.stdout + check.stderr
    assert str(configs[-1]) in valid[0]
