"""What becomes of `status.nominatedClusterNames` when Kueue clears it? It depends on who has written it.

Kueue applies the status of Workloads on the server side, as `kueue-admission`, and what another manager has set it
cannot remove. As `clusterName` and nominations exclude each other, a Workload that an external dispatcher has nominated
can then never be given its cluster: the Job runs on the worker, and the hub waits for ever. There are two remedies.

| nominations of        | remedy   | after Kueue has cleared them                               |
|-----------------------|----------|------------------------------------------------------------|
| Kueue (AllAtOnce)     | any      | absent                                                     |
| another writer        | `policy` | `[]`: the MutatingAdmissionPolicy of Kueue has emptied it  |
| another writer        | `gate`   | absent: with `WorkloadRequestUseMergePatch` Kueue patches  |
| another writer        | `none`   | as they were                                               |

The embedded API knows no owners of fields. So this is decided by configuration, and not by who has written.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from scaler.kube.objects.resources import WORKLOAD
from scaler_sandbox.actions import Action, Patch
from scaler_sandbox.kinds import Json

NOMINATED = "nominatedClusterNames"


class Dispatcher(StrEnum):
    """Who nominates clusters: Kueue's `multiKueue.dispatcherName`."""

    ALL_AT_ONCE = "kueue.x-k8s.io/multikueue-dispatcher-all-at-once"
    EXTERNAL = "idlegpu.io/dispatcher"


class Remedy(StrEnum):
    """What lets Kueue clear the nominations of another writer."""

    POLICY = "policy"
    GATE = "gate"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """How Kueue on a hub dispatches, with its own delays. Source: Kueue, apis/config/v1beta2 and pkg/controller/
    admissionchecks/multikueue."""

    dispatcher: Dispatcher = Dispatcher.ALL_AT_ONCE
    remedy: Remedy = Remedy.POLICY
    origin: str = "multikueue"
    """The label by which workers know what this hub has made."""
    reaction: timedelta = timedelta(milliseconds=20)
    """The time from a change of the Workload on the hub to a look at it: what else Kueue writes then is there, too."""
    batch: timedelta = timedelta(seconds=1)
    """The time from a change on a worker until the hub looks at the Workload."""
    deferral: timedelta = timedelta(seconds=2)
    """The time until the status of a Job is copied to the hub where its Job there was still suspended."""
    worker_lost: timedelta = timedelta(minutes=15)
    collection: timedelta = timedelta(minutes=1)
    """The time between two looks for copies of Workloads that are gone."""


def as_written(action: Action, config: HubConfig) -> Action:
    """What Kueue's write of a Workload's status comes to."""
    if not isinstance(action, Patch) or action.resource != WORKLOAD or not _clears(action.body):
        return action
    if config.dispatcher is Dispatcher.ALL_AT_ONCE or config.remedy is Remedy.GATE:
        return action
    before = action.observed.get("status", {}).get(NOMINATED)
    status = {key: value for key, value in action.body["status"].items() if key != NOMINATED}
    if config.remedy is Remedy.POLICY and before:
        status[NOMINATED] = []
    return replace(action, body={**action.body, "status": status})


def _clears(body: Json) -> bool:
    status = body.get("status") or {}
    return NOMINATED in status and status[NOMINATED] is None
