"""The reflector against a server that behaves, is interrupted, and comes back."""

import asyncio
import random
from contextlib import suppress

import pytest
import yaml

from scaler.kube.objects.core import PartialObjectMetadata, decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, Resource
from scaler.kube.reflector import Absent, Disconnected, Reflecting, Reflector
from scaler.kube.watch_backoff import Backoff, WatchTiming

CONFIG_MAP = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap")
TIMING = WatchTiming(watch=(60, 60), lasting=0.5, absent=0.1, backoff=Backoff(base=0.02, cap=0.1))


@pytest.fixture
async def reflect(client):
    tasks = []

    async def start(resource=CONFIG_MAP, kind=PartialObjectMetadata, *, timing=TIMING, **options):
        reflector = Reflector(client, resource, kind, timing=timing, **options)
        tasks.append(asyncio.create_task(reflector.run()))
        await asyncio.wait_for(reflector.wait_synced(), 30)
        return reflector

    yield start
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def config_map(name, **labels):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


def names(reflector):
    return sorted(obj.metadata.name for obj in reflector.items())


def versions(objects):
    return {obj.metadata.key: obj.metadata.resource_version for obj in objects}


async def listed(client):
    return versions(
        [
            decode(PartialObjectMetadata, raw)
            async for page in client.list_pages(CONFIG_MAP.path())
            for raw in page.items
        ]
    )


async def test_thousands_of_objects_are_listed_in_pages(client, reflect):
    bodies = [config_map(f"c{number}") for number in range(2_100)]
    for start in range(0, len(bodies), 100):
        await asyncio.gather(*(client.create(CONFIG_MAP.path("default"), body) for body in bodies[start : start + 100]))
    reflector = await reflect()
    assert versions(reflector.items()) == await listed(client)
    assert len(reflector) >= 2_100


async def test_changes_arrive(client, reflect):
    reflector = await reflect(indexes={"team": lambda obj: [obj.metadata.labels.get("team")]})
    await client.create(CONFIG_MAP.path("default"), config_map("a", team="red"))
    await until(lambda: [obj.metadata.name for obj in reflector.by_index("team", "red")] == ["a"])
    await client.patch(CONFIG_MAP.path("default", "a"), {"metadata": {"labels": {"team": "blue"}}})
    await until(lambda: reflector.by_index("team", "red") == [] and len(reflector.by_index("team", "blue")) == 1)
    await client.delete(CONFIG_MAP.path("default", "a"))
    await until(lambda: reflector.get("default", "a") is None)


async def test_an_object_that_leaves_the_selector_leaves_the_copy(client, reflect):
    await client.create(CONFIG_MAP.path("default"), config_map("a", team="red"))
    await client.create(CONFIG_MAP.path("default"), config_map("b", team="blue"))
    reflector = await reflect(label_selector="team=red")
    assert names(reflector) == ["a"]
    await client.patch(CONFIG_MAP.path("default", "a"), {"metadata": {"labels": {"team": "blue"}}})
    await client.patch(CONFIG_MAP.path("default", "b"), {"metadata": {"labels": {"team": "red"}}})
    await until(lambda: names(reflector) == ["b"])


async def test_an_outage_costs_nothing_but_time(kube_api, client, connect, reflect):
    reflector = await reflect()
    await client.create(CONFIG_MAP.path("default"), config_map("before"))
    await until(lambda: "before" in names(reflector))
    await kube_api.stop()
    await until(lambda: isinstance(reflector.state, Disconnected))
    assert "before" in names(reflector)
    await kube_api.start()
    await client.create(CONFIG_MAP.path("default"), config_map("after"))
    await until(lambda: "after" in names(reflector))
    assert reflector.state == Reflecting()


async def test_a_history_that_was_compacted_meanwhile_is_listed_anew(kube_api, client, connect, reflect):
    reflector = await reflect()
    for name in ("kept", "deleted"):
        await client.create(CONFIG_MAP.path("default"), config_map(name))
    await until(lambda: "deleted" in names(reflector))
    kube_api.faults.fail_next(5, status=503, method="GET", path_part="configmaps")
    kube_api.faults.close_watches()
    await client.delete(CONFIG_MAP.path("default", "deleted"))
    kube_api.faults.compact_history()
    await until(lambda: "deleted" not in names(reflector))
    assert "kept" in names(reflector)


async def test_a_watch_that_falls_silent_is_replaced(kube_api, client, reflect):
    timing = WatchTiming(watch=(2, 2), slack=-1.7, bookmark_silence=0.3, backoff=Backoff(base=0.02, cap=0.1))
    reflector = await reflect(timing=timing)
    kube_api.faults.silence_watches = True
    await client.create(CONFIG_MAP.path("default"), config_map("unheard"))
    await until(lambda: isinstance(reflector.state, Disconnected))
    kube_api.faults.silence_watches = False
    await until(lambda: "unheard" in names(reflector))


async def test_a_crd_that_is_installed_later_is_found(kube_api, client, reflect, pytestconfig):
    reflector = await reflect(SCALABLE_WORKLOAD, ScalableWorkload)
    assert isinstance(reflector.state, Absent)
    definition = pytestconfig.rootpath / "deploy" / "crds" / "idlegpu.io_scalableworkloads.yaml"
    kube_api.install_crds([yaml.safe_load(definition.read_text())])
    await until(lambda: reflector.state == Reflecting())
    body = {
        "apiVersion": SCALABLE_WORKLOAD.api_version,
        "kind": SCALABLE_WORKLOAD.kind,
        "metadata": {"name": "s"},
        "spec": {"jobRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "j"}},
    }
    await client.create(SCALABLE_WORKLOAD.path("default"), body)
    await until(lambda: reflector.get("default", "s") is not None)
    found = reflector.get("default", "s")
    assert (found.spec.replicas, found.spec.job_ref.name, found.spec.workload_ref) == (1, "j", None)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_the_copy_ends_up_as_the_api(kube_api, client, connect, reflect, seed):
    """Writes go on while watches end, connections drop and history is forgotten; then the copy equals a list."""
    dice = random.Random(seed)
    reflector = await reflect()
    heard: dict = versions(reflector.items())

    def hear(change):
        if change.new is None:
            heard.pop(change.key, None)
        else:
            heard[change.key] = change.new.metadata.resource_version

    reflector.subscribe(hear)
    faults = [kube_api.faults.close_watches, kube_api.faults.compact_history]
    for step in range(150):
        path = CONFIG_MAP.path("default", f"c{dice.randrange(10)}")
        name = path.rpartition("/")[2]
        with suppress(Exception):
            await dice.choice(
                [
                    lambda: client.create(CONFIG_MAP.path("default"), config_map(name)),  # noqa: B023
                    lambda: client.patch(path, {"data": {"step": str(step)}}),  # noqa: B023
                    lambda: client.delete(path),  # noqa: B023
                ]
            )()
        if step % 15 == 0:
            dice.choice(faults)()
        await asyncio.sleep(dice.choice([0, 0, 0.002]))
    truth = await listed(client)
    await until(lambda: versions(reflector.items()) == truth)
    assert heard == truth
