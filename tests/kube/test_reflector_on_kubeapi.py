"""The reflector over HTTP against a server that behaves, is interrupted, and comes back."""

import asyncio
import random
from contextlib import suppress

import pytest

from scaler.errors import KubeError
from scaler.kube.objects.core import PartialObjectMetadata, decode
from scaler.kube.objects.resources import Resource
from scaler.kube.reflector import Disconnected, Reflecting, Reflector
from scaler.kube.watch_backoff import Backoff, WatchTiming

CONFIG_MAP = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap")
TIMING = WatchTiming(watch=(60, 60), lasting=0.5, absent=0.1, backoff=Backoff(base=0.02, cap=0.1))
TEAM = "team=red"


@pytest.fixture
async def reflect(client):
    async with asyncio.TaskGroup() as tasks:
        running = []

        async def start(resource, kind, **options):
            reflector = Reflector(client, resource, kind, timing=TIMING, **options)
            running.append(tasks.create_task(reflector.run()))
            await asyncio.wait_for(reflector.wait_synced(), 30)
            return reflector

        yield start
        for task in running:
            task.cancel()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def versions(objects):
    return {obj.metadata.key: obj.metadata.resource_version for obj in objects}


async def listed(client):
    pages = client.list_pages(CONFIG_MAP.path(), {"labelSelector": TEAM})
    return versions([decode(PartialObjectMetadata, raw) async for page in pages for raw in page.items])


async def test_whatever_happens_the_copy_ends_up_as_the_api(kube_api, client, reflect):
    """Objects come, go, and enter and leave the selector, while watches end, history is forgotten and the API stops."""
    dice = random.Random(3)
    reflector = await reflect(CONFIG_MAP, PartialObjectMetadata, label_selector=TEAM)
    heard: dict = versions(reflector.items())

    def hear(change):
        if change.new is None:
            heard.pop(change.key, None)
        else:
            heard[change.key] = change.new.metadata.resource_version

    async def write(name):
        path = CONFIG_MAP.path("default", name)
        match dice.randrange(3):
            case 0:
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"team": "red"}}}
                await client.create(CONFIG_MAP.path("default"), body)
            case 1:
                await client.patch(path, {"metadata": {"labels": {"team": dice.choice(["red", "blue"])}}})
            case 2:
                await client.delete(path)

    reflector.subscribe(hear)
    faults = [kube_api.faults.close_watches, kube_api.faults.compact_history]
    for step in range(150):
        with suppress(KubeError):
            await write(f"c{dice.randrange(10)}")
        if step % 15 == 0:
            dice.choice(faults)()
        await asyncio.sleep(dice.choice([0, 0, 0.002]))
    await kube_api.stop()
    await until(lambda: isinstance(reflector.state, Disconnected))
    assert len(reflector) == len(heard)
    await kube_api.start()
    truth = await listed(client)
    await until(lambda: versions(reflector.items()) == truth and reflector.state == Reflecting())
    assert heard == truth != {}
