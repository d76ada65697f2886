"""Every setting there is: its unit, its default and why.

Names are camelCase in YAML. Every duration is written with its unit (`30s`, `10m`, `1h30m`). Secrets are never
values, only paths to files: this whole document may be printed and logged.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from scaler.core import relabel
from scaler.core.durations import format_duration
from scaler.core.gpu import DEFAULT_SIGNALS, Signal, Unit
from scaler.core.policy import GpuRule, Mode, Overrides, Policy, Reclaim, Trust, pressure_problem
from scaler.errors import ConfigurationError
from scaler.settings.fields import Duration, DurationOrZero, Ratio, Section
from scaler.settings.metrics import MetricsSetting
from scaler.settings.reclaim import ReclaimSetting


class Tls(Section):
    """A server's certificate, in files that are followed while they are replaced; as cert-manager, OpenShift and
    Secrets of type kubernetes.io/tls name them: tls.crt, tls.key, ca.crt.
    """

    cert_file: Path
    """PEM: the certificate, and after it those between it and its authority."""
    key_file: Path
    client_ca_file: Path | None = None
    """PEM: authorities of clients. Clients need a certificate of theirs (mutual TLS). None: none is needed."""
    client_names: tuple[str, ...] = ()
    """Names (SAN or CN) of the clients that are answered. Empty: all that have a certificate."""
    check_every: Duration = timedelta(seconds=10)
    """How often the files are looked at. Kubernetes itself takes up to a minute or two to bring a changed Secret."""

    @model_validator(mode="after")
    def _knows_its_clients(self) -> "Tls":
        if self.client_names and self.client_ca_file is None:
            raise ValueError("clientNames are only known from certificates; set clientCaFile, too")
        if any(not name.strip() for name in self.client_names):
            raise ValueError("clientNames: a name is empty")
        return self


class Grpc(Section):
    address: str = "0.0.0.0:9090"
    max_connection_age: Duration = timedelta(minutes=10)
    """KEDA finds new replicas of the scaler only when a connection ends."""
    drain: Duration = timedelta(seconds=10)
    """Time that streams and calls in flight get at shutdown."""
    reflection: bool = False
    """Serve gRPC reflection for grpcurl; needs the extra `reflection`."""
    tls: Tls | None = None
    """None: in the clear."""


class Http(Section):
    address: str = "0.0.0.0:8080"
    tls: Tls | None = None
    """None: in the clear."""


class Lease(Section):
    namespace: str = ""
    """Empty: the namespace that this program's Pod runs in, and `default` outside of a cluster."""
    name: str = "idle-gpu-scaler"
    duration: Duration = timedelta(seconds=15)
    """A dead leader is replaced after this long."""
    renew_deadline: Duration = timedelta(seconds=10)
    """A leader that could not renew for this long stops acting by itself."""
    retry_period: Duration = timedelta(seconds=2)

    @model_validator(mode="after")
    def _ordered(self) -> "Lease":
        if not self.retry_period < self.renew_deadline < self.duration:
            raise ValueError("retryPeriod < renewDeadline < duration must hold, or two leaders could act at once")
        return self


class Kubernetes(Section):
    kubeconfig: Path | None = None
    """None: the pod's service account, or the default kubeconfig outside of a cluster."""
    context: str | None = None
    namespace: str = ""
    """The one namespace to look after; empty: all."""
    timeout: Duration = timedelta(seconds=10)
    max_view_age: Duration = timedelta(minutes=3)
    """Without a word from the API server for this long (it sends bookmarks every minute) nothing is decided."""
    lease: Lease = Lease()


class Basic(Section):
    username: str
    password_file: Path


class Prometheus(Section):
    url: str | None = None
    thanos: bool = False
    """Ask for deduplicated, complete, raw data (dedup, partial_response, max_source_resolution)."""
    timeout: Duration = timedelta(seconds=10)
    """For one read, retries included."""
    attempts: int = Field(default=3, ge=1, le=10)
    max_bytes: int = Field(default=256 * 2**20, ge=2**10)
    matchers: dict[str, str] = Field(default_factory=dict)
    """Labels that every series must carry, such as {cluster: prod}."""
    parameters: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)
    """Such as {X-Scope-OrgID: team-a}. Not for secrets."""
    bearer_token_file: Path | None = None
    basic: Basic | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure_skip_verify: bool = False


class Dcgm(Section):
    endpoints: tuple[str, ...] = ()
    """URLs of dcgm-exporter endpoints that are scraped directly where there is no Prometheus."""
    timeout: Duration = timedelta(seconds=5)


class SignalSetting(Section):
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    metrics: tuple[str, ...] = Field(min_length=1)
    unit: Unit
    absent_on_mig: bool = False

    def signal(self) -> Signal:
        return Signal(name=self.name, metrics=self.metrics, unit=self.unit, absent_on_mig=self.absent_on_mig)


class Evaluation(Section):
    interval: Duration = timedelta(seconds=15)
    """How often everything is evaluated, on the clock's multiples of it, so that replicas look at the same instant."""
    overlap: Duration = timedelta(minutes=2)
    """How far a read reaches back behind the one before, for samples that arrive late (remote write, Thanos)."""
    max_window: Duration = timedelta(hours=24)
    """Longest `idleAfter` accepted; memory grows with it (6 bytes per GPU, signal and collection interval)."""


_TRUST = Trust()


class TrustSetting(Section):
    collection_interval: Duration = _TRUST.interval
    min_coverage: Ratio = _TRUST.min_coverage_ratio
    max_age_intervals: int = Field(default=_TRUST.max_age_intervals, ge=1)
    max_gap_intervals: int = Field(default=_TRUST.max_gap_intervals, ge=1)
    max_clock_skew: Duration = _TRUST.max_clock_skew

    def trust(self) -> Trust:
        return Trust(
            interval=self.collection_interval,
            min_coverage_ratio=self.min_coverage,
            max_age_intervals=self.max_age_intervals,
            max_gap_intervals=self.max_gap_intervals,
            max_clock_skew=self.max_clock_skew,
        )


class Defaults(Section):
    """Policy for every ScaledObject that does not say otherwise."""

    idle_after: Duration | None = None
    warm_up: DurationOrZero | None = None
    active_above: Ratio | None = None
    gpus: str | None = None
    mode: Mode | None = None
    reclaim: Reclaim | None = None
    idle_after_under_pressure: Duration | None = None

    @model_validator(mode="after")
    def _takes_no_longer_under_pressure(self) -> "Defaults":
        idle_after = self.idle_after or Policy().idle_after
        if problem := pressure_problem(idle_after, self.idle_after_under_pressure):
            raise ValueError(f"idleAfterUnderPressure: {problem}")
        return self

    @field_validator("gpus")
    @classmethod
    def _gpu_rule(cls, text: str | None) -> str | None:
        if text is not None:
            GpuRule.parse(text)
        return text

    def overrides(self) -> Overrides:
        return Overrides(
            idle_after=self.idle_after,
            warm_up=self.warm_up,
            active_above_ratio=self.active_above,
            gpus=GpuRule.parse(self.gpus) if self.gpus else None,
            mode=self.mode,
            reclaim=self.reclaim,
            idle_after_under_pressure=self.idle_after_under_pressure,
        )


class Wake(Section):
    """A demand query: every element of its vector above 0 asks for one target to run, and to come back for it."""

    name: str = Field(min_length=1)
    query: str = Field(min_length=1)
    namespaces: tuple[str, ...] = ()
    """Empty: all namespaces."""
    namespace_label: str = "namespace"
    name_label: str = "scaledobject"
    """Label whose value is the ScaledObject's name."""


class Keda(Section):
    scaler_addresses: tuple[str, ...] = ()
    """`scalerAddress` values under which ScaledObjects name this scaler. Empty: every external trigger is evaluated."""


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


Component = Literal["scaler", "reconciler"]


class Settings(Section):
    """The whole document."""

    components: tuple[Component, ...] = ("scaler", "reconciler")
    grpc: Grpc = Grpc()
    http: Http = Http()
    kubernetes: Kubernetes = Kubernetes()
    prometheus: Prometheus = Prometheus()
    dcgm: Dcgm = Dcgm()
    signals: tuple[SignalSetting, ...] = tuple(
        SignalSetting(name=s.name, metrics=s.metrics, unit=s.unit, absent_on_mig=s.absent_on_mig)
        for s in DEFAULT_SIGNALS
    )
    relabel: tuple[dict[str, Any], ...] | None = None
    """Prometheus relabel_config rules for every series; None: exported_* labels replace the exporter's own."""
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "nvidia.com/mig-*", "nvidia.com/gpu.shared", "amd.com/gpu")
    """Extended resources that count as GPUs; a trailing * matches any ending."""
    evaluation: Evaluation = Evaluation()
    trust: TrustSetting = TrustSetting()
    defaults: Defaults = Defaults()
    reclaim: ReclaimSetting = ReclaimSetting()
    wake: tuple[Wake, ...] = ()
    keda: Keda = Keda()
    metrics: MetricsSetting = MetricsSetting()
    log: Log = Log()

    @field_validator("relabel")
    @classmethod
    def _rules_parse(cls, rules: tuple[dict[str, Any], ...] | None) -> tuple[dict[str, Any], ...] | None:
        if rules is not None:
            try:
                relabel.parse_rules(rules)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return rules

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        if self.prometheus.url and self.dcgm.endpoints:
            raise ValueError("prometheus.url and dcgm.endpoints are both set; configure one source")
        if self.wake and not self.prometheus.url:
            raise ValueError("wake queries need prometheus.url")
        idle_after, max_window = self.defaults.idle_after or Policy().idle_after, self.evaluation.max_window
        if idle_after > max_window:
            raise ValueError(
                f"idleAfter is {format_duration(idle_after)} by default and evaluation.maxWindow only "
                f"{format_duration(max_window)}; raise evaluation.maxWindow or set defaults.idleAfter"
            )
        names = [signal.name for signal in self.signals]
        if not names:
            raise ValueError("no signal is configured; leave signals out for the default ones")
        if len(set(names)) != len(names):
            raise ValueError("two signals have the same name")
        return self
