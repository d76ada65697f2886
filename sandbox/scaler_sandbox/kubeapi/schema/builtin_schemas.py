"""Schemas of built-in objects. They are small: objects are stored as they are sent.

These schemas only name the defaults that real servers fill in and our readers rely on. Everything else is kept as sent
and not validated, and lists are replaced whole by whatever applies them.
"""

from typing import Any

from scaler_sandbox.kubeapi.errors import Json
from scaler_sandbox.kubeapi.schema.structural import Structural, compile_schema


def known(**properties: Json) -> Json:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": properties}


def default_of(value: Any) -> Json:
    return {"default": value, "x-kubernetes-preserve-unknown-fields": True}


_TEXTS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = known(labels=_TEXTS, annotations=_TEXTS)
OBJECT_META: Structural = compile_schema(METADATA)
"""The schema of `metadata` in every object, custom ones included."""

_PORTS: Json = {"type": "array", "items": known(protocol=default_of("TCP"))}
_CONTAINERS: Json = {"type": "array", "items": known(ports=_PORTS)}
_JOB_POD_SPEC = known(
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    terminationGracePeriodSeconds=default_of(30),
    schedulerName=default_of("default-scheduler"),
)
POD_SPEC = known(**_JOB_POD_SPEC["properties"], restartPolicy=default_of("Always"))
TEMPLATE = known(metadata=METADATA, spec=POD_SPEC)
REPLICATED = known(spec=known(replicas=default_of(1), template=TEMPLATE))
JOB = known(
    spec=known(
        parallelism=default_of(1),
        completions=default_of(1),
        backoffLimit=default_of(6),
        completionMode=default_of("NonIndexed"),
        suspend=default_of(False),
        template=known(metadata=METADATA, spec=_JOB_POD_SPEC),
    )
)
SERVICE = known(spec=known(ports=_PORTS, type=default_of("ClusterIP")))
DEFINITION = known(
    spec=known(scope=default_of("Namespaced"), conversion={**known(strategy=default_of("None")), "default": {}})
)
