"""Tells both sides of a plan what becomes of it, as Events: the gang that waits, and whoever gives to it."""

from collections.abc import Iterable

from scaler.core.grants import Grant, Move
from scaler.core.quota.model import Workload
from scaler.core.reclaim import NoPlan, Plan, Why
from scaler.kube.events import ObjectReference
from scaler.kube.objects import ObjectMeta, ScalableWorkload
from scaler.kube.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.loops.reconciliation import Announcer
from scaler.loops.standing_plans import StandingPlan, key_of


class PlanEvents:
    """One verb per thing that happens to plans."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._told: dict[str, Why] = {}

    def planned(self, grant: Grant, plan: Plan) -> None:
        who = ", ".join(f"{victim.name} ({victim.gpus} GPUs)" for victim in plan.victims)
        cautions = "".join(f"; {each.message}" for each in plan.cautions)
        self._tell_gang(grant, "ReclaimPlanned", f"plan {grant.plan} takes {who}, which are idle{cautions}")

    def granted(self, scalable: ScalableWorkload, grant: Grant, gpus: int) -> None:
        message = f"its {gpus} GPUs go to Workload {grant.gang} if they stay idle ({grant.words})"
        self._tell(scalable, "ReclaimGranted", message, warning=True)

    def replanned(self, grant: Grant, before: Grant, step: Move) -> None:
        goes_on = f"plan {before.plan} goes on as {grant.plan}, with {', '.join(grant.victims)}"
        self._tell_gang(grant, "ReclaimReplanned", f"{_because(step)}: {goes_on}")

    def called_off(self, grant: Grant, step: Move) -> None:
        self._tell_gang(grant, "ReclaimCancelled", f"plan {grant.plan} is called off: {_because(step)}")

    def let_go(self, scalable: ScalableWorkload, step: Move) -> None:
        self._tell(scalable, "ReclaimCancelled", f"no plan takes it any more: {_because(step)}")

    def admitted(self, grant: Grant, givers: Iterable[str], gpus: int, after: str) -> None:
        took = f" {after} after they were granted" if after else ""
        self._tell_gang(grant, "ReclaimAdmitted", f"admitted with {gpus} GPUs of {', '.join(givers)}{took}")

    def taken(self, plan: StandingPlan, thief: str) -> None:
        """Say on both sides who got a piece of what was freed."""
        message = f"Workload {thief} got quota that plan {plan.grant.plan} had freed for Workload {plan.grant.gang}"
        self._tell_gang(plan.grant, "FreedQuotaTaken", message, warning=True)
        for member in plan.members:
            if member.scalable is not None and member.victim.has_given:
                self._tell(member.scalable, "FreedQuotaTaken", message, warning=True)

    def yields(self, plan: StandingPlan, thief: str) -> None:
        """Say who was told to stand back."""
        message = f"Workload {thief} got quota that plan {plan.grant.plan} had freed, and gives it back once"
        self._tell_gang(plan.grant, "NewcomerYields", message)

    def refused(self, gang: Workload, found: NoPlan) -> None:
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


def _because(step: Move) -> str:
    about = f" ({', '.join(step.about)})" if step.about else ""
    return f"{step.ending}{about}"
