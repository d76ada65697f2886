"""`idle-gpu-scaler`: the verbs and their flags. The work of each verb is in a module of its own, imported when it runs.

Other distributions add verbs by entry points of the group `idle_gpu_scaler.verbs`: a name, and a function for Typer.
"""

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from scaler.app.cli.terminal import terminal
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

Config = Annotated[Path | None, typer.Option("--config", help="Settings file (YAML).", show_default=False)]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        help="Kubeconfig file. Default: the Pod's ServiceAccount, or your own kubeconfig.",
        show_default=False,
    ),
]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.", show_default=False)]
PrometheusUrl = Annotated[
    str | None, typer.Option("--prometheus-url", help="URL of Prometheus or a Thanos querier.", show_default=False)
]
DcgmEndpoint = Annotated[
    list[str] | None,
    typer.Option("--dcgm-endpoint", help="URL of a dcgm-exporter to scrape; repeatable.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def client_of(
    *,
    server: Annotated[
        str, typer.Option("--server", help="HTTP address of a running scaler.")
    ] = "http://127.0.0.1:8080",
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
        client = client_of(**{name: given.pop(name) for name in shared})
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
        typer.Option("--components", help="'scaler,reconciler' (default), or one of the two.", show_default=False),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    prometheus_url: PrometheusUrl = None,
    dcgm_endpoint: DcgmEndpoint = None,
    grpc_address: Annotated[
        str | None,
        typer.Option("--grpc-address", help="Address of the gRPC server; default 0.0.0.0:9090.", show_default=False),
    ] = None,
    http_address: Annotated[
        str | None,
        typer.Option("--http-address", help="Address of the HTTP server; default 0.0.0.0:8080.", show_default=False),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error.", show_default=False)
    ] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help="json or text.", show_default=False)] = None,
) -> None:
    """Run the external scaler and the reconciler.

    Every replica answers KEDA. The replica that holds the Lease reconciles ScalableWorkloads, Workloads and
    AdmissionChecks.
    """
    from scaler.app.cli.run import run_scaler

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
    sys.exit(run_scaler(config, flags))


@query
def explain(
    client: "ScalerClient",
    name: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="A ScaledObject, a Workload, or the job of a Workload.")
    ],
) -> int:
    """Explain one decision, or one Workload.

    For a ScaledObject: the answer to KEDA, the evidence for each GPU, the source of each setting, and what happens
    next. For a Workload: why it is pending, its AdmissionChecks, and its ProvisioningRequests.
    """
    from scaler.app.cli.explain import run_explain

    return run_explain(client, name)


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
        str, typer.Option("--namespace", "-n", help="Only Workloads in this namespace.", show_default=False)
    ] = "",
    queue: Annotated[
        str, typer.Option("--queue", help="Only Workloads in this LocalQueue or ClusterQueue.", show_default=False)
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
) -> int:
    """Show the quota of Cohorts and ClusterQueues.

    Per queue and flavor: nominal quota and limits, usage, idle, reclaimable, available, borrowed and pending amounts.
    """
    from scaler.app.cli.queues import run_queues

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
        typer.Option(
            "--as",
            metavar="USER",
            help="Check the permissions of this user, such as system:serviceaccount:NAMESPACE:NAME; default: your own.",
            show_default=False,
        ),
    ] = "",
    connect_to: Annotated[
        str,
        typer.Option(
            "--connect-to",
            metavar="HOST:PORT",
            help="Address at which the scaler's gRPC server is reachable from here, such as a port-forward; "
            "default: scalerAddress.",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check a cluster for problems.

    Checks the API and its kinds, permissions, AdmissionChecks, ClusterQueues, ScaledObjects, the metrics source, and
    TLS as KEDA uses it, and says what to do about each problem. Changes nothing. Exits with status 1 if a check fails.
    """
    from scaler.app.cli.client import ScalerClient
    from scaler.app.cli.doctor import run_doctor

    flags = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.context": context,
        "prometheus.url": prometheus_url,
        "dcgm.endpoints": dcgm_endpoint or None,
    }
    client = ScalerClient(server="", local=True, config=config, flags=flags, as_json=as_json)
    sys.exit(run_doctor(client, user=user, connect_to=connect_to))


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
