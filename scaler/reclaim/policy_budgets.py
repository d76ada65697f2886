"""How many of the workloads that have a budget of their policy in common may be suspended. By time alone, the leader
spends it by warnings; plans spend it by their victims.

| a workload of the budget                             | at once | in its period                   |
|------------------------------------------------------|---------|---------------------------------|
| is at 0, or it is not known whether                  | counts  | counts, at an unknown time ever |
| is a victim of a plan                                | counts  | counts                          |
| is warned, and time alone suspends it after that     | counts  | counts                          |
| was suspended and has come back                      | –       | counts                          |

Laws:

* A budget is shared by all workloads that have it from the same policy; without a policy, by those of their namespace.
* A warning that was given counts before any evaluation shows it: two that are given at once never share one place.
* A new leader gives none before an evaluation that began after it led: it shows what the leader before has given.
* Suspensions are counted from what the API has, so that a restart forgets none. A grant counts from when it is written,
  whatever the latest evaluation shows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from scaler.decision.decision import Decision, valid_warning
from scaler.decision.decision_cache import DecisionCache, Key
from scaler.decision.describe import prevailing
from scaler.idleness.policy import FIELDS, EnforcementMode, Policy, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.reclaim.budget import Budget, BudgetedWorkload, Spending, Suspension, budget_check
from scaler.targets.scale_subresources import is_scalable_workload
from scaler.targets.target_state import Phase

_SHOWN_WITHIN = timedelta(seconds=5)
"""After that what the leader before has written is in this replica's copies."""
_UNSEEN = timedelta(minutes=2)
"""How long a warning counts that no evaluation has shown: longer than the API's news may take without being missed."""


def budgets_of(namespace: str, policy: Policy) -> tuple[Budget, ...]:
    """Those of one workload. Two of the same name are the same budget."""
    at_once, per_period = policy.suspended_at_once, policy.suspended_per_period
    found = []
    if at_once is not None:
        found.append(Budget(name=_name_of("suspended_at_once", namespace, policy), limit=at_once))
    if per_period is not None:
        name = _name_of("suspended_per_period", namespace, policy)
        found.append(Budget(name=name, limit=per_period.limit, period=per_period.period))
    return tuple(found)


def budgets_by_name(namespace: str, decisions: Iterable[Decision]) -> Mapping[str, Budget]:
    return {each.name: each for decision in decisions for each in budgets_of(namespace, decision.policy)}


def _name_of(field_name: str, namespace: str, policy: Policy) -> str:
    """`suspendedAtOnce of ClusterIdlePolicy/night`."""
    source, key = policy.source_of(field_name), FIELDS[field_name].key
    return f"{key} of {source}" if source.startswith("ClusterIdlePolicy/") else f"{key} of {source} in {namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    workload: BudgetedWorkload
    budgets: Mapping[str, Budget]
    decision: Decision

    def spent(self, now: datetime, *, is_granted: bool) -> Suspension | None:
        """What it takes from its budgets; None where that is nothing."""
        target, policy = self.decision.target, self.decision.policy
        if target.doubt is not None and target.doubt.reason is UnknownReason.STALE_CLUSTER_VIEW:
            return Suspension(member=self.workload, at=None)
        if target.desired_replicas == 0 and target.phase is not Phase.FINISHED:
            # What is on its way down may have been suspended before: nobody has written yet that it is again.
            at = now if target.phase in (Phase.SUSPENDING, Phase.HELD) else target.suspended_at
            return Suspension(member=self.workload, at=at)
        is_warned = policy.reclaim is Reclaim.ALWAYS and policy.mode is EnforcementMode.ENFORCE
        if is_granted or target.grant or (is_warned and valid_warning(self.decision, target.warned_at)):
            return Suspension(member=self.workload, at=now)
        if target.suspended_at is not None:
            return Suspension(member=self.workload, at=target.suspended_at, is_over=True)
        return None


@dataclass
class PolicyBudgets:
    """Kept up to date by the decisions that change. Of the leader."""

    decisions: DecisionCache
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    is_granted: Callable[[Key], bool] = lambda _: False
    """Whether the ScalableWorkload of this name is a victim of a plan."""
    _changes: set[Key] = field(init=False)
    _members: dict[Key, _Member] = field(default_factory=dict, init=False)
    """The workloads that have budgets, by ScaledObject."""
    _keys: dict[str, set[Key]] = field(default_factory=dict, init=False)
    """The ScaledObjects of the workloads that have a budget, by its name."""
    _unseen: dict[Key, datetime] = field(default_factory=dict, init=False)
    """When warnings were given that no evaluation has shown yet."""
    _waiting: dict[Key, datetime] = field(default_factory=dict, init=False)
    """Since when those are idle whose warning waits for a budget."""
    _counts_from: datetime | None = field(default=None, init=False)
    """The first instant whose evaluation shows all that another leader has written; None where there was none."""

    def __post_init__(self) -> None:
        self._changes = self.decisions.changes()

    def lead(self) -> None:
        """This replica leads from now on."""
        self._unseen.clear()
        self._counts_from = self.clock() + _SHOWN_WITHIN

    def permits_warning(self, key: Key) -> bool:
        """Whether its budgets have room for the suspension that a warning is about. If so, it counts from now on."""
        self._refresh()
        member = self._members.get(key)
        if member is None or member.decision.policy.reclaim is not Reclaim.ALWAYS:
            return True
        if not self._is_current() or not self._has_room(key, member):
            self._waiting[key] = member.decision.idle_since or self.clock()
            return False
        self._waiting.pop(key, None)
        self._unseen[key] = self.clock()
        return True

    def next_in_line(self) -> list[Key]:
        """Those that wait for a budget which has room for them now, the longest idle first."""
        self._refresh()
        if not self._is_current():
            return []
        ready, full = [], set[str]()
        for key in sorted(self._waiting, key=lambda each: (self._waiting[each], each)):
            member = self._members.get(key)
            if member is None or not full.isdisjoint(member.budgets):
                continue
            if self._has_room(key, member):
                ready.append(key)
            full.update(member.budgets)
        return ready

    def spending(self, now: datetime) -> Spending:
        """The budgets that there are, and what was spent of them."""
        self._refresh()
        return self._spending((each.budgets for each in self._members.values()), self._members, now)

    def _is_current(self) -> bool:
        evaluation, begin = self.decisions.evaluation, self._counts_from
        return begin is None or (evaluation is not None and evaluation.at >= begin)

    def _has_room(self, key: Key, member: _Member) -> bool:
        others = {each for name in member.budgets for each in self._keys[name]} - {key}
        now = self.clock()
        return budget_check(self._spending([member.budgets], others, now), now)([member.workload]) is None

    def _spending(self, budgets: Iterable[Mapping[str, Budget]], spent_by: Collection[Key], now: datetime) -> Spending:
        found = {name: each for some in budgets for name, each in some.items()}
        counted = {name: replace(each, population=len(self._keys[name])) for name, each in found.items()}
        return Spending(budgets=counted, suspensions=tuple(self._spent(spent_by, now)))

    def _spent(self, keys: Collection[Key], now: datetime) -> Iterator[Suspension]:
        for key in keys:
            member = self._members[key]
            spent = member.spent(now, is_granted=self.is_granted(member.workload.key))
            if spent is not None and not spent.is_over:
                yield spent
            elif now - self._unseen.get(key, now - _UNSEEN) < _UNSEEN:
                yield Suspension(member=member.workload, at=now)
            elif spent is not None:
                yield spent

    def _refresh(self) -> None:
        entries = self.decisions.evaluation.entries if self.decisions.evaluation else {}
        keys = self._changes | (self._members.keys() - entries.keys())
        self._changes.clear()
        for key in keys:
            self._forget(key)
            entry = entries.get(key)
            decision = prevailing(list(entry.triggers.values())) if entry is not None else None
            budgets = budgets_by_name(key[0], entry.triggers.values()) if entry is not None else {}
            if entry is None or decision is None or not budgets:
                self._waiting.pop(key, None)
                continue
            workload = BudgetedWorkload(namespace=key[0], name=_name(entry.target), budgets=tuple(budgets))
            self._members[key] = _Member(workload=workload, budgets=budgets, decision=decision)
            for name in budgets:
                self._keys.setdefault(name, set()).add(key)
            if decision.idle_since is None:
                self._waiting.pop(key, None)

    def _forget(self, key: Key) -> None:
        member = self._members.pop(key, None)
        for name in member.budgets if member is not None else ():
            self._keys[name].discard(key)
            if not self._keys[name]:
                del self._keys[name]


def _name(target: ScaleTargetRef) -> str:
    """A ScalableWorkload as plans name it; anything else by its kind."""
    return target.name if is_scalable_workload(target) else str(target)
