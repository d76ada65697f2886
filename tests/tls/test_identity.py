"""Which clients may ask, by what they have shown."""

from datetime import UTC, datetime, timedelta

import pytest

from scaler.tls.identity import AllowedClients, CertificateMissing, ClientCertificate, IdentityNotAllowed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
KEDA = "keda-operator.keda.svc"

SHOWN: dict[str, tuple[tuple[str, ...], ClientCertificate | None, type | None]] = {
    # names that are allowed, what was shown, and what it is refused as
    "nothing": ((), None, CertificateMissing),
    "any name where none is asked for": ((), ClientCertificate(names=["grafana"]), None),
    "no name where none is asked for": ((), ClientCertificate(names=[]), None),
    "no name where one is asked for": ((KEDA,), ClientCertificate(names=[]), IdentityNotAllowed),
    "another name": ((KEDA,), ClientCertificate(names=["grafana"]), IdentityNotAllowed),
    "a name of which the allowed one is a part": (
        (KEDA,),
        ClientCertificate(names=[f"{KEDA}.example"]),
        IdentityNotAllowed,
    ),
    "the name beside another": ((KEDA,), ClientCertificate(names=["grafana", KEDA]), None),
    "the name in capitals": ((KEDA,), ClientCertificate(names=[KEDA.upper()]), None),
    "the name where capitals are allowed": ((KEDA.upper(),), ClientCertificate(names=[KEDA]), None),
    "the name in its last second": ((KEDA,), ClientCertificate(names=[KEDA], not_after=NOW), None),
    "the name, a second too late": (
        (KEDA,),
        ClientCertificate(names=[KEDA], not_after=NOW - SECOND),
        IdentityNotAllowed,
    ),
    "any name, a second too late": ((), ClientCertificate(names=[KEDA], not_after=NOW - SECOND), IdentityNotAllowed),
}


@pytest.mark.parametrize(("allowed", "shown", "refused_as"), SHOWN.values(), ids=SHOWN)
def test_a_client_is_known_by_a_name_that_is_allowed_and_not_over(
    allowed: tuple[str, ...], shown: ClientCertificate | None, refused_as: type | None
) -> None:
    refusal = AllowedClients(allowed).refusal(shown, NOW)
    assert (type(refusal) if refusal else None) is refused_as
