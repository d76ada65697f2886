"""At most so many names, whoever invents new ones.

A label of a metric keeps its series for as long as the process lives, so the first names that come keep their place:
were it given to others later, counters would go on under a name that is not theirs.
"""

OTHERS = "(others)"
"""What names are called for which there is no place. No Kubernetes object can have this name."""


class BoundedNames:
    """Remembers the first `limit` names. The empty name needs no place."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()
        self._folded: set[str] = set()

    @property
    def folded(self) -> int:
        """How many names there was no place for; counted up to ten times the limit."""
        return len(self._folded)

    def of(self, name: str) -> str:
        """The name itself, or `(others)`."""
        if not name or name in self._known:
            return name
        if len(self._known) < self._limit:
            self._known.add(name)
            return name
        if len(self._folded) < 10 * self._limit:
            self._folded.add(name)
        return OTHERS
