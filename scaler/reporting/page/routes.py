"""Requests for the page → view models → answers. Only GET and HEAD: nothing here changes anything.

| path                          | what it shows                                                          |
|-------------------------------|------------------------------------------------------------------------|
| `/`                           | the fleet, the next candidates, who waits, who gave, policies: in short |
| `/workloads`                  | every ScaledObject; `namespace`, `state`, `page`                       |
| `/workloads/NAMESPACE/NAME`   | one of them, with its time line; `span`                                |
| `/pending`, `/reallocations`  | who waits for GPUs and why; who gave GPUs to whom                      |
| `/policies[/[NAMESPACE/]NAME]`| policies; one of them, with what it has attached                       |
| `/report`                     | who held how much idle over days; `since`, `by`, `namespace`           |

Laws:

* The instant of a page is that of the evaluation that it shows, not that of the request.
* What many clients ask for at once is rendered once, and shown for a second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from scaler import __version__
from scaler.attachment.controller import IdlePolicies
from scaler.attachment.policy import PolicyKey
from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.decision.cluster_state import ClusterState
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import explain
from scaler.decision.scale_subresources import is_scalable_workload
from scaler.errors import QueryError
from scaler.reporting.page.access import EVERYTHING, Looker, PageAccess
from scaler.reporting.page.fleet_chart import draw_fleet
from scaler.reporting.page.fleet_history import SPAN as FLEET_SPAN
from scaler.reporting.page.fleet_history import FleetHistoryReader
from scaler.reporting.page.policies import PolicyLine, attached_by, lines_of_policies, sources_of_policy
from scaler.reporting.page.reallocations import PendingReader, pending_in, transfers_of
from scaler.reporting.page.rendering import HEADERS, STATIC_PATH, Renderer, answer, static
from scaler.reporting.page.report_page import SPANS, PageReports, ReportChoice
from scaler.reporting.page.signal_history import SignalHistoryReader
from scaler.reporting.page.timeline import axis_of, draw_timeline
from scaler.reporting.page.workload_page import TimeSpans, history_lines, owner_of, recorded_keeps
from scaler.reporting.page.workloads import (
    CANDIDATES,
    STATES,
    Filter,
    Paged,
    WorkloadLine,
    WorkloadLines,
    by_state,
    candidates,
    line_of,
)
from scaler.reporting.report.grouping import GroupBy
from scaler.reporting.report.view import TITLES

_SHOWN_S = 1.0
"""How long what was rendered is shown again."""
_MOST_SHOWN = 16
_IN_SHORT = 10
"""Lines of each list on the overview."""

Context = Mapping[str, Any]


@dataclass(kw_only=True)
class WebPage:
    decisions: DecisionCache
    cluster: ClusterState
    policies: IdlePolicies
    fleet: FleetHistoryReader
    signals: SignalHistoryReader
    pending: PendingReader
    reports: PageReports
    unready: Callable[[], Sequence[str]]
    interval: timedelta
    """Of evaluations."""
    access: PageAccess | None = None
    """None: whoever reaches the page sees all of it."""
    clock: Clock = SYSTEM_CLOCK
    _renderer: Renderer = field(default_factory=Renderer, init=False)
    _lines: WorkloadLines = field(default_factory=WorkloadLines, init=False)
    _rendered: "dict[tuple[Looker, str], tuple[float, asyncio.Task[tuple[int, bytes]]]]" = field(
        default_factory=dict, init=False
    )

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [
            web.get("/", self._shows("page/overview.html", self._overview)),
            web.get("/workloads", self._shows("page/workloads.html", self._workloads)),
            web.get("/workloads/{namespace}/{name}", self._shows("page/workload.html", self._workload)),
            web.get("/pending", self._shows("page/pending.html", self._pending)),
            web.get("/report", self._shows("page/report.html", self._report)),
            web.get("/reallocations", self._shows("page/reallocations.html", self._reallocations)),
            web.get("/policies", self._shows("page/policies.html", self._policies)),
            web.get("/policies/{name}", self._shows("page/policy.html", self._policy)),
            web.get("/policies/{namespace}/{name}", self._shows("page/policy.html", self._policy)),
            web.get(STATIC_PATH, static),
        ]

    # ---------------------------------------------------------------------------------------------------- answering

    def _shows(
        self, template: str, view: Callable[[web.Request, Looker], Awaitable[Context]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                looker = await self.access.looker(request) if self.access is not None else EVERYTHING
            except QueryError as error:
                return web.Response(status=error.status, text=f"{error}\n", headers=HEADERS)
            status, body = await self._once(request, looker, lambda: self._page(template, view, request, looker))
            return await answer(request, body, status=status)

        return handle

    async def _once(
        self, request: web.Request, looker: Looker, render: Callable[[], Awaitable[tuple[int, bytes]]]
    ) -> tuple[int, bytes]:
        """What is rendered now, or was a moment ago, for the same address and somebody who sees the same."""
        key, now = (looker, request.path_qs), self.clock.monotonic()
        self._rendered = {
            key: each for key, each in self._rendered.items() if now - each[0] < _SHOWN_S or not each[1].done()
        }
        if key not in self._rendered:
            task = asyncio.ensure_future(render())
            if len(self._rendered) >= _MOST_SHOWN:
                return await task
            self._rendered[key] = now, task
        return await asyncio.shield(self._rendered[key][1])

    async def _page(
        self,
        template: str,
        view: Callable[[web.Request, Looker], Awaitable[Context]],
        request: web.Request,
        looker: Looker,
    ) -> tuple[int, bytes]:
        frame = self._frame(request, looker)
        try:
            return 200, await self._renderer.body(template, {**frame, **await view(request, looker)})
        except QueryError as error:
            return error.status, await self._renderer.body("page/problem.html", {**frame, "problem": str(error)})

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
        chosen = Filter.of(request.query)
        lines = [each for each in await self._all_lines(looker) if chosen.namespace in ("", each.namespace)]
        history, pending = await asyncio.gather(self._fleet(chosen.namespace, looker), self.pending.read())
        gangs = pending_in(pending.gangs, namespace=chosen.namespace, looker=looker)
        return {
            "chosen": chosen,
            "fleet": draw_fleet(history.samples, step=history.step, begin=self._at - FLEET_SPAN),
            "fleet_source": history.source,
            "by_state": await by_state(lines),
            "workloads": len(lines),
            "candidates": Paged.of(await candidates(lines), per_page=_IN_SHORT),
            "pending": pending,
            "gangs": Paged.of(gangs, per_page=_IN_SHORT),
            "clusters": await self._clusters(looker),
            "transfers": Paged.of(await self._transfers(chosen.namespace, looker), per_page=_IN_SHORT),
            "policies": Paged.of(self._policy_lines(chosen.namespace, looker), per_page=_IN_SHORT),
            "policies_problem": self._policies_problem(),
        }

    async def _clusters(self, looker: Looker) -> Sequence[Context]:
        """The workers of a hub, for those who may see everything: what a cluster has is of no namespace."""
        queries = self.pending.queries
        found: Sequence[Context] = (await queries.clusters())["clusters"] if queries.is_hub else ()
        return () if looker.is_restricted else found

    async def _fleet(self, namespace: str, looker: Looker) -> Any:
        namespaces = looker.namespaces
        if namespace:
            namespaces = frozenset({namespace} if looker.visible(namespace) else ())
        return await self.fleet.read(self._at, namespaces)

    async def _transfers(self, namespace: str, looker: Looker) -> Sequence[Any]:
        return await transfers_of(self.cluster.scalable_workloads.items(), namespace=namespace, looker=looker)

    def _policy_lines(self, namespace: str, looker: Looker) -> Sequence[PolicyLine]:
        found = [each for reflector in self.policies.all for each in reflector.items()]
        unreadable = {key: why for reflector in self.policies.all for key, why in reflector.undecodable.items()}
        return lines_of_policies(found, unreadable, namespace=namespace, looker=looker)

    def _policies_problem(self) -> str:
        missing = [each for each in self.policies.all if not each.is_synced]
        return f"no list of {missing[0].resource.qualified_name} came yet" if missing else ""

    async def _workloads(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        lines = [each for each in await self._all_lines(looker) if chosen.namespace in ("", each.namespace)]
        found = [each for each in lines if chosen.matches(each)]
        if chosen.state == CANDIDATES:
            found = await candidates(found)
        return {"chosen": chosen, "lines": Paged.of(found, chosen.page), "by_state": await by_state(lines)}

    async def _pending(self, request: web.Request, looker: Looker) -> Context:
        chosen, pending = Filter.of(request.query), await self.pending.read()
        gangs = pending_in(pending.gangs, namespace=chosen.namespace, looker=looker)
        return {"chosen": chosen, "pending": pending, "gangs": Paged.of(gangs, chosen.page, per_page=20)}

    async def _reallocations(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        return {
            "chosen": chosen,
            "transfers": Paged.of(await self._transfers(chosen.namespace, looker), chosen.page),
        }

    async def _report(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        choice = ReportChoice.of(request.query, chosen.namespace)
        view, problem = await self.reports.read(choice, self._at, looker.namespaces)
        return {
            "chosen": chosen,
            "choice": choice,
            "spans": SPANS,
            "groups": [*GroupBy],
            "title": TITLES[choice.by],
            "view": view,
            "problem": problem,
        }

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
        scalable = None
        if is_scalable_workload(entry.target):
            scalable = self.cluster.scalable_workloads.get(key[0], entry.target.name)
        pending = await self.pending.read()
        workload = self.cluster.workload_of(scalable) if scalable is not None else None
        gangs = pending_in(pending.gangs, namespace=key[0], looker=looker)
        return {
            "line": line,
            "owner": owner_of(entry, scaled_object, scalable),
            "explanation": explain(self.decisions, key),
            "keeps": recorded_keeps(scaled_object),
            "policy": sources_of_policy(scaled_object) if scaled_object is not None else "",
            "status": scalable.status if scalable is not None else None,
            "workload": workload.metadata.name if workload is not None else "",
            "gangs": [each for each in gangs if workload is not None and each["name"] == workload.metadata.name],
            **await self._over_time(request, line, history_lines(scalable, scaled_object, looker.mask)),
        }

    async def _over_time(self, request: web.Request, line: WorkloadLine, history: Sequence[Any]) -> Context:
        now, decision = self._at, line.decision
        if decision is None:
            return {"history": history[::-1], "timeline": None}
        spans = TimeSpans.of(request.query.get("span", ""), decision.policy)
        axis = axis_of(now, spans.shown, decision.suspend_at)
        signals = await self.signals.read(line.key, line.entry, axis.begin, now)
        return {
            "history": history[::-1],
            "spans": spans,
            "signals": signals,
            "floor": decision.policy.active_above_ratio,
            "timeline": draw_timeline(
                axis,
                history,
                signals.tracks,
                now=now,
                floor_ratio=decision.policy.active_above_ratio,
                suspend_at=decision.suspend_at,
                keep_until=decision.policy.keep_until,
            ),
        }

    async def _policies(self, request: web.Request, looker: Looker) -> Context:
        chosen = Filter.of(request.query)
        lines = self._policy_lines(chosen.namespace, looker)
        return {
            "chosen": chosen,
            "policies": Paged.of(lines, chosen.page),
            "policies_problem": self._policies_problem(),
        }

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
