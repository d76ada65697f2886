"""What are the words of a ClusterOffer for how a Workload fits? The worker writes them, and the hub reads them."""

from enum import StrEnum


class Fit(StrEnum):
    FREE = "Free"
    RECLAIM = "Reclaim"
    NODES = "Nodes"
    WAIT = "Wait"
    NEVER = "Never"
    UNKNOWN = "Unknown"

    @classmethod
    def of(cls, word: str) -> "Fit":
        """The fit of that name; Unknown for the word of a worker that is newer than this hub."""
        try:
            return cls(word)
        except ValueError:
            return cls.UNKNOWN
