"""The priority boost on a Workload: how it is read, the patches that write it, and how to find out if Kueue reads it.

Laws:

* The note that says the boost is ours travels in the same patch, with its value. A boost of another value, or without
  the note, is somebody else's.
* Every patch names the uid and the resourceVersion that was decided upon: what somebody else writes meanwhile wins.

**Whether Kueue's feature gate PriorityBoost is on** stands nowhere in the API, and without it a boost is an annotation
that nobody reads. But only with it does Kueue's webhook look at the annotation, and refuse what is no number: so the
API is asked, as a dry run, what it would say to a boost that is none, and to one that is good.

| no number  | a good one | the gate                                                                 |
|------------|------------|--------------------------------------------------------------------------|
| taken      | not asked  | off (or Kueue runs without its webhooks: then only the settings can say) |
| refused    | taken      | on                                                                       |
| refused    | refused    | unknown: it is not the number that is refused                            |
| no verdict | not asked  | unknown                                                                  |

Seen on Kueue 0.20.0-devel, gate on and off: 403 `metadata.annotations[kueue.x-k8s.io/priority-boost]: Invalid value`
and 200. The same 403 comes from RBAC or from somebody else's policy, which is why a good one is asked as well.

Source: Kueue, pkg/webhooks/workload_webhook.go (ValidateWorkload), pkg/util/priority, KEP-7990.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from scaler.core.boosting import Boost, Holder, Step
from scaler.core.suspension import Workload
from scaler.kube import kueue_objects as kube
from scaler.kube.decoding import UNREADABLE
from scaler.kueue.quota_workloads import BOOST_ANNOTATION

MARK_ANNOTATION = "idlegpu.io/priority-boost"
"""On a Workload: that the boost is ours, its value, and when and why it was written."""
NO_NUMBER = "is-this-read"
"""A boost that Kueue refuses if it looks at it."""
REFUSED = frozenset({400, 403, 422})
"""What the API answers for a patch that a webhook refuses: 403 for Kueue's."""


class _Mark(msgspec.Struct):
    value: int


def boost_of(workload: kube.Workload) -> Boost:
    """The Workload's boost, and whose it is."""
    annotations = workload.metadata.annotations
    value, mark = annotations.get(BOOST_ANNOTATION, ""), annotations.get(MARK_ANNOTATION)
    if mark is None:
        return Boost(holder=Holder.OTHER if value else Holder.NOBODY, value=value)
    if not value:
        return Boost(holder=Holder.TAKEN_OFF)
    return Boost(holder=Holder.US if value == _noted(mark) else Holder.REPLACED, value=value)


def _noted(mark: str) -> str:
    """The value that the note says is ours; empty where somebody has garbled it."""
    try:
        return str(msgspec.json.decode(mark, type=_Mark).value)
    except UNREADABLE:
        return ""


def note(*, value: int, **why: Any) -> str:
    """The text of our note: JSON for people and for a later reader. What is empty is left out."""
    return msgspec.json.encode({"value": value, **{name: each for name, each in why.items() if each}}).decode()


def patch(step: Step, workload: Workload, *, value: int, cause: str) -> Mapping[str, Any]:
    """The patch that takes the step; `cause` is our note."""
    annotations: dict[Step, dict[str, str | None]] = {
        Step.WRITE: {BOOST_ANNOTATION: str(value), MARK_ANNOTATION: cause},
        Step.REMOVE: {BOOST_ANNOTATION: None, MARK_ANNOTATION: None},
        Step.DISOWN: {MARK_ANNOTATION: None},
    }
    guard = {"uid": workload.uid, "resourceVersion": workload.resource_version}
    return {"metadata": {**guard, "annotations": annotations[step]}}


def probe(workload: Workload, value: str) -> Mapping[str, Any]:
    """The patch for a dry run: would the API take this boost?"""
    return {"metadata": {"uid": workload.uid, "annotations": {BOOST_ANNOTATION: value}}}


def is_reconsidered(workload: kube.Workload) -> bool:
    """Whether Kueue looks again at gangs that wait in a BestEffortFIFO queue when the Workload's boost changes.

    Seen on a running Kueue: without a WorkloadPriorityClass they wait on, until something else changes in the cohort.
    Source: Kueue, pkg/workload/workload.go (PriorityChanged).
    """
    reference = workload.spec.priority_class_ref
    return reference is not None and reference.kind == "WorkloadPriorityClass"
