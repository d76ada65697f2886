"""`idle-gpu-scaler`: the verbs and their flags. The work of each verb is in a module of its own, imported when it runs.

Other distributions add verbs by entry points of the group `idle_gpu_scaler.verbs`: a name, and a function for Typer.
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from scaler.app.cli.layout import terminal
from scaler.errors import ConfigurationError, ScalerError
from scaler.reporting.report.grouping import GroupBy

if TYPE_CHECKING:
    from scaler.app.cli.client import ScalerClient

app = typer.Typer(
    name="idle-gpu-scaler",
    help="Suspends idle GPU workloads, and gives their GPUs to pending Workloads (KEDA + Kueue).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _option(*names: str, about: str, **more: Any) -> Any:
    return typer.Option(*names, help=about, show_default=False, **more)


Config = Annotated[Path | None, _option("--config", metavar="FILE", about="Settings file (YAML).")]
Kubeconfig = Annotated[
    Path | None,
    _option(
        "--kubeconfig",
        metavar="FILE",
        about="Kubeconfig file. Default: the Pod's ServiceAccount, or your own kubeconfig.",
    ),
]
Context = Annotated[str | None, _option("--context", metavar="NAME", about="Context of the kubeconfig.")]
PrometheusUrl = Annotated[
    str | None, _option("--prometheus-url", metavar="URL", about="URL of Prometheus or a Thanos querier.")
]
DcgmEndpoint = Annotated[
    list[str] | None, _option("--dcgm-endpoint", metavar="URL", about="URL of a dcgm-exporter to scrape; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def client_of(
    *,
    server: Annotated[
        str,
        _option(
            "--server",
            metavar="URL",
            about="HTTP address of a running scaler. Default: the one in the cluster of --kubeconfig, if that is "
            "given; else http://127.0.0.1:8080.",
        ),
    ] = "",
    local: Annotated[
        bool,
        typer.Option("--local", help="Compute the answer in this process, read-only, instead of querying a scaler."),
    ] = False,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    prometheus_url: PrometheusUrl = None,
    as_json: AsJson = False,
) -> "ScalerClient":
    """The client that the flags of a query describe."""
    from scaler.app.cli.client import ScalerClient

    flags = {"kubernetes.kubeconfig": kubeconfig, "prometheus.url": prometheus_url}
    return ScalerClient(server=server, local=local, config=config, flags=flags, as_json=as_json)


def query(verb: Callable[..., int]) -> Callable[..., None]:
    """Register a verb that queries a scaler: its first parameter is the client, whose flags follow the verb's own."""
    _, *own = signature(verb).parameters.values()
    shared = signature(client_of).parameters
    parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in (*own, *shared.values())]

    def command(**given: Any) -> None:
        with client_of(**{name: given.pop(name) for name in shared}).reaching() as client:
            sys.exit(verb(client, **given))

    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    setattr(command, "__signature__", Signature(parameters))  # noqa: B010 (what Typer reads; unknown to types)
    return app.command()(command)


@app.command()
def run(
    config: Config = None,
    components: Annotated[
        str | None,
        _option(
            "--components",
            metavar="LIST",
            about="Some of scaler,reconciler,dispatcher. Default: scaler,reconciler.",
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    prometheus_url: PrometheusUrl = None,
    dcgm_endpoint: DcgmEndpoint = None,
    grpc_address: Annotated[
        str | None,
        _option("--grpc-address", metavar="HOST:PORT", about="Address of the gRPC server. Default: 0.0.0.0:9090."),
    ] = None,
    http_address: Annotated[
        str | None,
        _option("--http-address", metavar="HOST:PORT", about="Address of the HTTP server. Default: 0.0.0.0:8080."),
    ] = None,
    log_level: Annotated[
        str | None, _option("--log-level", metavar="LEVEL", about="debug, info, warning or error. Default: info.")
    ] = None,
    log_format: Annotated[
        str | None, _option("--log-format", metavar="FORMAT", about="json or text. Default: json.")
    ] = None,
) -> None:
    """Run the external scaler and the reconciler.

    Every replica answers KEDA. The replica that holds the Lease reconciles ScalableWorkloads, Workloads and
    AdmissionChecks.
    """
    from scaler.app.process import run_until_signal
    from scaler.app.settings.load import load
    from scaler.reporting import logs

    flags = {
        "components": components.split(",") if components else None,
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.context": context,
        "prometheus.url": prometheus_url,
        "dcgm.endpoints": dcgm_endpoint or None,
        "grpc.address": grpc_address,
        "http.address": http_address,
        "log.level": log_level,
        "log.format": log_format,
    }
    settings = load(config, environ=os.environ, flags=flags)
    logs.configure(level=settings.log.level, style=settings.log.format)
    run_until_signal(settings)


@query
def explain(
    client: "ScalerClient",
    name: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="A ScaledObject, what it scales, its job, or a Workload.")
    ],
    shows_defaults: Annotated[
        bool, typer.Option("--all", help="Show all settings, with those that are at built-in defaults.")
    ] = False,
) -> int:
    """Explain one decision, or one Workload.

    For a ScaledObject: the answer to KEDA, the evidence for each GPU, the settings that were set and their sources, and
    what happens next. For a Workload: why it is pending, its AdmissionChecks, and its ProvisioningRequests.
    """
    from scaler.app.cli.explain import run_explain

    return run_explain(client, name, shows_defaults=shows_defaults)


@query
def plan(
    client: "ScalerClient",
    gang: Annotated[str, typer.Argument(metavar="NAMESPACE/WORKLOAD", help="A pending Workload, or its job.")],
    idle: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IDLE", help="With --what-if-idle: NAMESPACE/NAME of the workloads.", show_default=False
        ),
    ] = None,
    what_if_idle: Annotated[
        bool,
        typer.Option(
            "--what-if-idle",
            help="Assume that the workloads IDLE are idle; without IDLE, all that a plan may suspend.",
        ),
    ] = False,
) -> int:
    """Show the reclaim plan for a pending Workload.

    Which idle workloads would be suspended, what that costs and frees, where the pods would be placed, and why each
    victim is needed; or why no plan is found, and what would help. For an active plan, its progress. Changes nothing.
    """
    from scaler.app.cli.plan import run_plan

    return run_plan(client, gang, what_if=what_if_idle, idle=idle or [])


@query
def pending(
    client: "ScalerClient",
    namespace: Annotated[
        str, _option("--namespace", "-n", metavar="NAME", about="Only Workloads in this namespace.")
    ] = "",
    queue: Annotated[
        str, _option("--queue", metavar="NAME", about="Only Workloads in this LocalQueue or ClusterQueue.")
    ] = "",
) -> int:
    """Show all pending GPU Workloads, and why each of them is pending.

    Quota, position in the queue, placement, AdmissionChecks, or an active reclaim plan; with numbers, and with the
    conditions that Kueue reports.
    """
    from scaler.app.cli.pending import run_pending

    return run_pending(client, namespace=namespace, queue=queue)


@query
def queues(
    client: "ScalerClient",
    all_resources: Annotated[bool, typer.Option("--all-resources", help="Show all resources, not only GPUs.")] = False,
    all_clusters: Annotated[
        bool, typer.Option("--all-clusters", help="Show the GPUs of every worker cluster, on a hub of MultiKueue.")
    ] = False,
) -> int:
    """Show the quota of Cohorts and ClusterQueues.

    Per queue and flavor: nominal quota and limits, usage, idle, reclaimable, available, borrowed and pending amounts.
    """
    from scaler.app.cli.queues import run_clusters, run_queues

    if all_clusters:
        return run_clusters(client)
    return run_queues(client, all_resources=all_resources)


@app.command()
def doctor(
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    prometheus_url: PrometheusUrl = None,
    dcgm_endpoint: DcgmEndpoint = None,
    user: Annotated[
        str,
        _option(
            "--as",
            metavar="USER",
            about="Check the permissions of this user, such as system:serviceaccount:NAMESPACE:NAME; "
            "default: your own.",
        ),
    ] = "",
    connect_to: Annotated[
        str,
        _option(
            "--connect-to",
            metavar="HOST:PORT",
            about="Address at which the scaler's gRPC server is reachable from here, such as a port-forward; "
            "default: scalerAddress.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check a cluster for problems.

    Checks the API and its kinds, permissions, AdmissionChecks, ClusterQueues, ScaledObjects, the metrics source, and
    TLS as KEDA uses it, and says what to do about each problem. Changes nothing. Exits with status 1 if a check fails.
    """
    from scaler.app.cli.doctor import run_doctor

    client = _cluster_client(config, kubeconfig, context, prometheus_url, dcgm_endpoint, as_json=as_json)
    sys.exit(run_doctor(client, user=user, connect_to=connect_to))


Workload = Annotated[
    str, typer.Argument(metavar="NAMESPACE/NAME", help="A ScaledObject, what it scales, or the job that it belongs to.")
]


@app.command()
def keep(
    name: Workload,
    duration: Annotated[str, _option("--for", metavar="DURATION", about="From now on, such as 4h.")] = "",
    until: Annotated[str, _option("--until", metavar="TIME", about="Such as 2026-12-24T18:00:00Z.")] = "",
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Keep a workload from being suspended for a while.

    Sets the annotation idlegpu.io/keep-until of its ScaledObject, with your own permissions.
    """
    from scaler.app.cli.request import run_keep

    sys.exit(run_keep(_cluster_client(config, kubeconfig, context), name, duration=duration, until=until))


@app.command()
def wake(
    name: Workload,
    when_free: Annotated[
        bool, _option("--when-free", about="Not before its quota and nodes are free and no Workload waits for them.")
    ] = False,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Wake a suspended workload up.

    Sets the annotation idlegpu.io/wake of its ScaledObject, with your own permissions. It comes back once it gets its
    quota.
    """
    from scaler.app.cli.request import run_wake

    sys.exit(run_wake(_cluster_client(config, kubeconfig, context), name, when_free=when_free))


@app.command()
def exclude(
    name: Workload,
    duration: Annotated[str, _option("--for", metavar="DURATION", about="From now on, such as 4h.")] = "",
    until: Annotated[str, _option("--until", metavar="TIME", about="Such as 2026-12-24T18:00:00Z.")] = "",
    remove: Annotated[bool, _option("--remove", about="End the exclusion.")] = False,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Exclude a workload from being suspended.

    For good, or for a while. Sets the annotation idlegpu.io/exclude of its ScaledObject, with your own permissions.
    """
    from scaler.app.cli.request import run_exclude

    client = _cluster_client(config, kubeconfig, context)
    sys.exit(run_exclude(client, name, duration=duration, until=until, remove=remove))


@app.command()
def suspend(name: Workload, config: Config = None, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Suspend a workload now, whatever its GPUs do.

    Scales it to 0, with your own permissions. What is in memory is lost, as with any eviction; no hook is waited for.
    """
    from scaler.app.cli.request import run_suspend

    sys.exit(run_suspend(_cluster_client(config, kubeconfig, context), name))


@app.command()
def history(
    name: Workload,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Show a workload's states: when, why, and who asked for them."""
    from scaler.app.cli.request import run_history

    sys.exit(run_history(_cluster_client(config, kubeconfig, context, as_json=as_json), name))


@query
def top(
    client: "ScalerClient",
    lines: Annotated[int, typer.Option("--lines", metavar="N", help="Workloads that are shown.", min=1)] = 40,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="How often it is shown anew.", min=1)] = 5,
    once: Annotated[bool, _option("--once", about="Print once and end.")] = False,
) -> int:
    """Show the workloads that are idle longest, every few seconds."""
    from scaler.app.cli.top import run_top

    return run_top(client, lines=lines, every=None if once else every)


@app.command()
def report(
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="How long a time, such as 24h or 30d.")
    ] = "7d",
    until: Annotated[
        str, _option("--until", metavar="TIME", about="Until when, such as 2026-12-01T00:00:00Z; default: now.")
    ] = "",
    by: Annotated[GroupBy, typer.Option("--by", help="What the rows are.")] = GroupBy.TEAM,
    html: Annotated[
        Path | None, _option("--html", metavar="FILE", about="Write a page for people to this file, to open or print.")
    ] = None,
    focus: Annotated[
        Path | None,
        _option("--focus", metavar="FILE", about="Write charges for cost tools to this file (CSV, FOCUS 1.2)."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of text.")] = False,
    as_json: AsJson = False,
    config: Config = None,
    prometheus_url: PrometheusUrl = None,
) -> None:
    """Show what GPUs did over days.

    Who held how much idle, what was reclaimed and who got it, regretted suspensions, how long gangs waited, money and
    energy: from the scaler's own metrics in Prometheus, which has to scrape it. What is not known is said.
    """
    from scaler.app.cli.report import ReportOutputs, run_report

    outputs = ReportOutputs(as_json=as_json, as_csv=as_csv, html=html, focus=focus)
    flags = {"prometheus.url": prometheus_url}
    sys.exit(run_report(since=since, until=until, by=by, config=config, flags=flags, outputs=outputs))


def _cluster_client(
    config: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    prometheus_url: str | None = None,
    dcgm_endpoint: list[str] | None = None,
    *,
    as_json: bool = False,
) -> "ScalerClient":
    """For verbs that need no running scaler: the Kubernetes API and, where it is named, a metrics source."""
    from scaler.app.cli.client import ScalerClient

    flags = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.context": context,
        "prometheus.url": prometheus_url,
        "dcgm.endpoints": dcgm_endpoint or None,
    }
    return ScalerClient(server="", local=True, config=config, flags=flags, as_json=as_json)


policy = typer.Typer(help="Try IdlePolicies.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(policy, name="policy")


@policy.command("test")
def policy_test(
    file: Annotated[
        list[Path],
        _option(
            "--filename",
            "-f",
            metavar="FILE",
            about="IdlePolicies and ClusterIdlePolicies (YAML): a file, a folder, or - for stdin; repeatable.",
        ),
    ],
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    prometheus_url: PrometheusUrl = None,
    dcgm_endpoint: DcgmEndpoint = None,
    as_json: AsJson = False,
) -> None:
    """Show what policies would do, before they are applied.

    Which jobs would follow them, what would differ from now, and which would be suspended at once. Reads the cluster
    and, where a metrics source is named, its samples with your own permissions. Changes nothing. Exits with status 1 if
    a policy is not valid.
    """
    from scaler.app.cli.policy import run_policy_test

    client = _cluster_client(config, kubeconfig, context, prometheus_url, dcgm_endpoint, as_json=as_json)
    sys.exit(run_policy_test(client, file))


def _refuse(flags: Mapping[str, object], why: str) -> None:
    """Raises: ConfigurationError where one of them is given."""
    if given := [name for name, value in flags.items() if value]:
        raise ConfigurationError(f"{', '.join(given)}: {why}")


@app.command()
def simulate(
    trace: Annotated[
        Path | None,
        _option(
            "--trace",
            metavar="FILE",
            about="Samples of the past: CSV, gzip of it, or Parquet; see choose-your-window.md.",
        ),
    ] = None,
    since: Annotated[
        str,
        _option(
            "--since",
            metavar="DURATION",
            about="Samples of Prometheus or Thanos, so far back, such as 30d; instead of --trace.",
        ),
    ] = "",
    config: Config = None,
    prometheus_url: PrometheusUrl = None,
    cache: Annotated[
        Path | None,
        _option("--cache", metavar="FOLDER", about="Where samples of --since are kept. Default: in your cache folder."),
    ] = None,
    idle_after: Annotated[
        str,
        _option(
            "--idle-after",
            metavar="DURATIONS",
            about="Values of idleAfter to compare, such as 30m,60m. Default: the settings'.",
        ),
    ] = "",
    warm_up: Annotated[
        str, _option("--warm-up", metavar="DURATION", about="warmUp of them, such as 10m. Default: the settings'.")
    ] = "",
    active_above: Annotated[
        str,
        _option("--active-above", metavar="PERCENT", about="activeAbove of them, such as 5%. Default: the settings'."),
    ] = "",
    file: Annotated[
        list[Path] | None,
        _option("--filename", "-f", metavar="FILE", about="IdlePolicies (YAML) to compare as well; repeatable."),
    ] = None,
    accept_regret: Annotated[
        str,
        _option(
            "--accept-regret",
            metavar="PERCENT",
            about="Recommend the idleAfter that frees most while at most this share of suspensions has a return within "
            "15 minutes, such as 5%.",
        ),
    ] = "",
    curve: Annotated[bool, typer.Option("--curve/--no-curve", help="Also try other values of idleAfter.")] = True,
    floors: Annotated[
        str,
        _option(
            "--floors",
            metavar="PERCENTS",
            about="Values of activeAbove of the curve, such as 1%,5%. Default: that of the policy.",
        ),
    ] = "",
    html: Annotated[
        Path | None, _option("--html", metavar="FILE", about="Also write a report that any browser shows.")
    ] = None,
    csv: Annotated[
        Path | None, _option("--csv", metavar="FILE", about="Also write the numbers, by team, queue and workload.")
    ] = None,
    workloads: Annotated[
        Path | None,
        _option("--workloads", metavar="FILE", about="Workloads of the past: JSON of kubectl, or CSV."),
    ] = None,
    gpus: Annotated[
        str,
        _option(
            "--gpus", metavar="GPUS", about="Of Workloads: GPUs of the quota; by ClusterQueue: team-a=64,team-b=32."
        ),
    ] = "",
    compare: Annotated[
        str,
        _option("--compare", metavar="POLICIES", about="Of Workloads: some of none,always,on-pressure. Default: all."),
    ] = "",
    idle_share: Annotated[
        float,
        typer.Option(
            "--idle-share",
            metavar="SHARE",
            help="Share of the Workloads up to 8 GPUs that are sessions, if there are no samples.",
            min=0,
            max=1,
        ),
    ] = 0.3,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Another number draws other sessions and pauses.")
    ] = 0,
    price: Annotated[
        float | None, _option("--price", metavar="PRICE", about="Of Workloads: price of one GPU for one hour.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what policies would have done in the past.

    With --trace or --since: replays samples through the same decisions as in production, and tells what would have been
    freed, and how soon owners would have come back. With --gpus: how long gangs would have waited, and how well GPUs
    would have been used, with nothing suspended, with idle workloads always suspended, and with reclaim plans. Their
    Workloads are those of --workloads, or with --since those that kube-state-metrics has shown, or else the workloads
    that samples show; pauses are those of samples, if there are any, and else drawn. Changes nothing.
    """
    from scaler.app.cli.gangs import run_gangs
    from scaler.app.cli.simulate import SimulateFlags, run_simulate

    flags = SimulateFlags(
        trace=trace,
        config=config,
        since=since,
        prometheus_url=prometheus_url,
        cache=cache,
        idle_after=idle_after,
        warm_up=warm_up,
        active_above=active_above,
        files=file or [],
        accept_regret=accept_regret,
        has_curve=curve,
        floors=floors,
        html=html,
        csv=csv,
        as_json=as_json,
    )
    if trace is not None and not since:
        _refuse({"--cache": cache, "--prometheus-url": prometheus_url}, "only with --since")
    if workloads is None and not gpus and not compare:
        _refuse({"--price": price}, "only with --gpus")
        sys.exit(run_simulate(flags))
    of_replays = {
        "--idle-after": idle_after, "--warm-up": warm_up, "--active-above": active_above, "--filename": file,
        "--accept-regret": accept_regret, "--floors": floors, "--html": html, "--csv": csv,
    }  # fmt: skip
    _refuse(
        of_replays,
        "only without --workloads and --gpus; windows and activeAbove of simulated Workloads are those of --config",
    )
    sys.exit(
        run_gangs(workloads, samples=flags, compare=compare, gpus=gpus, idle_share=idle_share, seed=seed, price=price)
    )


@app.command()
def version() -> None:
    """Print the version."""
    from scaler import __version__

    print(f"idle-gpu-scaler {__version__}")  # noqa: T201 (the program's output)


def _add_verbs() -> None:
    """Add the verbs of installed distributions; without the sandbox, a `demo` that says how to install it."""
    found = {each.name: each for each in entry_points(group="idle_gpu_scaler.verbs")}
    for name, verb in sorted(found.items()):
        app.command(name=name)(verb.load())
    if "demo" not in found:
        ignoring = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(name="demo", context_settings=ignoring, add_help_option=False)(_no_demo)


def _no_demo() -> None:
    """Run a demo on a simulated cluster (needs the extra `demo`)."""
    raise ConfigurationError("the demo is not installed; install it with: pip install 'idle-gpu-scaler[demo]'")


_add_verbs()


def main() -> None:
    """The program. Configuration errors end it with status 2 and a message, not a traceback."""
    try:
        app(prog_name="idle-gpu-scaler")
    except ScalerError as error:
        terminal(is_error=True).print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
