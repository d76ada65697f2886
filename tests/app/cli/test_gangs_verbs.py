"""`pending` and `explain` of gangs that have quota and wait at our AdmissionCheck: against a running scaler in an
embedded world whose autoscaler takes its time, and on any terminal."""

import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from app.cli.command import command_beside, printed
from app.sandbox_team import CHECK, HURRIED, TEAM, team
from quota_builders import cluster_queue, workload
from running_scaler import fetch
from scaler_sandbox.autoscaler import QUEUED_PROVISIONING, AutoscalerConfig, Scenario, Shape
from scaler_sandbox.sandbox import Component
from small_cluster import until
from views_builders import QuotaCluster

from scaler.app.cli.layout import labelled_rows
from scaler.app.cli.pending import check_rows, gang_rows
from scaler.app.process import Runtime
from scaler.app.settings.load import load

AN_HOUR = Scenario(
    provisioning_class=QUEUED_PROVISIONING,
    accepted_after=timedelta(seconds=0.1),
    tells_eta=True,
    provisioned_after=timedelta(hours=1),
    shape=Shape(gpus=4),
)
SLOW_NODES = replace(
    HURRIED, autoscaler=AutoscalerConfig(scenarios=(AN_HOUR,)), parts=HURRIED.parts | {Component.AUTOSCALER}
)


async def test_gangs_at_the_check_are_shown_with_their_checks_requests_and_times(tmp_path, monkeypatch):
    """There are three nodes of 4 GPUs; `train` runs on one of them, and the gang needs three."""
    monkeypatch.setenv("COLUMNS", "120")
    policy = {"provisioning": {"className": QUEUED_PROVISIONING}}
    async with team(tmp_path, 64, gate=policy, config=SLOW_NODES, pressure=False) as ours:
        async with ours.scaler() as running:
            server = f"http://127.0.0.1:{running.http_port}"
            await ours.runs("train")
            await ours.submits("gang", gpus=4, pods=3)
            await until(lambda: has_accepted_request(running.http_port))
            await hold_to_pending(server)
            await hold_to_explain(server)
        without_source = {name: section for name, section in ours.document.items() if name != "dcgm"}
        local = await Runtime(load(None, environ={}, flags=without_source)).query_once(
            lambda local: local.queries.pending(), needs_verdicts=False
        )
    assert {each["job"]: each["admissionChecks"][0]["reason"] for each in local["gangs"]} == {"Job/gang": "NodesComing"}
    assert "no metrics source" in local["unjudged"]


async def has_accepted_request(port):
    _, _, body = await fetch(port, "/api/v1/pending")
    checks = [check for gang in json.loads(body).get("gangs", ()) for check in gang["admissionChecks"]]
    requests = [each for check in checks for each in (check["provisioning"] or {}).get("requests", ())]
    return [each["state"] for each in requests] == ["Accepted"]


async def hold_to_pending(server):
    [gang] = (await command_beside("pending", "--json", "--server", server)).json["gangs"]
    [coming] = gang["admissionChecks"]
    assert (gang["job"], coming["check"], coming["policy"], coming["reason"]) == (
        *("Job/gang", CHECK, "policy", "NodesComing"),
    )
    assert coming["provisioning"]["eta"] is not None
    shown = " ".join((await command_beside("pending", "--queue", "cq", "--server", server)).out.split())
    for words in (
        rf"because WaitingForAdmissionChecks quota of cq is reserved since \S+; check {CHECK} is Pending: Nodes",
        rf"check {CHECK} Pending since \S+, by ReclaimPolicy policy PodSet main: \d of 3 pods do",
        r"nodes attempt 1 of 4 to queued-provisioning.gke.io; expected at \S+, in 5\dm",
        rf"request job-gang-\w+-{CHECK}-1 Accepted since \S+, attempt 1 for \d pods? Accepted=True",
        r"Provisioned=False \S+ CapacityIsNotFound: Waiting for resources. ETA:",
        r"1 gang pending for 12 GPUs",
    ):
        assert re.search(words, shown), (words, shown)


async def hold_to_explain(server):
    """By the ScaledObject, by the job, and of one that was admitted."""
    decided = await command_beside("explain", f"{TEAM}/train", "--server", server)
    assert f"{TEAM}/train scales ScalableWorkload train" in " ".join(decided.out.split())
    assert f"check {CHECK} Ready since" in " ".join(decided.out.split())
    gang = await command_beside("explain", f"{TEAM}/Job/gang", "--json", "--server", server)
    assert (gang.json["scaledObject"], gang.json["admission"]["gang"]["job"]) == (None, "Job/gang")
    assert "expected at" in (await command_beside("explain", f"{TEAM}/gang", "--server", server)).out


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


def shown(gate):
    return printed(labelled_rows([*check_rows(gate)]))


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
async def test_what_a_plan_could_do_is_told_where_it_says_more_than_the_reason(outcome, is_told):
    """Who holds its quota needs none, and what a reason says is not said twice."""
    [gang] = (await QuotaCluster([cluster_queue(gpus=1)], [workload(gpus=2)]).queries.pending())["gangs"]
    gang |= {"reason": "Waiting", "reclaim": {"outcome": outcome, "message": "so it is"}}
    assert ("reclaim" in {label for label, _ in gang_rows(gang)}) is is_told
