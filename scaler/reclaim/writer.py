"""Writes what becomes of plans: grants and the ledger in the status of victims, and Events.

Laws:

* Grants are written before anything is done about them, and removed after it.
* A released victim keeps its grant for a moment, withdrawn (`GrantCleanup`): the answers turn active at once, and a 0
  that KEDA still writes on account of an earlier answer does not suspend it.
* The ledger moves by what is observed, one write per stage. What a plan asked for in vain is Cancelled.
* `finished` is called once per ledger entry, when it ends.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import structlog

from scaler.decision.describe import timestamp
from scaler.errors import KubeError
from scaler.idleness.durations import format_duration
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.kube.writes import PatchApi
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.active_plans import ActivePlan, VictimStatus, entry_status, split_key
from scaler.reclaim.candidates import times_reclaimed
from scaler.reclaim.grant_writer import FindScalable, GrantWriter
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, ReclaimPlan
from scaler.reclaim.transitions import (
    LedgerEntry,
    LedgerStage,
    PlanAction,
    PlanEndReason,
    PlanTransition,
    advance,
    closed,
    reopened,
)
from scaler.targets.target_state import Grant, Seeks
from scaler.targets.workloads import grant_of

log = structlog.get_logger(__name__)


class PlanWriter:
    """Everything that plans write. `finished` is called with every ledger entry that ends."""

    def __init__(
        self,
        api: PatchApi,
        find: FindScalable,
        events: EventSink,
        *,
        finished: Callable[[LedgerEntry], None] = lambda _: None,
    ) -> None:
        self._find = find
        self._finished = finished
        self.grants = GrantWriter(api)
        self.events = PlanEvents(events)

    # --------------------------------------------------------------------------------------------------------- grants

    async def grant(self, grant: Grant, plan: ReclaimPlan) -> None:
        for victim in plan.victims:
            await self._offer(grant, victim)
        self.events.planned(grant, plan)

    async def _offer(self, grant: Grant, victim: Candidate) -> None:
        scalable = self._find(*split_key(victim.name))
        if scalable is None:
            return  # its grant is missing, and the next look at the plan calls it off
        entry = LedgerEntry(plan=grant.plan, gang=grant.gang, gpus=victim.gpus, reclaimable_at=grant.granted_at)
        status = {
            "grant": grant_status(grant),
            "reallocation": entry_status(entry, times=times_reclaimed(scalable)),
        }
        if await self.grants.write(scalable, status):
            self.events.granted(scalable, grant, victim.gpus)

    async def extend(self, plan: ActivePlan, *, until: datetime) -> ActivePlan:
        grant = replace(plan.grant, expires_at=until)
        await self._rewrite(plan.holders, grant)
        return replace(plan, grant=grant)

    async def _rewrite(self, victims: Sequence[VictimStatus], grant: Grant, *, is_reopened: bool = False) -> None:
        """Replace the grant. A ledger entry that is reopened goes on with that grant's plan."""

        async def rewrite(victim: VictimStatus, scalable: ScalableWorkload) -> None:
            status: dict[str, Any] = {"grant": grant_status(grant)}
            if is_reopened and victim.entry is not None:
                status["reallocation"] = entry_status(reopened(victim.entry, plan=grant.plan), times=victim.times)
            await self.grants.write(scalable, status)

        await self._each(victims, rewrite)

    async def replace(
        self, plan: ActivePlan, found: ReclaimPlan, step: PlanTransition, *, now: datetime, until: datetime
    ) -> None:
        """Go on with another plan: suspended victims stay suspended, and the new ones get grants."""
        keeps = [victim for victim in plan.victims if victim.stays]
        victims = (*(victim.name for victim in keeps), *(victim.name for victim in found.victims))
        grant = replace(grant_by(found, at=now, until=until), victims=tuple(dict.fromkeys(victims)))

        await self._rewrite(keeps, grant, is_reopened=True)
        for victim in found.victims:
            await self._offer(grant, victim)
        self.events.replanned(grant, plan.grant, step)
        await self._release_victims([victim for victim in plan.holders if victim.name not in victims], step, now)

    async def hand_over(self, plan: ActivePlan, successor: Grant, now: datetime) -> None:
        """End a plan that another one replaces: the victims which that one names stay as they are."""
        kept = [victim for victim in plan.holders if victim.name in successor.victims]
        await self._rewrite(kept, successor, is_reopened=True)
        step = PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.NO_LONGER_HOLDS)
        await self._release_victims([victim for victim in plan.holders if victim not in kept], step, now)

    async def drop(self, plan: ActivePlan, names: Collection[str], step: PlanTransition, now: datetime) -> None:
        """Go on without these victims: they are wanted again, or not needed."""
        rest = [victim for victim in plan.holders if victim.name not in names]
        await self._rewrite(rest, replace(plan.grant, victims=tuple(victim.name for victim in rest)))
        await self._release_victims([victim for victim in plan.holders if victim.name in names], step, now)

    async def release(self, plan: ActivePlan, step: PlanTransition, now: datetime) -> None:
        log.info("plan cancelled", plan=plan.grant.plan, gang=plan.grant.gang, because=str(step.ending))
        await self._release_victims(plan.holders, step, now)
        self.events.called_off(plan.grant, step)

    async def _release_victims(self, victims: Sequence[VictimStatus], step: PlanTransition, now: datetime) -> None:
        async def release_victim(victim: VictimStatus, scalable: ScalableWorkload) -> None:
            entry = victim.entry
            if entry is not None and not entry.stage.is_final:
                entry = replace(entry, stage=LedgerStage.CANCELLED, ended_at=now)
            if await self._withdraw(victim, scalable, entry):
                self.events.released(scalable, step)

        await self._each(victims, release_victim)

    async def _withdraw(self, victim: VictimStatus, scalable: ScalableWorkload, entry: LedgerEntry | None) -> bool:
        """End the grant, and then ask for the workload where it was at 0. False for one that is gone."""
        own = grant_of(scalable)
        if own is None:
            return False
        status: dict[str, Any] = {"grant": grant_status(replace(own, expires_at=own.granted_at))}
        version = await self._settle(victim, scalable, entry, status)
        if version and scalable.spec.replicas == 0:
            await self.grants.scale_to_one(scalable, version)
        return bool(version)

    # --------------------------------------------------------------------------------------------------------- ledger

    async def record(self, plan: ActivePlan, *, now: datetime) -> ActivePlan:
        """Write down where the GPUs are now; the plan with its ledger as it is then."""
        victims = [await self._advanced(plan, victim, now=now) for victim in plan.victims]
        return replace(plan, victims=tuple(victims))

    async def _advanced(self, plan: ActivePlan, victim: VictimStatus, *, now: datetime) -> VictimStatus:
        entry, scalable = victim.entry, victim.scalable
        if entry is None or scalable is None or not (victim.has_grant and victim.has_given):
            return victim
        moved = advance(entry, victim, plan.gang_state, now=now)
        if moved == entry:
            return victim
        is_first = entry.releasing_at is None and moved.releasing_at is not None
        victim = replace(victim, times=victim.times + is_first)
        await self._settle(victim, scalable, moved)
        return replace(victim, entry=moved)

    async def finish(self, plan: ActivePlan, step: PlanTransition, now: datetime) -> None:
        """The gang is admitted with what was freed for it: the grants end."""
        await self._release_victims([victim for victim in plan.holders if victim.name in step.about], step, now)
        donors = [victim for victim in plan.holders if victim.has_given]
        entries = {each.name: closed(each.entry, each, now=now) if each.entry else None for each in donors}

        async def end(victim: VictimStatus, scalable: ScalableWorkload) -> None:
            entry = entries[victim.name]
            if victim.stays:
                await self._settle(victim, scalable, entry, {"grant": None})
            else:
                await self._withdraw(victim, scalable, entry)

        await self._each(donors, end)
        given = [entry for entry in entries.values() if entry is not None]
        took = max((each.took for each in given if each.took), default=None)
        after = format_duration(timedelta(seconds=round(took.total_seconds()))) if took else ""
        self.events.admitted(plan.grant, list(entries), sum(each.gpus for each in given), after)

    async def _settle(
        self,
        victim: VictimStatus,
        scalable: ScalableWorkload,
        entry: LedgerEntry | None,
        status: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Write the victim's status, with the entry where it is new; the version then, empty for one that is gone."""
        if entry is None or entry == victim.entry:
            return await self.grants.write(scalable, status)
        ledger = {"reallocation": entry_status(entry, times=victim.times)}
        version = await self.grants.write(scalable, {**status, **ledger})
        if version and entry.stage.is_final:
            self._finished(entry)
        return version

    async def _each(
        self, victims: Iterable[VictimStatus], act: Callable[[VictimStatus, ScalableWorkload], Awaitable[object]]
    ) -> None:
        """Do it for all of them, whether or not it fails for one. Raises: KubeError, the first one, in the end."""
        failure: KubeError | None = None
        for victim in victims:
            try:
                if victim.scalable is not None:
                    await act(victim, victim.scalable)
            except KubeError as error:
                failure = failure or error
        if failure is not None:
            raise failure


class PlanEvents:
    """Events on the Workload that a plan is for, and on the ScalableWorkloads of its victims."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._reported: dict[str, NoPlanReason] = {}

    def planned(self, grant: Grant, plan: ReclaimPlan) -> None:
        victims = ", ".join(f"{victim.name} ({victim.gpus} GPUs)" for victim in plan.victims)
        cautions = "".join(f"; {each.message}" for each in plan.cautions)
        self._record_on_gang(
            grant, "ReclaimPlanned", f"plan {grant.plan} will suspend {victims} if still idle{cautions}"
        )

    def granted(self, scalable: ScalableWorkload, grant: Grant, gpus: int) -> None:
        planned = f"its {gpus} GPUs are planned for Workload {grant.gang} (plan {grant.plan})"
        self._record(scalable, "ReclaimGranted", f"will be suspended if still idle: {planned}", warning=True)

    def replanned(self, grant: Grant, before: Grant, step: PlanTransition) -> None:
        message = f"{_because(step)}: plan {before.plan} is replaced by {grant.plan} with {', '.join(grant.victims)}"
        self._record_on_gang(grant, "ReclaimReplanned", message)

    def called_off(self, grant: Grant, step: PlanTransition) -> None:
        self._record_on_gang(grant, "ReclaimCancelled", f"plan {grant.plan} cancelled ({_because(step)})")

    def released(self, scalable: ScalableWorkload, step: PlanTransition) -> None:
        self._record(scalable, "ReclaimCancelled", f"reclaim cancelled ({_because(step)}); this workload keeps running")

    def admitted(self, grant: Grant, donors: Iterable[str], gpus: int, after: str) -> None:
        took = f", {after} after the plan was granted" if after else ""
        self._record_on_gang(grant, "ReclaimAdmitted", f"admitted with {gpus} GPUs of {', '.join(donors)}{took}")

    def refused(self, gang: QuotaWorkload, found: NoPlan) -> None:
        """Why no plan is found for the gang, once per reason."""
        if found.why is NoPlanReason.FITS_ALREADY or self._reported.get(gang.uid) == found.why:
            return
        self._reported[gang.uid] = found.why
        about = ObjectMeta(name=gang.name, namespace=gang.namespace, uid=gang.uid)
        self._events.record(
            ObjectReference.of(WORKLOAD, about), str(found.why), f"no reclaim plan found: {found.message}"
        )

    @property
    def gangs(self) -> frozenset[str]:
        """Uids of those that anything is remembered of."""
        return frozenset(self._reported)

    def forget_others(self, uids: Iterable[str]) -> None:
        waiting = frozenset(uids)
        self._reported = {uid: why for uid, why in self._reported.items() if uid in waiting}

    def _record(self, scalable: ScalableWorkload, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata)
        self._events.record(about, reason, message, warning=warning)

    def _record_on_gang(self, grant: Grant, reason: str, message: str) -> None:
        namespace, name = split_key(grant.gang)
        about = ObjectMeta(name=name, namespace=namespace, uid=grant.gang_uid)
        self._events.record(ObjectReference.of(WORKLOAD, about), reason, message)


def _because(step: PlanTransition) -> str:
    about = f": {', '.join(step.about)}" if step.about else ""
    return f"{step.ending}{about}"


def grant_by(plan: ReclaimPlan, *, at: datetime, until: datetime) -> Grant:
    return Grant(
        plan=plan.id,
        gang=plan.gang,
        gang_uid=plan.gang_uid,
        victims=tuple(victim.name for victim in plan.victims),
        granted_at=at,
        expires_at=until,
        seeks=plan.seeks,
        check=plan.check,
    )


def grant_status(grant: Grant) -> Mapping[str, Any]:
    """The grant as it is written. An absent field is None, so that a merge patch removes it; absent means Quota."""
    return {
        "plan": grant.plan,
        "workload": grant.gang,
        "workloadUID": grant.gang_uid,
        "victims": list(grant.victims),
        "grantedAt": timestamp(grant.granted_at),
        "expiresAt": timestamp(grant.expires_at),
        "seeks": str(grant.seeks) if grant.seeks is not Seeks.QUOTA else None,
        "check": grant.check or None,
    }
