"""The plans that stand, as their grants tell, and how their victims and gangs are doing. Pure.

Nothing about a plan is kept in memory that matters: its grants are in the status of its victims, so that the next
leader goes on where this one ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scaler.core.grants import GangState, Grant, Victim
from scaler.core.ledger import Sight
from scaler.core.pods import TERMINAL
from scaler.core.suspension import Situation, Workload
from scaler.kube.kueue_objects import Workload as KueueWorkload
from scaler.kube.objects import ScalableWorkload, is_true
from scaler.loops.board import Evaluation, Key
from scaler.loops.candidates import is_idle
from scaler.loops.cluster import Cluster
from scaler.loops.granted import grant_of
from scaler.loops.scales import scalable_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One victim with everything that is observed about it."""

    key: Key
    scalable: ScalableWorkload | None
    """None for one that is gone."""
    situation: Situation | None
    has_grant: bool
    is_idle: bool

    @property
    def workload(self) -> Workload | None:
        return self.situation.workload if self.situation is not None else None

    @property
    def workload_key(self) -> str:
        """`namespace/name` of its Workload; empty where it has none."""
        workload = self.workload
        return f"{workload.namespace}/{workload.name}" if workload is not None else ""

    @property
    def is_deactivated(self) -> bool:
        workload = self.workload
        return workload is not None and not workload.active and workload.suspended_by_us

    @property
    def victim(self) -> Victim:
        """As the core sees it. Without its grant or its Workload it is as good as gone."""
        workload = self.workload
        gone = self.scalable is None or workload is None or workload.finished
        return Victim(
            key="/".join(self.key),
            desired_replicas=self.scalable.spec.replicas if self.scalable is not None else 1,
            is_idle=self.is_idle,
            is_deactivated=self.is_deactivated,
            is_missing=gone or not self.has_grant,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingPlan:
    """A plan with its victims."""

    grant: Grant
    gang: KueueWorkload | None
    gang_state: GangState
    members: tuple[Member, ...]

    @property
    def victims(self) -> list[Victim]:
        return [member.victim for member in self.members]

    @property
    def is_begun(self) -> bool:
        return any(member.is_deactivated for member in self.members)

    def sight(self, member: Member, *, taken_by: str = "", is_cancelled: bool = False) -> Sight:
        """What the ledger needs to know about one victim."""
        workload, situation = member.workload, member.situation
        left = [pod for pod in situation.pods if pod.phase not in TERMINAL] if situation is not None else []
        return Sight(
            is_deactivated=member.is_deactivated,
            holds_quota=workload is not None and workload.quota_reserved,
            pods_left=len(left),
            gang_reserved=self.gang_state in {GangState.RESERVED, GangState.ADMITTED},
            gang_admitted=self.gang_state is GangState.ADMITTED,
            taken_by=taken_by,
            is_cancelled=is_cancelled,
        )


def standing_plans(cluster: Cluster, evaluation: Evaluation | None) -> list[StandingPlan]:
    """All plans of which at least one grant stands, the oldest first."""
    grants = {grant.plan: grant for each in cluster.scalable_workloads.items() if (grant := grant_of(each))}
    ordered = sorted(grants.values(), key=lambda grant: (grant.granted_at, grant.plan))
    return [_standing(grant, cluster, evaluation) for grant in ordered]


def _standing(grant: Grant, cluster: Cluster, evaluation: Evaluation | None) -> StandingPlan:
    gang = cluster.workloads.get(*key_of(grant.gang))
    if gang is not None and gang.metadata.uid != grant.gang_uid:
        gang = None
    return StandingPlan(
        grant=grant,
        gang=gang,
        gang_state=gang_state(gang),
        members=tuple(_member(key_of(name), grant, cluster, evaluation) for name in grant.victims),
    )


def _member(key: Key, grant: Grant, cluster: Cluster, evaluation: Evaluation | None) -> Member:
    scalable = cluster.scalable_workloads.get(*key)
    decisions = evaluation.decisions_on(key[0], scalable_target(key[1])) if evaluation is not None else ()
    own = grant_of(scalable) if scalable is not None else None
    return Member(
        key=key,
        scalable=scalable,
        situation=cluster.situation(scalable) if scalable is not None else None,
        has_grant=own is not None and own.plan == grant.plan,
        is_idle=is_idle(decisions),
    )


def gang_state(gang: KueueWorkload | None) -> GangState:
    """How far the gang is, by its conditions."""
    if gang is None or not gang.spec.active or is_true(gang.status.conditions, "Finished"):
        return GangState.GONE
    if gang.metadata.deletion_timestamp is not None:
        return GangState.GONE
    if is_true(gang.status.conditions, "Admitted"):
        return GangState.ADMITTED
    return GangState.RESERVED if is_true(gang.status.conditions, "QuotaReserved") else GangState.WAITING


def key_of(name: str) -> Key:
    """`namespace/name` taken apart."""
    namespace, _, rest = name.partition("/")
    return namespace, rest


def victims_of(plans: Sequence[StandingPlan]) -> frozenset[str]:
    """Names of all ScalableWorkloads that a plan has a grant on."""
    return frozenset(name for each in plans for name in each.grant.victims)
