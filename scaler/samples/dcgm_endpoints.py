"""Which addresses are scraped? `http://10.0.0.7:9400/metrics` is one; `dns+http://dcgm-exporter.gpu.svc:9400` are many.

`dns+` asks for every address of the name at every scrape. With a headless Service that is every exporter of the
DaemonSet, without access to the Kubernetes API. A Service with a cluster IP has one address, behind which a different
exporter answers each time: most GPUs would then be missed, which is why the name alone is never enough.
"""

import asyncio
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from scaler.errors import ConfigurationError

_EVERY_ADDRESS = "dns+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One configured endpoint."""

    url: str
    """Of the page to fetch."""
    every_address: bool = False
    """Whether the host is a name all of whose addresses are meant."""

    @property
    def instance(self) -> str:
        """`host:port`, as Prometheus labels it."""
        return urlsplit(self.url).netloc


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint as an operator writes it; a URL without a path means /metrics.

    Raises: ConfigurationError.
    """
    every_address = text.startswith(_EVERY_ADDRESS)
    try:
        parts = urlsplit(text.removeprefix(_EVERY_ADDRESS))
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"dcgm endpoint {_without_user(text)!r} is not a URL; write for example 'http://10.0.0.7:9400/metrics', "
            "or 'dns+http://dcgm-exporter.gpu-operator.svc:9400' for every address of a headless Service"
        )
    if every_address and parts.scheme == "https":
        raise ConfigurationError(f"dcgm endpoint {text!r}: addresses have no certificates; dns+ works with http only")
    url = urlunsplit(parts._replace(path=parts.path if parts.path.strip("/") else "/metrics", fragment=""))
    return Endpoint(url=url, every_address=every_address)


async def addresses(endpoint: Endpoint) -> list[Endpoint]:
    """The endpoint itself, or one for each address that its name has now. Raises: OSError where it has none."""
    if not endpoint.every_address:
        return [endpoint]
    parts = urlsplit(endpoint.url)
    found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    sockets = sorted({(str(address[0]), int(address[1])) for *_, address in found})
    return [Endpoint(url=urlunsplit(parts._replace(netloc=_netloc(host, port)))) for host, port in sockets]


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _without_user(text: str) -> str:
    scheme, separator, rest = text.rpartition("@")
    return f"…@{rest}" if separator else scheme + rest
