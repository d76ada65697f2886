"""Prices of GPU models."""

import pytest

from scaler.reporting.usage.prices import Prices

PRICES = Prices(by_model={"NVIDIA-H100*": 4.2, "NVIDIA H100 NVL": 3.0, "NVIDIA-A100-SXM4-40GB": 1.9, "*": 1.0})


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("NVIDIA H100 80GB HBM3", 4.2),  # by how its name begins
        ("NVIDIA-H100-NVL", 3.0),  # a whole name is longer than a beginning of it
        ("NVIDIA A100-SXM4-40GB", 1.9),  # blanks and dashes are the same
        ("NVIDIA-A100-SXM4-80GB", 1.0),  # all others
        ("", 1.0),
    ],
)
def test_the_longest_match_gives_the_price(model: str, price: float) -> None:
    assert PRICES.of(model) == price


def test_a_whole_name_comes_before_the_same_one_as_a_beginning_in_whatever_order() -> None:
    for both in (Prices(by_model={"A100*": 2.0, "A100": 1.0}), Prices(by_model={"A100": 1.0, "A100*": 2.0})):
        assert [both.of(each) for each in ("A100", "A100-80GB")] == [1.0, 2.0]


def test_gpu_time_costs_its_price_and_a_model_without_one_has_no_cost() -> None:
    assert PRICES.cost("NVIDIA H100", 8 * 1800) == pytest.approx(16.8)  # 8 × 0.5 h × 4.20
    assert Prices(by_model={"A100": 2.0}).cost("L4", 3600) is None
    assert Prices(by_model={"*": 0.0}).cost("L4", 3600) == 0
