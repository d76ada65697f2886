"""What must hold in a RandomOpsCluster, whatever happens. `LawBrokenError` says which law does not, and why.

| law                                                            | checked                                         |
|----------------------------------------------------------------|-------------------------------------------------|
| every pod of a gang with our check Ready finds a node          | after every turn of the scheduler               |
| all pods of all such gangs fit the nodes together              | after every tick of admission                   |
| the first in line is not delayed by gangs that become Ready    | after every tick that reads the present state   |
| nodes that came for an open request are not used without it    | after every tick that reads the present state   |
| an entry is written as Kueue's webhook and our table require   | at every patch                                  |
| no more requests than the policy allows, one at a time         | after every second                              |

None of them calls the code that it checks: nodes are found by trying all ways to place the pods.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from scaler_sandbox.autoscaler.requests import RequestStage, request_stage_of
from scaler_sandbox.conditions import condition, has
from scaler_sandbox.kinds import Json
from sim.cluster import CHECK, MEMORY, memory_of
from sim.random_ops import (
    Environment,
    RandomOpsCluster,
    gpus_of,
    is_ending,
    is_on_a_node,
    is_over,
    is_waiting,
    owner_uid,
)

from scaler.admission.check import CheckReason
from scaler.kube.objects.resources import NODE, POD, PROVISIONING_REQUEST, WORKLOAD

Pod = tuple[int, int, frozenset[tuple[str, str]]]
"""Its GPUs, its Gi of memory, and the node labels that it selects."""
Free = Mapping[str, tuple[int, int]]
"""GPUs and Gi of memory by node."""
_ANYWHERE: frozenset[tuple[str, str]] = frozenset()


class LawBrokenError(AssertionError):
    """A law does not hold."""


class Laws:
    """The laws of one run."""

    def __init__(self, cluster: RandomOpsCluster, env: Environment) -> None:
        self._cluster = cluster
        self._env = env
        self.strandings = 0
        """Pods that found no node, in all."""
        self._awaited: tuple[str, str] | None = None
        """Who is first in line, and would fit once pods have ended that end now."""
        self._promised: frozenset[str] = frozenset()
        """The uids of the Workloads whose pods could come at the last look."""
        self._stopped: dict[str, datetime] = {}
        """By uid of a Workload, the first look at which its pods could not come any more."""
        cluster.looked = self._after_look
        cluster.api.watch = self._of_patch  # type: ignore[attr-defined]

    def after_second(self) -> None:
        """Raises: LawBrokenError."""
        self._of_scheduling()
        if self._env.provisions:
            self._of_requests()

    # ---------------------------------------------------------------------------------------------------- promises

    def _of_scheduling(self) -> None:
        found, self._cluster.stranded = self._cluster.stranded, []
        self.strandings += len(found)
        if found and not self._env.is_shaky:
            worst = max(found, key=lambda each: each.is_half)
            half = "others of its gang are on nodes" if worst.is_half else "nor is another one of its gang on any"
            raise LawBrokenError(f"pod {worst.pod} finds no node although {worst.job} was released; {half}")

    def _after_look(self) -> None:
        if self._env.is_shaky or not self._cluster.reports:
            return
        report = self._cluster.report
        if report.released:
            self._of_promises()
        if not self._env.hurries:
            self._of_bookings({each.key for each in report.released if each.because is CheckReason.FITS})
        if not (self._env.hurries or self._env.provisions):
            waiting = {each.key: change.because for each, change in report.plan.changes if each.is_pending}
            self._of_turns({each.key for each in report.released}, waiting)

    def _of_promises(self) -> None:
        promised = [each for each in self._cluster.client.all(WORKLOAD) if is_promised(each)]
        pods = [pod for each in promised for pod in self._owed(each)]
        if not fit(pods, self._free(), self._labels()):
            names = ", ".join(each["metadata"]["name"] for each in promised)
            raise LawBrokenError(f"places are promised twice: not all pods of {names} have some in {self._free()}")

    def _of_bookings(self, opened: set[str]) -> None:
        """A gang released without a booking while its request is open fits beside the nodes that came since.

        Unless these have been there for a minute.
        """
        for workload in self._cluster.client.all(WORKLOAD) if opened else ():
            made = [created_at(each) for each in self._open_requests(workload)]
            if _key(workload) in opened and made:
                new = {
                    each["metadata"]["name"] for each in self._cluster.client.all(NODE) if self._is_new(each, min(made))
                }
                old = {name: free for name, free in self._free().items() if name not in new}
                if not fit(self._owed(workload), old, self._labels()):
                    raise LawBrokenError(f"{_key(workload)} uses {new} before its request has booked them")

    def _open_requests(self, workload: Json) -> list[Json]:
        """Those of its present reservation: one of an earlier one is to be deleted, and books nothing for it."""
        mine = workload["metadata"]["uid"], (condition(workload, "QuotaReserved") or {}).get("lastTransitionTime")
        return [
            each
            for each in self._cluster.client.all(PROVISIONING_REQUEST)
            if mine == (_label(each, "workload-uid"), each["metadata"]["annotations"]["idlegpu.io/reserved-at"])
            and request_stage_of(each) in (RequestStage.NEW, RequestStage.ACCEPTED)
        ]

    def _is_new(self, node: Json, since: datetime) -> bool:
        created = created_at(node)
        return created > since and self._cluster.client.now - created < timedelta(minutes=1)

    def _of_turns(self, opened: set[str], waiting: Mapping[str, CheckReason]) -> None:
        """Of the first in line. Once it is seen to fit as soon as pods have ended, no other may change that.

        One that fits only if every pod goes to one certain node waits for more room, and keeps nothing.
        """
        has_just_stopped = self._has_just_stopped()
        line = [each for each in self._cluster.client.all(WORKLOAD) if _key(each) in opened or _is_held_back(each)]
        first = min(line, key=_turn, default=None)
        if first is None or waiting.get(_key(first), CheckReason.NOT_GUARANTEED) is CheckReason.NOT_GUARANTEED:
            self._awaited = None
            return
        theirs = [pod for each in line if _key(each) in opened for pod in self._owed(each)]
        fits = fit([*self._owed(first), *theirs], self._once_ended(), self._labels())
        if self._awaited == _turn(first) and not fits:
            raise LawBrokenError(
                f"{_key(first)} is first in line and would fit soon, and {', '.join(opened) or 'others'} delay it"
            )
        if not (has_just_stopped or self._is_anybody_coming(opened)):
            self._awaited = _turn(first) if fits else None

    def _has_just_stopped(self) -> bool:
        """Whether a Workload has stopped so shortly before that its job may still make pods, as far as is known."""
        now, workloads = self._cluster.client.now, self._cluster.client.all(WORKLOAD)
        promised = frozenset(each["metadata"]["uid"] for each in workloads if is_promised(each))
        found = self._stopped | dict.fromkeys(self._promised - promised, now)
        recent = {uid: at for uid, at in found.items() if now - at <= self._cluster.afterwards}
        self._stopped = {uid: at for uid, at in recent.items() if uid not in promised}
        self._promised = promised
        return bool(self._stopped)

    def _is_anybody_coming(self, opened: set[str]) -> bool:
        """Whether pods may be on their way of others than those that were released just now.

        One that has succeeded may be followed by another one: only its job knows.
        """
        workloads, pods = self._cluster.client.all(WORKLOAD), self._cluster.client.all(POD)
        is_owed = any(self._owed(each) for each in workloads if is_promised(each) and _key(each) not in opened)
        unfinished = {owner_uid(each) for each in workloads if is_promised(each)}
        return is_owed or any(is_waiting(pod) or (is_over(pod) and owner_uid(pod) in unfinished) for pod in pods)

    def _labels(self) -> dict[str, Json]:
        return {body["metadata"]["name"]: body["metadata"]["labels"] for body in self._cluster.client.all(NODE)}

    def _free(self) -> dict[str, tuple[int, int]]:
        memory = self._cluster.free_memory()
        return {node: (gpus, memory[node]) for node, gpus in self._cluster.free().items()}

    def _once_ended(self) -> dict[str, tuple[int, int]]:
        """What will be free by node once the pods have ended that end now."""
        free = self._free()
        for pod in self._cluster.client.all(POD):
            if is_ending(pod) and is_on_a_node(pod):
                gpus, memory = free[pod["spec"]["nodeName"]]
                free[pod["spec"]["nodeName"]] = gpus + gpus_of(pod), memory + memory_of(pod)
        return free

    def _owed(self, workload: Json) -> list[Pod]:
        """Its pods that are not on nodes yet, and have not been."""
        uid = owner_uid(workload)
        there = [pod for pod in self._cluster.client.all(POD) if owner_uid(pod) == uid and not is_ending(pod)]
        bound = Counter(_pod_set(pod) for pod in there if is_on_a_node(pod) or is_over(pod))
        found: list[Pod] = []
        for pod_set in workload["spec"]["podSets"]:
            template = pod_set["template"]
            pod = gpus_of(template), memory_of(template), _selected(workload, pod_set["name"])
            found += [pod] * (pod_set["count"] - bound[pod_set["name"]])
        return found

    # ------------------------------------------------------------------------------------------------------ entries

    def _of_patch(self, path: str, body: Mapping[str, Any]) -> None:
        entries = (body.get("status") or {}).get("admissionChecks")
        if "/workloads/" not in path or entries is None:
            return
        workload = self._cluster.api.object_at(path.removesuffix("/status"))[1]
        if workload["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
            return  # It is refused.
        before = {each["name"]: each for each in workload["status"].get("admissionChecks") or ()}
        for entry in entries:
            old = before.get(entry["name"])
            if old is None:
                raise LawBrokenError(f"{path}: an entry is made that Kueue has not made")
            if entry["name"] == CHECK:
                _of_entry(path, workload, old, entry)
            elif entry != old:
                raise LawBrokenError(f"{path}: the entry of {entry['name']}, which is not ours, is changed")

    # ----------------------------------------------------------------------------------------------------- requests

    def _of_requests(self) -> None:
        open_: Counter[str] = Counter()
        for request in self._cluster.client.all(PROVISIONING_REQUEST):
            metadata = request["metadata"]
            if int(metadata["annotations"]["idlegpu.io/attempt"]) > self._env.attempts:
                raise LawBrokenError(f"{metadata['name']} is one more than the policy allows")
            is_lost = any(has(request, kind) for kind in ("Failed", "BookingExpired", "CapacityRevoked"))
            open_[metadata["labels"]["idlegpu.io/workload-uid"]] += not (is_lost or self._has_booked_for_long(request))
        crowded = next((uid for uid, count in open_.items() if count > 1), None)
        if crowded is not None:
            raise LawBrokenError(f"{open_[crowded]} requests are open at the same time for the gang {crowded}")

    def _has_booked_for_long(self, request: Json) -> bool:
        """Whether it was provisioned ten minutes ago, so that Cluster Autoscaler no longer books for it."""
        provisioned = condition(request, "Provisioned")
        if provisioned is None or provisioned["status"] != "True":
            return False
        return self._cluster.client.now - datetime.fromisoformat(provisioned["lastTransitionTime"]) >= timedelta(
            minutes=10
        )


def _of_entry(path: str, workload: Json, old: Json, new: Json) -> None:
    is_held = has(workload, "QuotaReserved") and not (has(workload, "Evicted") or has(workload, "Finished"))
    if not is_held or not workload["spec"].get("active", True):
        raise LawBrokenError(f"{path}: {new['state']} is said of one that holds no quota, or has to go")
    if old["state"] == "Ready" and new["state"] != "Retry":
        raise LawBrokenError(f"{path}: Ready becomes {new['state']}")
    if new["state"] not in ("Pending", "Ready", "Retry"):
        raise LawBrokenError(f"{path}: {new['state']} is said")


# ------------------------------------------------------------------------------------------------------- arithmetic


def created_at(body: Json) -> datetime:
    return datetime.fromisoformat(body["metadata"]["creationTimestamp"])


def is_promised(workload: Json) -> bool:
    """Whether it was released and is not evicted: its pods may come as soon as all other checks are Ready."""
    if has(workload, "Finished") or has(workload, "Evicted") or not workload["spec"].get("active", True):
        return False
    states = {each["name"]: each["state"] for each in workload["status"].get("admissionChecks") or ()}
    return has(workload, "Admitted") or (states.get(CHECK) == "Ready" and has(workload, "QuotaReserved"))


def _is_held_back(workload: Json) -> bool:
    """Whether it has quota, and our check has not let it go."""
    is_over = has(workload, "Finished") or has(workload, "Evicted") or not workload["spec"].get("active", True)
    return has(workload, "QuotaReserved") and not is_over and not is_promised(workload)


def _label(body: Json, name: str) -> str:
    return str(body["metadata"]["labels"][f"idlegpu.io/{name}"])


def _key(workload: Json) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"


def _turn(workload: Json) -> tuple[str, str]:
    """By which it stands in line."""
    reserved = condition(workload, "QuotaReserved") or {}
    return str(reserved.get("lastTransitionTime")), workload["metadata"]["uid"]


def _pod_set(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get("kueue.x-k8s.io/podset"))


def _selected(workload: Json, pod_set: str) -> frozenset[tuple[str, str]]:
    """The node labels that checks make its pods select."""
    updates = [
        update.get("nodeSelector") or {}
        for entry in workload["status"].get("admissionChecks") or ()
        for update in entry.get("podSetUpdates") or ()
        if update["name"] == pod_set and entry["state"] == "Ready"
    ]
    return frozenset(item for each in updates for item in each.items())


def fits_nodes(pods: Iterable[tuple[int, int]], memory: int, nodes: Mapping[str, int]) -> bool:
    """Whether so many pods of so many GPUs each, and of so much memory, fit these nodes."""
    wanted = [(gpus, memory, _ANYWHERE) for count, gpus in pods for _ in range(count)]
    return fit(wanted, {name: (gpus, MEMORY) for name, gpus in nodes.items()}, {name: {} for name in nodes})


def fit(pods: Iterable[Pod], free: Free, labels: Mapping[str, Json]) -> bool:
    """Whether there is a way to give every pod a node: by trying all of them, the largest pod first."""
    queue = sorted(
        (each for each in pods if each[0] or each[1]), key=lambda each: (-each[0], -each[1], sorted(each[2]))
    )
    return _placed(queue, dict(free), labels)


def _placed(queue: Sequence[Pod], left: dict[str, tuple[int, int]], labels: Mapping[str, Json]) -> bool:
    if not queue:
        return True
    gpus, memory, selected = queue[0]
    tried = set()
    for node, (room, space) in left.items():
        alike = room, space, tuple(sorted(labels[node].items())) if any(each for _, _, each in queue) else ()
        is_full = room < gpus or space < memory
        if is_full or alike in tried or any(labels[node].get(key) != value for key, value in selected):
            continue
        tried.add(alike)
        if _placed(queue[1:], {**left, node: (room - gpus, space - memory)}, labels):
            return True
    return False
