"""What a trigger's secrets come from, by the laws of `objects.py`. Only `doctor` reads it, with its caller's rights."""

from typing import Any

from msgspec import field

from scaler.kube.objects import Struct
from scaler.kube.resources import Resource

TRIGGER_AUTHENTICATION = Resource(
    group="keda.sh", version="v1alpha1", plural="triggerauthentications", kind="TriggerAuthentication"
)
CLUSTER_TRIGGER_AUTHENTICATION = Resource(
    group="keda.sh",
    version="v1alpha1",
    plural="clustertriggerauthentications",
    kind="ClusterTriggerAuthentication",
    namespaced=False,
)
SECRET = Resource(group="", version="v1", plural="secrets", kind="Secret")
CONFIG_MAP = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap")


class TriggerAuthentication(Struct, frozen=True):
    """Of either kind."""

    spec: dict[str, Any] = field(default_factory=dict)
    """By source (`secretTargetRef`, `azureKeyVault`, …): what it gives, each with the `parameter` that it is for."""


class Secret(Struct, frozen=True):
    data: dict[str, bytes] = field(default_factory=dict)
    """msgspec reads the API's base64 as what it stands for."""


class ConfigMap(Struct, frozen=True):
    data: dict[str, str] = field(default_factory=dict)
