"""The scaler of a cluster is asked by way of kubectl, where only a kubeconfig is given."""

import os
import stat
from pathlib import Path

import pytest
from app.cli.command import command
from http_stub import HttpStub, Reply

ANSWER = b'{"queues": [], "cohorts": []}'
KUBECTL = """#!/bin/sh
# As much of kubectl as is called: Services by label, and a forward to one of them.
printf '%s\\n' "$*" >> {log}
case "$*" in
    *"get services --all-namespaces"*) {everywhere} ;;
    *"get services --namespace=idle-gpu-scaler"*) {there} ;;
    *port-forward*) {forward} ;;
    *) echo "unknown: $*" >&2; exit 64 ;;
esac
"""
ONE = "echo 'gpus scaler-metrics 8080'"
CONFIG = """
current-context: a
contexts: [{name: a, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
"""
DENIED = "echo 'Error from server (Forbidden): services is forbidden' >&2; exit 1"


class Kubectl:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        self._folder, self.log = folder, folder / "log"
        self.config = folder / "kubeconfig"
        self.config.write_text(CONFIG)
        self._port = url.rpartition(":")[2]
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def does(self, *, everywhere: str = ONE, there: str = DENIED, forward: str = "") -> None:
        forward = forward or f"echo 'Forwarding from 127.0.0.1:{self._port} -> 8080'; exec sleep 60"
        file = self._folder / "kubectl"
        file.write_text(KUBECTL.format(log=self.log, everywhere=everywhere, there=there, forward=forward))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def stub():
    with HttpStub(lambda _: Reply(ANSWER, headers={"Content-Type": "application/json"})) as one:
        yield one


@pytest.fixture
def kubectl(tmp_path, monkeypatch, stub):
    return Kubectl(tmp_path, monkeypatch, stub.url)


QUERIES = ("explain a/b", "plan a/b", "pending", "queues", "top --once")


@pytest.mark.parametrize("verb", QUERIES)
def test_every_verb_that_asks_a_server_asks_that_of_the_cluster(kubectl, stub, verb):
    kubectl.does()
    command(*verb.split(), "--kubeconfig", str(kubectl.config))
    assert stub.received
    looked, forwarded = kubectl.calls
    assert looked.startswith(f"--kubeconfig {kubectl.config} get services --all-namespaces -l app.kubernetes.io/name=")
    assert forwarded == f"--kubeconfig {kubectl.config} -n gpus port-forward service/scaler-metrics :8080"


def test_who_may_not_list_all_services_finds_it_where_it_is_installed_by_default(kubectl, stub):
    kubectl.does(everywhere=DENIED, there="echo 'idle-gpu-scaler idle-gpu-scaler-metrics 8080'")
    command("queues", "--kubeconfig", str(kubectl.config))
    assert stub.received
    assert kubectl.calls[-1].endswith("-n idle-gpu-scaler port-forward service/idle-gpu-scaler-metrics :8080")


def test_an_address_goes_before_a_cluster(kubectl, stub):
    kubectl.does()
    command("queues", "--kubeconfig", str(kubectl.config), "--server", stub.url)
    assert stub.received
    assert not kubectl.log.exists()


FAILURES = {
    "nobody may look": ({"everywhere": DENIED}, "(Error from server (Forbidden): services is forbidden)"),
    "there is none": ({"everywhere": "true", "there": "true"}, "no single Service is labelled app.kubernetes.io/name="),
    "there are two": (
        {"everywhere": f"{ONE}; echo 'b s 1'", "there": f"{ONE}; echo 'b s 1'"},
        "but: gpus scaler-metrics",
    ),
    "it may not be forwarded": (
        {"forward": "echo 'error: pods is forbidden: cannot create pods/portforward' >&2; exit 1"},
        "(error: pods is forbidden: cannot create pods/portforward)",
    ),
    "kubectl says nothing": ({"forward": "exit 0"}, "(no answer in time)"),
}


@pytest.mark.parametrize(("does", "said"), FAILURES.values(), ids=FAILURES)
def test_what_is_in_the_way_is_said_with_what_to_do(kubectl, does, said):
    kubectl.does(**does)
    done = command("queues", "--kubeconfig", str(kubectl.config))
    assert done.status == 2
    assert done.err.startswith("error: kubectl does not reach a scaler (")
    assert said in done.err
    assert done.err.endswith("; set --server to its address, or use --local\n")


def test_without_kubectl_that_is_said(kubectl, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("queues", "--kubeconfig", str(kubectl.config))
    assert "No such file or directory: 'kubectl'" in done.err
