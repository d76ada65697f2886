"""The parts of ProvisioningRequests (autoscaling.x-k8s.io, v1 and v1beta1 alike) and PodTemplates that this program
reads, by the laws of `core.py`."""

from msgspec import field

from scaler.kube.objects.core import Condition, ObjectMeta, Struct


class PodTemplateRef(Struct, frozen=True):
    name: str = ""


class ProvisioningRequestPodSet(Struct, frozen=True):
    count: int = 0
    pod_template_ref: PodTemplateRef = PodTemplateRef()


class ProvisioningRequestSpec(Struct, frozen=True):
    provisioning_class_name: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    pod_sets: tuple[ProvisioningRequestPodSet, ...] = ()


class ProvisioningRequestStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    provisioning_class_details: dict[str, str] = field(default_factory=dict)


class ProvisioningRequest(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ProvisioningRequestSpec = ProvisioningRequestSpec()
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()


class StoredPodTemplate(Struct, frozen=True):
    """A PodTemplate object. What it is a template of is only ever written, never read again."""

    metadata: ObjectMeta
