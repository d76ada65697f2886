"""`idle-gpu-scaler pending`: every pending Workload, and why it is pending."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.admission_checks import check_rows
from scaler.app.cli.client import ScalerClient
from scaler.app.cli.layout import Row, count, labelled_rows, reason_text

Json = Mapping[str, Any]


def run_pending(client: ScalerClient, *, namespace: str, queue: str) -> int:
    """The exit status. Raises: ScalerError."""
    query = [(name, value) for name, value in (("namespace", namespace), ("queue", queue)) if value]
    answer = asyncio.run(
        client.ask(
            ["pending"], query, lambda local: local.queries.pending(namespace=namespace, queue=queue), key="gangs"
        )
    )
    client.show(answer, render)
    return 0


def render(answer: Json, width: int) -> RenderableType:  # noqa: ARG001 (sentences fold by themselves)
    """The gangs for a terminal."""
    gangs = answer["gangs"]
    if not gangs:
        return Text("No pending Workload requests GPUs.")
    parts: list[RenderableType] = []
    if answer["unjudged"]:
        parts += [Text(f"Verdicts are unknown: {answer['unjudged']}", style="magenta"), ""]
    for gang in gangs:
        parts += [title(gang), labelled_rows([*gang_rows(gang)], indent=2), ""]
    if answer["omitted"]:
        parts.append(Text(f"{count(answer['omitted'], 'gang')} more; select with --namespace or --queue", style="dim"))
    total = sum(gang["gpus"] for gang in gangs)
    parts.append(Text(f"{count(len(gangs), 'gang')} pending for {count(total, 'GPU')}."))
    return Group(*parts)


def title(gang: Json) -> Text:
    """Its name, its job and the GPUs that it requests."""
    job = f"  {gang['job']}" if gang["job"] else ""
    return Text.assemble(
        (f"{gang['namespace']}/{gang['name']}", "bold"), job, (f"  {count(gang['gpus'], 'GPU')}", "cyan")
    )


def gang_rows(gang: Json) -> Iterator[Row]:
    """All rows of a pending Workload."""
    yield from reason_rows(gang)
    if gang["plan"]:
        yield "plan", Text.assemble((gang["plan"]["stage"], "bold green"), f"  {gang['plan']['next']}")
    elif gang["reclaim"]["outcome"] not in (gang["reason"], "NotNeeded"):
        yield "reclaim", reason_text(gang["reclaim"]["outcome"], gang["reclaim"]["message"])
    for gate in gang["gates"]:
        yield from check_rows(gate)
    yield from standing_rows(gang)


def reason_rows(gang: Json) -> Iterator[Row]:
    """Why it is pending, the decisive reason first."""
    for place, each in enumerate(gang["reasons"]):
        yield "and" if place else "because", reason_text(each["reason"], each["message"])


def standing_rows(gang: Json) -> Iterator[Row]:
    """Its requests, its position in the queue, and its conditions in Kueue."""
    yield "wants", "; ".join(_pods(each) for each in gang["podSets"])
    yield "waits", f"{gang['waits']}, since {gang['since']}; priority {gang['priority']}"
    yield "queue", _place(gang)
    kueue = gang["kueue"]
    said = f"{kueue['condition']} {kueue['reason']}: {kueue['message']}" if kueue else "nothing yet"
    yield "Kueue says", Text(said, style="dim")


def _pods(pod_set: Json) -> str:
    least = f" (at least {pod_set['minCount']})" if pod_set["minCount"] is not None else ""
    asked = ", ".join(f"{value:g} {resource}" for resource, value in pod_set["requests"].items())
    return f"{pod_set['name']}: {count(pod_set['count'], 'pod')}{least} with {asked or 'no requests'} each"


def _place(gang: Json) -> str:
    queue = gang["clusterQueue"] or "no ClusterQueue"
    strategy = f", {gang['queueingStrategy']}" if gang["queueingStrategy"] else ""
    place = f"number {gang['position']} of {gang['inLine']} in " if gang["position"] else ""
    return f"{place}{queue} (LocalQueue {gang['localQueue'] or '-'}{strategy})"
