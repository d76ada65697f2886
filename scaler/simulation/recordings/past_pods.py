"""What kube-state-metrics said of pods in the past: owners, GPUs and queues. Where it says nothing, nothing is known.

| series                                     | says                                                            |
|--------------------------------------------|-----------------------------------------------------------------|
| `kube_pod_owner`                           | the pod's owner                                                 |
| `kube_replicaset_owner`, `kube_job_owner`  | the owner of that: a Deployment, a JobSet, …                    |
| `kube_pod_container_resource_requests`     | the GPUs that its containers request                            |
| `kube_pod_labels`                          | its queue, where kube-state-metrics is told to show that label  |

A day is asked for at a time, and kept. A series that there is at any time of the day counts. The Jobs of a CronJob are
workloads of their own, as they are in production.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from scaler.idleness.history import PodKey
from scaler.samples.promql import quoted
from scaler.simulation.recordings.past_samples import PastSource, write_whole
from scaler.simulation.recordings.recorded import NO_FACTS, PodFacts

_DAY = timedelta(days=1)
_QUEUE = "label_kueue_x_k8s_io_queue_name"
_GPUS = "kube_pod_container_resource_requests"
_QUERIES = {
    "pod_owner": "group by (namespace, pod, owner_kind, owner_name) (last_over_time(kube_pod_owner{{{more}}}[{span}]))",
    "replicaset_owner": "group by (namespace, replicaset, owner_kind, owner_name) "
    "(last_over_time(kube_replicaset_owner{{{more}}}[{span}]))",
    "job_owner": "group by (namespace, job_name, owner_kind, owner_name) "
    "(last_over_time(kube_job_owner{{{more}}}[{span}]))",
    "gpus": "sum by (namespace, pod) (max by (namespace, pod, container, resource) "
    '(max_over_time(kube_pod_container_resource_requests{{resource=~"{resources}"{comma}{more}}}[{span}])))',
    "queue": f"group by (namespace, pod, {_QUEUE}) "
    f'(last_over_time(kube_pod_labels{{{{{_QUEUE}!=""{{comma}}{{more}}}}}}[{{span}}]))',
}
_WITHOUT_OWNER = frozenset({"", "<none>"})
_PARENTS = {"ReplicaSet": "replicaset_owner", "Job": "job_owner"}
_NAMES = {"replicaset_owner": "replicaset", "job_owner": "job_name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastPods:
    source: PastSource
    folder: Path
    gpu_resources: Sequence[str]
    """As the settings name them; a trailing * matches any ending."""
    matchers: Mapping[str, str] = field(default_factory=dict)

    async def facts(self, begin: datetime, end: datetime, pods: Collection[PodKey]) -> dict[PodKey, PodFacts]:
        """Of these pods; what is said last counts. Raises: SourceError."""
        found: dict[PodKey, PodFacts] = {}
        for day in _days(begin, end):
            said = await self._day(day, min(day + _DAY, end))
            for key, facts in facts_of(said).items():
                if key in pods:
                    found[key] = found.get(key, NO_FACTS).updated(facts)
        return found

    async def _day(self, begin: datetime, end: datetime) -> dict[str, list[dict[str, str]]]:
        """The labels of each query's elements, and their value as `value`."""
        path = self._folder / f"{int(begin.timestamp())}-{int(end.timestamp())}.json"
        if path.exists():
            known: dict[str, list[dict[str, str]]] = json.loads(path.read_bytes())
            return known
        said = {}
        for name, template in _QUERIES.items():
            promql = self._query(template, end - begin)
            elements = await self.source.demand(promql, at=end)
            said[name] = [{**each.labels, "value": f"{each.value:g}"} for each in elements]
        await asyncio.to_thread(self._keep, path, said)
        return said

    @property
    def _folder(self) -> Path:
        """Another one where other resources are GPUs."""
        said = json.dumps(sorted(self.gpu_resources))
        return self.folder / f"pods-{hashlib.blake2b(said.encode(), digest_size=4).hexdigest()}"

    def _keep(self, path: Path, said: object) -> None:
        """In place of what was kept of the day while it was shorter."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(said).encode())
        for each in path.parent.glob(f"{path.stem.partition('-')[0]}-*.json"):
            if each != path:
                each.unlink(missing_ok=True)

    def _query(self, template: str, span: timedelta) -> str:
        more = ",".join(f"{name}={quoted(value)}" for name, value in self.matchers.items())
        return template.format(
            more=more, comma="," if more else "", span=f"{int(span.total_seconds())}s", resources=self._resources()
        )

    def _resources(self) -> str:
        """As kube-state-metrics writes them: `nvidia.com/gpu` is `nvidia_com_gpu`."""
        names = (re.sub(r"[^a-zA-Z0-9_*]", "_", each).replace("*", ".*") for each in self.gpu_resources)
        return "|".join(names)


def _days(begin: datetime, end: datetime) -> Iterator[datetime]:
    at = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    while at < end:
        yield at
        at += _DAY


Elements = Mapping[str, Sequence[Mapping[str, str]]]
"""The elements that each query gave, by its name."""
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
