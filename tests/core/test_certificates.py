"""What certificates say, held to what the library `cryptography` reads in them, and to Go's rules for names."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.certificates import Certificate, certificates_in, is_nearly_over, parse

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
KEY = ec.generate_private_key(ec.SECP256R1())


def made(
    *,
    begins: datetime = NOW,
    ends: datetime = NOW + timedelta(days=90),
    common_names: tuple[str, ...] = (),
    alternatives: tuple[x509.GeneralName, ...] = (),
    is_authority: bool | None = None,
    issuer: str = "",
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each) for each in common_names])
    issued_by = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]) if issuer else subject
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issued_by)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    if is_authority is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    return builder.sign(KEY, hashes.SHA256())


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


LABELS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12).filter(
    lambda text: not text.startswith("-") and not text.endswith("-")
)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
SECONDS = st.integers(-631_152_000, 253_402_214_400)
"""From 1950, the first year that a certificate can hold in two digits, to 9999."""
INSTANTS = SECONDS.map(lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))


@settings(max_examples=60)
@given(
    times=st.tuples(INSTANTS, INSTANTS).map(sorted),
    common_names=st.lists(st.text("aäß你 .x", min_size=1, max_size=30), max_size=2),
    hosts=st.lists(NAMES, max_size=12),
    addresses=st.lists(st.ip_addresses(), max_size=3),
    paths=st.lists(LABELS, max_size=3),
    is_authority=st.sampled_from([None, False, True]),
)
def test_it_reads_what_was_written(times, common_names, hosts, addresses, paths, is_authority) -> None:
    uris, emails = [f"spiffe://{path}" for path in paths], [f"{path}@example.com" for path in paths]
    alternatives = (
        *map(x509.DNSName, hosts),
        *map(x509.IPAddress, addresses),
        *map(x509.UniformResourceIdentifier, uris),
        *map(x509.RFC822Name, emails),
    )
    begins, ends = times
    written = made(
        begins=begins,
        ends=ends,
        common_names=tuple(common_names),
        alternatives=alternatives,
        is_authority=is_authority,
    )
    assert parse(der(written)) == Certificate(
        not_before=begins,
        not_after=ends,
        common_name=common_names[-1] if common_names else "",
        dns_names=tuple(hosts),
        addresses=tuple(addresses),
        uris=tuple(uris),
        emails=tuple(emails),
        is_self_issued=True,
    )


@settings(max_examples=200)
@given(st.data())
def test_what_is_spoilt_is_unreadable_or_another_certificate_and_never_a_crash(data: st.DataObject) -> None:
    whole = bytearray(SPOILT)
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(ValueError):
        assert isinstance(parse(cut), Certificate)


SPOILT = der(made(common_names=("scaler",), alternatives=(x509.DNSName("scaler.gpus.svc"),)))


def test_a_certificate_that_is_cut_off_is_unreadable() -> None:
    for length in range(len(SPOILT)):
        with pytest.raises(ValueError, match="cannot be read"):
            parse(SPOILT[:length])


def test_a_chain_is_read_in_its_order_and_keys_are_passed_over() -> None:
    authority = trustme.CA()
    between = authority.create_child_ca()
    issued = between.issue_cert("scaler.gpus.svc")
    pem = issued.private_key_pem.bytes() + b"".join(each.bytes() for each in issued.cert_chain_pems)
    leaf, second = certificates_in(pem)
    assert (leaf.dns_names, second.dns_names) == (("scaler.gpus.svc",), ())
    [root] = certificates_in(authority.cert_pem.bytes().replace(b"\n", b"\r\n"))
    assert (root.is_self_issued, root.names, second.is_self_issued) == (True, (), False)
    assert certificates_in(b"") == certificates_in(issued.private_key_pem.bytes()) == ()


@pytest.mark.parametrize("text", [b"!", b"AAAA", b"MIIB", b"A"])
def test_what_is_no_certificate_between_its_marks_is_unreadable(text: bytes) -> None:
    pem = b"-----BEGIN CERTIFICATE-----\n" + text + b"\n-----END CERTIFICATE-----\n"
    if text == b"!":
        assert certificates_in(pem) == ()
        return
    with pytest.raises(ValueError, match="cannot be read"):
        certificates_in(pem)


FITTING = {
    "the same name": (("scaler.gpus.svc",), "scaler.gpus.svc", True),
    "the same in other letters": (("Scaler.Gpus.svc",), "sCALER.gpus.SVC", True),
    "with the root's dot": (("scaler.gpus.svc",), "scaler.gpus.svc.", True),
    "one of many": (("a", "scaler.gpus.svc"), "scaler.gpus.svc", True),
    "a Service's short name": (("scaler.gpus.svc",), "scaler.gpus", False),
    "a Service's long name": (("scaler.gpus.svc",), "scaler.gpus.svc.cluster.local", False),
    "a wildcard for one label": (("*.gpus.svc",), "scaler.gpus.svc", True),
    "a wildcard for two labels": (("*.svc",), "scaler.gpus.svc", False),
    "a wildcard for none": (("*.gpus.svc",), "gpus.svc", False),
    "a wildcard for part of a label": (("scal*.gpus.svc",), "scaler.gpus.svc", False),
    "a wildcard that is not the first label": (("scaler.*.svc",), "scaler.gpus.svc", False),
    "a wildcard alone": (("*",), "scaler", False),
    "no name": ((), "scaler.gpus.svc", False),
    "an empty label": (("*.gpus.svc",), ".gpus.svc", False),
    "an address as a name": (("10.1.2.3",), "10.1.2.3", False),
}


@pytest.mark.parametrize("case", FITTING)
def test_names_fit_as_go_has_it(case: str) -> None:
    names, host, fits = FITTING[case]
    assert a_certificate(dns_names=names).is_for(host) is fits


def a_certificate(**fields) -> Certificate:
    return Certificate(**{"not_before": NOW, "not_after": NOW + timedelta(days=90), **fields})


def test_addresses_fit_addresses_however_they_are_written() -> None:
    certificate = a_certificate(addresses=(ip_address("10.1.2.3"), ip_address("fd00::1")))
    assert all(certificate.is_for(host) for host in ("10.1.2.3", "[fd00::1]", "fd00:0::1"))
    assert not any(certificate.is_for(host) for host in ("10.1.2.4", "[fd00::2]", "scaler"))


def test_the_common_name_fits_nothing() -> None:
    assert not a_certificate(common_name="scaler.gpus.svc").is_for("scaler.gpus.svc")


@pytest.mark.parametrize(
    ("life_days", "left_hours", "nearly"),
    [
        (365, 7 * 24 - 1, True),  # a week of a year
        (365, 7 * 24 + 1, False),
        (90, 7 * 24 + 1, False),  # 90 / 6 = 15 days, but a week is enough
        (1, 3, True),  # 24 h / 6 = 4 h
        (1, 5, False),
    ],
)
def test_a_renewal_is_overdue_in_the_last_sixth_or_week(life_days: int, left_hours: int, nearly: bool) -> None:
    ends = NOW + timedelta(hours=left_hours)
    certificate = a_certificate(not_before=ends - timedelta(days=life_days), not_after=ends)
    assert is_nearly_over(certificate, NOW) is nearly
