"""`idle-gpu-scaler queues`: the quota of Cohorts and ClusterQueues, and its usage."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient
from scaler.app.cli.layout import labelled_rows, table_or_list
from scaler.kube.objects.quantity import CPU, as_text

_HEADINGS = (
    *("QUEUE", "FLAVOR", "NOMINAL", "USED", "IDLE", "RECLAIMABLE", "AVAILABLE", "BORROWED", "PENDING", "LIMITS"),
)
_UNKNOWN = "?"


def run_queues(client: ScalerClient, *, all_resources: bool) -> int:
    query = [("allResources", "true")] if all_resources else []
    return client.answer(
        ["queues"], query, lambda local: local.queries.queues(all_resources=all_resources), render, key="trees"
    )


_OF_CLUSTERS = ("CLUSTER", "QUEUE", "FLAVOR", "NOMINAL", "FREE", "IDLE", "RECLAIMABLE", "LARGEST GANG", "AFTER RECLAIM")


def run_clusters(client: ScalerClient) -> int:
    return client.answer(["clusters"], [], lambda local: local.queries.clusters(), render_clusters, key="clusters")


def render_clusters(answer: Json, width: int) -> RenderableType:
    """What the workers of a hub have."""
    if not answer["clusters"]:
        return Text("There are no MultiKueueClusters.")
    rows = [row for each in answer["clusters"] for row in _rows_of_cluster(each)]
    unknown = [
        Text(f"{each['name']}: {each['problem']}", style="magenta") for each in answer["clusters"] if each["problem"]
    ]
    table = [table_or_list(_OF_CLUSTERS, rows, width, words=(0, 1, 2))] if rows else []
    return Group(*table, *unknown)


def _rows_of_cluster(cluster: Json) -> Iterator[list[str | Text]]:
    for queue in cluster["clusterQueues"]:
        gang = queue["largestGang"]
        for flavor in queue["flavors"]:
            models = f" ({', '.join(flavor['models'])})" if flavor["models"] else ""
            amounts = (flavor[name] for name in ("nominal", "free", "idle", "reclaimable"))
            cells = [str(each) for each in (*amounts, gang["now"], gang["afterReclaim"])]
            yield [cluster["name"], queue["name"], f"{flavor['name']}{models}", *cells]


def render(answer: Json, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    if answer["unjudged"]:
        parts += [Text(f"Verdicts are unknown: {answer['unjudged']}", style="magenta"), ""]
    lines = [line for tree in answer["trees"] for line in _lines(tree)]
    if not lines:
        return Text("There are no ClusterQueues.")
    parts.append(table_or_list(_HEADINGS, lines, width, words=(0, 1, len(_HEADINGS) - 1)))
    doubts = [doubt for tree in answer["trees"] for doubt in tree["doubts"]]
    parts += [Text(f"cannot be read, no plans are made for it: {doubt}", style="red") for doubt in doubts]
    parts += ["", _legend()]
    return Group(*parts)


def _legend() -> RenderableType:
    rows = [
        ("idle", "used by workloads with the verdict Idle"),
        ("reclaimable", "of these, what a reclaim plan may free for a pending Workload"),
        ("available", "what another Workload can be admitted with now, including borrowing"),
    ]
    return labelled_rows([(label, Text(text, style="dim")) for label, text in rows])


# -------------------------------------------------------------------------------------------------------------- lines


def _lines(node: Json, lead: str = "", below: str = "") -> Iterator[list[str | Text]]:
    """A row for each flavor of a node, named in the first one; `lead` and `below` draw the tree."""
    children, resources = node["children"], {each["resource"] for each in node["flavors"]}
    under = Text(below + ("│ " if children else "  "), style="dim")
    name = Text.assemble((lead, "dim"), (node["name"], "bold" if node["kind"] == "Cohort" else ""))
    if state := _state(node):
        name.append(f" ({state})", style="red")
    for place, flavor in enumerate(node["flavors"]):
        is_first = place == 0 or flavor["resource"] != node["flavors"][place - 1]["resource"]
        cells = _cells(flavor, node["pending"], is_first=is_first, several=len(resources) > 1)
        yield [under if place else name, *cells, _limits(flavor)]
    if not node["flavors"]:
        yield [name, *[""] * (len(_HEADINGS) - 1)]
    for place, child in enumerate(children):
        is_last = place == len(children) - 1
        yield from _lines(child, below + ("└─ " if is_last else "├─ "), below + ("   " if is_last else "│  "))


def _state(node: Json) -> str:
    if node["kind"] == "Cohort":
        return ""
    stopped = node["stopPolicy"] if node["stopPolicy"] != "None" else ""
    return node["inactiveBecause"] or stopped


def _cells(flavor: Json, pending: Json, *, is_first: bool, several: bool) -> Iterator[str | Text]:
    resource = flavor["resource"]
    yield f"{flavor['flavor']} {resource}" if several else flavor["flavor"]
    yield amount(resource, flavor["nominal"])
    yield amount(resource, flavor["used"])
    yield _shining(amount(resource, flavor["idle"]), "yellow")
    yield _shining(amount(resource, flavor["reclaimable"]), "bold yellow")
    yield _shining(amount(resource, flavor["available"]), "green")
    yield _shining(amount(resource, flavor["borrowed"]), "cyan")
    yield _shining(amount(resource, pending.get(resource, 0)), "magenta") if is_first else ""


def _shining(text: str, style: str) -> Text:
    """Zeros are dim."""
    return Text(text, style="dim" if text in ("0", _UNKNOWN) else style)


def _limits(flavor: Json) -> str:
    resource, words = flavor["resource"], []
    if flavor["borrowingLimit"] is not None:
        words.append(f"borrows ≤ {amount(resource, flavor['borrowingLimit'])}")
    if flavor["lendingLimit"] is not None:
        words.append(f"lends ≤ {amount(resource, flavor['lendingLimit'])}")
    return ", ".join(words)


def amount(resource: str, value: float | None) -> str:
    """The amount as it is written in a manifest."""
    if value is None:
        return _UNKNOWN
    return as_text(resource, round(value * 1000) if resource == CPU else int(value))
