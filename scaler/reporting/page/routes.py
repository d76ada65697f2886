"""Requests for the page → view models → answers. Only GET and HEAD: nothing here changes anything.

| path                          | what it shows                                                          |
|-------------------------------|------------------------------------------------------------------------|
| `/`                           | the fleet, the next candidates, who waits, who gave, policies: in short |
| `/workloads`                  | every ScaledObject; `namespace`, `state`, `page`                       |
| `/workloads/NAMESPACE/NAME`   | one of them, with its time line; `span`                                |
| `/pending`, `/reallocations`  | who waits for GPUs and why; who gave GPUs to whom                      |
| `/policies[/[NAMESPACE/]NAME]`| policies; one of them, with what it has attached                       |
| `/report`                     | who held how much idle over days; `since`, `by`, `namespace`           |

Law:

* The instant of a page is that of the evaluation that it shows, not that of the request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from aiohttp import web

from scaler import __version__
from scaler.attachment.controller import IdlePolicies
from scaler.attachment.policy import PolicyKey
from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.decision.candidate import HistoryLine
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import explain
from scaler.errors import QueryError
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.reporting.page.access import Looker, PageAccess
from scaler.reporting.page.answers import Context, PageAnswers, readable
from scaler.reporting.page.fleet_chart import draw_fleet
from scaler.reporting.page.fleet_history import SPAN as FLEET_SPAN
from scaler.reporting.page.fleet_history import FleetHistoryReader
from scaler.reporting.page.policies import PolicyLine, attached_by, lines_of_policies, sources_of_policy
from scaler.reporting.page.reallocations import PendingReader, pending_in, transfers_of
from scaler.reporting.page.rendering import STATIC_PATH, Renderer, static
from scaler.reporting.page.report import ReportPage
from scaler.reporting.page.signal_history import SignalHistoryReader
from scaler.reporting.page.timeline import axis_of, draw_timeline
from scaler.reporting.page.workload_page import TimeSpans, history_lines, owner_of, recorded_keeps
from scaler.reporting.page.workloads import (
    CANDIDATES,
    PER_PAGE,
    STATES,
    Filter,
    Paged,
    WorkloadLine,
    WorkloadLines,
    by_state,
    candidates,
    line_of,
)
from scaler.targets.cluster_state import ClusterState

_IN_SHORT = 10
"""Lines of each list on the overview."""


@dataclass(kw_only=True)
class WebPage:
    decisions: DecisionCache
    cluster: ClusterState
    policies: IdlePolicies
    fleet: FleetHistoryReader
    signals: SignalHistoryReader
    pending: PendingReader
    report: ReportPage | None
    """The page of the report; None: not installed."""
    unready: Callable[[], Sequence[str]]
    interval: timedelta
    """Time between two evaluations."""
    access: PageAccess | None = None
    """What the users may see; None: whoever reaches the page sees all of it."""
    clock: Clock = SYSTEM_CLOCK
    _lines: WorkloadLines = field(default_factory=WorkloadLines, init=False)

    @cached_property
    def answers(self) -> PageAnswers:
        return PageAnswers(
            frame=self._frame,
            access=self.access,
            clock=self.clock,
            renderer=Renderer(*(() if self.report is None else (self.report.templates,))),
        )

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        shows = self.answers.shows
        return [
            web.get("/", shows("page/overview.html", self._overview)),
            web.get("/workloads", shows("page/workloads.html", self._workloads)),
            web.get("/workloads/{namespace}/{name}", shows("page/workload.html", self._workload)),
            web.get("/pending", shows("page/pending.html", self._pending)),
            web.get("/report", shows("page/report.html", self._report)),
            web.get("/reallocations", shows("page/reallocations.html", self._reallocations)),
            web.get("/policies", shows("page/policies.html", self._policies)),
            web.get("/policies/{name}", shows("page/policy.html", self._policy)),
            web.get("/policies/{namespace}/{name}", shows("page/policy.html", self._policy)),
            web.get(STATIC_PATH, static),
            web.get("/{path:(?!api/|wake/).*}", shows("page/problem.html", self._nothing)),
        ]

    async def _nothing(self, _request: web.Request, _looker: Looker) -> Context:
        raise QueryError("There is no such page.", status=404)

    def _frame(self, request: web.Request, looker: Looker) -> Context:
        """What every page has."""
        depth = request.path.count("/") - 1
        return {
            "version": __version__,
            "root": "../" * depth or "./",
            "path": request.path,
            "query": dict(request.query),
            "at": self._at,
            "missing": self.unready(),
            "stale": self._stale,
            "refresh": max(1, min(5, round(self.interval.total_seconds() / 3))),
            "states": (CANDIDATES, *STATES),
            "is_restricted": looker.is_restricted,
            "mask": looker.mask,
        }

    @property
    def _at(self) -> datetime:
        """The instant of the page."""
        evaluation = self.decisions.evaluation
        return evaluation.at if evaluation is not None else self.clock.now().astimezone(UTC)

    @property
    def _stale(self) -> timedelta | None:
        """The age of the evaluation in whole minutes, where it is too old."""
        age = self.decisions.age
        if age is None or age < max(4 * self.interval, timedelta(seconds=5)):
            return None
        return max(timedelta(minutes=1), age - age % timedelta(minutes=1))

    # ---------------------------------------------------------------------------------------------------- lists

    async def _all_lines(self, looker: Looker) -> Sequence[WorkloadLine]:
        lines = await self._lines.of(self.decisions.evaluation)
        return lines if not looker.is_restricted else [each for each in lines if looker.visible(each.namespace)]

    async def _overview(self, request: web.Request, looker: Looker) -> Context:
        chosen = replace(Filter.of(request.query), page=1)
        parts = self._fleet, self._quiet, self._gangs, self._clusters, self._transfers, self._policy_list
        return {"chosen": chosen, **await readable(*(read(chosen, looker, _IN_SHORT) for read in parts))}

    async def _quiet(self, chosen: Filter, looker: Looker, per_page: int) -> Context:
        lines = [each for each in await self._all_lines(looker) if chosen.namespace in ("", each.namespace)]
        quiet = await candidates(lines)
        return {
            "soonest": next((each for each in quiet if each.suspend_at is not None), None),
            "by_state": await by_state(lines),
            "candidates": Paged.of(quiet, per_page=per_page),
        }

    async def _clusters(self, _chosen: Filter, looker: Looker, _per_page: int) -> Context:
        """The workers of a hub, for those who may see everything: what a cluster has is of no namespace."""
        queries = self.pending.queries
        is_shown = queries.is_hub and not looker.is_restricted
        return {"clusters": (await queries.clusters())["clusters"] if is_shown else ()}

    async def _fleet(self, chosen: Filter, looker: Looker, _per_page: int) -> Context:
        namespaces = looker.namespaces
        if chosen.namespace:
            namespaces = frozenset({chosen.namespace} if looker.visible(chosen.namespace) else ())
        history = await self.fleet.read(self._at, namespaces)
        chart = draw_fleet(history.samples, step=history.step, begin=self._at - FLEET_SPAN)
        return {"fleet": chart, "fleet_source": history.source}

    async def _gangs(self, chosen: Filter, looker: Looker, per_page: int) -> Context:
        pending = await self.pending.read()
        gangs = pending_in(pending.gangs, namespace=chosen.namespace, looker=looker)
        need = sum(each["gpus"] for each in gangs)
        return {"pending": pending, "gangs": Paged.of(gangs, chosen.page, per_page), "gangs_need": need}

    async def _transfers(self, chosen: Filter, looker: Looker, per_page: int) -> Context:
        midnight = self._at.replace(hour=0, minute=0, second=0, microsecond=0)
        scalables = self.cluster.scalable_workloads.items()
        found = await transfers_of(scalables, namespace=chosen.namespace, looker=looker)
        today = sum(each.status.gpus for each in found if each.at is not None and each.at >= midnight)
        return {"transfers": Paged.of(found, chosen.page, per_page), "given_today": today}

    async def _policy_list(self, chosen: Filter, looker: Looker, per_page: int) -> Context:
        lines = Paged.of(self._policy_lines(chosen.namespace, looker), chosen.page, per_page)
        missing = [each for each in self.policies.all if not each.is_synced]
        problem = f"no list of {missing[0].resource.qualified_name} came yet" if missing else ""
        return {"policies": lines, "policies_problem": problem}

    def _policy_lines(self, namespace: str, looker: Looker) -> Sequence[PolicyLine]:
        found = [each for reflector in self.policies.all for each in reflector.items()]
        unreadable = {key: why for reflector in self.policies.all for key, why in reflector.undecodable.items()}
        return lines_of_policies(found, unreadable, namespace=namespace, looker=looker)

    async def _workloads(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        lines = [each for each in await self._all_lines(looker) if chosen.namespace in ("", each.namespace)]
        found = [each for each in lines if chosen.matches(each)]
        if chosen.state == CANDIDATES:
            found = await candidates(found)
        return {"chosen": chosen, "lines": Paged.of(found, chosen.page), "by_state": await by_state(lines)}

    async def _pending(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        return {"chosen": chosen, **await self._gangs(chosen, looker, 20)}

    async def _reallocations(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        return {"chosen": chosen, **await self._transfers(chosen, looker, PER_PAGE)}

    async def _policies(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        return {"chosen": chosen, **await self._policy_list(chosen, looker, PER_PAGE)}

    async def _report(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        if self.report is None:
            return {"chosen": chosen, "is_installed": False}
        found = await self.report.context(request.query, chosen.namespace, self._at, looker.namespaces)
        return {"chosen": chosen, "is_installed": True, **found}

    # ---------------------------------------------------------------------------------------------------- one of them

    async def _workload(self, request: web.Request, looker: Looker) -> Context:
        key = request.match_info["namespace"], request.match_info["name"]
        evaluation = self.decisions.evaluation
        entry = evaluation.entries.get(key) if evaluation is not None else None
        if evaluation is None or entry is None or not looker.visible(key[0]):
            missing = "; ".join(self.unready())
            problem = f"There is no ScaledObject {key[0][:63]}/{key[1][:253]} that asks this scaler."
            raise QueryError(f"{problem} {missing}".strip(), status=404)
        line, scaled_object = line_of(key, entry), self.cluster.scaled_objects.get(*key)
        scalable = self.cluster.target_of(key[0], entry.target)
        record = self.cluster.record_of(scaled_object) if scaled_object is not None else None
        workload = self.cluster.workload_of(scalable) if scalable is not None else None
        history = history_lines(record, looker.mask)
        spans = TimeSpans.of(request.query.get("span", ""), line.decision.policy) if line.decision is not None else None
        return {
            "line": line,
            "owner": owner_of(entry, scaled_object, scalable),
            "explanation": explain(self.decisions, key),
            "keeps": recorded_keeps(scaled_object),
            "policy": sources_of_policy(scaled_object) if scaled_object is not None else "",
            "status": record.status if record is not None else None,
            "workload": workload.metadata.name if workload is not None else "",
            "history": history[::-1],
            "spans": spans,
            **await readable(self._over_time(line, spans, history), self._gang(workload, looker)),
        }

    async def _gang(self, workload: KueueWorkload | None, looker: Looker) -> Context:
        """What the Workload waits for."""
        if workload is None:
            return {"gangs": ()}
        pending, (namespace, name) = await self.pending.read(), workload.metadata.key
        gangs = pending_in(pending.gangs, namespace=namespace, looker=looker)
        return {"gangs": [each for each in gangs if each["name"] == name]}

    async def _over_time(self, line: WorkloadLine, spans: TimeSpans | None, history: Sequence[HistoryLine]) -> Context:
        now, decision = self._at, line.decision
        if decision is None or spans is None:
            return {"timeline": None}
        axis = axis_of(now, spans.shown, decision.suspend_at)
        signals = await self.signals.read(line.key, line.entry, axis.begin, now)
        drawn = draw_timeline(
            axis,
            history,
            signals.tracks,
            now=now,
            floor_ratio=decision.policy.active_above_ratio,
            suspend_at=decision.suspend_at,
            keep_until=decision.policy.keep_until,
        )
        return {"timeline": drawn, "signals": signals, "floor": decision.policy.active_above_ratio}

    async def _policy(self, request: web.Request, looker: Looker) -> Context:
        key: PolicyKey = request.match_info.get("namespace", ""), request.match_info["name"]
        line = next((each for each in self._policy_lines(key[0], looker) if each.policy.key == key), None)
        if line is None:
            raise QueryError(f"There is no policy {'/'.join(filter(None, key))[:300]}.", status=404)
        chosen = Filter.of(request.query)
        keys = await attached_by(line.policy, self.cluster.scaled_objects.items(), looker=looker)
        lines = [each for each in await self._all_lines(looker) if each.key in keys]
        shown = [each for each in lines if chosen.matches(each)]
        return {
            "chosen": chosen,
            "line": line,
            "attached": Paged.of(shown, chosen.page),
            "by_state": await by_state(lines),
            "not_evaluated": len(keys) - len(lines),
        }
