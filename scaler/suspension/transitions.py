"""What is done next to the Workload of a ScalableWorkload? Its phase × what it is asked to be → one step, or none.

| phase                                    | asked to be at | its Workload                  | step             |
|------------------------------------------|----------------|-------------------------------|------------------|
| Suspending                               | 0              | active                        | Deactivate       |
| Suspending                               | 0              | inactive, no annotation of us | Adopt            |
| Resuming                                 | 1              | inactive                      | Activate         |
| all but NoWorkload, Finished and Refused | 1              | active, with our annotation   | ReleaseOwnership |
| DeactivatedByOther                       | 1              | with our spent annotation     | ReleaseOwnership |

An object with a switch of its own has no quota; while it is active, nothing but the step that stops it is taken.

Laws:

* Only `spec.active` is ever toggled. The DeactivationTarget condition is never used: once set it is not removed and
  turns every reactivation back.
* A Workload is not reactivated before `QuotaReserved=False`: until then Kueue still counts it and may over-commit.
* Kueue may recreate a Workload, and then it comes back active. Asking again every time (level-triggered) re-asserts.
* A Workload that another client activates stays active: it has our annotation, and one that Kueue recreates has none.
* A Workload that another client deactivated is reported, not reactivated. So is one that finished or vanished.
* The annotation that says we did it travels in the same patch, so there is no moment in which the two disagree.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.targets import switches
from scaler.targets.switches import Switch
from scaler.targets.target_state import ObservedTarget, ObservedWorkload, Phase, TargetState
from scaler.targets.workloads import SUSPENDED_ANNOTATION


class SuspensionStep(StrEnum):
    """What to do to the Workload. Waiting and having nothing to do are both no step."""

    ACTIVATE = "Activate"
    DEACTIVATE = "Deactivate"
    ADOPT = "Adopt"
    """Annotate an inactive Workload as wanted inactive, so that replicas 1 activates it later."""
    RELEASE_OWNERSHIP = "ReleaseOwnership"
    """Remove that annotation from a Workload that another client activated, or that client's next deactivation would
    count as this scaler's."""


_NOT_OURS = frozenset({Phase.NO_WORKLOAD, Phase.FINISHED, Phase.REFUSED})


def next_step(target: ObservedTarget, state: TargetState) -> SuspensionStep | None:
    """The one thing to do next. Valid only for the observed `resource_version`."""
    workload = target.workload
    if workload is None or state.phase in _NOT_OURS:
        return None
    match state.phase, target.desired_replicas:
        case Phase.SUSPENDING, 0 if workload.active:
            return SuspensionStep.DEACTIVATE
        case Phase.SUSPENDING, 0 if not workload.suspended_by_us:
            return SuspensionStep.ADOPT
        case Phase.RESUMING, _:
            return SuspensionStep.ACTIVATE
        case phase, desired if desired and _is_to_be_released(workload, phase):
            return SuspensionStep.RELEASE_OWNERSHIP
    return None


def _is_to_be_released(workload: ObservedWorkload, phase: Phase) -> bool:
    if not workload.has_quota:
        return phase is Phase.DEACTIVATED_BY_OTHER and workload.has_spent_annotation
    return workload.active and workload.suspended_by_us


def workload_patch(workload: ObservedWorkload, *, cause: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The JSON merge patch that deactivates the Workload because of `cause`, or activates it where there is none.

    `cause` is written as JSON, for people and for a later reader. A patch that changes `active` to what it is already
    adds or removes our annotation.
    """
    return {
        "metadata": {
            "uid": workload.uid,
            "resourceVersion": workload.resource_version,
            "annotations": {SUSPENDED_ANNOTATION: None if cause is None else msgspec.json.encode(cause).decode()},
        },
        "spec": {"active": cause is None},
    }


def switch_patch(
    step: SuspensionStep, switch: Switch, found: SwitchedObject, *, cause: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The JSON merge patch by which an object with a switch of its own takes the step."""
    match step:
        case SuspensionStep.DEACTIVATE:
            return switches.stop_patch(switch, found, cause=cause, at=cause["at"])
        case SuspensionStep.ADOPT:
            return switches.adopt_patch(found, cause=cause)
        case SuspensionStep.ACTIVATE:
            return switches.start_patch(switch, found)
        case SuspensionStep.RELEASE_OWNERSHIP:
            return switches.release_patch(found)
