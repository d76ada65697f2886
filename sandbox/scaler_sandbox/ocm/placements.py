"""Open Cluster Management's placement: which ManagedClusters does a Placement select? PlacementDecisions say so.

| step         | what                                                                                               |
|--------------|----------------------------------------------------------------------------------------------------|
| predicates   | clusters with the labels of any `requiredClusterSelector`; all where there is none                 |
| taints       | without one of effect NoSelect that the Placement does not tolerate                                |
| prioritizers | the sum of weight x score of the AddOnPlacementScores in the cluster's namespace; expired ones: 0  |
| number       | the best `numberOfClusters`, all where that is not set                                             |

Decisions are ordered by name and say nothing of the order by score, as in the original. Left out: ManagedClusterSets
and their bindings, claims, built-in prioritizers, decision groups, and all conditions of a Placement but one.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import ClassVar

from scaler.kube.objects.resources import ADD_ON_PLACEMENT_SCORE, PLACEMENT_DECISION, Resource
from scaler_sandbox.actions import Action, Create, status_patch
from scaler_sandbox.conditions import make, parse_time, with_conditions
from scaler_sandbox.controller import Controller, soonest
from scaler_sandbox.kinds import MANAGED_CLUSTER, PLACEMENT, Json

DECISIONS_OF = "cluster.open-cluster-management.io/placement"
"""Label of PlacementDecisions, with the name of their Placement."""
_MOST_DECISIONS = 100
"""The most decisions of one PlacementDecision."""


def selected(placement: Json, clusters: Sequence[Json], scores: Iterable[Json], *, now: datetime) -> list[str]:
    """The names of the clusters that the Placement selects, in alphabetical order."""
    spec = placement["spec"]
    suitable = [_name(each) for each in clusters if _is_selected(spec, each) and _is_tolerated(spec, each)]
    points = dict.fromkeys(suitable, 0)
    valid = [each for each in scores if _is_valid(each, now)]
    for configuration in (spec.get("prioritizerPolicy") or {}).get("configurations") or ():
        add_on = configuration["scoreCoordinate"].get("addOn")
        for cluster in suitable if add_on else ():
            points[cluster] += configuration.get("weight", 1) * _score(valid, cluster, add_on)
    best = sorted(suitable, key=lambda name: (-points[name], name))
    return sorted(best[: spec.get("numberOfClusters", len(best))])


def _is_selected(spec: Json, cluster: Json) -> bool:
    labels = cluster["metadata"].get("labels") or {}
    predicates = spec.get("predicates") or ()
    return not predicates or any(
        all(labels.get(key) == value for key, value in _wanted_labels(predicate).items()) for predicate in predicates
    )


def _wanted_labels(predicate: Json) -> Json:
    selector = (predicate.get("requiredClusterSelector") or {}).get("labelSelector") or {}
    return dict(selector.get("matchLabels") or {})


def _is_tolerated(spec: Json, cluster: Json) -> bool:
    tolerated = {each.get("key") for each in spec.get("tolerations") or ()}
    taints = cluster["spec"].get("taints") or ()
    return all(each["key"] in tolerated for each in taints if each["effect"] == "NoSelect")


def _is_valid(score: Json, now: datetime) -> bool:
    until = parse_time((score.get("status") or {}).get("validUntil"))
    return until is None or now < until


def _score(scores: Iterable[Json], cluster: str, add_on: Json) -> int:
    for each in scores:
        if (each["metadata"]["namespace"], _name(each)) == (cluster, add_on["resourceName"]):
            values = {one["name"]: int(one["value"]) for one in each["status"].get("scores") or ()}
            return values.get(add_on["scoreName"], 0)
    return 0


def _name(body: Json) -> str:
    return str(body["metadata"]["name"])


class PlacementController(Controller):
    """Writes PlacementDecisions."""

    name: ClassVar[str] = "placement-controller"
    watched: ClassVar[tuple[Resource, ...]] = (MANAGED_CLUSTER, PLACEMENT, PLACEMENT_DECISION, ADD_ON_PLACEMENT_SCORE)

    async def tick(self, now: datetime) -> datetime | None:
        clusters, scores = self.client.all(MANAGED_CLUSTER), self.client.all(ADD_ON_PLACEMENT_SCORE)
        for placement in self.client.all(PLACEMENT):
            await self.act(self._plan(placement, selected(placement, clusters, scores, now=now), now))
        expiries = (parse_time((each.get("status") or {}).get("validUntil")) for each in scores)
        return soonest(each for each in expiries if each is not None and each > now)

    def _plan(self, placement: Json, names: list[str], now: datetime) -> list[Action]:
        groups = [names[at : at + _MOST_DECISIONS] for at in range(0, len(names), _MOST_DECISIONS)] or [[]]
        planned = [self._decision(placement, number, each) for number, each in enumerate(groups, 1)]
        satisfied = make("PlacementSatisfied", *_satisfied(names), now=now)
        status = placement.get("status") or {}
        conditions = with_conditions(status.get("conditions"), satisfied)
        shown = {**status, "numberOfSelectedClusters": len(names), "conditions": conditions}
        return [each for each in (*planned, status_patch(PLACEMENT, placement, shown)) if each is not None]

    def _decision(self, placement: Json, number: int, clusters: Sequence[str]) -> Action | None:
        namespace, of = placement["metadata"]["namespace"], _name(placement)
        name = f"{of}-decision-{number}"
        found = self.client.find(PLACEMENT_DECISION, namespace, name)
        status = {"decisions": [{"clusterName": each, "reason": ""} for each in clusters]}
        if found is not None:
            return status_patch(PLACEMENT_DECISION, found, status)
        owner = {
            "apiVersion": PLACEMENT.api_version,
            "kind": PLACEMENT.kind,
            "name": of,
            "uid": placement["metadata"]["uid"],
            "controller": True,
        }
        metadata = {"name": name, "namespace": namespace, "labels": {DECISIONS_OF: of}, "ownerReferences": [owner]}
        body = {"apiVersion": PLACEMENT_DECISION.api_version, "kind": PLACEMENT_DECISION.kind, "metadata": metadata}
        return Create(resource=PLACEMENT_DECISION, body=body)


def _satisfied(names: Sequence[str]) -> tuple[str, str, str]:
    if names:
        return "True", "AllDecisionsScheduled", "All cluster decisions scheduled"
    return "False", "NoManagedClusterMatched", "No ManagedCluster matches any of the cluster predicate"
