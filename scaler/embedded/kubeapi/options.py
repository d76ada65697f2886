"""How shall a write or a delete be done? What a request says beside its body."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Writing:
    """How a write shall be done, and the warnings that it earned."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False
    """Take fields from other managers instead of reporting conflicts (apply only)."""
    field_validation: str = "Warn"
    """Unknown fields: Strict refuses, Warn drops and says so, Ignore drops."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """How a delete shall be done."""

    grace_seconds: int | None = None
    """How long a kubelet may take; None for what the pod itself says."""
    propagation: str = ""
    uid: str = ""
    """Precondition; empty for none."""
    resource_version: str = ""
    """Precondition; empty for none."""
    dry_run: bool = False
