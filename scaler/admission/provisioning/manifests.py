"""The objects that request nodes: PodTemplates, and the ProvisioningRequest that names them. Pure.

Laws:

* The pods of a request are the pods that will be created: the PodSet's template with the node labels and tolerations of
  its flavors, and with limits standing in for requests that are missing.
* Names follow those of Kueue; long ones are cut and made unique.
* The Workload owns the PodTemplates, all of these together own the request, and no other object does (why not the
  Workload: `requests.py`). When the Workload is deleted, all are.

    Workload job-a  ◀─owner─  PodTemplate ppt-job-a-reclaim-1-main  ◀─owner─  ProvisioningRequest job-a-reclaim-1
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from scaler.admission.policy import MergePolicy, ProvisioningPolicy, Unusable
from scaler.admission.provisioning.requests import (
    ASSIGNMENT_ANNOTATION,
    ATTEMPT_ANNOTATION,
    CHECK_ANNOTATION,
    CONSUME_ANNOTATION,
    MANAGED_LABEL,
    POD_SETS_ANNOTATION,
    RESERVED_AT_ANNOTATION,
    WORKLOAD_ANNOTATION,
    WORKLOAD_UID_LABEL,
    Flavors,
    assignments_of,
    counts_of,
    covered_by,
    request_spec_of,
)
from scaler.kube.objects.core import stamp
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.quantity import exact
from scaler.kube.objects.resources import POD_TEMPLATE, WORKLOAD, Resource

Json = dict[str, Any]

CONTENT_ANNOTATION = "idlegpu.io/content"
"""A digest of what a PodTemplate is a template of, which shows whether one that exists already is right."""

_LONGEST_NAME = 253
_SUFFIX = 6
"""A dash and five characters of a digest."""
_OLD_CONSUME_ANNOTATION = "cluster-autoscaler.kubernetes.io/consume-provisioning-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestManifests:
    """A request and its PodTemplates, to be created in this order: the templates, then `owned_by` them the request."""

    name: str
    pods: int
    templates: tuple[Json, ...]
    request: Json

    def owned_by(self, uids: Sequence[str], resource: Resource) -> Json:
        """The request, of the version that is served, with the created PodTemplates as its owners."""
        owners = [
            {"apiVersion": POD_TEMPLATE.api_version, "kind": POD_TEMPLATE.kind, "name": name, "uid": uid}
            for name, uid in zip((each["metadata"]["name"] for each in self.templates), uids, strict=True)
        ]
        metadata = self.request["metadata"] | {"ownerReferences": owners}
        return {**self.request, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


@dataclass(frozen=True, slots=True)
class _Group:
    """PodSets that are requested as one; the template is that of the first."""

    names: tuple[str, ...]
    count: int
    template: Json


def request_manifests_of(
    workload: Workload,
    body: bytes,
    policy: ProvisioningPolicy,
    *,
    check: str,
    attempt: int,
    missing: Mapping[str, int],
    flavors: Flavors,
) -> RequestManifests | Unusable:
    """What to create to request nodes, or why that is not possible.

    `body` is the same Workload as the API has it: templates are passed on whole, not only the decoded fields.
    """
    try:
        groups = _groups(workload, body, policy, missing, flavors)
    except ValueError as error:
        return Unusable(f"nodes cannot be requested: {error}")
    if not groups:
        return Unusable("nodes cannot be requested: no pod of the PodSets that the policy covers lacks a node")
    name = request_name(workload.metadata.name, check, attempt)
    templates = tuple(_pod_template(workload, name, group) for group in groups)
    ask = request_spec_of(workload, policy)
    request = {
        "metadata": {
            "name": name,
            "namespace": workload.metadata.namespace,
            "labels": _labels(workload),
            "annotations": {
                WORKLOAD_ANNOTATION: workload.metadata.name,
                CHECK_ANNOTATION: check,
                ATTEMPT_ANNOTATION: str(attempt),
                RESERVED_AT_ANNOTATION: stamp(ask.reserved_at) if ask.reserved_at else "",
                ASSIGNMENT_ANNOTATION: ask.assignment,
                POD_SETS_ANNOTATION: ",".join(each for group in groups for each in group.names),
            },
        },
        "spec": {
            "provisioningClassName": ask.provisioning_class,
            "parameters": dict(ask.parameters),
            "podSets": [
                {"podTemplateRef": {"name": template["metadata"]["name"]}, "count": group.count}
                for template, group in zip(templates, groups, strict=True)
            ],
        },
    }
    return RequestManifests(name=name, pods=sum(group.count for group in groups), templates=templates, request=request)


def _labels(workload: Workload) -> dict[str, str]:
    return {MANAGED_LABEL: "true", WORKLOAD_UID_LABEL: workload.metadata.uid}


def _pod_template(workload: Workload, request: str, group: _Group) -> Json:
    digest = hashlib.sha256(_encode(group.template)).hexdigest()
    owner = {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.kind,
        "name": workload.metadata.name,
        "uid": workload.metadata.uid,
        "controller": True,
    }
    return {
        "apiVersion": POD_TEMPLATE.api_version,
        "kind": POD_TEMPLATE.kind,
        "metadata": {
            "name": template_name(request, group.names[0]),
            "namespace": workload.metadata.namespace,
            "labels": _labels(workload),
            "annotations": {CONTENT_ANNOTATION: digest},
            "ownerReferences": [owner],
        },
        "template": group.template,
    }


_encode = msgspec.json.Encoder(order="deterministic").encode


# -------------------------------------------------------------------------------------------------------------- names


def request_name(workload: str, check: str, attempt: int) -> str:
    return limited(f"{workload}-{check}-{attempt}")


def template_name(request: str, pod_set: str) -> str:
    return limited(f"ppt-{request}-{pod_set}")


def limited(name: str) -> str:
    """The name; if it is too long for the API, cut and made unique by a digest of the whole.

    Source: Kueue, limitObjectName.
    """
    longest = _LONGEST_NAME - _SUFFIX
    if len(name) <= longest:
        return name
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
    return f"{name[:longest].rstrip('-.')}-{digest[: _SUFFIX - 1]}"


# --------------------------------------------------------------------------------------------------- what is requested


def _groups(
    workload: Workload, body: bytes, policy: ProvisioningPolicy, missing: Mapping[str, int], flavors: Flavors
) -> list[_Group]:
    """Raises: ValueError for pods that nodes cannot be requested for."""
    counts = counts_of(workload)
    if policy.only_missing:
        counts = {name: min(count, missing.get(name, 0)) for name, count in counts.items()}
    given = {each["name"]: each.get("template") or {} for each in msgspec.json.decode(body)["spec"]["podSets"]}
    groups: list[_Group] = []
    bare: list[Json] = []
    for name in covered_by(workload, policy):
        if counts[name] <= 0:
            continue
        same = next((at for at, each in enumerate(bare) if _are_alike(each, given[name], policy.merge_policy)), None)
        if same is None:
            bare.append(given[name])
            groups.append(_Group((name,), counts[name], _completed(workload, name, given[name], flavors)))
        else:
            into = groups[same]
            groups[same] = _Group((*into.names, name), into.count + counts[name], into.template)
    return groups


def _completed(workload: Workload, pod_set: str, template: Json, flavors: Flavors) -> Json:
    """The template of the pods that will come. Raises: ValueError."""
    metadata = template.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    for key in (CONSUME_ANNOTATION, _OLD_CONSUME_ANNOTATION):
        if key in annotations:
            raise ValueError(f"PodSet {pod_set} consumes ProvisioningRequest {annotations[key]!r} already")
    spec = deepcopy(template.get("spec") or {})
    _add_flavors(workload, pod_set, spec, flavors)
    for bearer in (*spec.get("initContainers", ()), *spec.get("containers", ()), spec):
        resources = bearer.get("resources") or {}
        if resources.get("limits"):
            bearer["resources"] = resources | {"requests": resources["limits"] | (resources.get("requests") or {})}
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return ({"metadata": kept} if kept else {}) | {"spec": spec}


def _add_flavors(workload: Workload, pod_set: str, spec: Json, flavors: Flavors) -> None:
    """Raises: ValueError for a flavor that is not there or that the pods contradict."""
    selector = dict(spec.get("nodeSelector") or {})
    tolerations = list(spec.get("tolerations") or ())
    known = [_toleration(each) for each in tolerations]
    assigned = (each.flavors.values() for each in assignments_of(workload) if each.name == pod_set)
    for name in dict.fromkeys(name for names in assigned for name in names):
        flavor = flavors(name)
        if flavor is None:
            raise ValueError(f"ResourceFlavor {name!r} of PodSet {pod_set} is not known")
        for key, value in flavor.spec.node_labels.items():
            if selector.setdefault(key, value) != value:
                found = f"selects nodes with {key}={selector[key]}, and its flavor {name} those with {key}={value}"
                raise ValueError(f"PodSet {pod_set} {found}")
        for each in msgspec.to_builtins(flavor.spec.tolerations):
            written = {key: value for key, value in each.items() if value not in ("", None)}
            if _toleration(written) not in known:
                known.append(_toleration(written))
                tolerations.append(written)
    spec |= ({"nodeSelector": selector} if selector else {}) | ({"tolerations": tolerations} if tolerations else {})


def _toleration(written: Json) -> tuple[Any, ...]:
    fields = ("key", "value", "effect", "tolerationSeconds")
    return (written.get("operator") or "Equal", *(_essence(written.get(field)) for field in fields))


# ---------------------------------------------------------------------------------------------------- which are alike


def _are_alike(one: Json, other: Json, policy: MergePolicy | None) -> bool:
    """Whether the templates may be requested as one."""
    match policy:
        case MergePolicy.IDENTICAL_TEMPLATES:
            return bool(_essence(one) == _essence(other))
        case MergePolicy.IDENTICAL_REQUIREMENTS:
            return _requirements(one) == _requirements(other)
    return False


_REQUIREMENTS = ("resources", "nodeSelector", "tolerations", "affinity", "resourceClaims")


def _requirements(template: Json) -> tuple[Any, ...]:
    """What decides on which nodes the pods run. Source: Kueue, arePodSetsSimilar.

    Unlike there, limits count where requests are missing: pods with 4 and with 8 GPUs, written as limits only, differ.
    """
    spec = template.get("spec") or {}
    return (
        *(_requests(spec.get(kind) or ()) for kind in ("containers", "initContainers")),
        *(_essence(spec.get(field)) for field in _REQUIREMENTS),
    )


def _requests(containers: Iterable[Json]) -> list[Any]:
    resources = (each.get("resources") or {} for each in containers)
    return [_essence((each.get("limits") or {}) | (each.get("requests") or {}), "requests") for each in resources]


def _essence(value: Any, key: str = "") -> Any:
    """The value in a form in which what means the same is the same: empty is absent, and `1` is `1000m`."""
    if isinstance(value, dict) and key in ("requests", "limits"):
        return {name: _quantity(each) for name, each in value.items()} or None
    if isinstance(value, dict):
        return {name: found for name, each in value.items() if (found := _essence(each, name)) is not None} or None
    if isinstance(value, list):
        return [_essence(each) for each in value] or None
    return None if value == "" else value


def _quantity(written: Any) -> Fraction | Any:
    try:
        return exact(written)
    except (ValueError, TypeError):
        return written
