"""`plan`, `pending` and `queues`: against a running scaler in an embedded world, by themselves, and on any terminal."""

import json
import re

import pytest
import yaml
from app.cli.command import command, command_beside, printed
from app.sandbox_team import TEAM, team
from quota_builders import cluster_queue, cohort, holding, pod_set, quota, workload
from reclaim_builders import nodes_with
from running_scaler import fetch
from small_cluster import until
from views_builders import QuotaCluster

from scaler.app.cli import pending as pending_verb
from scaler.app.cli import plan as plan_verb
from scaler.app.cli import queues as queues_verb
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.quota.model import QueueingStrategy

GPU = "nvidia.com/gpu"


async def test_a_running_scaler_is_asked_and_this_process_can_look_for_itself(tmp_path, monkeypatch):
    """Of 8 GPUs 2 are free; Jobs a (2) and b (2) are idle, `busy` works on 2, and the gang wants 4."""
    monkeypatch.setenv("COLUMNS", "160")
    async with team(tmp_path, 8, pressure=False) as ours:
        async with ours.scaler() as running:
            await ours.runs("a", "b")
            await ours.submits("busy", gpus=2)
            ours.works("busy")
            await ours.submits("gang", gpus=4)
            server = f"http://127.0.0.1:{running.http_port}"

            async def is_seen():
                """That just these are idle, and what Kueue has said."""
                status, _, body = await fetch(running.http_port, f"/api/v1/plans/{TEAM}/gang")
                told = json.loads(body)
                idle = {each["name"] for each in told["candidates"]} if status == 200 else set()
                return idle == {f"{TEAM}/a", f"{TEAM}/b"} and told["gang"]["kueue"] is not None

            await until(is_seen)
            await hold_to_plan(server)
            await hold_to_pending_and_queues(server)
            await hold_to_refusals(server)
        await hold_to_this_process_alone(ours, tmp_path)


async def hold_to_plan(server):
    told = await command_beside("plan", f"{TEAM}/gang", "--server", server)
    assert (told.status, told.err) == (0, "")
    said = " ".join(told.out.split())
    for words in (
        "because WaitingForQuota flavor gpus lacks 2 of 4 nvidia.com/gpu (2 available)",
        "1 workload with 2 GPUs would be suspended",
        "PressureOff reclaim.pressure is off: no plan is carried out",
        "Kueue says QuotaReserved=False",
    ):
        assert words in said
    # 2 are free, 2 are freed, 4 are there, and 4 are taken.
    assert re.search(r"gpus nvidia.com/gpu +2 +2 +4 +4 +0\n", told.out)
    assert re.search(r"NODE    PODS  OF\n +node-. +1 +main", told.out)
    as_json = (await command_beside("plan", f"{TEAM}/Job/gang", "--json", "--server", f"{server}/")).json
    assert (as_json["gang"]["job"], as_json["plan"]["gpus"]) == ("Job/gang", 2)
    if_one = await command_beside("plan", f"{TEAM}/gang", "--what-if-idle", f"{TEAM}/a", "--server", server)
    assert f"assumed idle  {TEAM}/a" in if_one.out


async def hold_to_pending_and_queues(server):
    [gang] = (await command_beside("pending", "--json", "--server", server)).json["gangs"]
    assert (gang["reason"], gang["position"], gang["gpus"]) == ("WaitingForQuota", 1, 4)
    assert gang["reclaim"]["outcome"] == "Planned"
    shown = await command_beside("queues", "--server", server)
    [row] = [row for line in shown.out.splitlines() if len(row := line.split()) > 8 and row[0] == "cq"]
    #                       nominal used idle reclaimable available borrowed pending
    assert row[1:] == ["gpus", "8", "6", "4", "4", "2", "0", "4"]


async def hold_to_refusals(server):
    for arguments, problem in (
        (["plan", f"{TEAM}/none"], f"there is no Workload {TEAM}/none, nor one of a job of that name"),
        (["plan", f"{TEAM}/a"], "is admitted by ClusterQueue cq: there is nothing to plan"),
        (["pending", "--namespace", "typo"], "there is no namespace typo"),
        (["explain", f"{TEAM}/none"], f"there is no Workload {TEAM}/none, nor one of a job of that name"),
    ):
        refused = await command_beside(*arguments, "--server", server)
        assert (refused.status, refused.out) == (2, "")
        assert problem in refused.err
    status, _, body = await fetch(int(server.rpartition(":")[2]), "/api/v1/queues?allResources=maybe")
    assert (status, json.loads(body)["error"]) == (400, "allResources='maybe' is neither true nor false")


async def hold_to_this_process_alone(ours, folder):
    """It has just begun to read samples, so none is idle; what it is asked changes nothing."""
    config, bare = folder / "settings.yaml", folder / "bare.yaml"
    config.write_text(yaml.safe_dump(ours.document))
    bare.write_text(yaml.safe_dump({name: section for name, section in ours.document.items() if name != "dcgm"}))
    before = ours.world.all(SCALABLE_WORKLOAD), ours.world.all(WORKLOAD)
    by_itself = ("--json", "--local", "--config")
    plan = (await command_beside("plan", f"{TEAM}/gang", *by_itself, str(config))).json
    # Neither of these needs verdicts, and so no metrics source.
    if_all = (await command_beside("plan", f"{TEAM}/gang", "--what-if-idle", *by_itself, str(bare))).json
    queues = (await command_beside("queues", *by_itself, str(bare))).json
    assert plan["refusal"]["reason"] == "NotEnoughIdle"
    assert [each["isAssumed"] for each in if_all["candidates"]] == [True, True]
    assert if_all["plan"]["gpus"] == 2
    assert "no metrics source: set prometheus.url" in queues["unjudged"]
    [cq] = queues["trees"]
    assert (cq["name"], cq["flavors"][0]["used"], cq["pending"]) == ("cq", 6, {GPU: 4})
    assert (ours.world.all(SCALABLE_WORKLOAD), ours.world.all(WORKLOAD)) == before


# ----------------------------------------------------------------------------------------------------------- the asking


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["plan", "gang"], "'gang' is not NAMESPACE/NAME; write for example 'team-a/notebook'"),
        (["plan", "team/gang", "--what-if-idle", "notebook"], "'notebook' is not NAMESPACE/NAME"),
        (["plan", "team/gang", "team/notebook"], "team/notebook: names of idle workloads require --what-if-idle"),
    ],
)
def test_a_question_that_is_none_is_refused(arguments, problem):
    done = command(*arguments)
    assert done.status == 2
    assert problem in done.err


# ------------------------------------------------------------------------------------------------------------ the shape


def busy_town():
    """A little of everything, with names as long as they get."""
    holder = holding("a-notebook-that-somebody-has-left-open-over-the-weekend", gpus=4)
    other = holding("an-embedding-job-whose-name-says-all-about-it", gpus=2, queue="b")
    gang = workload("a-gang-with-a-name-that-fills-half-a-terminal", pod_sets=(pod_set("workers", pods=4, gpus=2),))
    capacity = nodes_with(
        {"node-1.example.com": 8, "node-2.example.com": 4}, {"node-1.example.com": {holder: 4, other: 2}}
    )
    town = QuotaCluster(
        [
            cluster_queue("a", gpus=quota(8, borrowing=0), cohort="research", strategy=QueueingStrategy.STRICT_FIFO),
            cluster_queue("b", gpus={"default": 4, "h100": 2}, cohort="research"),
        ],
        [holder, other, gang, workload("[red]:warning:", gpus=9)],
        cohorts=[cohort("research")],
        capacity=lambda: capacity,
    )
    town.idle(holder.name, other.name)
    return town


async def views():
    """What each verb is given, and how it renders that."""
    town = busy_town()
    gang = next(each.name for each, _ in (await town.view_snapshot()).waiting)
    return [
        (await town.queries.queues(), queues_verb.render),
        (await town.queries.pending(), pending_verb.render),
        (await town.queries.plan("team", gang), plan_verb.render),
        (await town.queries.plan("team", "[red]:warning:"), plan_verb.render),
    ]


def names_in(value):
    """All names of Workloads, queues, nodes and flavors in an answer."""
    named = ("name", "workload", "node", "flavor", "clusterQueue")
    if isinstance(value, list):
        return {name for each in value for name in names_in(each)}
    if isinstance(value, dict):
        own = {each for key, each in value.items() if key in named and isinstance(each, str)}
        return own | {name for each in value.values() for name in names_in(each)}
    return set()


@pytest.mark.parametrize("width", [40, 80, 160])
async def test_no_name_is_cut_off_however_narrow_the_terminal_is(width):
    for view, render in await views():
        shown = printed(render(view, width), width)
        assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
        # A name that is longer than a line goes on in the next one.
        unfolded = "".join(re.sub(r"[│├└─]", " ", shown).split())
        assert "…" not in shown
        for name in names_in({**view, "candidates": []}):
            assert "".join(name.split()) in unfolded


async def test_numbers_stand_below_each_other():
    [(view, render), *_] = await views()
    lines = printed(render(view, 160), 160).splitlines()
    ends = [match.end() for match in re.finditer(r"NOMINAL|USED|IDLE|RECLAIMABLE|AVAILABLE|BORROWED", lines[0])]
    rows = [line for line in lines[1:] if "default" in line or "h100" in line]
    assert len(rows) == 5
    for row in rows:
        numbers = [match.end() for match in re.finditer(r"(?<= )\d+(?= )", row)]
        assert numbers[: len(ends)] == ends


async def test_the_json_keeps_its_shape():
    """Others read it: a field that is not known is null, and never absent."""
    queues, pending, plan, refused = [view for view, _ in await views()]
    assert plan.keys() == refused.keys() == {
        "at", "gang", "whatIfIdle", "active", "plan", "refusal", "alternatives", "candidates", "moreCandidates",
        "cautions", "dispatch", "holders", "moreHolders",
    }  # fmt: skip
    assert plan["plan"].keys() == {
        "id", "seeks", "check", "missing", "clusterQueue", "cost", "gpus", "isExact", "victims", "quota",
        "assignments", "placement", "others", "necessities",
    }  # fmt: skip
    assert plan["plan"]["victims"][0].keys() == {
        "name", "workload", "clusterQueue", "gpus", "cost", "isAssumed", "costParts", "idleDivisor", "idleSince",
        "idleAtLeast", "idleFor", "savedAt",
    }  # fmt: skip
    assert refused["refusal"].keys() == {"reason", "message", "help", "isExact"}
    shared = {
        "namespace", "name", "job", "gpus", "podSets", "priority", "since", "waits", "localQueue", "clusterQueue",
        "queueingStrategy", "position", "inLine", "kueue", "reason", "message", "reasons",
    }  # fmt: skip
    assert plan["gang"].keys() == shared
    assert pending.keys() == {"at", "unjudged", "gangs", "omitted"}
    for gang in pending["gangs"]:
        assert gang.keys() == shared | {"quota", "before", "checks", "admissionChecks", "plan", "reclaim", "dispatch"}
    assert queues.keys() == {"at", "unjudged", "trees"}
    [research] = queues["trees"]
    node = {"kind", "name", "parent", "waitingGangs", "pending", "flavors", "children"}
    assert research.keys() == node | {"doubts"}
    for child in research["children"]:
        assert child.keys() == node | {"queueingStrategy", "stopPolicy", "inactiveBecause"}
        assert child["flavors"][0].keys() == {
            "flavor", "resource", "nominal", "used", "idle", "reclaimable", "available", "borrowed", "borrowingLimit",
            "lendingLimit",
        }  # fmt: skip


async def test_a_plan_that_stands_is_shown_with_its_victims():
    gang = workload("gang", gpus=4)
    town = QuotaCluster([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), gang])
    town.granted(gang, "x", "y")
    shown = printed(plan_verb.render(await town.queries.plan("team", "gang"), 100), 100)
    assert "Active plan 0123456789: Reclaimable" in shown
    assert re.search(r"team/x +2 +Reclaimable +idle, not scaled to 0 yet", shown)
    shown = printed(pending_verb.render(await town.queries.pending(), 100), 100)
    assert re.search(r"plan +Reclaimable +KEDA has asked 0 of 2 victims to be at 0", shown)


async def test_an_empty_cluster_has_nothing_to_show():
    town = QuotaCluster([], [])
    assert printed(queues_verb.render(await town.queries.queues(), 80), 80) == "There are no ClusterQueues.\n"
    assert printed(pending_verb.render(await town.queries.pending(), 80), 80) == "No pending Workload requests GPUs.\n"
