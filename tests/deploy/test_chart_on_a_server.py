"""A real API server takes what the chart makes: `pytest tests/deploy --kubeconfig FILE`, by dry runs only.

The server needs the definitions of KEDA and Kueue; kinds that it does not serve (Certificate, ServiceMonitor, …) are
left out. It compiles the expressions of the ValidatingAdmissionPolicy, which no schema does. Objects that are in a
namespace are rendered for `default`, since a dry run makes none.
"""

import json
import subprocess
from typing import Any

import pytest
import yaml

from deploy.helm_chart import DEPLOY, objects, platform

KINDS = {"ReclaimPolicy"}
"""Ours, which a dry run cannot have installed before."""
VALUES: dict[str, dict[str, Any]] = {
    "kubernetes": {"serviceMonitor": {"enabled": True}, "admissionCheck": {"enabled": True}},
    "openshift": platform("openshift"),
    "gke": platform("gke"),
    "observing": {"mode": "observe"},
    "confined": {"namespaces": ["default", "kube-system"]},
    "mutual TLS": {"tls": {"source": "secret", "http": True, "clients": {"required": True}}},
}


@pytest.fixture
def kubeconfig(request: pytest.FixtureRequest) -> str:
    path = request.config.getoption("kubeconfig")
    if path is None:
        pytest.skip("needs an API server: --kubeconfig FILE")
    return str(path)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_server_takes_everything_of_the_chart(kubeconfig: str, values: dict[str, Any]) -> None:
    served = served_by(kubeconfig)
    bodies = [body for body in objects(values, namespace="default") if body["kind"] in served - KINDS]
    assert len(bodies) > 5
    dry_run(kubeconfig, bodies)


def test_a_server_takes_our_definitions(kubeconfig: str) -> None:
    dry_run(
        kubeconfig,
        [yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in (DEPLOY / "crds").glob("*.yaml")],
    )


def served_by(kubeconfig: str) -> set[str]:
    lines = kubectl(kubeconfig, "api-resources", "--no-headers").splitlines()
    return {line.split()[-1] for line in lines}


def dry_run(kubeconfig: str, bodies: list[dict[str, Any]]) -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    kubectl(kubeconfig, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=manifest)


def kubectl(kubeconfig: str, *arguments: str, given: str = "") -> str:
    command = ["kubectl", "--kubeconfig", kubeconfig, "--request-timeout", "30s", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout
