"""The page of all metrics: what is declared is documented, named as Prometheus wants it, and bounded."""

import subprocess

from programs import needs

from scaler.reporting.metric_declarations import LABELS, MetricSection, MetricSet, ReportedBy, set_series
from scaler.reporting.metrics import Metrics


def test_every_label_is_explained_and_every_explained_label_is_used() -> None:
    used = {label for each in Metrics().declared for label in each.labels}
    assert used == LABELS.keys()


# By Prometheus and its operator; by Thanos and Mimir as external labels; by Google's Managed Service for Prometheus;
# by scrapes by annotation; and of alerts.
SET_BY_SCRAPERS = frozenset(
    {
        *("job", "instance", "namespace", "service", "pod", "container", "endpoint", "node"),
        *("cluster", "prometheus", "prometheus_replica", "replica", "tenant", "tenant_id"),
        *("project_id", "location", "top_level_controller_name", "top_level_controller_type"),
        *("app", "kubernetes_namespace", "kubernetes_name", "kubernetes_pod_name", "kubernetes_node"),
        *("alertname", "alertstate", "severity"),
    }
)
"""Labels that others put on series, and in whose place they put theirs, whatever honorLabels says."""


def test_no_label_is_one_that_scrapers_overwrite() -> None:
    ours = {label for each in Metrics().declared for label in each.labels}
    assert ours & SET_BY_SCRAPERS == set()
    assert not [label for label in ours if label.startswith(("exported_", "__"))]


def test_a_counter_says_so_and_nothing_else_does() -> None:
    for each in Metrics().declared:
        assert each.name.endswith("_total") == (each.type == "counter"), each.name
        assert each.meaning.endswith("."), each.name


def test_what_every_replica_shows_alike_is_no_counter() -> None:
    # There would be no way to sum up what a replica counted before it ended.
    assert not [each.name for each in Metrics().declared if each.shown is ReportedBy.BY_ALL and each.type != "gauge"]


@needs("promtool")
def test_promtool_finds_nothing_to_complain_about() -> None:
    text = b"".join(Metrics().exposition("")[0])
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_gauge_shows_what_is_there_now_and_forgets_the_rest() -> None:
    class Things(MetricSet):
        things = MetricSection("Things", ReportedBy.BY_EACH).gauge("Things.", ("kind",))

    metrics = Things()
    gauge = metrics.things
    set_series(gauge, {("old",): 1, ("both",): 2})
    set_series(gauge, {("both",): 3, ("new",): 4})
    values = {sample.labels["kind"]: sample.value for sample in next(metrics.registry.collect()).samples}
    assert values == {"both": 3, "new": 4}
