"""Which flavors would a Workload get now, and what would have to happen first?

For every PodSet and every resource group that it needs, the group's flavors are tried in the queue's order. One flavor
serves all resources of the group. What PodSets before it take is counted, so a gang is judged as a whole: if one PodSet
gets no flavor, the Workload gets nothing.

How good a flavor is, from worst to best (of several resources the worst counts):

| verdict       | when                                                              | is the next flavor tried too?    |
|---------------|-------------------------------------------------------------------|----------------------------------|
| no fit        | more than could ever be had, or preemption is not allowed to help | yes                              |
| no candidates | preemption is allowed, but there is no candidate                  | yes                              |
| preempt       | it fits after preemptions in its own queue                        | if whenCanPreempt says so        |
| reclaim       | it fits after preemptions in other queues only                    | if whenCanPreempt says so        |
| fit           | it fits in what is left                                           | if it borrows and whenCanBorrow  |
|               |                                                                   | says so                          |

Of the flavors tried the best is taken, and of equals the first. Among those that help, the queue's preference decides
whether less preemption or less borrowing counts first.

Laws:

* The search goes on where it ended: the flavor after the one that was chosen in the last cycle is the next to be tried,
  unless the last one of its group had been reached.
* With a `min_count`, fewer pods are tried where all do not fit: by bisection, as if fewer pods always fit more easily.

Worked example: flavors a100 (4 GPUs, 3 used) and h100 (8 free), MayStopSearch. A gang of 2 lacks 1 a100 (no candidates)
and fits in h100. Then a gang of 1 fits in a100.

Source: Kueue, pkg/scheduler/flavorassigner/flavorassigner.go, podset_reducer.go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

from scaler.quota.demands import (
    NOTHING_TRIED,
    Assignment,
    AssignmentMode,
    FlavorOption,
    PendingReason,
    PodSetDemand,
    PodSetFlavors,
    QuotaDemand,
    ResourceGroupDemand,
    Shortfall,
    Tried,
    severity,
)
from scaler.quota.model import FlavorResource, FungibilityPolicy, PreemptionPolicy, Preference, QuotaClusterQueue, Usage
from scaler.quota.node import QueueNode

R = TypeVar("R")


class FlavorVerdict(IntEnum):
    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


Foresee = Callable[[FlavorResource, int], tuple[FlavorVerdict, int]]
"""What preemption could do for so much of a flavor resource, and how far the Workload would then borrow."""


class _Grade(NamedTuple):
    """How good a flavor is. Grades are compared: a greater one is preferred."""

    tier: int
    first: int
    second: int


@dataclass(slots=True)
class _Trial:
    option: FlavorOption
    grade: _Grade
    verdict: FlavorVerdict = FlavorVerdict.FIT
    borrows: int = 0
    """How much the resource borrows that made the grade."""
    most_borrowed: int = 0
    contested: list[FlavorResource] = field(default_factory=list)
    obstacle: PendingReason | None = None


def assign_flavors(
    queue: QueueNode,
    demand: QuotaDemand,
    foresee: Foresee,
    *,
    tried: Tried = NOTHING_TRIED,
    pins: Sequence[Mapping[str, str]] | None = None,
    fair_sharing: bool = False,
) -> Assignment:
    """The flavors for all PodSets, searched from where the last search ended. `foresee` leaves the tree as it was.

    With `pins`, only the flavors that these name are tried.
    """
    usage: dict[FlavorResource, int] = {}
    searches: list[_PodSetSearch] = []
    mode, failed = AssignmentMode.FIT, 0
    for index, pods in enumerate(demand.pod_sets):
        search = _PodSetSearch(queue, pods, foresee, usage.copy(), fair_sharing=fair_sharing)
        searches.append(search)
        if not search.run(tried[index] if index < len(tried) else {}, pins[index] if pins else None):
            mode, failed = AssignmentMode.NO_FIT, 1
            break
        for key, amount in search.amounts:
            usage[key] = usage.get(key, 0) + amount
    complete = searches[: len(searches) - failed]
    trials = [trial for search in complete for _, trial, _ in search.chosen]
    # Kueue takes the group for what its worst resource is. Where less borrowing counts first, that may be one that
    # fits and borrows from far, beside one that does not fit: then the cycle skips the Workload as one that lost.
    if not failed and any(trial.verdict is not FlavorVerdict.FIT for trial in trials):
        mode = AssignmentMode.PREEMPT
    reached = tuple(search.reached for search in complete)
    return Assignment(
        mode=mode,
        borrows=max((trial.most_borrowed for trial in trials), default=0),
        usage=usage,
        choices=tuple(search.flavors for search in complete),
        tried=reached if any(reached) else NOTHING_TRIED,
        shortfalls=tuple(each for search in searches for each in search.shortfalls),
        obstacle=searches[-1].obstacle if failed else None,
    )


class _PodSetSearch:
    """The flavors of one PodSet, where those before it take `assumed`."""

    def __init__(
        self, queue: QueueNode, pods: PodSetDemand, foresee: Foresee, assumed: Usage, *, fair_sharing: bool
    ) -> None:
        self._queue = queue
        self._pods = pods
        self._foresee = foresee
        self._assumed = assumed
        self._fair_sharing = fair_sharing
        self.chosen: list[tuple[ResourceGroupDemand, _Trial, int]] = []
        """The best flavor of each resource group, and the position of the last one tried."""
        self.shortfalls: list[Shortfall] = []
        self._obstacles: dict[int, PendingReason | None] = {}
        self._has_tried = False

    def run(self, start: Mapping[int, int], pins: Mapping[str, str] | None) -> bool:
        """Whether every resource group gets a flavor."""
        return all(self._choose(step, start.get(step.group, -1) + 1, pins) for step in self._pods.steps)

    @property
    def amounts(self) -> list[tuple[FlavorResource, int]]:
        """What it takes."""
        return [amount for _, trial, _ in self.chosen for amount in trial.option.amounts]

    @property
    def flavors(self) -> PodSetFlavors:
        contested = frozenset(key for _, trial, _ in self.chosen for key in trial.contested)
        return PodSetFlavors(
            pods=self._pods, flavors={key.resource: key.flavor for key, _ in self.amounts}, contested=contested
        )

    @property
    def reached(self) -> dict[int, int]:
        """The last flavor tried by resource group, where there are more."""
        return {step.group: last for step, _, last in self.chosen if last + 1 < len(step.options)}

    @property
    def obstacle(self) -> PendingReason | None:
        """Why it gets no flavor. Of several groups all are needed: what counts is the worst obstacle."""
        if not self._has_tried:
            return PendingReason.NO_MATCHING_FLAVOR
        return max(self._obstacles.values(), key=severity, default=None)

    # ------------------------------------------------------------------------------------------------- one group

    def _choose(self, step: ResourceGroupDemand, start: int, pins: Mapping[str, str] | None) -> bool:
        """Find the best flavor for one resource group. False where none will do."""
        best: _Trial | None = None
        attempted = -1
        for attempted in range(start, len(step.options)):
            option = step.options[attempted]
            if pins is not None and pins.get(option.amounts[0][0].resource) != option.flavor:
                continue
            self._has_tried = True
            if option.refusal:
                self._lacks(PendingReason.NO_MATCHING_FLAVOR, option.flavor)
                self._blocked(step, PendingReason.NO_MATCHING_FLAVOR)
                continue
            trial = self._try(option)
            if trial.verdict is FlavorVerdict.NO_FIT:
                self._blocked(step, trial.obstacle)
            if best is None or trial.grade > best.grade:
                best = trial
            if not self._goes_on(trial):
                best = trial
                break
        if best is None or best.verdict is FlavorVerdict.NO_FIT:
            return False
        self.chosen.append((step, best, attempted))
        return True

    def _goes_on(self, trial: _Trial) -> bool:
        """Whether the next flavor is to be tried as well."""
        fungibility = self._queue.spec.fungibility
        match trial.verdict:
            case FlavorVerdict.NO_FIT | FlavorVerdict.NO_CANDIDATES:
                return True
            case FlavorVerdict.PREEMPT | FlavorVerdict.RECLAIM if (
                fungibility.when_can_preempt is FungibilityPolicy.TRY_NEXT
            ):
                return True
        return trial.borrows > 0 and fungibility.when_can_borrow is FungibilityPolicy.TRY_NEXT

    def _blocked(self, step: ResourceGroupDemand, obstacle: PendingReason | None) -> None:
        """Any flavor of a group would do, so the mildest of their obstacles counts."""
        known = self._obstacles.get(step.group, obstacle)
        self._obstacles[step.group] = min(known, obstacle, key=severity)

    # ------------------------------------------------------------------------------------------------ one flavor

    def _try(self, option: FlavorOption) -> _Trial:
        """What the flavor could do for all resources together."""
        trial = _Trial(option, self._grade(FlavorVerdict.FIT, 0))
        for key, amount in option.amounts:
            verdict, borrows = self._fits(trial, key, self._assumed.get(key, 0) + amount)
            trial.most_borrowed = max(trial.most_borrowed, borrows)
            grade = self._grade(verdict, borrows)
            if grade < trial.grade:
                trial.grade, trial.verdict, trial.borrows = grade, verdict, borrows
            if verdict is not FlavorVerdict.FIT:
                trial.contested.append(key)
        return trial

    def _grade(self, verdict: FlavorVerdict, borrows: int) -> _Grade:
        if verdict is FlavorVerdict.NO_FIT:
            return _Grade(0, 0, 0)
        tier = 1 if verdict is FlavorVerdict.NO_CANDIDATES else 2
        if self._queue.spec.fungibility.preference is Preference.BORROWING_OVER_PREEMPTION:
            return _Grade(tier, verdict, -borrows)
        return _Grade(tier, -borrows, verdict)

    def _fits(self, trial: _Trial, key: FlavorResource, wanted: int) -> tuple[FlavorVerdict, int]:
        """How so much of one resource could be had, and how far the Workload would borrow."""
        queue = self._queue
        potential = queue.potential(key)
        if wanted > potential:
            self._lacks(PendingReason.EXCEEDS_MAX_QUOTA, key.flavor, key.resource, wanted, potential)
            trial.obstacle = PendingReason.EXCEEDS_MAX_QUOTA
            return FlavorVerdict.NO_FIT, 0
        borrows, is_part = queue.lowest_fit(key, wanted)
        available = queue.available(key)
        if wanted <= available:
            return FlavorVerdict.FIT, borrows
        self._lacks(PendingReason.WAITING_FOR_QUOTA, key.flavor, key.resource, wanted, available)
        if is_part or queue.nominal(key) >= wanted or _may_preempt_while_borrowing(queue.spec, self._fair_sharing):
            return (FlavorVerdict.NO_CANDIDATES, borrows) if never_preempts(queue.spec) else self._foresee(key, wanted)
        trial.obstacle = max(trial.obstacle, PendingReason.WAITING_FOR_QUOTA, key=severity)
        return FlavorVerdict.NO_FIT, borrows

    def _lacks(
        self, obstacle: PendingReason, flavor: str, resource: str = "", wanted: int = 0, available: int = 0
    ) -> None:
        self.shortfalls.append(Shortfall(self._pods.name, flavor, obstacle, resource, wanted, available))


def _may_preempt_while_borrowing(queue: QuotaClusterQueue, fair_sharing: bool) -> bool:
    policies = queue.preemption
    if policies.borrow_within_cohort is not PreemptionPolicy.NEVER:
        return True
    return fair_sharing and policies.reclaim_within_cohort is not PreemptionPolicy.NEVER


def never_preempts(queue: QuotaClusterQueue) -> bool:
    """Whether the queue's policies leave no candidate whatever happens, so that no search for any is needed."""
    policies = queue.preemption
    return policies.within_cluster_queue is PreemptionPolicy.NEVER is policies.reclaim_within_cohort


def largest_that_fits(demand: QuotaDemand, attempt: Callable[[QuotaDemand], R], fits: Callable[[R], bool]) -> R | None:
    """What `attempt` gives for the most pods with which it fits; None where it never does.

    Found by bisection over the number of missing pods, as Kueue does: exact only if fewer pods never fit worse.
    """
    fewest, beyond = 0, demand.dispensable + 1
    found: R | None = None
    while fewest < beyond:
        middle = (fewest + beyond) // 2
        result = attempt(demand.reduced(middle))
        if fits(result):
            beyond, found = middle, result
        else:
            fewest = middle + 1
    return found
