"""Settings of metrics: prices, and limits on the number of series."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from scaler.app.settings.fields import Duration, Section
from scaler.reporting.usage.prices import Prices


class FleetReporter(StrEnum):
    """Which replicas export the metrics of the whole cluster."""

    LEADER = "Leader"
    ALWAYS = "Always"


_Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MetricsSettings(Section):
    """Metrics; see metrics.md."""

    fleet: FleetReporter | None = None
    """Which replicas export the metrics of the whole cluster. None: the leader. Processes without the component
    `reconciler` elect one for this, by a Lease of their own; outside of a cluster, without
    `kubernetes.lease.namespace`, each of them does."""
    namespaces: int = Field(default=500, ge=1)
    """Maximum number of namespaces in labels, in the order in which they are seen; all others are merged. A namespace
    with GPUs has about ten series."""
    workloads: int = Field(default=200, ge=0)
    """Maximum number of workloads with series of their own, those idle for the longest time. Each has about ten
    series."""
    nodes: int = Field(default=50, ge=0)
    """Maximum number of nodes with series of their own for GPUs without a verdict, those with most such GPUs."""
    regret_within: Duration = timedelta(minutes=30)
    """A suspension is counted as regretted if the workload is woken within this time. As long as `idleAfter` by
    default: with `idleAfter` twice as long, the workload would not have been suspended."""
    prices: dict[str, _Price] = Field(default_factory=dict)
    """Price of one GPU for one hour, by model as the exporter names it. A trailing * matches any ending; the longest
    match applies. Empty: no costs are exported."""
    currency: str = Field(default="USD", min_length=1)
    """Currency of the prices; a label only."""

    def price_list(self) -> Prices:
        return Prices(by_model=self.prices, currency=self.currency)
