"""`idle-gpu-scaler top`: the workloads that are idle longest, again and again."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient
from scaler.app.cli.layout import count, table_or_list, terminal
from scaler.idleness.durations import format_duration

_SECOND = timedelta(seconds=1)
_STYLES = {"Idle": "yellow", "Busy": "green", "Unknown": "magenta"}


def run_top(client: ScalerClient, *, lines: int, every: float | None) -> int:
    """It is shown once where `every` is None, and where nobody watches. Raises: ScalerError."""

    def shown(answer: Json, width: int) -> RenderableType:
        return render(answer, width, lines=lines, now=datetime.now(UTC))

    async def ask() -> Json:
        return await client.ask(["decisions"], [], lambda local: local.overview(), key="decisions", needs_verdicts=True)

    async def watch(seconds: float) -> None:
        console = terminal()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(shown(await ask(), console.width), refresh=True)
                await asyncio.sleep(seconds)

    if every is None or client.as_json or client.local or not terminal().is_terminal:
        client.show(asyncio.run(ask()), shown)
    else:
        asyncio.run(watch(every))
    return 0


def render(answer: Json, width: int, *, lines: int, now: datetime) -> RenderableType:
    decisions = sorted(answer["decisions"], key=_idle_longest)
    rows = [_line(each, now) for each in decisions[:lines]]
    idle = sum(each.get("gpus", 0) for each in decisions if each.get("verdict") == "Idle")
    held = sum(each.get("gpus", 0) for each in decisions)
    total = Text(f"{count(len(decisions), 'workload')}, {count(held, 'GPU')}; idle: {count(idle, 'GPU')}", style="dim")
    headings = ("WORKLOAD", "GPUS", "VERDICT", "QUIET FOR", "SUSPENDED IN", "REASON")
    return Group(total, table_or_list(headings, rows, width, words=(0, 2, 5)))


def _idle_longest(line: Mapping[str, Any]) -> tuple[bool, str, str, str]:
    since = line.get("idleSince")
    return since is None, since or "", line["namespace"], line["name"]


def _line(line: Mapping[str, Any], now: datetime) -> list[str | Text]:
    verdict = line.get("verdict") or ""
    return [
        f"{line['namespace']}/{line['name']}",
        str(line.get("gpus") or ""),
        Text(verdict, style=_STYLES.get(verdict, "")),
        f"{'≥ ' if line.get('idleAtLeast') else ''}{_apart(line.get('idleSince'), now)}",
        _apart(line.get("suspendAt"), now),
        str(line.get("reason") or "; ".join(line["problems"])),
    ]


def _apart(instant: str | None, now: datetime) -> str:
    """How far away it is; empty without an instant."""
    if not instant:
        return ""
    apart = abs(datetime.fromisoformat(instant) - now)
    return format_duration(apart - apart % _SECOND) if apart >= _SECOND else "0s"
