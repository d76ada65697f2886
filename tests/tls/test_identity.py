"""Which clients may ask, by what they have shown."""

from datetime import UTC, datetime, timedelta

import pytest

from scaler.tls.identity import Clients, Presented, Stranger, Unknown

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
KEDA = "keda-operator.keda.svc"

SHOWN: dict[str, tuple[tuple[str, ...], Presented | None, type | None]] = {
    # names that are allowed, what was shown, and what it is refused as
    "nothing": ((), None, Unknown),
    "any name where none is asked for": ((), Presented(names=["grafana"]), None),
    "no name where none is asked for": ((), Presented(names=[]), None),
    "no name where one is asked for": ((KEDA,), Presented(names=[]), Stranger),
    "another name": ((KEDA,), Presented(names=["grafana"]), Stranger),
    "a name of which the allowed one is a part": ((KEDA,), Presented(names=[f"{KEDA}.example"]), Stranger),
    "the name beside another": ((KEDA,), Presented(names=["grafana", KEDA]), None),
    "the name in capitals": ((KEDA,), Presented(names=[KEDA.upper()]), None),
    "the name where capitals are allowed": ((KEDA.upper(),), Presented(names=[KEDA]), None),
    "the name in its last second": ((KEDA,), Presented(names=[KEDA], not_after=NOW), None),
    "the name, a second too late": ((KEDA,), Presented(names=[KEDA], not_after=NOW - SECOND), Stranger),
    "any name, a second too late": ((), Presented(names=[KEDA], not_after=NOW - SECOND), Stranger),
}


@pytest.mark.parametrize(("allowed", "shown", "refused_as"), SHOWN.values(), ids=SHOWN)
def test_a_client_is_known_by_a_name_that_is_allowed_and_not_over(
    allowed: tuple[str, ...], shown: Presented | None, refused_as: type | None
) -> None:
    refusal = Clients(allowed).refusal(shown, NOW)
    assert (type(refusal) if refusal else None) is refused_as
