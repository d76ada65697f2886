"""The flags that several verbs have, as Typer reads them."""

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")


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


def command_of(verb: Callable[[T], None], flags: type[T]) -> Callable[..., None]:
    """The command of a verb whose flags are the fields of a dataclass."""

    def command(**given: Any) -> None:
        verb(flags(**given))

    return as_read(command, verb, signature(flags).parameters.values())


def as_read(
    command: Callable[..., None], verb: Callable[..., Any], parameters: Iterable[Parameter]
) -> Callable[..., None]:
    """The command with the name, the help and the flags that Typer reads of it."""
    flags = [*parameters]
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {each.name: each.annotation for each in flags}
    setattr(command, "__signature__", Signature(flags))  # noqa: B010 (unknown to types)
    return command
