"""Settings of what metrics show: prices, and the limits on what tenants can name."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from scaler.core.prices import Prices
from scaler.settings.fields import Duration, Section


class Fleet(StrEnum):
    """Which replicas show what is counted about the cluster."""

    LEADER = "Leader"
    ALWAYS = "Always"


_Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MetricsSetting(Section):
    """What metrics show; see metrics.md."""

    fleet: Fleet | None = None
    """None: the leader. Processes without the component `reconciler` elect one for this alone, by a Lease of their own;
    where there is none (outside of a cluster, `kubernetes.lease.namespace` left out) each of them."""
    namespaces: int = Field(default=500, ge=1)
    """Namespaces told apart in labels, those first seen; all others are one. A namespace with GPUs makes about ten
    series."""
    workloads: int = Field(default=200, ge=0)
    """Workloads shown one by one, those that are idle longest. Each makes about ten series."""
    nodes: int = Field(default=50, ge=0)
    """Nodes shown on which GPUs cannot be judged, those with most of such GPUs."""
    regret_within: Duration = timedelta(minutes=30)
    """A suspended workload that is asked for again this soon is counted as regretted. As long as `idleAfter` by
    default: it would not have been suspended, had that been twice as long."""
    prices: dict[str, _Price] = Field(default_factory=dict)
    """Price of one GPU for one hour, by model as the exporter names it. A trailing * matches any ending; the longest
    match holds. Empty: nothing is said about money."""
    currency: str = Field(default="USD", min_length=1)
    """Of the prices; only shown."""

    def price_list(self) -> Prices:
        return Prices(by_model=self.prices, currency=self.currency)
