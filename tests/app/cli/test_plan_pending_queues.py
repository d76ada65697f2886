"""`plan`, `pending` and `queues`: against a running scaler in an embedded world, by themselves, and on any terminal."""

import json
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
import yaml
from app.cli.command import command, command_beside
from http_stub import HttpStub, Reply
from quota_builders import cluster_queue, cohort, holding, pod_set, quota, workload
from reclaim_builders import nodes_with
from rich.console import Console
from running_scaler import fetch, gpus, runtime, settings_document
from scaler_sandbox.config import Component, SandboxConfig
from scaler_sandbox.sandbox import Sandbox
from small_cluster import small_cluster, until
from views_builders import Town

from scaler.app.cli import pending as pending_verb
from scaler.app.cli import plan as plan_verb
from scaler.app.cli import queues as queues_verb
from scaler.app.packaged import crds
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.quota.model import QueueingStrategy

COLLECT = timedelta(milliseconds=200)
KUEUE = "kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"

# ------------------------------------------------------------------------------------------------------------ the world


def queue(name, gpus, **limits):
    """A ClusterQueue of the cohort, its LocalQueue `gpus`, and the namespace of that team."""
    resource = {"name": GPU, "nominalQuota": str(gpus), **limits}
    groups = [{"coveredResources": [GPU], "flavors": [{"name": "a100", "resources": [resource]}]}]
    spec = {
        "cohortName": "research",
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO",
        "resourceGroups": groups,
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": KUEUE,
            "kind": "LocalQueue",
            "metadata": {"name": "gpus", "namespace": name},
            "spec": {"clusterQueue": name},
        },
    ]


def job(namespace, name, gpus):
    requests = {GPU: str(gpus)}
    container = {"name": "main", "image": "train:1", "resources": {"requests": requests, "limits": requests}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"parallelism": 1, "completions": 1, "suspend": True, "template": template},
    }


def scaled(namespace, name):
    """A ScalableWorkload of the job, and the ScaledObject that scales it."""
    metadata = {"name": name, "namespace": namespace}
    target = {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ScalableWorkload", "name": name}
    reclaim = {"reclaim": "OnPressure", "idleAfterUnderPressure": "1s", "warmUp": "0s", "scalerAddress": "scaler:9090"}
    triggers = [{"type": "external-push", "metadata": reclaim}]
    job_ref = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
    return [
        {
            "apiVersion": "idlegpu.io/v1alpha1",
            "kind": "ScalableWorkload",
            "metadata": metadata,
            "spec": {"replicas": 1, "jobRef": job_ref},
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": metadata,
            "spec": {"scaleTargetRef": target, "triggers": triggers},
        },
    ]


@asynccontextmanager
async def two_teams(folder):
    """Of 8 GPUs 2 are free; vision's notebook (2) and sweep (2) are idle, speech trains on 2, vision's gang wants 4."""
    parts = frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS})
    config = replace(SandboxConfig.fast({"n1": 8}, collect=COLLECT), parts=parts, follows=(SCALABLE_WORKLOAD,))
    async with Sandbox(config) as world:
        await world.apply(crds())
        await world.apply({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "a100"}, "spec": {}})
        await world.apply([*queue("vision", 4), *queue("speech", 4, borrowingLimit="0", lendingLimit="2")])
        world.fleet.set_activity("speech", "*", 0.9)
        for namespace, name in (("vision", "notebook"), ("vision", "sweep"), ("speech", "train")):
            await world.apply([job(namespace, name, 2), *scaled(namespace, name)])
        await world.wait_for(lambda: len([each for each in world.all(WORKLOAD) if is_admitted(each)]) == 3)
        await world.apply(job("vision", "gang", 4))
        world.write_kubeconfig(folder / "kubeconfig")
        yield world


def is_admitted(workload):
    conditions = (workload.get("status") or {}).get("conditions", [])
    return any(each["type"] == "Admitted" and each["status"] == "True" for each in conditions)


async def test_a_running_scaler_is_asked_and_this_process_can_look_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    async with two_teams(tmp_path) as world:
        document = settings_document(tmp_path / "kubeconfig", world.exporter_urls["n1"], reclaim={"pressure": False})
        async with runtime(document) as running:
            server = f"http://127.0.0.1:{running.http_port}"

            async def is_seen():
                """That just these are idle, and what Kueue has said. Without warm-up whoever works begins quiet."""
                status, _, body = await fetch(running.http_port, "/api/v1/plans/vision/gang")
                told = json.loads(body)
                idle = {each["name"] for each in told["candidates"]} if status == 200 else set()
                return idle == {"vision/notebook", "vision/sweep"} and told["gang"]["kueue"] is not None

            await until(is_seen, seconds=60)
            await hold_to_the_running_scaler(server)
        await hold_to_this_process_alone(world, tmp_path, document)


async def hold_to_the_running_scaler(server):
    told = await command_beside("plan", "vision/gang", "--server", server)
    assert (told.status, told.err) == (0, "")
    said = " ".join(told.out.split())
    for words in (
        "because WaitingForQuota flavor a100 lacks 2 of 4 nvidia.com/gpu (2 available)",
        "1 workload with 2 GPUs would be suspended",
        "PressureOff reclaim.pressure is off: no plan is carried out",
        "Kueue says QuotaReserved=False",
    ):
        assert words in said
    # 2 are free, 2 are freed, 4 are there, and 4 are taken.
    assert re.search(r"a100 nvidia.com/gpu +2 +2 +4 +4 +0\n", told.out)
    assert re.search(r"NODE  PODS  OF\n +n1 +1 +main", told.out)

    as_json = (await command_beside("plan", "vision/Job/gang", "--json", "--server", f"{server}/")).json
    assert as_json["gang"]["job"] == "Job/gang"
    assert as_json["plan"]["gpus"] == 2

    if_all = (await command_beside("plan", "vision/gang", "--what-if-idle", "--json", "--server", server)).json
    if_one = await command_beside("plan", "vision/gang", "--what-if-idle", "speech/train", "--server", server)
    assert {each["name"] for each in if_all["candidates"]} == {"vision/notebook", "vision/sweep", "speech/train"}
    assert [each["name"] for each in if_all["candidates"] if each["isAssumed"]] == ["speech/train"]
    assert "assumed idle  speech/train" in if_one.out

    waiting = (await command_beside("pending", "--json", "--server", server)).json
    [gang] = waiting["gangs"]
    assert (gang["reason"], gang["position"], gang["gpus"]) == ("WaitingForQuota", 1, 4)
    assert gang["reclaim"]["outcome"] == "Planned"
    elsewhere = await command_beside("pending", "--namespace", "speech", "--queue", "gpus", "--server", server)
    assert elsewhere.out == "No pending Workload requests GPUs.\n"

    shown = await command_beside("queues", "--server", server)
    table = {row[1]: row for line in shown.out.splitlines() if len(row := line.split()) > 8}
    #                                     nominal used idle reclaimable available borrowed pending
    assert table["vision"][2:] == ["a100", "4", "4", "4", "4", "2", "0", "4"]
    assert table["speech"][2:10] == ["a100", "4", "2", "0", "0", "2", "0", "0"]
    assert "borrows ≤ 0, lends ≤ 2" in shown.out

    for arguments, problem in (
        (["plan", "vision/nobody"], "there is no Workload vision/nobody, nor one of a job of that name"),
        (["plan", "vision/notebook"], "is admitted by ClusterQueue vision: there is nothing to plan"),
        (["plan", "vision/gang", "--what-if-idle", "vision/nobody"], "vision/nobody: no Workload or ScalableWorkload"),
        (["pending", "--queue", "typo"], "there is no ClusterQueue typo, and no LocalQueue typo"),
        (["pending", "--namespace", "typo"], "there is no namespace typo"),
        (["explain", "vision/nobody"], "there is no Workload vision/nobody, nor one of a job of that name"),
    ):
        refused = await command_beside(*arguments, "--server", server)
        assert (refused.status, refused.out) == (2, "")
        assert problem in refused.err
    status, _, body = await fetch(int(server.rpartition(":")[2]), "/api/v1/queues?allResources=maybe")
    assert (status, json.loads(body)["error"]) == (400, "allResources='maybe' is neither true nor false")


async def hold_to_this_process_alone(world, folder, document):
    """It has just begun to look, so it knows nobody to be idle; what it asks changes nothing."""
    config, bare = folder / "settings.yaml", folder / "bare.yaml"
    config.write_text(yaml.safe_dump(document))
    bare.write_text(yaml.safe_dump({name: section for name, section in document.items() if name != "dcgm"}))
    before = world.all(SCALABLE_WORKLOAD), world.all(WORKLOAD)
    by_itself = ("--json", "--local", "--config")
    plan = (await command_beside("plan", "vision/gang", *by_itself, str(config))).json
    # Neither of these needs to know who is idle, and so no metrics source.
    if_all = (await command_beside("plan", "vision/gang", "--what-if-idle", *by_itself, str(bare))).json
    queues = (await command_beside("queues", *by_itself, str(bare))).json
    assert plan["refusal"]["reason"] == "NotEnoughIdle"
    assert {each["name"] for each in plan["holders"]} == {"vision/notebook", "vision/sweep", "speech/train"}
    assert [each["isAssumed"] for each in if_all["candidates"]] == [True, True, True]
    assert if_all["plan"]["gpus"] == 2
    assert "no metrics source: set prometheus.url" in queues["unjudged"]
    [research] = queues["trees"]
    assert (research["name"], research["flavors"][0]["used"], research["pending"]) == ("research", 6, {GPU: 4})
    assert (world.all(SCALABLE_WORKLOAD), world.all(WORKLOAD)) == before


async def test_where_quota_cannot_be_seen_it_says_why(tmp_path):
    async with small_cluster(tmp_path) as cluster, gpus() as (_, exporter):
        document = settings_document(
            cluster.kubeconfig, exporter.node_urls["node-a"], kubernetes={"namespaces": ["demo"]}
        )
        async with runtime(document) as running:
            for verb in (["queues"], ["pending"], ["plan", "demo/gang"]):
                told = await command_beside(*verb, "--server", f"http://127.0.0.1:{running.http_port}")
                assert told.status == 2
                assert "quota is not known: only namespace demo is watched" in told.err
            status, *_ = await fetch(running.http_port, "/api/v1/pending")
            assert status == 503


# ----------------------------------------------------------------------------------------------------------- the asking

QUESTIONS = [["queues"], ["pending"], ["plan", "demo/gang"]]


@pytest.mark.parametrize("question", QUESTIONS)
def test_where_nobody_answers_it_says_what_to_do(question):
    done = command(*question, "--server", "http://127.0.0.1:1")
    assert done.status == 2
    assert "no scaler answers at http://127.0.0.1:1 (ClientConnectorError)" in done.err
    assert "--server" in done.err
    assert "--local" in done.err


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_no_scaler_is_not_taken_for_one(question):
    reply = Reply(b'{"status": "up"}', headers={"Content-Type": "application/json"})
    with HttpStub(lambda _request: reply) as stub:
        done = command(*question, "--server", stub.url)
    assert done.status == 2
    assert f"no scaler answers at {stub.url} (status 200)" in done.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["plan", "gang"], "'gang' is not NAMESPACE/NAME; write for example 'team-a/notebook'"),
        (["plan", "team/"], "'team/' is not NAMESPACE/NAME"),
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
    town = Town(
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


async def views(town=None):
    """What each verb is told, and how it renders that."""
    town = town or busy_town()
    gang = next(each.name for each, _ in (await town.view_snapshot()).waiting)
    return [
        (await town.queries.queues(), queues_verb.render),
        (await town.queries.pending(), pending_verb.render),
        (await town.queries.plan("team", gang), plan_verb.render),
        (await town.queries.plan("team", "[red]:warning:"), plan_verb.render),
    ]


def printed(view, render, width, **console):
    shown = Console(width=width, markup=False, emoji=False, highlight=False, **console)
    with shown.capture() as captured:
        shown.print(render(view, width))
    return captured.get()


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
        shown = printed(view, render, width)
        assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
        # A name that is longer than a line goes on in the next one.
        unfolded = "".join(re.sub(r"[│├└─]", " ", shown).split())
        assert "…" not in shown
        for name in names_in({**view, "candidates": []}):
            assert "".join(name.split()) in unfolded


async def test_numbers_stand_below_each_other():
    [(view, render), *_] = await views()
    lines = printed(view, render, 160).splitlines()
    ends = [match.end() for match in re.finditer(r"NOMINAL|USED|IDLE|RECLAIMABLE|AVAILABLE|BORROWED", lines[0])]
    rows = [line for line in lines[1:] if "default" in line or "h100" in line]
    assert len(rows) == 5
    for row in rows:
        numbers = [match.end() for match in re.finditer(r"(?<= )\d+(?= )", row)]
        assert numbers[: len(ends)] == ends


async def test_colours_are_for_terminals_only():
    for view, render in await views():
        assert "\x1b[" not in printed(view, render, 100)
        assert "\x1b[" in printed(view, render, 100, force_terminal=True, color_system="standard")


async def test_words_of_others_are_shown_as_they_are():
    """What looks like markup or an emoji is a name."""
    *_, (view, render) = await views()
    assert "team/[red]:warning:" in printed(view, render, 160)


async def test_the_json_keeps_its_shape():
    """Others read it: a field that is not known is null, and never absent."""
    queues, pending, plan, refused = [view for view, _ in await views()]
    assert plan.keys() == refused.keys() == {
        "at", "gang", "whatIfIdle", "standing", "plan", "refusal", "alternatives", "candidates", "moreCandidates",
        "cautions", "holders", "moreHolders",
    }  # fmt: skip
    assert plan["plan"].keys() == {
        "id", "seeks", "check", "missing", "clusterQueue", "cost", "gpus", "isExact", "victims", "quota",
        "assignments", "placement", "others", "necessities",
    }  # fmt: skip
    assert plan["plan"]["victims"][0].keys() == {
        "name", "workload", "clusterQueue", "gpus", "cost", "isAssumed", "costParts", "idleDivisor", "idleSince",
        "idleFor",
    }  # fmt: skip
    assert refused["refusal"].keys() == {"reason", "message", "help", "isExact"}
    shared = {
        "namespace", "name", "job", "gpus", "podSets", "priority", "since", "waits", "localQueue", "clusterQueue",
        "queueingStrategy", "position", "inLine", "kueue", "reason", "message", "reasons",
    }  # fmt: skip
    assert plan["gang"].keys() == shared
    assert pending.keys() == {"at", "unjudged", "gangs", "omitted"}
    for gang in pending["gangs"]:
        assert gang.keys() == shared | {"quota", "before", "checks", "gates", "plan", "reclaim"}
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
    town = Town([cluster_queue(gpus=4)], [holding("x", gpus=2), holding("y", gpus=2), gang])
    town.granted(gang, "x", "y")
    shown = printed(await town.queries.plan("team", "gang"), plan_verb.render, 100)
    assert "Active plan 0123456789: Reclaimable" in shown
    assert re.search(r"team/x +2 +Reclaimable +idle, not scaled to 0 yet", shown)
    shown = printed(await town.queries.pending(), pending_verb.render, 100)
    assert re.search(r"plan +Reclaimable +KEDA has asked 0 of 2 victims to be at 0", shown)


async def test_an_empty_cluster_has_nothing_to_show():
    town = Town([], [])
    assert printed(await town.queries.queues(), queues_verb.render, 80) == "There are no ClusterQueues.\n"
    assert printed(await town.queries.pending(), pending_verb.render, 80) == "No pending Workload requests GPUs.\n"
