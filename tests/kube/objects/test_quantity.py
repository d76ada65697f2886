"""Quantities that Kubernetes writes alike. That it does was tried with its own code."""

from itertools import combinations

import pytest

from scaler.kube.objects.quantity import canonical

ALIKE = [
    ("1", "1000m", "1.0", "0.001k", "1000000u"),
    ("1k", "1000", "0.001M"),
    ("1e3",),
    ("1E3",),
    ("1Gi", "1024Mi", "1048576Ki"),
    ("1073741824",),
    ("1536Mi", "1.5Gi"),
    ("1500m", "1.5", "1500000u"),
    ("512", "0.5Ki"),
    ("1025", "1.0009765625Ki"),
    ("2k", "2000"),
    ("1.953125Ki",),
    ("1638400m", "1.6Ki", "1638.4"),
    ("0", "0Gi", "0m", "0.0"),
    ("-1Gi", "-1024Mi"),
]


@pytest.mark.parametrize("alike", ALIKE, ids=lambda alike: alike[0])
def test_quantities_that_kubernetes_writes_alike_are_alike(alike: tuple[str, ...]) -> None:
    assert len({canonical(each) for each in alike}) == 1


def test_quantities_that_kubernetes_writes_differently_differ() -> None:
    texts = [canonical(each[0]) for each in ALIKE]
    assert not [pair for pair in combinations(texts, 2) if pair[0] == pair[1]]


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a resource quantity"):
        canonical("much")
