"""The weekly digest: when it is due, what it says, and that each team gets it once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import promql_parser
import pytest
from notifications.notification_builders import TARGET, Receiver
from notifications.test_notification_controller import enters
from small_cluster import NAME, SmallCluster, until
from suspension.replica import Replica, replica

from scaler.decision.owners import Owners
from scaler.decision.workloads import NO_TARGETS
from scaler.errors import SourceError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.notifications.digest import MARK_PREFIX, DigestConfig, WeeklyDigest, queries
from scaler.notifications.workloads import NotifiedWorkloads
from scaler.reporting.metrics import Metrics
from scaler.reporting.usage.own_metrics import OwnMetrics
from scaler.samples.source import VectorSample
from scaler.webhook import SendError

BERLIN = ZoneInfo("Europe/Berlin")
CONFIG = DigestConfig(weekday=0, hour=9, zone=BERLIN, targets=(TARGET,))
MATCHERS = {"cluster": "prod"}
DUE = datetime(2026, 11, 23, 9, tzinfo=BERLIN)  # a Monday


@dataclass
class Prometheus:
    """Answers the three queries about namespace demo."""

    held: float = 41.25
    is_down: bool = False
    asked: list[datetime] = field(default_factory=list)

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        if self.is_down:
            raise SourceError("503", transient=True)
        self.asked.append(at)
        demo = {"workload_namespace": "demo"}
        workloads = [({**demo, "kind": "Deployment", "name": name}, 3600.0 * n) for n, name in enumerate("abc", 1)]
        held, given_back, longest = queries(OwnMetrics(matchers=MATCHERS))
        return {
            held: [VectorSample(demo, self.held), VectorSample({"workload_namespace": "other"}, 9.0)],
            given_back: [VectorSample(demo, 0.0)],
            longest: [VectorSample(labels, value) for labels, value in workloads],
        }[promql]


class Team:
    def __init__(self, one: Replica, receiver: Receiver, prometheus: Prometheus) -> None:
        self.replica = one
        self.outcomes: list[str] = []
        self.workloads = NotifiedWorkloads(one.copies, Owners(), NO_TARGETS, {})
        self.digest = WeeklyDigest(
            CONFIG,
            one.transport,
            prometheus,
            OwnMetrics(matchers=MATCHERS),
            senders={TARGET: receiver},
            owner_of=Owners().of_namespace,
            sent=lambda _, outcome: self.outcomes.append(outcome),
        )

    async def ticks(self, after: timedelta) -> None:
        await until(self.replica.is_current)
        await self.digest.tick(list(self.workloads.all()), DUE + after)


@pytest.fixture
async def cluster(cluster: SmallCluster) -> SmallCluster:
    await cluster.wants(1)
    await cluster.is_scaled_by({"idleAfter": "1s"})
    await enters(cluster, ("Busy", 0))
    return cluster


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (datetime(2026, 11, 23, 7, 59, tzinfo=UTC), datetime(2026, 11, 16, 9, tzinfo=BERLIN)),
        (datetime(2026, 11, 23, 8, 0, tzinfo=UTC), DUE),
        (datetime(2026, 11, 29, 23, 0, tzinfo=UTC), DUE),
        # Clocks go back on 25 October: 9 o'clock stays 9 o'clock.
        (datetime(2026, 10, 26, 8, 0, tzinfo=UTC), datetime(2026, 10, 26, 9, tzinfo=BERLIN)),
        (datetime(2026, 10, 26, 7, 59, tzinfo=UTC), datetime(2026, 10, 19, 9, tzinfo=BERLIN)),
    ],
)
def test_it_is_due_at_one_hour_of_one_weekday(now: datetime, due: datetime) -> None:
    assert CONFIG.last_due(now) == due


@pytest.mark.parametrize("query", queries(OwnMetrics(matchers={"cluster": 'a"b'})))
def test_the_queries_are_of_metrics_that_there_are(query: str) -> None:
    promql_parser.parse(query)
    assert any(f"{each.name}{{" in query or f"{each.name}[" in query for each in Metrics().declared)


async def test_each_team_is_told_once_what_it_did(cluster: SmallCluster) -> None:
    receiver, prometheus = Receiver(), Prometheus()
    async with replica(cluster) as one:
        ours = Team(one, receiver, prometheus)
        await ours.ticks(timedelta(hours=-1) + timedelta(days=1, hours=1))  # too late for this week
        assert receiver.got == []
        for seconds in (1, 6, 400):
            await ours.ticks(timedelta(seconds=seconds))
    async with replica(cluster) as other:
        await Team(other, receiver, prometheus).ticks(timedelta(hours=1))
        assert len(receiver.got) == 1
        await Team(other, receiver, prometheus).ticks(timedelta(days=7, hours=1))
    first, second = receiver.got
    assert first.id != second.id
    assert set(prometheus.asked) == {DUE, DUE + timedelta(days=7)}
    assert "held idle:  41.2 GPU-hours" in first.text
    assert [each.split()[-1] for each in first.text.splitlines() if "Deployment" in each] == ["c", "b", "a"]
    assert first.json["digest"] == {
        "namespace": "demo",
        "from": "2026-11-16T08:00:00Z",
        "to": "2026-11-23T08:00:00Z",
        "idleGpuHours": 41.25,
        "givenBackGpuHours": 0.0,
        "longestIdle": [
            {"workload": f"Deployment {name}", "seconds": 3600 * n} for n, name in ((3, "c"), (2, "b"), (1, "a"))
        ],
    }
    annotations = (await cluster.read(SCALABLE_WORKLOAD, NAME))["metadata"]["annotations"]
    assert annotations[MARK_PREFIX + TARGET] == "2026-11-30T08:00:00Z"


async def test_without_numbers_it_waits_and_tells_no_zeros(cluster: SmallCluster) -> None:
    receiver, prometheus = Receiver(failures=[SendError("500")]), Prometheus(is_down=True)
    async with replica(cluster) as one:
        ours = Team(one, receiver, prometheus)
        await ours.ticks(timedelta(minutes=1))
        prometheus.is_down = False
        await ours.ticks(timedelta(minutes=5))
        assert receiver.failures
        await ours.ticks(timedelta(minutes=6))
        assert ours.outcomes == ["failed"]
        await ours.ticks(timedelta(minutes=11))
        assert ours.outcomes == ["failed", "delivered"]
        assert len(receiver.got) == 1


async def test_a_team_that_held_nothing_is_not_written_to(cluster: SmallCluster) -> None:
    receiver = Receiver()
    async with replica(cluster) as one:
        await Team(one, receiver, Prometheus(held=float("nan"))).ticks(timedelta(minutes=1))
    assert receiver.got == []
