"""Which remote copies of MultiKueue may this cluster suspend idle workloads or request nodes for?

A hub of MultiKueue creates a copy of each dispatched Workload on one worker cluster or on many, and keeps the one that
is admitted first. What is suspended for a copy on any other cluster is suspended in vain.

The first row that holds:

| the Workload                                                       | idle workloads, and nodes        |
|--------------------------------------------------------------------|----------------------------------|
| is no remote copy                                                  | may be taken                     |
| `multiKueue.planOnWorkers: Always`                                 | may be taken                     |
| a ClusterOffer names it with `reclaim: true`                       | may be taken                     |
| its preemption gate `kueue.x-k8s.io/multikueue` is Open            | may be taken                     |
| ClusterOffers are not known                                        | not known: what was begun stays  |
| –                                                                  | may not be taken: RemoteCopy     |

A closed gate says nothing: Kueue opens it only where it has a Workload to preempt. A copy that fits is Kueue's matter.

Source: Kueue, KEP-8303; the ClusterOffer of this project.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import is_true
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_GATE, Workload
from scaler.kube.objects.multikueue import ClusterOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class NominatedCopies:
    """The copies for which the hubs have nominated this cluster, at one moment. None, unless it is known."""

    reclaim: frozenset[tuple[str, str]] = frozenset()
    """(namespace, name) of those that a ClusterOffer names with `reclaim: true`."""
    unknown: str = ""
    """Why ClusterOffers are not known; empty where they are."""
    always: bool = False
    """Whether every copy counts as nominated."""

    def why_not(self, workload: Workload) -> str | Unknown:
        """Why nothing is suspended and no nodes are requested for it; empty where that may be."""
        if not workload.is_remote_copy or self.always or is_gate_open(workload):
            return ""
        if self.unknown:
            message = f"whether the hub has nominated this cluster for it is not known: {self.unknown}"
            return Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message=message)
        if workload.metadata.key in self.reclaim:
            return ""
        is_choosing = is_true(workload.status.conditions, "BlockedOnPreemptionGates")
        return _CHOOSING if is_choosing else _NOT_NOMINATED


_NOT_NOMINATED = "it is a remote copy of MultiKueue, and the hub has not nominated this cluster for it"
_CHOOSING = "it is a remote copy of MultiKueue, and the hub has not opened its preemption gate on this cluster"


def nominations_of(offers: Iterable[ClusterOffer], *, unknown: str = "", always: bool = False) -> NominatedCopies:
    named = (each for offer in offers for each in offer.spec.workloads)
    return NominatedCopies(
        reclaim=frozenset(each.key for each in named if each.reclaim), unknown=unknown, always=always
    )


def is_gate_open(workload: Workload) -> bool:
    """Whether Kueue's hub lets it preempt on this cluster."""
    return any(each.name == MULTIKUEUE_GATE and each.position == "Open" for each in workload.status.preemption_gates)


def words(why: str | Unknown) -> str:
    """Why it is so, in words."""
    return why.message if isinstance(why, Unknown) else why
