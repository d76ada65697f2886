"""The priority boost on a Workload: how it is read, and the patches that write it.

Laws:

* The annotation that says this scaler owns the boost is written in the same patch, with its value. A boost of another
  value, or without that annotation, is another client's.
* Every patch names the uid and the resourceVersion that was decided upon: what another client writes meanwhile wins.

Source: Kueue, pkg/util/priority, KEP-7990.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from scaler.decision.target_state import ObservedWorkload
from scaler.kube.object_cache import Index
from scaler.kube.objects import kueue_workloads as kube
from scaler.kube.objects.core import UNREADABLE
from scaler.quota.from_objects.workloads import BOOST_ANNOTATION
from scaler.suspension.priority_boost import Boost, BoostOwner, BoostStep

BOOST_OWNER_ANNOTATION = "idlegpu.io/priority-boost"
"""On a Workload: that this scaler owns the boost, its value, and when and why it was written."""
BOOSTED = True
"""Key of the Workloads with a priority boost of this scaler."""


class _Mark(msgspec.Struct):
    value: int


def boost_indexes() -> dict[str, Index[kube.Workload]]:
    """Index of the Workload store: those with our note."""
    return {"boost": lambda workload: (BOOSTED,) if BOOST_OWNER_ANNOTATION in workload.metadata.annotations else ()}


def boost_of(workload: kube.Workload) -> Boost:
    """The Workload's boost, and whose it is."""
    annotations = workload.metadata.annotations
    value, mark = annotations.get(BOOST_ANNOTATION, ""), annotations.get(BOOST_OWNER_ANNOTATION)
    if mark is None:
        return Boost(holder=BoostOwner.OTHER if value else BoostOwner.NONE, value=value)
    if not value:
        return Boost(holder=BoostOwner.TAKEN_OFF)
    return Boost(holder=BoostOwner.US if value == _noted(mark) else BoostOwner.REPLACED, value=value)


def _noted(mark: str) -> str:
    """The value in this scaler's annotation; empty where it cannot be read."""
    try:
        return str(msgspec.json.decode(mark, type=_Mark).value)
    except UNREADABLE:
        return ""


def note(*, value: int, **why: Any) -> str:
    """The text of our note: JSON for people and for a later reader. What is empty is left out."""
    return msgspec.json.encode({"value": value, **{name: each for name, each in why.items() if each}}).decode()


def patch(step: BoostStep, workload: ObservedWorkload, *, value: int, cause: str) -> Mapping[str, Any]:
    """The patch that takes the step; `cause` is our note."""
    annotations: dict[BoostStep, dict[str, str | None]] = {
        BoostStep.WRITE: {BOOST_ANNOTATION: str(value), BOOST_OWNER_ANNOTATION: cause},
        BoostStep.REMOVE: {BOOST_ANNOTATION: None, BOOST_OWNER_ANNOTATION: None},
        BoostStep.RELEASE_OWNERSHIP: {BOOST_OWNER_ANNOTATION: None},
    }
    guard = {"uid": workload.uid, "resourceVersion": workload.resource_version}
    return {"metadata": {**guard, "annotations": annotations[step]}}


def is_reconsidered(workload: kube.Workload) -> bool:
    """Whether Kueue looks again at gangs that wait in a BestEffortFIFO queue when the Workload's boost changes.

    Seen on a running Kueue: without a WorkloadPriorityClass they wait on, until something else changes in the cohort.
    Source: Kueue, pkg/workload/workload.go (PriorityChanged).
    """
    reference = workload.spec.priority_class_ref
    return reference is not None and reference.kind == "WorkloadPriorityClass"
