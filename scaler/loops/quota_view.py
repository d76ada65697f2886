"""Kueue's quota as it stands in the API: one snapshot, fed by the watches of everything that it depends on.

Laws:

* Nothing is planned on a part of the truth. `look` gives the snapshot only while every kind is listed completely and
  kept up to date, and otherwise the reason why it is blind.
* Without Kueue there is no quota, and that is a reason, too.
* A copy of some namespaces is never enough: quota is shared by all of them.

Subscribe before the reflectors run: filing fifty thousand Workloads at once takes a second, and while they are listed
the event loop gets its turn in between.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scaler.core.quota.snapshot import Snapshot
from scaler.kube import quota_objects as kube
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.patience import Timing
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflector
from scaler.kube.resources import ADMISSION_CHECK, CLUSTER_QUEUE, COHORT, LOCAL_QUEUE, NAMESPACE, RESOURCE_FLAVOR
from scaler.kube.transport import KubeTransport
from scaler.kueue.quota_snapshot import Filing
from scaler.loops.cluster import silence

_ESSENTIAL = ("ClusterQueues", "LocalQueues", "ResourceFlavors", "Workloads")
"""Without these there is no Kueue. Of other kinds that the API does not know there are simply no objects."""


@dataclass(frozen=True, slots=True)
class Blind:
    """Quota cannot be seen, completely and now; the reason is fit for an operator's eyes."""

    reason: str


def confinement(namespaces: Collection[str], what_is: str) -> str:
    """Why whoever sees only these namespaces knows nothing of what all of them share; empty for one who sees all."""
    if not namespaces:
        return ""
    are = f"namespace {', '.join(namespaces)} is" if len(namespaces) == 1 else f"namespaces {', '.join(namespaces)} are"
    return f"only {are} watched, and {what_is} shared by all; watch all of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaReflectors:
    """The live copies that only quota needs. That of the Workloads is kept anyway."""

    flavors: Reflector[kube.ResourceFlavor]
    checks: Reflector[kube.AdmissionCheck]
    cohorts: Reflector[kube.Cohort]
    cluster_queues: Reflector[kube.ClusterQueue]
    local_queues: Reflector[kube.LocalQueue]
    namespaces: Reflector[kube.Namespace]

    @classmethod
    def of(cls, transport: KubeTransport, *, timing: Timing = Timing()) -> "QuotaReflectors":  # noqa: B008 (immutable)
        return cls(
            flavors=Reflector(transport, RESOURCE_FLAVOR, kube.ResourceFlavor, timing=timing),
            checks=Reflector(transport, ADMISSION_CHECK, kube.AdmissionCheck, timing=timing),
            cohorts=Reflector(transport, COHORT, kube.Cohort, timing=timing),
            cluster_queues=Reflector(transport, CLUSTER_QUEUE, kube.ClusterQueue, timing=timing),
            local_queues=Reflector(transport, LOCAL_QUEUE, kube.LocalQueue, timing=timing),
            namespaces=Reflector(transport, NAMESPACE, kube.Namespace, timing=timing),
        )

    @property
    def all(self) -> list[Reflector[Any]]:
        return [
            self.flavors,
            self.checks,
            self.cohorts,
            self.cluster_queues,
            self.local_queues,
            self.namespaces,
        ]

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run for the copies to be kept."""
        return [each.run() for each in self.all]


class QuotaView:
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
        self._filing = Filing(Snapshot(fair_sharing=fair_sharing), boosts=boosts, excluded=excluded)
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
            self._follow(reflector)

    def look(self) -> Snapshot | Blind:
        """The snapshot, where it is the whole truth; it goes on to change with the cluster."""
        reason = confinement(self._confined_to, "quota is") or self._incomplete() or self._unreadable() or self._old()
        if reason:
            return Blind(reason)
        self._filing.wake(self._clock())
        return self._filing.snapshot

    @property
    def age_s(self) -> float:
        """Seconds since the quietest of the kinds was last heard of; infinite before all are listed."""
        return max(map(silence, self._needed.values()))

    @property
    def unreadable(self) -> Mapping[tuple[str, str], str]:
        """Objects that are there and cannot be used, and why, by kind and `namespace/name`."""
        return self._filing.unreadable

    # ----------------------------------------------------------------------------------------------------- following

    def _follow(self, reflector: Reflector[Any]) -> None:
        reflector.subscribe(self._heard)
        for obj in reflector.items():
            self._filing.put(obj, now=self._clock())

    def _heard(self, change: Change[Any]) -> None:
        if change.new is not None:
            self._filing.put(change.new, now=self._clock())
        elif change.old is not None:
            self._filing.drop(change.old)

    # ------------------------------------------------------------------------------------------------- why it is blind

    def _incomplete(self) -> str:
        states = {name: each.state for name, each in self._needed.items()}
        absent = [name for name in _ESSENTIAL if isinstance(states[name], Absent)]
        if absent:
            return f"Kueue (kueue.x-k8s.io/v1beta2) is not installed: the API knows no {', '.join(absent)}"
        missing = [
            f"{name} ({state.message})" for name, state in states.items() if isinstance(state, Denied | Disconnected)
        ]
        return f"not everything is seen: {', '.join(missing)}" if missing else ""

    def _unreadable(self) -> str:
        """What administrators wrote and nobody can read could mean anything for the quota of all."""
        found = [
            f"{name} {'/'.join(part for part in key if part)}: {why}"
            for name, each in self._needed.items()
            if name != "Workloads"
            for key, why in each.undecodable.items()
        ]
        return f"cannot be read: {'; '.join(found)}" if found else ""

    def _old(self) -> str:
        age = self.age_s
        limit = self._max_age.total_seconds()
        return f"the API was last heard of {age:.0f} s ago; {limit:.0f} s are the most" if age > limit else ""
