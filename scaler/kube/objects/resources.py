"""Which resources of the Kubernetes API this program talks about, and the paths they are at.

Segments of a path are checked: names come from trigger metadata and from other people's objects, and a name such as
`../secrets/x` must not lead to another resource than the one that was meant.
"""

import re
from dataclasses import dataclass

from scaler.errors import KubeError

_SEGMENT = re.compile(r"[A-Za-z0-9:_-][A-Za-z0-9.:_-]{0,252}")


def group_of(api_version: str) -> str:
    """The API group of an `apiVersion`; versions of one group serve the same objects."""
    return api_version.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The group and version as objects write them: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_name(self) -> str:
        """The name as people and RBAC write it: `pods`, `workloads.kueue.x-k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, of its subresource, or (without a name) of the collection: everywhere, or in one.

        Raises: KubeError (400) for what cannot be a name.
        """
        self._check(namespace, name, subresource)
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        leaf = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{group_version_path(self.api_version)}{scope}/{self.plural}{leaf}"

    def _check(self, namespace: str, name: str, subresource: str) -> None:
        if self.namespaced and name and not namespace:
            raise _not_a_path(f"{self.kind} {name!r} needs a namespace")
        if subresource and not name:
            raise _not_a_path(f"subresource {subresource!r} of {self.plural} needs the name of an object")
        for part in (namespace, name, subresource):
            check_segment(part)


def group_version_path(api_version: str) -> str:
    """The path below which an API version's resources are: `/api/v1`, `/apis/apps/v1`.

    Raises: KubeError (400) for what cannot be an API version.
    """
    group, _, version = api_version.rpartition("/")
    check_segment(group)
    check_segment(version)
    if not version:
        raise _not_a_path(f"{api_version!r} is not an API version; write for example 'apps/v1'")
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def check_segment(part: str) -> None:
    """A check that this may stand in a path. Raises: KubeError (400) for what would lead elsewhere."""
    if part and not _SEGMENT.fullmatch(part):
        raise _not_a_path(f"{part[:80]!r} cannot be the name of an object")


def _not_a_path(problem: str) -> KubeError:
    return KubeError(f"{problem}; nothing was asked of the Kubernetes API", status=400, reason="InvalidName")


def _of(group_version: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    group, _, version = group_version.rpartition("/")
    return Resource(group=group, version=version, plural=plural, kind=kind, namespaced=namespaced)


POD = _of("v1", "pods", "Pod")
NODE = _of("v1", "nodes", "Node", namespaced=False)
NAMESPACE = _of("v1", "namespaces", "Namespace", namespaced=False)
SERVICE = _of("v1", "services", "Service")
EVENT = _of("v1", "events", "Event")
SECRET = _of("v1", "secrets", "Secret")
CONFIG_MAP = _of("v1", "configmaps", "ConfigMap")
POD_TEMPLATE = _of("v1", "podtemplates", "PodTemplate")
DEPLOYMENT = _of("apps/v1", "deployments", "Deployment")
REPLICA_SET = _of("apps/v1", "replicasets", "ReplicaSet")
STATEFUL_SET = _of("apps/v1", "statefulsets", "StatefulSet")
JOB = _of("batch/v1", "jobs", "Job")
LEASE = _of("coordination.k8s.io/v1", "leases", "Lease")
TOKEN_REVIEW = _of("authentication.k8s.io/v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEW = _of("authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
SELF_SUBJECT_ACCESS_REVIEW = _of(
    "authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
CUSTOM_RESOURCE_DEFINITION = _of(
    "apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
SCALED_OBJECT = _of("keda.sh/v1alpha1", "scaledobjects", "ScaledObject")
TRIGGER_AUTHENTICATION = _of("keda.sh/v1alpha1", "triggerauthentications", "TriggerAuthentication")
CLUSTER_TRIGGER_AUTHENTICATION = _of(
    "keda.sh/v1alpha1", "clustertriggerauthentications", "ClusterTriggerAuthentication", namespaced=False
)
IDLE_POLICY = _of("idlegpu.io/v1alpha1", "idlepolicies", "IdlePolicy")
CLUSTER_IDLE_POLICY = _of("idlegpu.io/v1alpha1", "clusteridlepolicies", "ClusterIdlePolicy", namespaced=False)
LEADER_WORKER_SET = _of("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet")
SCALABLE_WORKLOAD = _of("idlegpu.io/v1alpha1", "scalableworkloads", "ScalableWorkload")
RECLAIM_POLICY = _of("idlegpu.io/v1alpha1", "reclaimpolicies", "ReclaimPolicy", namespaced=False)
CLUSTER_OFFER = _of("idlegpu.io/v1alpha1", "clusteroffers", "ClusterOffer", namespaced=False)
MULTIKUEUE_CONFIG = _of("kueue.x-k8s.io/v1beta2", "multikueueconfigs", "MultiKueueConfig", namespaced=False)
MULTIKUEUE_CLUSTER = _of("kueue.x-k8s.io/v1beta2", "multikueueclusters", "MultiKueueCluster", namespaced=False)
PLACEMENT = _of("cluster.open-cluster-management.io/v1beta1", "placements", "Placement")
PLACEMENT_DECISION = _of("cluster.open-cluster-management.io/v1beta1", "placementdecisions", "PlacementDecision")
PROFILE_DECISION = _of("multicluster.x-k8s.io/v1alpha1", "placementdecisions", "PlacementDecision")
ADD_ON_PLACEMENT_SCORE = _of(
    "cluster.open-cluster-management.io/v1alpha1", "addonplacementscores", "AddOnPlacementScore"
)
WORKLOAD = _of("kueue.x-k8s.io/v1beta2", "workloads", "Workload")
LOCAL_QUEUE = _of("kueue.x-k8s.io/v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUE = _of("kueue.x-k8s.io/v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
COHORT = _of("kueue.x-k8s.io/v1beta2", "cohorts", "Cohort", namespaced=False)
RESOURCE_FLAVOR = _of("kueue.x-k8s.io/v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
ADMISSION_CHECK = _of("kueue.x-k8s.io/v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False)
PROVISIONING_REQUEST = _of("autoscaling.x-k8s.io/v1", "provisioningrequests", "ProvisioningRequest")
PROVISIONING_REQUEST_BETA = _of("autoscaling.x-k8s.io/v1beta1", "provisioningrequests", "ProvisioningRequest")
"""The version for clusters that serve no later one; both have the same schema."""
RAY_CLUSTER = _of("ray.io/v1", "rayclusters", "RayCluster")
RAY_JOB = _of("ray.io/v1", "rayjobs", "RayJob")
RAY_SERVICE = _of("ray.io/v1", "rayservices", "RayService")
JOB_SET = _of("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet")
TRAIN_JOB = _of("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob")
PYTORCH_JOB = _of("kubeflow.org/v1", "pytorchjobs", "PyTorchJob")
TF_JOB = _of("kubeflow.org/v1", "tfjobs", "TFJob")
XGBOOST_JOB = _of("kubeflow.org/v1", "xgboostjobs", "XGBoostJob")
PADDLE_JOB = _of("kubeflow.org/v1", "paddlejobs", "PaddleJob")
JAX_JOB = _of("kubeflow.org/v1", "jaxjobs", "JAXJob")
MPI_JOB = _of("kubeflow.org/v2beta1", "mpijobs", "MPIJob")
NOTEBOOK = _of("kubeflow.org/v1", "notebooks", "Notebook")
INFERENCE_SERVICE = _of("serving.kserve.io/v1beta1", "inferenceservices", "InferenceService")
SCALED_KINDS = (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET)
"""Kinds that policies attach by their own scale: they have replicas, a selector or a pod label, and pod templates."""
JOB_KINDS = (
    JOB,
    RAY_CLUSTER,
    RAY_JOB,
    RAY_SERVICE,
    JOB_SET,
    TRAIN_JOB,
    PYTORCH_JOB,
    TF_JOB,
    XGBOOST_JOB,
    PADDLE_JOB,
    JAX_JOB,
    MPI_JOB,
)
"""The kinds that Kueue has integrations for, and whose Workloads are the jobs' own."""
