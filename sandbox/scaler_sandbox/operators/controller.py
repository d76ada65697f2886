"""The loops around the plans: for every owner, its pods, and what follows from them."""

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from scaler.kube.objects.resources import DEPLOYMENT, JOB, POD, RAY_CLUSTER, RAY_JOB, Resource
from scaler_sandbox.actions import Action
from scaler_sandbox.client import Client
from scaler_sandbox.controller import Controller
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.jobs import queue_name
from scaler_sandbox.operators.deployment import plan_deployment
from scaler_sandbox.operators.job import plan_job
from scaler_sandbox.operators.pods import controller_uid, owned
from scaler_sandbox.operators.raycluster import plan_ray_cluster
from scaler_sandbox.operators.rayjob import plan_ray_job


class PodOwners(Controller):
    """All objects of one kind that own pods, or what owns these."""

    resource: ClassVar[Resource]
    owns: ClassVar[Resource] = POD
    plan: ClassVar[Callable[..., list[Action]]]
    """What an owner needs next; called with what it owns and the time."""

    def __init__(self, client: Client, *, waits_for_kueue: bool = True) -> None:
        """`waits_for_kueue`: leave a queued job alone that Kueue has not touched yet.

        On a real cluster Kueue's webhook has suspended such a job before a controller reads it. Without a webhook it
        could start before Kueue gets to it. Only for kinds that Kueue suspends.
        """
        super().__init__(client)
        self._waits_for_kueue = waits_for_kueue

    async def tick(self, now: datetime) -> datetime | None:
        owners = [owner for owner in self.client.all(self.resource) if self._is_ours(owner)]
        found = self.client.all(self.owns)
        done = await self.act(action for owner in owners for action in self.plan(owner, owned(found, owner), now=now))
        return now if done else None

    def _is_ours(self, owner: Json) -> bool:
        is_managed_elsewhere = bool(owner["spec"].get("managedBy"))
        return not (owner["metadata"].get("deletionTimestamp") or is_managed_elsewhere or self._is_kueues_turn(owner))

    def _is_kueues_turn(self, owner: Json) -> bool:
        is_untouched = owner["metadata"].get("generation", 1) == 1 and not owner["spec"].get("suspend")
        return self._waits_for_kueue and is_untouched and bool(queue_name(owner)) and not controller_uid(owner)


class RayClusterOperator(PodOwners):
    """KubeRay's part."""

    name: ClassVar[str] = "raycluster-operator"
    resource: ClassVar[Resource] = RAY_CLUSTER
    watched: ClassVar[tuple[Resource, ...]] = (RAY_CLUSTER, POD)
    plan = staticmethod(plan_ray_cluster)


class RayJobOperator(PodOwners):
    """KubeRay's other part."""

    name: ClassVar[str] = "rayjob-operator"
    resource: ClassVar[Resource] = RAY_JOB
    owns: ClassVar[Resource] = RAY_CLUSTER
    watched: ClassVar[tuple[Resource, ...]] = (RAY_JOB, RAY_CLUSTER)
    plan = staticmethod(plan_ray_job)


class JobController(PodOwners):
    """kube-controller-manager's part for Jobs."""

    name: ClassVar[str] = "job-controller"
    resource: ClassVar[Resource] = JOB
    watched: ClassVar[tuple[Resource, ...]] = (JOB, POD)
    plan = staticmethod(plan_job)


class DeploymentController(PodOwners):
    """kube-controller-manager's part for Deployments, which Kueue does not suspend."""

    name: ClassVar[str] = "deployment-controller"
    resource: ClassVar[Resource] = DEPLOYMENT
    watched: ClassVar[tuple[Resource, ...]] = (DEPLOYMENT, POD)

    def __init__(self, client: Client) -> None:
        super().__init__(client, waits_for_kueue=False)

    plan = staticmethod(plan_deployment)
