"""Which replicas shall a ScalableWorkload have that no KEDA scales? What KEDA does with an answer is done here.

| the answer | it is at | it is scaled to |
|------------|----------|-----------------|
| Inactive   | 1        | 0               |
| Active     | 0        | 1               |
| Unknown    | any      | –               |

Laws:

* The answer is the one that KEDA would get, from the DecisionCache: one that has expired is Unknown.
* It counts for the ScalableWorkload that it was decided on, by spec and annotations, and only while the API has it so:
  a scale-up, a wake-up or a keep of a moment ago wins.
* There is no cooldown: an answer of 0 comes after `idleAfter`, and an answer of 1 holds through the warm-up.
* What a ScaledObject scales is left to KEDA.
"""

from collections.abc import Mapping

import structlog

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Key
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import KubeError, MetadataError
from scaler.idleness.policy import Overrides
from scaler.kube.objects.core import ObjectMeta, decode
from scaler.kube.objects.direct_scaling import DirectScaling
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.kube.writes import PatchApi
from scaler.targets.cluster_state import ClusterState

log = structlog.get_logger(__name__)


def wanted_replicas(answer: Answer | None, replicas: int) -> int | None:
    """None where they stay."""
    match answer:
        case Inactive() if replicas:
            return 0
        case Active() if not replicas:
            return 1
        case _:
            return None


class DirectActuator:
    def __init__(self, api: PatchApi, cluster: ClusterState, decision_cache: DecisionCache) -> None:
        self._api, self._cluster, self._decision_cache = api, cluster, decision_cache

    async def scale(self, scalable: ScalableWorkload) -> None:
        """Scale it as the answer says. Raises: KubeError; 409 where that has to be decided again before."""
        key, asked = scalable.metadata.key, self._asked(scalable)
        if asked is None or wanted_replicas(self._decided(key, asked), scalable.spec.replicas) is None:
            return
        fresh = decode(ScalableWorkload, await self._api.get(SCALABLE_WORKLOAD.path(*key)))
        replicas = wanted_replicas(self._decision_cache.answer(*key, asked), fresh.spec.replicas)
        if replicas is None or not self._is_decided_on(fresh):
            raise KubeError(f"ScalableWorkload {'/'.join(key)} has changed, or its decision has expired", status=409)
        version = {"uid": fresh.metadata.uid, "resourceVersion": fresh.metadata.resource_version}
        await self._api.patch(SCALABLE_WORKLOAD.path(*key), {"metadata": version, "spec": {"replicas": replicas}})
        log.info("scaled directly", scalable_workload="/".join(key), replicas=replicas)

    def _asked(self, scalable: ScalableWorkload) -> Overrides | None:
        """What its metadata asks for; None where KEDA scales it, or that cannot be read."""
        scaling = self._cluster.scaled_object_of(scalable)
        if not isinstance(scaling, DirectScaling):
            return None
        try:
            return parse_metadata(scaling.spec.triggers[0].metadata)
        except MetadataError:
            return None

    def _entry(self, key: Key) -> EvaluatedScaledObject | None:
        evaluation = self._decision_cache.evaluation
        return evaluation.entries.get(key) if evaluation is not None else None

    def _decided(self, key: Key, asked: Overrides) -> Answer | None:
        """Whether or not it has expired."""
        entry = self._entry(key)
        decision = entry.triggers.get(asked) if entry is not None else None
        return decision.answer if decision is not None else None

    def _is_decided_on(self, fresh: ScalableWorkload) -> bool:
        entry = self._entry(fresh.metadata.key)
        decided_on = entry.decided_on if entry is not None else None
        return decided_on is not None and _asks(decided_on) == _asks(fresh.metadata)


def _asks(metadata: ObjectMeta) -> tuple[str, int, Mapping[str, str]]:
    return metadata.uid, metadata.generation, metadata.annotations
