"""The simulated GPUs show what real ones behind a dcgm-exporter show, and other values only as faults."""

import re
from collections.abc import AsyncIterator

import aiohttp
import pytest
from scaler_sandbox.fleet import GPU_UTIL, Exporter, Fleet, FleetConfig, Holder
from scaler_sandbox.fleet.gpus import FB_USED, GR_ENGINE_ACTIVE, POWER_USAGE

LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    fleet = Fleet(FleetConfig(nodes={"node-a": 2, "node-b": 1}, collect_seconds=10.0), clock=clock)
    first, _ = (gpu.uuid for gpu in fleet.on("node-a"))
    fleet.hold("node-a", {first: Holder(namespace="demo", pod="trainer-0", container="ray")})
    fleet.set_activity("demo", "trainer-*", 0.9)
    return fleet


@pytest.fixture
async def exporter(fleet: Fleet) -> AsyncIterator[Exporter]:
    async with Exporter(fleet) as exporter:
        yield exporter


def values(fleet: Fleet, node: str, index: int = 0) -> dict[str, float]:
    return dict(fleet.readings(node)[index].values)


async def scrape(url: str, *, seconds: float = 5.0) -> str:
    timeout = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
        response.raise_for_status()
        return await response.text()


def parsed(text: str) -> list[tuple[str, dict[str, str], str]]:
    samples = []
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            samples.append((match[1], dict(re.findall(r'(\w+)="([^"]*)"', match[2])), match[3]))
    return samples


def test_a_busy_device_draws_power_and_a_free_one_is_quiet(fleet: Fleet) -> None:
    busy, free = values(fleet, "node-a", 0), values(fleet, "node-a", 1)
    # 63 W idle + (400 W - 63 W) x 0.9 = 366.3 W
    assert busy == {GR_ENGINE_ACTIVE: 0.9, GPU_UTIL: 90, POWER_USAGE: 366.3, FB_USED: 49152}
    assert free == {GR_ENGINE_ACTIVE: 0, GPU_UTIL: 0, POWER_USAGE: 63, FB_USED: 4}


def test_values_stand_still_within_a_collection_interval(fleet: Fleet, clock: Clock) -> None:
    values(fleet, "node-a")
    fleet.set_activity("demo", "trainer-*", 0.0)
    clock.now = 9.9
    assert values(fleet, "node-a")[GPU_UTIL] == 90
    clock.now = 10.0
    assert values(fleet, "node-a")[GPU_UTIL] == 0


async def test_the_exposition_has_the_labels_of_dcgm_exporter(exporter: Exporter, fleet: Fleet) -> None:
    text = await scrape(exporter.node_urls["node-a"])
    samples = parsed(text)
    assert {name for name, _, _ in samples} == {GR_ENGINE_ACTIVE, GPU_UTIL, POWER_USAGE, FB_USED}
    assert f"# TYPE {GPU_UTIL} gauge" in text
    held = next(labels for name, labels, _ in samples if name == GPU_UTIL and labels["gpu"] == "0")
    assert held == {
        "gpu": "0",
        "UUID": fleet.on("node-a")[0].uuid,
        "pci_bus_id": "00000000:07:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA A100-SXM4-80GB",
        "Hostname": "node-a",
        "container": "ray",
        "namespace": "demo",
        "pod": "trainer-0",
    }
    assert (GPU_UTIL, "90") in {(name, value) for name, labels, value in samples if labels["gpu"] == "0"}


async def test_a_blank_shows_the_drivers_sentinel(exporter: Exporter, fleet: Fleet) -> None:
    fleet.faults.blank(GPU_UTIL, uuid=fleet.on("node-b")[0].uuid)
    samples = parsed(await scrape(exporter.node_urls["node-b"]))
    assert [value for name, _, value in samples if name == GPU_UTIL] == ["9223372036854775794"]


async def test_a_fault_lasts_until_it_is_cleared(exporter: Exporter, fleet: Fleet) -> None:
    first, second = (gpu.uuid for gpu in fleet.on("node-a"))
    fleet.faults.vanish(first)
    assert [reading.gpu.uuid for reading in fleet.readings("node-a")] == [second]
    fleet.faults.exporter_down("node-a")
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await scrape(exporter.node_urls["node-a"])
    fleet.faults.clear()
    assert len(fleet.readings("node-a")) == 2
    assert parsed(await scrape(exporter.node_urls["node-a"]))
