"""When may a gang that has its quota start, and what is done about missing nodes? The AdmissionCheck's parameters.

Operators write them as a ReclaimPolicy, which an AdmissionCheck names. A check that names none has all defaults: it
waits for pods to terminate and for the gang to fit, reclaims idle GPUs, and requests no nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class MergePolicy(StrEnum):
    """Which PodSets are requested as one."""

    IDENTICAL_TEMPLATES = "IdenticalPodTemplates"
    IDENTICAL_REQUIREMENTS = "IdenticalWorkloadSchedulingRequirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How requests follow one that failed."""

    limit: int = 3
    """How many may follow the first one: with 3, four are made at most."""
    base: timedelta = timedelta(seconds=60)
    longest: timedelta = timedelta(minutes=30)

    def allows_another_after(self, attempt: int) -> bool:
        return attempt <= self.limit

    def pause_after(self, attempt: int) -> timedelta:
        """The time between the failure of this attempt, counted from 1, and the next one: base · 2^(attempt-1).

        With the defaults 1, 2, 4, 8, 16 and then always 30 minutes.
        """
        doublings = min(max(attempt, 1) - 1, _DOUBLINGS)
        # Compared before it is multiplied: what timedelta cannot hold is longer than the longest pause anyway.
        return self.longest if self.base > self.longest / 2**doublings else self.base * 2**doublings


_DOUBLINGS = 40
"""The shortest base, a second, has become thirty thousand years by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningPolicy:
    """How missing nodes are requested."""

    provisioning_class: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    managed_resources: frozenset[str] = frozenset()
    """The resources of which a PodSet requests one to be provisioned for; empty means that all PodSets are."""
    only_missing: bool = False
    """Whether only the pods that fit no node are requested, and not the whole gang. Right for classes that add nodes
    for everything that is requested. Those of Cluster Autoscaler subtract what is free already: for a request of the
    missing 8 of 16 GPUs they would find the other 8, which are free, and add nothing."""
    merge_policy: MergePolicy | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the gang's nodes must have, and the provisioning class detail that has the value of each."""
    after: timedelta = timedelta(0)
    """How long after the quota was reserved capacity may get free by itself or by reuse before nodes are requested."""
    withdraws: bool = True
    """Whether an open request is removed once the gang fits without it."""
    retry: Retry = Retry()
    yields_at_limit: bool = False
    """Whether the gang releases its quota once the last request that may be made has failed, too, if another Workload
    is admitted with it; else it keeps its quota and waits for capacity."""
    evicts_on_revocation: bool = True
    """Whether a gang that has started is evicted when the provider takes back its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicy:
    """Everything that a ReclaimPolicy says."""

    wait_for_pods_gone: bool = True
    """Whether the gang waits until all pods of Workloads that released quota for it have terminated."""
    require_fit: bool = True
    """Whether the gang waits until all of it fits what is free on nodes."""
    reuse: bool = True
    """Whether idle workloads may be suspended for a gang that has quota but lacks nodes."""
    pin_label: str = ""
    """The node label by which a gang is pinned to the nodes that were found free for it; empty: it is not pinned."""
    provisioning: ProvisioningPolicy | None = None
    """How nodes are requested; None: they never are."""

    @property
    def words(self) -> str:
        """What a gang waits for, and what is done meanwhile: `waits for free capacity for the whole gang; …`."""
        waits = ["victims' pods to terminate"] if self.wait_for_pods_gone else []
        waits += ["free capacity for the whole gang"] if self.require_fit else []
        does = ["reclaims idle GPUs"] if self.require_fit and self.reuse else []
        does += [f"requests nodes of class {self.provisioning.provisioning_class}"] if self.provisioning else []
        return "; ".join([f"waits for {' and '.join(waits) or 'nothing'}", *does])


@dataclass(frozen=True, slots=True)
class Unusable:
    """The policy is not valid."""

    reason: str
    """What is wrong, where, and what to do about it."""
