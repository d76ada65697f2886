"""`idle-gpu-scaler plan`: the reclaim plan for a pending Workload, its cost and alternatives; or why there is none."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient, parse_name
from scaler.app.cli.layout import WAITS, Cells, Row, count, labelled_rows, number_text, reason_text, table_or_list
from scaler.app.cli.pending import cluster_rows, gang_state_rows, reason_rows, title
from scaler.app.cli.queues import amount
from scaler.errors import ConfigurationError

_ALL = "*"
_NOTHING: Json = {"necessities": []}
_SETS = 6
"""Alternatives that are shown of each kind; all are in the JSON."""
_IDLE_OR_NOT = frozenset({"FitsAlready", "NeverFits", "QueueStopped", "Unforeseeable"})
"""Reasons that no idle workload would change."""
_VICTIM = ("VICTIM", "GPUS", "QUEUE", "IDLE FOR", "COST", "")
_IN = 2
"""Columns by which everything below a heading is indented."""


def run_plan(client: ScalerClient, gang: str, *, what_if: bool, idle: Sequence[str]) -> int:
    namespace, name = parse_name(gang)
    for each in idle:
        parse_name(each)
    if idle and not what_if:
        raise ConfigurationError(f"{' '.join(idle)}: names of idle workloads require --what-if-idle")
    query = [("whatIfIdle", each) for each in idle or [_ALL]] if what_if else []
    return client.answer(
        ["plans", namespace, *name.split("/")],
        query,
        lambda local: local.queries.plan(namespace, name, idle=list(idle) if what_if else None),
        render,
        key="gang",
        needs_verdicts=not what_if,
    )


def render(answer: Json, width: int) -> RenderableType:
    gang, plan = answer["gang"], answer["plan"]
    parts: list[RenderableType] = [title(gang), *_rows([*_facts(answer)])]
    if answer["active"]:
        parts += _active(answer["active"], width)
    if answer["refusal"]:
        parts += _refusal(answer["refusal"])
    if plan:
        parts += _plan(answer, plan, width)
    parts += [*_necessities(answer, width), *_alternatives(answer, width)]
    if answer["refusal"] and not plan and answer["refusal"]["reason"] not in _IDLE_OR_NOT:
        parts += _non_candidates(answer, width)
    if answer["cautions"]:
        warnings = [(each["reason"], Text(each["message"])) for each in answer["cautions"]]
        parts += [_heading("Warnings"), *_rows(warnings)]
    return Group(*parts[: -1 if parts[-1] == "" else None])


def _facts(answer: Json) -> Iterator[Row]:
    gang, what_if = answer["gang"], answer["whatIfIdle"]
    yield from reason_rows(gang)
    if answer.get("dispatch"):
        yield from cluster_rows(answer["dispatch"])
    yield from gang_state_rows(gang)
    if what_if is not None:
        yield (
            "assumed idle",
            Text(", ".join(what_if) or "all workloads in its quota tree that a plan may suspend", style="magenta"),
        )


def _heading(text: str, note: str = "") -> Text:
    return Text.assemble((text, "bold"), (f"  {note}" if note else "", "dim"))


def _indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 0, _IN))


def _rows(rows: Sequence[Row]) -> list[RenderableType]:
    return [labelled_rows(rows, indent=_IN), ""]


def _table(
    headings: Sequence[str],
    rows: Sequence[Cells],
    width: int,
    *,
    words: Sequence[int] = (0,),
    prose: bool = False,
    more: int = 0,
) -> list[RenderableType]:
    table = _indented(table_or_list(headings, rows, width - _IN, words=words, prose=prose))
    return [table, *([_indented(Text(f"and {more} more", style="dim"))] if more else []), ""]


# --------------------------------------------------------------------------------------------------------- active


def _active(active: Json, width: int) -> list[RenderableType]:
    head = _heading(f"Active plan {active['id']}: {active['stage']}")
    facts: list[Row] = [
        ("frees", active["seeks"].lower()),
        ("next", active["next"]),
        ("granted", f"{active['grantedAt']}, until {active['expiresAt']}"),
    ]
    rows = [_active_victim(each) for each in active["victims"]]
    table = _table(("VICTIM", "GPUS", "STAGE", "NOW"), rows, width, words=(0, 2, 3), prose=True)
    return [head, *_rows(facts), *table]


def _active_victim(victim: Json) -> Cells:
    asked = "scaled to 0" if victim["desiredReplicas"] == 0 else "not scaled to 0 yet"
    verdict = {True: "idle", False: "not idle by its current verdict", None: "verdict unknown"}[victim["isIdle"]]
    pods = f", {count(victim['podsLeft'], 'pod')} left" if victim["podsLeft"] else ", no pods left"
    state = f"deactivated{pods}" if victim["isDeactivated"] else f"{verdict}, {asked}"
    return [victim["name"], str(victim["gpus"]), victim["stage"] or "-", state]


# --------------------------------------------------------------------------------------------------------------- a plan


def _plan(answer: Json, plan: Json, width: int) -> list[RenderableType]:
    victims = plan["victims"]
    exact = "no cheaper set suffices" if plan["isExact"] else "a cheaper set may exist: the search ended early"
    what = f"{count(len(victims), 'workload')} with {count(plan['gpus'], 'GPU')}"
    verb = "could be" if answer["refusal"] else "would be"
    head = _heading(f"{what} {verb} suspended", f"plan {plan['id']}, cost {number_text(plan['cost'])}: {exact}")
    rows = [_victim(each) for each in victims]
    table = _table(_VICTIM, rows, width, words=(0, 2, 3, 5), prose=True)
    return [head, *table, *_quota(plan, width), *_placement(answer, plan, width)]


def _victim(victim: Json) -> Cells:
    idle = "assumed" if victim["isAssumed"] else f"{'≥ ' * victim['idleAtLeast']}{victim['idleFor'] or '-'}"
    parts = " + ".join(f"{name} {number_text(value)}" for name, value in victim["costParts"].items() if value)
    saved = f"; its hook saved its work at {victim['savedAt']}" if victim.get("savedAt") else ""
    cost = Text(f"({parts}) / {victim['idleDivisor']:.2f} (idle time){saved}", style="dim")
    return [victim["name"], str(victim["gpus"]), victim["clusterQueue"] or "-", idle, number_text(victim["cost"]), cost]


def _quota(plan: Json, width: int) -> list[RenderableType]:
    if plan["seeks"] == "Nodes":
        missing = ", ".join(f"{number} of {name}" for name, number in plan["missing"].items())
        facts: list[Row] = [("for", f"nodes: quota is reserved, and AdmissionCheck {plan['check']} is Pending")]
        if missing:
            facts.append(("asked for", f"nodes for unplaced pods: {missing}"))
        return _rows(facts)
    headings = ("QUOTA", "FREE NOW", "+ FREED", "= FREE THEN", "GANG TAKES", "LEFT")
    table = _table(headings, [_flavor(each) for each in plan["quota"]], width)
    if plan["others"]:
        return [*table[:-1], *_rows([("before it", f"{', '.join(plan['others'])} are admitted, too")])]
    return table


def _flavor(line: Json) -> Cells:
    numbers = [line["freeBefore"], line["freed"], line["freeAfter"], line["takes"], line["freeAfter"] - line["takes"]]
    return [f"{line['flavor']} {line['resource']}", *(amount(line["resource"], each) for each in numbers)]


def _placement(answer: Json, plan: Json, width: int) -> list[RenderableType]:
    if plan["placement"] is None:
        return []
    gang = f"{answer['gang']['namespace']}/{answer['gang']['name']}"
    rows: list[Cells] = []
    for each in sorted(plan["placement"], key=lambda each: (each["workload"] != gang, each["node"])):
        of = each["podSet"] if each["workload"] == gang else f"{each['workload']} {each['podSet']}"
        rows.append([each["node"], str(each["pods"]), of])
    return _table(("NODE", "PODS", "OF"), rows, width, words=(0, 2))


# ------------------------------------------------------------------------------------------------ what else, why not


def _necessities(answer: Json, width: int) -> list[RenderableType]:
    """The plan without each of its victims, and other sets that cost less."""
    needed = [
        [each["victim"], Text.assemble((f"{each['reason']}: ", WAITS), (each["message"], "dim"))]
        for each in (answer["plan"] or _NOTHING)["necessities"]
    ]
    short = [each for each in answer["alternatives"] if each["whyNot"]]
    parts: list[RenderableType] = []
    if needed:
        parts += _table(("VICTIM", "WHY IT IS NEEDED"), needed, width, words=(0, 1), prose=True)
    if short:
        parts += _sets(short, width)
    heading = "Why each victim is needed" if answer["plan"] else "Sets that were tried"
    return [_heading(heading), *parts] if parts else []


def _alternatives(answer: Json, width: int) -> list[RenderableType]:
    enough = [each for each in answer["alternatives"] if not each["whyNot"]]
    heading = _heading("Alternatives", "at the same cost or more")
    return [heading, *_sets(enough, width)] if enough else []


def _sets(alternatives: Sequence[Json], width: int) -> list[RenderableType]:
    """Numbers first, since names and reasons may be long."""
    shown = alternatives[:_SETS]
    rows: list[Cells] = [[str(each["gpus"]), number_text(each["cost"]), _instead(each)] for each in shown]
    more = len(alternatives) - len(shown)
    return _table(("GPUS", "COST", "INSTEAD"), rows, width, words=(2,), prose=True, more=more)


def _instead(alternative: Json) -> Text:
    victims = Text(", ".join(alternative["victims"]))
    if not alternative["whyNot"]:
        return victims
    return Text.assemble(victims, (f"  {alternative['whyNot']}: ", WAITS), (alternative["message"], "dim"))


def _refusal(refusal: Json) -> list[RenderableType]:
    rows: list[Row] = [
        ("why", reason_text(refusal["reason"], refusal["message"])),
        ("would help", refusal["help"]),
    ]
    if not refusal["isExact"]:
        rows.append(("but", "the search ended early; not all sets were tried"))
    return [_heading("No reclaim plan found"), *_rows(rows)]


def _non_candidates(answer: Json, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if answer["candidates"]:
        rows: list[Cells] = [
            [each["name"], str(each["gpus"]), each["clusterQueue"] or "-", number_text(each["cost"])]
            for each in answer["candidates"]
        ]
        headings = ("IDLE", "GPUS", "QUEUE", "COST")
        parts += _table(headings, rows, width, words=(0, 2), more=answer["moreCandidates"])
    if answer["holders"]:
        rows = [_non_candidate(each) for each in answer["holders"]]
        headings = ("NOT A CANDIDATE", "GPUS", "QUEUE", "")
        parts += _table(headings, rows, width, words=(0, 2, 3), prose=True, more=answer["moreHolders"])
    return parts


def _non_candidate(holder: Json) -> Cells:
    why = Text.assemble((holder["reason"], "bold"), f"  {holder['message']}")
    return [holder["name"] or holder["workload"], str(holder["gpus"]), holder["clusterQueue"], why]
