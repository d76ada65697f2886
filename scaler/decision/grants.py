"""A grant: what a reclaim plan writes into the status of each of its victims, the same on all."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Seeks(StrEnum):
    """What a plan frees for its gang."""

    QUOTA = "Quota"
    NODES = "Nodes"
    """Places on nodes: the gang holds its quota, and this program's AdmissionCheck is Pending until the gang fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The grant in the status of every victim of one plan, the same on each."""

    plan: str
    """Its id: the same plan made twice is the same grant."""
    gang: str
    """`namespace/name` of the Workload it is for."""
    gang_uid: str
    victims: tuple[str, ...]
    """`namespace/name` of all its ScalableWorkloads."""
    granted_at: datetime
    expires_at: datetime
    """Not after `granted_at`: it was withdrawn."""
    seeks: Seeks = Seeks.QUOTA
    check: str = ""
    """Name of the AdmissionCheck that holds the gang back, of one that seeks nodes."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether it suspends nothing any more. It stays for a moment all the same: KEDA may still act on an answer of
        0 that was given while the grant was active, and without any grant that 0 would look like an owner's request."""
        return self.expires_at <= self.granted_at

    @property
    def words(self) -> str:
        return f"plan {self.plan} for Workload {self.gang}"
