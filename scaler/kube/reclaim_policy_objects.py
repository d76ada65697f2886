"""ReclaimPolicy (idlegpu.io/v1alpha1), by the laws of `objects.py`, with the defaults of its definition."""

from msgspec import field

from scaler.kube.objects import ConditionedStatus, ObjectMeta, Struct


class Reuse(Struct, frozen=True):
    enabled: bool = True


class Pin(Struct, frozen=True):
    enabled: bool = False
    node_label: str = "kubernetes.io/hostname"


class NodeSelectorFromDetail(Struct, frozen=True):
    key: str = ""
    value_from_provisioning_class_detail: str = ""


class PodSetUpdates(Struct, frozen=True):
    node_selector: tuple[NodeSelectorFromDetail, ...] = ()


class RetryStrategy(Struct, frozen=True):
    limit: int = 3
    base: str = "60s"
    max: str = "30m"


class Provisioning(Struct, frozen=True):
    class_name: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    managed_resources: tuple[str, ...] = ()
    amount: str = "Gang"
    pod_set_merge_policy: str = ""
    pod_set_updates: PodSetUpdates = PodSetUpdates()
    after: str = "0s"
    withdraw: str = "WhenFree"
    retry: RetryStrategy = RetryStrategy()
    at_limit: str = "Hold"
    on_capacity_revoked: str = "Evict"


class ReclaimPolicySpec(Struct, frozen=True):
    wait_for_pods_gone: bool = True
    require_fit: bool = True
    reuse: Reuse = Reuse()
    pin: Pin = Pin()
    provisioning: Provisioning | None = None


class ReclaimPolicy(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ReclaimPolicySpec = ReclaimPolicySpec()
    status: ConditionedStatus = ConditionedStatus()
