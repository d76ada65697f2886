"""Who waits for GPUs, why and by which plan; and which workload gave GPUs to which gang.

What waits is answered by the query service, which may take a second: it is asked at most every few seconds, whoever
looks, and the answer of before is shown meanwhile.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from scaler.clock import SYSTEM_CLOCK, Clock, Turns
from scaler.errors import ScalerError
from scaler.kube.objects.idlegpu import ReallocationStatus, ScalableWorkload
from scaler.reclaim.transitions import LedgerStage
from scaler.reporting.page.access import Looker
from scaler.reporting.views.query_service import QueryService

_FRESH_S = 5.0
_PATIENCE_S = 1.0
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingGangs:
    gangs: Sequence[Mapping[str, Any]] = ()
    """The gangs as `/api/v1/pending` has them."""
    omitted: int = 0
    at: datetime | None = None
    problem: str = ""
    """Why it is not known, in words."""


@dataclass(kw_only=True)
class PendingReader:
    queries: QueryService
    clock: Clock = SYSTEM_CLOCK
    _known: PendingGangs = field(default_factory=lambda: PendingGangs(problem="it is being computed"), init=False)
    _asked_at: float = field(default=float("-inf"), init=False)
    _asking: "asyncio.Task[None] | None" = field(default=None, init=False)

    async def read(self) -> PendingGangs:
        """What waits, as of some seconds ago at most; older, and being computed, where that takes longer."""
        if self._asking is None and self.clock.monotonic() - self._asked_at >= _FRESH_S:
            self._asking = asyncio.create_task(self._ask(), name="pending gangs of the page")
        if self._asking is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await asyncio.shield(self._asking)
        return self._known

    async def _ask(self) -> None:
        try:
            answer = await self.queries.pending()
            self._known = PendingGangs(
                gangs=answer["gangs"], omitted=answer["omitted"], at=_instant(answer["at"]), problem=""
            )
        except ScalerError as error:
            self._known = PendingGangs(problem=str(error))
        finally:
            self._asked_at, self._asking = self.clock.monotonic(), None


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def pending_in(gangs: Iterable[Mapping[str, Any]], *, namespace: str, looker: Looker) -> list[Mapping[str, Any]]:
    """The gangs of the namespace, as far as they may be seen."""
    found = [each for each in gangs if namespace in ("", each["namespace"]) and looker.visible(each["namespace"])]
    seen: list[Mapping[str, Any]] = [{**each, "plan": _victims_seen(each["plan"], looker)} for each in found]
    return [_without_others(each, looker) for each in seen] if looker.is_restricted else seen


def _victims_seen(plan: Mapping[str, Any] | None, looker: Looker) -> Mapping[str, Any] | None:
    """The plan with the victims that may be seen, and how many `hidden` ones there are, for every viewer alike."""
    if plan is None:
        return None
    victims = [each for each in plan["victims"] if looker.visible(_namespace_of(each))]
    step = "" if looker.is_restricted else plan["next"]
    return {**plan, "next": step, "victims": victims, "hidden": len(plan["victims"]) - len(victims)}


def _without_others(gang: Mapping[str, Any], looker: Looker) -> Mapping[str, Any]:
    """The gang without what it says of workloads in namespaces that may not be seen: texts of ours, and names."""
    kueue = gang["kueue"]
    return {
        **gang,
        "message": "",
        "reasons": [{**each, "message": ""} for each in gang["reasons"]],
        "before": [each for each in gang["before"] if looker.visible(each.partition("/")[0])],
        "checks": [{**each, "message": looker.mask(each["message"])} for each in gang["checks"]],
        "kueue": kueue and {**kueue, "message": looker.mask(kueue["message"])},
        "admissionChecks": [],
        "reclaim": {"outcome": gang["reclaim"]["outcome"], "message": ""},
        "dispatch": _answers_alone(gang.get("dispatch")),
    }


def _answers_alone(dispatch: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What clusters answer, without their words, which name workloads there."""
    if dispatch is None:
        return None
    clusters = [{**each, "why": each["answer"]} for each in dispatch["clusters"]]
    return {**dispatch, "message": "", "step": dispatch["reason"], "clusters": clusters}


def _namespace_of(victim: Mapping[str, Any]) -> str:
    return str(victim["name"]).partition("/")[0]


# -------------------------------------------------------------------------------------------------------- who gave what


@dataclass(frozen=True, slots=True)
class Transfer:
    """GPUs that a ScalableWorkload gave up for a gang."""

    scalable: ScalableWorkload
    status: ReallocationStatus
    gang: str
    """`namespace/name` of its Workload; `…` where it may not be seen."""

    @property
    def namespace(self) -> str:
        return self.scalable.metadata.namespace

    @property
    def giver(self) -> str:
        """The job, or else the ScalableWorkload."""
        job = self.scalable.spec.job_ref
        return f"{job.kind}/{job.name}" if job is not None else f"ScalableWorkload/{self.scalable.metadata.name}"

    @property
    def at(self) -> datetime | None:
        """When it was last in another stage."""
        status = self.status
        found = (
            status.reclaimable_at,
            status.releasing_at,
            status.available_at,
            status.reserved_at,
            status.admitted_at,
            status.ended_at,
        )
        return max((each for each in found if each is not None), default=None)

    @property
    def wasted(self) -> timedelta:
        """GPU time between suspension and admission."""
        return timedelta(seconds=self.status.wasted_gpu_seconds)


async def transfers_of(scalables: Iterable[ScalableWorkload], *, namespace: str, looker: Looker) -> list[Transfer]:
    """The transfers from or to the namespace, the newest first. A plan that was cancelled gave nothing to anybody."""
    found, turns = list[Transfer](), Turns()
    for each in scalables:
        status = each.status.reallocation
        is_given = status is not None and status.stage != LedgerStage.CANCELLED
        if status is not None and is_given and looker.visible(each.metadata.namespace):
            found.append(Transfer(each, status, looker.mask(status.workload)))
        await turns.give_way()
    chosen = [each for each in found if namespace in ("", each.namespace, each.gang.partition("/")[0])]
    return sorted(chosen, key=lambda each: (each.at or _EPOCH, each.scalable.metadata.key), reverse=True)
