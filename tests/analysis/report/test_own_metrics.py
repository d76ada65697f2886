"""PromQL for the scaler's own metrics: of metrics that there are, with the matchers of the settings everywhere."""

import re
from datetime import UTC, datetime, timedelta

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaler_analysis.report.measures import Measure, every_minute
from scaler_analysis.report.own_metrics import OwnMetrics
from scaler_analysis.report.periods import Period

from scaler.reporting.metrics import Metrics
from scaler.samples.promql import any_of, quoted

DAY = Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))
PROD = OwnMetrics(matchers={"cluster": 'pr"od', "region": "eu"})
FOREIGN = {"process_start_time_seconds", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_USAGE"}


@pytest.mark.parametrize("measure", Measure, ids=lambda each: each.name)
def test_every_selector_has_the_matchers_and_names_a_metric_that_there_is(measure: Measure) -> None:
    promql = measure.promql(PROD, DAY, {"monitoring/scaler"})
    promql_parser.parse(promql)
    selectors = re.findall(r"([a-zA-Z_]+)\{(.*?)\}", promql)
    declared = {each.name for each in Metrics().declared}
    for name, matchers in selectors:
        assert matchers.startswith(r'cluster="pr\"od",region="eu"'), promql
        bare = re.sub("_(bucket|sum|count)$", "", name)
        assert name in FOREIGN or {name, bare} & declared, name
    assert len(selectors) == len(re.findall(r"idle_gpu_scaler_|process_start|DCGM_FI", promql))


def test_what_is_counted_is_read_by_all_labels_that_it_is_declared_with() -> None:
    read = set()
    for measure in Measure:
        promql = measure.promql(OwnMetrics(), DAY, {"x"})
        if (found := re.search(r"increase\(idle_gpu_scaler_(\w+?)(_bucket|_sum)?\[", promql)) is not None:
            declared = next(each for each in Metrics().declared if each.name == f"idle_gpu_scaler_{found.group(1)}")
            assert set(measure.labels) - {"le"} == set(declared.labels)
            read.add(measure)
    assert Measure.GPU_SECONDS in read
    assert len(read) == 11


def test_without_matchers_there_are_no_braces() -> None:
    assert OwnMetrics().of("gpus") == "idle_gpu_scaler_gpus"
    promql_parser.parse(every_minute(OwnMetrics().led, DAY))


@given(st.lists(st.text(min_size=1), min_size=1))
def test_names_of_jobs_are_matched_as_they_are(names: list[str]) -> None:
    promql = f"up{{job=~{any_of(names)}}}"
    promql_parser.parse(promql)


@given(st.text())
def test_no_value_ends_the_string_that_it_is_in(value: str) -> None:
    promql_parser.parse(f"up{{cluster={quoted(value)}}}")


def test_a_range_is_as_long_as_the_period() -> None:
    hour = Period(DAY.begin, DAY.begin + timedelta(hours=1))
    assert "[3600s]" in Measure.GPU_SECONDS.promql(OwnMetrics(), hour, {"x"})
