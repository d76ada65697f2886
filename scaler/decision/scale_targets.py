"""What does a ScaledObject scale, and how far is that? All that a decision rests on but samples and the policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scaler.decision.annotated_status import annotated_status
from scaler.decision.candidate import (
    HistoryLine,
    lines_of,
    set_back_of,
    suspended_at,
    waking_since,
)
from scaler.decision.decision import Quiet
from scaler.errors import MetadataError
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Overrides
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.remote import RemoteAnswer
from scaler.idleness.verdict import Unknown
from scaler.kube.discovery import Scale
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.idlegpu import ScalableWorkload, ScalableWorkloadStatus
from scaler.kube.objects.keda import ScaledObject, is_scalable_workload
from scaler.samples.wake_queries import WakeQueries
from scaler.targets.cluster_state import ClusterState
from scaler.targets.owned_pods import OwnedPods
from scaler.targets.scale_subresources import ScaleSubresources
from scaler.targets.target_state import Phase, TargetState, WakeCause, WakeRequest, state_of, state_of_scale
from scaler.targets.workloads import (
    NotifyTargets,
    grant_of,
    hook_run_of,
    keep_overrides,
    marks_of,
    notified_at,
    wake_request,
    when_free_request,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    state: TargetState
    pods: Sequence[GpuPod] = ()
    annotations: tuple[tuple[str, Overrides], ...] = ()
    """The policy fields that annotations set, by the object that carries them, in the order of precedence."""
    until: datetime | None = None
    """When its state changes by itself, as far as that is known."""
    remote: RemoteAnswer | None = None
    """What the cluster says to which it is dispatched; None where its pods are here."""
    quiet: Quiet | None = None
    """What is known of its quiet from before."""
    demand_doubt: Unknown | None = None
    """Why it is not known whether demand queries ask for it."""


def unknown_target(doubt: Unknown) -> ScaleTarget:
    """A target of which nothing else counts than why it is not known."""
    return ScaleTarget(state=TargetState(desired_replicas=1, phase=Phase.STARTING, doubt=doubt))


@dataclass(kw_only=True)
class ScaleTargets:
    """The targets of ScaledObjects, as the copies of objects and the demand queries show them."""

    cluster: ClusterState
    scales: ScaleSubresources
    demands: WakeQueries
    notified_by: NotifyTargets
    max_view_age: timedelta
    max_gap: timedelta
    """How long samples may be missing."""
    led_until: Callable[[], datetime | None]
    """The time up to which there was a leader before this process ran, which kept records."""

    def __post_init__(self) -> None:
        self._owned_pods = OwnedPods(self.cluster, self.scales)

    def of(
        self, scaled_object: ScaledObject, at: datetime, given: ScalableWorkload | Scale | None = None
    ) -> ScaleTarget:
        """`given` is in place of what is there of its target."""
        key = scaled_object.metadata.key
        doubt = self.cluster.doubt_in(scaled_object.metadata.namespace, self.max_view_age)
        demand, demand_doubt = self.demands.of(key), self.demands.doubt_of(key)
        target = given or self._found(scaled_object)
        record = target if isinstance(target, ScalableWorkload) else self._record_of(scaled_object, at)
        found = self._read(scaled_object, target, record, demand, at) if doubt is None else unknown_target(doubt)
        return replace(found, quiet=self._recorded_quiet(record.status), demand_doubt=demand_doubt)

    def _record_of(self, scaled_object: ScaledObject, at: datetime) -> ScalableWorkload:
        """The record of its target; until the leader has made one, the status that 0.1.0 has written in annotations."""
        found = (
            None if is_scalable_workload(scaled_object.spec.scale_target_ref) else self.cluster.record_of(scaled_object)
        )
        if found is not None and found.status.state:
            return found
        return ScalableWorkload(ObjectMeta(), status=annotated_status(scaled_object.metadata.annotations, at))

    def _found(self, scaled_object: ScaledObject) -> ScalableWorkload | Scale | Unknown:
        namespace, reference = scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref
        if not is_scalable_workload(reference):
            return self.scales.of(namespace, reference)
        missing = f"ScalableWorkload {namespace}/{reference.name} does not exist; create it or correct scaleTargetRef"
        found = self.cluster.scalable_workloads.get(namespace, reference.name)
        return Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=missing) if found is None else found

    def _read(
        self,
        scaled_object: ScaledObject,
        target: ScalableWorkload | Scale | Unknown,
        record: ScalableWorkload,
        demand: str,
        at: datetime,
    ) -> ScaleTarget:
        """What the target and the ScaledObject say, with who notifies its owner."""
        annotations, where = (
            scaled_object.metadata.annotations,
            f"{scaled_object.resource.kind} {scaled_object.metadata.name}",
        )
        suspended_at = target.status.suspended_at if isinstance(target, ScalableWorkload) else None
        notified_by = self.notified_by.of(annotations)
        wake = wake_request(annotations, where=where, suspended_at=suspended_at)
        wake = wake or (WakeRequest(WakeCause.DEMAND, demand) if demand else None)
        when_free = when_free_request(annotations, where=where)
        try:
            keep = where, keep_overrides(annotations, where=where)
            match target:
                case Unknown():
                    found = unknown_target(target)
                case ScalableWorkload():
                    found = self._scalable(target, wake, when_free, at)
                case Scale():
                    found = self._scaled(scaled_object, target, record.status, wake, when_free)
        except MetadataError as error:
            return unknown_target(Unknown(reason=UnknownReason.INVALID_POLICY, message=str(error)))
        state = found.state
        if demand or notified_by:
            delivered_at = notified_at(marks_of(record), state.warned_at, notified_by) if notified_by else None
            state = replace(state, demand=demand, notified_by=notified_by, notified_at=delivered_at)
        return replace(found, state=state, annotations=(keep, *found.annotations))

    def _scalable(
        self, scalable: ScalableWorkload, wake: WakeRequest | None, when_free: str, at: datetime
    ) -> ScaleTarget:
        target = self.cluster.situation(scalable, wake=wake, when_free=when_free, at=at)
        history = scalable.status.history
        annotated = {f"ScalableWorkload {scalable.metadata.name}": scalable.metadata.annotations}
        if (workload := target.workload) is not None:
            annotated[f"{workload.resource.kind} {workload.name}"] = workload.annotations
        set_back = set_back_of(lines_of(each for each in history if b'"times"' in bytes(each)))
        grant = grant_of(scalable) if target.grant else None
        return ScaleTarget(
            state=_since_asked(replace(state_of(target), set_back=set_back), lambda: lines_of(history)),
            pods=target.pods,
            annotations=tuple(
                (where, keep_overrides(found, where=where)) for where, found in annotated.items() if found
            ),
            until=None if grant is None else grant.expires_at,
            remote=target.remote if isinstance(target.remote, RemoteAnswer) else None,
        )

    def _scaled(
        self,
        scaled_object: ScaledObject,
        scale: Scale,
        status: ScalableWorkloadStatus,
        wake: WakeRequest | None,
        when_free: str,
    ) -> ScaleTarget:
        """Anything that is no ScalableWorkload: only its scale and its pods are known."""
        namespace, reference = scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref
        try:
            pods = self._owned_pods.of(namespace, reference, scale)
        except ValueError as error:
            pods = Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=f"selector of {reference}: {error}")
        if isinstance(pods, Unknown):
            return unknown_target(pods)
        history = lines_of(status.history)
        state = state_of_scale(
            replicas=scale.replicas,
            pods=pods,
            wake_request=wake,
            when_free_request=when_free,
            warned_at=status.warned_at,
            suspended_at=suspended_at(history, is_down=not scale.replicas),
            hook_run=hook_run_of(status.before_suspend),
        )
        return ScaleTarget(
            state=_since_asked(replace(state, set_back=set_back_of(history)), lambda: history), pods=pods
        )

    def _recorded_quiet(self, status: ScalableWorkloadStatus) -> Quiet | None:
        """The quiet that its status tells of, as long as there was a leader and samples may be missing after that."""
        led_until = self.led_until()
        if led_until is None or status.idle_since is None:
            return None
        return Quiet(since=status.idle_since, at_least=status.idle_at_least, until=led_until + self.max_gap)


def _since_asked(state: TargetState, history: Callable[[], Sequence[HistoryLine]]) -> TargetState:
    """The state with a start by the history where no pod says since when it does not run (there may be none)."""
    if state.phase is not Phase.STARTING or state.starting_since is not None:
        return state
    return replace(state, starting_since=waking_since(history()))
