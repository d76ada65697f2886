"""What does the API know of the fields of built-in objects? Little: objects are stored as they come.

These schemas only name what other parts have to know: which lists are keyed, and the defaults that real servers fill in
and our readers rely on. Everything else is kept as sent and not validated.
"""

from typing import Any

from scaler.embedded.kubeapi.status import Json
from scaler.embedded.kubeapi.structural import Structural, compile_schema


def known(**properties: Json) -> Json:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": properties}


def keyed(*keys: str, item: Json | None = None) -> Json:
    listed: Json = {"type": "array", "items": item or known()}
    return {**listed, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def default_of(value: Any) -> Json:
    return {"default": value, "x-kubernetes-preserve-unknown-fields": True}


_SET: Json = {"type": "array", "items": {}, "x-kubernetes-list-type": "set"}
_ATOMIC: Json = {"x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": True}
_CONDITIONS = known(conditions=keyed("type"))

METADATA = known(
    labels={"type": "object", "additionalProperties": {"type": "string"}},
    annotations={"type": "object", "additionalProperties": {"type": "string"}},
    finalizers=_SET,
    ownerReferences=keyed("uid", item={**known(), "x-kubernetes-map-type": "atomic"}),
)
OBJECT_META: Structural = compile_schema(METADATA)
"""The schema of `metadata` in every object, custom ones included."""

_CONTAINER = known(
    env=keyed("name"),
    ports=keyed("containerPort", "protocol", item=known(protocol=default_of("TCP"))),
    volumeMounts=keyed("mountPath"),
    volumeDevices=keyed("devicePath"),
)
POD_SPEC = known(
    containers=keyed("name", item=_CONTAINER),
    initContainers=keyed("name", item=_CONTAINER),
    volumes=keyed("name"),
    imagePullSecrets=keyed("name"),
    hostAliases=keyed("ip"),
    schedulingGates=keyed("name"),
    resourceClaims=keyed("name"),
    topologySpreadConstraints=keyed("topologyKey", "whenUnsatisfiable"),
    nodeSelector=_ATOMIC,
    restartPolicy=default_of("Always"),
    terminationGracePeriodSeconds=default_of(30),
    schedulerName=default_of("default-scheduler"),
)
_JOB_POD_SPEC = {**POD_SPEC, "properties": {k: v for k, v in POD_SPEC["properties"].items() if k != "restartPolicy"}}


def template(pod_spec: Json = POD_SPEC) -> Json:
    return known(metadata=METADATA, spec=pod_spec)


POD_STATUS = known(
    conditions=keyed("type"), podIPs=keyed("ip"), hostIPs=keyed("ip"), resourceClaimStatuses=keyed("name")
)
REPLICATED = known(
    spec=known(replicas=default_of(1), selector=_ATOMIC, template=template()),
    status=_CONDITIONS,
)
JOB = known(
    spec=known(
        parallelism=default_of(1),
        completions=default_of(1),
        backoffLimit=default_of(6),
        completionMode=default_of("NonIndexed"),
        suspend=default_of(False),
        selector=_ATOMIC,
        template=template(_JOB_POD_SPEC),
    ),
    status=_CONDITIONS,
)
SERVICE = known(
    spec=known(
        ports=keyed("port", "protocol", item=known(protocol=default_of("TCP"))),
        selector=_ATOMIC,
        type=default_of("ClusterIP"),
    ),
    status=_CONDITIONS,
)
NODE = known(
    spec=known(taints={"type": "array"}, podCIDRs=_SET),
    status=known(conditions=keyed("type"), addresses=keyed("type")),
)
SERVICE_ACCOUNT = known(secrets=keyed("name"))
NAMESPACE = known(spec=known(finalizers=_SET), status=_CONDITIONS)
DEFINITION = known(
    spec=known(
        scope=default_of("Namespaced"),
        conversion={**known(strategy=default_of("None")), "default": {}},
        versions={"type": "array"},
    ),
    status=_CONDITIONS,
)
