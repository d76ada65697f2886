"""The metrics source that the settings name."""

from datetime import datetime
from typing import Protocol

import structlog

from scaler.app.settings.model import PrometheusSettings, Settings
from scaler.errors import ConfigurationError, SourceError
from scaler.idleness.gpu import Signal
from scaler.reporting.metrics import Metrics
from scaler.samples.config import PrometheusConfig
from scaler.samples.dcgm import ExpositionSource
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import ReadRecord, SignalReading, SignalSource

log = structlog.get_logger(__name__)


class MetricsSource(SignalSource, Protocol):
    """A server that samples are read from; Prometheus also evaluates wake queries."""

    async def close(self) -> None:
        """Close its connections."""


def open_metrics_source(settings: Settings, metrics: Metrics, *, is_needed: bool = True) -> MetricsSource:
    """The source. Raises: ConfigurationError where it cannot be used, or is needed and there is none."""
    if settings.prometheus.url:
        return _prometheus(settings.prometheus, settings.prometheus.url, metrics)
    if settings.dcgm.endpoints:
        return _dcgm(settings, metrics)
    if is_needed:
        raise ConfigurationError(UNCONFIGURED)
    return NO_METRICS_SOURCE


def is_configured(settings: Settings) -> bool:
    """Whether the settings name a source."""
    return bool(settings.prometheus.url or settings.dcgm.endpoints)


UNCONFIGURED = (
    "no metrics source: set prometheus.url (--prometheus-url), or dcgm.endpoints (--dcgm-endpoint) "
    "to scrape dcgm-exporter directly"
)


class _Nothing:
    """A source for queries that need no metrics."""

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:  # noqa: ARG002
        """Raises: SourceError."""
        raise SourceError(UNCONFIGURED, transient=False)

    async def close(self) -> None:
        """There is nothing to close."""


NO_METRICS_SOURCE = _Nothing()


def _prometheus(settings: PrometheusSettings, url: str, metrics: Metrics) -> MetricsSource:
    def observe(read: ReadRecord) -> None:
        labels = {"source": "prometheus", "query": read.query, "outcome": str(read.outcome)}
        metrics.source_read_seconds.labels(**labels).observe(read.seconds)
        metrics.source_read_bytes_total.labels(source="prometheus").inc(read.size_bytes)

    if settings.thanos and not settings.matchers:
        log.warning(
            "prometheus.thanos is set without prometheus.matchers: where it holds several clusters, pods of the same "
            "namespace and name are judged as one; name this cluster's label, such as matchers: {cluster: prod-1}"
        )
    return PrometheusSource(prometheus_config(settings, url), observe=observe)


def prometheus_config(settings: PrometheusSettings, url: str) -> PrometheusConfig:
    basic = settings.basic
    return settings.into(
        PrometheusConfig,
        url=url,
        username=basic.username if basic else None,
        password_file=basic.password_file if basic else None,
    )


def _dcgm(settings: Settings, metrics: Metrics) -> MetricsSource:
    def observe(scrape: ReadRecord) -> None:
        labels = {"source": "dcgm", "query": "scrape", "outcome": str(scrape.outcome)}
        metrics.source_read_seconds.labels(**labels).observe(scrape.seconds)

    return ExpositionSource(settings.dcgm.endpoints, timeout=settings.dcgm.timeout, observe=observe)
