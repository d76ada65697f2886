"""Workloads with reserved quota and an AdmissionCheck of ours, as observed → what is to be written. Pure.

    plan(AdmissionInputs) → AdmissionPlan: check changes and provisioning steps

The leader executes the plan (`controller.py`). `pending`, `explain` and HTTP show the same plan, on any replica.

| step                                                 | where                              |
|------------------------------------------------------|------------------------------------|
| which Workloads fit which nodes                      | `scaler/placement/reservations.py` |
| what to request of autoscalers                       | `provisioning/lifecycle.py`        |
| the first one again, where that changes what counts  |                                    |
| which Workload Kueue admits if one returns its quota | `next_admittable.py`               |
| what each check state is                             | `check.py`                         |

The same inputs give the same plan. What only the leader knows (writes without an answer, refusals of the API server) is
part of the inputs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from scaler.admission.check import (
    CheckChange,
    CheckInputs,
    CheckReason,
    CheckState,
    NoChange,
    ReservedWorkload,
    TerminatingPods,
    decide,
)
from scaler.admission.checks import PolicyOrReason
from scaler.admission.next_admittable import QuotaTree, next_admittable
from scaler.admission.policy import CheckPolicy, ProvisioningPolicy, Unusable
from scaler.admission.provisioning.lifecycle import (
    NO_STEP,
    NodeNeed,
    ObservedRequest,
    ProvisioningInputs,
    ProvisioningStep,
    ReservationStage,
    StepKind,
    next_step,
)
from scaler.admission.remote_copies import words
from scaler.admission.workload import PodDemands, on_booked_nodes
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import condition
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node, ProvisioningRequest
from scaler.placement.capacity import Capacity, PodPlacement
from scaler.placement.requests import (
    Blocked,
    Fits,
    Insufficient,
    PlacementRequest,
    PlacementResult,
    ReservationQueue,
)
from scaler.placement.reservations import place_in_order
from scaler.quota.watch import NotSynced

CheckKey = tuple[str, str]
"""(key of the Workload, name of the AdmissionCheck)."""
_NOT_PLANNED = NoChange("not planned")
_CONSIDERED = "idle workloads may be suspended for it, which is not decided yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWorkload:
    """A Workload with reserved quota and one AdmissionCheck of ours: as observed and, in a plan, what follows."""

    workload: Workload
    check: str
    """Name of the AdmissionCheck."""
    policy: PolicyOrReason
    policy_name: str = ""
    """The ReclaimPolicy that the check names; empty where it names none."""
    reserved: ReservedWorkload
    runs_elsewhere: bool = False
    """Whether another cluster runs it (MultiKueue)."""
    demands: PodDemands | str = ""
    """What its pods need, or why that is not known; of one that waits."""
    terminating: tuple[TerminatingPods, ...] = ()
    """Pods of the Workloads that released quota for it, where its policy waits for these."""
    has_earlier_run: bool = False
    """Whether it was evicted so recently that its pods from before may not be seen to terminate yet."""
    reclaim: str = ""
    """The reclaim plan that frees GPUs for it, in words; empty where there is none."""
    remote_copy: str | Unknown = ""
    """Why no workload is suspended and no node is requested for it, or that this is not known, of a remote copy of
    MultiKueue; empty where that may be."""
    is_reclaim_pending: bool = False
    """Whether it is not decided yet if idle workloads are suspended for it."""
    provisioning: ProvisioningInputs | None = None
    """What nodes are requested by; None where none are requested for it, nor were."""
    requests: Mapping[str, ProvisioningRequest] = field(default_factory=dict)
    """Its ProvisioningRequests, made for this check, by name."""
    observed: tuple[ObservedRequest, ...] = ()
    """These requests, as the life-cycle needs them."""
    refused: str = ""
    """Why its requests are not written for a while; empty where they are."""
    quota_tree: QuotaTree | None = None
    """The tree of one that may return its quota."""
    placement: PlacementResult | None = None
    step: ProvisioningStep = NO_STEP
    inputs: CheckInputs = field(default_factory=CheckInputs)
    change: CheckChange | NoChange = _NOT_PLANNED

    @property
    def key(self) -> str:
        """`namespace/name` of the Workload."""
        return self.reserved.key

    @property
    def uid(self) -> str:
        return self.reserved.uid

    @property
    def name(self) -> CheckKey:
        return self.key, self.check

    @property
    def reserved_at(self) -> datetime | None:
        return self.reserved.reserved_at

    @property
    def needs_placement(self) -> bool:
        """Whether it is checked that all its pods fit on nodes."""
        is_checked = self.reserved.waits and not self.runs_elsewhere and isinstance(self.demands, PodDemands)
        return is_checked and isinstance(self.policy, CheckPolicy) and self.policy.require_fit

    @property
    def may_reuse(self) -> bool:
        """Whether idle workloads may be suspended for it."""
        return isinstance(self.policy, CheckPolicy) and self.policy.reuse and not self.remote_copy

    @property
    def lacks_nodes(self) -> bool:
        """Whether it does not fit, and no pod that terminates now changes that."""
        return isinstance(self.placement, Insufficient)

    @property
    def missing(self) -> Mapping[str, int]:
        """Pods by PodSet that fit no node."""
        return self.placement.missing if isinstance(self.placement, Insufficient) else {}

    @property
    def awaits_nodes(self) -> bool:
        """Whether nodes were requested for it that may still come."""
        return self.step.is_coming

    @property
    def is_pending(self) -> bool:
        return isinstance(self.change, CheckChange) and self.change.state is CheckState.PENDING

    @property
    def provisioning_policy(self) -> ProvisioningPolicy | None:
        """How nodes are requested; None where they are not."""
        if self.remote_copy and isinstance(self.remote_copy, str):
            return None
        return self.policy.provisioning if isinstance(self.policy, CheckPolicy) else None

    @property
    def may_yield(self) -> bool:
        """Whether it returns its quota, were there a Workload that can use it."""
        return self.step.is_yielding and self.reserved.waits

    def placement_request(self) -> PlacementRequest | None:
        """What all its pods need of the nodes; None where that is not checked.

        Its pods that are on nodes while it waits are from before its eviction: they hold places until they terminate.
        """
        policy, demands, reserved_at = self.policy, self.demands, self.reserved_at
        if not (self.needs_placement and isinstance(policy, CheckPolicy)):
            return None
        if not isinstance(demands, PodDemands) or reserved_at is None:
            return None
        step, label = self.step, policy.pin_label
        return PlacementRequest(
            key=self.key,
            uid=self.uid,
            demands=on_booked_nodes(demands.demands, step.patches),
            at=reserved_at,
            is_booked=step.is_booked,
            awaits_nodes=step.is_coming and not step.is_late,
            waits_for_pods=self.has_earlier_run or bool(self.check_inputs().awaited),
            may_ask=policy.provisioning is not None,
            pin_label=label if label not in demands.selected else "",
        )

    def check_inputs(self) -> CheckInputs:
        """What the check state depends on, but for what other Workloads and nodes add to it."""
        demands = self.demands
        return CheckInputs(
            problem=self.policy.reason if isinstance(self.policy, Unusable) else "",
            terminating=self.terminating,
            requires_fit=not isinstance(self.policy, CheckPolicy) or self.policy.require_fit,
            runs_elsewhere=self.runs_elsewhere,
            capacity_unknown=demands if isinstance(demands, str) else "",
            verdict=self.placement,
            provisioning=self.step,
            plan=self.reclaim,
            remote_copy=words(self.remote_copy),
            note=demands.note if isinstance(demands, PodDemands) else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionInputs:
    """All that a plan depends on."""

    at: datetime
    capacity: Capacity | NotSynced
    workloads: tuple[CheckedWorkload, ...] = ()
    without_quota: tuple[CheckedWorkload, ...] = ()
    """Workloads that have lost their quota or our check, and still have ProvisioningRequests."""
    released: tuple[PlacementRequest, ...] = ()
    """The placements of Workloads whose pods may start at any moment and are not all on nodes."""
    stuck: tuple[PodPlacement, ...] = ()
    """What pods hold that should have terminated long ago."""
    terminating_on: Mapping[str, Sequence[TerminatingPods]] = field(default_factory=dict)
    """Pods that terminate, by node."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    unknown_requests: str = ""
    """Why ProvisioningRequests are not known; empty where they are."""

    def reservation_queue(self, workloads: Iterable[CheckedWorkload]) -> ReservationQueue | NotSynced:
        """All Workloads that need nodes, and what these have free. One with two checks is in it once."""
        if isinstance(self.capacity, NotSynced):
            return self.capacity
        waiting: dict[str, PlacementRequest] = {}
        for request in (each.placement_request() for each in workloads):
            if request is not None:
                waiting.setdefault(request.key, request)
        if not waiting:
            return ReservationQueue(capacity=self.capacity)
        return ReservationQueue(
            capacity=self.capacity,
            held=tuple(each for each in self.released if each.key not in waiting),
            evicted=tuple(each for each in self.released if each.key in waiting),
            waiting=tuple(waiting.values()),
            overdue=self.stuck,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPlan:
    """What is to be written, and why."""

    at: datetime
    unknown: str = ""
    """Why it is not known what nodes have free; empty where it is."""
    unknown_requests: str = ""
    """Why ProvisioningRequests are not known; empty where they are."""
    workloads: tuple[CheckedWorkload, ...] = ()
    without_quota: tuple[CheckedWorkload, ...] = ()
    """Workloads that have lost their quota or our check, and whose ProvisioningRequests are to be removed."""

    @property
    def changes(self) -> list[tuple[CheckedWorkload, CheckChange]]:
        """What check states are to be."""
        return [(each, each.change) for each in self.workloads if isinstance(each.change, CheckChange)]

    @property
    def pending(self) -> tuple[CheckedWorkload, ...]:
        return tuple(each for each in self.workloads if each.is_pending)

    @property
    def provisioning_steps(self) -> list[CheckedWorkload]:
        """Workloads whose ProvisioningRequests are to be created or removed."""
        found = (*self.workloads, *self.without_quota)
        return [each for each in found if each.step.kind in (StepKind.CREATE, StepKind.REMOVE)]

    @property
    def reasons(self) -> Counter[CheckReason]:
        """How many Workloads wait, by reason."""
        return Counter(change.because for each, change in self.changes if each.is_pending)


def plan(inputs: AdmissionInputs) -> AdmissionPlan:
    """What is to be written. Some tenths of a second for a thousand Workloads that need nodes."""
    found = tuple(plan_step(each, inputs) for each in inputs.workloads)
    if not isinstance(inputs.capacity, NotSynced):
        placed = _placed(found, inputs)
        found = tuple(plan_step(each, inputs) for each in placed)
        if any(_counts_on(after) != _counts_on(before) for after, before in zip(found, placed, strict=True)):
            found = _placed(found, inputs)
    trees = [(each.key, each.quota_tree) for each in found if each.may_yield and each.quota_tree is not None]
    admittable = next_admittable(trees, inputs.at)
    decided = tuple(_decided(each, admittable.get(each.key, ""), inputs) for each in found)
    unknown = inputs.capacity.reason if isinstance(inputs.capacity, NotSynced) else ""
    without_quota = tuple(plan_step(each, inputs) for each in inputs.without_quota)
    return AdmissionPlan(
        at=inputs.at,
        unknown=unknown,
        unknown_requests=inputs.unknown_requests,
        workloads=decided,
        without_quota=without_quota,
    )


def _placed(workloads: Sequence[CheckedWorkload], inputs: AdmissionInputs) -> tuple[CheckedWorkload, ...]:
    queue = inputs.reservation_queue(workloads)
    if isinstance(queue, NotSynced) or not queue.waiting:
        return tuple(workloads)
    found = place_in_order(queue)
    return tuple(replace(each, placement=found.get(each.key) if each.needs_placement else None) for each in workloads)


# -------------------------------------------------------------------------------------------------- provisioning steps


def plan_step(each: CheckedWorkload, inputs: AdmissionInputs) -> CheckedWorkload:
    """The Workload with what is to be done about its requests."""
    step = _step(each, inputs)
    return each if step is each.step else replace(each, step=step)


def _step(each: CheckedWorkload, inputs: AdmissionInputs) -> ProvisioningStep:
    """What is to be done about its requests; nothing where its policy cannot be followed just now."""
    if each.provisioning is None or isinstance(each.policy, Unusable | NotSynced):
        return NO_STEP
    policy = each.provisioning_policy
    lacking = each.provisioning.lacking(each.missing, each.reclaim or _considered(each))
    if inputs.unknown_requests:
        return _stuck(inputs.unknown_requests) if _lacks_nodes(lacking, policy, inputs.at) else NO_STEP
    step = next_step(lacking, each.observed, policy, inputs.at)
    refused = each.refused or (each.remote_copy.message if isinstance(each.remote_copy, Unknown) else "")
    if refused and step.kind in (StepKind.CREATE, StepKind.REMOVE):
        return _stuck(refused)
    return _with_patches(step)


def _stuck(why: str) -> ProvisioningStep:
    return ProvisioningStep(kind=StepKind.STUCK, message=why)


def _lacks_nodes(each: ProvisioningInputs, policy: ProvisioningPolicy | None, now: datetime) -> bool:
    is_waiting = policy is not None and each.stage is ReservationStage.WAITING
    return is_waiting and policy is not None and each.need(policy, now) is NodeNeed.NODES


def _considered(each: CheckedWorkload) -> str:
    return _CONSIDERED if each.is_reclaim_pending and each.may_reuse and each.lacks_nodes else ""


def _with_patches(step: ProvisioningStep) -> ProvisioningStep:
    if step.request is None or not step.is_booked:
        return step
    message = "; ".join((step.message, *(f"left out: {left_out}" for left_out in step.request.left_out)))
    return replace(step, message=message, patches=step.request.updates)


def _counts_on(each: CheckedWorkload) -> object:
    """What of its step matters for where it fits."""
    step = each.step
    return step.is_booked, step.is_coming and not step.is_late, step.patches


# -------------------------------------------------------------------------------------------------------- check states


def _decided(each: CheckedWorkload, admittable: str, inputs: AdmissionInputs) -> CheckedWorkload:
    if isinstance(each.policy, NotSynced) and each.reserved.waits:
        return replace(each, change=NoChange("its policy is not known yet"))
    found = each.check_inputs()
    if isinstance(inputs.capacity, NotSynced):
        found = replace(found, capacity_unknown=inputs.capacity.reason)
    found = replace(
        found,
        wanted_by=admittable,
        in_the_way=tuple(_in_the_way(each, found, inputs)),
        came_at=_came_at(each, inputs),
    )
    return replace(each, inputs=found, change=decide(each.reserved, found, inputs.at))


def _in_the_way(each: CheckedWorkload, found: CheckInputs, inputs: AdmissionInputs) -> Iterable[TerminatingPods]:
    """Pods that terminate on the nodes where it will fit, by their Workload; those with most of them first."""
    if not isinstance(each.placement, Blocked) or found.awaited:
        return ()
    owners: dict[str, TerminatingPods] = {}
    for node in each.placement.nodes:
        for pods in inputs.terminating_on.get(node, ()):
            known = owners.get(pods.owner)
            owners[pods.owner] = replace(pods, pods=pods.pods + known.pods) if known is not None else pods
    return sorted(owners.values(), key=lambda pods: (-pods.pods, pods.owner))


def _came_at(each: CheckedWorkload, inputs: AdmissionInputs) -> datetime | None:
    """When the last of its nodes got ready, of those created after the request was that is open for it."""
    since = each.step.open_since
    if not isinstance(each.placement, Fits) or since is None:
        return None
    nodes = (inputs.nodes.get(placement.node) for placement in each.placement.placements)
    ready = (_ready_since(node, since) for node in nodes if node is not None)
    return max((at for at in ready if at is not None), default=None)


def _ready_since(node: Node, since: datetime) -> datetime | None:
    """When it got ready, if it was created since: GPU drivers are installed in between."""
    ready, created = condition(node.status.conditions, "Ready"), node.metadata.creation_timestamp
    if created is None or created <= since:
        return None
    changed = ready.last_transition_time if ready is not None else None
    return max(created, changed) if changed is not None else created
