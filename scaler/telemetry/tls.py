"""TLS for HTTP: a context that follows a rotation, and who the client of a request is.

A listening socket keeps the context that it was opened with, so that one only ever begins: at each handshake it hands
over to the newest one, certificate and authorities of clients together. Connections that stand go on.

Tempting: to load the new pair into the context that listens. That cannot take back an authority of clients, and a
context that is half loaded serves.
"""

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from scaler.tls.identity import Clients, Presented
from scaler.tls.rotation import Rotation


class HttpTls:
    """What an HTTP server needs to speak TLS."""

    def __init__(self, rotation: Rotation, clients: Clients | None = None) -> None:
        self._rotation = rotation
        self.clients = clients if rotation.is_mutual else None
        """None: whoever connects may ask."""

    def context(self) -> ssl.SSLContext:
        """For the socket that listens."""
        first = self._rotation.material.context

        def hand_over(handshake: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
            handshake.context = self._rotation.material.context

        first.sni_callback = hand_over  # called for clients that name nobody, too
        return first


_NAMES = frozenset({"DNS", "IP Address", "URI", "email"})


def presented(certificate: Mapping[str, Any] | None) -> Presented | None:
    """What the client has shown, out of what `getpeercert` says; None without a certificate."""
    if not certificate:
        return None
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind in _NAMES]
    common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
    return Presented(names=[*names, *common], not_after=end)
