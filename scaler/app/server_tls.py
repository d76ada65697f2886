"""TLS of the servers of one process: certificates that are reloaded from files, and shown in metrics and logs."""

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from scaler.app.settings.model import Settings, TlsSettings
from scaler.keda.server import ServerTls
from scaler.reporting.http import HttpTls
from scaler.reporting.metrics import Metrics
from scaler.tls.certificates import AllowedClients, is_loopback
from scaler.tls.material import CertificateFiles
from scaler.tls.rotation import CertificateChange, Rotation

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificates:
    """TLS of both servers, which is reloaded from files; None where it is off."""

    grpc: ServerTls | None
    http: HttpTls | None
    rotations: tuple[Rotation, ...]

    @classmethod
    def of(cls, settings: Settings, metrics: Metrics) -> "ServerCertificates":
        """Raises: ConfigurationError where files cannot be used."""
        grpc = _served(settings.grpc.tls, "grpc", metrics) if "scaler" in settings.components else None
        http = _served(settings.http.tls, "http", metrics)
        _warn_without_tls(settings)
        return cls(
            grpc=ServerTls(*grpc) if grpc else None,
            http=HttpTls(*http) if http else None,
            rotations=tuple(each[0] for each in (grpc, http) if each),
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [each.run() for each in self.rotations]


def _served(tls: TlsSettings | None, use: str, metrics: Metrics) -> tuple[Rotation, AllowedClients] | None:
    if tls is None:
        return None
    files = CertificateFiles(certificate=tls.cert_file, key=tls.key_file, client_authorities=tls.client_ca_file)
    rotation = Rotation(files, use=use, every=tls.check_every, observe=partial(_show, metrics))
    return rotation, AllowedClients(tls.client_names)


def _show(metrics: Metrics, change: CertificateChange) -> None:
    served, use = change.served, change.use
    metrics.certificate_files_usable.labels(use=use).set(change.is_new or not change.problem)
    metrics.certificate_expiry_timestamp_seconds.labels(use=use).set(served.ends.timestamp())
    if served.trust_ends is not None:
        metrics.certificate_expiry_timestamp_seconds.labels(use=f"{use}-clients").set(served.trust_ends.timestamp())
    facts = {"use": use, "names": served.chain[0].names, "until": served.ends.isoformat()}
    match change.is_new, change.problem:
        case True, "":
            log.info("certificate is served", **facts)
        case True, why:
            log.error("certificate is served, but clients refuse it", why=why, do="renew it", **facts)
        case False, "":
            log.info("certificate files can be used again", **facts)
        case False, why:
            log.error("certificate files cannot be used; still serving the previous certificate", why=why, **facts)


def _warn_without_tls(settings: Settings) -> None:
    """The warning comes once, and not for servers that only this machine can reach."""
    servers = {"http": settings.http} | ({"grpc": settings.grpc} if "scaler" in settings.components else {})
    clear = [name for name, server in servers.items() if server.tls is None and not _is_local(server.address)]
    if clear:
        log.warning(
            "TLS is off: traffic is neither encrypted nor authenticated",
            servers=sorted(clear),
            do="set grpc.tls and http.tls of the settings, see docs/tls.md",
        )


def _is_local(address: str) -> bool:
    return address.startswith("unix:") or is_loopback(address.rpartition(":")[0].strip("[]"))
