"""Charges in FOCUS 1.2: every mandatory column, and no cost but what a price and a quantity come to."""

import csv
import io
import json
from decimal import Decimal

from analysis.report.report_builders import facts, two_teams
from scaler_analysis.report.focus import COLUMNS, focus_charges
from scaler_analysis.report.measures import Measure

MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName",
}  # fmt: skip
"""Feature level "Mandatory" in specification/columns of tag v1.2."""
NULLABLE = {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
CHARGES = focus_charges([two_teams(1), two_teams(2)], account="prod")


def rows() -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(CHARGES.csv))]


def test_every_mandatory_column_is_there_and_filled() -> None:
    assert set(COLUMNS) >= MANDATORY
    for row in rows():
        assert all(row[each] for each in MANDATORY - NULLABLE)


def test_a_row_is_the_time_in_one_state_in_one_period() -> None:
    found = [
        (each["SubAccountId"], each["SkuId"], each["ChargePeriodStart"], each["ConsumedQuantity"]) for each in rows()
    ]
    assert found == [
        ("team-a", "H100", "2026-11-30T00:00:00Z", "20"),
        ("team-a", "H100", "2026-11-30T00:00:00Z", "4"),
        ("team-a", "H100", "2026-12-01T00:00:00Z", "20"),
        ("team-a", "H100", "2026-12-01T00:00:00Z", "4"),
    ]
    assert [json.loads(each["Tags"])["idlegpu.io/gpu-state"] for each in rows()] == ["Busy", "Idle"] * 2


def test_a_billing_period_is_a_month() -> None:
    assert [(each["BillingPeriodStart"][:7], each["BillingPeriodEnd"][:7]) for each in rows()] == [
        *[("2026-11", "2026-12")] * 2,
        *[("2026-12", "2027-01")] * 2,
    ]


def test_costs_are_exactly_the_price_times_the_quantity() -> None:
    odd = facts(0, {Measure.GPU_SECONDS: {("a", "", "L4", "Busy"): 1234.5}, Measure.PRICE: {("L4", "USD"): 0.1}})
    for row in (*CHARGES.rows, *focus_charges([odd], account="x").rows):
        cost = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert {Decimal(row[each]) for each in ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")} == {cost}


def test_what_has_no_price_has_no_row_and_is_counted() -> None:
    assert CHARGES.unpriced_hours == 24
    assert "team-b" not in CHARGES.csv
    assert ",0," not in focus_charges([two_teams()], account="x").csv


def test_the_same_model_may_have_a_price_on_one_day_only() -> None:
    without = facts(1, {**two_teams().values, Measure.PRICE: {}})
    charges = focus_charges([two_teams(0), without], account="x")
    assert len(charges.rows) == 2
    assert charges.unpriced_hours == 12 + 36
