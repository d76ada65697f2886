"""What Kueue adds to writes of Workloads by admission: its webhook, and the policy that empties nominations.

| step     | what                                                                                      | refused with |
|----------|-------------------------------------------------------------------------------------------|--------------|
| policy   | nominations become `[]` where clusterName is newly set, or Evicted newly True             |              |
| schema   | clusterName and nominations exclude each other (a rule of the CRD)                        | 422          |
| webhook  | a cluster that is newly set has to be one of those that were nominated before             | 403          |

In this order, as in an API server. So a dry run that sets a cluster and a nomination of it is refused either way, and
tells by the code whether the policy is there. Of the owners of fields, which the embedded API does not keep, one is
told: that of the admission, by which the feature gate can be told.
"""

from scaler_sandbox.conditions import has
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.nominations import NOMINATED, HubConfig, Remedy

_NOT_NOMINATED = "when setting clusterName it must be one of the nominatedClusterNames"


class WorkloadAdmission:
    """The webhook of one API."""

    def __init__(self, config: HubConfig) -> None:
        self._remedy = config.remedy

    def mutated(self, old: Json | None, new: Json) -> Json:
        """The Workload as it goes on from here."""
        status = new.get("status") or {}
        if old is not None and self._remedy is Remedy.POLICY and status.get(NOMINATED) and _is_settled(old, new):
            new = {**new, "status": {**status, NOMINATED: []}}
        if not status.get("admission"):
            return new
        return {**new, "metadata": {**new["metadata"], "managedFields": [self._owner_of_admission(new)]}}

    def refusal(self, old: Json | None, new: Json) -> str:
        """Why the webhook denies the write; empty where it does not."""
        cluster = _cluster(new)
        if old is None or not cluster or _cluster(old) or cluster in ((old.get("status") or {}).get(NOMINATED) or ()):
            return ""
        why = f'status.clusterName: Invalid value: "{cluster}": {_NOT_NOMINATED}'
        return f'admission webhook "vworkload.kb.io" denied the request: {why}'

    def _owner_of_admission(self, workload: Json) -> Json:
        is_patched = self._remedy is Remedy.GATE
        return {
            "manager": "kueue" if is_patched else "kueue-admission",
            "operation": "Update" if is_patched else "Apply",
            "apiVersion": workload["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:admission": {".": {}, "f:clusterQueue": {}, "f:podSetAssignments": {}}}},
            "subresource": "status",
        }


def _is_settled(old: Json, new: Json) -> bool:
    is_assigned = bool(_cluster(new)) and not _cluster(old)
    return is_assigned or (has(new, "Evicted") and not has(old, "Evicted"))


def _cluster(workload: Json) -> str:
    return str((workload.get("status") or {}).get("clusterName") or "")
