"""Do the rules' tests notice when a threshold is not what it was?

    uv run python -m dashboards.mutations            # every threshold of every rule, each moved down and up
    uv run python -m dashboards.mutations GPUPodIdle # of one rule

Each number that something is compared with, and each `for`, is moved by a fifth down and a quarter up (whole numbers by
at least 1), in a copy of the rules. Then a test of that file of rules must fail; a mutant that survives is a threshold
that no test covers. The tests of one alert are in a file of its name and are tried first, then all others of the same
rules. It needs `promtool` (Debian package prometheus).
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

import yaml

from dashboards.prometheus_rules import RULES

_COMPARISON = re.compile(r"(?<![=!~<>])(>=|<=|==|!=|>|<)\s*(?:bool\s+)?(?P<number>\d+(?:\.\d+)?)(?![\w.])")
_DURATION = re.compile(r"(\d+)(ms|[smhdwy])")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One threshold of one rule, moved."""

    file: Path
    group: int
    rule: int
    name: str
    field: str
    """`expr` or `for`."""
    text: str
    """What the field says now."""
    moved: str
    """The change in words."""


def mutants_of(file: Path) -> Iterator[Mutant]:
    """All mutants of a file of rules."""
    for at, group in enumerate(yaml.safe_load(file.read_text())["groups"]):
        for position, rule in enumerate(group["rules"]):
            name = rule.get("alert") or rule["record"]
            for field, text, moved in [*_of_expr(str(rule["expr"])), *_of_for(rule.get("for"))]:
                yield Mutant(file=file, group=at, rule=position, name=name, field=field, text=text, moved=moved)


def _of_expr(expr: str) -> Iterator[tuple[str, str, str]]:
    for found in _COMPARISON.finditer(expr):
        start, end = found.span("number")
        for number in _moved(found["number"]):
            yield "expr", f"{expr[:start]}{number}{expr[end:]}", f"{found[0]} to {number}"


def _moved(number: str) -> tuple[str, str]:
    if "." in number:
        return f"{float(number) * 0.8:.6g}", f"{float(number) * 1.25:.6g}"
    whole = int(number)
    return str(min(whole - 1, round(whole * 0.8))), str(max(whole + 1, round(whole * 1.25)))


def _of_for(text: str | None) -> Iterator[tuple[str, str, str]]:
    if text is None:
        return
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in _DURATION.findall(str(text)))
    for factor in (0.8, 1.25):
        other = f"{round(seconds * factor)}s"
        yield "for", other, f"for {text} to {other}"


def tests_of(file: Path) -> Path:
    """The folder with the tests of a file of rules."""
    return file.parent / "tests" / file.name.removesuffix(".rules.yaml")


def is_noticed(mutant: Mutant) -> bool:
    """Whether a test fails of it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        rules = Path(folder) / "rules"
        shutil.copytree(mutant.file.parent, rules)
        changed = rules / mutant.file.name
        content = yaml.safe_load(changed.read_text())
        content["groups"][mutant.group]["rules"][mutant.rule][mutant.field] = mutant.text
        changed.write_text(yaml.safe_dump(content))
        tests = sorted(tests_of(changed).glob("*.test.yaml"), key=lambda each: not each.name.startswith(mutant.name))
        return any(not _passes(test) for test in tests)


def _passes(test: Path) -> bool:
    ran = subprocess.run(["promtool", "test", "rules", str(test)], capture_output=True, check=False, timeout=120)
    return ran.returncode == 0


def main(names: list[str]) -> int:
    """The exit status: 1 where a mutant survives."""
    files = sorted(RULES.glob("*.rules.yaml"))
    mutants = [each for file in files for each in mutants_of(file) if not names or each.name in names]
    with ThreadPoolExecutor(cpu_count()) as pool:
        noticed = list(pool.map(is_noticed, mutants))
    survivors = [mutant for mutant, is_so in zip(mutants, noticed, strict=True) if not is_so]
    for mutant in survivors:
        print(f"{mutant.file.name}: {mutant.name}: no test fails although {mutant.moved}")
    print(f"{sum(noticed)} of {len(mutants)} moved thresholds are noticed ({sum(noticed) / max(1, len(mutants)):.0%})")
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
