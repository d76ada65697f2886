"""What kube-state-metrics said of pods in the past: owners, GPUs and queues. Where it says nothing, nothing is known.

| series                                     | says                                                            |
|--------------------------------------------|-----------------------------------------------------------------|
| `kube_pod_owner`                           | the pod's owner                                                 |
| `kube_replicaset_owner`, `kube_job_owner`  | the owner of that: a Deployment, a JobSet, …                    |
| `kube_pod_container_resource_requests`     | the GPUs that its containers request                            |
| `kube_pod_labels`                          | its queue, where kube-state-metrics is told to show that label  |

A series that there is at any time of a day counts. The Jobs of a CronJob are workloads of their own, as they are in
production.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

from scaler.idleness.history import PodKey
from scaler.samples.promql import selector
from scaler_analysis.simulation.recordings.past_days import Elements, PastDays
from scaler_analysis.simulation.recordings.recorded import NO_FACTS, PodFacts

_QUEUE = "label_kueue_x_k8s_io_queue_name"
_WITHOUT_OWNER = frozenset({"", "<none>"})
_PARENTS = {"ReplicaSet": "replicaset_owner", "Job": "job_owner"}
_NAMES = {"replicaset_owner": "replicaset", "job_owner": "job_name"}


async def past_facts(
    days: PastDays, begin: datetime, end: datetime, pods: Collection[PodKey]
) -> dict[PodKey, PodFacts]:
    """What is said of these pods; what is said last counts. Raises: SourceError."""
    found: dict[PodKey, PodFacts] = {}
    async for _, said in days.answers("pods", partial(_queries, days), begin, end):
        for key, facts in facts_of(said).items():
            if key in pods:
                found[key] = found.get(key, NO_FACTS).updated(facts)
    return found


def _queries(days: PastDays, span: str) -> dict[str, str]:
    every = selector(days.matchers)
    resources = "|".join(as_label(each).replace("*", ".*") for each in days.gpu_resources)
    gpus = selector(days.matchers, f'resource=~"{resources}"')
    queues = selector(days.matchers, f'{_QUEUE}!=""')
    return {
        "pod_owner": "group by (namespace, pod, owner_kind, owner_name) "
        f"(last_over_time(kube_pod_owner{every}[{span}]))",
        "replicaset_owner": "group by (namespace, replicaset, owner_kind, owner_name) "
        f"(last_over_time(kube_replicaset_owner{every}[{span}]))",
        "job_owner": "group by (namespace, job_name, owner_kind, owner_name) "
        f"(last_over_time(kube_job_owner{every}[{span}]))",
        "gpus": "sum by (namespace, pod) (max by (namespace, pod, container, resource) "
        f"(max_over_time(kube_pod_container_resource_requests{gpus}[{span}])))",
        "queue": f"group by (namespace, pod, {_QUEUE}) (last_over_time(kube_pod_labels{queues}[{span}]))",
    }


def as_label(resource: str) -> str:
    """The resource as kube-state-metrics writes it: `nvidia.com/gpu` is `nvidia_com_gpu`. A * stays."""
    return re.sub(r"[^a-zA-Z0-9_*]", "_", resource)


Owner = tuple[str, str]
"""(kind, name)"""


def facts_of(said: Elements) -> dict[PodKey, PodFacts]:
    """What the answers of a day say."""
    parents: dict[tuple[str, ...], Owner | tuple[()]] = {
        (each.get("namespace", ""), kind, each.get(_NAMES[query], "")): _named_owner(each)
        for kind, query in _PARENTS.items()
        for each in said[query]
    }
    found: dict[PodKey, PodFacts] = {}
    for each in said["pod_owner"]:
        found[_pod(each)] = PodFacts(owner="/".join(_topmost(each.get("namespace", ""), _named_owner(each), parents)))
    for each in said["gpus"]:
        found[_pod(each)] = replace(found.get(_pod(each), NO_FACTS), gpus=round(float(each["value"])))
    for each in said["queue"]:
        found[_pod(each)] = replace(found.get(_pod(each), NO_FACTS), queue=each[_QUEUE])
    return found


def _pod(labels: Mapping[str, str]) -> PodKey:
    return labels.get("namespace", ""), labels.get("pod", "")


def _named_owner(labels: Mapping[str, str]) -> Owner | tuple[()]:
    kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
    return () if kind in _WITHOUT_OWNER or not name else (kind, name)


def _topmost(
    namespace: str, owner: Owner | tuple[()], parents: Mapping[tuple[str, ...], Owner | tuple[()]]
) -> Owner | tuple[()]:
    """The owner of the owner, as far as that is known and is a workload; nothing where there is none."""
    for _ in range(_MOST_OWNERS):
        above = parents.get((namespace, *owner), ())
        if not above or above[0] == "CronJob":
            break
        owner = above
    return owner


_MOST_OWNERS = 5
"""One above the other: a pod, its Job, its JobSet, its TrainJob."""
