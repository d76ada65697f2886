"""`pending` and `explain` of gangs that have quota and wait at our AdmissionCheck: against a running scaler in an
embedded world whose autoscaler takes its time, and on any terminal."""

import json
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from app.cli.command import command_beside
from rich.console import Console
from running_scaler import fetch, runtime, settings_document
from scaler_sandbox.autoscaler import BEST_EFFORT_ATOMIC, QUEUED_PROVISIONING, AutoscalerConfig, Scenario, Shape
from scaler_sandbox.conditions import has
from scaler_sandbox.config import Component, SandboxConfig
from scaler_sandbox.sandbox import Sandbox
from small_cluster import until

from scaler.app.cli.layout import labelled_rows
from scaler.app.cli.pending import check_rows, gang_rows
from scaler.app.packaged import crds
from scaler.app.process import Runtime
from scaler.app.settings.load import load
from scaler.kube.objects.resources import ADMISSION_CHECK, JOB, PROVISIONING_REQUEST, RECLAIM_POLICY, SCALABLE_WORKLOAD

GPU = "nvidia.com/gpu"
COLLECT = timedelta(milliseconds=200)
FOREVER = timedelta(hours=1)
SCENARIOS = (
    Scenario(
        provisioning_class=QUEUED_PROVISIONING,
        accepted_after=timedelta(seconds=0.1),
        tells_eta=True,
        provisioned_after=FOREVER,
        shape=Shape(gpus=8),
    ),
    Scenario(
        provisioning_class=BEST_EFFORT_ATOMIC, accepted_after=timedelta(0), provisioned_after=timedelta(0), failures=9
    ),
)


def gated(name, provisioning_class, **provisioning):
    """A ReclaimPolicy, the AdmissionCheck that follows it, a ClusterQueue with that check, and its LocalQueue."""
    kueue = "kueue.x-k8s.io/v1beta2"
    parameters = {"apiGroup": RECLAIM_POLICY.group, "kind": RECLAIM_POLICY.kind, "name": f"{name}-policy"}
    flavor = {"name": "flavor", "resources": [{"name": GPU, "nominalQuota": "64"}]}
    queue = {
        "namespaceSelector": {},
        "admissionChecksStrategy": {"admissionChecks": [{"name": f"{name}-gate"}]},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}],
    }
    check = {"controllerName": "idlegpu.io/reclaim", "parameters": parameters}
    return [
        {
            "apiVersion": RECLAIM_POLICY.api_version,
            "kind": RECLAIM_POLICY.kind,
            "metadata": {"name": f"{name}-policy"},
            "spec": {"provisioning": {"className": provisioning_class, **provisioning}},
        },
        {
            "apiVersion": ADMISSION_CHECK.api_version,
            "kind": ADMISSION_CHECK.kind,
            "metadata": {"name": f"{name}-gate"},
            "spec": check,
        },
        {"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": queue},
        {
            "apiVersion": kueue,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"clusterQueue": name},
        },
    ]


def job(name, *, queue, pods=1):
    """One whose pods need 8 GPUs each."""
    container = {"name": "main", "image": "train:1", "resources": {"limits": {GPU: "8"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"parallelism": pods, "completions": pods, "suspend": True, "template": template},
    }


def scaled(name):
    """A ScalableWorkload of the job, and the ScaledObject that scales it."""
    metadata = {"name": name, "namespace": "team"}
    kind = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind}
    job_ref = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
    triggers = [{"type": "external-push", "metadata": {"scalerAddress": "scaler:9090"}}]
    spec = {"scaleTargetRef": {**kind, "name": name}, "triggers": triggers}
    return [
        {**kind, "metadata": metadata, "spec": {"replicas": 1, "jobRef": job_ref}},
        {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata, "spec": spec},
    ]


@asynccontextmanager
async def town(folder):
    """Two queues with a gate each: one asks for nodes that take an hour to come, the other in vain."""
    config = replace(
        SandboxConfig.fast({"n1": 8}, collect=COLLECT),
        parts=frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS, Component.AUTOSCALER}),
        autoscaler=AutoscalerConfig(scenarios=SCENARIOS),
        follows=(SCALABLE_WORKLOAD, ADMISSION_CHECK, PROVISIONING_REQUEST, RECLAIM_POLICY),
    )
    async with Sandbox(config) as world:
        await world.apply(crds())
        flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "flavor"}}
        await world.apply(
            [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}, {**flavor, "spec": {}}]
        )
        await world.apply([*gated("queued", QUEUED_PROVISIONING), *gated("atomic", BEST_EFFORT_ATOMIC)])
        world.write_kubeconfig(folder / "kubeconfig")
        yield world


def is_true(world, name, kind):
    return has(world.workload_of(JOB, "team", name) or {}, kind)


async def test_gangs_at_the_gate_are_shown_with_their_checks_requests_and_times(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    async with town(tmp_path) as world:
        document = settings_document(tmp_path / "kubeconfig", world.exporter_urls["n1"])
        async with runtime(document) as running:
            server = f"http://127.0.0.1:{running.http_port}"
            await world.wait_for(lambda: world.condition(ADMISSION_CHECK, "", "queued-gate", "Active"))
            await world.apply(job("train", queue="queued"))
            await world.wait_for(lambda: is_true(world, "train", "Admitted"))
            await world.apply([job("gang", queue="queued", pods=2), *scaled("gang"), job("unlucky", queue="atomic")])
            await until(lambda: is_told(running.http_port), seconds=60)
            assert world.condition(RECLAIM_POLICY, "", "queued-policy", "Usable")
            await hold_to_pending(server)
            await hold_to_explain(server)
        local = await Runtime(load(None, environ={}, flags=without_source(document))).query_once(
            lambda local: local.queries.pending(), needs_verdicts=False
        )
    assert {each["job"]: each["gates"][0]["reason"] for each in local["gangs"]} == {
        "Job/gang": "NodesComing",
        "Job/unlucky": "NodesLacking",
    }
    assert "no metrics source" in local["unjudged"]


def without_source(document):
    return {name: section for name, section in document.items() if name != "dcgm"}


async def is_told(port):
    """That nodes were asked for, by an answer for both."""
    _, _, body = await fetch(port, "/api/v1/pending")
    states = [
        request["state"]
        for gang in json.loads(body).get("gangs", ())
        for gate in gang["gates"]
        for request in (gate["provisioning"] or {}).get("requests", ())
    ]
    return sorted(states) == ["Accepted", "Failed"]


async def hold_to_pending(server):
    told = (await command_beside("pending", "--json", "--server", server)).json
    gangs = {gang["job"]: gang for gang in told["gangs"]}
    assert gangs.keys() == {"Job/gang", "Job/unlucky"}
    [coming], [lacking] = gangs["Job/gang"]["gates"], gangs["Job/unlucky"]["gates"]
    assert (coming["check"], coming["policy"], coming["reason"]) == ("queued-gate", "queued-policy", "NodesComing")
    assert coming["provisioning"]["eta"] is not None
    assert (lacking["reason"], lacking["provisioning"]["state"]) == ("NodesLacking", "BackOff")
    assert lacking["provisioning"]["nextAttemptAt"] is not None
    shown = " ".join((await command_beside("pending", "--queue", "queued", "--server", server)).out.split())
    for words in (
        r"because WaitingForAdmissionChecks quota of queued is reserved since \S+; check queued-gate is Pending: Nodes",
        r"check queued-gate Pending since \S+, by ReclaimPolicy queued-policy PodSet main: 2 of 2 pods do not fit",
        r"nodes attempt 1 of 4 to queued-provisioning.gke.io; expected at \S+, in 5\dm",
        r"request job-gang-\w+-queued-gate-1 Accepted since \S+, attempt 1 for 2 pods Accepted=True",
        r"Provisioned=False \S+ CapacityIsNotFound: Waiting for resources. ETA:",
        r"1 gang pending for 16 GPUs",
    ):
        assert re.search(words, shown), words


async def hold_to_explain(server):
    """By the ScaledObject and by the job, and of one that was let go."""
    decided = await command_beside("explain", "team/gang", "--server", server)
    assert "team/gang scales ScalableWorkload gang" in " ".join(decided.out.split())
    unlucky = await command_beside("explain", "team/Job/unlucky", "--server", server)
    for told, words in ((decided, "expected at"), (unlucky, "next attempt at")):
        assert (told.status, told.err) == (0, "")
        assert words in told.out
    train = (await command_beside("explain", "team/train", "--json", "--server", server)).json
    assert train["scaledObject"] is None
    admission = train["admission"]
    assert (admission["job"], admission["state"], admission["gang"]) == ("Job/train", "Admitted", None)
    assert [(each["check"], each["state"]) for each in admission["gates"]] == [("queued-gate", "Ready")]
    assert "Job/train  Admitted since" in (await command_beside("explain", "team/train", "--server", server)).out


# ------------------------------------------------------------------------------------------------------------ rendering


def request(attempt, state, **more):
    told = {
        "type": state,
        "status": "True",
        "reason": state,
        "message": "because it is so",
        "since": "2026-12-01T12:00:00Z",
    }
    return {
        "name": f"job-gang-with-a-long-name-{attempt}",
        "className": "queued-provisioning.gke.io",
        "attempt": attempt,
        "pods": 2,
        "state": state,
        "since": "2026-12-01T12:00:00Z",
        "isEnding": False,
        "conditions": [told],
        **more,
    }


def gate(**provisioning):
    asked = {
        "className": "queued-provisioning.gke.io",
        "state": "Wait",
        "message": None,
        "attempt": 0,
        "attemptsAllowed": 4,
        "nextAttemptAt": None,
        "atLimit": "Hold",
        "eta": None,
        "etaIn": None,
        "requests": [],
        **provisioning,
    }
    return {
        "check": "a-check-with-a-name-that-fills-half-a-terminal",
        "policy": "a-policy-whose-name-is-as-long-as-that",
        "state": "Pending",
        "message": "[red]:warning: waits",
        "since": "2026-12-01T12:00:00Z",
        "finds": None,
        "before": ["team/one", "team/two"],
        "beforeOmitted": 3,
        "yielded": None,
        "provisioning": asked,
    }


def shown(gate, width=120):
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(labelled_rows([*check_rows(gate)]))
    return captured.get()


@pytest.mark.parametrize(
    ("provisioning", "words"),
    [
        ({}, "queued-provisioning.gke.io has no request yet"),
        ({"attempt": 2}, "attempt 2 of 4 to queued-provisioning.gke.io"),
        ({"attempt": 2, "attemptsAllowed": None}, "attempt 2 to queued-provisioning.gke.io"),
        ({"attempt": 1, "eta": "2026-12-01T12:00:00Z", "etaIn": "5m"}, "expected at 2026-12-01T12:00:00Z, in 5m"),
        ({"attempt": 1, "eta": "2026-12-01T12:00:00Z"}, "expected at 2026-12-01T12:00:00Z, which is past"),
        ({"attempt": 1, "nextAttemptAt": "2026-12-01T12:00:00Z"}, "next attempt at 2026-12-01T12:00:00Z"),
        ({"attempt": 4, "state": "AtLimit"}, "no further attempts: it keeps its reserved quota"),
        ({"attempt": 4, "state": "AtLimit", "atLimit": "Yield"}, "it releases its quota"),
        ({"state": "Stuck", "message": "not served"}, "cannot be requested: not served"),
        ({"attempt": 1, "requests": [request(1, "Failed")]}, "Failed=True 2026-12-01T12:00:00Z: because it is so"),
        ({"attempt": 1, "requests": [request(1, "New", isEnding=True)]}, "attempt 1 for 2 pods, being deleted"),
    ],
)
def test_what_was_asked_of_autoscalers_and_what_follows_is_told(provisioning, words):
    assert words in " ".join(shown(gate(**provisioning)).split())


def test_the_entry_is_shown_and_what_is_found_now_where_a_request_has_gone_on_since():
    told = {"message": "asking for nodes, attempt 1", "finds": "waits; ETA: soon"}
    assert "asking for nodes" in shown({**gate(), **told})
    assert "ETA: soon" in shown({**gate(attempt=1, requests=[request(1, "Accepted")]), **told})
    assert "ETA: soon" in shown({**gate(), **told, "message": None})
    assert "asking for nodes" in shown({**gate(attempt=1, requests=[request(1, "New")]), **told, "finds": None})


def test_of_one_for_whom_nobody_is_asked_nothing_is_said_about_nodes():
    assert "nodes" not in shown(gate(state="Nothing"))
    assert "nodes" not in shown({**gate(), "provisioning": None})


def test_that_a_gang_gave_its_quota_back_is_told():
    yielded = {"to": "plan x", "at": "2026-12-01T12:00:00Z", "times": 2, "notAgainBefore": "2026-12-01T12:02:00Z"}
    words = "its quota to plan x at 2026-12-01T12:00:00Z, 2 times so far; not again before 2026-12-01T12:02:00Z"
    assert words in " ".join(shown({**gate(), "yielded": yielded}).split())


@pytest.mark.parametrize(("outcome", "is_told"), [("NotNeeded", False), ("NotJudged", True), ("Waiting", False)])
def test_what_a_plan_could_do_is_told_where_it_says_more_than_the_reason(outcome, is_told):
    """Who holds its quota needs none, and what a reason says is not said twice."""
    gang = {
        "reasons": [{"reason": "Waiting", "message": "for its check"}],
        "reason": "Waiting",
        "plan": None,
        "reclaim": {"outcome": outcome, "message": "so it is"},
        "gates": [],
        "podSets": [],
        "waits": "5m",
        "since": "2026-12-01T12:00:00Z",
        "priority": 0,
        "clusterQueue": "cq",
        "localQueue": "lq",
        "queueingStrategy": "",
        "position": 0,
        "inLine": 0,
        "kueue": None,
    }
    assert ("reclaim" in {label for label, _ in gang_rows(gang)}) is is_told


@pytest.mark.parametrize("width", [40, 120])
def test_no_name_is_cut_off_however_narrow_the_terminal_is(width):
    told = shown(gate(attempt=1, requests=[request(1, "Failed")]), width)
    assert max(len(line.rstrip()) for line in told.splitlines()) <= width
    unfolded = "".join(told.split())
    for name in ("a-check-with-a-name-that-fills-half-a-terminal", "a-policy-whose-name-is-as-long-as-that"):
        assert name in unfolded
    assert "team/one,team/twoand3more" in unfolded
    assert "job-gang-with-a-long-name-1" in unfolded
    assert "[red]:warning:" in unfolded
