"""What pages show of the program itself between two marks: folders, `--help`, permissions, metrics and settings.

`uv run python -m docs.generate` writes all of it anew.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from click.testing import CliRunner

from deploy.policy_schema import meanings, without_links
from docs.settings_page import tables as settings
from scaler import __version__
from scaler.app.cli.main import app
from scaler.decision.decision import Active, Inactive
from scaler.decision.gates import GATES, Gate
from scaler.decision.reasons import FOUND_IDLE, STATES, CandidateState
from scaler.doctor.permissions import REQUIRED_RULES, RequiredRule
from scaler.idleness.policy import FIELDS, Policy, describe
from scaler.idleness.verdict import Unknown
from scaler.reporting.metric_declarations import LABELS, MetricDeclaration
from scaler.reporting.metrics import Metrics

ROOT = Path(__file__).parent.parent
ARTIFACT_HUB = ROOT / "deploy" / "artifacthub" / "idle-gpu-scaler"
VERBS = (
    "",
    "run",
    "explain",
    "plan",
    "pending",
    "queues",
    "top",
    "report",
    "keep",
    "wake",
    "exclude",
    "suspend",
    "history",
    "policy test",
    "simulate",
    "doctor",
    "version",
    "demo",
)
FOLDERS = (
    "samples", "idleness", "targets", "decision", "keda", "suspension", "attachment", "quota", "placement", "reclaim",
    "multikueue", "admission", "reporting", "notifications", "requests", "doctor", "kube", "tls", "app",
)  # fmt: skip
"""The folders in the order of a decision; then what all of them stand on, and the process that they make."""
OTHERS = (ROOT / "analysis" / "scaler_analysis", ROOT / "sandbox" / "scaler_sandbox")
"""Packages of other distributions."""


def map_of_folders() -> str:
    """A row for each folder of the program, and one for each other package, with the first line of its docstring."""
    folders = [*(ROOT / "scaler" / folder for folder in FOLDERS), *OTHERS]
    rows = (
        f"| [`{shown}`]({shown}) | {first_line(each)} |\n" for each in folders for shown in [each.relative_to(ROOT)]
    )
    return "| folder | |\n|---|---|\n" + "".join(rows)


def first_line(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert docstring, f"{package} does not say what it is"
    return docstring.splitlines()[0]


def help_of(verb: str) -> str:
    """What `idle-gpu-scaler VERB --help` prints on a terminal of 100 columns."""
    plain = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    words = [*verb.split(), "--help"]
    done = CliRunner().invoke(typer.main.get_command(app), words, prog_name="idle-gpu-scaler", env=plain)
    return "\n".join(line.rstrip() for line in done.output.strip().splitlines())


def help_of_all() -> str:
    blocks = (f"```\n$ idle-gpu-scaler {verb + ' ' if verb else ''}--help\n{help_of(verb)}\n```\n" for verb in VERBS)
    return "\n".join(blocks)


def permission_table() -> str:
    rows = [f"| {', '.join(rule.verbs)} | {objects_of(rule)} | {rule.part} |" for rule in REQUIRED_RULES]
    return "\n".join(["| its account needs to | | for |", "|---|---|---|", *rows, ""])


def objects_of(rule: RequiredRule) -> str:
    names = [str(each) for each in rule.on]
    if rule.on_targets:
        slash = f"`/{rule.subresource_of_targets}` of " if rule.subresource_of_targets else ""
        names.append(f"{slash}the kinds that are scaled (deployments.apps, …)")
    places = {"the Lease's": rule.in_lease_namespace, "Kueue's": rule.in_kueue_namespace}
    return ", ".join(names) + "".join(f" in {whose} namespace" for whose, is_there in places.items() if is_there)


def metrics() -> str:
    """A table for each section."""
    declared = Metrics().declared
    return "\n".join(
        line
        for title, group in groupby(declared, lambda each: each.section)
        for line in _table_of_metrics(title, group)
    )


def _table_of_metrics(title: str, group: Iterator[MetricDeclaration[Any]]) -> Iterator[str]:
    yield f"### {title}\n"
    yield "| name | type | unit | labels | shown by | meaning |"
    yield "|---|---|---|---|---|---|"
    for each in group:
        labels = " ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.name}` | {each.type} | {each.unit} | {labels} | {each.shown} | {each.meaning} |"
    yield ""


def labels() -> str:
    """A line for each label."""
    lines = (f"| `{label}` | {meaning} |" for label, meaning in LABELS.items())
    return "\n".join(["| label | values |", "|---|---|", *lines, ""])


def parameters() -> str:
    """Trigger metadata: a row for each field of a policy, between what is KEDA's own."""
    rows = (
        f"| `{each.key}` | {_default(name)} | {meanings()[name]} | {each.kind.written} |"
        for name, each in FIELDS.items()
    )
    head = ["| parameter | default | meaning | written as |", "|---|---|---|---|", _ADDRESS]
    return "\n".join([*head, *rows, *_OF_KEDA, ""])


def parameters_in_short() -> str:
    """The table of parameters for a page elsewhere, to which no links lead."""
    meant = {name: without_links(text) for name, text in meanings().items()}
    rows = (f"| `{each.key}` | {_default(name)} | {meant[name]} |" for name, each in FIELDS.items())
    head = ["| parameter | default | meaning |", "|---|---|---|"]
    return "\n".join([*head, "| `scalerAddress` | required | the scaler's headless Service |", *rows, ""])


_ADDRESS = (
    "| `scalerAddress` | required | address of the scaler: a *headless* Service, so that KEDA reaches all replicas "
    "| `HOST:PORT` |"
)
_OF_KEDA = (
    '| `enableTLS` | – | KEDA\'s own: use TLS | `"true"` |',
    '| `unsafeSsl` | – | KEDA\'s own: accept any certificate. Do not use it | `"true"` |',
)


def _default(name: str) -> str:
    return "–" if getattr(Policy(), name) in (None, (), "") else f"`{describe(name, Policy())}`"


def policy_spec() -> str:
    """The place of each field of a policy in the spec of an IdlePolicy, and its key in trigger metadata."""
    rows = [f"| `{'.'.join(each.place)}` | `{each.key}` |" for each in FIELDS.values() if each.place]
    return "\n".join(["| `spec.…` | in trigger metadata |", "|---|---|", *rows, ""])


def gates() -> str:
    """What is decided about a target: a row for each gate, in their order."""
    rows = (f"| {each.when} | {_answer(each)} | {_reasons(each)} |" for each in GATES)
    return "\n".join(["| the target | answer | reason |", "|---|---|---|", *rows, ""])


def _answer(gate: Gate) -> str:
    shown = {Active: "1", Inactive: "0", Unknown: "error"}[gate.kind]
    return f"**{shown}**" if set(gate.reasons) & FOUND_IDLE else shown


def _reasons(gate: Gate) -> str:
    return ", ".join(f"`{each}`" for each in gate.reasons) or "the reason of the verdict"


def states() -> str:
    """The states of a workload between work and suspension: a table, and a picture of what follows what."""
    rows = [
        f"| `{state}` | {row.meaning} | {f'`{row.event}`' if row.event else 'another of that moment'} "
        f"| {'yes' if row.may_suspend else 'no'} |"
        for state, row in STATES.items()
    ]
    arrows = [f"    {before} --> {state}" for state, row in STATES.items() for before in CHAIN if _leads(before, state)]
    lines = ["| state | meaning | Event of its begin | KEDA may get 0 |", "|---|---|---|---|", *rows, ""]
    return "\n".join([*lines, "```mermaid", "stateDiagram-v2", *arrows, "```", ""])


CHAIN = tuple(CandidateState)


def _leads(before: CandidateState, state: CandidateState) -> bool:
    """Whether the picture shows it: Kept, Excluded, Observing, Unknown and Busy may follow nearly everything."""
    is_shown = state not in _FROM_ANYWHERE and before not in _FROM_ANYWHERE - {CandidateState.BUSY}
    return before != state and before in STATES[state].after and (is_shown or _is_way_back(before, state))


def _is_way_back(before: CandidateState, state: CandidateState) -> bool:
    return state is CandidateState.BUSY and before in {
        CandidateState.IDLE,
        CandidateState.WARNED,
        CandidateState.WAKING,
    }


_FROM_ANYWHERE = frozenset(state for state, row in STATES.items() if row.after == frozenset(CandidateState))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedPage:
    """A page, and what belongs between which marks."""

    path: Path
    sections: Mapping[str, Callable[[], str]]

    def shown(self, name: str) -> str:
        """What the page has between the marks. Raises: ValueError where they are not there."""
        return _parts(self.path.read_text(encoding="utf-8"), name)[1]

    def rewrite(self) -> None:
        """Put between all marks what belongs there."""
        text = self.path.read_text(encoding="utf-8")
        for name, made in self.sections.items():
            before, _, after = _parts(text, name)
            text = before + made() + after
        self.path.write_text(text, encoding="utf-8")


def _parts(text: str, name: str) -> tuple[str, str, str]:
    """What comes up to the first mark, between both, and from the second one on."""
    mark = f"<!-- {name} -->\n"
    begin, end = text.index(mark) + len(mark), text.index(f"<!-- /{name} -->\n")
    return text[:begin], text[begin:end], text[end:]


PAGES = (
    MarkedPage(path=ROOT / "README.md", sections={"map": map_of_folders}),
    MarkedPage(path=ROOT / "docs" / "command-line.md", sections={"help": help_of_all}),
    MarkedPage(path=ROOT / "docs" / "concepts.md", sections={"gates": gates}),
    MarkedPage(path=ROOT / "docs" / "idle-policies.md", sections={"fields": policy_spec}),
    MarkedPage(path=ROOT / "docs" / "install.md", sections={"permissions": permission_table}),
    MarkedPage(path=ROOT / "docs" / "metrics.md", sections={"metrics": metrics, "labels": labels}),
    MarkedPage(path=ROOT / "docs" / "policies.md", sections={"states": states}),
    MarkedPage(path=ROOT / "docs" / "settings.md", sections={"settings": settings}),
    MarkedPage(path=ROOT / "docs" / "trigger-reference.md", sections={"parameters": parameters}),
    MarkedPage(path=ARTIFACT_HUB / __version__ / "README.md", sections={"parameters": parameters_in_short}),
)


if __name__ == "__main__":
    for page in PAGES:
        page.rewrite()
