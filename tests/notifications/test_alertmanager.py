"""Alertmanager is told of states: they begin, last, and end, whoever leads."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from alertmanager_server import alertmanager_server, require_alertmanager
from builders import NOON
from http_stub import HttpStub, Received, Reply
from notifications.notification_builders import workload
from small_cluster import until

from scaler.notifications.alertmanager import Alertmanager
from scaler.notifications.notice import NotifiedWorkload
from scaler.notifications.senders import TargetConfig, TargetKind
from scaler.webhook import SendError, post_json

SOURCE: Any = None


class Bench:
    """An Alertmanager that remembers what it was sent, and answers as it is told; or another one at that URL."""

    def __init__(self, stub: HttpStub, folder: Path, *, url: str = "", begin: datetime = NOON) -> None:
        self.stub, self._file, self._begin = stub, folder / "url", begin
        self._file.write_text(f"{url or stub.url + '/prefix/'}\n")
        self.restart()

    def restart(self) -> None:
        config = TargetConfig(name="am", kind=TargetKind.ALERTMANAGER, url_file=self._file)
        self.outcomes: list[str] = []
        self.target = Alertmanager(config, timedelta(seconds=5), lambda _, outcome: self.outcomes.append(outcome))

    async def told(self, second: float, *workloads: NotifiedWorkload) -> list[dict[str, Any]]:
        """The alerts that this adds."""
        before = len(self.stub.received)
        await self.target.tell([(SOURCE, each) for each in workloads], self._begin + timedelta(seconds=second))
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


async def test_nothing_ends_before_it_begins_whatever_clocks_say(tmp_path: Path) -> None:
    """Alertmanager refuses that, and with it all that comes along."""
    with HttpStub(lambda _: Reply(b"")) as stub:
        bench = Bench(stub, tmp_path)
        [first] = await bench.told(-300, workload(("Warned", 0)))
        [ended] = await bench.told(-290, workload(("Warned", 0), ("Busy", 1)))
    assert (ends(first), ends(ended)) == (240, 0)


# ------------------------------------------------------------------------------------------------------ a real one


class RealAlertmanager:
    """The program itself, what it knows, and what it tells its receiver."""

    def __init__(self, url: str, receiver: HttpStub) -> None:
        self.url, self._receiver = url, receiver

    async def alerts(self) -> list[dict[str, Any]]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/api/v2/alerts") as answer:
            return list(await answer.json())

    async def told(self) -> set[str]:
        """What its receiver was told: `GPUWorkloadWarned firing`."""
        bodies = [json.loads(each.body) for each in self._receiver.received]
        return {f"{alert['labels']['alertname']} {alert['status']}" for body in bodies for alert in body["alerts"]}

    async def has_told(self, *expected: str) -> None:
        async def holds() -> bool:
            return await self.told() == {*expected}

        await until(holds)


def aged(one: NotifiedWorkload, begin: datetime) -> NotifiedWorkload:
    """With its history counted from another time than noon."""
    return replace(one, lines=tuple(msgspec.structs.replace(each, at=each.at - NOON + begin) for each in one.lines))


async def test_a_real_alertmanager_fires_and_resolves_what_it_is_told(tmp_path: Path) -> None:
    require_alertmanager()
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)
    warned = aged(replace(workload(("Warned", 0)), owner="Team A <a@example.com> ü"), begin)
    suspended = aged(replace(workload(("Warned", 0), ("Suspended", 300)), owner=warned.owner), begin)
    resumed = aged(replace(workload(("Suspended", 300), ("Waking", 590)), owner=warned.owner), begin)
    with HttpStub(lambda _: Reply(b"")) as receiver, alertmanager_server(tmp_path / "am", receiver.url) as url:
        real = RealAlertmanager(url, receiver)
        bench = Bench(receiver, tmp_path, url=f"{url}/", begin=begin)
        await bench.told(600, warned)
        await real.has_told("GPUWorkloadWarned firing")
        [alert] = await real.alerts()
        assert alert["labels"] | {"owner": warned.owner, "workload": "train"} == alert["labels"]
        assert datetime.fromisoformat(alert["startsAt"]) == begin
        assert alert["annotations"]["summary"] == "ScalableWorkload demo/train will be suspended: its GPUs are idle"
        bench.restart()  # another leader: the same alert
        await bench.told(600, warned)
        assert len(await real.alerts()) == 1
        await bench.told(600, suspended)
        down = ("GPUWorkloadWarned firing", "GPUWorkloadWarned resolved", "GPUWorkloadSuspended firing")
        await real.has_told(*down)
        await bench.told(600, resumed)
        await real.has_told(*down, "GPUWorkloadSuspended resolved")
    assert set(bench.outcomes) == {"delivered"}


async def test_a_real_alertmanager_refuses_what_is_none_of_its_alerts(tmp_path: Path) -> None:
    """So that what it accepts above was looked at."""
    require_alertmanager()
    with HttpStub(lambda _: Reply(b"")) as receiver, alertmanager_server(tmp_path / "am", receiver.url) as url:
        file = tmp_path / "url"
        file.write_text(url)
        config = TargetConfig(name="am", kind=TargetKind.ALERTMANAGER, url_file=file)
        backwards = {"labels": {"alertname": "a"}, "startsAt": "2026-12-01T12:00:01Z", "endsAt": "2026-12-01T12:00:00Z"}
        for wrong in ([backwards], [{"labels": {}}], [{"annotations": {}}], {}):
            with pytest.raises(SendError, match="HTTP 4"):
                await post_json(config, json.dumps(wrong).encode(), {}, timedelta(seconds=5), path="/api/v2/alerts")
