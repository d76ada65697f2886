"""What a message shows of a workload comes from its history, where its decision has gone on since."""

from dataclasses import replace
from datetime import timedelta

from builders import NOON
from loops_builders import World, gang, scalable_workload
from msgspec.structs import replace as changed
from notifications.notification_builders import TARGET, line, notice
from scripted_metrics import Metrics, ScriptedSource

from scaler.notifications.details import DetailsReader
from scaler.notifications.message import content
from scaler.notifications.schedule import Message
from scaler.notifications.workloads import Source


def test_of_a_suspension_its_owner_is_told_why_and_since_when_its_gpus_were_idle() -> None:
    world = World([gang("train")], lambda w: ScriptedSource(metrics=Metrics(series=[]), clock=lambda: w.now))
    reader = DetailsReader(world.evaluator, world.decision_cache)
    quiet = changed(line("Suspended"), idle_since=NOON - timedelta(minutes=45), idle_at_least=True)
    suspended = replace(notice("Suspended"), line=quiet)
    scaled_object = world.cluster.scaled_objects.items()[0]
    details = {
        suspended.id: reader.read(
            suspended, Source(scaled_object=scaled_object, record=scalable_workload("train")), NOON
        )
    }
    told = content(Message(target=TARGET, owner="team-a", notices=(suspended,)), details)
    [shown] = told.json["notices"]  # type: ignore[misc]
    assert (shown["reason"], shown["idleSince"], shown["idleAtLeast"]) == ("GPUsIdle", "2026-12-01T11:15:00Z", True)
    assert "GPUs idle at least since 2026-12-01T11:15:00Z" in told.text
