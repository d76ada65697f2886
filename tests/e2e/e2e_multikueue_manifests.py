"""The objects of one run on several clusters: what makes one of them a hub of MultiKueue and the others its workers.

Everything has the same name on all clusters, that of the run. A worker `w1` is MultiKueueCluster `e2e-…-w1` on the hub,
and ManagedCluster `e2e-…-managed-w1` in decisions of a Placement: its Secret says that both are the same cluster.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml
from e2e.e2e_manifests import QUEUE, RUN_LABEL, Json, labelled
from scaler_sandbox import job_manifests as made
from scaler_sandbox import packaged
from scaler_sandbox.kinds import SERVICE_ACCOUNT

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    PLACEMENT_DECISION,
    SECRET,
    WORKLOAD,
    Resource,
)

MUTATING_POLICY = Resource(
    group="admissionregistration.k8s.io",
    version="v1",
    plural="mutatingadmissionpolicies",
    kind="MutatingAdmissionPolicy",
    namespaced=False,
)
MUTATING_POLICY_BINDING = Resource(
    group="admissionregistration.k8s.io",
    version="v1",
    plural="mutatingadmissionpolicybindings",
    kind="MutatingAdmissionPolicyBinding",
    namespaced=False,
)
CLEARS_NOMINATIONS = "clear-nominated-cluster-names"
"""Part of the names of Kueue's policy and its binding; Helm puts the name of the release before it."""
PLACEMENT = "gpu-clusters"
_ANNOTATION = "idlegpu.io/placement"
_PLACEMENT_LABEL = "cluster.open-cluster-management.io/placement"
_KUEUE = "kueue.x-k8s.io"


# ----------------------------------------------------------------------------------------------------------- on workers


def hub_account(run: str) -> list[Json]:
    """On a worker: the ServiceAccount of the hub's Kueue, with the rights that Kueue's documentation asks for and ours.

    Source of Kueue's: its task "Setup a MultiKueue environment", with `*` for the list of resources.
    """
    for_kueue = {"rules": [*_ON_WORKERS], **made.manifest(_CLUSTER_ROLE, f"{run}-kueue-hub")}
    ours = next(each for each in _worker_access() if each["kind"] == "ClusterRole")
    for_offers = {"rules": ours["rules"], **made.manifest(_CLUSTER_ROLE, f"{run}-offers-hub")}
    bound = [_bound(run, each["metadata"]["name"]) for each in (for_kueue, for_offers)]
    account = made.manifest(SERVICE_ACCOUNT, hub_user(run), run)
    return [labelled(run, each) for each in (account, for_kueue, for_offers, *bound)]


def hub_user(run: str) -> str:
    """The name of the ServiceAccount."""
    return f"{run}-hub"


def _worker_access() -> Iterable[Json]:
    path = packaged.packaged("examples") / "multikueue-ocm" / "worker-access.yaml"
    return yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader)  # type: ignore[no-any-return]


def _bound(run: str, role: str) -> Json:
    reference = {"apiGroup": _CLUSTER_ROLE.group, "kind": _CLUSTER_ROLE.kind, "name": role}
    subject = {"kind": SERVICE_ACCOUNT.kind, "name": hub_user(run), "namespace": run}
    return made.manifest(_CLUSTER_ROLE_BINDING, role, roleRef=reference, subjects=[subject])


_CLUSTER_ROLE, _CLUSTER_ROLE_BINDING = (
    Resource(group="rbac.authorization.k8s.io", version="v1", plural=f"{kind.lower()}s", kind=kind, namespaced=False)
    for kind in ("ClusterRole", "ClusterRoleBinding")
)
_JOB_GROUPS = (
    "batch",
    "apps",
    "jobset.x-k8s.io",
    "kubeflow.org",
    "trainer.kubeflow.org",
    "ray.io",
    "leaderworkerset.x-k8s.io",
    "workload.codeflare.dev",
)
_MAKES = ["create", "delete", "get", "list", "watch"]
_CHANGES = [*_MAKES, "update", "patch"]
_ON_WORKERS: tuple[Json, ...] = (
    {"apiGroups": [*_JOB_GROUPS], "resources": ["*"], "verbs": _MAKES},
    {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": _CHANGES},
    {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": _MAKES},
    {"apiGroups": [_KUEUE], "resources": ["workloads", "workloads/status"], "verbs": _CHANGES},
    {"apiGroups": [_KUEUE], "resources": ["clusterqueues", "localqueues"], "verbs": ["get", "list", "watch"]},
)


def offer(run: str, workloads: Sequence[Json]) -> Json:
    """On a worker: the hub's ClusterOffer, as its dispatcher would write it."""
    return labelled(run, made.manifest(CLUSTER_OFFER, run, spec={"workloads": [*workloads]}))


def unanswered_check(run: str) -> Json:
    """On a worker: an AdmissionCheck that never gets Ready. What has quota with it is not admitted."""
    return labelled(
        run, made.manifest(ADMISSION_CHECK, f"{run}-never", spec={"controllerName": "e2e.idlegpu.io/never"})
    )


# ---------------------------------------------------------------------------------------------------------- on the hub


def worker_name(run: str, worker: str) -> str:
    """Its MultiKueueCluster."""
    return f"{run}-{worker}"


def managed_name(run: str, worker: str) -> str:
    """Its ManagedCluster."""
    return f"{run}-managed-{worker}"


def secret_name(run: str, worker: str) -> str:
    """Its Secret, as Open Cluster Management's kueue-addon names it."""
    return f"multikueue-{managed_name(run, worker)}"


def secret(run: str, namespace: str, worker: str, kubeconfig: str) -> Json:
    data = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
    return labelled(run, made.manifest(SECRET, secret_name(run, worker), namespace, data=data))


def multikueue(run: str, workers: Iterable[str]) -> list[Json]:
    """The clusters, their MultiKueueConfig in this order, and the AdmissionCheck."""
    reference = {"apiGroup": _KUEUE, "kind": MULTIKUEUE_CONFIG.kind, "name": run}
    check = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": reference}
    bodies = [
        *(_cluster(run, each) for each in workers),
        multikueue_config(run, workers),
        made.manifest(ADMISSION_CHECK, run, spec=check),
    ]
    return [labelled(run, each) for each in bodies]


def multikueue_config(run: str, workers: Iterable[str]) -> Json:
    names = [worker_name(run, each) for each in workers]
    return labelled(run, made.manifest(MULTIKUEUE_CONFIG, run, spec={"clusters": names}))


def _cluster(run: str, worker: str) -> Json:
    source = {"kubeConfig": {"location": secret_name(run, worker), "locationType": "Secret"}}
    return made.manifest(MULTIKUEUE_CLUSTER, worker_name(run, worker), spec={"clusterSource": source})


def by_placement(run: str) -> Json:
    """The LocalQueue with the annotation that names the Placement."""
    body = labelled(run, made.local_queue(QUEUE, run, run))
    body["metadata"]["annotations"] = {_ANNOTATION: PLACEMENT}
    return body


def placement_decision(run: str) -> Json:
    """As Open Cluster Management's placement controller makes it. Its decisions are in its status."""
    body = made.manifest(PLACEMENT_DECISION, f"{PLACEMENT}-decision-1", run, labels={_PLACEMENT_LABEL: PLACEMENT})
    return labelled(run, body)


def decisions(run: str, workers: Iterable[str]) -> Json:
    """The status of the PlacementDecision that names these workers."""
    return {"decisions": [{"clusterName": managed_name(run, each), "reason": ""} for each in workers]}


def not_for(run: str) -> Json:
    """The part of a policy binding's `spec` by which the policy is not for objects in the run's namespace."""
    selector = {"matchExpressions": [{"key": RUN_LABEL, "operator": "NotIn", "values": [run]}]}
    return {"matchResources": {"namespaceSelector": selector}}


def probe(run: str) -> Json:
    """A Workload of no queue, with which nothing happens."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "python:3"}]}
    pod_sets = [{"name": "main", "count": 1, "template": {"spec": pod}}]
    return labelled(run, made.manifest(WORKLOAD, "probe", run, spec={"active": False, "podSets": pod_sets}))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# ---------------------------------------------------------------------------------------------------------- kubeconfigs


def kubeconfig_for(path: Path, token: str) -> str:
    """A kubeconfig for the cluster of that file, as MultiKueue takes it: a user with a token, authorities inline."""
    config = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = dict(_named(config["clusters"], context["cluster"])["cluster"])
    if authority := cluster.pop("certificate-authority", None):
        cluster["certificate-authority-data"] = base64.b64encode((path.parent / authority).read_bytes()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "worker", "cluster": cluster}],
        "users": [{"name": "hub", "user": {"token": token}}],
        "contexts": [{"name": "worker", "context": {"cluster": "worker", "user": "hub"}}],
        "current-context": "worker",
    }
    return yaml.safe_dump(document)


def unreachable(kubeconfig: str) -> str:
    """The same with an address at which nothing listens."""
    config = yaml.load(kubeconfig, yaml.CSafeLoader)
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    return yaml.safe_dump(config)


def _named(entries: Sequence[Mapping[str, Json]], name: str) -> Mapping[str, Json]:
    return next(each for each in entries if each["name"] == name)
