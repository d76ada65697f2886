"""How a story is shown: as JSON Lines, as plain lines, or live on a terminal."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from scaler_sandbox.sandbox import Sandbox
from scaler_sandbox.stories.facts import ActOutcome, Gang, Row, StoryEntry

_STYLES = {
    "Trains": "bold green",
    "Busy": "green",
    "Running": "green",
    "Admitted": "bold green",
    "Stops": "bold yellow",
    "Idle": "bold yellow",
    "SuspendSoon": "yellow",
    "ScaledToZero": "bold yellow",
    "Deactivated": "yellow",
    "PodsGone": "dim",
    "OwnerWakes": "bold cyan",
    "OwnerKeeps": "bold cyan",
    "Kept": "cyan",
    "KeepEnds": "yellow",
    "History": "green",
    "Waking": "cyan",
    "ScaledToOne": "bold cyan",
    "Reactivated": "cyan",
    "Waiting": "magenta",
    "Planned": "bold cyan",
    "Untouched": "green",
    "Reserved": "cyan",
    "Held": "magenta",
    "Asked": "bold cyan",
    "Accepted": "cyan",
    "Provisioned": "bold cyan",
    "NodeAdded": "bold green",
    "Answered": "magenta",
    "Nominated": "bold cyan",
    "Copied": "cyan",
    "Submitted": "bold",
    "Ended": "dim",
}
_FRAMES_PER_SECOND = 8
_BUSY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


class PlayedAct(Protocol):
    """An act while it runs."""

    def rows(self) -> Sequence[Row]:
        """What a picture shows of it."""

    async def run(self) -> ActOutcome:
        """Tells it to the end, or to the step that did not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """How all acts ended."""

    acts: Sequence[ActOutcome]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(act.ok for act in self.acts)

    @property
    def problem(self) -> str:
        return "; ".join(act.problem or "it was never admitted" for act in self.acts if not act.ok)


class Timeline(Protocol):
    """Shows one telling of the story."""

    def showing(self, worlds: Sequence[Sandbox], act: PlayedAct, introduction: Text) -> AbstractContextManager[object]:
        """The act on these clusters is shown while it runs."""

    def tell(self, entry: StoryEntry) -> None: ...

    def finish(self, ending: DemoOutcome) -> None: ...

    def addresses(self, title: str, addresses: Mapping[str, str]) -> None:
        """The addresses of everything in an act, from now on."""


class JsonTimeline:
    """JSON Lines on standard output; the last line of the story is DemoFinished."""

    def showing(
        self,
        worlds: Sequence[Sandbox],  # noqa: ARG002 (the port's)
        act: PlayedAct,  # noqa: ARG002
        introduction: Text,  # noqa: ARG002
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def tell(self, entry: StoryEntry) -> None:
        self._print({"t": entry.t, **entry.news._asdict()})

    def finish(self, ending: DemoOutcome) -> None:
        line: dict[str, object] = {
            "t": ending.seconds,
            "event": "DemoFinished",
            "object": "Demo/demo",
            "reason": "StoryTold" if ending.ok else "StepMissing",
            "message": ending.problem or "every gang that waited got its GPUs",
            "ok": ending.ok,
        }
        for act in ending.acts:
            line |= act.figures
        self._print(line)

    def addresses(self, title: str, addresses: Mapping[str, str]) -> None:
        # Not on standard output, whose last line is the outcome.
        print(json.dumps({"event": "Serving", "act": title, **addresses}), file=sys.stderr, flush=True)  # noqa: T201

    def _print(self, line: Mapping[str, object]) -> None:
        print(json.dumps(line), flush=True)  # noqa: T201


class PlainTimeline:
    """One line per entry, for pipes and logs. Where the width is known, lines are folded between words."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_piped = not console.is_terminal and "COLUMNS" not in os.environ

    def showing(
        self,
        worlds: Sequence[Sandbox],  # noqa: ARG002 (the port's)
        act: PlayedAct,  # noqa: ARG002
        introduction: Text,
    ) -> AbstractContextManager[object]:
        self._console.print(introduction, soft_wrap=self._is_piped)
        return nullcontext()

    def tell(self, entry: StoryEntry) -> None:
        self._console.print(_line(entry, None if self._is_piped else self._console.width), soft_wrap=True)

    def finish(self, ending: DemoOutcome) -> None:
        self._console.print(_shown(ending), soft_wrap=self._is_piped)

    def addresses(self, title: str, addresses: Mapping[str, str]) -> None:
        self._console.print(_address_table(title, addresses), soft_wrap=True)


class LiveTimeline(PlainTimeline):
    """The timeline scrolls by; GPUs and gangs are drawn below it."""

    def showing(self, worlds: Sequence[Sandbox], act: PlayedAct, introduction: Text) -> AbstractContextManager[object]:
        self._console.print(introduction)
        return self._drawing(worlds, act)

    @contextmanager
    def _drawing(self, worlds: Sequence[Sandbox], act: PlayedAct) -> Iterator[None]:
        def draw() -> RenderableType:
            return _picture(worlds, act)

        with Live(get_renderable=draw, console=self._console, refresh_per_second=_FRAMES_PER_SECOND, transient=True):
            yield


FIRST_ACT = Text.assemble(
    ("Two Ray clusters of 2 GPUs each share a quota of 2.", "bold"),
    " The first holds the GPUs, the second waits.\n",
    ("What takes hours elsewhere takes seconds here: idleAfter is 6s, warmUp 2s. The scaler is the real one.\n", "dim"),
)

SECOND_ACT = Text.assemble(
    ("\nThree teams share 16 GPUs on four nodes in one cohort.", "bold"),
    " Five notebooks are idle; then a gang of 8 comes.\n",
    ("No workload is suspended while none waits; then the fewest that let the gang in, all of them or none.\n", "dim"),
)

THIRD_ACT = Text.assemble(
    ("\nA gang of 16 waits: 8 GPUs are idle, and 8 more do not exist yet.", "bold"),
    " Quota says it may have them all.\n",
    (
        "It is held until the last pod of the suspended notebooks has ended, and the node that it lacks is there.\n",
        "dim",
    ),
)


FOURTH_ACT = Text.assemble(
    ("\nA notebook is idle, and a gang waits.", "bold"),
    " Its owner is warned, and keeps it for a while.\n",
    ("Then the gang gets its GPUs; the notebook comes back when they are free and no Workload waits.\n", "dim"),
)

FIFTH_ACT = Text.assemble(
    ("\nTwo clusters are full: all GPUs of one are busy, half of the other's are idle.", "bold"),
    " A gang of 4 comes to the hub.\n",
    ("It goes where idle GPUs are. Only there are notebooks suspended, and the busy cluster never sees it.\n", "dim"),
)


def _line(entry: StoryEntry, width: int | None) -> Text:
    event, about, _, message = entry.news
    kind, _, name = about.partition("/")
    head = Text.assemble(
        (f"{entry.t:6.1f}s ", "dim"),
        (f"{event:<13}", _STYLES.get(event, "")),
        (f"{name:<18} ", "bold" if kind in {"RayCluster", "Job"} else ""),
    )
    return head.append(message if width is None else folded(message, width, begin=len(head)))


_SENTENCE, _INDENT = 26, 8
"""Columns that a sentence needs to stand in a column of its own; else it goes on below the event."""


def folded(message: str, width: int, *, begin: int) -> str:
    """The message in lines of the width, the first from column `begin` on. No word is broken."""
    words = message.split()
    indent = begin if width - begin >= max([_SENTENCE, *map(len, words)]) else _INDENT
    lines, column = [""], begin
    for word in words:
        if column + len(word) > width and column > indent:
            lines, column = [*lines, " " * indent], indent
        lines[-1] += f"{word} "
        column += len(word) + 1
    return "\n".join(line.rstrip() for line in lines)


def _shown(ending: DemoOutcome) -> RenderableType:
    if not ending.ok:
        return Text.assemble(("\nThe story broke off: ", "bold red"), ending.problem)
    text = Text.assemble(("\nDone ", "bold green"), f"in {ending.seconds:.0f} s.")
    for act in ending.acts:
        text.append(f"\n{act.summary}")
    return text


def _address_table(title: str, addresses: Mapping[str, str]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for name, address in addresses.items():
        grid.add_row(Text(name, style="dim"), address)
    return Group(Text(f"\n{title}", style="bold"), grid)


def _picture(worlds: Sequence[Sandbox], act: PlayedAct) -> RenderableType:
    """The GPUs with who holds them and how busy they are, and the gangs."""
    devices = Table("GPU", "held by", "busy", box=None, pad_edge=False, header_style="dim", expand=True)
    nodes = ((world, node) for world in worlds for node in world.exporter_urls)
    for world, node in nodes:
        for reading in world.fleet.readings(node):
            holder = reading.holder.pod if reading.holder else "-"
            devices.add_row(f"{node}/{reading.gpu.index}", holder, _bar(reading.values.get(_BUSY, 0.0)))
    gangs = Table("gang", "asked", "state", box=None, pad_edge=False, header_style="dim", expand=True)
    for row in act.rows():
        gangs.add_row(row.name, str(row.asked), _state(row.gang))
    return Panel(Group(devices, Text(""), gangs), border_style="dim")


def _bar(level: float) -> Text:
    width = 20
    filled = round(level * width)
    return Text.assemble(("█" * filled, "green"), ("░" * (width - filled), "dim"), f" {100 * level:3.0f} %")


def _state(gang: Gang) -> Text:
    if gang.is_running:
        return Text(f"runs, {gang.running} of {gang.pods} pods", style="green")
    if not gang.exists:
        return Text("-", style="dim")
    if not gang.active:
        return Text(f"suspended, {gang.pods} pods left" if gang.pods else "suspended", style="yellow")
    if gang.admitted:
        return Text(f"starts, {gang.running} of {gang.pods} pods", style="green")
    if gang.reserved:
        return Text("has its quota, and is held", style="magenta")
    return Text("waits for quota", style="magenta")
