"""Whatever the chart makes is what Kubernetes takes: by its own schemas, and by the definitions of custom kinds."""

import importlib.resources
import json
from collections.abc import Iterator
from functools import cache
from itertools import cycle, product
from typing import Any

import jsonschema_rs
import pytest
import yaml
from recordings import CRDS
from scaler_sandbox import crds as world_crds

from deploy.helm_chart import DEPLOY, merged, objects, platform

Json = dict[str, Any]

VERSIONS = ("1.30", "1.37")
"""Of Kubernetes: the oldest one that the chart says it works with, and the newest one whose schemas are at hand."""
ELSEWHERE = {"cert-manager.io", "monitoring.googleapis.com"}
"""Groups whose definitions are at hand neither here nor there."""

CUSTOM = {"monitoring.coreos.com", "kueue.x-k8s.io", "keda.sh", "idlegpu.io"}

PLATFORMS = ("kubernetes", "openshift", "gke", "dev")
MODES = ("observe", "enforce")
REPLICAS = (1, 2, 3)
TLS: dict[str, Json] = {
    "plaintext": {"source": "none"},
    "secret": {"source": "secret", "http": True},
    "cert-manager": {"source": "certManager", "certManager": {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}},
    "openshift": {"source": "openshift", "http": True},
    "mutual": {"source": "secret", "clients": {"required": True, "names": ["keda"], "caSecretName": "keda-ca"}},
}
MATRIX: dict[str, Json] = {
    f"{name}, {tls}, {mode}, {replicas}": merged(
        platform(name), {"tls": TLS[tls], "mode": mode, "replicas": replicas}
    )
    for (name, tls), mode, replicas in zip(product(PLATFORMS, TLS), cycle(MODES), cycle(REPLICAS), strict=False)
}  # fmt: skip
"""Every platform with every kind of TLS; modes and numbers of replicas take turns."""
EVERYTHING: Json = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podMonitoring": {"enabled": True},
    "rules": {"enabled": True, "rawDcgm": True, "owners": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
    "report": {"schedule": "0 9 * * 1", "timeZone": "Europe/Berlin", "target": "mail"},
    "networkPolicy": {"egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]},
    "admissionCheck": {"enabled": True, "policy": {"waitForPodsGone": True, "pin": {"enabled": False}}},
    "rbac": {"clusterMonitoringView": True},
    "imagePullSecrets": [{"name": "registry"}],
    "image": {"digest": f"sha256:{'0' * 64}"},
    "serviceAccount": {"annotations": {"example.com/role": "reader"}},
    "priorityClassName": "system-cluster-critical",
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podLabels": {"team": "platform"},
    "podAnnotations": {"example.com/a": "b"},
    "extraEnv": [{"name": "IDLE_GPU_SCALER__LOG__LEVEL", "value": "debug"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
}
CORNERS: dict[str, Json] = {
    "everything": EVERYTHING,
    "confined": {"namespaces": ["team-a", "team-b"]},
    "nothing that is not needed": {
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": False},
        "admissionPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "targets": [],
        "nodeSelector": {"kubernetes.io/os": None},
    },
}


# ------------------------------------------------------------------------------------------------------------- schemas


def test_every_combination_is_what_kubernetes_takes() -> None:
    assert {body["kind"] for body in made()} >= {
        *("Deployment", "NetworkPolicy", "ClusterRole", "Role", "PodDisruptionBudget", "ServiceMonitor"),
        *("Certificate", "PodMonitoring", "ValidatingAdmissionPolicy", "AdmissionCheck", "ReclaimPolicy"),
    }
    assert not [f"{body['kind']} {problem}" for body in made() for problem in problems_of(body)]


@cache
def made() -> list[Json]:
    """Every object that differs from all others, of the whole matrix and the corners."""
    bodies = (body for values in (*MATRIX.values(), *CORNERS.values()) for body in objects(values))
    return list({json.dumps(body, sort_keys=True): body for body in bodies}.values())


@pytest.mark.parametrize(
    ("path", "value"),
    [(("spec", "replicas"), "two"), (("spec", "template", "spec", "containers"), None), (("spec", "replica"), 1)],
)
def test_the_schemas_would_find_a_mistake(path: tuple[str, ...], value: Any) -> None:
    [deployment] = [body for body in objects() if body["kind"] == "Deployment"]
    *above, last = path
    at = deployment
    for part in above:
        at = at[part]
    at[last] = value
    assert list(problems_of(deployment))


def test_objects_of_custom_kinds_are_taken_by_their_definitions() -> None:
    """By our own definitions, by those of the embedded cluster, and by the real ones where they are at hand."""
    kinds = ("kueue.x-k8s.io_admissionchecks", "monitoring.coreos.com_")
    paths = [*(DEPLOY / "crds").glob("*.yaml"), *(each for each in CRDS.glob("*.yaml") if each.name.startswith(kinds))]
    read = (each for path in paths for each in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader))
    definitions = {each["spec"]["names"]["kind"]: each for each in [*world_crds.load(), *read]}
    found = [body for body in objects(EVERYTHING) if body["kind"] in definitions]
    for body in found:
        assert not [*validator_of(definitions[body["kind"]], body["apiVersion"]).iter_errors(body)], body["kind"]
    real = {"PrometheusRule", "ServiceMonitor"} if CRDS.is_dir() else set()
    assert {body["kind"] for body in found} == {"AdmissionCheck", "ReclaimPolicy"} | real


def kind_of(body: Json) -> tuple[str, str]:
    return body["apiVersion"], body["kind"]


def problems_of(body: Json) -> Iterator[str]:
    """What Kubernetes' schemas have against it, unknown fields included; nothing for custom kinds."""
    if body["apiVersion"].partition("/")[0] in ELSEWHERE | CUSTOM:
        return
    for version in VERSIONS:
        for error in kubernetes_schema(version, *kind_of(body)).iter_errors(body):
            yield f"{body['metadata']['name']} in {version}: {error.message} at {list(error.instance_path)}"


@cache
def kubernetes_schema(version: str, api_version: str, kind: str) -> jsonschema_rs.Validator:
    group, _, name = api_version.rpartition("/")
    names = [kind, *([group.partition(".")[0]] if group else []), name]
    schema = schema_file(version, "-".join(names).lower())
    return jsonschema_rs.validator_for(schema, retriever=lambda _: schema_file(version, "_definitions"))


@cache
def schema_file(version: str, name: str) -> Any:
    """One of Kubernetes' schemas, which refuse unknown fields, too."""
    folders = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
    [folder] = [
        each
        for each in folders.iterdir()
        if each.name.startswith(f"v{version}.") and each.name.endswith("-local-strict")
    ]
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def validator_of(definition: Json, api_version: str) -> jsonschema_rs.Validator:
    [schema] = [
        each["schema"]["openAPIV3Schema"]
        for each in definition["spec"]["versions"]
        if f"{definition['spec']['group']}/{each['name']}" == api_version
    ]
    every = {name: {} for name in ("apiVersion", "kind", "metadata")}
    properties = every | schema["properties"]
    return jsonschema_rs.validator_for(strict({**schema, "properties": properties}), validate_formats=False)


def strict(schema: Json) -> Json:
    """The schema of a definition as one that refuses what the API server would drop."""
    if "properties" in schema:
        inner = {name: strict(each) for name, each in schema["properties"].items()}
        is_open = schema.get("x-kubernetes-preserve-unknown-fields", False) or inner.keys() == {
            "apiVersion", "kind", "metadata"
        }  # fmt: skip
        closed = {} if is_open else {"additionalProperties": False}
        return {"type": "object", "required": schema.get("required", []), "properties": inner, **closed}
    if schema.get("x-kubernetes-int-or-string"):
        return {}
    if "items" in schema:
        return {"type": "array", "items": strict(schema["items"])}
    return {key: value for key, value in schema.items() if not key.startswith("x-kubernetes")}
