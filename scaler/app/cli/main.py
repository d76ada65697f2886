"""`idle-gpu-scaler`: the verbs and their flags. The work of each verb is in a module of its own, imported when it runs.

Other distributions add verbs by entry points of the group `idle_gpu_scaler.verbs`: a name, and a function for Typer.
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.text import Text

from scaler.app.cli.flags import AsJson, Config, Context, DcgmEndpoint, Kubeconfig, PrometheusUrl, as_read, option
from scaler.app.cli.layout import terminal
from scaler.errors import ConfigurationError, ScalerError

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


def client_of(
    *,
    server: Annotated[
        str,
        option(
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


def cluster_client_of(
    *,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    prometheus_url: PrometheusUrl = None,
    dcgm_endpoint: DcgmEndpoint = None,
    as_json: AsJson = False,
) -> "ScalerClient":
    """A client for verbs without a running scaler: it has the Kubernetes API and, where named, a metrics source."""
    from scaler.app.cli.client import ScalerClient

    flags = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.context": context,
        "prometheus.url": prometheus_url,
        "dcgm.endpoints": dcgm_endpoint or None,
    }
    return ScalerClient(server="", local=True, config=config, flags=flags, as_json=as_json)


Verb: TypeAlias = Callable[..., int]
Command: TypeAlias = Callable[..., None]
_CLUSTER = ("config", "kubeconfig", "context")


def with_client(
    client: Callable[..., "ScalerClient"], *flags: str
) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """The command of a verb whose first parameter is such a client, with its flags (all, or these) after the verb's."""
    shared = {name: each for name, each in signature(client).parameters.items() if not flags or name in flags}

    def command_of(verb: Verb) -> Command:
        _, *own = signature(verb).parameters.values()
        parameters = (each.replace(kind=each.KEYWORD_ONLY) for each in (*own, *shared.values()))

        def command(**given: Any) -> None:
            with client(**{name: given.pop(name) for name in shared}).reaching() as reached:
                sys.exit(verb(reached, **given))

        return as_read(command, verb, parameters)

    return command_of


def query(verb: Verb) -> Command:
    """Register a verb that queries a scaler."""
    return app.command()(with_client(client_of)(verb))


@app.command()
def run(
    config: Config = None,
    components: Annotated[
        str | None,
        option(
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
        option("--grpc-address", metavar="HOST:PORT", about="Address of the gRPC server. Default: 0.0.0.0:9090."),
    ] = None,
    http_address: Annotated[
        str | None,
        option("--http-address", metavar="HOST:PORT", about="Address of the HTTP server. Default: 0.0.0.0:8080."),
    ] = None,
    log_level: Annotated[
        str | None, option("--log-level", metavar="LEVEL", about="debug, info, warning or error. Default: info.")
    ] = None,
    log_format: Annotated[
        str | None, option("--log-format", metavar="FORMAT", about="json or text. Default: json.")
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
        str, option("--namespace", "-n", metavar="NAME", about="Only Workloads in this namespace.")
    ] = "",
    queue: Annotated[
        str, option("--queue", metavar="NAME", about="Only Workloads in this LocalQueue or ClusterQueue.")
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
@with_client(cluster_client_of)
def doctor(
    client: "ScalerClient",
    user: Annotated[
        str,
        option(
            "--as",
            metavar="USER",
            about="Check the permissions of this user, such as system:serviceaccount:NAMESPACE:NAME; "
            "default: your own.",
        ),
    ] = "",
    connect_to: Annotated[
        str,
        option(
            "--connect-to",
            metavar="HOST:PORT",
            about="Address at which the scaler's gRPC server is reachable from here, such as a port-forward; "
            "default: scalerAddress.",
        ),
    ] = "",
) -> int:
    """Check a cluster for problems.

    Checks the API and its kinds, permissions, AdmissionChecks, ClusterQueues, ScaledObjects, the metrics source, and
    TLS as KEDA uses it, and says what to do about each problem. Changes nothing. Exits with status 1 if a check fails.
    """
    from scaler.app.cli.doctor import run_doctor

    return run_doctor(client, user=user, connect_to=connect_to)


Workload = Annotated[
    str, typer.Argument(metavar="NAMESPACE/NAME", help="A ScaledObject, what it scales, or the job that it belongs to.")
]


@app.command()
@with_client(cluster_client_of, *_CLUSTER)
def keep(
    client: "ScalerClient",
    name: Workload,
    duration: Annotated[str, option("--for", metavar="DURATION", about="From now on, such as 4h.")] = "",
    until: Annotated[str, option("--until", metavar="TIME", about="Such as 2026-12-24T18:00:00Z.")] = "",
) -> int:
    """Keep a workload from being suspended for a while.

    Sets the annotation idlegpu.io/keep-until of its ScaledObject, with your own permissions.
    """
    from scaler.app.cli.request import run_keep

    return run_keep(client, name, duration=duration, until=until)


@app.command()
@with_client(cluster_client_of, *_CLUSTER)
def wake(
    client: "ScalerClient",
    name: Workload,
    when_free: Annotated[
        bool, option("--when-free", about="Not before its quota and nodes are free and no Workload waits for them.")
    ] = False,
) -> int:
    """Wake a suspended workload up.

    Sets the annotation idlegpu.io/wake of its ScaledObject, with your own permissions. It comes back once it gets its
    quota.
    """
    from scaler.app.cli.request import run_wake

    return run_wake(client, name, when_free=when_free)


@app.command()
@with_client(cluster_client_of, *_CLUSTER)
def exclude(
    client: "ScalerClient",
    name: Workload,
    duration: Annotated[str, option("--for", metavar="DURATION", about="From now on, such as 4h.")] = "",
    until: Annotated[str, option("--until", metavar="TIME", about="Such as 2026-12-24T18:00:00Z.")] = "",
    remove: Annotated[bool, option("--remove", about="End the exclusion.")] = False,
) -> int:
    """Exclude a workload from being suspended.

    For good, or for a while. Sets the annotation idlegpu.io/exclude of its ScaledObject, with your own permissions.
    """
    from scaler.app.cli.request import run_exclude

    return run_exclude(client, name, duration=duration, until=until, remove=remove)


@app.command()
@with_client(cluster_client_of, *_CLUSTER)
def suspend(client: "ScalerClient", name: Workload) -> int:
    """Suspend a workload now, whatever its GPUs do.

    Scales it to 0, with your own permissions. What is in memory is lost, as with any eviction; no hook is waited for.
    """
    from scaler.app.cli.request import run_suspend

    return run_suspend(client, name)


@app.command()
@with_client(cluster_client_of, *_CLUSTER, "as_json")
def history(
    client: "ScalerClient",
    name: Workload,
) -> int:
    """Show a workload's states: when, why, and who asked for them."""
    from scaler.app.cli.request import run_history

    return run_history(client, name)


@query
def top(
    client: "ScalerClient",
    lines: Annotated[int, typer.Option("--lines", metavar="N", help="Workloads that are shown.", min=1)] = 40,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="How often it is shown anew.", min=1)] = 5,
    once: Annotated[bool, option("--once", about="Print once and end.")] = False,
) -> int:
    """Show the workloads that are idle longest, every few seconds."""
    from scaler.app.cli.top import run_top

    return run_top(client, lines=lines, every=None if once else every)


policy = typer.Typer(help="Try IdlePolicies.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(policy, name="policy")


@policy.command("test")
@with_client(cluster_client_of)
def policy_test(
    client: "ScalerClient",
    file: Annotated[
        list[Path],
        option(
            "--filename",
            "-f",
            metavar="FILE",
            about="IdlePolicies and ClusterIdlePolicies (YAML): a file, a folder, or - for stdin; repeatable.",
        ),
    ],
) -> int:
    """Show what policies would do, before they are applied.

    Which jobs would follow them, what would differ from now, and which would be suspended at once. Reads the cluster
    and, where a metrics source is named, its samples with your own permissions. Changes nothing. Exits with status 1 if
    a policy is not valid.
    """
    from scaler.app.cli.policy import run_policy_test

    return run_policy_test(client, file)


@app.command()
def version() -> None:
    """Print the version."""
    from scaler import __version__

    print(f"idle-gpu-scaler {__version__}")  # noqa: T201 (the program's output)


_OF_EXTRAS = {
    "demo": ("demo", "Tell the story on embedded clusters"),
    "report": ("analysis", "Show what GPUs did over days"),
    "simulate": ("analysis", "Simulate policies on samples of the past"),
}
"""Verbs that our other distributions bring: which extra installs each, and what it does."""


def _add_verbs() -> None:
    """Add the verbs of installed distributions; in the place of a missing one a verb that says how to install it."""
    found = {each.name: each for each in entry_points(group="idle_gpu_scaler.verbs")}
    for name in sorted({*found, *_OF_EXTRAS}):
        if name in found:
            app.command(name=name)(found[name].load())
        else:
            _add_missing(name, *_OF_EXTRAS[name])


def _add_missing(verb: str, extra: str, about: str) -> None:
    def refuse() -> None:
        raise ConfigurationError(f"{verb} is not installed; install it with: pip install 'idle-gpu-scaler[{extra}]'")

    ignoring = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(verb, context_settings=ignoring, add_help_option=False, help=f"{about} (extra {extra!r}).")(refuse)


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
