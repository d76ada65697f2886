"""When may a gang that has its quota start, and what is done about missing nodes? The AdmissionCheck's parameters.

Operators write them as a ReclaimPolicy, which an AdmissionCheck names. A check that names none has all defaults: it
waits for pods to terminate and for the gang to fit, reclaims idle GPUs, and requests no nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class Amount(StrEnum):
    """What a ProvisioningRequest requests."""

    GANG = "Gang"
    """All of it. Right for classes that subtract what is free already, as those of Cluster Autoscaler do: for a
    request of the missing 8 of 16 GPUs they would find the other 8, which are free, and add nothing."""
    MISSING = "Missing"
    """Only the pods that fit no node. Right for classes that add nodes for everything that is requested."""


class MergePolicy(StrEnum):
    """Which PodSets are requested as one."""

    IDENTICAL_TEMPLATES = "IdenticalPodTemplates"
    IDENTICAL_REQUIREMENTS = "IdenticalWorkloadSchedulingRequirements"


class Withdraw(StrEnum):
    """What happens to an open request once the gang fits without it."""

    WHEN_FREE = "WhenFree"
    NEVER = "Never"


class AtLimit(StrEnum):
    """What happens when the last request that may be made has failed, too."""

    HOLD = "Hold"
    """The gang keeps its quota and waits for capacity."""
    YIELD = "Yield"
    """The gang releases its quota if another Workload is admitted with it."""


class OnCapacityRevoked(StrEnum):
    """What happens when the provider takes back the nodes of a gang that has started."""

    EVICT = "Evict"
    IGNORE = "Ignore"


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
class LabelFromDetail:
    """A label that the gang's nodes must have, and the provisioning class detail that has its value."""

    key: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningPolicy:
    """How missing nodes are requested."""

    provisioning_class: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    managed_resources: frozenset[str] = frozenset()
    """Only PodSets that request one of these are provisioned for; empty means all of them."""
    amount: Amount = Amount.GANG
    merge_policy: MergePolicy | None = None
    node_selector: tuple[LabelFromDetail, ...] = ()
    after: timedelta = timedelta(0)
    """How long after the quota was reserved capacity may get free by itself or by reuse before nodes are requested."""
    withdraw: Withdraw = Withdraw.WHEN_FREE
    retry: Retry = Retry()
    at_limit: AtLimit = AtLimit.HOLD
    on_capacity_revoked: OnCapacityRevoked = OnCapacityRevoked.EVICT


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
    """None: nodes are never requested."""

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
