"""The cheapest set of options that is enough, or the knowledge that there is none. Branch and bound.

What "enough" means is somebody else's question (`Ground`): a gang that Kueue would admit and that fits the nodes. It
costs much to answer, so it is asked only of sets that could be enough by a quick count, cheapest first.

Laws:

* What is returned was accepted whole. Nothing in it can be left out, and where `is_exact` is true nothing is cheaper.
* A branch is cut only where no set in it can be accepted (`permits`, `could_fit`), or none can be cheaper: what it
  costs at least to cover each need is looked up in a table (`covers.py`).
* Of twins, which differ in nothing but their cost, the cheaper goes first; sets that prefer the dearer are skipped.
* Bounded by counts of steps and of costly questions, never by a clock, so that the same input has the same output.
  When a bound is met, the best set found so far stands and is not called exact. Greedy sets are tried before anything
  is searched, so there mostly is one.

Worked example: 4 more GPUs are needed; options a (2 GPUs, cost 3), b (2, 3), c (8, 10). By cost per GPU that is of use
a and b come first (1.5, c 2.5); greedy takes a and b for 6. Covering 4 GPUs costs 6 at least, so nothing is cheaper.
Had a been refused: without a, 4 GPUs cost 10 at least.

The tempting alternative, taking the longest idle until the sum is reached, overshoots by up to the size of the largest
option, and never asks whether the rest of the cluster lets the gang have it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable

from scaler.core.victims.answers import Answers, OutOfStepsError
from scaler.core.victims.covers import Cover
from scaler.core.victims.greedy import leave_out_needless, take_in_order
from scaler.core.victims.options import Found, Ground, Limits, Option


def cheapest(options: Iterable[Option], need: tuple[int, ...], ground: Ground, *, limits: Limits) -> Found:
    """The cheapest accepted set. `need` is what must be gained at least, need by need."""
    ranked = sorted(options, key=lambda each: _rank(each, need))
    answers = Answers(ground=ground, limits=limits)
    is_exact = True
    try:
        take_in_order(ranked, need, answers)
        _Branches(ranked, need, answers).search()
    except OutOfStepsError:
        is_exact = False
    is_exact = is_exact and not answers.is_cut
    if answers.best is not None and not is_exact:
        _make_necessary([option for option in ranked if option.key in answers.best], answers)
    return Found(
        keys=answers.best,
        cost=answers.best_cost,
        is_exact=is_exact,
        steps=answers.steps,
        questions=len(answers.known),
    )


def _rank(option: Option, need: tuple[int, ...]) -> tuple[float, int, str]:
    """Cheapest per share of the needs first. More than is needed of anything is of no use."""
    share = sum(min(gain, amount) / amount for gain, amount in zip(option.gains, need, strict=True) if amount > 0)
    return (option.cost / share if share > 0 else float("inf")), option.cost, option.key


def _make_necessary(best: list[Option], answers: Answers) -> None:
    """Leave out of the best set what it does without, however many questions that takes."""
    for option in best:
        answers.ground.choose(option)
    leave_out_needless(best, answers, is_bounded=False)
    for option in best:
        answers.ground.unchoose(option)


class _Branches:
    """All sets, as a tree: every option is taken, or it is not."""

    def __init__(self, options: list[Option], need: tuple[int, ...], answers: Answers) -> None:
        self._options = options
        self._answers = answers
        self._ground = answers.ground
        self._covers = [
            Cover(amount, [(each.gains[i], each.cost) for each in options]) for i, amount in enumerate(need)
        ]
        self._chosen: list[Option] = []
        self._excluded: Counter[Hashable] = Counter()
        """How many twins of each kind are excluded."""

    def search(self) -> None:
        """Raises: OutOfStepsError."""
        self._descend(0, 0, tuple(cover.need for cover in self._covers))

    def _descend(self, start: int, cost: int, left: tuple[int, ...]) -> None:
        """Search every set that has the chosen ones and otherwise only options from `start` on."""
        if all(need <= 0 for need in left) and self._ground.fits() and self._answers.ask_patiently(self._chosen):
            self._answers.keep(self._chosen)
            return
        if len(self._chosen) >= self._answers.limits.members:
            self._answers.is_cut = self._answers.is_cut or start < len(self._options)
            return
        excluded: list[Option] = []
        try:
            self._branch(start, cost, left, excluded)
        finally:
            for option in reversed(excluded):
                self._excluded[option.twin] -= 1
                self._ground.readmit(option)

    def _branch(self, start: int, cost: int, left: tuple[int, ...], excluded: list[Option]) -> None:
        for place in range(start, len(self._options)):
            if self._is_too_dear(place, cost, left):
                return
            self._answers.step()
            option = self._options[place]
            if not self._excluded[option.twin]:
                self._with(place, cost, left)
            self._excluded[option.twin] += 1
            self._ground.exclude(option)
            excluded.append(option)
            if not self._ground.could_fit():
                return

    def _with(self, place: int, cost: int, left: tuple[int, ...]) -> None:
        option = self._options[place]
        remaining = tuple(need - cover.gains[place] for need, cover in zip(left, self._covers, strict=True))
        if self._is_too_dear(place + 1, cost + option.cost, remaining):
            return
        self._chosen.append(option)
        self._ground.choose(option)
        try:
            if self._ground.permits():
                self._descend(place + 1, cost + option.cost, remaining)
        finally:
            self._ground.unchoose(option)
            self._chosen.pop()

    def _is_too_dear(self, start: int, cost: int, left: tuple[int, ...]) -> bool:
        """Whether covering what is left with options from `start` on is impossible, or no cheaper than the best set."""
        least = cost + max(
            (cover.least(start, need) for cover, need in zip(self._covers, left, strict=True)), default=0
        )
        return least == float("inf") or (self._answers.best is not None and least >= self._answers.best_cost)
