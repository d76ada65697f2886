"""Everything about a world that can be chosen: what it consists of, and how long its things take."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from scaler.kube.objects.resources import Resource
from scaler_sandbox.autoscaler import AutoscalerConfig
from scaler_sandbox.fleet import FleetConfig
from scaler_sandbox.keda import KedaTiming
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.kueue import KueueConfig


class Component(StrEnum):
    """The controllers of a world. Whichever a real cluster has of its own is left out."""

    KUEUE = "kueue"
    RAY_CLUSTERS = "raycluster-operator"
    JOBS = "job-controller"
    DEPLOYMENTS = "deployment-controller"
    KUBELETS = "kubelets"
    KEDA = "keda"
    AUTOSCALER = "autoscaler"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """A world. The defaults take as long as the real thing would; `fast` makes a story of half a minute of it."""

    fleet: FleetConfig = field(default_factory=lambda: FleetConfig(nodes={"node-a": 1, "node-b": 1}))
    kueue: KueueConfig = field(default_factory=KueueConfig)
    kubelet: KubeletTiming = field(default_factory=KubeletTiming)
    keda: KedaTiming = field(default_factory=KedaTiming)
    autoscaler: AutoscalerConfig = field(default_factory=AutoscalerConfig)
    parts: frozenset[Component] = frozenset(Component)
    follows: tuple[Resource, ...] = ()
    """Kinds to look at (`World.find`, `World.all`) beyond those that the parts need."""
    schedules: bool = True
    """Whether pods are placed here, and not by a kube-scheduler."""
    namespaces: frozenset[str] = frozenset()
    """Only pods of these namespaces are bound here; empty: of all. For a shared, real cluster."""
    defines: bool = True
    """Whether CustomResourceDefinitions that are missing are installed."""
    kubeconfig: Path | None = None
    """A Kubernetes API to play in; None starts the embedded one."""
    host: str = "127.0.0.1"
    api_port: int = 0
    exporter_port: int = 0

    @classmethod
    def fast(
        cls, nodes: Mapping[str, int] | None = None, *, collect: timedelta = timedelta(seconds=1)
    ) -> "SandboxConfig":
        """Short waits, for a demo and for tests. Kueue keeps its own second, which is part of its behaviour."""
        base = cls()
        return replace(
            base,
            fleet=FleetConfig(nodes=dict(nodes or base.fleet.nodes), collect_seconds=collect.total_seconds()),
            kubelet=KubeletTiming(start_delay=timedelta(seconds=0.3), termination=timedelta(seconds=1)),
            keda=KedaTiming(polling=timedelta(seconds=0.5), push_backoff=timedelta(seconds=0.5)),
            autoscaler=AutoscalerConfig.fast(),
        )
