"""What is known of a workload when its owner is notified: times, and the samples of its GPUs."""

from datetime import datetime
from typing import Protocol

from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import decision_of
from scaler.decision.evaluation import Evaluator
from scaler.decision.reasons import CandidateState
from scaler.idleness.policy import Policy
from scaler.notifications.evidence import sparklines
from scaler.notifications.message import Details
from scaler.notifications.notice import Notice
from scaler.notifications.workloads import Source

_MOST_GPUS = 64
"""GPUs whose samples are shown; of larger workloads the first ones."""


class LinkMaker(Protocol):
    def __call__(self, notice: Notice, source: Source, now: datetime, policy: Policy | None) -> dict[str, str]:
        """The links by what they do."""


class DetailsReader:
    def __init__(self, evaluator: Evaluator, decision_cache: DecisionCache, links: LinkMaker | None = None) -> None:
        self._evaluator = evaluator
        self._decision_cache = decision_cache
        self._links = links

    def read(self, notice: Notice, source: Source, now: datetime) -> Details:
        decision = decision_of(self._decision_cache, notice.workload.key)
        policy = decision.policy if decision is not None else None
        links = self._links(notice, source, now, policy) if self._links is not None else {}
        if (line := notice.line).state != CandidateState.WARNED or decision is None:
            return Details(idle_since=line.idle_since, idle_at_least=line.idle_at_least, links=links)
        return Details(
            idle_since=decision.idle_since,
            idle_at_least=decision.idle_at_least,
            suspend_at=decision.if_notified(now).suspend_at,
            gpus=decision.verdict.gpu_count if decision.verdict is not None else 0,
            signals=sparklines(
                self._evaluator.sampler.history,
                self._rows(notice.workload.namespace, decision),
                floor_ratio=decision.policy.active_above_ratio,
                end=decision.decided_at,
                length=decision.policy.window,
            ),
            links=links,
        )

    def _rows(self, namespace: str, decision: Decision) -> list[int]:
        history, gpus = self._evaluator.sampler.history, decision.verdict.gpus if decision.verdict is not None else ()
        found = (history.devices_of(namespace, each.pod).get(each.gpu) for each in gpus[:_MOST_GPUS])
        return [each.row for each in found if each is not None]
