"""A good set quickly: options are taken in an order until they are enough, then what is not needed is left out.

Where they should be enough and are not, somebody else gets something of it. How much is not known, so more and more
options are taken before it is asked again.
"""

from collections.abc import Iterable, Sequence

from scaler.core.victims.answers import Answers
from scaler.core.victims.options import Ground, Option

_MOST = 4
"""Times as many options as a set may have are taken before greedy gives up: most can be left out again."""


def take_in_order(order: Iterable[Option], need: Sequence[int], answers: Answers) -> None:
    """Let the answers know the set that comes of it. Raises: OutOfStepsError."""
    greedy = _Greedy(need, answers)
    try:
        if greedy.take(order):
            leave_out_needless(greedy.taken, answers)
    finally:
        for option in reversed(greedy.taken):
            answers.ground.unchoose(option)


class _Greedy:
    def __init__(self, need: Sequence[int], answers: Answers) -> None:
        self._answers = answers
        self._ground: Ground = answers.ground
        self._left = list(need)
        self.taken: list[Option] = []
        """They are chosen in the ground."""

    def take(self, order: Iterable[Option]) -> bool:
        """Whether enough was taken."""
        pause = skipped = 0
        for option in order:
            if len(self.taken) >= _MOST * self._answers.limits.members:
                break
            if not (self._is_of_use(option) and self._choose(option) and self._should_be_enough()):
                continue
            if skipped < pause:
                skipped += 1
                continue
            if self._answers.ask(self.taken):
                return True
            pause, skipped = 2 * pause + 1, 0
        return bool(self.taken) and self._should_be_enough() and self._answers.ask(self.taken)

    def _is_of_use(self, option: Option) -> bool:
        """Whether it adds to anything that is still needed, if anything is."""
        needed = [gain for gain, left in zip(option.gains, self._left, strict=True) if left > 0]
        return not needed or any(gain > 0 for gain in needed)

    def _choose(self, option: Option) -> bool:
        """Take it, if it may be taken."""
        self._ground.choose(option)
        if not self._ground.permits():
            self._ground.unchoose(option)
            return False
        self.taken.append(option)
        self._left = [left - gain for gain, left in zip(option.gains, self._left, strict=True)]
        return True

    def _should_be_enough(self) -> bool:
        return all(left <= 0 for left in self._left) and self._ground.fits()


def leave_out_needless(taken: list[Option], answers: Answers, *, is_bounded: bool = True) -> None:
    """Leave out of an accepted set what it does without: many at once first, then one by one, the dearest first.

    The taken ones are chosen in the ground, and what is left out is not any more. Raises: OutOfStepsError, unless the
    questions are not bounded; what is left is an accepted set in any case.
    """
    try:
        size = len(taken) // 2
        while size > 1:
            _leave_out(taken, size, answers, is_bounded=is_bounded)
            size //= 2
        while _leave_out(taken, 1, answers, is_bounded=is_bounded):
            pass
    finally:
        answers.keep(taken)


def _leave_out(taken: list[Option], size: int, answers: Answers, *, is_bounded: bool) -> bool:
    """Leave out so many at once wherever that is possible. Whether it was anywhere."""
    dearest_first = sorted(taken, key=lambda each: (-each.cost, each.key))
    parts = [dearest_first[start : start + size] for start in range(0, len(taken), size)]
    left_out = [part for part in parts if _does_without(part, taken, answers, is_bounded=is_bounded)]
    return bool(left_out)


def _does_without(part: Sequence[Option], taken: list[Option], answers: Answers, *, is_bounded: bool) -> bool:
    """Leave these out if the rest is enough."""
    for option in part:
        answers.ground.unchoose(option)
        taken.remove(option)
    is_enough = False
    try:
        is_enough = bool(taken) and answers.ground.fits() and answers.ask(taken, is_bounded=is_bounded)
    finally:
        if not is_enough:
            for option in part:
                answers.ground.choose(option)
                taken.append(option)
    return is_enough
