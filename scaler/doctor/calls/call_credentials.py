"""How does KEDA call an external scaler? Trigger metadata and authentication parameters → credentials.

The table is in docs/tls.md, "KEDA's side". Source: KEDA, pkg/scalers/external_scaler.go and pkg/util/tls_config.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

PARAMETERS = ("caCert", "tlsClientCert", "tlsClientKey")
"""What KEDA takes from a TriggerAuthentication only, as PEM."""

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCredentials:
    """How one trigger's calls are made. Equal credentials are one connection."""

    encrypted: bool = False
    verifies: bool = True
    """Whether it verifies the server's certificate."""
    authorities_pem: bytes = b""
    """They are trusted beside those of the system."""
    certificate_pem: bytes = b""
    key_pem: bytes = field(default=b"", repr=False)

    @property
    def has_certificate(self) -> bool:
        return bool(self.certificate_pem)


def credentials_of(metadata: Mapping[str, str], parameters: Mapping[str, bytes]) -> CallCredentials:
    """What KEDA makes of a trigger. `parameters` are those of its authentication."""
    authorities, certificate, key = (parameters.get(name, b"") for name in PARAMETERS)
    has_pair = bool(certificate and key)
    return CallCredentials(
        encrypted=has_pair or bool(authorities) or metadata.get("enableTLS") in _TRUE,
        verifies=metadata.get("unsafeSsl") not in _TRUE,
        authorities_pem=authorities,
        certificate_pem=certificate if has_pair else b"",
        key_pem=key if has_pair else b"",
    )


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of a `scalerAddress`. Raises: ValueError."""
    host, _, port = address.removeprefix("dns:///").rpartition(":")
    host = host.strip("[]")
    if not (_may_be_resolved(host) and port.isdecimal() and int(port) <= _LAST_PORT):
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host, int(port)


def _may_be_resolved(host: str) -> bool:
    """Whether it has the shape of a name or an address. Of any other, sockets raise what is no error of networks."""
    try:
        return bool(host.encode("idna")) and host.isprintable()
    except UnicodeError:  # a part between dots that is empty, or longer than 63 characters
        return False
