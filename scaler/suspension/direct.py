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
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.kube.writes import PatchApi
from scaler.targets.cluster_state import ClusterState

log = structlog.get_logger(__name__)


def wanted_replicas(answer: Answer | None, replicas: int) -> int | None:
    """The replicas that the answer asks for; None where they stay."""
    match answer:
        case Inactive() if replicas:
            return 0
        case Active() if not replicas:
            return 1
        case _:
            return None


async def scale_directly(
    api: PatchApi, cluster: ClusterState, decision_cache: DecisionCache, scalable: ScalableWorkload
) -> None:
    """Scale it as the answer says. Raises: KubeError; 409 where that has to be decided again before."""
    key, asked = scalable.metadata.key, _asked(next(iter(cluster.scaled_objects_of(scalable)), None))
    entry = _entry(decision_cache, key)
    decision = entry.triggers.get(asked) if entry is not None and asked is not None else None
    if asked is None or decision is None or wanted_replicas(decision.answer, scalable.spec.replicas) is None:
        return
    fresh = decode(ScalableWorkload, await api.get(SCALABLE_WORKLOAD.path(*key)))
    replicas = wanted_replicas(decision_cache.answer(*key, asked), fresh.spec.replicas)
    decided_on = entry.decided_on if (entry := _entry(decision_cache, key)) is not None else None
    if replicas is None or decided_on is None or _identity(decided_on) != _identity(fresh.metadata):
        raise KubeError(f"ScalableWorkload {'/'.join(key)} has changed, or its decision has expired", status=409)
    version = {"uid": fresh.metadata.uid, "resourceVersion": fresh.metadata.resource_version}
    await api.patch(SCALABLE_WORKLOAD.path(*key), {"metadata": version, "spec": {"replicas": replicas}})
    log.info("scaled directly", scalable_workload="/".join(key), replicas=replicas)


def _asked(scaled_by: ScaledObject | None) -> Overrides | None:
    """What its metadata asks for; None where KEDA scales it, or that cannot be read."""
    if not isinstance(scaled_by, DirectScaling):
        return None
    try:
        return parse_metadata(scaled_by.spec.triggers[0].metadata)
    except MetadataError:
        return None


def _entry(decision_cache: DecisionCache, key: Key) -> EvaluatedScaledObject | None:
    """What was decided last, whether or not it has expired."""
    evaluation = decision_cache.evaluation
    return evaluation.entries.get(key) if evaluation is not None else None


def _identity(metadata: ObjectMeta) -> tuple[str, int, Mapping[str, str]]:
    """Spec and annotations are the same where this is."""
    return metadata.uid, metadata.generation, metadata.annotations
