"""The verb that this distribution brings: `idle-gpu-scaler demo`."""

import os
import sys
from typing import Annotated

import typer


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines instead of the live timeline.")] = False,
    source: Annotated[
        str, typer.Option("--source", help="Where metrics come from: 'dcgm' (direct scrape) or 'prometheus'.")
    ] = "dcgm",
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep everything running after the story, and print the addresses.")
    ] = False,
    act: Annotated[
        str,
        typer.Option(
            "--act", help="Only one act: 'first', 'second', 'third', 'fourth' or 'fifth'.", show_default=False
        ),
    ] = "",
) -> None:
    """Tell the story on embedded clusters, in five acts.

    First, a gang goes idle and is suspended, the gang that waited gets its GPUs, and the first one comes back. Then
    three teams share a cohort, five notebooks are idle, and a gang of 8 gets in by suspending just two of them. Then a
    gang of 16 takes 8 idle GPUs and asks for the node that it lacks, and starts when all of it can. Then an owner is
    warned, and keeps a notebook for a while. Last, a gang goes to the one of two clusters where GPUs are idle, and only
    there are notebooks suspended.
    """
    # gRPC writes a line at each fork, such as the one that starts Prometheus; no forked process uses it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from scaler_sandbox.demo import run_demo

    sys.exit(run_demo(as_json=as_json, source=source, serve=serve, act=act))
