"""What metrics tell of the AdmissionCheck and of ProvisioningRequests: reports of real ticks, in the exposition."""

from datetime import timedelta

from prometheus_client.parser import text_string_to_metric_families
from sim.provisioning_cluster import QUICK, ProvisioningCluster, failing

from scaler.app.metrics_sink import MetricsSink
from scaler.reporting.metrics import Metrics

PREFIX = "idle_gpu_scaler_"
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


class Observed:
    """A cluster whose AdmissionCheck and provisioning report to the program's observers."""

    def __init__(self, cluster: ProvisioningCluster) -> None:
        self.cluster = cluster
        self.metrics = Metrics()
        self._observers = MetricsSink(self.metrics)

    def value(self, name: str, **labels: str) -> float:
        """0 for a sample that is not there."""
        reports, self.cluster.reports[:] = list(self.cluster.reports), []
        happened, self.cluster.counted[:] = list(self.cluster.counted), []
        for report in reports:
            self._observers.checked(report)
        for each in happened:
            self._observers.provisioned(*each)
        text = b"".join(self.metrics.exposition("")[0]).decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
        )


async def test_reused_and_provisioned_gpus_and_the_time_until_ready_are_counted() -> None:
    """A gang of 16 takes the 8 of `victim`, which end after 5 s, and 8 of a new node, which is there 4 s later."""
    cluster = ProvisioningCluster({"a": 8}, scenarios=[QUICK], provisioning={"amount": "Missing"})
    seen = Observed(cluster)
    cluster.submit("victim", gpus=8)
    await cluster.passes(1)
    assert seen.value("admission_check_seconds_count", reason="Fits") == 1
    assert seen.value("admission_check_gpus_total", origin="reused") == 8
    cluster.termination["victim"] = 5.0
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(0)
    began = cluster.client.now
    cluster.deactivate("victim", for_gang="gang")
    await cluster.passes(1)
    assert seen.value("admission_check_pending_gangs", reason="PodsEnding") == 1
    while not cluster.is_admitted("gang"):
        assert cluster.client.now < began + timedelta(minutes=1)
        await cluster.passes(1)
    waited = (cluster.client.now - began).total_seconds()
    assert seen.value("admission_check_pending_gangs") == 0
    # The first 8 were those of `victim` itself.
    assert seen.value("admission_check_gpus_total", origin="reused") == 8 + 8
    assert seen.value("admission_check_gpus_total", origin="provisioned") == 8
    assert seen.value("admission_check_seconds_count") == 2
    messages = [message for _, reason, message in cluster.recorded.events if reason == "AdmissionCheckReady"]
    assert messages[-1].endswith(f"; {round(waited)}s after its quota was reserved")
    # `victim` did not wait, and the gang from its reservation, one tick after it came, until now.
    assert waited - 1 <= seen.value("admission_check_seconds_sum") <= waited + 1


async def test_attempts_and_failures_are_counted_by_class_and_reason() -> None:
    cluster = ProvisioningCluster({"a": 8}, scenarios=[failing(2)])
    seen = Observed(cluster)
    cluster.submit("gang", pods=2, gpus=8)
    for _ in range(60):
        await cluster.passes(1)
        if cluster.is_admitted("gang"):
            break
    requests = "provisioning_requests_total"
    assert seen.value(requests, event="Created", provisioning_class=CLASS) == 3
    assert seen.value(requests, event="Failed", provisioning_class=CLASS, reason="OutOfResources") == 2
    assert seen.value(requests, event="Provisioned", provisioning_class=CLASS) == 1
    assert seen.value("provisioning_failures_total") == 2
    assert seen.value("admission_check_seconds_count", reason="Provisioned") == 1
