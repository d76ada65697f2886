"""The page of metrics in parts is the one that the client library writes."""

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import disable_created_metrics
from prometheus_client.exposition import choose_encoder

from scaler.reporting.exposition import parts_of
from scaler.reporting.http import HttpServer, Views
from scaler.reporting.metric_declarations import MetricSection, MetricSet, ReportedBy, set_series
from scaler.reporting.metrics import Metrics

disable_created_metrics()  # as the program does it

SECTION = MetricSection("Things", ReportedBy.BY_EACH)
FORMATS = (
    "",
    "application/openmetrics-text",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0;escaping=dots",
    "text/plain;version=1.0.0;escaping=values",
)
"""What scrapers accept."""
TEXTS = st.text(st.sampled_from('aB0_.-/%{}\\"\n\0é'), max_size=5)
VALUES = st.one_of(st.floats(), st.integers(-(10**9), 10**9), st.booleans())


class Things(MetricSet):
    plain = SECTION.gauge("One number.")
    many = SECTION.gauge("Many, \\ with\nlabels.", ("zone", "kind", "answer"))
    counted_total = SECTION.counter("Counted.", ("kind",))
    took_seconds = SECTION.histogram("Times.", ("kind",), buckets=(0.1, 1.0))


@pytest.mark.parametrize("accept", FORMATS)
@given(rows=st.dictionaries(st.tuples(TEXTS, TEXTS, TEXTS), VALUES), kinds=st.sets(TEXTS), number=VALUES)
def test_joined_parts_are_the_page_that_the_library_writes(accept, rows, kinds, number):
    things = Things()
    things.plain.set(number)
    set_series(things.many, rows)
    for kind in kinds:
        things.counted_total.labels(kind).inc(len(kind))
        things.took_seconds.labels(kind).observe(len(kind) / 4)
    encode, _ = choose_encoder(accept)
    assert b"".join(parts_of(things.registry, encode)) == encode(things.registry)


@pytest.mark.parametrize("accept", FORMATS)
def test_a_long_page_comes_in_many_parts(accept):
    things = Things()
    set_series(things.many, {("a", str(n), ""): n for n in range(2_500)})
    for number in range(2_500):
        things.counted_total.labels(str(number)).inc()
    encode, _ = choose_encoder(accept)
    parts = list(parts_of(things.registry, encode))
    assert b"".join(parts) == encode(things.registry)
    assert max(part.count(b"\n") for part in parts) <= 1000
    assert len(parts) > 2 * 2_500 / 1000


def test_a_page_shows_one_update_and_nothing_of_the_next():
    things = Things()
    set_series(things.many, {("a", "b", "before"): 1})
    things.counted_total.labels("before").inc()
    encode, _ = choose_encoder("")
    parts, before = parts_of(things.registry, encode), encode(things.registry)
    set_series(things.many, {("a", "b", "after"): 1})
    things.counted_total.labels("after").inc()
    assert b"".join(parts) == before


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_page_is_compressed_only_for_whoever_asks_for_that(encoding):
    metrics = Metrics()
    set_series(metrics.workload_gpus, {("team", "queue", "Job", f"train-{n}", "Busy"): n for n in range(5_000)})
    views = Views(unhealthy=list, unready=list, overview=list, explain=lambda *_: None, queries=None)
    server = HttpServer("127.0.0.1:0", metrics, views)
    port = await server.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": encoding}) as answer,
        ):
            assert answer.headers.get("Content-Encoding", "identity") == encoding
            page = await answer.text()
    finally:
        await server.stop()
    assert page.count('state="Busy"') == 5_000
    assert page.splitlines()[-1].startswith("process_")
