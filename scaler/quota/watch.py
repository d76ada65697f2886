"""Kueue's quota as it stands in the API: one snapshot, fed by the watches of everything that it depends on.

Laws:

* No plan is made on a part of the objects. `look` gives the snapshot only while every kind is listed completely and
  kept up to date, and otherwise the reason why it is not synced.
* Without Kueue there is no quota, and that is a reason, too.
* A copy of some namespaces is never enough: quota is shared by all of them.

Subscribe before the reflectors run: filing fifty thousand Workloads at once takes a second, and while they are listed
other tasks run in between.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scaler.kube.object_cache import Change
from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NAMESPACE,
    RESOURCE_FLAVOR,
)
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflecting, Reflector, State
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import WatchTiming
from scaler.quota.from_objects.snapshot_updater import SnapshotUpdater
from scaler.quota.model import QuotaWorkload
from scaler.quota.snapshot import Snapshot
from scaler.targets.cluster_state import seconds_since_heard

_ESSENTIAL = ("ClusterQueues", "LocalQueues", "ResourceFlavors", "Workloads")
"""The kinds without which there is no Kueue. Of others that the API does not know there are simply no objects."""


@dataclass(frozen=True, slots=True)
class NotSynced:
    """The objects are not known, completely and now; the reason is fit for an operator's eyes."""

    reason: str


def limited_to_namespaces(namespaces: Collection[str], what_is: str) -> str:
    """Why these namespaces are not enough for what all share; empty where all are watched."""
    if not namespaces:
        return ""
    are = f"namespace {', '.join(namespaces)} is" if len(namespaces) == 1 else f"namespaces {', '.join(namespaces)} are"
    return f"only {are} watched, but {what_is} shared by all; watch all of them"


def disconnected(copies: Mapping[str, Reflector[Any]], *, states: tuple[type[State], ...]) -> str:
    found = [
        f"{name} ({each.state.message})"
        for name, each in copies.items()
        if isinstance(each.state, states) and not isinstance(each.state, Reflecting)
    ]
    return f"not synced: {', '.join(found)}" if found else ""


def outdated(age_s: float, max_age: timedelta) -> str:
    limit = max_age.total_seconds()
    return f"last response of the API server {age_s:.0f} s ago; the limit is {limit:.0f} s" if age_s > limit else ""


class QuotaReflectors:
    """The live copies that only quota needs. That of the Workloads is kept anyway."""

    def __init__(self, transport: KubeTransport, *, timing: WatchTiming = WatchTiming()) -> None:  # noqa: B008 (immutable)
        self.flavors = Reflector(transport, RESOURCE_FLAVOR, kube.ResourceFlavor, timing=timing)
        self.checks = Reflector(transport, ADMISSION_CHECK, kube.AdmissionCheck, timing=timing)
        self.cohorts = Reflector(transport, COHORT, kube.Cohort, timing=timing)
        self.cluster_queues = Reflector(transport, CLUSTER_QUEUE, kube.ClusterQueue, timing=timing)
        self.local_queues = Reflector(transport, LOCAL_QUEUE, kube.LocalQueue, timing=timing)
        self.namespaces = Reflector(transport, NAMESPACE, kube.Namespace, timing=timing)

    @property
    def all(self) -> list[Reflector[Any]]:
        return [self.flavors, self.checks, self.cohorts, self.cluster_queues, self.local_queues, self.namespaces]


class QuotaWatch:
    """The snapshot of a cluster. `clock` is compared with the end of backoffs; `confined_to` are the namespaces that
    this program is confined to, if it is."""

    def __init__(
        self,
        reflectors: QuotaReflectors,
        workloads: Reflector[Workload],
        *,
        clock: Callable[[], datetime],
        max_age: timedelta,
        fair_sharing: bool = False,
        boosts: bool = False,
        excluded: tuple[str, ...] = (),
        confined_to: Collection[str] = (),
    ) -> None:
        self._updater = SnapshotUpdater(Snapshot(fair_sharing=fair_sharing), boosts=boosts, excluded=excluded)
        self._clock = clock
        self._max_age = max_age
        self._confined_to = confined_to
        self._needed: dict[str, Reflector[Any]] = {
            "ClusterQueues": reflectors.cluster_queues,
            "LocalQueues": reflectors.local_queues,
            "ResourceFlavors": reflectors.flavors,
            "Cohorts": reflectors.cohorts,
            "AdmissionChecks": reflectors.checks,
            "Namespaces": reflectors.namespaces,
            "Workloads": workloads,
        }
        for reflector in self._needed.values():
            self._subscribe(reflector)

    def look(self) -> Snapshot | NotSynced:
        """The snapshot, where it is complete; it goes on to change with the cluster."""
        reason = (
            limited_to_namespaces(self._confined_to, "quota is")
            or self._incomplete()
            or self._unreadable()
            or outdated(self.age_s, self._max_age)
        )
        if reason:
            return NotSynced(reason)
        self._updater.wake(self._clock())
        return self._updater.snapshot

    def if_active(self, workload: Workload) -> QuotaWorkload | None:
        """The Workload as it would wait for quota if it was active; None where it has finished."""
        return self._updater.if_active(workload)

    @property
    def age_s(self) -> float:
        """Seconds since the last response for the quietest of the kinds; infinite before all are listed."""
        return max(map(seconds_since_heard, self._needed.values()))

    # ---------------------------------------------------------------------------------------------------- subscriptions

    def _subscribe(self, reflector: Reflector[Any]) -> None:
        reflector.subscribe(self._heard)
        for obj in reflector.items():
            self._updater.put(obj, now=self._clock())

    def _heard(self, change: Change[Any]) -> None:
        if change.new is not None:
            self._updater.put(change.new, now=self._clock())
        elif change.old is not None:
            self._updater.drop(change.old)

    # ------------------------------------------------------------------------------------------------- why not synced

    def _incomplete(self) -> str:
        absent = [name for name in _ESSENTIAL if isinstance(self._needed[name].state, Absent)]
        if absent:
            return f"Kueue (kueue.x-k8s.io/v1beta2) is not installed: the API does not serve {', '.join(absent)}"
        return disconnected(self._needed, states=(Denied, Disconnected))

    def _unreadable(self) -> str:
        """An object of the administrators that cannot be read could mean anything for the quota of all."""
        found = [
            f"{name} {'/'.join(part for part in key if part)}: {why}"
            for name, each in self._needed.items()
            if name != "Workloads"
            for key, why in each.undecodable.items()
        ]
        return f"cannot be read: {'; '.join(found)}" if found else ""
