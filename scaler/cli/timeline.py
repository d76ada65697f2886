"""How a story is shown: as JSON Lines, as plain lines, or live on a terminal."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from scaler.embedded.facts import Gang
from scaler.embedded.story import Entry, Outcome, Story
from scaler.embedded.world import World

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
    "Waking": "cyan",
    "ScaledToOne": "bold cyan",
    "Reactivated": "cyan",
    "Waiting": "magenta",
    "Ended": "dim",
}
_FRAMES_PER_SECOND = 8
_BUSY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


class Timeline(Protocol):
    """Shows one telling of the story."""

    def showing(self, world: World, story: Story) -> AbstractContextManager[object]:
        """While the story runs."""

    def tell(self, entry: Entry) -> None: ...

    def finish(self, outcome: Outcome) -> None: ...

    def addresses(self, addresses: Mapping[str, str]) -> None:
        """Where everything can be reached from now on."""


class JsonTimeline:
    """JSON Lines on standard output; the last line of the story is DemoFinished."""

    def showing(self, world: World, story: Story) -> AbstractContextManager[object]:  # noqa: ARG002 (the port's)
        return nullcontext()

    def tell(self, entry: Entry) -> None:
        self._print({"t": entry.t, **entry.news._asdict()})

    def finish(self, outcome: Outcome) -> None:
        self._print(
            {
                "t": outcome.seconds,
                "event": "DemoFinished",
                "object": "Demo/demo",
                "reason": "StoryTold" if outcome.ok else "StepMissing",
                "message": outcome.problem or "the waiting gang got its GPUs, and the first came back",
                "ok": outcome.ok,
                "seconds_from_last_activity_to_next_gang_admitted": (
                    outcome.seconds_from_last_activity_to_next_gang_admitted
                ),
            }
        )

    def addresses(self, addresses: Mapping[str, str]) -> None:
        # Not on standard output, whose last line is the outcome.
        print(json.dumps({"event": "Serving", **addresses}), file=sys.stderr, flush=True)  # noqa: T201

    def _print(self, line: Mapping[str, object]) -> None:
        print(json.dumps(line), flush=True)  # noqa: T201


class PlainTimeline:
    """One line per entry, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def showing(self, world: World, story: Story) -> AbstractContextManager[object]:  # noqa: ARG002 (the port's)
        self._console.print(_INTRODUCTION)
        return nullcontext()

    def tell(self, entry: Entry) -> None:
        self._console.print(_line(entry), soft_wrap=True)

    def finish(self, outcome: Outcome) -> None:
        self._console.print(_ending(outcome), soft_wrap=True)

    def addresses(self, addresses: Mapping[str, str]) -> None:
        self._console.print(_address_table(addresses), soft_wrap=True)


class LiveTimeline(PlainTimeline):
    """The timeline scrolls by; GPUs and gangs are drawn below it."""

    def showing(self, world: World, story: Story) -> AbstractContextManager[object]:
        self._console.print(_INTRODUCTION)
        return self._drawing(world, story)

    @contextmanager
    def _drawing(self, world: World, story: Story) -> Iterator[None]:
        def draw() -> RenderableType:
            return _picture(world, story) if hasattr(story, "facts") else Text("")

        with Live(get_renderable=draw, console=self._console, refresh_per_second=_FRAMES_PER_SECOND, transient=True):
            yield


_INTRODUCTION = Text.assemble(
    ("Two Ray clusters of 2 GPUs each share a quota of 2.", "bold"),
    " The first holds the GPUs, the second waits.\n",
    ("What takes hours elsewhere takes seconds here: idleAfter is 6s, warmUp 2s. The scaler is the real one.\n", "dim"),
)


def _line(entry: Entry) -> Text:
    event, about, _, message = entry.news
    kind, _, name = about.partition("/")
    return Text.assemble(
        (f"{entry.t:6.1f}s ", "dim"),
        (f"{event:<13}", _STYLES.get(event, "")),
        (f"{name:<18} ", "bold" if kind == "RayCluster" else ""),
        (message, ""),
    )


def _ending(outcome: Outcome) -> RenderableType:
    if not outcome.ok:
        return Text.assemble(("\nThe story broke off: ", "bold red"), outcome.problem)
    handover = outcome.seconds_from_last_activity_to_next_gang_admitted
    return Text.assemble(
        ("\nDone ", "bold green"),
        f"in {outcome.seconds:.0f} s. From the first gang's last work to the next gang's admission: ",
        (f"{handover:.1f} s", "bold"),
        ", of which 6 s are idleAfter.",
    )


def _address_table(addresses: Mapping[str, str]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for name, address in addresses.items():
        grid.add_row(Text(name, style="dim"), address)
    hint = Text("\nStill running; end it with Ctrl-C.", style="dim")
    return Group(Text(""), grid, hint)


def _picture(world: World, story: Story) -> RenderableType:
    """The GPUs with who holds them and how busy they are, and the gangs."""
    devices = Table("GPU", "held by", "busy", box=None, pad_edge=False, header_style="dim", expand=True)
    for node in world.exporter_urls:
        for reading in world.fleet.readings(node):
            holder = reading.holder.pod if reading.holder else "-"
            devices.add_row(f"{node}/{reading.gpu.index}", holder, _bar(reading.values.get(_BUSY, 0.0)))
    gangs = Table("gang", "asked", "state", box=None, pad_edge=False, header_style="dim", expand=True)
    for gang in (story.facts.first, story.facts.second):
        asked = str(story.facts.scaled.desired) if gang is story.facts.first else "1"
        gangs.add_row(gang.name, asked, _state(gang))
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
    return Text("waits for quota", style="magenta")
