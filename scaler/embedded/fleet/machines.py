"""What a node runs on: so many GPUs, and what its Node object will say of it. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scaler.core.nodes import Taint


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. Its kubelet registers it as the Node of the same name."""

    name: str
    gpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
