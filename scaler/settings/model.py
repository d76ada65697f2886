"""Every setting there is: its unit, its default and why.

Names are camelCase in YAML. Every duration is written with its unit (`30s`, `10m`, `1h30m`). Secrets are never
values, only paths to files: this whole document may be printed and logged.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

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
    """PEM: its key, without a passphrase."""
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
    """Where KEDA calls."""

    address: str = "0.0.0.0:9090"
    """Host and port to listen on."""
    max_connection_age: Duration = timedelta(minutes=10)
    """KEDA finds new replicas of the scaler only when a connection ends."""
    drain: Duration = timedelta(seconds=10)
    """Time that streams and calls in flight get at shutdown."""
    reflection: bool = False
    """Serve gRPC reflection for grpcurl; needs the extra `reflection`."""
    tls: Tls | None = None
    """None: in the clear."""


class Http(Section):
    """Metrics, pages and probes."""

    address: str = "0.0.0.0:8080"
    """Host and port to listen on."""
    tls: Tls | None = None
    """None: in the clear."""


class Lease(Section):
    namespace: str = ""
    """Empty: the namespace that this program's Pod runs in, and `default` outside of a cluster."""
    name: str = "idle-gpu-scaler"
    """Replicas that share one are one installation."""
    duration: Duration = timedelta(seconds=15)
    """A dead leader is replaced after this long."""
    renew_deadline: Duration = timedelta(seconds=10)
    """A leader that could not renew for this long stops acting by itself."""
    retry_period: Duration = timedelta(seconds=2)
    """How often the leader renews it, and the others look at it."""

    @model_validator(mode="after")
    def _ordered(self) -> "Lease":
        if not self.retry_period < self.renew_deadline < self.duration:
            raise ValueError("retryPeriod < renewDeadline < duration must hold, or two leaders could act at once")
        return self


Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A name as Kubernetes takes it; another one would only be refused, or ask for something else, in every request."""


class Kubernetes(Section):
    """The API server, and what is looked after."""

    kubeconfig: Path | None = None
    """None: the pod's service account, or the default kubeconfig outside of a cluster."""
    context: str | None = None
    """Of the kubeconfig. None: its current one."""
    namespaces: tuple[Namespace, ...] = ()
    """The only namespaces to look after; empty: all. With some no plans are made and no AdmissionChecks answered."""
    timeout: Duration = timedelta(seconds=10)
    """For one request."""
    max_view_age: Duration = timedelta(minutes=3)
    """Without a word from the API server for this long (it sends bookmarks every minute) nothing is decided."""
    lease: Lease = Lease()

    @field_validator("namespaces")
    @classmethod
    def _each_once(cls, namespaces: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({each for each in namespaces if namespaces.count(each) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is named more than once; name each namespace once")
        return namespaces


class Basic(Section):
    username: str
    """For HTTP basic authentication."""
    password_file: Path
    """File with nothing but the password."""


class Prometheus(Section):
    """Where samples are read: Prometheus, Thanos, or what speaks its HTTP API."""

    url: str | None = None
    """With the path prefix where there is one. Without it, and without `dcgm.endpoints`, nothing is ever decided."""
    thanos: bool = False
    """Ask for deduplicated, complete, raw data (dedup, partial_response, max_source_resolution)."""
    timeout: Duration = timedelta(seconds=10)
    """For one read, retries included."""
    attempts: int = Field(default=3, ge=1, le=10)
    """How often a request is sent at most where it fails in a way that may pass."""
    max_bytes: int = Field(default=256 * 2**20, ge=2**10)
    """Largest answer that is read, in bytes after decompression."""
    matchers: dict[str, str] = Field(default_factory=dict)
    """Labels that every series must carry, such as {cluster: prod}."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """Further parameters of every query, such as {"storeMatch[]": "…"}."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Such as {X-Scope-OrgID: team-a}. Not for secrets."""
    bearer_token_file: Path | None = None
    """File with a token."""
    basic: Basic | None = None
    """HTTP basic authentication."""
    ca_file: Path | None = None
    """PEM: authorities to trust, in place of the system's."""
    cert_file: Path | None = None
    """PEM: the certificate to show."""
    key_file: Path | None = None
    """PEM: its key. None: it is in `certFile`."""
    insecure_skip_verify: bool = False
    """Take any certificate. Whoever can answer in Prometheus' place can then have workloads suspended."""


class Dcgm(Section):
    """Samples without Prometheus."""

    endpoints: tuple[str, ...] = ()
    """URLs of dcgm-exporter endpoints that are scraped directly where there is no Prometheus."""
    timeout: Duration = timedelta(seconds=5)
    """For one scrape."""


class SignalSetting(Section):
    """A kind of evidence of work. Every one that is configured must be quiet before a GPU is idle."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """For evidence, logs and metrics: small letters, digits and _."""
    metrics: tuple[str, ...] = Field(min_length=1)
    """Metric names under which exporters publish it, old and new ones side by side."""
    unit: Unit
    """In which they publish it: 0 to 1, or 0 to 100."""
    absent_on_mig: bool = False
    """Whether they do not publish it for MIG instances, so that none is expected there."""

    def signal(self) -> Signal:
        return Signal(name=self.name, metrics=self.metrics, unit=self.unit, absent_on_mig=self.absent_on_mig)


class Evaluation(Section):
    """When and over what is judged."""

    interval: Duration = timedelta(seconds=15)
    """How often everything is evaluated, on the clock's multiples of it, so that replicas look at the same instant."""
    overlap: Duration = timedelta(minutes=2)
    """How far a read reaches back behind the one before, for samples that arrive late (remote write, Thanos)."""
    max_window: Duration = timedelta(hours=24)
    """Longest `idleAfter` accepted; memory grows with it (6 bytes per GPU, signal and collection interval)."""


_TRUST = Trust()


class TrustSetting(Section):
    """When samples are good enough to judge by."""

    collection_interval: Duration = _TRUST.interval
    """How often dcgm-exporter collects (its `-c`), or Prometheus scrapes, whichever is slower."""
    min_coverage: Ratio = _TRUST.min_coverage_ratio
    """Share of the window's collection intervals that must hold a sample."""
    max_age_intervals: int = Field(default=_TRUST.max_age_intervals, ge=1)
    """Age of the newest sample, in collection intervals, beyond which it is stale."""
    max_gap_intervals: int = Field(default=_TRUST.max_gap_intervals, ge=1)
    """Longest hole, in collection intervals; work could hide in a longer one."""
    max_clock_skew: Duration = _TRUST.max_clock_skew
    """How far the clocks of the source and of this program may differ."""

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
    """Every required GPU must be quiet this long. None: 30m."""
    warm_up: DurationOrZero | None = None
    """Not judged for this long after the containers started running. None: 10m."""
    active_above: Ratio | None = None
    """A signal whose peak in the window reaches this shows work. None: 1 %."""
    gpus: str | None = None
    """The GPUs that must be idle: `all`, `any`, `quorum:0.8`. None: all."""
    mode: Mode | None = None
    """Suspend, or only report. None: enforce."""
    reclaim: Reclaim | None = None
    """What takes the quota of who is idle. None: Always."""
    idle_after_under_pressure: Duration | None = None
    """Quiet this long before a plan may take it for a gang that waits. None: as long as `idleAfter`."""

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
    """Named where somebody is woken or kept by it."""
    query: str = Field(min_length=1)
    """PromQL, asked at every evaluation."""
    namespaces: tuple[str, ...] = ()
    """Empty: all namespaces."""
    namespace_label: str = "namespace"
    """Label whose value is the ScaledObject's namespace."""
    name_label: str = "scaledobject"
    """Label whose value is the ScaledObject's name."""


class Keda(Section):
    """Which ScaledObjects are ours."""

    scaler_addresses: tuple[str, ...] = ()
    """`scalerAddress` values under which ScaledObjects name this scaler. Empty: every external trigger is evaluated."""


class Log(Section):
    """On standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""
    format: Literal["json", "text"] = "json"
    """JSON Lines, or for people."""


Component = Literal["scaler", "reconciler"]


class Settings(Section):
    """The whole document."""

    components: tuple[Component, ...] = ("scaler", "reconciler")
    """What runs in this process: the one answers KEDA, the other writes to the cluster while it leads."""
    grpc: Grpc = Grpc()
    http: Http = Http()
    kubernetes: Kubernetes = Kubernetes()
    prometheus: Prometheus = Prometheus()
    dcgm: Dcgm = Dcgm()
    signals: tuple[SignalSetting, ...] = tuple(
        SignalSetting(name=s.name, metrics=s.metrics, unit=s.unit, absent_on_mig=s.absent_on_mig)
        for s in DEFAULT_SIGNALS
    )
    """What is looked at, in place of the default ones."""
    relabel: tuple[dict[str, Any], ...] | None = None
    """Prometheus relabel_config rules for every series. None: exported_* labels replace the exporter's own."""
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "nvidia.com/mig-*", "nvidia.com/gpu.shared", "amd.com/gpu")
    """Extended resources that count as GPUs; a trailing * matches any ending."""
    evaluation: Evaluation = Evaluation()
    trust: TrustSetting = TrustSetting()
    defaults: Defaults = Defaults()
    reclaim: ReclaimSetting = ReclaimSetting()
    wake: tuple[Wake, ...] = ()
    """The operator's demand queries; they need `prometheus.url`."""
    keda: Keda = Keda()
    metrics: MetricsSetting = MetricsSetting()
    log: Log = Log()

    @property
    def lease_name(self) -> str:
        """The Lease that replicas hold: those that reconcile nothing have one of their own, to take turns by."""
        return self.kubernetes.lease.name + ("" if "reconciler" in self.components else "-metrics")

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
