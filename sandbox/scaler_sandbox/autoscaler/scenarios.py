"""How are ProvisioningRequests answered? What a test or a demo chooses, by class and by name.

The first scenario that a request matches counts. One that matches none is not processed, as in a cluster whose
autoscaler does not know the class.

In labels and details, `{id}` stands for an identifier of this request: it distinguishes its nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase

from scaler.kube.scheduling import Taint

CHECK_CAPACITY = "check-capacity.autoscaling.x-k8s.io"
"""Books what is free and never adds a node."""
BEST_EFFORT_ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
"""Adds nodes for all pods that fit nowhere, or none."""
QUEUED_PROVISIONING = "queued-provisioning.gke.io"
"""Adds nodes for all pods, whatever is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The nodes of a node group."""

    name: str = "gpu-pool"
    """What their names begin with."""
    gpus: int = 8
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()

    def of(self, request_id: str) -> "Shape":
        """The shape as nodes have it that are added for that request."""
        return replace(self, labels=filled_in(self.labels, request_id))


def filled_in(texts: Mapping[str, str], request_id: str) -> dict[str, str]:
    """The texts, with what only that request has in place of `{id}`."""
    return {key: text.replace("{id}", request_id) for key, text in texts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What becomes of a request. Durations that are None never come to an end."""

    provisioning_class: str = "*"
    """A pattern."""
    requests: str = "*"
    """A pattern of `namespace/name`."""
    accepted_after: timedelta | None = timedelta(seconds=1)
    tells_eta: bool = False
    """Whether it says at once when nodes are expected, as GKE does."""
    provisioned_after: timedelta | None = timedelta(seconds=60)
    """The time from Accepted until nodes come, or until free ones are looked for."""
    shape: Shape | None = None
    """The nodes to add; None adds none, and waits until the pods fit what is free."""
    counts_free: bool = True
    """Whether pods may go where GPUs are free already, or get nodes of their own."""
    failures: int = 0
    """The number of requests that fail first, instead of being provisioned."""
    failure: str = "the cloud has no such nodes left"
    booked_for: timedelta | None = timedelta(minutes=10)
    """The time from Provisioned until BookingExpired. Source: Cluster Autoscaler, defaultReservationTime."""
    details: Mapping[str, str] = field(default_factory=dict)
    """`status.provisioningClassDetails` once it is provisioned."""

    @property
    def key(self) -> tuple[str, str]:
        return self.provisioning_class, self.requests

    def concerns(self, provisioning_class: str, name: str) -> bool:
        """Whether it is for requests of this class and this `namespace/name`."""
        return fnmatchcase(provisioning_class, self.provisioning_class) and fnmatchcase(name, self.requests)


_USUAL = (
    Scenario(provisioning_class=CHECK_CAPACITY, provisioned_after=timedelta(0)),
    Scenario(provisioning_class=BEST_EFFORT_ATOMIC, shape=Shape()),
    Scenario(
        provisioning_class=QUEUED_PROVISIONING,
        shape=Shape(name="queued", labels={"autoscaling.gke.io/provisioning-request": "{id}"}),
        counts_free=False,
        tells_eta=True,
        details={"ResizeRequestName": "{id}"},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerConfig:
    """What the autoscaler does."""

    scenarios: Sequence[Scenario] = _USUAL

    @classmethod
    def fast(cls) -> "AutoscalerConfig":
        """The usual classes, with short waits."""
        quick = timedelta(seconds=0.3), timedelta(seconds=1)
        return cls(scenarios=[replace(each, accepted_after=quick[0], provisioned_after=quick[1]) for each in _USUAL])

    def scenario(self, provisioning_class: str, name: str) -> Scenario | None:
        """What becomes of a request of this class and this `namespace/name`; None where no scenario matches."""
        return next((each for each in self.scenarios if each.concerns(provisioning_class, name)), None)
