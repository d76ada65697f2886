"""Which built-in resources are there, and by what traits do they differ? One table.

What the API knows of their fields stands in `builtin_schemas`; what it writes into them by itself, here.
"""

from typing import Any

from scaler.embedded.kubeapi.builtin_schemas import (
    DEFINITION,
    JOB,
    METADATA,
    NAMESPACE,
    NODE,
    POD_SPEC,
    POD_STATUS,
    REPLICATED,
    SERVICE,
    SERVICE_ACCOUNT,
    default_of,
    known,
    template,
)
from scaler.embedded.kubeapi.crds import CLEANUP_FINALIZER, definition_problems, with_names
from scaler.embedded.kubeapi.resources import AGE, Column, Resource, ScalePaths, Version
from scaler.embedded.kubeapi.status import Json
from scaler.embedded.kubeapi.structural import compile_schema
from scaler.embedded.kubeapi.typed import BuiltIn, Definition, Pod, Replicated

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
"""Its policies are kept, and not carried out."""
_SCALE = ScalePaths(spec=("spec", "replicas"), status=("status", "replicas"), selector=("spec", "selector"))


def _columns(*columns: tuple[str, str] | tuple[str, str, str]) -> tuple[Column, ...]:
    made = (Column(name=c[0], path=c[1], type=c[2] if len(c) > 2 else "string") for c in columns)
    return (*made, AGE)


def _built_in(group: str, version: str, plural: str, kind: str, schema: Json, **traits: Any) -> Resource:
    of_version = {
        name: traits.pop(name)
        for name in ("has_status", "scale", "columns", "selectable", "validate")
        if name in traits
    }
    traits.setdefault("shape", BuiltIn)
    whole = known(**{**schema["properties"], "metadata": METADATA})
    served = Version(name=version, schema=compile_schema(whole), **of_version)
    return Resource(
        group=group,
        plural=plural,
        kind=kind,
        singular=kind.lower(),
        list_kind=f"{kind}List",
        versions={version: served},
        storage=version,
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


BUILT_INS: tuple[Resource, ...] = (
    _built_in(
        "", "v1", "namespaces", "Namespace", NAMESPACE,
        short_names=("ns",), namespaced=False, generation=False, has_status=True,
        initial_status={"phase": "Active"}, selectable=("status.phase",), returns_deleted=True,
        columns=_columns(("Status", ".status.phase")),
        completed=_namespace_completed,
    ),
    _built_in(
        "", "v1", "pods", "Pod", known(spec=POD_SPEC, status=POD_STATUS), shape=Pod,
        short_names=("po",), categories=("all",), has_status=True, graceful=True, returns_deleted=True,
        initial_status={"phase": "Pending", "qosClass": "BestEffort"},
        selectable=(
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
            "status.phase", "status.podIP", "status.nominatedNodeName",
        ),
        columns=_columns(("Status", ".status.phase"), ("Node", ".spec.nodeName")),
    ),
    _built_in(
        "", "v1", "nodes", "Node", NODE,
        short_names=("no",), namespaced=False, generation=False, has_status=True, status_on_create="keep",
        selectable=("spec.unschedulable",),
        columns=_columns(("Ready", '.status.conditions[?(@.type=="Ready")].status')),
    ),
    _built_in(
        "", "v1", "events", "Event", known(),
        short_names=("ev",), generation=False, create_on_update=True,
        selectable=(
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source", "type",
        ),
        columns=(
            Column(name="Last Seen", path=".lastTimestamp", type="date"), Column(name="Type", path=".type"),
            Column(name="Reason", path=".reason"), Column(name="Object", path=".involvedObject.name"),
            Column(name="Message", path=".message"),
        ),
    ),
    _built_in("", "v1", "configmaps", "ConfigMap", known(), short_names=("cm",), generation=False),
    _built_in(
        "", "v1", "secrets", "Secret", known(type=default_of("Opaque")),
        generation=False, selectable=("type",), columns=_columns(("Type", ".type")),
    ),
    _built_in(
        "", "v1", "services", "Service", SERVICE,
        short_names=("svc",), categories=("all",), generation=False, has_status=True,
        initial_status={"loadBalancer": {}}, returns_deleted=True, selectable=("spec.clusterIP", "spec.type"),
        columns=_columns(("Type", ".spec.type"), ("Cluster-IP", ".spec.clusterIP")),
    ),
    _built_in(
        "", "v1", "serviceaccounts", "ServiceAccount", SERVICE_ACCOUNT,
        short_names=("sa",), generation=False, returns_deleted=True,
    ),
    _built_in(
        "", "v1", "podtemplates", "PodTemplate", known(template=template()), returns_deleted=True,
    ),
    _built_in(
        "apps", "v1", "deployments", "Deployment", REPLICATED, shape=Replicated,
        short_names=("deploy",), categories=("all",), has_status=True, scale=_SCALE,
        columns=_columns(
            ("Ready", ".status.readyReplicas"), ("Desired", ".spec.replicas"),
            ("Available", ".status.availableReplicas"),
        ),
    ),
    _built_in(
        "apps", "v1", "statefulsets", "StatefulSet", REPLICATED, shape=Replicated,
        short_names=("sts",), categories=("all",), has_status=True, scale=_SCALE,
        columns=_columns(("Ready", ".status.readyReplicas"), ("Desired", ".spec.replicas")),
    ),
    _built_in(
        "apps", "v1", "replicasets", "ReplicaSet", REPLICATED, shape=Replicated,
        short_names=("rs",), categories=("all",), has_status=True, scale=_SCALE, selectable=("status.replicas",),
        columns=_columns(
            ("Desired", ".spec.replicas"), ("Current", ".status.replicas"), ("Ready", ".status.readyReplicas")
        ),
    ),
    _built_in(
        "batch", "v1", "jobs", "Job", JOB, shape=Replicated,
        categories=("all",), has_status=True, selectable=("status.successful",),
        columns=_columns(
            ("Suspend", ".spec.suspend"), ("Completions", ".spec.completions"), ("Succeeded", ".status.succeeded")
        ),
        completed=_job_completed,
    ),
    _built_in(
        "coordination.k8s.io", "v1", "leases", "Lease", known(),
        generation=False, unconditional_update=False, create_on_update=True,
        columns=_columns(("Holder", ".spec.holderIdentity")),
    ),
    _built_in(
        "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", known(),
        short_names=("pc",), namespaced=False,
        columns=_columns(("Value", ".value", "integer"), ("Global-Default", ".globalDefault", "boolean")),
    ),
    _built_in(_RBAC, "v1", "clusterroles", "ClusterRole", known(), namespaced=False, generation=False),
    _built_in(_RBAC, "v1", "roles", "Role", known(), generation=False),
    _built_in(
        _RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", known(), namespaced=False, generation=False,
        columns=_columns(("Role", ".roleRef.name")),
    ),
    _built_in(
        _RBAC, "v1", "rolebindings", "RoleBinding", known(), generation=False,
        columns=_columns(("Role", ".roleRef.name")),
    ),
    _built_in(
        "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", known(),
        short_names=("pdb",), has_status=True,
        columns=_columns(("Min Available", ".spec.minAvailable"), ("Max Unavailable", ".spec.maxUnavailable")),
    ),
    _built_in(
        "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", known(), short_names=("netpol",),
    ),
    _built_in(
        _ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", known(),
        namespaced=False, has_status=True,
    ),
    _built_in(
        _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", known(),
        namespaced=False, columns=_columns(("PolicyName", ".spec.policyName")),
    ),
    _built_in(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", DEFINITION,
        shape=Definition,
        validate=lambda new, _old: definition_problems(new), completed=with_names, cleanup_finalizer=CLEANUP_FINALIZER,
        unconditional_update=False,
        short_names=("crd", "crds"), categories=("api-extensions",), namespaced=False, has_status=True,
        columns=(Column(name="Created At", path=".metadata.creationTimestamp"),),
    ),
)  # fmt: skip
