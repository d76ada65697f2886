"""`idle-gpu-scaler explain`: one decision, with its evidence, its settings, and what comes next."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from scaler.cli.asking import fetch, named
from scaler.settings.load import load
from scaler.telemetry import logs

_STYLES = {"active": "green", "inactive": "yellow", "error": "magenta", "Busy": "green", "Idle": "yellow"}


def run_explain(
    scaled_object: str,
    *,
    server: str,
    local: bool,
    config: Path | None,
    flags: Mapping[str, Any],
    as_json: bool,
) -> int:
    """The exit status. Raises: ScalerError."""
    namespace, name = named(scaled_object)
    path = ["decisions", namespace, name]
    asking = _evaluate(namespace, name, config, flags) if local else fetch(server, path, [], key="triggers")
    explanation = asyncio.run(asking)
    if as_json:
        print(json.dumps(explanation, indent=2))  # noqa: T201 (the program's output)
    else:
        # No markup and no emojis: messages hold selectors and patterns, with brackets and colons of their own.
        Console(markup=False, emoji=False, highlight=False).print(render(explanation))
    return 0


async def _evaluate(namespace: str, name: str, config: Path | None, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """What this process decides by itself, from the same sources. Writes nothing."""
    from scaler.cli.runtime import Runtime

    settings = load(config, environ=os.environ, flags=flags)
    logs.configure(level="error", style="text")
    return await Runtime(settings).explain_now((namespace, name))


# ------------------------------------------------------------------------------------------------------------ rendering


def render(explanation: Mapping[str, Any]) -> RenderableType:
    """The explanation for a terminal."""
    scaled, target = explanation["scaledObject"], explanation["target"]
    title = Text.assemble(
        (f"{scaled['namespace']}/{scaled['name']}", "bold"), f"  scales {target['kind']} {target['name']}"
    )
    parts: list[RenderableType] = [title, Text(f"evaluated at {explanation['evaluatedAt']}", style="dim")]
    parts += [Text(f"problem: {problem}", style="red") for problem in explanation["problems"]]
    if ignored := explanation.get("ignoredKeys"):
        parts.append(Text(f"ignored trigger metadata: {', '.join(ignored)}", style="dim"))
    for trigger in explanation["triggers"]:
        parts += ["", _decision(trigger), "", _settings(trigger["settings"])]
        if trigger["gpus"]:
            parts += ["", _gpus(trigger["gpus"])]
    return Group(*parts)


def _decision(trigger: Mapping[str, Any]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    answer = Text.assemble((trigger["answer"], f"bold {_STYLES.get(trigger['answer'], '')}"), f"  {trigger['reason']}")
    rows: list[tuple[str, Any]] = [
        ("answer", answer),
        ("because", trigger["message"]),
        ("verdict", trigger["verdict"] or "not looked at"),
        ("replicas", f"{trigger['desiredReplicas']} asked for, {trigger['stage']}"),
        ("running since", trigger["runningSince"] or "-"),
        ("idle since", trigger["idleSince"] or "-"),
        ("next", trigger["next"]),
    ]
    for label, value in rows:
        grid.add_row(Text(label, style="dim"), value)
    return grid


def _settings(settings: list[Mapping[str, str]]) -> RenderableType:
    table = Table("setting", "value", "from", box=None, pad_edge=False, header_style="dim")
    for setting in settings:
        table.add_row(setting["name"], setting["value"], setting["source"])
    return table


def _gpus(gpus: list[Mapping[str, Any]]) -> RenderableType:
    """A line per GPU and one per signal below it, so that long names need no wide terminal."""
    parts: list[RenderableType] = []
    for gpu in gpus:
        verdict = Text(gpu["verdict"], style=_STYLES.get(gpu["verdict"], "magenta"))
        reason = f" {gpu['reason']}" if "reason" in gpu else ""
        where = f" on {gpu['node']}" if gpu["node"] else ""
        parts.append(Text.assemble(verdict, reason, f"  {gpu['gpu']}{where}, pod {gpu['pod']}"))
        parts += [_signal(line) for line in gpu["signals"]]
    return Group(*parts)


def _signal(line: Mapping[str, str]) -> Text:
    peak, coverage, newest = (line.get(key, "-") for key in ("peakPercent", "coveragePercent", "lastSample"))
    at = newest.partition("T")[2] or newest
    return Text(f"  {line['name']:<18} peak {peak + ' %':<8} coverage {coverage + ' %':<6} newest {at}", style="dim")
