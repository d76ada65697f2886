import asyncio

import msgspec
import pytest
from kube.faulty_api import status
from virtual_clock import VirtualClock

from scaler.kube.events import EventRecorder, ObjectReference
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.resources import CUSTOM_RESOURCE_DEFINITION, EVENT, WORKLOAD

ABOUT = ObjectReference.of(WORKLOAD, ObjectMeta(name="w", namespace="default", uid="u-1"))


@pytest.fixture
async def recording():
    """Starts recorders; ends them all in the end."""
    tasks = []

    def start(transport, **options):
        recorder = EventRecorder(transport, instance="pod-1", **options)
        tasks.append(asyncio.create_task(recorder.run()))
        return recorder

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def events(transport, namespace="default"):
    return msgspec.json.decode(await transport.get(EVENT.path(namespace)))["items"]


async def test_an_event_tells_what_was_done_to_what_and_by_whom(client, recording):
    recorder = recording(client)
    recorder.record(ABOUT, "GPUsIdle", "every GPU quiet for 30m")
    assert await recorder.drain(within=30)
    (event,) = await events(client)
    assert event["involvedObject"] == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "namespace": "default",
        "name": "w",
        "uid": "u-1",
    }
    assert (event["type"], event["reason"], event["count"]) == ("Normal", "GPUsIdle", 1)
    assert event["message"] == "every GPU quiet for 30m"
    assert (event["reportingComponent"], event["reportingInstance"]) == ("idle-gpu-scaler", "pod-1")
    assert event["source"] == {"component": "idle-gpu-scaler"}


async def test_repetitions_become_a_count(client, recording):
    recorder = recording(client)
    for _ in range(2):
        recorder.record(ABOUT, "GPUsIdle", "quiet")
    assert await recorder.drain(within=30)
    for _ in range(3):
        recorder.record(ABOUT, "GPUsIdle", "quiet")
    assert await recorder.drain(within=30)
    assert [event["count"] for event in await events(client)] == [5]


async def test_what_differs_is_another_event(client, recording):
    recorder = recording(client)
    recorder.record(ABOUT, "GPUsIdle", "quiet")
    recorder.record(ABOUT, "GPUsIdle", "quiet", warning=True)
    recorder.record(ABOUT, "GPUsBusy", "quiet")
    recorder.record(ABOUT, "GPUsIdle", "quieter")
    assert await recorder.drain(within=30)
    assert sorted(event["type"] for event in await events(client)) == ["Normal", "Normal", "Normal", "Warning"]


async def test_an_event_that_was_cleaned_away_is_made_anew(client, recording):
    recorder = recording(client)
    recorder.record(ABOUT, "GPUsIdle", "quiet")
    await recorder.drain(within=30)
    (event,) = await events(client)
    await client.delete(EVENT.path("default", event["metadata"]["name"]))
    recorder.record(ABOUT, "GPUsIdle", "quiet")
    await recorder.drain(within=30)
    assert [event["count"] for event in await events(client)] == [1]


async def test_an_event_about_a_clusters_object_is_kept_in_default(client, recording):
    recorder = recording(client)
    recorder.record(ObjectReference.of(CUSTOM_RESOURCE_DEFINITION, ObjectMeta(name="a.b", uid="u")), "Seen", "there")
    await recorder.drain(within=30)
    (event,) = await events(client)
    assert "namespace" not in event["involvedObject"]


async def test_a_long_message_is_cut(client, recording):
    recorder = recording(client)
    recorder.record(ABOUT, "GPUsIdle", "x" * 5000)
    await recorder.drain(within=30)
    (event,) = await events(client)
    assert len(event["message"]) == 1024
    assert event["message"].endswith("…")


async def test_a_full_queue_drops_and_counts(client):
    lost = []
    recorder = EventRecorder(client, queue_limit=3, lost=lost.append)
    for number in range(10):
        recorder.record(ABOUT, "GPUsIdle", f"message {number}")
    recorder.record(ABOUT, "GPUsIdle", "message 0")
    assert sum(lost) == 7


class SlowApi:
    """Takes Events, each after so many seconds."""

    def __init__(self, clock, seconds=0.0):
        self.clock, self.seconds = clock, seconds
        self.created, self.counts = [], []

    async def create(self, _path, body):
        await self.clock.sleep(self.seconds)
        self.created.append((body["message"], self.clock.monotonic()))

    async def patch(self, _path, body):
        self.counts.append(body["count"])


async def test_the_rate_is_bounded(recording):
    clock = VirtualClock()
    api = SlowApi(clock)
    recorder = recording(api, per_second=2, burst=3, clock=clock)
    for number in range(9):
        recorder.record(ABOUT, "GPUsIdle", f"message {number}")
    await clock.advance(60)
    assert [at for _, at in api.created] == [0, 0, 0, 0.5, 1, 1.5, 2, 2.5, 3]


async def test_recording_never_waits_for_the_api(recording):
    clock = VirtualClock()
    api = SlowApi(clock, seconds=30)
    recorder = recording(api, clock=clock)
    recorder.record(ABOUT, "GPUsIdle", "quiet")
    await clock.advance(20)
    recorder.record(ABOUT, "GPUsIdle", "still quiet")
    assert not await recorder.drain(within=0)
    await clock.advance(60)
    assert api.created == [("quiet", 30), ("still quiet", 60)]


async def test_after_ten_minutes_a_repetition_is_an_event_of_its_own(recording):
    clock = VirtualClock()
    api = SlowApi(clock)
    recorder = recording(api, clock=clock)
    for _ in range(2):
        recorder.record(ABOUT, "GPUsIdle", "quiet")
        await clock.advance(599)
    recorder.record(ABOUT, "GPUsIdle", "quiet")
    await clock.advance(1)
    assert ([at for _, at in api.created], api.counts) == ([0, 1198], [2])


async def test_an_api_that_refuses_costs_events_and_nothing_else(faulty, transport, recording):
    async def forbid(_):
        return status(403, "Forbidden", "events is forbidden")

    faulty.handler = forbid
    lost = []
    recorder = recording(transport, lost=lost.append)
    for number in range(3):
        recorder.record(ABOUT, "GPUsIdle", f"message {number}")
    assert await recorder.drain(within=30)
    assert sum(lost) == 3
