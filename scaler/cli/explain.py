"""`idle-gpu-scaler explain`: one decision, with its evidence, its settings, and what comes next; and one gang."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scaler.cli.asking import Asked, fetch, named
from scaler.cli.gates import gate_rows
from scaler.cli.layout import labelled
from scaler.cli.pending import gang_rows, title
from scaler.errors import ScalerError
from scaler.kube.resources import SCALABLE_WORKLOAD
from scaler.settings.load import load
from scaler.telemetry import logs

Json = Mapping[str, Any]

_STYLES = {"active": "green", "inactive": "yellow", "error": "magenta", "Busy": "green", "Idle": "yellow"}


def run_explain(
    name: str,
    *,
    server: str,
    local: bool,
    config: Path | None,
    flags: Mapping[str, Any],
    as_json: bool,
) -> int:
    """The exit status. Raises: ScalerError."""
    asked = Asked(server=server, local=local, config=config, flags=flags, as_json=as_json)
    asked.show(asyncio.run(_explained(asked, *named(name))), render)
    return 0


async def _explained(asked: Asked, namespace: str, name: str) -> Json:
    """The decision on the ScaledObject, and how its Workload stands; where there is no ScaledObject of that name, how
    the Workload or the job of that name does. Raises: ScalerError.
    """
    try:
        decision = await _decision(asked, namespace, name)
    except ScalerError as error:
        found = await _admission(asked, namespace, name)
        if isinstance(found, str):
            raise error if str(error) == found else ScalerError(f"{error}; {found}") from None
        return {"scaledObject": None, "admission": found, "admissionProblem": None}
    target = decision["target"]
    if target["kind"] != SCALABLE_WORKLOAD.kind:
        return {**decision, "admission": None, "admissionProblem": None}
    found = await _admission(asked, namespace, f"{target['kind']}/{target['name']}")
    is_known = not isinstance(found, str)
    return {**decision, "admission": found if is_known else None, "admissionProblem": None if is_known else found}


async def _decision(asked: Asked, namespace: str, name: str) -> Json:
    """Raises: ScalerError."""
    if not asked.local:
        return await fetch(asked.server, ["decisions", namespace, name], [], key="triggers")
    from scaler.cli.runtime import Runtime

    settings = load(asked.config, environ=os.environ, flags=asked.flags)
    logs.configure(level="error", style="text")
    return await Runtime(settings).explain_now((namespace, name))


async def _admission(asked: Asked, namespace: str, name: str) -> Json | str:
    """How the Workload stands with quota and checks, or why nobody can say."""
    path = ["gangs", namespace, *name.split("/")]
    try:
        return await asked.ask(path, [], lambda inquiry: inquiry.gang(namespace, name), key="gates")
    except ScalerError as error:
        return str(error)


# ------------------------------------------------------------------------------------------------------------ rendering


def render(explanation: Json, width: int) -> RenderableType:  # noqa: ARG001 (sentences fold by themselves)
    """The explanation for a terminal."""
    parts = _scaled(explanation) if explanation["scaledObject"] else []
    admission = explanation.get("admission")
    if parts and (admission or explanation.get("admissionProblem")):
        parts.append("")
    if admission:
        parts += [*_standing(admission)]
    elif problem := explanation.get("admissionProblem"):
        parts.append(Text(f"admission: {problem}", style="dim"))
    return Group(*parts)


def _scaled(explanation: Json) -> list[RenderableType]:
    scaled, target = explanation["scaledObject"], explanation["target"]
    head = Text.assemble(
        (f"{scaled['namespace']}/{scaled['name']}", "bold"), f"  scales {target['kind']} {target['name']}"
    )
    parts: list[RenderableType] = [head, Text(f"evaluated at {explanation['evaluatedAt']}", style="dim")]
    parts += [Text(f"problem: {problem}", style="red") for problem in explanation["problems"]]
    if ignored := explanation.get("ignoredKeys"):
        parts.append(Text(f"ignored trigger metadata: {', '.join(ignored)}", style="dim"))
    for trigger in explanation["triggers"]:
        parts += ["", _decided(trigger), "", _settings(trigger["settings"])]
        if trigger["gpus"]:
            parts += ["", _gpus(trigger["gpus"])]
    return parts


def _standing(admission: Json) -> Iterator[RenderableType]:
    """The Workload: all that `pending` says of one that waits, and of any other one its checks."""
    gang = admission["gang"]
    if gang:
        yield title(gang)
        yield labelled([*gang_rows(gang)], indent=2)
        return
    job = f"  {admission['job']}" if admission["job"] else ""
    since = f" since {admission['since']}" if admission["since"] else ""
    yield Text.assemble(
        (f"{admission['namespace']}/{admission['name']}", "bold"), f"{job}  ", (admission["state"], "bold"), since
    )
    yield labelled([row for gate in admission["gates"] for row in gate_rows(gate)], indent=2)


def _decided(trigger: Mapping[str, Any]) -> RenderableType:
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
