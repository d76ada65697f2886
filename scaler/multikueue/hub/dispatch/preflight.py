"""May clusters be nominated on this hub, without a Workload that runs on a worker while the hub waits for ever?

Kueue's server-side apply cannot clear nominations that another manager has made, so it can never set `clusterName`:
unless a policy clears them, or Kueue patches instead of applying (a feature gate). Which of both is there is found out
on a Workload that waits for a cluster: by a dry run, which changes nothing, and by who owns its fields.

| dry run of clusterName with a nomination             | owner of `status.admission`    | answer         |
|------------------------------------------------------|--------------------------------|----------------|
| any                                                  | any; Kueue has nominated it    | `KueueDispatches` |
| 403: it must be one of the nominatedClusterNames     | any                            | `Policy`       |
| 422: they are mutually exclusive                     | `kueue`, by Update             | `FeatureGate`  |
| 422: they are mutually exclusive                     | another                        | `NoRemedy`     |
| anything else                                        | any                            | `NotKnown`     |

Only with `Policy` and `FeatureGate` clusters are nominated. Source: seen with Kueue 0.20-devel (ff69552).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.objects.resources import WORKLOAD
from scaler.kube.writes import PatchApi

_PROBE = "idle-gpu-scaler-preflight"
"""A cluster of that name is named in the dry run, and never is."""


class PreflightResult(StrEnum):
    POLICY = "Policy"
    FEATURE_GATE = "FeatureGate"
    NO_REMEDY = "NoRemedy"
    KUEUE_DISPATCHES = "KueueDispatches"
    NOT_KNOWN = "NotKnown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    result: PreflightResult
    message: str = ""
    """What to do, where clusters are not nominated."""

    @property
    def is_passed(self) -> bool:
        return self.result in (PreflightResult.POLICY, PreflightResult.FEATURE_GATE)


NOT_TRIED = Preflight(
    result=PreflightResult.NOT_KNOWN, message="it is not known yet whether Kueue can clear nominations"
)
_CURE = (
    "Kueue could not clear the nominations, and the Workload would run on a worker while the hub waits for ever: apply "
    "Kueue's MutatingAdmissionPolicy clear-nominated-cluster-names (config/components/map), or set its feature gate "
    "WorkloadRequestUseMergePatch"
)
_OTHER_DISPATCHER = (
    "Kueue's own dispatcher is configured: set multiKueue.dispatcherName of Kueue to idlegpu.io/dispatcher"
)


async def preflight(api: PatchApi, namespace: str, name: str) -> Preflight:
    """What a Workload that waits for a cluster shows. Raises: KubeError where this replica does not lead."""
    path = WORKLOAD.path(namespace, name)
    try:
        workload = msgspec.json.decode(await api.get(path))
        admission, nominations = owners_of(workload, "f:admission"), nominators_of(workload)
    except (KubeError, *UNREADABLE) as error:
        return _not_known(error)
    body = {"status": {"nominatedClusterNames": [_PROBE], "clusterName": _PROBE}}
    try:
        await api.patch(WORKLOAD.path(namespace, name, "status"), body, dry_run=True)
    except KubeError as error:
        return judged(error.status, str(error), admission=admission, nominations=nominations)
    return judged(200, "the API server took it", admission=admission, nominations=nominations)


def _not_known(error: object) -> Preflight:
    return Preflight(result=PreflightResult.NOT_KNOWN, message=f"whether Kueue can clear nominations: {error}")


def judged(status: int, said: str, *, admission: Collection[str], nominations: Collection[str]) -> Preflight:
    """What the table says, with the owners of the admission and of the nominations, as `manager/operation`."""
    if any(each.startswith("kueue") for each in nominations):
        return Preflight(result=PreflightResult.KUEUE_DISPATCHES, message=_OTHER_DISPATCHER)
    if status == 403 and "must be one of the nominatedClusterNames" in said:
        return Preflight(result=PreflightResult.POLICY)
    if status != 422 or "mutually exclusive" not in said:
        return _not_known(said)
    if "kueue/Update" in admission:
        return Preflight(result=PreflightResult.FEATURE_GATE)
    return Preflight(result=PreflightResult.NO_REMEDY, message=_CURE)


def nominators_of(workload: Mapping[str, Any]) -> frozenset[str]:
    """Who owns the nominations, where there are any: an empty list is what the policy leaves, in Kueue's name."""
    has_nominations = (workload.get("status") or {}).get("nominatedClusterNames")
    return owners_of(workload, "f:nominatedClusterNames") if has_nominations else frozenset()


def owners_of(workload: Mapping[str, Any], field: str) -> frozenset[str]:
    """Who has written that field of the status, as `manager/operation`."""
    return frozenset(
        f"{each.get('manager')}/{each.get('operation')}"
        for each in workload["metadata"].get("managedFields") or ()
        if field in ((each.get("fieldsV1") or {}).get("f:status") or {})
    )
