"""Events about plans, on the Workload that they are for and on the ScalableWorkloads of their victims."""

from collections.abc import Iterable

from scaler.decision.target_state import Grant
from scaler.kube.events import ObjectReference
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.active_plans import split_key
from scaler.reclaim.search.values import NoPlan, NoPlanReason, ReclaimPlan
from scaler.reclaim.transitions import PlanTransition
from scaler.suspension.reconciler import EventSink


class PlanEvents:
    """One verb per thing that happens to plans."""

    def __init__(self, announcer: EventSink) -> None:
        self._announcer = announcer
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
        self._announcer.record(
            ObjectReference.of(WORKLOAD, about), str(found.why), f"no reclaim plan found: {found.message}"
        )

    def forget_others(self, uids: Iterable[str]) -> None:
        """Forget which reasons were reported for gangs that are not pending any more."""
        waiting = frozenset(uids)
        self._reported = {uid: why for uid, why in self._reported.items() if uid in waiting}

    def _record(self, scalable: ScalableWorkload, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata)
        self._announcer.record(about, reason, message, warning=warning)

    def _record_on_gang(self, grant: Grant, reason: str, message: str, *, warning: bool = False) -> None:
        namespace, name = split_key(grant.gang)
        about = ObjectMeta(name=name, namespace=namespace, uid=grant.gang_uid)
        self._announcer.record(ObjectReference.of(WORKLOAD, about), reason, message, warning=warning)


def _because(step: PlanTransition) -> str:
    about = f": {', '.join(step.about)}" if step.about else ""
    return f"{step.ending}{about}"
