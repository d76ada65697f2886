"""An autoscaler with whims: what becomes of each ProvisioningRequest is diced when it is first seen.

| fate      | what it says                                      | nodes                                   |
|-----------|---------------------------------------------------|-----------------------------------------|
| enough    | Accepted, Provisioned, later perhaps BookingExpired | for all pods of the request, or late  |
| early     | the same, some seconds after the nodes have come  | for all pods of the request           |
| too few   | as enough                                         | one less than it needs, or none         |
| failed    | Accepted, Failed                                  | none                                    |
| silent    | nothing, for ever                                 | none                                    |
| revoked   | as enough, then CapacityRevoked                   | for all pods, and then they are gone    |

With a `label` nodes are for one request each: they carry its name, and the class's details tell it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from random import Random

from scaler_sandbox.actions import Action
from scaler_sandbox.autoscaler import requests as answers
from scaler_sandbox.autoscaler.requests import RequestStage, request_stage_of
from scaler_sandbox.kinds import Json
from sim.cluster import MEMORY, memory_of
from sim.random_ops import DETAIL, LABEL, SECOND, RandomOpsCluster, gpus_of

from scaler.kube.objects.resources import NODE, POD_TEMPLATE, PROVISIONING_REQUEST

_MOST_NODES = 4


@dataclass(slots=True, kw_only=True)
class Fate:
    name: str
    accepted_at: datetime
    decided_at: datetime
    provisioned_at: datetime
    nodes_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    ordered: int | None = None
    """Nodes that were ordered; None before that."""


class RandomAutoscaler:
    """The autoscaler of a RandomOpsCluster."""

    def __init__(self, cluster: RandomOpsCluster, chance: Random, *, revokes: bool, labels: bool) -> None:
        self._cluster = cluster
        self._chance = chance
        self._revokes = revokes
        self._labels = labels
        self._fates: dict[str, Fate] = {}
        self._coming: list[tuple[datetime, str, str]] = []
        """Nodes that were ordered: when each comes, its name and for which request it is."""
        self._nodes = 0
        self.is_honest = False
        """Whether requests that come from now on get what they ask for, soon."""
        cluster.add_part("autoscaler", self.turn, PROVISIONING_REQUEST)

    async def turn(self, now: datetime) -> datetime | None:
        for at, name, wanted_by in list(self._coming):
            if at <= now:
                self._coming.remove((at, name, wanted_by))
                self._cluster.add_node(name, 8, **({LABEL: wanted_by} if self._labels else {}))
                self._cluster.record(f"node {name} comes, with 8 GPUs")
        for request in self._cluster.client.all(PROVISIONING_REQUEST):
            await self._answer(request, now)
        return now + SECOND if self._fates or self._coming else None

    async def _answer(self, request: Json, now: datetime) -> None:
        fate = self._fates.setdefault(request["metadata"]["uid"], self._fate(now))
        stage, name = request_stage_of(request), request["metadata"]["name"]
        if stage is RequestStage.NEW and fate.accepted_at <= now and fate.name != "silent":
            await self._say(answers.accepted(request, eta=None, now=now), f"{name} is accepted")
        elif stage is RequestStage.ACCEPTED and fate.decided_at <= now:
            await self._decide(request, fate, now)
        elif stage is RequestStage.PROVISIONED and fate.revoked_at is not None and fate.revoked_at <= now:
            await self._say(answers.revoked(request, now=now), f"the capacity of {name} is revoked")
            self._take_back(name)
        elif stage is RequestStage.PROVISIONED and fate.expires_at is not None and fate.expires_at <= now:
            fate.expires_at = None
            await self._say(answers.expired(request, now=now), f"the booking of {name} expires")

    def _fate(self, now: datetime) -> Fate:
        dice = self._chance
        names = (
            ["enough"] * 5
            + ["early"] * 3
            + ["too few"] * 2 * (not self._labels)
            + ["failed"] * 3
            + ["silent"]
            + ["revoked"] * 2 * self._revokes
        )
        name = "enough" if self.is_honest else dice.choice(names)
        decided = now + dice.randrange(4) * SECOND
        said = decided + dice.randrange(2, 7) * SECOND * (name == "early")
        has_end = name == "too few" or (not self.is_honest and dice.random() < 0.5)
        return Fate(
            name=name,
            accepted_at=now + dice.randrange(3) * SECOND,
            decided_at=decided,
            provisioned_at=said,
            nodes_at=decided + dice.choice((0, 0, 2, 4)) * SECOND * (name != "early"),
            expires_at=said + dice.randrange(10) * SECOND if has_end else None,
            revoked_at=said + dice.randrange(2, 10) * SECOND if name == "revoked" else None,
        )

    async def _decide(self, request: Json, fate: Fate, now: datetime) -> None:
        name = request["metadata"]["name"]
        wanted = self._nodes_for(request)
        if fate.ordered is None:
            if fate.name == "failed" or self._nodes + wanted > _MOST_NODES:
                await self._say(answers.failed(request, "OutOfResources", "no such nodes", now=now), f"{name} fails")
                return
            fate.ordered = self._order(name, wanted, fate, now)
        if fate.provisioned_at <= now:
            details = {DETAIL: name} if self._labels else {}
            patch = answers.provisioned(request, added=bool(fate.ordered), details=details, now=now)
            await self._say(patch, f"{name} is provisioned: {fate.ordered} of {wanted} nodes")

    def _order(self, name: str, wanted: int, fate: Fate, now: datetime) -> int:
        """How many nodes come for the request of that name."""
        count = wanted if fate.name != "too few" else self._chance.choice((0, wanted - 1))
        for _ in range(count):
            self._nodes += 1
            self._coming.append((max(fate.nodes_at, now), f"new-{self._nodes}", name))
        return count

    def _nodes_for(self, request: Json) -> int:
        """Nodes of 8 GPUs for its pods, the largest first."""
        pods: list[tuple[int, int]] = []
        for each in request["spec"]["podSets"]:
            template = self._cluster.client.find(POD_TEMPLATE, "ns", each["podTemplateRef"]["name"])
            pod = template["template"] if template else {"spec": {"containers": []}}
            pods += [(gpus_of(pod), memory_of(pod))] * each["count"] if template else []
        rooms: list[tuple[int, int]] = []
        for gpus, memory in sorted(pods, reverse=True):
            at = next((at for at, room in enumerate(rooms) if room[0] >= gpus and room[1] >= memory), None)
            if at is None:
                at = len(rooms)
                rooms.append((8, MEMORY))
            rooms[at] = rooms[at][0] - gpus, rooms[at][1] - memory
        return len(rooms)

    def _take_back(self, request: str) -> None:
        self._coming = [each for each in self._coming if each[2] != request]
        mine = [node for node in self._cluster.client.all(NODE) if node["metadata"]["labels"].get(LABEL) == request]
        for node in mine or self._cluster.client.all(NODE)[-1:]:
            name = node["metadata"]["name"]
            if name.startswith("new-"):
                self._cluster.remove_node(name)

    async def _say(self, actions: Iterable[Action], words: str) -> None:
        for action in actions:
            await self._cluster.client.apply(action)
        self._cluster.record(words)
