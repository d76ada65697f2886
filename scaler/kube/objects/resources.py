"""Which resources of the Kubernetes API this program talks about, and the paths they are at.

Segments of a path are checked: names come from trigger metadata and from other people's objects, and a name such as
`../secrets/x` must not lead to another resource than the one that was meant.
"""

import re
from dataclasses import dataclass

from scaler.errors import KubeError

_SEGMENT = re.compile(r"[A-Za-z0-9:_-][A-Za-z0-9.:_-]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object and where the API keeps it."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects write it: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_name(self) -> str:
        """As people and RBAC write it: `pods`, `workloads.kueue.x-k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, of its subresource, or (without a name) of the collection.

        Without a namespace, the collection is that of all namespaces.

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
    """Nothing for what may stand in a path. Raises: KubeError (400) for what would lead elsewhere."""
    if part and not _SEGMENT.fullmatch(part):
        raise _not_a_path(f"{part[:80]!r} cannot be the name of an object")


def _not_a_path(problem: str) -> KubeError:
    return KubeError(f"{problem}; nothing was asked of the Kubernetes API", status=400, reason="InvalidName")


POD = Resource(group="", version="v1", plural="pods", kind="Pod")
NODE = Resource(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
NAMESPACE = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
SERVICE = Resource(group="", version="v1", plural="services", kind="Service")
EVENT = Resource(group="", version="v1", plural="events", kind="Event")
DEPLOYMENT = Resource(group="apps", version="v1", plural="deployments", kind="Deployment")
STATEFUL_SET = Resource(group="apps", version="v1", plural="statefulsets", kind="StatefulSet")
JOB = Resource(group="batch", version="v1", plural="jobs", kind="Job")
LEASE = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease")
CUSTOM_RESOURCE_DEFINITION = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
SCALED_OBJECT = Resource(group="keda.sh", version="v1alpha1", plural="scaledobjects", kind="ScaledObject")
SCALABLE_WORKLOAD = Resource(
    group="idlegpu.io", version="v1alpha1", plural="scalableworkloads", kind="ScalableWorkload"
)
WORKLOAD = Resource(group="kueue.x-k8s.io", version="v1beta2", plural="workloads", kind="Workload")
LOCAL_QUEUE = Resource(group="kueue.x-k8s.io", version="v1beta2", plural="localqueues", kind="LocalQueue")
CLUSTER_QUEUE = Resource(
    group="kueue.x-k8s.io", version="v1beta2", plural="clusterqueues", kind="ClusterQueue", namespaced=False
)
COHORT = Resource(group="kueue.x-k8s.io", version="v1beta2", plural="cohorts", kind="Cohort", namespaced=False)
RESOURCE_FLAVOR = Resource(
    group="kueue.x-k8s.io", version="v1beta2", plural="resourceflavors", kind="ResourceFlavor", namespaced=False
)
ADMISSION_CHECK = Resource(
    group="kueue.x-k8s.io", version="v1beta2", plural="admissionchecks", kind="AdmissionCheck", namespaced=False
)
RECLAIM_POLICY = Resource(
    group="idlegpu.io", version="v1alpha1", plural="reclaimpolicies", kind="ReclaimPolicy", namespaced=False
)
POD_TEMPLATE = Resource(group="", version="v1", plural="podtemplates", kind="PodTemplate")
PROVISIONING_REQUEST = Resource(
    group="autoscaling.x-k8s.io", version="v1", plural="provisioningrequests", kind="ProvisioningRequest"
)
PROVISIONING_REQUEST_BETA = Resource(
    group="autoscaling.x-k8s.io", version="v1beta1", plural="provisioningrequests", kind="ProvisioningRequest"
)
"""Where only this version is served; both have the same schema."""
RAY_CLUSTER = Resource(group="ray.io", version="v1", plural="rayclusters", kind="RayCluster")
