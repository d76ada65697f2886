"""Certificates in files that are replaced as kubelets replace those of a Secret volume: all at once, by one link."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import trustme

from scaler.tls.material import CertificateFiles

YESTERDAY = datetime.now(UTC) - timedelta(days=1)
TOMORROW = datetime.now(UTC) + timedelta(days=1)


class SecretVolume:
    """`folder/tls.crt`, `tls.key` and `ca.crt` are links through `..data` into a folder that is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._numbers = count(1)

    def put(self, **content: bytes) -> None:
        """What the Secret holds from now on, by name of the key with `_` for `.`."""
        former = (self.folder / "..data").resolve()
        data = self.folder / f"..2026_11_21_{next(self._numbers)}"
        data.mkdir()
        for name, value in content.items():
            file = name.replace("_", ".")
            (data / file).write_bytes(value)
            if not (self.folder / file).is_symlink():
                (self.folder / file).symlink_to(Path("..data") / file)
        (self.folder / "..data_tmp").symlink_to(data.name)
        (self.folder / "..data_tmp").replace(self.folder / "..data")
        if former != self.folder / "..data":
            shutil.rmtree(former)

    def put_certificate(self, issued: trustme.LeafCert, authorities: trustme.CA | None = None) -> None:
        ca = {"ca_crt": authorities.cert_pem.bytes()} if authorities else {}
        self.put(tls_crt=chain_of(issued), tls_key=issued.private_key_pem.bytes(), **ca)

    def files(self, *, mutual: bool = False) -> CertificateFiles:
        authorities = self.folder / "ca.crt" if mutual else None
        return CertificateFiles(
            certificate=self.folder / "tls.crt", key=self.folder / "tls.key", client_authorities=authorities
        )

    def settings(self, *, mutual: bool = False, **more: Any) -> dict[str, Any]:
        """The same as the settings have it."""
        authorities = {"clientCaFile": str(self.folder / "ca.crt")} if mutual else {}
        files = {"certFile": str(self.folder / "tls.crt"), "keyFile": str(self.folder / "tls.key")}
        return {**files, **authorities, **more}


def chain_of(issued: trustme.LeafCert) -> bytes:
    return b"".join(each.bytes() for each in issued.cert_chain_pems)
