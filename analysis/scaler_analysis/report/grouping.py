"""What the rows of a report are."""

from enum import StrEnum


class GroupBy(StrEnum):
    TEAM = "team"
    """A namespace."""
    QUEUE = "queue"
    """A ClusterQueue."""
    MODEL = "model"
    WORKLOAD = "workload"
