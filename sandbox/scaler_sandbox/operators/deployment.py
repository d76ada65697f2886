"""apps/v1 Deployment → pods, directly: as many as `spec.replicas` says. No ReplicaSets, and so no rolling updates."""

from datetime import datetime

from scaler.kube.objects.resources import DEPLOYMENT
from scaler_sandbox.actions import Action, status_patch
from scaler_sandbox.conditions import make, with_conditions
from scaler_sandbox.kinds import Json
from scaler_sandbox.operators.pods import create_pod, delete_pod, is_alive, is_ending, is_ready, is_terminal


def plan_deployment(deployment: Json, pods: list[Json], *, now: datetime) -> list[Action]:
    """What the Deployment needs next. `pods` are its own."""
    wanted = int(deployment["spec"].get("replicas", 1))
    alive = [pod for pod in pods if is_alive(pod)]
    ended: list[Action] = [delete_pod(deployment, pod) for pod in pods if is_terminal(pod) and not is_ending(pod)]
    surplus: list[Action] = [delete_pod(deployment, pod) for pod in _least_needed(alive)[: max(0, len(alive) - wanted)]]
    name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
    missing: list[Action] = [create_pod(deployment, name, template) for _ in range(wanted - len(alive))]
    status = status_patch(DEPLOYMENT, deployment, _status(deployment, alive, wanted, now=now))
    return [*ended, *surplus, *missing, *([status] if status else [])]


def _least_needed(alive: list[Json]) -> list[Json]:
    """Pods in the order in which they are given up: what does not run yet first, then the youngest."""
    youngest_first = list(reversed(alive))
    return [pod for pod in youngest_first if not is_ready(pod)] + [pod for pod in youngest_first if is_ready(pod)]


def _status(deployment: Json, alive: list[Json], wanted: int, *, now: datetime) -> Json:
    ready = sum(1 for pod in alive if is_ready(pod))
    available = (
        make("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.", now=now)
        if ready >= wanted
        else make("Available", "False", "MinimumReplicasUnavailable", "Deployment lacks replicas.", now=now)
    )
    status = deployment.get("status") or {}
    return {
        **status,
        "replicas": len(alive),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "updatedReplicas": len(alive),
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "conditions": with_conditions(status.get("conditions"), available),
    }
