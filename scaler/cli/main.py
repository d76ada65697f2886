"""`idle-gpu-scaler`: the verbs and their flags. Each verb's work is in a file of its own."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from scaler.cli.terminal import terminal
from scaler.errors import ScalerError

app = typer.Typer(
    name="idle-gpu-scaler",
    help="Suspends GPU workloads that are really idle and hands their GPUs to the gangs that wait (KEDA + Kueue).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Config = Annotated[Path | None, typer.Option("--config", help="Settings file (YAML).", show_default=False)]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig; default: the pod's account, or your own.", show_default=False),
]
PrometheusUrl = Annotated[
    str | None, typer.Option("--prometheus-url", help="Prometheus or Thanos querier.", show_default=False)
]
Server = Annotated[str, typer.Option("--server", help="HTTP address of a running scaler.")]
Local = Annotated[
    bool, typer.Option("--local", help="Look here and now, read-only, instead of asking a running scaler.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
_SERVER = "http://127.0.0.1:8080"


@app.command()
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines instead of the live timeline.")] = False,
    source: Annotated[
        str, typer.Option("--source", help="Where metrics come from: 'dcgm' (direct scrape) or 'prometheus'.")
    ] = "dcgm",
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep gRPC, HTTP and the Kubernetes API up after the story.")
    ] = False,
    act: Annotated[
        str, typer.Option("--act", help="Only one act: 'first', 'second' or 'third'.", show_default=False)
    ] = "",
) -> None:
    """Tell the story on an embedded cluster, in three acts.

    First, a gang goes idle and is suspended, the gang that waited gets its GPUs, and the first one comes back. Then
    three teams share a cohort, five notebooks are idle, and a gang of 8 gets in by suspending just two of them. Last, a
    gang of 16 takes 8 idle GPUs and asks for the node that it lacks, and starts when all of it can.
    """
    from scaler.cli.demo import run_demo

    sys.exit(run_demo(as_json=as_json, source=source, serve=serve, act=act))


@app.command()
def run(
    config: Config = None,
    components: Annotated[
        str | None,
        typer.Option("--components", help="'scaler,reconciler' (default), or one of them.", show_default=False),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Annotated[str | None, typer.Option("--context", help="Kubeconfig context.", show_default=False)] = None,
    prometheus_url: PrometheusUrl = None,
    dcgm_endpoint: Annotated[
        list[str] | None,
        typer.Option("--dcgm-endpoint", help="dcgm-exporter URL to scrape directly; repeatable.", show_default=False),
    ] = None,
    grpc_address: Annotated[
        str | None, typer.Option("--grpc-address", help="Where KEDA calls; default 0.0.0.0:9090.", show_default=False)
    ] = None,
    http_address: Annotated[
        str | None,
        typer.Option("--http-address", help="Metrics and pages; default 0.0.0.0:8080.", show_default=False),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error.", show_default=False)
    ] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help="json or text.", show_default=False)] = None,
) -> None:
    """Run the scaler and the reconciler.

    The external scaler answers KEDA; the reconciler, in the replica that holds the Lease, drives Kueue's Workloads.
    """
    from scaler.cli.run import run_scaler

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


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The ScaledObject; or a Workload, or its job.")],
    server: Server = _SERVER,
    local: Annotated[
        bool, typer.Option("--local", help="Evaluate here and now, read-only, instead of asking a running scaler.")
    ] = False,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    prometheus_url: PrometheusUrl = None,
    as_json: AsJson = False,
) -> None:
    """Explain one decision, or one gang.

    What was decided about a ScaledObject, by which evidence, where each setting came from, what happens next and when.
    Of a Workload how it stands: what it waits for, its AdmissionChecks, and the nodes that were asked for.
    """
    from scaler.cli.explain import run_explain

    flags = {"kubernetes.kubeconfig": kubeconfig, "prometheus.url": prometheus_url}
    sys.exit(run_explain(name, server=server, local=local, config=config, flags=flags, as_json=as_json))


@app.command()
def plan(
    gang: Annotated[str, typer.Argument(metavar="NAMESPACE/WORKLOAD", help="The Workload that waits, or its job.")],
    idle: Annotated[
        list[str] | None,
        typer.Argument(metavar="IDLE", help="With --what-if-idle: NAMESPACE/NAME of these.", show_default=False),
    ] = None,
    what_if_idle: Annotated[
        bool, typer.Option("--what-if-idle", help="As if the IDLE, or everybody there whom a plan may take, were idle.")
    ] = False,
    server: Server = _SERVER,
    local: Local = False,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    prometheus_url: PrometheusUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what would be suspended for a gang.

    Which idle workloads, at what cost, what that frees, where the gang's pods go, and why not less; or why nobody is
    suspended and what would help. Of a plan that is under way, how far it is. Nothing is suspended by asking.
    """
    from scaler.cli.asking import Asked
    from scaler.cli.plan import run_plan

    flags = {"kubernetes.kubeconfig": kubeconfig, "prometheus.url": prometheus_url}
    asked = Asked(server=server, local=local, config=config, flags=flags, as_json=as_json)
    sys.exit(run_plan(asked, gang, what_if=what_if_idle, idle=idle or []))


@app.command()
def pending(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only of this one.", show_default=False)] = "",
    queue: Annotated[
        str, typer.Option("--queue", help="Only of this LocalQueue or ClusterQueue.", show_default=False)
    ] = "",
    server: Server = _SERVER,
    local: Local = False,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    prometheus_url: PrometheusUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show every gang that waits for GPUs, and why.

    Quota, head of line, placement, admission checks, or a plan that is under way; with the numbers, and with what
    Kueue says.
    """
    from scaler.cli.asking import Asked
    from scaler.cli.pending import run_pending

    flags = {"kubernetes.kubeconfig": kubeconfig, "prometheus.url": prometheus_url}
    asked = Asked(server=server, local=local, config=config, flags=flags, as_json=as_json)
    sys.exit(run_pending(asked, namespace=namespace, queue=queue))


@app.command()
def queues(
    all_resources: Annotated[bool, typer.Option("--all-resources", help="Not only GPUs.")] = False,
    server: Server = _SERVER,
    local: Local = False,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    prometheus_url: PrometheusUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the quota trees.

    Per queue and flavor: nominal quota and limits, what is used, held by idle workloads, reclaimable, available,
    borrowed, and waited for.
    """
    from scaler.cli.asking import Asked
    from scaler.cli.queues import run_queues

    flags = {"kubernetes.kubeconfig": kubeconfig, "prometheus.url": prometheus_url}
    asked = Asked(server=server, local=local, config=config, flags=flags, as_json=as_json)
    sys.exit(run_queues(asked, all_resources=all_resources))


@app.command()
def doctor(
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Annotated[str | None, typer.Option("--context", help="Kubeconfig context.", show_default=False)] = None,
    prometheus_url: PrometheusUrl = None,
    dcgm_endpoint: Annotated[
        list[str] | None,
        typer.Option("--dcgm-endpoint", help="dcgm-exporter URL to scrape directly; repeatable.", show_default=False),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="USER",
            help="Whose permissions to look at, such as system:serviceaccount:NAMESPACE:NAME; default: your own.",
            show_default=False,
        ),
    ] = "",
    connect_to: Annotated[
        str,
        typer.Option(
            "--connect-to",
            metavar="HOST:PORT",
            help="Where the scaler's gRPC is reached from here, such as a port-forward; default: scalerAddress.",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong with a cluster.

    The API and its kinds, permissions, AdmissionChecks and ClusterQueues, ScaledObjects, the metrics source, and TLS as
    KEDA speaks it: check by check, what was found, where, and what to do. Changes nothing. Ends with status 1 where
    something fails.
    """
    from scaler.cli.asking import Asked
    from scaler.cli.doctor import run_doctor

    flags = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.context": context,
        "prometheus.url": prometheus_url,
        "dcgm.endpoints": dcgm_endpoint or None,
    }
    asked = Asked(server="", local=True, config=config, flags=flags, as_json=as_json)
    sys.exit(run_doctor(asked, user=user, connect_to=connect_to))


@app.command()
def version() -> None:
    """Print the version."""
    from scaler import __version__

    print(f"idle-gpu-scaler {__version__}")  # noqa: T201 (the program's output)


def main() -> None:
    """The program. Errors that are an operator's to mend end it with status 2 and a message, not a traceback."""
    try:
        app(prog_name="idle-gpu-scaler")
    except ScalerError as error:
        terminal(is_error=True).print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
