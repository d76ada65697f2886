"""The patches that are written to Workloads. JSON merge patches, guarded by the resourceVersion that was decided upon.

Laws:

* `spec.active` is the only field of Kueue's that is touched.
* The annotation that says we did it travels in the same patch, so there is no moment in which the two disagree.
"""

from collections.abc import Mapping
from typing import Any

from scaler.decision.target_state import ObservedWorkload
from scaler.decision.workloads import SUSPENDED_ANNOTATION


def deactivate(workload: ObservedWorkload, *, cause: str) -> Mapping[str, Any]:
    """Deactivate the Workload and say why; on one that is inactive already, note that it shall be.

    `cause` is JSON text for people and for a later reader: who asked, the reason and the evidence.
    """
    return _patch(workload, active=False, annotation=cause)


def activate(workload: ObservedWorkload) -> Mapping[str, Any]:
    """Let Kueue admit the Workload again; on one that is active already, take off our note."""
    return _patch(workload, active=True, annotation=None)


def _patch(workload: ObservedWorkload, *, active: bool, annotation: str | None) -> Mapping[str, Any]:
    return {
        "metadata": {
            "uid": workload.uid,
            "resourceVersion": workload.resource_version,
            "annotations": {SUSPENDED_ANNOTATION: annotation},
        },
        "spec": {"active": active},
    }
