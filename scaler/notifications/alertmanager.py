"""Alertmanager is told of states as they are: an alert for each workload that is Warned or Suspended.

As Prometheus does it: all alerts are sent again and again, each with an end a few rounds ahead, and once more with its
end when the state is over. So it needs no marks: another leader sends the same alerts (the same labels and begin), and
what nobody sends any more ends by itself. Grouping, repeating and silences are Alertmanager's.

Source: Alertmanager, api/v2/openapi.yaml, POST /alerts; Prometheus, rules/manager.go (ends four rounds ahead).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog

from scaler.decision.candidate import CandidateState
from scaler.decision.describe import timestamp
from scaler.notifications.notice import NotifiedWorkload
from scaler.notifications.senders import TargetConfig
from scaler.notifications.workloads import Source
from scaler.webhook import SendError, post_json

log = structlog.get_logger(__name__)

_ROUND = timedelta(minutes=1)
_ROUNDS_AHEAD = 4
_MOST_IN_ONE = 500
_ALERTS = {CandidateState.WARNED: "GPUWorkloadWarned", CandidateState.SUSPENDED: "GPUWorkloadSuspended"}
_SUMMARIES = {
    CandidateState.WARNED: "{} will be suspended: its GPUs are idle",
    CandidateState.SUSPENDED: "{} is suspended",
}

Alert = Mapping[str, Any]


class Alertmanager:
    def __init__(
        self,
        target: TargetConfig,
        timeout: timedelta,
        sent: Callable[[str, str], None] = lambda _target, _outcome: None,
    ) -> None:
        self.name = target.name
        self._target = target
        self._timeout = timeout
        self._sent = sent
        self._standing: dict[tuple[str, str], Alert] = {}
        """By (uid, state): what Alertmanager was told to be firing."""
        self._next_at: datetime | None = None

    async def tell(self, workloads: Collection[tuple[Source, NotifiedWorkload]], now: datetime) -> None:
        """Send all alerts where a round is over or one has begun or ended."""
        firing = dict(_alerts((workload for _, workload in workloads), now))
        if self._next_at is not None and now < self._next_at and firing.keys() == self._standing.keys():
            return
        ended = [_ended(alert, now) for key, alert in self._standing.items() if key not in firing]
        try:
            await self._post([*ended, *firing.values()])
        except SendError as error:
            # What has ended is kept: it is sent again, or ends by itself.
            self._standing |= firing
            self._next_at = None
            self._sent(self.name, "failed")
            log.warning("alerts not sent", target=self.name, error=str(error))
            return
        self._standing, self._next_at = firing, now + _ROUND

    async def _post(self, alerts: list[Alert]) -> None:
        for begin in range(0, len(alerts), _MOST_IN_ONE):
            body = msgspec.json.encode(alerts[begin : begin + _MOST_IN_ONE])
            await post_json(self._target, body, {}, self._timeout, path="/api/v2/alerts")
            self._sent(self.name, "delivered")


def _ended(alert: Alert, now: datetime) -> Alert:
    """Never before its begin, which may be of a leader with another clock: Alertmanager refuses that."""
    return {**alert, "endsAt": max(str(timestamp(now)), alert["startsAt"])}


def _alerts(workloads: Iterable[NotifiedWorkload], now: datetime) -> Iterable[tuple[tuple[str, str], Alert]]:
    for workload in workloads:
        line = workload.lines[-1]
        if line.state in _ALERTS:
            name = _ALERTS[CandidateState(line.state)]
            yield (
                (workload.uid, line.state),
                {
                    "labels": {
                        "alertname": name,
                        "namespace": workload.namespace,
                        "scaledobject": workload.name,
                        "kind": workload.kind,
                        "workload": workload.target_name,
                        "owner": workload.owner,
                    },
                    "annotations": {
                        "summary": _SUMMARIES[CandidateState(line.state)].format(workload),
                        "description": f"{line.reason}: {line.message}",
                    },
                    "startsAt": timestamp(line.at),
                    "endsAt": timestamp(max(now, line.at) + _ROUNDS_AHEAD * _ROUND),
                },
            )
