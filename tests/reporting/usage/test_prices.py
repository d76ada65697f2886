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


def test_the_order_in_which_prices_are_written_does_not_matter() -> None:
    turned = Prices(by_model=dict(reversed(list(PRICES.by_model.items()))))
    assert [turned.of(each) for each in ("NVIDIA H100 X", "NVIDIA H100 NVL")] == [4.2, 3.0]


def test_a_whole_name_comes_before_the_same_one_as_a_beginning() -> None:
    both = Prices(by_model={"A100*": 2.0, "A100": 1.0})
    assert [both.of(each) for each in ("A100", "A100-80GB")] == [1.0, 2.0]


def test_a_model_that_is_not_priced_has_no_cost_rather_than_none_to_pay() -> None:
    assert Prices(by_model={"A100": 2.0}).cost("L4", 3600) is None


def test_eight_gpus_for_half_an_hour() -> None:
    assert PRICES.cost("NVIDIA H100", 8 * 1800) == pytest.approx(16.8)  # 8 × 0.5 h × 4.20


def test_what_is_free_of_charge_costs_nothing() -> None:
    assert Prices(by_model={"*": 0.0}).cost("L4", 3600) == 0
    assert not Prices()
