"""The definitions of Kueue, KEDA and Ray, as they are shipped, in the embedded Kubernetes API.

Not covered: definitions of other groups. Of a TrainJob (trainer.kubeflow.org) not all CEL rules are evaluated.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from recordings import CRDS, needs_data
from sandbox.kubeapi_session import MERGE, serving
from scaler_sandbox.kubeapi import KubeApi
from scaler_sandbox.kubeapi.schema.cel_rules import RuleBook
from scaler_sandbox.kubeapi.schema.structural import compile_schema

GROUPS = ("kueue.x-k8s.io", "keda.sh", "ray.io")
pytestmark = needs_data(CRDS)

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"


def definitions() -> list[dict[str, Any]]:
    loaded = (document for path in sorted(CRDS.glob("*.yaml")) for document in _documents(path))
    found = [each for each in loaded if each and each["kind"] == "CustomResourceDefinition"]
    return [each for each in found if each["spec"]["group"].endswith(GROUPS)]


def _documents(path: Path) -> list[dict[str, Any]]:
    with path.open() as file:
        return list(yaml.load_all(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def workload(**spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"nvidia.com/gpu": 2}}}]
    pod_sets = [{"name": "main", "count": 1, "template": {"spec": {"containers": containers}}}]
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "one"}}
    return {**head, "spec": {"queueName": "q", "podSets": pod_sets, **spec}}


def test_rules_are_listed_as_unchecked_where_their_evaluator_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "self.size() < 3"
    schema = compile_schema({"type": "array", "x-kubernetes-validations": [{"rule": rule}]})
    assert len([*RuleBook(schema).broken([1, 2, 3], None)]) == 1
    monkeypatch.setitem(sys.modules, "cel", None)
    without = RuleBook(schema)
    assert without.unchecked == (rule,)
    assert not [*without.broken([1, 2, 3], None)]


async def test_all_rules_of_what_the_program_writes_are_evaluated() -> None:
    api, loaded = KubeApi(), definitions()
    api.install_crds(loaded)
    custom = [resource for resource in api.served() if resource.custom]
    assert len(custom) == len(loaded)
    written = [each for each in custom if each.group != "trainer.kubeflow.org"]
    assert [each.qualified for each in written for v in each.versions.values() if v.unchecked_rules] == []
    async with serving(api) as session:
        await session.call("POST", WORKLOADS, workload())
        entry = {"name": "check", "state": "Ready"}
        patch = {"status": {"admissionChecks": [entry]}}
        status, body = await session.call("PATCH", f"{WORKLOADS}/one/status", patch, kind=MERGE)
        fields = {cause["field"] for cause in body["details"]["causes"]}
        assert status == 422
        assert {"status.admissionChecks[0].message", "status.admissionChecks[0].lastTransitionTime"} <= fields
        entry |= {"message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status, _ = await session.call("PATCH", f"{WORKLOADS}/one/status", patch, kind=MERGE)
        assert status == 200
