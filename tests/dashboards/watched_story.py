"""A real Prometheus that has watched the demo's third act, the scaler and dcgm-exporter in both label conventions."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_server import PrometheusServer, static_scrape
from scaler_sandbox import demo
from scaler_sandbox.job_manifests import deployment, scaled_object
from scaler_sandbox.stories.facts import StoryEntry
from scaler_sandbox.stories.gang_story import NAMESPACE
from scaler_sandbox.stories.provisioning import ProvisioningStory
from small_cluster import until

from dashboards.answers import Asker, Series
from scaler.kube.objects.resources import DEPLOYMENT, JOB, SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.targets.workloads import WAKE_ANNOTATION

EXPORTER = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x1", "container": "exporter"}
SCALER = {"namespace": "idle-gpu-scaler", "pod": "idle-gpu-scaler-x1", "node": "control", "service": "idle-gpu-scaler"}
"""Of the scaler's own pod, as operators set them, where honorLabels is off."""
INTERVAL = "500ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The Prometheus, and when what happened."""

    url: str
    start: float
    waiting_at: float
    """When nodes were on their way for the gang."""
    end: float

    def asker(self, end: float | None = None) -> Asker:
        return Asker(url=self.url, start=self.start, end=end or self.end, rate_interval="4s")

    def ask(self, target: Mapping[str, Any]) -> Sequence[Series]:
        """Of what is asked about now, what there was in the end or while the gang waited."""
        found = self.asker().ask(target)
        return found if found or not target.get("instant") else self.asker(self.waiting_at).ask(target)


@contextmanager
def watched_story(folder: Path) -> Iterator[Watched]:
    """The Prometheus goes on when the story is over."""
    with asyncio.Runner() as runner:
        stack = runner.run(_entered())
        try:
            stage = runner.run(demo.start_act(stack, demo.ACTS["third"], "dcgm"))
            with PrometheusServer(folder, _scrapes(stage)) as prometheus:
                start = time.time()
                waiting_at = runner.run(_play(stage, prometheus.url))
                yield Watched(url=prometheus.url, start=start, waiting_at=waiting_at, end=time.time())
        finally:
            runner.run(stack.aclose())


async def _entered() -> AsyncExitStack:
    return AsyncExitStack()


def _scrapes(stage: demo.RunningAct) -> list[dict[str, Any]]:
    exporter = urlsplit(stage.world.exporter_url).netloc
    plain = static_scrape("dcgm", exporter, interval=INTERVAL)
    plain["static_configs"][0]["labels"] = EXPORTER
    honored = static_scrape("dcgm-honored", exporter, interval=INTERVAL, honor_labels=True)
    scaler = static_scrape("scaler", f"127.0.0.1:{stage.runtime.http_port}", interval=INTERVAL)
    scaler["static_configs"][0]["labels"] = SCALER
    return [plain, honored, scaler]


async def _play(stage: demo.RunningAct, url: str) -> float:
    """The act, and then a suspension that is taken back; returns when nodes were on their way."""
    waiting_at = 0.0

    def tell(entry: StoryEntry) -> None:
        nonlocal waiting_at
        if entry.news.event == "NodeAdded":
            waiting_at = time.time()

    story = ProvisioningStory(world=stage.world, scaler_address=stage.scaler_address, tell=tell, began=time.monotonic())
    outcome = await story.run()
    assert outcome.ok, outcome.problem
    woken = sorted(story.victims)[0]
    await stage.world.patch(SCALED_OBJECT, NAMESPACE, woken, {"metadata": {"annotations": {WAKE_ANNOTATION: "true"}}})

    async def is_woken() -> bool:
        found = await stage.world.read(SCALABLE_WORKLOAD, NAMESPACE, woken)
        return bool(found["spec"]["replicas"])

    await until(is_woken)
    # What is left at the end: GPUs that are free, and a server that is quiet and will be suspended for that.
    await stage.world.delete(JOB, NAMESPACE, story.gang)
    await stage.world.apply(quiet_server(stage.scaler_address))

    def is_foreseen() -> bool:
        asker = Asker(url=url, start=time.time() - 60, end=time.time())
        return bool(asker.ask({"expr": "idle_gpu_scaler_workload_suspend_timestamp_seconds", "instant": True}))

    await until(lambda: asyncio.to_thread(is_foreseen))
    await asyncio.sleep(2)
    return waiting_at


def quiet_server(address: str) -> list[dict[str, Any]]:
    """A Deployment that is scaled by time alone, and kept for an hour."""
    keep_until = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    trigger = {"idleAfter": "2s", "warmUp": "0s", "keepUntil": keep_until}
    return [
        deployment("server", "default"),
        scaled_object("server", "default", DEPLOYMENT, address, trigger),
    ]
