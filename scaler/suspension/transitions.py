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
"""

from enum import StrEnum

from scaler.targets.target_state import ObservedTarget, ObservedWorkload, Phase, TargetState


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
