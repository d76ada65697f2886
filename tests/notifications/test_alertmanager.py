"""Alertmanager is told of states: they begin, last, and end, whoever leads."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import NOON
from http_stub import HttpStub, Received, Reply
from notifications.notification_builders import workload

from scaler.notifications.alertmanager import Alertmanager
from scaler.notifications.notice import NotifiedWorkload
from scaler.notifications.senders import TargetConfig, TargetKind

SOURCE: Any = None


class Bench:
    """An Alertmanager that remembers what it was sent, and answers as it is told."""

    def __init__(self, stub: HttpStub, folder: Path) -> None:
        self.stub, self._file = stub, folder / "url"
        self._file.write_text(stub.url + "/prefix/\n")
        self.restart()

    def restart(self) -> None:
        config = TargetConfig(name="am", kind=TargetKind.ALERTMANAGER, url_file=self._file)
        self.outcomes: list[str] = []
        self.target = Alertmanager(config, timedelta(seconds=5), lambda _, outcome: self.outcomes.append(outcome))

    async def told(self, second: float, *workloads: NotifiedWorkload) -> list[dict[str, Any]]:
        """The alerts that this adds."""
        before = len(self.stub.received)
        await self.target.tell([(SOURCE, each) for each in workloads], NOON + timedelta(seconds=second))
        return [alert for request in self.stub.received[before:] for alert in json.loads(request.body)]


def ends(alert: dict[str, Any]) -> float:
    """Seconds after noon."""
    return (datetime.fromisoformat(alert["endsAt"]) - NOON).total_seconds()


async def test_a_state_is_told_while_it_lasts_and_once_when_it_ends(tmp_path: Path) -> None:
    warned, busy = workload(("Warned", 0)), workload(("Warned", 0), ("Busy", 90))
    with HttpStub(lambda _: Reply(b"")) as stub:
        bench = Bench(stub, tmp_path)
        (first,) = await bench.told(5, warned)
        assert await bench.told(64, warned) == []
        (again,) = await bench.told(65, warned)
        (ended,) = await bench.told(95, busy)
        assert await bench.told(96, busy) == []
        assert {request.path for request in stub.received} == {"/prefix/api/v2/alerts"}
    assert first["labels"] == {
        "alertname": "GPUWorkloadWarned",
        "namespace": "demo",
        "scaledobject": "train",
        "kind": "ScalableWorkload",
        "workload": "train",
        "owner": "team-a",
    }
    assert {each["startsAt"] for each in (first, again, ended)} == {"2026-12-01T12:00:00Z"}
    assert first["labels"] == again["labels"] == ended["labels"]
    assert [ends(each) for each in (first, again, ended)] == [245, 305, 95]  # four rounds of a minute ahead


async def test_the_next_state_ends_the_one_before(tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(b"")) as stub:
        bench = Bench(stub, tmp_path)
        await bench.told(5, workload(("Warned", 0)))
        told = await bench.told(12, workload(("Warned", 0), ("Suspended", 10)))
    assert [(each["labels"]["alertname"], ends(each) <= 12) for each in told] == [
        ("GPUWorkloadWarned", True),
        ("GPUWorkloadSuspended", False),
    ]


async def test_another_leader_sends_the_same_alert(tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(b"")) as stub:
        bench = Bench(stub, tmp_path)
        (before,) = await bench.told(5, workload(("Warned", 0)))
        bench.restart()
        (after,) = await bench.told(6, workload(("Warned", 0)))
    assert {**after, "endsAt": ""} == {**before, "endsAt": ""}


@pytest.mark.parametrize("status", [400, 500])
async def test_a_failure_is_tried_again_and_no_end_is_lost(tmp_path: Path, status: int) -> None:
    statuses = [200, status, 200]

    def answer(_: Received) -> Reply:
        return Reply(b"", statuses.pop(0))

    gone = workload(("Warned", 0), ("Busy", 10))
    with HttpStub(answer) as stub:
        bench = Bench(stub, tmp_path)
        await bench.told(5, workload(("Warned", 0)))
        await bench.told(12, gone)
        (ended,) = await bench.told(27, gone)
        assert await bench.told(28, gone) == []
    assert ends(ended) == 27
    assert bench.outcomes == ["delivered", "failed", "delivered"]


async def test_many_are_sent_in_parts(tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(b"")) as stub:
        alerts = await Bench(stub, tmp_path).told(1, *(workload(("Warned", 0), name=f"w{n}") for n in range(1201)))
    assert len(alerts) == 1201
    assert len(stub.received) == 3
