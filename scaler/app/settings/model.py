"""Every setting there is: its unit, its default and why.

Names are camelCase in YAML. Every duration is written with its unit (`30s`, `10m`, `1h30m`). Secrets are never
values, only paths to files: this whole document may be printed and logged.
"""

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from scaler.app.settings.fields import NAME, Duration, DurationOrZero, Ratio, Section, twice
from scaler.app.settings.hooks import HookSettings
from scaler.app.settings.multikueue import MultiKueueSettings
from scaler.app.settings.notifications import NotificationSettings
from scaler.app.settings.page import PageSettings
from scaler.app.settings.reclaim import ReclaimSettings
from scaler.errors import ConfigurationError
from scaler.idleness import relabel
from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import DEFAULT_SIGNALS, Signal, Unit
from scaler.idleness.policy import EnforcementMode, GpuRule, Overrides, Policy, Reclaim, Trust, under_pressure_problem
from scaler.reporting.usage.fleet_metrics import FleetLimits
from scaler.reporting.usage.prices import Prices
from scaler.samples.wake_queries import WhenAbsent


class TlsSettings(Section):
    """A server's certificate, in files that are reloaded when they change; named as cert-manager, OpenShift and
    Secrets of type kubernetes.io/tls name them: tls.crt, tls.key, ca.crt.
    """

    cert_file: Path
    """PEM: the certificate, followed by its intermediate certificates."""
    key_file: Path
    """PEM: the private key, without a passphrase."""
    client_ca_file: Path | None = None
    """PEM: certificate authorities of clients, which then need a certificate (mutual TLS). None: clients need none."""
    client_names: tuple[str, ...] = ()
    """Names (SAN or CN) of the clients that are accepted. Empty: all with a valid certificate."""
    check_every: Duration = timedelta(seconds=10)
    """How often the files are read. The kubelet takes up to two minutes to update a changed Secret."""

    @model_validator(mode="after")
    def _knows_its_clients(self) -> "TlsSettings":
        if self.client_names and self.client_ca_file is None:
            raise ValueError("clientNames are only known from certificates; set clientCaFile, too")
        if any(not name.strip() for name in self.client_names):
            raise ValueError("clientNames: a name is empty")
        return self


class GrpcSettings(Section):
    """The gRPC server that KEDA calls."""

    address: str = "0.0.0.0:9090"
    """Host and port to listen on."""
    max_connection_age: Duration = timedelta(minutes=10)
    """Connections are closed after this long: only then does KEDA connect to new replicas."""
    drain: Duration = timedelta(seconds=10)
    """How long streams and calls in flight may take at shutdown."""
    reflection: bool = False
    """Serve gRPC reflection for grpcurl; needs the extra `reflection`."""
    tls: TlsSettings | None = None
    """The server's TLS. None: it is off."""


class HttpSettings(Section):
    """The HTTP server for metrics, pages and probes."""

    address: str = "0.0.0.0:8080"
    """Host and port to listen on."""
    tls: TlsSettings | None = None
    """The server's TLS. None: it is off."""
    wake: bool = False
    """Whether `POST /wake/NAMESPACE/NAME` resumes workloads for whoever may patch ScaledObjects there, by a bearer
    token of the Kubernetes API. Without TLS tokens can be read on their way."""
    token_audiences: tuple[str, ...] = ()
    """The audiences of bearer tokens, one of which a token has to be for. Empty: those of the API server."""


class LeaseSettings(Section):
    namespace: str = ""
    """Empty: the namespace of the Pod, or `default` outside of a cluster."""
    name: str = "idle-gpu-scaler"
    """Replicas with the same Lease are one installation."""
    duration: Duration = timedelta(seconds=15)
    """The Lease of a leader that does not renew it expires after this long."""
    renew_deadline: Duration = timedelta(seconds=10)
    """A leader that cannot renew the Lease for this long stops reconciling."""
    retry_period: Duration = timedelta(seconds=2)
    """How often the leader renews the Lease, and other replicas check it."""

    @model_validator(mode="after")
    def _ordered(self) -> "LeaseSettings":
        if not self.retry_period < self.renew_deadline < self.duration:
            raise ValueError("retryPeriod < renewDeadline < duration must hold, or two leaders could act at once")
        return self


Namespace = Annotated[str, Field(pattern=NAME, max_length=63)]
"""A name that Kubernetes accepts; any other would fail, or address another path, in every request."""


class KubernetesSettings(Section):
    """The API server, and the namespaces that are watched."""

    kubeconfig: Path | None = None
    """The kubeconfig. None: the Pod's ServiceAccount, or the default kubeconfig outside of a cluster."""
    context: str | None = None
    """Context of the kubeconfig. None: the current one."""
    namespaces: tuple[Namespace, ...] = ()
    """The only namespaces to watch. Empty: all. With namespaces listed, no plans are made and no AdmissionChecks are
    reconciled."""
    timeout: Duration = timedelta(seconds=10)
    """Longest time of one request."""
    max_view_age: Duration = timedelta(minutes=3)
    """If it is not known for this long that a watched kind is as it was, nothing is decided. A watch that is silent is
    replaced by a list, so with an API that answers this does not come to more than about two and a half minutes."""
    lease: LeaseSettings = LeaseSettings()

    @field_validator("namespaces")
    @classmethod
    def _each_once(cls, namespaces: tuple[str, ...]) -> tuple[str, ...]:
        if several := twice(namespaces):
            raise ValueError(f"{several} is named more than once; name each namespace once")
        return namespaces


class BasicAuthSettings(Section):
    username: str
    """The user of HTTP basic authentication."""
    password_file: Path
    """File that contains only the password."""


class PrometheusSettings(Section):
    """The source of samples: Prometheus, Thanos, or any server with the same HTTP API."""

    url: str | None = None
    """Including the path prefix, if any. Without it and without `dcgm.endpoints`, the program does not start."""
    thanos: bool = False
    """Request deduplicated, complete, raw data (dedup, partial_response, max_source_resolution)."""
    timeout: Duration = timedelta(seconds=10)
    """Longest time of one read, including retries."""
    attempts: int = Field(default=3, ge=1, le=10)
    """Maximum number of attempts of a request that fails with a transient error."""
    max_bytes: int = Field(default=256 * 2**20, ge=2**10)
    """Maximum size of a response, in bytes after decompression."""
    matchers: dict[str, str] = Field(default_factory=dict)
    """Labels that every series must have, such as {cluster: prod}; also those of the scaler's own metrics, which the
    page and [reports](report.md) read back."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """Additional parameters of every query, such as {"storeMatch[]": "…"}."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Additional headers of every query, such as {X-Scope-OrgID: team-a}. Not for secrets."""
    bearer_token_file: Path | None = None
    """File that contains a bearer token."""
    basic: BasicAuthSettings | None = None
    """HTTP basic authentication."""
    ca_file: Path | None = None
    """PEM: certificate authorities to trust instead of the system's."""
    cert_file: Path | None = None
    """PEM: the client certificate."""
    key_file: Path | None = None
    """PEM: the private key of the client certificate. None: it is in `certFile`."""
    insecure_skip_verify: bool = False
    """Accept any certificate. Anyone who can impersonate Prometheus can then cause workloads to be suspended."""


class DcgmSettings(Section):
    """Samples without Prometheus."""

    endpoints: tuple[str, ...] = ()
    """URLs of dcgm-exporter endpoints to scrape directly, without Prometheus."""
    timeout: Duration = timedelta(seconds=5)
    """Longest time of one scrape."""


UtilisationUnit = Literal["ratio", "percent"]
MetricNames = Annotated[
    Annotated[tuple[str, ...], Field(min_length=1), Tag("list")]
    | Annotated[dict[str, UtilisationUnit], Field(min_length=1), Tag("map")],
    Discriminator(lambda given: "map" if isinstance(given, dict) else "list"),
]


class SignalSettings(Section):
    """A kind of evidence of work. A GPU is idle only if every configured signal is quiet."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Name in evidence, logs and metrics: lower-case letters, digits and _."""
    metrics: MetricNames
    """Names of the metrics that exporters publish it as; old and new names may be listed together. Where their units
    differ, a map of names to units."""
    unit: UtilisationUnit | None = None
    """Unit of these metrics: 0 to 1, or 0 to 100. Required, but where `metrics` says it."""
    absent_on_mig: bool = False
    """Whether exporters do not publish it for MIG instances, so that no samples are expected there."""

    @model_validator(mode="after")
    def _says_units_once(self) -> "SignalSettings":
        if isinstance(self.metrics, dict) is (self.unit is not None):
            raise ValueError("say the unit once: 'unit' for a list of metrics, or a map such as {METRIC: percent}")
        return self

    def signal(self) -> Signal:
        by_metric = self.metrics if isinstance(self.metrics, dict) else dict.fromkeys(self.metrics, self.unit)
        units = tuple(Unit(each) for each in by_metric.values() if each)
        return self.into(Signal, metrics=tuple(by_metric), unit=units[0], units=units if len({*units}) > 1 else ())


class EvaluationSettings(Section):
    """When evaluations take place, and over which window."""

    interval: Duration = timedelta(seconds=15)
    """How often everything is evaluated, aligned to multiples of the interval, so that replicas evaluate the same
    instant."""
    overlap: Duration = timedelta(minutes=2)
    """How far a read overlaps the previous one, for samples that arrive late (remote write, Thanos)."""
    max_window: Duration = timedelta(hours=24)
    """Longest `idleAfter` that is accepted; memory grows with it (6 bytes per GPU, signal and collection interval)."""


_TRUST = Trust()


class TrustSettings(Section):
    """When samples are good enough for a verdict."""

    interval: Duration = Field(default=_TRUST.interval, alias="collectionInterval")
    """How often dcgm-exporter collects (its `-c`), or Prometheus scrapes, whichever is slower."""
    min_coverage_ratio: Ratio = Field(default=_TRUST.min_coverage_ratio, alias="minCoverage")
    """Share of the window's collection intervals that must contain a sample."""
    max_age_intervals: int = Field(default=_TRUST.max_age_intervals, ge=1)
    """Age of the newest sample, in collection intervals, above which it is stale."""
    max_gap_intervals: int = Field(default=_TRUST.max_gap_intervals, ge=1)
    """How many collections in a row may be missed; a longer gap between two samples could hide work."""
    max_clock_skew: Duration = _TRUST.max_clock_skew
    """Maximum difference between the clocks of the source and of this program. Samples that are ahead by more are
    refused, and their GPUs are doubted."""
    single_witness: bool = False
    """Whether workloads are suspended where one signal alone decides (MIG instances, or `signals` with one entry) and
    no energy counter shows that the exporter still measures. Otherwise they are only observed."""


class DefaultsSettings(Section):
    """Default policy of every ScaledObject; trigger metadata and annotations override it."""

    idle_after: Duration | None = None
    """How long every required GPU must be quiet. None: 1h."""
    warm_up: DurationOrZero | None = None
    """No verdict for this long after the containers started. None: 10m."""
    active_above_ratio: Ratio | None = Field(default=None, alias="activeAbove")
    """A signal whose peak in the window reaches this is evidence of work. None: 1 %."""
    gpus: str | None = None
    """The GPUs that must be idle: `all`, `any`, `quorum:0.8`. None: all."""
    reclaim: Reclaim | None = None
    """When idle workloads release their quota. None: Always."""
    idle_after_under_pressure: Duration | None = None
    """How long it must be quiet before a reclaim plan may suspend it for a pending Workload. None: as long as
    `idleAfter`."""

    @model_validator(mode="after")
    def _takes_no_longer_under_pressure(self) -> "DefaultsSettings":
        idle_after = self.idle_after or Policy().idle_after
        if problem := under_pressure_problem(idle_after, self.idle_after_under_pressure):
            raise ValueError(f"idleAfterUnderPressure: {problem}")
        return self

    @field_validator("gpus")
    @classmethod
    def _gpu_rule(cls, text: str | None) -> str | None:
        if text is not None:
            GpuRule.parse(text)
        return text

    def overrides(self) -> Overrides:
        given = {name: getattr(self, name) for name in DefaultsSettings.model_fields}
        return Overrides(**given | {"gpus": GpuRule.parse(self.gpus) if self.gpus else None})


class WakeSettings(Section):
    """A wake query: every element of its result above 0 wakes one ScaledObject and keeps it running."""

    name: str = Field(min_length=1)
    """Shown as the reason where a workload is woken or kept running."""
    promql: str = Field(min_length=1, alias="query")
    """PromQL, evaluated at every evaluation."""
    namespaces: tuple[str, ...] = ()
    """Empty: all namespaces."""
    namespace_label: str = "namespace"
    """Label whose value is the ScaledObject's namespace."""
    name_label: str = "scaledobject"
    """Label whose value is the ScaledObject's name."""
    absent: WhenAbsent = WhenAbsent.BUSY
    """What it means that a ScaledObject has no element: with `busy` its demand is unknown, and it is not scaled to 0;
    with `quiet` there is none. `quiet` is right where the query gives elements only of what is in demand."""


class AuthenticationRefSettings(Section):
    """A TriggerAuthentication of the namespace, or a ClusterTriggerAuthentication."""

    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = "ClusterTriggerAuthentication"
    """Its kind."""
    name: str = Field(min_length=1)
    """Its name."""


class KedaSettings(Section):
    """Which ScaledObjects are evaluated, and what those that an IdlePolicy attaches have in common."""

    scaler_addresses: tuple[str, ...] = ()
    """Values of `scalerAddress` that mean this scaler. Empty: every external trigger is evaluated. ScaledObjects that
    an IdlePolicy attaches have the first one."""
    enable_tls: bool | None = None
    """Whether KEDA calls the scaler with TLS in ScaledObjects that an IdlePolicy attaches. None: where `grpc.tls` is
    set."""
    authentication_ref: AuthenticationRefSettings | None = None
    """The authenticationRef of their triggers."""
    polling_interval: Duration = timedelta(seconds=30)
    """Their pollingInterval."""
    cooldown_period: Duration = timedelta(minutes=5)
    """Their cooldownPeriod and initialCooldownPeriod."""


class FleetReporter(StrEnum):
    """Which replicas export the metrics of the whole cluster."""

    LEADER = "Leader"
    ALWAYS = "Always"


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
    """A suspension is counted as regretted if the workload is woken within this time. Half of `idleAfter` by default:
    with `idleAfter` half as long again, the workload would not have been suspended."""
    prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """Price of one GPU for one hour, by model as the exporter names it. A trailing * matches any ending; the longest
    match applies. Empty: no costs are exported."""
    currency: str = Field(default="USD", min_length=1)
    """Currency of the prices; a label only."""

    def limits(self) -> FleetLimits:
        return self.into(FleetLimits, prices=Prices(by_model=self.prices, currency=self.currency))


class LogSettings(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of the lines that are written."""
    format: Literal["json", "text"] = "json"
    """JSON Lines, or text for a terminal."""


Component = Literal["scaler", "reconciler", "dispatcher"]


class Settings(Section):
    """The whole document."""

    mode: EnforcementMode = EnforcementMode.ENFORCE
    """`observe`: nothing is suspended, whatever triggers and policies say: workloads are attached, judged, shown and
    resumed. `enforce`: their own `mode` applies. The chart writes it, by default `observe`."""
    components: tuple[Component, ...] = ("scaler", "reconciler")
    """What runs in this process: `scaler` answers KEDA, `reconciler` reconciles while it holds the Lease, and
    `dispatcher` nominates clusters for Workloads of MultiKueue, on a hub, while it holds the Lease."""
    grpc: GrpcSettings = GrpcSettings()
    http: HttpSettings = HttpSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    dcgm: DcgmSettings = DcgmSettings()
    signals: tuple[SignalSettings, ...] = tuple(
        SignalSettings(name=s.name, metrics=s.metrics, unit=s.unit, absent_on_mig=s.absent_on_mig)
        for s in DEFAULT_SIGNALS
    )
    """The signals, instead of the default ones."""
    relabel: tuple[dict[str, Any], ...] | None = None
    """Prometheus relabel_config rules for every series. None: exported_* labels replace the exporter's own."""
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "nvidia.com/mig-*", "nvidia.com/gpu.shared", "amd.com/gpu")
    """Extended resources that count as GPUs; * stands for any text."""
    evaluation: EvaluationSettings = EvaluationSettings()
    trust: TrustSettings = TrustSettings()
    defaults: DefaultsSettings = DefaultsSettings()
    reclaim: ReclaimSettings = ReclaimSettings()
    wake: tuple[WakeSettings, ...] = ()
    """Wake queries of the operator; they need `prometheus.url`."""
    keda: KedaSettings = KedaSettings()
    hooks: tuple[HookSettings, ...] = ()
    """Hooks that policies may name: what has to end before a workload is suspended, such as saving its state."""
    suspend_at: bool = False
    """Whether annotation `idlegpu.io/suspend-at` of pods that have it is written, for trainers that save their state
    before they are suspended. It needs the permission to patch pods."""
    multi_kueue: MultiKueueSettings = MultiKueueSettings()
    notifications: NotificationSettings = NotificationSettings()
    page: PageSettings = PageSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()

    @property
    def lease_name(self) -> str:
        """The Lease of the replicas; replicas that reconcile nothing have one of their own."""
        return self.kubernetes.lease.name + ("" if self.writes else "-metrics")

    @property
    def writes(self) -> bool:
        """Whether anything of the cluster is changed: replicas that only answer KEDA change nothing."""
        return not {"reconciler", "dispatcher"}.isdisjoint(self.components)

    @property
    def limits(self) -> tuple[tuple[str, Overrides], ...]:
        """What goes before triggers and annotations."""
        observes = self.mode is EnforcementMode.OBSERVE
        return (("settings", Overrides(mode=self.mode)),) if observes else ()

    @property
    def hook_timeouts(self) -> dict[str, timedelta]:
        """Longest time of each hook, by name."""
        return {each.name: each.timeout for each in self.hooks}

    @field_validator("hooks")
    @classmethod
    def _hooks_differ(cls, hooks: tuple[HookSettings, ...]) -> tuple[HookSettings, ...]:
        if several := twice(each.name for each in hooks):
            raise ValueError(f"two hooks are named {several}")
        return hooks

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
        if "dispatcher" in self.components and self.kubernetes.namespaces:
            raise ValueError("the component dispatcher needs all namespaces; leave kubernetes.namespaces out")
        idle_after, max_window = self.defaults.idle_after or Policy().idle_after, self.evaluation.max_window
        if idle_after > max_window:
            raise ValueError(
                f"idleAfter is {format_duration(idle_after)} by default and evaluation.maxWindow only "
                f"{format_duration(max_window)}; raise evaluation.maxWindow or set defaults.idleAfter"
            )
        if not self.signals:
            raise ValueError("no signal is configured; leave signals out for the default ones")
        if several := twice(signal.name for signal in self.signals):
            raise ValueError(f"two signals are named {several}")
        return self
