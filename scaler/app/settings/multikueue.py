"""Settings of MultiKueue: of a worker cluster, and of the dispatcher on a hub."""

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from scaler.app.settings.fields import NAME, Duration, Section


class PlanOnWorkers(StrEnum):
    """For which remote copies of a hub's Workloads idle workloads of this cluster are suspended."""

    NOMINATED = "Nominated"
    ALWAYS = "Always"


class MultiKueueSettings(Section):
    """MultiKueue: what a worker cluster does for the Workloads of a hub, and how the hub nominates clusters."""

    plan_on_workers: PlanOnWorkers = PlanOnWorkers.NOMINATED
    """On a worker: `Nominated` plans for a remote copy, or requests nodes for it, only where the hub's dispatcher has
    nominated this cluster for it, or its preemption gate is Open. `Always` plans for every copy: with several workers
    each of them suspends for the same gang. For hubs with one worker."""
    namespace: str = "kueue-system"
    """On a hub: the namespace of Kueue, where the Secrets with the kubeconfigs of MultiKueueClusters are."""
    offer_name: str = Field(default="hub", pattern=NAME, max_length=63)
    """On a hub: the name of its ClusterOffer on every worker. Two hubs of one worker need two names."""
    patience: Duration = timedelta(minutes=5)
    """On a hub: how long a nominated cluster may take to admit a Workload before the next one is nominated."""
    requests: int = Field(default=64, ge=1, le=1000)
    """On a hub: for how many Workloads at a time every worker is asked how they fit."""
    scores: bool = False
    """On a hub: whether AddOnPlacementScores are written for Open Cluster Management, in the namespace of each
    ManagedCluster. It needs the permission for these."""
    score_maximum: int = Field(default=64, ge=1)
    """On a hub: how many GPUs are a score of 100."""
