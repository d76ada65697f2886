"""What does a ScaledObject scale, and how far is that? All that a decision rests on but samples and the policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scaler.decision.candidate import (
    HistoryLine,
    history_of,
    lines_of,
    quiet_of,
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
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.samples.wake_queries import WakeQueries
from scaler.targets.cluster_state import ClusterState
from scaler.targets.owned_pods import OwnedPods
from scaler.targets.scale_subresources import ScaleSubresources, is_scalable_workload
from scaler.targets.target_state import Phase, TargetState, WakeCause, WakeRequest, state_of, state_of_scale
from scaler.targets.workloads import (
    NotifyTargets,
    annotated_hook_run,
    grant_of,
    keep_overrides,
    notified_at,
    wake_request,
    warned_at,
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
    """Up to when there was a leader before this process ran, which kept records."""

    def __post_init__(self) -> None:
        self._owned_pods = OwnedPods(self.cluster, self.scales)

    def of(
        self, scaled_object: ScaledObject, at: datetime, given: ScalableWorkload | Scale | None = None
    ) -> ScaleTarget:
        """`given` is in place of what is there of its target."""
        target = given or self._found(scaled_object)
        doubt = self.cluster.doubt_in(scaled_object.metadata.namespace, self.max_view_age)
        found = self._read(scaled_object, target, at) if doubt is None else unknown_target(doubt)
        return replace(found, quiet=self._recorded_quiet(scaled_object, target))

    def _found(self, scaled_object: ScaledObject) -> ScalableWorkload | Scale | Unknown:
        namespace, reference = scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref
        if not is_scalable_workload(reference):
            return self.scales.of(namespace, reference)
        missing = f"ScalableWorkload {namespace}/{reference.name} does not exist; create it or correct scaleTargetRef"
        found = self.cluster.scalable_workloads.get(namespace, reference.name)
        return Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=missing) if found is None else found

    def _read(
        self, scaled_object: ScaledObject, target: ScalableWorkload | Scale | Unknown, at: datetime
    ) -> ScaleTarget:
        """What the target and the ScaledObject say, with who tells its owner; the marks are on what has its history."""
        metadata, notified_by = scaled_object.metadata, self.notified_by.of(scaled_object.metadata.annotations)
        where, holder = f"{scaled_object.resource.kind} {metadata.name}", metadata
        try:
            keep = where, keep_overrides(metadata.annotations, where=where)
            match target:
                case Unknown():
                    found = unknown_target(target)
                case ScalableWorkload():
                    found, holder = self._scalable(scaled_object, target, where, at), target.metadata
                case Scale():
                    found = self._scaled(scaled_object, target, where)
        except MetadataError as error:
            return unknown_target(Unknown(reason=UnknownReason.INVALID_POLICY, message=str(error)))
        state, demand = found.state, self.demands.of(metadata.key)
        if demand or notified_by:
            delivered_at = notified_at(holder.annotations, state.warned_at, notified_by) if notified_by else None
            state = replace(state, demand=demand, notified_by=notified_by, notified_at=delivered_at)
        return replace(found, state=state, annotations=(keep, *found.annotations))

    def _scalable(
        self, scaled_object: ScaledObject, scalable: ScalableWorkload, where: str, at: datetime
    ) -> ScaleTarget:
        wake = self._wake(scaled_object, where, scalable.status.suspended_at)
        when_free = when_free_request(scaled_object.metadata.annotations, where=where)
        target = self.cluster.situation(scalable, wake=wake, when_free=when_free, at=at)
        own = f"ScalableWorkload {scalable.metadata.name}"
        annotations, history = (
            [(own, keep_overrides(scalable.metadata.annotations, where=own))],
            scalable.status.history,
        )
        set_back = set_back_of(lines_of(each for each in history if b'"times"' in bytes(each)))
        if (scaled := self.cluster.scaled_metadata(scalable)) is not None and scaled[1].annotations:
            annotations.append((scaled[0], keep_overrides(scaled[1].annotations, where=scaled[0])))
        grant = grant_of(scalable) if target.grant else None
        return ScaleTarget(
            state=_since_asked(replace(state_of(target), set_back=set_back), lambda: lines_of(history)),
            pods=target.pods,
            annotations=tuple(annotations),
            until=None if grant is None else grant.expires_at,
            remote=target.remote if isinstance(target.remote, RemoteAnswer) else None,
        )

    def _scaled(self, scaled_object: ScaledObject, scale: Scale, where: str) -> ScaleTarget:
        """Anything that is no ScalableWorkload: only its scale and its pods are known."""
        namespace, reference = scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref
        try:
            pods = self._owned_pods.of(namespace, reference, scale)
        except ValueError as error:
            pods = Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=f"selector of {reference}: {error}")
        if isinstance(pods, Unknown):
            return unknown_target(pods)
        annotations = scaled_object.metadata.annotations
        history = history_of(annotations)
        state = state_of_scale(
            replicas=scale.replicas,
            pods=pods,
            wake_request=self._wake(scaled_object, where, None),
            when_free_request=when_free_request(annotations, where=where),
            warned_at=warned_at(annotations),
            suspended_at=suspended_at(history, is_down=not scale.replicas),
            hook_run=annotated_hook_run(annotations),
        )
        return ScaleTarget(
            state=_since_asked(replace(state, set_back=set_back_of(history)), lambda: history), pods=pods
        )

    def _wake(self, scaled_object: ScaledObject, where: str, suspended_at: datetime | None) -> WakeRequest | None:
        """What requests that its target runs again; None where nothing does."""
        own = wake_request(scaled_object.metadata.annotations, where=where, suspended_at=suspended_at)
        demand = self.demands.of(scaled_object.metadata.key)
        return own or (WakeRequest(WakeCause.DEMAND, demand) if demand else None)

    def _recorded_quiet(self, scaled_object: ScaledObject, target: ScalableWorkload | Scale | Unknown) -> Quiet | None:
        """The quiet by its status or its history, which owners can write. It is true for as long as there was a leader,
        and as samples may be missing after that."""
        if (led_until := self.led_until()) is None:
            return None
        until = led_until + self.max_gap
        if not is_scalable_workload(scaled_object.spec.scale_target_ref):
            return quiet_of(history_of(scaled_object.metadata.annotations), until=until)
        if not isinstance(target, ScalableWorkload) or target.status.idle_since is None:
            return None
        return Quiet(since=target.status.idle_since, at_least=target.status.idle_at_least, until=until)


def _since_asked(state: TargetState, history: Callable[[], Sequence[HistoryLine]]) -> TargetState:
    """Where no pod says since when it does not run (there may be none), since when the history does."""
    if state.phase is not Phase.STARTING or state.starting_since is not None:
        return state
    return replace(state, starting_since=waking_since(history()))
