"""CheckedWorkloads as an admission plan has them, for those who read such plans."""

from datetime import datetime
from typing import Any

import msgspec

from scaler.admission.check import CheckChange, CheckReason, CheckState, ReservedWorkload
from scaler.admission.plan import CheckedWorkload
from scaler.admission.policy import CheckPolicy
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload


def pending(
    key: str,
    because: CheckReason = CheckReason.NODES_LACKING,
    *,
    uid: str = "uid",
    check: str = "gate",
    reserved_at: datetime | None = None,
    **fields: Any,
) -> CheckedWorkload:
    """One whose check state is Pending for that reason."""
    namespace, _, name = key.partition("/")
    state = {"name": check, "state": "Pending", "message": "waits"}
    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {},
        "status": {"admissionChecks": [state]},
    }
    return CheckedWorkload(
        **{
            "workload": decode(Workload, msgspec.json.encode(body)),
            "check": check,
            "policy": CheckPolicy(),
            "reserved": ReservedWorkload(key=key, uid=uid, reserved_at=reserved_at),
            "change": CheckChange(state=CheckState.PENDING, because=because, message="waits"),
            **fields,
        }
    )
