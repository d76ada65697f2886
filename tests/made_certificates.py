"""Certificates with fields that trustme does not let one choose."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from secret_volume import YESTERDAY, chain_of

P256 = ec.SECP256R1()


@dataclass(frozen=True)
class Pair:
    """A certificate, with what stands between it and its authority, and its key, both in PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def of(cls, issued: trustme.LeafCert) -> Pair:
        return cls(chain_of(issued), issued.private_key_pem.bytes())


@dataclass(frozen=True)
class Made:
    """A certificate with fields of one's own."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def of(
        cls,
        common_name: str,
        *,
        names: tuple[str, ...] = (),
        uris: tuple[str, ...] = (),
        use: x509.ObjectIdentifier | None = None,
        ends: datetime = YESTERDAY + timedelta(days=90),
        issuer: Made | None = None,
        is_authority: bool = False,
        curve: ec.EllipticCurve = P256,
    ) -> Made:
        """Signed by itself where there is no issuer."""
        key = ec.generate_private_key(curve)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer.certificate.subject if issuer else name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(YESTERDAY - timedelta(days=10))
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        alternatives = [*map(x509.DNSName, names), *map(x509.UniformResourceIdentifier, uris)]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        if use:
            builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        return cls(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)

    @property
    def pair(self) -> Pair:
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        key = self.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        return Pair(self.certificate.public_bytes(pem), key)
