"""GPU time as charges in the columns of FOCUS, the FinOps Open Cost and Usage Specification, version 1.2. Pure.

A row is the time that GPUs of one model were in one state while pods of one namespace held them, in one ClusterQueue
and one period, at the price that the settings had for that model. GPU time without a price has no row: a cost that is
not known may be neither null nor 0 there.

It is the cost by `metrics.prices` of what the scaler has seen, to be shown to teams; no invoice is behind it. Added to
the bill of the cloud, the same GPUs would count twice.

Source: github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2. Version 1.3 has all of these columns.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from scaler.kube.objects.core import stamp
from scaler.reporting.usage.prices import SECONDS_PER_HOUR
from scaler_analysis.report.formats import csv_of
from scaler_analysis.report.measures import CURRENCY, LabelValues, Measure, PeriodFacts
from scaler_analysis.report.own_metrics import MODEL
from scaler_analysis.report.periods import Period

COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId", "SubAccountId",
    "SubAccountName", "SubAccountType", "Tags",
)  # fmt: skip
"""Every one that is mandatory in 1.2, and those of the others that have a value here; in alphabetical order."""
_UNIT = "GPU Hours"
_TAG = "idlegpu.io/"
_ISSUER = "idle-gpu-scaler"
_PRECISION = Decimal("0.000001")
"""What GPU-hours are rounded to: 4 ms of one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusCharges:
    rows: Sequence[Mapping[str, Any]]
    unpriced_hours: float
    """GPU-hours that have no row."""

    @property
    def csv(self) -> str:
        return csv_of(self.rows, COLUMNS)


def focus_charges(facts: Sequence[PeriodFacts], *, account: str) -> FocusCharges:
    """`account`: what this cluster is called where the charges of several come together."""
    rows, unpriced = list[Mapping[str, Any]](), 0.0
    for each in facts:
        prices = dict(_prices(each))
        for labels, seconds in sorted(each.values.get(Measure.GPU_SECONDS, {}).items()):
            hours = seconds / SECONDS_PER_HOUR
            price = prices.get(labels[Measure.GPU_SECONDS.labels.index(MODEL)])
            if price is None:
                unpriced += hours
            elif (quantity := Decimal(hours).quantize(_PRECISION)) > 0:
                rows.append(_row(each.period, labels, quantity, price, account))
    return FocusCharges(rows=rows, unpriced_hours=unpriced)


def _prices(facts: PeriodFacts) -> Iterator[tuple[str, tuple[Decimal, str]]]:
    """The price of a GPU-hour by model, and its currency."""
    for values, price in facts.values.get(Measure.PRICE, {}).items():
        labels = dict(zip(Measure.PRICE.labels, values, strict=True))
        yield labels[MODEL], (Decimal(repr(price)), labels[CURRENCY])


def _row(
    period: Period, labels: LabelValues, quantity: Decimal, priced: tuple[Decimal, str], account: str
) -> Mapping[str, Any]:
    namespace, queue, model, state = labels
    price, currency = priced
    cost, begin = _plain(quantity * price), period.begin
    tags = {f"{_TAG}cluster-queue": queue, f"{_TAG}gpu-state": state}
    return {
        "BilledCost": cost,
        "BillingAccountId": account,
        "BillingAccountName": account,
        "BillingCurrency": currency,
        "BillingPeriodEnd": stamp(_month_after(begin)),
        "BillingPeriodStart": stamp(_month_of(begin)),
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": f"{state} time of {model or 'GPUs'} held by pods of namespace {namespace}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": stamp(period.end),
        "ChargePeriodStart": stamp(begin),
        "ConsumedQuantity": _plain(quantity),
        "ConsumedUnit": _UNIT,
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": _ISSUER,
        "ListCost": cost,
        "ListUnitPrice": _plain(price),
        "PricingCategory": "Standard",
        "PricingQuantity": _plain(quantity),
        "PricingUnit": _UNIT,
        "ProviderName": _ISSUER,
        "PublisherName": _ISSUER,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU time in Kubernetes",
        "ServiceSubcategory": "Containers",
        "SkuId": model or "GPU",
        "SkuMeter": "GPU time",
        "SkuPriceId": model or "GPU",
        "SubAccountId": namespace,
        "SubAccountName": namespace,
        "SubAccountType": "Namespace",
        "Tags": json.dumps({name: value for name, value in tags.items() if value}, sort_keys=True),
    }


def _plain(number: Decimal) -> str:
    """The number without an exponent, and without zeros at the end."""
    return f"{number.normalize():f}"


def _month_of(at: datetime) -> datetime:
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _month_after(at: datetime) -> datetime:
    return _month_of(_month_of(at) + timedelta(days=31))
