"""`idle-gpu-scaler queues`: the quota of Cohorts and ClusterQueues, and its usage."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.client import ScalerClient
from scaler.app.cli.layout import aligned, labelled_rows, table_or_list, width_of
from scaler.kube.quantity import CPU, as_text

Json = Mapping[str, Any]

_NUMBERS = ("FLAVOR", "NOMINAL", "USED", "IDLE", "RECLAIMABLE", "AVAILABLE", "BORROWED", "PENDING")
_UNKNOWN = "?"


def run_queues(client: ScalerClient, *, all_resources: bool) -> int:
    """The exit status. Raises: ScalerError."""
    query = [("allResources", "true")] if all_resources else []
    answer = asyncio.run(
        client.ask(["queues"], query, lambda local: local.queries.queues(all_resources=all_resources), key="trees")
    )
    client.show(answer, render)
    return 0


def render(answer: Json, width: int) -> RenderableType:
    """The trees for a terminal that is so wide."""
    parts: list[RenderableType] = []
    if answer["unjudged"]:
        parts += [Text(f"Verdicts are unknown: {answer['unjudged']}", style="magenta"), ""]
    lines = [line for tree in answer["trees"] for line in _lines(tree)]
    if not lines:
        return Text("There are no ClusterQueues.")
    parts.append(_laid_out(lines, width))
    doubts = [doubt for tree in answer["trees"] for doubt in tree["doubts"]]
    parts += [Text(f"cannot be read, no plans are made for it: {doubt}", style="red") for doubt in doubts]
    parts += ["", _legend()]
    return Group(*parts)


def _legend() -> RenderableType:
    """What the headings do not say by themselves."""
    rows = [
        ("idle", "used by workloads with the verdict Idle"),
        ("reclaimable", "of these, what a reclaim plan may free for a pending Workload"),
        ("available", "what another Workload can be admitted with now, including borrowing"),
    ]
    return labelled_rows([(label, Text(text, style="dim")) for label, text in rows])


# -------------------------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One flavor of a node; `name` is empty for all but its first one."""

    name: Text
    under: Text
    """The tree as it goes on below the name."""
    cells: Sequence[str | Text]
    limits: str


def _lines(node: Json, lead: str = "", below: str = "") -> Iterator[_Line]:
    """`lead` and `below` draw the tree: before the name, and under it."""
    children, resources = node["children"], {each["resource"] for each in node["flavors"]}
    under = Text(below + ("│ " if children else "  "), style="dim")
    name = Text.assemble((lead, "dim"), (node["name"], "bold" if node["kind"] == "Cohort" else ""))
    if state := _state(node):
        name.append(f" ({state})", style="red")
    for place, flavor in enumerate(node["flavors"]):
        is_first = place == 0 or flavor["resource"] != node["flavors"][place - 1]["resource"]
        yield _Line(
            name=name if place == 0 else Text(),
            under=under,
            cells=[*_cells(flavor, node["pending"], is_first=is_first, several=len(resources) > 1)],
            limits=_limits(flavor),
        )
    if not node["flavors"]:
        yield _Line(name=name, under=under, cells=[""] * len(_NUMBERS), limits="")
    for place, child in enumerate(children):
        is_last = place == len(children) - 1
        yield from _lines(child, below + ("└─ " if is_last else "├─ "), below + ("   " if is_last else "│  "))


def _laid_out(lines: Sequence[_Line], width: int) -> RenderableType:
    """One table; where it is too wide, with the names on lines of their own; where that is, too, number by number."""
    rows = [[line.name or line.under, *line.cells, line.limits] for line in lines]
    headings = ("QUEUE", *_NUMBERS, "LIMITS")
    words = (0, 1, len(headings) - 1)
    if width_of(headings, rows) > width:
        numbers = [[line.under, *line.cells] for line in lines]
        if width_of(("", *_NUMBERS), numbers) <= width:
            return _names_between(lines, numbers)
    return table_or_list(headings, rows, width, words=words)


def _names_between(lines: Sequence[_Line], numbers: Sequence[Sequence[str | Text]]) -> RenderableType:
    head, *rest = aligned(("", *_NUMBERS), numbers, words=(0, 1))
    parts: list[RenderableType] = [head]
    for line, row in zip(lines, rest, strict=True):
        if line.name:
            parts.append(Text.assemble(line.name, (f"  {line.limits}", "dim")))
        parts.append(row)
    return Group(*parts)


def _state(node: Json) -> str:
    if node["kind"] == "Cohort":
        return ""
    stopped = node["stopPolicy"] if node["stopPolicy"] != "None" else ""
    return node["inactiveBecause"] or stopped


def _cells(flavor: Json, pending: Json, *, is_first: bool, several: bool) -> Iterator[str | Text]:
    resource = flavor["resource"]
    yield f"{flavor['flavor']} {resource}" if several else flavor["flavor"]
    yield amount(resource, flavor["nominal"])
    yield amount(resource, flavor["used"])
    yield _shining(amount(resource, flavor["idle"]), "yellow")
    yield _shining(amount(resource, flavor["reclaimable"]), "bold yellow")
    yield _shining(amount(resource, flavor["available"]), "green")
    yield _shining(amount(resource, flavor["borrowed"]), "cyan")
    yield _shining(amount(resource, pending.get(resource, 0)), "magenta") if is_first else ""


def _shining(text: str, style: str) -> Text:
    """Zeros are dim."""
    return Text(text, style="dim" if text in ("0", _UNKNOWN) else style)


def _limits(flavor: Json) -> str:
    resource, words = flavor["resource"], []
    if flavor["borrowingLimit"] is not None:
        words.append(f"borrows ≤ {amount(resource, flavor['borrowingLimit'])}")
    if flavor["lendingLimit"] is not None:
        words.append(f"lends ≤ {amount(resource, flavor['lendingLimit'])}")
    return ", ".join(words)


def amount(resource: str, value: float | None) -> str:
    """As it is written in a manifest."""
    if value is None:
        return _UNKNOWN
    return as_text(resource, round(value * 1000) if resource == CPU else int(value))
