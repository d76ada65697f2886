"""`doctor` against an embedded world: what it finds, what it says, and how it ends."""

from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from app.cli.command import command_beside, printed
from scaler_sandbox.conditions import has
from scaler_sandbox.job_manifests import manifest
from scaler_sandbox.kubeapi import KubeApi
from scaler_sandbox.manifests import objects_in
from scaler_sandbox.packaged import crds, packaged
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig

from scaler.app.cli.doctor import answer_of, render
from scaler.doctor.cluster_reader import reviewed_user
from scaler.doctor.findings import Finding, Severity, Topic
from scaler.kube.objects.resources import ADMISSION_CHECK, CLUSTER_QUEUE, NAMESPACE, SCALED_OBJECT, SERVICE, WORKLOAD

COLLECT = timedelta(milliseconds=200)
SETTINGS = "evaluation: {interval: 200ms}\ntrust: {collectionInterval: 200ms, maxAgeIntervals: 20}\n"


@asynccontextmanager
async def example_cluster(folder):
    """The cohort of the example, with its five notebooks, and no controller for the check."""
    parts = frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS})
    config = replace(SandboxConfig.fast({"n1": 8, "n2": 8}, collect=COLLECT), parts=parts)
    async with Sandbox(config) as world:
        await world.apply(crds())
        for file in ("queues.yaml", "notebooks.yaml"):
            await world.apply([*objects_in((packaged("examples") / "teams-in-a-cohort" / file).read_text())])
        await world.apply(service())
        world.write_kubeconfig(folder / "kubeconfig")
        (folder / "settings.yaml").write_text(SETTINGS)
        yield world


def service():
    name, spec = "idle-gpu-scaler", {"clusterIP": "None", "ports": [{"port": 9090}]}
    return [manifest(NAMESPACE, name), manifest(SERVICE, name, name, spec=spec)]


async def look_after_the_check(world):
    """As the leader does it."""
    condition = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": NOW}
    await world.patch(ADMISSION_CHECK, "", "whole-or-not-at-all", {"status": {"conditions": [condition]}}, "status")


NOW = "2026-11-20T12:00:00Z"


async def doctor(folder, *arguments):
    where = ("--kubeconfig", str(folder / "kubeconfig"), "--config", str(folder / "settings.yaml"))
    return await command_beside("doctor", *where, *arguments)


async def test_a_cluster_is_looked_at_check_by_check(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    async with example_cluster(tmp_path) as world:
        exporter = ("--dcgm-endpoint", world.exporter_url)
        await world.wait_for(lambda: are_looked_at(world), "Kueue to say that the queues are not active")
        found = await doctor(tmp_path, *exporter)
        assert found.status == 1, "no controller reconciles the check, so it must fail"
        said = " ".join(found.out.split())
        for words in (
            "Kubernetes API ok http://127.0.0.1:",
            "fail AdmissionCheck whole-or-not-at-all NotActive: it is not Active yet",
            "→ start a replica with --components reconciler",
            "fail ClusterQueue gangs, ClusterQueue",
            "16 GPUs are shown, nodes offer 16",
        ):
            assert words in said
        assert all(line == line.rstrip() for line in found.out.splitlines())

        await look_after_the_check(world)
        await world.wait_for(lambda: are_active(world) and are_let_go(world), "the queues to be active")
        found = await doctor(tmp_path, *exporter, "--json")
        [clear] = [each for each in found.json["findings"] if each["severity"] != "ok"]
        assert (clear["topic"], clear["check"]) == ("TLS", "TLSOff")
        assert found.status == 0
        await hold_to_what_is_spoilt(tmp_path, world)


QUEUES = ("vision", "speech", "gangs")


def are_looked_at(world):
    found = (world.find(CLUSTER_QUEUE, "", name) or {} for name in QUEUES)
    return all(each.get("status", {}).get("conditions") for each in found)


def are_active(world):
    return all(world.condition(CLUSTER_QUEUE, "", name, "Active") for name in QUEUES)


def are_let_go(world):
    """That Kueue has reserved quota for all notebooks; there is no gate here to let them go."""
    return all(has(each, "QuotaReserved") for each in world.all(WORKLOAD)) and len(world.all(WORKLOAD)) == 5


def all_granted_to(namespace, name):
    """What lets the ServiceAccount do everything."""
    rbac, subject = "rbac.authorization.k8s.io", {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    head = {"apiVersion": f"{rbac}/v1", "metadata": {"name": "everything"}}
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "everything"}
    return [
        {**head, "kind": "ClusterRole", "rules": [rule]},
        {**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    ]


async def hold_to_what_is_spoilt(folder, world):
    await world.patch(SCALED_OBJECT, "vision", "ana", {"spec": {"fallback": {"failureThreshold": 3, "replicas": 0}}})
    await world.apply(all_granted_to("gpus", "scaler"))
    world.api.permissions.deny("patch", "workloads/status.kueue.x-k8s.io")
    world.api.permissions.deny("list", "clusterqueues.kueue.x-k8s.io")
    done = await doctor(folder, "--as", "system:serviceaccount:gpus:scaler", "--json")
    assert done.status == 1
    told = done.json
    found = {(each["severity"], each["topic"], each["check"], each["where"]) for each in told["findings"]}
    assert found >= {
        ("fail", "ScaledObjects", "Fallback", "ScaledObject vision/ana"),
        ("fail", "Permissions", "Denied", "AdmissionChecks"),
        ("fail", "Permissions", "Denied", "plans"),
        ("fail", "ClusterQueues", "NotRead", "all of ClusterQueue"),
        ("warn", "Metrics", "NotAsked", ""),
    }
    assert told["counts"]["fail"] == sum(each["severity"] == "fail" for each in told["findings"]) == 4
    [denied] = [each for each in told["findings"] if each["where"] == "AdmissionChecks" and each["severity"] == "fail"]
    assert denied["what"] == "it may not patch workloads/status.kueue.x-k8s.io"
    [unread] = [each for each in told["findings"] if each["check"] == "NotRead"]
    assert "grant verb 'list' on 'clusterqueues'" in unread["what"]
    leases = [each["what"] for each in told["findings"] if "leases" in each["what"]]
    assert leases == ["get, create, update leases.coordination.k8s.io in namespace gpus"]


async def test_an_api_that_is_away_is_a_finding_and_not_a_traceback(tmp_path):
    api = KubeApi()
    await api.start()
    api.write_kubeconfig(tmp_path / "kubeconfig")
    await api.stop()
    (tmp_path / "settings.yaml").write_text("kubernetes: {timeout: 200ms}\n")
    found = await doctor(tmp_path)
    assert (found.status, found.err) == (1, "")
    assert "Unreachable" in found.out


def test_an_account_is_asked_about_with_the_groups_that_it_has():
    user = reviewed_user("system:serviceaccount:gpus:scaler")
    assert user is not None
    assert user.groups == ("system:serviceaccounts", "system:serviceaccounts:gpus", "system:authenticated")
    assert reviewed_user("") is None, "its own permissions"


@pytest.mark.parametrize("number", [1, 3, 4, 50])
def test_what_differs_in_nothing_but_the_object_is_told_once(number):
    findings = [
        Finding(
            severity=Severity.FAIL,
            topic=Topic.SCALED_OBJECTS,
            check="Fallback",
            what="a fallback is set",
            where=f"ScaledObject team/{index:02}",
            do="remove it",
        )
        for index in range(number)
    ]
    told = answer_of(findings)
    assert len(told["findings"]) == number
    assert told["counts"] == {"ok": 0, "warn": 0, "fail": number}
    shown = printed(render(told, 120))
    assert shown.count("Fallback: a fallback is set") == 1
    assert shown.count("→ remove it") == 1
    assert shown.count("team/") == min(number, 3)
    assert (f"and {number - 3} more" in " ".join(shown.split())) == (number > 3)
