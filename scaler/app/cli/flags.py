"""The flags that several verbs have, as Typer reads them."""

from pathlib import Path
from typing import Annotated, Any

import typer


def option(*names: str, about: str, **more: Any) -> Any:
    return typer.Option(*names, help=about, show_default=False, **more)


Config = Annotated[Path | None, option("--config", metavar="FILE", about="Settings file (YAML).")]
Kubeconfig = Annotated[
    Path | None,
    option(
        "--kubeconfig",
        metavar="FILE",
        about="Kubeconfig file. Default: the Pod's ServiceAccount, or your own kubeconfig.",
    ),
]
Context = Annotated[str | None, option("--context", metavar="NAME", about="Context of the kubeconfig.")]
PrometheusUrl = Annotated[
    str | None, option("--prometheus-url", metavar="URL", about="URL of Prometheus or a Thanos querier.")
]
DcgmEndpoint = Annotated[
    list[str] | None, option("--dcgm-endpoint", metavar="URL", about="URL of a dcgm-exporter to scrape; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
