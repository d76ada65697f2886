"""The state of a Workload's AdmissionCheck of ours, for a terminal: rows for `pending` and `explain`."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.layout import Row, count

Json = Mapping[str, Any]

_STATES = {"Ready": "green", "Pending": "cyan", "Retry": "magenta", "Rejected": "red"}
_REQUESTS = {
    "Provisioned": "green",
    "Accepted": "cyan",
    "New": "cyan",
    "Failed": "red",
    "BookingExpired": "magenta",
    "CapacityRevoked": "magenta",
}


def check_rows(gate: Json) -> Iterator[Row]:
    """The state of the check, the Workloads before it, and its ProvisioningRequests."""
    yield "check", _check(gate)
    if gate["before"]:
        more = f" and {gate['beforeOmitted']} more" if gate["beforeOmitted"] else ""
        yield "before it", f"{', '.join(gate['before'])}{more}"
    if gate["yielded"]:
        yield "gave back", _gave_back(gate["yielded"])
    if gate["provisioning"]:
        yield from _nodes(gate["provisioning"])


def _check(gate: Json) -> RenderableType:
    state = gate["state"]
    by = f", by ReclaimPolicy {gate['policy']}" if gate["policy"] else ""
    head = Text.assemble(
        gate["check"],
        "  ",
        (state, f"bold {_STATES.get(state, '')}"),
        f" since {gate['since'] or '?'}{by}",
    )
    said = _said(gate)
    return Group(head, Text(said)) if said else head


def _said(gate: Json) -> str:
    """What stands on the Workload; where a request is there, what is found now, which follows that step by step.

    An entry that goes on waiting for the same thing is brought up to date twice a minute.
    """
    is_followed = bool(gate["provisioning"] and gate["provisioning"]["requests"])
    current, stored = gate["finds"] or "", gate["message"] or ""
    return (current or stored) if is_followed else (stored or current)


def _gave_back(yielded: Json) -> str:
    times = f", {count(yielded['times'], 'time')} so far" if yielded["times"] > 1 else ""
    return f"its quota to {yielded['to']} at {yielded['at']}{times}; not again before {yielded['notAgainBefore']}"


# --------------------------------------------------------------------------------------------------- asking for nodes


def _nodes(provisioning: Json) -> Iterator[Row]:
    if provisioning["requests"] or provisioning["state"] not in (None, "Nothing"):
        yield "nodes", "; ".join([_asked(provisioning), *_expected(provisioning)])
    for request in provisioning["requests"]:
        yield "request", _request(request)


def _asked(provisioning: Json) -> str:
    """The attempt, of how many."""
    attempt, most = provisioning["attempt"], provisioning["attemptsAllowed"]
    of = f" of {most}" if most else ""
    if not attempt:
        return f"{provisioning['className']} has no request yet"
    return f"attempt {attempt}{of} to {provisioning['className']}"


def _expected(provisioning: Json) -> Iterator[str]:
    """What comes next, and when."""
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
    """The newest word on it, and its conditions below."""
    ending = ", being deleted" if request["isEnding"] else ""
    head = Text.assemble(
        request["name"],
        "  ",
        (request["state"], f"bold {_REQUESTS.get(request['state'], '')}"),
        f" since {request['since']}, attempt {request['attempt']} for {count(request['pods'], 'pod')}{ending}",
    )
    return Group(head, *(_condition(each) for each in request["conditions"]))


def _condition(condition: Json) -> Text:
    why = f" {condition['reason']}" if condition["reason"] and condition["reason"] != condition["type"] else ""
    said = f": {condition['message']}" if condition["message"] else ""
    return Text(f"{condition['type']}={condition['status']} {condition['since'] or ''}{why}{said}", style="dim")
