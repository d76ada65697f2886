"""What becomes of grants that take nobody any more: those that were withdrawn, and those that nobody can read.

KEDA asks, and acts upon the answer a moment later. An answer of 0 that was given while a grant stood may therefore be
written after the grant was withdrawn and replicas set to 1; without any grant that 0 would look like somebody's wish,
and the workload would be suspended for nobody. So a withdrawn grant stays for as long as such an answer may be on its
way. Until then whatever sets the workload to 0 is undone; afterwards a 0 means what it says, unless it is the plan's
own, which nobody could undo yet: while the API refuses writes time passes, too.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scaler.kube.objects import ScalableWorkload
from scaler.loops.cluster import Cluster
from scaler.loops.grant_writer import GrantWriter
from scaler.loops.granted import grant_of


@dataclass(kw_only=True)
class Settling:
    """Removes grants when their time is up. A new leader starts counting anew."""

    cluster: Cluster
    writer: GrantWriter
    after: timedelta = timedelta(seconds=5)
    """KEDA asks all triggers of a ScaledObject before it scales; other scalers of them may be slow."""
    _since: dict[str, datetime] = field(default_factory=dict, init=False)
    """By uid, when it was first seen so."""
    _was_at_one: set[str] = field(default_factory=set, init=False)
    """Uids of those that were at 1 since: a 0 of theirs is not the plan's any more."""

    def due(self) -> list[ScalableWorkload]:
        """Those that have such a grant."""
        return [each for each in self.cluster.scalable_workloads.items() if _is_over(each)]

    async def settle(self, scalable: ScalableWorkload, now: datetime) -> None:
        """Undo a 0 that comes too late, or remove the grant. Raises: KubeError; try again later."""
        uid, is_at_zero = scalable.metadata.uid, scalable.spec.replicas == 0
        is_over = now - self._since.setdefault(uid, now) >= self.after
        if not is_at_zero:
            self._was_at_one.add(uid)
        if is_over and uid in self._was_at_one:
            await self.writer.clear(scalable)
        elif is_at_zero and await self.writer.ask_for_one(scalable, scalable.metadata.resource_version):
            self._was_at_one.add(uid)

    def forget_others(self, due: list[ScalableWorkload]) -> None:
        """Forget since when those were seen whose grants are gone."""
        uids = {each.metadata.uid for each in due}
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}
        self._was_at_one &= uids


def _is_over(scalable: ScalableWorkload) -> bool:
    grant = grant_of(scalable)
    return scalable.status.grant is not None and (grant is None or grant.is_withdrawn)
