"""`idle-gpu-scaler explain`: one decision with its evidence, its settings and what happens next; and one Workload."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient, parse_name
from scaler.app.cli.layout import Row, count, in_seconds, labelled_rows
from scaler.app.cli.pending import check_rows, gang_lines
from scaler.errors import ScalerError
from scaler.idleness.policy import BUILT_IN
from scaler.kube.objects.resources import SCALABLE_WORKLOAD

_STYLES = {"active": "green", "inactive": "yellow", "error": "magenta", "Busy": "green", "Idle": "yellow"}


def run_explain(client: ScalerClient, name: str, *, shows_defaults: bool) -> int:
    found = asyncio.run(_explained(client, *parse_name(name)))
    client.show(found, lambda explanation, _: render(explanation, shows_defaults=shows_defaults))
    return 0


async def _explained(client: ScalerClient, namespace: str, name: str) -> Json:
    """The decision on the ScaledObject, and the state of its Workload; where there is no ScaledObject of that name, the
    state of the Workload or job of that name. Raises: ScalerError.
    """
    try:
        decision = await client.ask(
            ["decisions", namespace, name],
            [],
            lambda local: local.explain((namespace, name)),
            key="triggers",
            with_quota=False,
            needs_verdicts=True,
        )
    except ScalerError as error:
        found = await _admission(client, namespace, name)
        if problem := found["admissionProblem"]:
            raise error if str(error) == problem else ScalerError(f"{error}; {problem}") from None
        return {"scaledObject": None, **found}
    target = decision["target"]
    if target["kind"] != SCALABLE_WORKLOAD.kind:
        return {**decision, "admission": None, "admissionProblem": None}
    return {**decision, **await _admission(client, namespace, f"{target['kind']}/{target['name']}")}


async def _admission(client: ScalerClient, namespace: str, name: str) -> Json:
    """The state of the Workload's quota and AdmissionChecks, or why it is unknown."""
    path = ["gangs", namespace, *name.split("/")]
    try:
        found = await client.ask(path, [], lambda local: local.queries.gang(namespace, name), key="admissionChecks")
        return {"admission": found, "admissionProblem": None}
    except ScalerError as error:
        return {"admission": None, "admissionProblem": str(error)}


# ------------------------------------------------------------------------------------------------------------ rendering


def render(explanation: Json, *, shows_defaults: bool = False) -> RenderableType:
    parts = _scaled(explanation, shows_defaults=shows_defaults) if explanation["scaledObject"] else []
    admission = explanation.get("admission")
    if parts and (admission or explanation.get("admissionProblem")):
        parts.append("")
    if admission:
        parts += [*_waiting(admission)]
        if not explanation["scaledObject"]:
            parts.append(Text("no ScaledObject of that name, or of that job, is evaluated by this scaler", style="dim"))
    elif problem := explanation.get("admissionProblem"):
        parts.append(Text(f"admission: {problem}", style="dim"))
    return Group(*parts)


def _scaled(explanation: Json, *, shows_defaults: bool) -> list[RenderableType]:
    scaled, target = explanation["scaledObject"], explanation["target"]
    is_direct = explanation.get("actuator") == "Direct"
    scales = f"{target['kind']}, scaled directly" if is_direct else f"scales {target['kind']} {target['name']}"
    head = Text.assemble((f"{scaled['namespace']}/{scaled['name']}", "bold"), f"  {scales}")
    parts: list[RenderableType] = [head, Text(f"evaluated at {in_seconds(explanation['evaluatedAt'])}", style="dim")]
    parts += [Text(f"problem: {problem}", style="red") for problem in explanation["problems"]]
    if ignored := explanation.get("ignoredKeys"):
        parts.append(Text(f"ignored trigger metadata: {', '.join(ignored)}", style="dim"))
    for trigger in explanation["triggers"]:
        parts += ["", _decided(trigger), "", _settings(trigger["settings"], shows_defaults=shows_defaults)]
        if trigger["gpus"]:
            parts += ["", _gpus(trigger["gpus"])]
    return parts


def _waiting(admission: Json) -> Iterator[RenderableType]:
    """The Workload: all that `pending` says of one that waits, and of any other one its checks."""
    if gang := admission["gang"]:
        yield from gang_lines(gang)
        return
    job = f"  {admission['job']}" if admission["job"] else ""
    since = f" since {admission['since']}" if admission["since"] else ""
    yield Text.assemble(
        (f"{admission['namespace']}/{admission['name']}", "bold"), f"{job}  ", (admission["state"], "bold"), since
    )
    if why := admission.get("staysSuspended"):
        yield Text(f"stays suspended: {why}")
    yield labelled_rows([row for check in admission["admissionChecks"] for row in check_rows(check)], indent=2)


def _decided(trigger: Mapping[str, Any]) -> RenderableType:
    answer = Text.assemble((trigger["answer"], f"bold {_STYLES.get(trigger['answer'], '')}"), f"  {trigger['reason']}")
    rows: list[Row] = [
        ("answer", answer),
        ("because", trigger["message"]),
        ("verdict", trigger["verdict"] or "not evaluated"),
        ("replicas", f"{trigger['desiredReplicas']} asked for, {trigger['phase']}"),
        ("running since", in_seconds(trigger["runningSince"])),
        ("idle at least since" if trigger.get("idleAtLeast") else "idle since", in_seconds(trigger["idleSince"])),
        *([("hook", _hook(run))] if (run := trigger.get("beforeSuspend")) else []),
        ("next", trigger["next"]),
    ]
    return labelled_rows(rows)


def _hook(run: Mapping[str, str | None]) -> str:
    """Its last run."""
    how = f"{run['outcome']} at {run['endedAt']}" if run["outcome"] else "in progress"
    why = f" ({run['message']})" if run["message"] else ""
    saved = f"; its state of {run['savedAt']} is saved" if run["savedAt"] else ""
    return f"{run['hook']}, begun at {run['startedAt']}: {how}{why}{saved}"


def _settings(settings: list[Mapping[str, str]], *, shows_defaults: bool) -> RenderableType:
    """The settings that were set, and how many more there are."""
    shown = [each for each in settings if shows_defaults or each["source"] != BUILT_IN]
    table = Table("setting", "value", "from", box=None, pad_edge=False, header_style="dim")
    for setting in shown:
        table.add_row(setting["name"], setting["value"], setting["source"])
    if len(shown) == len(settings):
        return table
    more = Text(f"{count(len(settings) - len(shown), 'setting')} at built-in defaults: --all shows them", style="dim")
    return Group(table, more) if shown else more


def _gpus(gpus: list[Mapping[str, Any]]) -> RenderableType:
    """A line per GPU and one per signal below it, so that long names need no wide terminal."""
    parts: list[RenderableType] = []
    for gpu in gpus:
        verdict = Text(gpu["verdict"], style=_STYLES.get(gpu["verdict"], "magenta"))
        reason = f" {gpu['reason']}" if "reason" in gpu else ""
        where = f" on {gpu['node']}" if gpu["node"] else ""
        parts.append(Text.assemble(verdict, reason, f"  {gpu['gpu']}{where}, pod {gpu['pod']}"))
        parts += [_signal(line) for line in gpu.get("signals", ())]
    return Group(*parts)


def _signal(line: Mapping[str, str]) -> Text:
    peak, coverage, newest = (line.get(key, "-") for key in ("peakPercent", "coveragePercent", "lastSample"))
    at = newest.partition("T")[2] or newest
    return Text(
        f"  {line.get('name', '-'):<18} peak {peak + ' %':<8} coverage {coverage + ' %':<6} newest {at}", style="dim"
    )
