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
from scaler.quota.model import (
    FlavorResource,
    Fungibility,
    FungibilityPolicy,
    PreemptionPolicy,
    Preference,
    QuotaClusterQueue,
)
from scaler.quota.preemption.targets import Possibility
from scaler.quota.tree import QueueNode

__all__ = [
    "NOTHING_TRIED",
    "Assignment",
    "AssignmentMode",
    "FlavorAssigner",
    "PendingReason",
    "PodSetFlavors",
    "Shortfall",
    "Tried",
    "largest_that_fits",
    "never_preempts",
]

R = TypeVar("R")

Foresee = Callable[[FlavorResource, int], tuple[Possibility, int]]
"""What preemption could do for so much of a flavor resource, and how far the Workload would then borrow."""


class _Verdict(IntEnum):
    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


_VERDICTS = {
    Possibility.NO_CANDIDATES: _Verdict.NO_CANDIDATES,
    Possibility.PREEMPT: _Verdict.PREEMPT,
    Possibility.RECLAIM: _Verdict.RECLAIM,
}


class _Grade(NamedTuple):
    """How good a flavor is. Grades are compared: a greater one is preferred."""

    tier: int
    first: int
    second: int


_NO_FIT = _Grade(0, 0, 0)


@dataclass(slots=True)
class _Trial:
    """What came of one flavor."""

    grade: _Grade
    verdict: _Verdict = _Verdict.FIT
    borrows: int = 0
    """Of the resource that made the grade."""
    most_borrowed: int = 0
    contested: list[FlavorResource] = field(default_factory=list)
    obstacle: PendingReason | None = None


class FlavorAssigner:
    """Assigns flavors of one queue as it stands. `foresee` leaves the tree as it was."""

    def __init__(self, queue: QueueNode, foresee: Foresee, *, fair_sharing: bool = False) -> None:
        self._queue = queue
        self._foresee = foresee
        self._fungibility = queue.spec.fungibility
        self._may_preempt_while_borrowing = _may_preempt_while_borrowing(queue.spec, fair_sharing=fair_sharing)
        self._has_no_victims = never_preempts(queue.spec)

    def assign(
        self, demand: QuotaDemand, tried: Tried = NOTHING_TRIED, pins: Sequence[Mapping[str, str]] | None = None
    ) -> Assignment:
        """The flavors for all PodSets, searched from where the last search ended.

        With `pins`, only the flavors that these name are tried.
        """
        search = _Search(self._fungibility)
        for index, pods in enumerate(demand.pod_sets):
            start = tried[index] if index < len(tried) else {}
            if not self._assign_pods(search, pods, start, pins[index] if pins else None):
                break
        return search.result()

    def _assign_pods(
        self, search: "_Search", pods: PodSetDemand, start: Mapping[int, int], pins: Mapping[str, str] | None
    ) -> bool:
        """Add the PodSet's flavors to the search. False where it gets none."""
        search.begin(pods)
        for step in pods.steps:
            if not self._take(search, step, start.get(step.group, -1) + 1, pins):
                search.fail()
                return False
        search.commit()
        return True

    def _take(self, search: "_Search", step: ResourceGroupDemand, start: int, pins: Mapping[str, str] | None) -> bool:
        """Find the best flavor for one resource group. False where none will do."""
        best: _Trial | None = None
        chosen: FlavorOption | None = None
        attempted = -1
        for attempted in range(start, len(step.options)):
            option = step.options[attempted]
            if pins is not None and pins.get(option.amounts[0][0].resource) != option.flavor:
                continue
            if option.refusal:
                search.refuse(step, option)
                continue
            trial = self._try(search, option)
            search.note(step, trial)
            if best is None or trial.grade > best.grade:
                best, chosen = trial, option
            if not self._goes_on(trial):
                best, chosen = trial, option
                break
        if best is None or chosen is None or best.verdict is _Verdict.NO_FIT:
            return False
        search.choose(step, chosen, best, attempted)
        return True

    def _goes_on(self, trial: _Trial) -> bool:
        """Whether the next flavor is to be tried as well."""
        match trial.verdict:
            case _Verdict.NO_FIT | _Verdict.NO_CANDIDATES:
                return True
            case _Verdict.PREEMPT | _Verdict.RECLAIM if (
                self._fungibility.when_can_preempt is FungibilityPolicy.TRY_NEXT
            ):
                return True
        return trial.borrows > 0 and self._fungibility.when_can_borrow is FungibilityPolicy.TRY_NEXT

    def _try(self, search: "_Search", option: FlavorOption) -> _Trial:
        """What the flavor could do for all resources together."""
        trial = _Trial(grade=search.grade(_Verdict.FIT, 0))
        for key, amount in option.amounts:
            verdict, borrows = self._fits(search, trial, key, search.assumed(key) + amount)
            trial.most_borrowed = max(trial.most_borrowed, borrows)
            grade = search.grade(verdict, borrows)
            if grade < trial.grade:
                trial.grade, trial.verdict, trial.borrows = grade, verdict, borrows
            if verdict is not _Verdict.FIT:
                trial.contested.append(key)
        return trial

    def _fits(self, search: "_Search", trial: _Trial, key: FlavorResource, wanted: int) -> tuple[_Verdict, int]:
        """How so much of one resource could be had, and how far the Workload would borrow."""
        queue = self._queue
        potential = queue.potential(key)
        if wanted > potential:
            search.lacks(trial, key, PendingReason.EXCEEDS_MAX_QUOTA, wanted, potential)
            return _Verdict.NO_FIT, 0
        borrows, is_part = queue.lowest_fit(key, wanted)
        available = queue.available(key)
        if wanted <= available:
            return _Verdict.FIT, borrows
        if is_part or self._may_preempt_while_borrowing or queue.nominal(key) >= wanted:
            search.lacks(trial, key, None, wanted, available)
            if self._has_no_victims:
                return _Verdict.NO_CANDIDATES, borrows
            possibility, borrows = self._foresee(key, wanted)
            return _VERDICTS[possibility], borrows
        search.lacks(trial, key, PendingReason.WAITING_FOR_QUOTA, wanted, available)
        return _Verdict.NO_FIT, borrows


def _may_preempt_while_borrowing(queue: QuotaClusterQueue, *, fair_sharing: bool) -> bool:
    policies = queue.preemption
    if policies.borrow_within_cohort is not PreemptionPolicy.NEVER:
        return True
    return fair_sharing and policies.reclaim_within_cohort is not PreemptionPolicy.NEVER


def never_preempts(queue: QuotaClusterQueue) -> bool:
    """Whether the queue's policies leave no candidate whatever happens, so that no search for any is needed."""
    policies = queue.preemption
    return policies.within_cluster_queue is PreemptionPolicy.NEVER is policies.reclaim_within_cohort


class _Search:
    """An assignment that grows PodSet by PodSet."""

    def __init__(self, fungibility: Fungibility) -> None:
        self._borrowing_first = fungibility.preference is Preference.BORROWING_OVER_PREEMPTION
        self._mode = AssignmentMode.FIT
        self._borrows = 0
        self._usage: dict[FlavorResource, int] = {}
        self._choices: list[PodSetFlavors] = []
        self._tried: list[Mapping[int, int]] = []
        self._shortfalls: list[Shortfall] = []
        self._obstacle: PendingReason | None = None

    def begin(self, pods: PodSetDemand) -> None:
        self._pods = pods
        self._flavors: dict[str, str] = {}
        self._taken: list[tuple[ResourceGroupDemand, FlavorOption, _Trial, int]] = []
        self._obstacles: dict[int, PendingReason | None] = {}
        self._attempts = 0

    def grade(self, verdict: _Verdict, borrows: int) -> _Grade:
        if verdict is _Verdict.NO_FIT:
            return _NO_FIT
        tier = 1 if verdict is _Verdict.NO_CANDIDATES else 2
        return _Grade(tier, verdict, -borrows) if self._borrowing_first else _Grade(tier, -borrows, verdict)

    def assumed(self, key: FlavorResource) -> int:
        """What PodSets before this one take."""
        return self._usage.get(key, 0)

    def lacks(
        self, trial: _Trial, key: FlavorResource, obstacle: PendingReason | None, wanted: int, available: int
    ) -> None:
        """Note that the flavor lacks so much. Without obstacle, preemption may make up for it."""
        if severity(obstacle) > severity(trial.obstacle):
            trial.obstacle = obstacle
        self._shortfalls.append(
            Shortfall(
                pod_set=self._pods.name,
                flavor=key.flavor,
                obstacle=obstacle or PendingReason.WAITING_FOR_QUOTA,
                resource=key.resource,
                wanted=wanted,
                available=available,
            )
        )

    def refuse(self, step: ResourceGroupDemand, option: FlavorOption) -> None:
        self._shortfalls.append(
            Shortfall(
                pod_set=self._pods.name,
                flavor=option.flavor,
                obstacle=PendingReason.NO_MATCHING_FLAVOR,
                detail=option.refusal,
            )
        )
        self._blocked(step, PendingReason.NO_MATCHING_FLAVOR)

    def note(self, step: ResourceGroupDemand, trial: _Trial) -> None:
        self._attempts += 1
        if trial.verdict is _Verdict.NO_FIT:
            self._blocked(step, trial.obstacle)

    def _blocked(self, step: ResourceGroupDemand, obstacle: PendingReason | None) -> None:
        """Of the flavors of one group, any would do: what counts is the mildest obstacle."""
        self._attempts += 1
        known = self._obstacles.get(step.group, obstacle)
        self._obstacles[step.group] = min(known, obstacle, key=severity)

    def choose(self, step: ResourceGroupDemand, option: FlavorOption, trial: _Trial, reached: int) -> None:
        self._taken.append((step, option, trial, reached))
        for key, _ in option.amounts:
            self._flavors[key.resource] = option.flavor

    def commit(self) -> None:
        """The PodSet has all it needs."""
        contested: list[FlavorResource] = []
        for _, option, trial, _ in self._taken:
            self._borrows = max(self._borrows, trial.most_borrowed)
            contested += trial.contested
            for key, amount in option.amounts:
                self._usage[key] = self._usage.get(key, 0) + amount
        # Kueue takes the group for what its worst resource is. Where less borrowing counts first, that may be one that
        # fits and borrows from far, beside one that does not fit: then the cycle skips the Workload as one that lost.
        if any(trial.verdict is not _Verdict.FIT for _, _, trial, _ in self._taken):
            self._mode = AssignmentMode.PREEMPT
        self._choices.append(PodSetFlavors(pods=self._pods, flavors=self._flavors, contested=frozenset(contested)))
        self._tried.append(
            {step.group: reached for step, _, _, reached in self._taken if reached + 1 < len(step.options)}
        )

    def fail(self) -> None:
        """The PodSet lacks something. Of several groups all are needed: what counts is the worst obstacle."""
        self._mode = AssignmentMode.NO_FIT
        if not self._attempts:
            self._obstacle = PendingReason.NO_MATCHING_FLAVOR
        elif self._obstacles:
            self._obstacle = max(self._obstacles.values(), key=severity)

    def result(self) -> Assignment:
        return Assignment(
            mode=self._mode,
            borrows=self._borrows,
            usage=self._usage,
            choices=tuple(self._choices),
            tried=tuple(self._tried) if any(self._tried) else NOTHING_TRIED,
            shortfalls=tuple(self._shortfalls),
            obstacle=self._obstacle,
        )


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
