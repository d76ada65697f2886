"""Writes what becomes of plans: grants and the ledger in the status of victims, Events for both sides.

Laws:

* Grants are written before anything is done about them, and removed after it.
* Whoever is at 0 for a plan that is called off is asked to be at 1 again, first; or the removal of the grant
  would leave a wish for 0 behind, and the workload would be suspended for nobody.
* The ledger moves by what is observed, one write per stage.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from scaler.core.durations import format_duration
from scaler.core.grants import Grant, Move
from scaler.core.ledger import Entry, Stage, advance
from scaler.core.quota.model import Workload
from scaler.core.quota.snapshot import Snapshot
from scaler.core.reclaim import Candidate, NoPlan, Plan, Why
from scaler.errors import KubeError
from scaler.kube.events import ObjectReference
from scaler.kube.objects import ObjectMeta, ScalableWorkload
from scaler.kube.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.loops.granted import entry_of, entry_status, grant_status, times_reclaimed
from scaler.loops.leadership import Api
from scaler.loops.reconciliation import Announcer, is_conflict
from scaler.loops.standing_plans import Member, StandingPlan, key_of

log = structlog.get_logger(__name__)

FindScalable = Callable[[str, str], ScalableWorkload | None]


class Reallocation:
    """Everything that plans write. `finished` is told of every entry of the ledger that comes to an end."""

    def __init__(
        self,
        api: Api,
        find: FindScalable,
        announcer: Announcer,
        *,
        finished: Callable[[Entry], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._find = find
        self._announcer = announcer
        self._finished = finished
        self._told: dict[str, Why] = {}

    # --------------------------------------------------------------------------------------------------------- grants

    async def grant(self, grant: Grant, plan: Plan) -> None:
        """Offer the plan to all its victims."""
        for victim in plan.victims:
            await self._offer(grant, victim)
        who = ", ".join(f"{victim.name} ({victim.gpus} GPUs)" for victim in plan.victims)
        cautions = "".join(f"; {each.message}" for each in plan.cautions)
        self._tell_gang(grant, "ReclaimPlanned", f"plan {grant.plan} takes {who}, which are idle{cautions}")

    async def _offer(self, grant: Grant, victim: Candidate) -> None:
        scalable = self._find(*key_of(victim.name))
        if scalable is None:
            return  # its grant is missing, and the next look at the plan calls it off
        entry = Entry(plan=grant.plan, gang=grant.gang, gpus=victim.gpus, reclaimable_at=grant.granted_at)
        status = {
            "grant": grant_status(grant),
            "reallocation": entry_status(entry, times=times_reclaimed(scalable)),
        }
        if await self._write(scalable, status):
            message = f"its {victim.gpus} GPUs go to Workload {grant.gang} if they stay idle ({grant.words})"
            self._tell(scalable, "ReclaimGranted", message, warning=True)

    async def extend(self, plan: StandingPlan, *, until: datetime) -> None:
        """Give the gang its time, and count the suspensions."""
        for member in plan.members:
            if member.scalable is None:
                continue
            grant = grant_status(replace(plan.grant, expires_at=until))
            times = times_reclaimed(member.scalable) + (0 if member.is_deactivated else 1)
            await self._write(member.scalable, {"grant": grant, "reallocation": {"times": times}})

    async def replace(self, plan: StandingPlan, found: Plan, step: Move, *, now: datetime, until: datetime) -> None:
        """Go on with another plan: who is suspended already stays so, and the new victims are asked."""
        keeps = [member for member in plan.members if member.victim.is_wanted_at_zero]
        victims = (*("/".join(member.key) for member in keeps), *(victim.name for victim in found.victims))
        grant = Grant(
            plan=found.id,
            gang=found.gang,
            gang_uid=found.gang_uid,
            victims=tuple(dict.fromkeys(victims)),
            granted_at=now,
            expires_at=until,
        )
        await self._let_go([member for member in plan.members if member not in keeps], step, now)
        for member in keeps:
            entry = entry_of(member.scalable) if member.scalable else None
            if member.scalable is not None and entry is not None:
                moved = replace(entry, plan=grant.plan)
                status = entry_status(moved, times=times_reclaimed(member.scalable))
                await self._write(member.scalable, {"grant": grant_status(grant), "reallocation": status})
        for victim in found.victims:
            await self._offer(grant, victim)
        self._tell_gang(grant, "ReclaimReplanned", f"{step.ending}: plan {plan.grant.plan} goes on as {grant.plan}")

    async def drop(self, plan: StandingPlan, step: Move, now: datetime) -> None:
        """Go on without the victims that are wanted again: the gang fits without them."""
        gone = [member for member in plan.members if not member.victim.is_wanted_at_zero]
        rest = tuple("/".join(member.key) for member in plan.members if member not in gone)
        grant = replace(plan.grant, victims=rest)
        for member in plan.members:
            if member not in gone and member.scalable is not None:
                await self._write(member.scalable, {"grant": grant_status(grant)})
        await self._let_go(gone, step, now)

    async def release(self, plan: StandingPlan, step: Move, now: datetime) -> None:
        """Call the plan off."""
        await self._let_go(plan.members, step, now)
        about = f" ({', '.join(step.about)})" if step.about else ""
        self._tell_gang(plan.grant, "ReclaimCancelled", f"plan {plan.grant.plan} is called off: {step.ending}{about}")
        log.info("plan called off", plan=plan.grant.plan, gang=plan.grant.gang, because=str(step.ending))

    async def _let_go(self, members: Sequence[Member], step: Move, now: datetime) -> None:
        for member in members:
            if member.scalable is None or not member.has_grant:
                continue
            if member.scalable.spec.replicas == 0:
                await self._ask_for_one(member.scalable)
            entry = entry_of(member.scalable)
            status: dict[str, Any] = {"grant": None}
            if entry is not None and not entry.stage.is_final:
                ended = replace(entry, stage=Stage.CANCELLED, ended_at=now)
                status["reallocation"] = entry_status(ended, times=times_reclaimed(member.scalable))
                self._finished(ended)
            if await self._write(member.scalable, status):
                self._tell(member.scalable, "ReclaimCancelled", f"its plan was called off: {step.ending}")

    async def _ask_for_one(self, scalable: ScalableWorkload) -> None:
        body = {
            "metadata": {"uid": scalable.metadata.uid, "resourceVersion": scalable.metadata.resource_version},
            "spec": {"replicas": 1},
        }
        await self._api.patch(SCALABLE_WORKLOAD.path(*scalable.metadata.key), body)

    # --------------------------------------------------------------------------------------------------------- ledger

    async def follow(self, plan: StandingPlan, *, taken_by: str, now: datetime) -> None:
        """Write down where the GPUs are now."""
        for member in plan.members:
            await self._advance(plan, member, taken_by=taken_by, now=now)

    async def finish(self, plan: StandingPlan, now: datetime) -> None:
        """The gang is admitted: the grants have done their work."""
        entries = [await self._advance(plan, member, now=now) for member in plan.members]
        for member in plan.members:
            if member.scalable is not None and member.has_grant:
                await self._write(member.scalable, {"grant": None})
        done = [each for each in entries if each is not None]
        gpus, took = sum(each.gpus for each in done), max((each.took for each in done if each.took), default=None)
        after = f" {format_duration(_whole(took))} after they were granted" if took else ""
        givers = ", ".join(plan.grant.victims)
        self._tell_gang(plan.grant, "ReclaimAdmitted", f"admitted with {gpus} GPUs of {givers}{after}")

    async def _advance(self, plan: StandingPlan, member: Member, *, taken_by: str = "", now: datetime) -> Entry | None:
        entry = entry_of(member.scalable) if member.scalable is not None else None
        if entry is None or member.scalable is None or entry.plan != plan.grant.plan:
            return None
        moved = advance(entry, plan.sight(member, taken_by=taken_by), now=now)
        if moved != entry:
            status = entry_status(moved, times=times_reclaimed(member.scalable))
            await self._write(member.scalable, {"reallocation": status})
            if moved.stage.is_final:
                self._finished(moved)
        return moved

    def newcomers(self, plan: StandingPlan, snapshot: Snapshot) -> list[str]:
        """Workloads of the tree that came to hold quota since the plan's first victim was deactivated."""
        entries = [entry_of(each.scalable) for each in plan.members if each.scalable is not None]
        since = min((each.releasing_at for each in entries if each and each.releasing_at), default=None)
        gang = snapshot.workload(plan.grant.gang)
        tree = snapshot.tree_of(snapshot.cluster_queue_of(gang)) if gang is not None else None
        if since is None or tree is None:
            return []
        holders = [each for queue in tree.queues.values() for each in queue.workloads.values()]
        return sorted(each.key for each in holders if each.held.at >= since and each.key != plan.grant.gang)

    def tell_theft(self, plan: StandingPlan, thief: str) -> None:
        """Say on both sides who got a piece of what was freed."""
        message = f"Workload {thief} got quota that plan {plan.grant.plan} had freed for Workload {plan.grant.gang}"
        self._tell_gang(plan.grant, "FreedQuotaTaken", message, warning=True)
        for member in plan.members:
            if member.scalable is not None:
                self._tell(member.scalable, "FreedQuotaTaken", message, warning=True)

    # --------------------------------------------------------------------------------------------------------- Events

    def tell_refusal(self, gang: Workload, found: NoPlan) -> None:
        """Tell the owner of a gang why no plan helps it, once per reason."""
        if found.why is Why.FITS_ALREADY or self._told.get(gang.uid) == found.why:
            return
        self._told[gang.uid] = found.why
        about = ObjectMeta(name=gang.name, namespace=gang.namespace, uid=gang.uid)
        self._announcer.record(
            ObjectReference.of(WORKLOAD, about), str(found.why), f"nobody is suspended for it: {found.message}"
        )

    def forget_others(self, uids: Iterable[str]) -> None:
        """Forget what was told about gangs that do not wait any more."""
        waiting = frozenset(uids)
        self._told = {uid: why for uid, why in self._told.items() if uid in waiting}

    def _tell(self, scalable: ScalableWorkload, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata)
        self._announcer.record(about, reason, message, warning=warning)

    def _tell_gang(self, grant: Grant, reason: str, message: str, *, warning: bool = False) -> None:
        namespace, name = key_of(grant.gang)
        about = ObjectMeta(name=name, namespace=namespace, uid=grant.gang_uid)
        self._announcer.record(ObjectReference.of(WORKLOAD, about), reason, message, warning=warning)

    async def _write(self, scalable: ScalableWorkload, status: Mapping[str, Any]) -> bool:
        """Whether it was written; False for one that is gone."""
        body = {"metadata": {"uid": scalable.metadata.uid}, "status": status}
        try:
            await self._api.patch(SCALABLE_WORKLOAD.path(*scalable.metadata.key, "status"), body)
        except KubeError as error:
            if not is_conflict(error):
                raise
            return False
        return True


def _whole(duration: timedelta) -> timedelta:
    return timedelta(seconds=round(duration.total_seconds()))
