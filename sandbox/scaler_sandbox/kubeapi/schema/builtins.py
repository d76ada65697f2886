"""Which built-in resources are there, and by what traits do they differ? One table.

What the API knows of their fields stands in `builtin_schemas`; what it writes into them by itself, here.
"""

from typing import Any

from scaler_sandbox.kubeapi.errors import Json
from scaler_sandbox.kubeapi.schema.builtin_schemas import (
    DEFINITION,
    JOB,
    METADATA,
    POD_SPEC,
    REPLICATED,
    SERVICE,
    TEMPLATE,
    default_of,
    known,
)
from scaler_sandbox.kubeapi.schema.crds import CLEANUP_FINALIZER, with_names
from scaler_sandbox.kubeapi.schema.resources import AGE, Column, Resource, ScalePaths, Version
from scaler_sandbox.kubeapi.schema.structural import compile_schema

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
"""Its policies are kept, and not carried out."""
_SCALE = ScalePaths(spec=("spec", "replicas"), status=("status", "replicas"), selector=("spec", "selector"))


def _columns(*columns: tuple[str, str]) -> tuple[Column, ...]:
    return (*(Column(name=name, path=path) for name, path in columns), AGE)


def _built_in(group: str, plural: str, kind: str, schema: Json, **traits: Any) -> Resource:
    of_version = {
        name: traits.pop(name)
        for name in ("has_status", "scale", "columns", "selectable", "validate")
        if name in traits
    }
    whole = known(**{**schema["properties"], "metadata": METADATA})
    served = Version(name="v1", schema=compile_schema(whole), **of_version)
    return Resource(
        group=group,
        plural=plural,
        kind=kind,
        singular=kind.lower(),
        list_kind=f"{kind}List",
        versions={"v1": served},
        storage="v1",
        **traits,
    )


def _namespace_completed(body: Json) -> Json:
    """A namespace is held by its contents, and can be selected by its name."""
    metadata = body["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    spec = {**(body.get("spec") or {}), "finalizers": ["kubernetes"]}
    return {**body, "metadata": {**metadata, "labels": labels}, "spec": spec}


def _job_completed(body: Json) -> Json:
    """A Job selects its pods by a label that carries its uid, unless its author chose the selector."""
    spec, uid = body.get("spec") or {}, body["metadata"]["uid"]
    if spec.get("manualSelector"):
        return body
    key = "batch.kubernetes.io/controller-uid"
    pods = spec.get("template") or {}
    metadata = pods.get("metadata") or {}
    names = {key: uid, "batch.kubernetes.io/job-name": body["metadata"]["name"]}
    labels = {**(metadata.get("labels") or {}), **names, "controller-uid": uid, "job-name": body["metadata"]["name"]}
    labelled = {**pods, "metadata": {**metadata, "labels": labels}}
    return {**body, "spec": {**spec, "selector": {"matchLabels": {key: uid}}, "template": labelled}}


_KEPT = (
    ("", "configmaps", "ConfigMap", "cm", True),
    (_RBAC, "clusterroles", "ClusterRole", "", False),
    (_RBAC, "clusterrolebindings", "ClusterRoleBinding", "", False),
    (_RBAC, "roles", "Role", "", True),
    (_RBAC, "rolebindings", "RoleBinding", "", True),
    ("networking.k8s.io", "networkpolicies", "NetworkPolicy", "netpol", True),
    ("scheduling.k8s.io", "priorityclasses", "PriorityClass", "pc", False),
    (_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", "", False),
    (_ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", "", False),
)
"""What is only kept: group, plural, kind, short name, and whether it is namespaced."""

BUILT_INS: tuple[Resource, ...] = (
    _built_in(
        "", "namespaces", "Namespace", known(),
        short_names=("ns",), namespaced=False, generation=False, has_status=True,
        initial_status={"phase": "Active"}, selectable=("status.phase",), returns_deleted=True,
        columns=_columns(("Status", ".status.phase")), completed=_namespace_completed,
    ),
    _built_in(
        "", "pods", "Pod", known(spec=POD_SPEC),
        short_names=("po",), has_status=True, graceful=True, returns_deleted=True,
        initial_status={"phase": "Pending", "qosClass": "BestEffort"}, selectable=("spec.nodeName", "status.phase"),
        columns=_columns(("Status", ".status.phase"), ("Node", ".spec.nodeName")),
    ),
    _built_in(
        "", "nodes", "Node", known(),
        short_names=("no",), namespaced=False, generation=False, has_status=True, status_on_create="keep",
        columns=_columns(("Ready", '.status.conditions[?(@.type=="Ready")].status')),
    ),
    _built_in(
        "", "events", "Event", known(),
        short_names=("ev",), generation=False, create_on_update=True,
        selectable=(
            *(f"involvedObject.{name}" for name in ("apiVersion", "kind", "namespace", "name", "uid")),
            "reason", "reportingComponent", "type",
        ),
        columns=_columns(
            ("Type", ".type"), ("Reason", ".reason"), ("Object", ".involvedObject.name"), ("Message", ".message")
        ),
    ),
    _built_in("", "secrets", "Secret", known(type=default_of("Opaque")), generation=False, selectable=("type",)),
    _built_in(
        "", "services", "Service", SERVICE,
        short_names=("svc",), generation=False, has_status=True,
        initial_status={"loadBalancer": {}}, returns_deleted=True,
    ),
    _built_in(
        "", "serviceaccounts", "ServiceAccount", known(), short_names=("sa",), generation=False, returns_deleted=True
    ),
    _built_in("", "podtemplates", "PodTemplate", known(template=TEMPLATE), returns_deleted=True),
    *(
        _built_in(
            "apps", plural, kind, REPLICATED,
            short_names=(short,), has_status=True, scale=_SCALE,
            columns=_columns(("Desired", ".spec.replicas"), ("Ready", ".status.readyReplicas")),
        )
        for plural, kind, short in (
            ("deployments", "Deployment", "deploy"),
            ("statefulsets", "StatefulSet", "sts"),
            ("replicasets", "ReplicaSet", "rs"),
        )
    ),
    _built_in(
        "batch", "jobs", "Job", JOB, has_status=True,
        columns=_columns(("Suspend", ".spec.suspend"), ("Succeeded", ".status.succeeded")), completed=_job_completed,
    ),
    _built_in(
        "coordination.k8s.io", "leases", "Lease", known(),
        generation=False, unconditional_update=False, create_on_update=True,
        columns=_columns(("Holder", ".spec.holderIdentity")),
    ),
    _built_in("policy", "poddisruptionbudgets", "PodDisruptionBudget", known(), short_names=("pdb",), has_status=True),
    *(
        _built_in(
            group, plural, kind, known(),
            short_names=(short,) if short else (), namespaced=namespaced, generation=False,
        )
        for group, plural, kind, short, namespaced in _KEPT
    ),
    _built_in(
        "apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", DEFINITION,
        completed=with_names, cleanup_finalizer=CLEANUP_FINALIZER,
        unconditional_update=False,
        short_names=("crd", "crds"), namespaced=False, has_status=True,
    ),
)  # fmt: skip
