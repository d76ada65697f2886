"""What the gate tells those who make plans for nodes: who stands in line, who lacks nodes, and who asks for some."""

from typing import Any

from gate_town import CHECK, GateTown

from scaler.core.claims import Lacks
from scaler.core.prospects import Line, Prospect
from scaler.loops.quota_view import Blind

ASKS: dict[str, Any] = {"provisioning": {"className": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}}


def line_of(town: GateTown) -> Line:
    found = town.gate.line(town.client.now)
    assert isinstance(found, Line)
    return found


def key_of(town: GateTown, job: str) -> str:
    return f"ns/{town.workload(job)['metadata']['name']}"


async def lacking(**options: Any) -> GateTown:
    """`gang` has quota for 16 GPUs and finds 8 of them; `holder` has the others."""
    town = GateTown({"a": 8, "b": 8}, **options)
    town.submit("holder", gpus=8)
    await town.passes(2)
    town.submit("gang", pods=2, gpus=8)
    await town.passes(2)
    return town


async def test_whoever_waits_stands_in_line_with_what_it_lacks() -> None:
    town = await lacking()
    line = line_of(town)
    assert [each.key for each in line.waiting] == [key_of(town, "gang")]
    assert not line.held
    prospect = Prospect(line, key_of(town, "gang"))
    assert isinstance(prospect.verdict(frozenset()), Lacks)
    assert not isinstance(prospect.verdict(frozenset({key_of(town, "holder")})), Lacks)
    assert town.gate.report is not None
    [standing] = town.gate.report.waiting
    assert (standing.lacks_nodes, standing.may_reuse, standing.awaits_nodes) == (True, True, False)


async def test_looking_at_the_line_writes_nothing() -> None:
    town = await lacking()
    before = len(town.api.patches)
    line_of(town)
    await town.gate.look(town.client.now)
    assert len(town.api.patches) == before


async def test_where_nodes_or_workloads_are_not_seen_there_is_no_line() -> None:
    town = await lacking()
    town.blind = "nodes are hidden"
    assert town.gate.line(town.client.now) == Blind("nodes are hidden")


async def test_whose_policy_spares_the_idle_is_told() -> None:
    town = await lacking(policy={"reuse": {"enabled": False}})
    assert town.gate.report is not None
    assert [each.may_reuse for each in town.gate.report.waiting] == [False]


async def test_those_who_ask_for_nodes_are_known_by_name() -> None:
    for policy, names in (
        (None, set()),
        (ASKS, {CHECK}),
        (ASKS | {"requireFit": False}, set()),
        ({"reuse": {"enabled": True}}, set()),
    ):
        assert GateTown({"a": 8}, policy=policy).gate.asking() == names


async def test_nobody_is_asked_for_nodes_before_it_is_known_whether_idle_gpus_serve() -> None:
    town = GateTown({"a": 8, "b": 8}, policy=ASKS, with_provisioning=True)
    assert town.autoscaler is not None
    considered = "idle ones may serve it"
    town.gate.considers = lambda _uid, _now: considered
    town.submit("gang", pods=2, gpus=8)
    town.submit("late", pods=1, gpus=8)
    await town.passes(3)
    reuse = {name: case.reuse for name, case in town.autoscaler.asked.items()}
    served, lacks = (town.workload(job)["metadata"]["name"] for job in ("gang", "late"))
    assert (reuse.get(served, ""), reuse[lacks]) == ("", considered)
    considered = ""
    await town.passes(6)
    assert town.autoscaler.asked[lacks].reuse == ""
    assert town.autoscaler.asked[lacks].missing == {"main": 1}
