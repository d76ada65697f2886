"""The metrics source that the settings name."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from scaler.core.gpu import Signal
from scaler.dcgm.source import ExpositionSource, ScrapeRecord
from scaler.errors import ConfigurationError, SourceError
from scaler.ports import DemandSource, Reading, SignalSource
from scaler.prometheus.config import PrometheusConfig
from scaler.prometheus.source import PrometheusSource, QueryRecord
from scaler.settings.model import Prometheus, Settings
from scaler.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where samples come from, and where demand is asked for if that is possible."""

    signals: SignalSource
    demand: DemandSource | None
    close: Callable[[], Awaitable[None]]


def has_source(settings: Settings) -> bool:
    return bool(settings.prometheus.url or settings.dcgm.endpoints)


def open_source(settings: Settings, metrics: Metrics) -> Source:
    """The source. Raises: ConfigurationError where none is configured or its files cannot be used."""
    if settings.prometheus.url:
        return _prometheus(settings.prometheus, settings.prometheus.url, metrics)
    if settings.dcgm.endpoints:
        return _dcgm(settings, metrics)
    raise ConfigurationError(UNCONFIGURED)


UNCONFIGURED = (
    "no metrics source: set prometheus.url (--prometheus-url), or dcgm.endpoints (--dcgm-endpoint) "
    "to scrape dcgm-exporter directly"
)


class _Nothing:
    """The source of those who ask what no metrics are needed for."""

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> Reading:  # noqa: ARG002
        """Raises: SourceError."""
        raise SourceError(UNCONFIGURED, transient=False)

    async def close(self) -> None:
        """Nothing is open."""


NO_SOURCE = Source(signals=_Nothing(), demand=None, close=_Nothing().close)


def _prometheus(settings: Prometheus, url: str, metrics: Metrics) -> Source:
    def observe(query: QueryRecord) -> None:
        labels = {"source": "prometheus", "query": query.name or query.kind, "outcome": str(query.outcome)}
        metrics.reads.labels(**labels).observe(query.seconds)
        metrics.read_bytes.labels(source="prometheus").inc(query.size_bytes)

    if settings.thanos and not settings.matchers:
        log.warning(
            "prometheus.thanos is set without prometheus.matchers: where it holds several clusters, pods of the same "
            "namespace and name are judged as one; name this cluster's label, such as matchers: {cluster: prod-1}"
        )
    config = PrometheusConfig(
        url=url,
        timeout=settings.timeout,
        attempts=settings.attempts,
        max_bytes=settings.max_bytes,
        thanos=settings.thanos,
        matchers=settings.matchers,
        parameters=settings.parameters,
        headers=settings.headers,
        bearer_token_file=settings.bearer_token_file,
        username=settings.basic.username if settings.basic else None,
        password_file=settings.basic.password_file if settings.basic else None,
        ca_file=settings.ca_file,
        cert_file=settings.cert_file,
        key_file=settings.key_file,
        insecure_skip_verify=settings.insecure_skip_verify,
    )
    source = PrometheusSource(config, observe=observe)
    return Source(signals=source, demand=source, close=source.close)


def _dcgm(settings: Settings, metrics: Metrics) -> Source:
    def observe(scrape: ScrapeRecord) -> None:
        labels = {"source": "dcgm", "query": "scrape", "outcome": str(scrape.outcome)}
        metrics.reads.labels(**labels).observe(scrape.seconds)

    source = ExpositionSource(settings.dcgm.endpoints, timeout=settings.dcgm.timeout, observe=observe)
    return Source(signals=source, demand=None, close=source.close)
