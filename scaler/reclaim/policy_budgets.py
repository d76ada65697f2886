"""How many of the workloads that have a budget of their policy in common may be suspended. By time alone, the leader
spends it by warnings; plans spend it by their victims.

| a workload of the budget                             | at once | in its period                   |
|------------------------------------------------------|---------|---------------------------------|
| is at 0, or it is not known whether                  | counts  | counts, at an unknown time ever |
| had it, and its triggers cannot be read any more     | counts  | counts for ever                 |
| is a victim of a plan                                | counts  | counts                          |
| is warned, and time alone suspends it after that     | counts  | counts                          |
| was suspended and has come back                      | –       | counts                          |

Laws:

* A budget is shared by all workloads that have it from the same policy; without a policy, by those of their namespace.
* Of several limits of one budget, which triggers of one namespace may say, each has to have room.
* A warning that was given, and a plan that was permitted, count before any evaluation shows it: two that are given at
  once never share one place.
* A new leader gives none before an evaluation that began after it led: it shows what the leader before has given.
* Suspensions are counted from what the API has, so that a restart forgets none. A grant counts whatever the latest
  evaluation shows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from scaler.decision.decision import Decision, valid_warning
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Key
from scaler.decision.describe import prevailing
from scaler.idleness.policy import FIELDS, EnforcementMode, Policy, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.kube.objects.keda import ScaleTargetRef, is_scalable_workload
from scaler.reclaim.budget import Budget, BudgetedWorkload, BudgetExhausted, Spending, Suspension, budget_check
from scaler.targets.target_state import Phase

_SHOWN_WITHIN = timedelta(seconds=5)
"""The time after which the copies of this replica hold what the leader before has written."""
_UNSEEN = timedelta(minutes=2)
"""How long a warning counts that no evaluation has shown: longer than the API's news may take without being missed."""


def _budgets_of(namespace: str, policy: Policy) -> tuple[Budget, ...]:
    """The budgets of one workload by one of its triggers."""
    at_once, per_period = policy.suspended_at_once, policy.suspended_per_period
    found = []
    if at_once is not None:
        found.append(Budget(name=_name_of("suspended_at_once", namespace, policy), limit=at_once))
    if per_period is not None:
        name = _name_of("suspended_per_period", namespace, policy)
        found.append(Budget(name=name, limit=per_period.limit, period=per_period.period))
    return tuple(found)


def budgets_of(namespace: str, decisions: Iterable[Decision]) -> tuple[Budget, ...]:
    """The budgets of a workload by all its triggers. Two of one name are the same budget, with two limits."""
    found = (each for decision in decisions for each in _budgets_of(namespace, decision.policy))
    return tuple(dict.fromkeys(found))


def names_of(budgets: Iterable[Budget]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.name for each in budgets))


def _name_of(field_name: str, namespace: str, policy: Policy) -> str:
    """`suspendedAtOnce of ClusterIdlePolicy/night`."""
    source, key = policy.source_of(field_name), FIELDS[field_name].key
    return f"{key} of {source}" if source.startswith("ClusterIdlePolicy/") else f"{key} of {source} in {namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    workload: BudgetedWorkload
    budgets: tuple[Budget, ...]
    decision: Decision
    is_readable: bool = True
    """Whether its triggers can be read still."""

    def spent(self, now: datetime, *, is_granted: bool) -> Suspension | None:
        """What it takes from its budgets; None where that is nothing."""
        target, policy = self.decision.target, self.decision.policy
        if not self.is_readable:
            return Suspension(member=self.workload, at=None)
        if target.doubt is not None and target.doubt.reason is UnknownReason.STALE_CLUSTER_VIEW:
            return Suspension(member=self.workload, at=None)
        if target.desired_replicas == 0 and target.phase is not Phase.FINISHED:
            # `suspended_at` of one on its way down may be of an earlier suspension: the new one is not written yet.
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
    """When warnings were given, or plans permitted, that no evaluation has shown yet."""
    _waiting: dict[Key, datetime] = field(default_factory=dict, init=False)
    """When workloads whose warning waits for a budget became idle."""
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

    def refuses_plan(self, victims: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        """Why these may not be granted to a plan now; None where they may. If so, they count from now on."""
        now = self.clock()
        refused = budget_check(self.spending(now), now)(victims)
        if refused is None:
            keys = {each.key for each in victims if each.budgets}
            granted = (key for key, member in self._members.items() if member.workload.key in keys)
            self._unseen |= dict.fromkeys(granted, now)
        return refused

    def next_in_line(self) -> list[Key]:
        """The waiting workloads whose budgets have room for them now, the longest idle first."""
        self._refresh()
        if not self._is_current():
            return []
        ready, full = [], set[str]()
        for key in sorted(self._waiting, key=lambda each: (self._waiting[each], each)):
            member = self._members.get(key)
            if member is None or not full.isdisjoint(member.workload.budgets):
                continue
            if self._has_room(key, member):
                ready.append(key)
            full.update(member.workload.budgets)
        return ready

    def spending(self, now: datetime) -> Spending:
        """The budgets that there are, and what was spent of them."""
        self._refresh()
        return self._spending(self._members, now)

    def _is_current(self) -> bool:
        evaluation, begin = self.decisions.evaluation, self._counts_from
        return begin is None or (evaluation is not None and evaluation.at >= begin)

    def _has_room(self, key: Key, member: _Member) -> bool:
        sharing = {each for name in member.workload.budgets for each in self._keys[name]}
        now = self.clock()
        return budget_check(self._spending(sharing, now, but=key), now)([member.workload]) is None

    def _spending(self, keys: Iterable[Key], now: datetime, *, but: Key | None = None) -> Spending:
        """The budgets of these, and what they spent; `but` one has spent nothing."""
        keys = tuple(keys)
        found = dict.fromkeys(each for key in keys for each in self._members[key].budgets)
        counted = (replace(each, population=len(self._keys[each.name])) for each in found)
        budgets = tuple(sorted(counted, key=lambda each: (each.name, -each.most, str(each.period))))
        return Spending(budgets=budgets, suspensions=tuple(self._spent((x for x in keys if x != but), now)))

    def _spent(self, keys: Iterable[Key], now: datetime) -> Iterator[Suspension]:
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
            before, entry = self._forget(key), entries.get(key)
            member = _member(key[0], entry, before) if entry is not None else None
            if member is None or member.decision.idle_since is None:
                self._waiting.pop(key, None)
            if member is not None:
                self._members[key] = member
                for name in member.workload.budgets:
                    self._keys.setdefault(name, set()).add(key)

    def _forget(self, key: Key) -> _Member | None:
        member = self._members.pop(key, None)
        for name in member.workload.budgets if member is not None else ():
            self._keys[name].discard(key)
            if not self._keys[name]:
                del self._keys[name]
        return member


def _member(namespace: str, entry: EvaluatedScaledObject, before: _Member | None) -> _Member | None:
    """The workload as a member of its budgets; None where it has none."""
    decision, budgets = prevailing(list(entry.triggers.values())), budgets_of(namespace, entry.triggers.values())
    if decision is None and entry.problems and before is not None:
        return replace(before, is_readable=False)
    if decision is None or not budgets:
        return None
    workload = BudgetedWorkload(namespace=namespace, name=_name(entry.target), budgets=names_of(budgets))
    return _Member(workload=workload, budgets=budgets, decision=decision)


def _name(target: ScaleTargetRef) -> str:
    """A ScalableWorkload as plans name it; anything else by its kind."""
    return target.name if is_scalable_workload(target) else str(target)
