"""`idle-gpu-scaler pending`: every pending Workload, and why it is pending."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient
from scaler.app.cli.layout import Row, count, labelled_rows, reason_text


def run_pending(client: ScalerClient, *, namespace: str, queue: str) -> int:
    query = [(name, value) for name, value in (("namespace", namespace), ("queue", queue)) if value]
    return client.answer(
        ["pending"], query, lambda local: local.queries.pending(namespace=namespace, queue=queue), render, key="gangs"
    )


def render(answer: Json, width: int) -> RenderableType:  # noqa: ARG001 (sentences fold by themselves)
    gangs = answer["gangs"]
    if not gangs:
        return Text("No pending Workload requests GPUs.")
    parts: list[RenderableType] = []
    if answer["unjudged"]:
        parts += [Text(f"Verdicts are unknown: {answer['unjudged']}", style="magenta"), ""]
    for gang in gangs:
        parts += [*gang_lines(gang), ""]
    if answer["omitted"]:
        parts.append(Text(f"{count(answer['omitted'], 'gang')} more; select with --namespace or --queue", style="dim"))
    total = sum(gang["gpus"] for gang in gangs)
    parts.append(Text(f"{count(len(gangs), 'gang')} pending for {count(total, 'GPU')}."))
    return Group(*parts)


def title(gang: Json) -> Text:
    job = f"  {gang['job']}" if gang["job"] else ""
    return Text.assemble(
        (f"{gang['namespace']}/{gang['name']}", "bold"), job, (f"  {count(gang['gpus'], 'GPU')}", "cyan")
    )


def gang_lines(gang: Json) -> Iterator[RenderableType]:
    yield title(gang)
    yield labelled_rows([*gang_rows(gang)], indent=2)


def gang_rows(gang: Json) -> Iterator[Row]:
    yield from reason_rows(gang)
    if gang["plan"]:
        yield "plan", Text.assemble((gang["plan"]["stage"], "bold green"), f"  {gang['plan']['next']}")
    elif gang["reclaim"]["outcome"] not in (gang["reason"], "NotNeeded"):
        yield "reclaim", reason_text(gang["reclaim"]["outcome"], gang["reclaim"]["message"])
    for check in gang["admissionChecks"]:
        yield from check_rows(check)
    if gang.get("dispatch"):
        yield from cluster_rows(gang["dispatch"])
    yield from gang_state_rows(gang)


def cluster_rows(dispatch: Json) -> Iterator[Row]:
    """Every cluster of a hub with its answer, the best first, and what is done."""
    yield "dispatch", reason_text(dispatch["reason"], dispatch["step"])
    for each in dispatch["clusters"]:
        yield "cluster", _cluster(each)


def _cluster(cluster: Json) -> Text:
    nominated = f"  nominated since {cluster['nominatedAt'] or '?'}" if cluster["nominated"] else ""
    reclaims = ", may suspend idle workloads for it" if cluster["reclaim"] else ""
    return Text.assemble(
        (cluster["name"], "bold" if cluster["nominated"] else ""),
        f"  {cluster['why']}",
        (f"{nominated}{reclaims}", "green"),
    )


def reason_rows(gang: Json) -> Iterator[Row]:
    for place, each in enumerate(gang["reasons"]):
        yield "and" if place else "because", reason_text(each["reason"], each["message"])


def gang_state_rows(gang: Json) -> Iterator[Row]:
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


# ----------------------------------------------------------------------------------------------------- AdmissionCheck

_STATES = {
    "Ready": "green",
    "Pending": "cyan",
    "Retry": "magenta",
    "Rejected": "red",
    "Provisioned": "green",
    "Accepted": "cyan",
    "New": "cyan",
    "Failed": "red",
    "BookingExpired": "magenta",
    "CapacityRevoked": "magenta",
}


def check_rows(check: Json) -> Iterator[Row]:
    yield "check", _check(check)
    if check["before"]:
        more = f" and {check['beforeOmitted']} more" if check["beforeOmitted"] else ""
        yield "before it", f"{', '.join(check['before'])}{more}"
    if check["yielded"]:
        yielded = check["yielded"]
        times = f", {count(yielded['times'], 'time')} so far" if yielded["times"] > 1 else ""
        when = f"{yielded['at']}{times}; not again before {yielded['notAgainBefore']}"
        yield "gave back", f"its quota to {yielded['to']} at {when}"
    if check["provisioning"]:
        yield from _nodes(check["provisioning"])


def _check(check: Json) -> RenderableType:
    by = f", by ReclaimPolicy {check['policy']}" if check["policy"] else ""
    head, said = _head(check["check"], check, by), _said(check)
    return Group(head, Text(said)) if said else head


def _head(name: str, shown: Json, more: str) -> Text:
    """The name of a check or a request, its state in colour, and since when."""
    state = shown["state"]
    return Text.assemble(name, "  ", (state, f"bold {_STATES.get(state, '')}"), f" since {shown['since'] or '?'}{more}")


def _said(check: Json) -> str:
    """What stands on the Workload; where a request is there, what is found now, which is that step by step.

    An entry that goes on waiting for the same thing is brought up to date twice a minute.
    """
    is_current = bool(check["provisioning"] and check["provisioning"]["requests"])
    current, stored = check["finds"] or "", check["message"] or ""
    return (current or stored) if is_current else (stored or current)


# --------------------------------------------------------------------------------------------------- asking for nodes


def _nodes(provisioning: Json) -> Iterator[Row]:
    if provisioning["requests"] or provisioning["state"] not in (None, "Nothing"):
        yield "nodes", "; ".join([_asked(provisioning), *_expected(provisioning)])
    for request in provisioning["requests"]:
        yield "request", _request(request)


def _asked(provisioning: Json) -> str:
    attempt, most = provisioning["attempt"], provisioning["attemptsAllowed"]
    of = f" of {most}" if most else ""
    if not attempt:
        return f"{provisioning['className']} has no request yet"
    return f"attempt {attempt}{of} to {provisioning['className']}"


def _expected(provisioning: Json) -> Iterator[str]:
    if provisioning["eta"]:
        left = f", in {provisioning['etaIn']}" if provisioning["etaIn"] else ", which is past"
        yield f"expected at {provisioning['eta']}{left}"
    if provisioning["nextAttemptAt"]:
        yield f"next attempt at {provisioning['nextAttemptAt']}"
    if provisioning["state"] == "AtLimit":
        ends = {"Hold": "it keeps its reserved quota", "Yield": "it releases its quota"}
        yield f"no further attempts: {ends.get(provisioning['atLimit'], 'the limit is reached')}"
    if provisioning["state"] == "Stuck" and provisioning["message"]:
        yield f"cannot be requested: {provisioning['message']}"


def _request(request: Json) -> RenderableType:
    ending = ", being deleted" if request["isEnding"] else ""
    attempt = f", attempt {request['attempt']} for {count(request['pods'], 'pod')}{ending}"
    return Group(_head(request["name"], request, attempt), *(_condition(each) for each in request["conditions"]))


def _condition(condition: Json) -> Text:
    why = f" {condition['reason']}" if condition["reason"] and condition["reason"] != condition["type"] else ""
    said = f": {condition['message']}" if condition["message"] else ""
    return Text(f"{condition['type']}={condition['status']} {condition['since'] or ''}{why}{said}", style="dim")
