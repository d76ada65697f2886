"""What certificates say, and Go's rules for names."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st
from made_certificates import Made

from scaler.tls.certificates import (
    AllowedClients,
    Certificate,
    ClientCertificate,
    certificates_in,
    is_renewal_overdue,
    parse,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
AUTHORITY = trustme.CA()


def test_names_and_times_are_those_of_the_certificate() -> None:
    made = Made.of("scaler", names=("scaler.gpus.svc", "*.gpus.svc"), uris=("spiffe://gpus/scaler",))
    [found] = certificates_in(made.pair.certificate)
    assert found == Certificate(
        not_before=made.certificate.not_valid_before_utc,
        not_after=made.certificate.not_valid_after_utc,
        common_name="scaler",
        dns_names=("scaler.gpus.svc", "*.gpus.svc"),
        other_names=("spiffe://gpus/scaler",),
        is_self_issued=True,
    )
    [other] = certificates_in(AUTHORITY.issue_cert("10.1.2.3", "fd00::1", "ops@example.com").cert_chain_pems[0].bytes())
    assert other.names == ("10.1.2.3", "fd00::1", "ops@example.com")
    assert not other.is_self_issued


@pytest.mark.parametrize(
    ("use", "is_for_servers"),
    [
        (None, True),
        (ExtendedKeyUsageOID.SERVER_AUTH, True),
        (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, True),
        (ExtendedKeyUsageOID.CLIENT_AUTH, False),
    ],
)
def test_a_certificate_for_clients_is_not_for_servers(use, is_for_servers: bool) -> None:
    [found] = certificates_in(Made.of("scaler", use=use).pair.certificate)
    assert found.is_for_servers is is_for_servers


MALFORMED = Made.of("scaler", names=("scaler.gpus.svc",)).certificate.public_bytes(Encoding.DER)


@settings(max_examples=60)
@given(st.data())
def test_a_malformed_certificate_is_unreadable_or_another_one_and_never_a_crash(data: st.DataObject) -> None:
    whole = bytearray(MALFORMED)
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        assert isinstance(parse(bytes(whole[: data.draw(st.integers(0, len(whole)))])), Certificate)


@pytest.mark.parametrize("text", [b"!", b"AAAA", b"MIIB", b"A", b""])
def test_what_is_no_certificate_between_its_marks_is_unreadable(text: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        certificates_in(b"-----BEGIN CERTIFICATE-----\n" + text + b"\n-----END CERTIFICATE-----\n")


def test_a_chain_is_read_in_its_order_and_keys_are_skipped() -> None:
    between = AUTHORITY.create_child_ca()
    issued = between.issue_cert("scaler.gpus.svc")
    pem = issued.private_key_pem.bytes() + b"\xe4\n".join(each.bytes() for each in issued.cert_chain_pems)
    leaf, second = certificates_in(pem)
    assert (leaf.dns_names, second.dns_names) == (("scaler.gpus.svc",), ())
    [root] = certificates_in(AUTHORITY.cert_pem.bytes().replace(b"\n", b"\r\n"))
    assert (root.is_self_issued, root.names, second.is_self_issued) == (True, (), False)
    assert certificates_in(b"") == certificates_in(issued.private_key_pem.bytes()) == ()


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
    assert is_renewal_overdue(certificate, NOW) is nearly


# ----------------------------------------------------------------------------------------------------------- clients

SECOND = timedelta(seconds=1)
KEDA = "keda-operator.keda.svc"

SHOWN: dict[str, tuple[tuple[str, ...], ClientCertificate | None, bool | None]] = {
    # names that are allowed, what was shown, and whether a refusal is for want of any certificate
    "nothing": ((), None, True),
    "any name where none is asked for": ((), ClientCertificate(names=["grafana"]), None),
    "no name where none is asked for": ((), ClientCertificate(names=[]), None),
    "no name where one is asked for": ((KEDA,), ClientCertificate(names=[]), False),
    "another name": ((KEDA,), ClientCertificate(names=["grafana"]), False),
    "a name of which the allowed one is a part": (
        (KEDA,),
        ClientCertificate(names=[f"{KEDA}.example"]),
        False,
    ),
    "the name beside another": ((KEDA,), ClientCertificate(names=["grafana", KEDA]), None),
    "the name in capitals": ((KEDA,), ClientCertificate(names=[KEDA.upper()]), None),
    "the name where capitals are allowed": ((KEDA.upper(),), ClientCertificate(names=[KEDA]), None),
    "the name in its last second": ((KEDA,), ClientCertificate(names=[KEDA], not_after=NOW), None),
    "the name, a second too late": (
        (KEDA,),
        ClientCertificate(names=[KEDA], not_after=NOW - SECOND),
        False,
    ),
    "any name, a second too late": ((), ClientCertificate(names=[KEDA], not_after=NOW - SECOND), False),
}


@pytest.mark.parametrize(("allowed", "shown", "refused_as"), SHOWN.values(), ids=SHOWN)
def test_a_client_is_known_by_a_name_that_is_allowed_and_not_over(
    allowed: tuple[str, ...], shown: ClientCertificate | None, refused_as: bool | None
) -> None:
    refusal = AllowedClients(allowed).refusal(shown, NOW)
    assert (refusal.is_unidentified if refusal else None) is refused_as
