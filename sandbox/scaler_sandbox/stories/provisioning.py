"""The third act: a gang of 16 GPUs takes 8 that sit idle, and asks for one more node for the rest.

| node | GPUs | held by                                                                              |
|------|------|--------------------------------------------------------------------------------------|
| n1   | 8    | jupyter-1 (4, idle), jupyter-2 (4, idle): their pods take 3 s to end                 |
| n2   | 8    | train (8, works)                                                                     |
| –    | 8    | a node that does not exist: three teams may have 24 GPUs, and there are nodes for 16 |

The gang is four pods of 4 GPUs each. Quota for 8 is left, so both notebooks are suspended; then Kueue reserves the
gang's quota at once, while their pods still run. Our AdmissionCheck holds the gang back: first until these pods have
really ended, then until the node is there that it asks an autoscaler for. No pod of it starts before all four can.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from scaler.kube.objects.resources import ADMISSION_CHECK, NODE, PROVISIONING_REQUEST
from scaler_sandbox.autoscaler import QUEUED_PROVISIONING, AutoscalerConfig, Scenario, Shape
from scaler_sandbox.conditions import has, message_of
from scaler_sandbox.job_manifests import admission_check, reclaim_policy
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet.pod_lifecycle import TERMINATION
from scaler_sandbox.stories.facts import ActOutcome, Gang
from scaler_sandbox.stories.gang_story import COHORT, NAMESPACE, GangStory, RunningJob, queues

NODES = {"n1": 8, "n2": 8}
TEAMS = {"team-a": 8, "team-b": 8, "team-c": 8}
HOLDERS = (
    RunningJob(name="jupyter-1", team="team-a", gpus=4, annotations={TERMINATION: "3s"}),
    RunningJob(name="jupyter-2", team="team-a", gpus=4, annotations={TERMINATION: "3s"}),
    RunningJob(name="train", team="team-b", gpus=8, works=True),
)
EXPECTED = frozenset({"jupyter-1", "jupyter-2"})
CHECK, POLICY = "whole-or-not", "reuse-then-provision"
_TRAINS_SECONDS = 2.0
"""Long enough for a partial start to show."""
AUTOSCALER = AutoscalerConfig(
    scenarios=[
        Scenario(
            provisioning_class=QUEUED_PROVISIONING,
            accepted_after=timedelta(seconds=0.5),
            tells_eta=True,
            provisioned_after=timedelta(seconds=4),
            shape=Shape(name="n-queued", gpus=8),
            counts_free=False,
        )
    ]
)
"""Seconds instead of many minutes."""


def checks() -> list[Json]:
    """The AdmissionCheck, and the policy that it follows: idle GPUs first, and nodes for whatever is missing then."""
    provisioning = {"className": QUEUED_PROVISIONING, "amount": "Missing", "managedResources": ["nvidia.com/gpu"]}
    return [reclaim_policy(POLICY, {"provisioning": provisioning}), admission_check(CHECK, POLICY)]


@dataclass(kw_only=True)
class ProvisioningStory(GangStory):
    """One telling. The world must follow ProvisioningRequests and Nodes, too, and have an autoscaler."""

    gang: ClassVar[str] = "huge-gang"

    _requests: dict[str, str] = field(default_factory=dict, init=False)
    """The last condition reported of every ProvisioningRequest, by name."""
    _nodes: set[str] = field(default_factory=lambda: set(NODES), init=False)
    _broken: str = field(default="", init=False)
    """How the gang was seen to start in part."""

    def outcome(self, took: float) -> ActOutcome:
        gpus = self._gpus_by_origin()
        return ActOutcome(
            ok=True,
            figures={"seconds_from_waiting_to_admitted_with_a_new_node": took, "gpus": dict(gpus)},
            summary=f"From the gang of 16's waiting to its admission: {took:.1f} s, on {gpus['reused']} GPUs that were "
            f"idle and {gpus['provisioned']} on a new node.",
        )

    async def play(self) -> None:
        await self.world.apply([*checks(), *queues(TEAMS, checks={"team-c": [CHECK]})])
        await self.start(HOLDERS)
        self.say("Begins", f"Cohort/{COHORT}", "Filled", "quota for 24 GPUs, nodes for 16: 8 of them work, 8 are idle")
        await self.idle_keeps_running(sorted(EXPECTED), "two notebooks")
        await self.until(lambda: self.world.condition(ADMISSION_CHECK, "", CHECK, "Active"), "the check to be active")
        await self.submit(self.gang, "team-c", gpus=4, pods=4)
        self.say(
            "Submitted", f"Job/{self.gang}", "Created", "four pods of 4 GPUs each: 8 GPUs are idle, 8 do not exist"
        )
        await self.begin_to_wait()
        await self.until(lambda: self.state(self.gang).reserved, "the gang to get its quota")
        await self.until(lambda: self._requests, "nodes to be asked for")
        await self.until(lambda: self._nodes > NODES.keys(), "the node to come")
        await self.until(lambda: self.state(self.gang).admitted, "the gang to be admitted")
        await self.run_of(self.gang)
        self.world.fleet.set_activity(NAMESPACE, f"{self.gang}-*", 0.9, noise=0.05)
        self.say("Trains", f"Job/{self.gang}", "Training", "all sixteen GPUs work")
        await asyncio.sleep(_TRAINS_SECONDS)
        self._all_is_well()

    def _all_is_well(self) -> None:
        """Raises: TimeoutError where it is not as it should be."""
        if frozenset(self.victims) != EXPECTED:
            raise TimeoutError(f"the plan took {', '.join(self.victims)}, not {', '.join(sorted(EXPECTED))}")
        if self._broken:
            raise TimeoutError(self._broken)
        if (gpus := self._gpus_by_origin()) != {"reused": 8, "provisioned": 8}:
            raise TimeoutError(f"the gang runs on {dict(gpus)} GPUs, not on 8 of each")
        if len(self._nodes) != len(NODES) + 1:
            raise TimeoutError(f"{len(self._nodes) - len(NODES)} nodes were added, not one")
        if stopped := self.stopped(["train", self.gang]):
            raise TimeoutError(f"{' and '.join(stopped)} stopped although the plan did not name them")
        self.say(
            "Untouched", f"Cohort/{COHORT}", "OthersRun", "8 GPUs reused, 8 provisioned; the training keeps running"
        )

    # ------------------------------------------------------------------------------------------------- what is seen

    def look(self) -> None:
        super().look()
        for request in self.world.all(PROVISIONING_REQUEST, NAMESPACE):
            self._see_request(request)
        for node in self.world.all(NODE):
            self._see_node(node["metadata"]["name"])

    def changed(self, before: Gang, now: Gang) -> None:
        where = f"Job/{now.name}"
        if now.name == self.gang and now.pods and not now.admitted:
            self._broken = f"{now.pods} pods of {self.gang} were there before all could be"
        if now.name == self.gang and now.reserved and not before.reserved:
            self.say("Reserved", where, "QuotaReserved", "Kueue reserves its quota, whatever pods still end")
        if now.held_because and now.held_because != before.held_because:
            self.say("Held", where, CHECK, now.held_because)
        super().changed(before, now)

    def _see_request(self, request: Json) -> None:
        name = request["metadata"]["name"]
        event, message = _state_of(request)
        if self._requests.get(name) != event:
            self._requests[name] = event
            self.say(event, f"ProvisioningRequest/{name}", event, message)

    def _see_node(self, name: str) -> None:
        if name not in self._nodes:
            self._nodes.add(name)
            self.say("NodeAdded", f"Node/{name}", "Registered", "the autoscaler has added a node with 8 GPUs")

    def _gpus_by_origin(self) -> Counter[str]:
        """GPUs of the gang's running pods, on nodes that were there and on those that were added."""
        gpus: Counter[str] = Counter()
        for pod in self.pods_of(self.gang):
            if (pod.get("status") or {}).get("phase") == "Running":
                gpus["reused" if pod["spec"]["nodeName"] in NODES else "provisioned"] += 4
        return gpus


def _state_of(request: Json) -> tuple[str, str]:
    """What is the latest of the request, as an event and in words."""
    pods = sum(pod_set["count"] for pod_set in request["spec"]["podSets"])
    if has(request, "Provisioned"):
        return "Provisioned", "there are nodes for all that was asked for"
    if has(request, "Accepted"):
        return "Accepted", message_of(request, "Provisioned") or message_of(request, "Accepted")
    return "Asked", f"asks {request['spec']['provisioningClassName']} for nodes for {pods} pods"
