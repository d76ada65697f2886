"""Settings of MultiKueue: of a worker cluster, and of the dispatcher on a hub."""

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from scaler.app.settings.fields import NAME, Duration, Section


class PlanOnWorkers(StrEnum):
    """The remote copies of a hub's Workloads for which idle workloads of this cluster are suspended."""

    NOMINATED = "Nominated"
    ALWAYS = "Always"


class MultiKueueSettings(Section):
    """MultiKueue: what a worker cluster does for the Workloads of a hub, and how the hub nominates clusters."""

    plan_on_workers: PlanOnWorkers = PlanOnWorkers.NOMINATED
    """`Nominated`, on a worker, plans for a remote copy, or requests nodes for it, only where the hub's dispatcher has
    nominated this cluster for it, or its preemption gate is Open. `Always` plans for every copy: with several workers
    each of them suspends for the same gang. For hubs with one worker."""
    namespace: str = "kueue-system"
    """The namespace of Kueue, on a hub, where the Secrets with the kubeconfigs of MultiKueueClusters are."""
    offer_name: str = Field(default="hub", pattern=NAME, max_length=63)
    """The name of a hub's ClusterOffer on every worker. Two hubs of one worker need two names."""
    patience: Duration = timedelta(minutes=5)
    """How long, on a hub, a nominated cluster may take to admit a Workload before the next one is nominated."""
    requests: int = Field(default=64, ge=1, le=1000)
    """How many Workloads at a time a hub asks every worker about."""
    scores: bool = False
    """Whether a hub writes AddOnPlacementScores for Open Cluster Management, in the namespace of each ManagedCluster.
    It needs the permission for these."""
    score_maximum: int = Field(default=64, ge=1)
    """How many GPUs, on a hub, are a score of 100."""
