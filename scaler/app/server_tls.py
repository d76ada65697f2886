"""TLS of the servers of one process: certificates that are reloaded from files, and shown in metrics and logs."""

from collections.abc import Coroutine
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import structlog

from scaler.app.settings.model import Settings, TlsSettings
from scaler.keda.tls import ServerTls
from scaler.reporting.http import HttpTls
from scaler.reporting.metrics import Metrics
from scaler.tls.identity import AllowedClients
from scaler.tls.material import CertificateFiles, ServerCertificate
from scaler.tls.rotation import CertificateLoaded, CertificateUnusable, CertificateUsableAgain, Rotation

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificates:
    """TLS of both servers; None where it is off."""

    grpc: ServerTls | None
    http: HttpTls | None
    rotations: tuple[Rotation, ...]

    @classmethod
    def of(cls, settings: Settings, metrics: Metrics) -> "ServerCertificates":
        """Raises: UnusableError where files cannot be used."""
        grpc = _rotation(settings.grpc.tls, "grpc", metrics) if "scaler" in settings.components else None
        http = _rotation(settings.http.tls, "http", metrics)
        _warn_without_tls(settings)
        return cls(
            grpc=ServerTls(grpc, _clients(settings.grpc.tls)) if grpc else None,
            http=HttpTls(http, _clients(settings.http.tls)) if http else None,
            rotations=tuple(each for each in (grpc, http) if each),
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [each.run() for each in self.rotations]


def files_of(tls: TlsSettings) -> CertificateFiles:
    return CertificateFiles(certificate=tls.cert_file, key=tls.key_file, client_authorities=tls.client_ca_file)


def _rotation(tls: TlsSettings | None, use: str, metrics: Metrics) -> Rotation | None:
    if tls is None:
        return None
    return Rotation(files_of(tls), use=use, every=tls.check_every, observe=_Reports(metrics).certificate)


def _clients(tls: TlsSettings | None) -> AllowedClients:
    return AllowedClients(tls.client_names if tls else ())


class _Reports:
    """What rotations report, turned into metrics and logs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def certificate(self, event: CertificateLoaded | CertificateUnusable | CertificateUsableAgain) -> None:
        self._metrics.certificate_files_usable.labels(use=event.use).set(not isinstance(event, CertificateUnusable))
        self._show(event.use, event.material)
        facts = {"use": event.use, "names": event.material.chain[0].names, "until": event.material.ends.isoformat()}
        match event:
            case CertificateLoaded(problem=""):
                log.info("certificate is served", **facts)
            case CertificateLoaded(problem=problem):
                log.error("certificate is served, but clients refuse it", why=problem, do="renew it", **facts)
            case CertificateUnusable(problem=problem):
                log.error(
                    "certificate files cannot be used; still serving the previous certificate", why=problem, **facts
                )
            case CertificateUsableAgain():
                log.info("certificate files can be used again", **facts)

    def _show(self, use: str, material: ServerCertificate) -> None:
        self._metrics.certificate_expiry.labels(use=use).set(material.ends.timestamp())
        if material.trust_ends is not None:
            self._metrics.certificate_expiry.labels(use=f"{use}-clients").set(material.trust_ends.timestamp())


def _warn_without_tls(settings: Settings) -> None:
    """Once, and not for servers that only this machine can reach."""
    servers = {"http": settings.http} | ({"grpc": settings.grpc} if "scaler" in settings.components else {})
    clear = [name for name, server in servers.items() if server.tls is None and not _is_local(server.address)]
    if clear:
        log.warning(
            "TLS is off: traffic is neither encrypted nor authenticated",
            servers=sorted(clear),
            do="set grpc.tls and http.tls of the settings, see docs/tls.md",
        )


def _is_local(address: str) -> bool:
    """Whether only this machine can connect to it."""
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
