"""The simulated GPUs show what real ones behind a dcgm-exporter show, and lie only when told to."""

import re
from collections.abc import AsyncIterator

import aiohttp
import pytest

from scaler.embedded.fleet import (
    FB_USED,
    GPU_UTIL,
    GR_ENGINE_ACTIVE,
    POWER_USAGE,
    Exporter,
    Fleet,
    FleetConfig,
    Holder,
    uuids_on,
)

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
    first, _ = uuids_on(fleet.gpus, "node-a")
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


def test_a_quiet_holder_keeps_its_memory(fleet: Fleet) -> None:
    fleet.set_activity("demo", "trainer-*", 0.0)
    assert values(fleet, "node-a")[FB_USED] == 49152


def test_values_stand_still_within_a_collection_interval(fleet: Fleet, clock: Clock) -> None:
    values(fleet, "node-a")
    fleet.set_activity("demo", "trainer-*", 0.0)
    clock.now = 9.9
    assert values(fleet, "node-a")[GPU_UTIL] == 90
    clock.now = 10.0
    assert values(fleet, "node-a")[GPU_UTIL] == 0


def test_activity_may_be_a_function_of_time(fleet: Fleet, clock: Clock) -> None:
    fleet.set_activity("demo", "trainer-*", lambda seconds: 0.5 if seconds < 20 else 0.0)
    shown = []
    for clock.now in (0.0, 10.0, 20.0, 30.0):
        shown.append(values(fleet, "node-a")[GPU_UTIL])
    assert shown == [50, 50, 0, 0]


def test_noise_repeats_with_the_seed_and_never_makes_a_quiet_device_busy() -> None:
    def story() -> list[float]:
        clock = Clock()
        fleet = Fleet(FleetConfig(nodes={"n": 2}, collect_seconds=1.0), clock=clock)
        uuids = uuids_on(fleet.gpus, "n")
        fleet.hold("n", {u: Holder(namespace="d", pod=f"p{i}", container="c") for i, u in enumerate(uuids)})
        fleet.set_activity("d", "p0", 0.5, noise=0.1)
        fleet.set_activity("d", "p1", 0.0, noise=0.1)
        shown = []
        for clock.now in range(20):
            shown += [reading.values[GR_ENGINE_ACTIVE] for reading in fleet.readings("n")]
        return shown

    once = story()
    assert once == story()
    assert len(set(once[0::2])) > 10
    assert set(once[1::2]) == {0.0}


def test_uuids_depend_on_the_place_and_not_on_the_neighbours() -> None:
    small = Fleet(FleetConfig(nodes={"node-b": 1}))
    large = Fleet(FleetConfig(nodes={"node-a": 8, "node-b": 2}))
    assert uuids_on(small.gpus, "node-b") == uuids_on(large.gpus, "node-b")[:1]


async def test_the_exposition_has_the_labels_of_dcgm_exporter(exporter: Exporter, fleet: Fleet) -> None:
    text = await scrape(exporter.node_urls["node-a"])
    samples = parsed(text)
    assert {name for name, _, _ in samples} == {GR_ENGINE_ACTIVE, GPU_UTIL, POWER_USAGE, FB_USED}
    assert f"# TYPE {GPU_UTIL} gauge" in text
    held = next(labels for name, labels, _ in samples if name == GPU_UTIL and labels["gpu"] == "0")
    assert held == {
        "gpu": "0",
        "UUID": uuids_on(fleet.gpus, "node-a")[0],
        "pci_bus_id": "00000000:07:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA A100-SXM4-80GB",
        "Hostname": "node-a",
        "container": "ray",
        "namespace": "demo",
        "pod": "trainer-0",
    }
    assert (GPU_UTIL, "90") in {(name, value) for name, labels, value in samples if labels["gpu"] == "0"}


async def test_a_free_device_has_no_pod_labels(exporter: Exporter) -> None:
    samples = parsed(await scrape(exporter.node_urls["node-b"]))
    assert samples
    assert all("pod" not in labels and "namespace" not in labels for _, labels, _ in samples)


async def test_the_common_path_has_all_nodes_except_those_that_are_out(exporter: Exporter, fleet: Fleet) -> None:
    def hosts(text: str) -> set[str]:
        return {labels["Hostname"] for _, labels, _ in parsed(text)}

    assert hosts(await scrape(f"{exporter.url}/metrics")) == {"node-a", "node-b"}
    fleet.faults.exporter_down("node-b")
    assert hosts(await scrape(f"{exporter.url}/metrics")) == {"node-a"}


async def test_an_exporter_fails_as_it_is_told_to_and_recovers(exporter: Exporter, fleet: Fleet) -> None:
    url = exporter.node_urls["node-a"]
    fleet.faults.exporter_down("node-a")
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await scrape(url)
    fleet.faults.exporter_errors("node-a")
    with pytest.raises(aiohttp.ClientResponseError, match="500"):
        await scrape(url)
    fleet.faults.exporter_truncates("node-a")
    with pytest.raises(aiohttp.ClientPayloadError):
        await scrape(url)
    fleet.faults.exporter_hangs("node-a")
    with pytest.raises(TimeoutError):
        await scrape(url, seconds=0.2)
    fleet.faults.exporter_recovers("node-a")
    assert parsed(await scrape(url))


async def test_an_unknown_node_is_not_found(exporter: Exporter) -> None:
    with pytest.raises(aiohttp.ClientResponseError, match="404"):
        await scrape(f"{exporter.url}/nodes/nowhere/metrics")


def test_a_stuck_signal_shows_its_value_whatever_the_device_does(fleet: Fleet) -> None:
    (uuid, _) = uuids_on(fleet.gpus, "node-a")
    fleet.faults.stick(GR_ENGINE_ACTIVE, 0.0, uuid=uuid)
    assert values(fleet, "node-a")[GR_ENGINE_ACTIVE] == 0.0
    assert values(fleet, "node-a")[GPU_UTIL] == 90
    fleet.faults.unstick(GR_ENGINE_ACTIVE, uuid=uuid)
    assert values(fleet, "node-a")[GR_ENGINE_ACTIVE] == 0.9


async def test_a_blank_shows_the_drivers_sentinel(exporter: Exporter, fleet: Fleet) -> None:
    fleet.faults.blank(GPU_UTIL, uuid=uuids_on(fleet.gpus, "node-b")[0])
    samples = parsed(await scrape(exporter.node_urls["node-b"]))
    assert [value for name, _, value in samples if name == GPU_UTIL] == ["9223372036854775794"]


def test_a_vanished_device_is_missing_until_it_reappears(fleet: Fleet) -> None:
    (uuid, other) = uuids_on(fleet.gpus, "node-a")
    fleet.faults.vanish(uuid)
    assert [reading.gpu.uuid for reading in fleet.readings("node-a")] == [other]
    fleet.faults.reappear(uuid)
    assert len(fleet.readings("node-a")) == 2


def test_swapped_labels_attribute_two_pods_to_each_other(fleet: Fleet, clock: Clock) -> None:
    one, two = uuids_on(fleet.gpus, "node-a")
    fleet.hold(
        "node-a",
        {
            one: Holder(namespace="demo", pod="trainer-0", container="ray"),
            two: Holder(namespace="demo", pod="idler-0", container="ray"),
        },
    )
    fleet.faults.swap_labels(("demo", "trainer-0"), ("demo", "idler-0"))
    shown = {r.holder.pod: r.values[GPU_UTIL] for r in fleet.readings("node-a") if r.holder}
    assert shown == {"trainer-0": 0, "idler-0": 90}


def test_a_frozen_exporter_repeats_its_last_collection(fleet: Fleet, clock: Clock) -> None:
    values(fleet, "node-a")
    fleet.faults.freeze("node-a")
    fleet.set_activity("demo", "trainer-*", 0.0)
    clock.now = 100.0
    assert values(fleet, "node-a")[GPU_UTIL] == 90
    fleet.faults.thaw("node-a")
    assert values(fleet, "node-a")[GPU_UTIL] == 0


def test_clearing_the_faults_takes_all_of_them_back(fleet: Fleet) -> None:
    (uuid, _) = uuids_on(fleet.gpus, "node-a")
    fleet.faults.vanish(uuid)
    fleet.faults.freeze("node-a")
    fleet.faults.exporter_down("node-a")
    fleet.faults.clear()
    assert len(fleet.readings("node-a")) == 2
    assert fleet.faults.outage("node-a") is None
