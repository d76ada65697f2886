"""TLS for gRPC: credentials that follow a rotation, and who the client of an RPC is.

gRPC asks for the certificate at every handshake, from a thread of its own. An open connection keeps the one that
it began with, and its streams go on; it ends by its age (`ServerConfig.max_connection_age`).
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import grpc

from scaler.tls.certificates import certificates_in
from scaler.tls.identity import AllowedClients, ClientCertificate
from scaler.tls.material import ServerCertificate
from scaler.tls.rotation import Rotation

AuthContext = Mapping[str, Iterable[bytes]]


class ServerTls:
    """What a gRPC server needs to speak TLS."""

    def __init__(self, rotation: Rotation, clients: AllowedClients | None = None) -> None:
        self._rotation = rotation
        self.clients = clients if rotation.is_mutual else None
        """None: every client that connects is allowed."""

    def credentials(self) -> grpc.ServerCredentials:
        """Of one port. Ports must not share them: gRPC's question is about what is new since it last asked."""
        first = self._rotation.material
        return grpc.dynamic_ssl_server_credentials(
            _configuration(first), self._changes_since(first), require_client_authentication=self._rotation.is_mutual
        )

    def _changes_since(self, last: ServerCertificate) -> Callable[[], Any]:
        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal last
            current = self._rotation.material
            if current is last:
                return None
            last = current
            return _configuration(current)

        return fetch


def _configuration(material: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key_pem, material.certificate_pem)], root_certificates=material.client_authorities_pem
    )


def presented(context: AuthContext) -> ClientCertificate | None:
    """What the client has shown, out of an RPC's `auth_context`; None without a certificate."""
    pem = b"".join(context.get("x509_pem_cert") or ())
    if not pem:
        return None
    names = [*(context.get("x509_subject_alternative_name") or ()), *(context.get("x509_common_name") or ())]
    return ClientCertificate(
        names=[each.decode("utf-8", errors="replace") for each in names if each], not_after=_end(pem)
    )


@lru_cache(maxsize=256)
def _end(pem: bytes) -> datetime | None:
    try:
        return min((each.not_after for each in certificates_in(pem)[:1]), default=None)
    except ValueError:
        return None
