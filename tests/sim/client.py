"""The objects of a SimCluster, as the sandbox's controllers read and write them: in memory, on a virtual clock.

Every write shows at once, and none fails but those of Workloads that admission denies.

It keeps to what controllers rely on: uids, resourceVersions with conflicts, generations of specs, and a status that
only its subresource changes. Like the real client it hands out the objects that it keeps: no caller changes them. Pods
are named by number, so that the same run gives the same names. The HTTP client is tested in test_sandbox.
"""

import copy
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from scaler_sandbox.actions import Action, Bind, Create, Delete, Patch, RecordEvent
from scaler_sandbox.conditions import condition, timestamp
from scaler_sandbox.controller import Controller
from scaler_sandbox.kinds import Json
from scaler_sandbox.multikueue.webhook import WorkloadAdmission

from scaler.errors import KubeError
from scaler.kube.objects.resources import POD, WORKLOAD, Resource

START = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


class AtOnce(ThreadPoolExecutor):
    """Does what it is given there and then: a run of virtual time waits for nothing, and threads cost more."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class SimClient:
    """Stands in for `scaler_sandbox.client.Client`."""

    def __init__(self) -> None:
        self.now = START
        self.notes: list[RecordEvent] = []
        self.history: list[Json] = []
        """Every version of every object."""
        self.meddle: Callable[[Action], None] = lambda _: None
        """What others do right after a controller's write."""
        self.uids: dict[str, str] = {}
        """By name, those that new objects get."""
        self.admission: WorkloadAdmission | None = None
        """What policies and webhooks do to writes of Workloads."""
        self._objects: dict[Resource, dict[tuple[str, str], Json]] = {}
        self._sorted: dict[Resource, list[Json]] = {}
        self._listeners: dict[Resource, list[Callable[[], None]]] = {}
        self._revision = 0
        self._removals = 0
        self._uids = 0
        self._pods = 0

    # ------------------------------------------------------------------------------------- what a controller may call

    def all(self, resource: Resource) -> list[Json]:
        found = self._sorted.get(resource)
        if found is None:
            found = [body for _, body in sorted(self._objects.get(resource, {}).items())]
            self._sorted[resource] = found
        return found.copy()

    def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return self._objects.get(resource, {}).get((namespace, name))

    def listen(self, resources: Sequence[Resource], wake: Callable[[], None]) -> Callable[[], None]:
        for resource in resources:
            self._listeners.setdefault(resource, []).append(wake)
        return lambda: None

    async def record(self, _about: Json, note: RecordEvent) -> None:
        self.notes.append(note)

    async def apply(self, action: Action) -> bool:
        if not self._do(action):
            return isinstance(action, Create)
        self.notes.extend(action.notes)
        self.meddle(action)
        return True

    def _do(self, action: Action) -> bool:
        match action:
            case Create():
                return self._create(action.resource, self._named(action))
            case Patch():
                return self._patch(action)
            case Delete():
                return self._delete(action)
            case Bind():
                body = {"spec": {"nodeName": action.node}, "metadata": {"annotations": action.annotations}}
                return self._patch(Patch(resource=POD, observed=action.pod, body=body))

    def _named(self, action: Create) -> Json:
        """What is to be created; a pod of a controller with a number where its name has something random."""
        if action.resource is not POD:
            return action.body
        self._pods += 1
        metadata = action.body["metadata"]
        return {**action.body, "metadata": {**metadata, "name": f"{metadata['name'].rsplit('-', 1)[0]}-{self._pods}"}}

    def _create(self, resource: Resource, body: Json) -> bool:
        if _key(body) in self._objects.get(resource, {}):
            return False
        metadata = {
            **body["metadata"],
            "uid": body["metadata"].get("uid") or self.uids.get(body["metadata"]["name"]) or self._next_uid(),
            "creationTimestamp": timestamp(self.now),
            "generation": 1,
        }
        initial = {"phase": "Pending"} if resource is POD else {}
        self._put(resource, {"spec": {}, "status": initial, **copy.deepcopy(body), "metadata": metadata})
        return True

    def _next_uid(self) -> str:
        """One that is greater than those before it: Kueue orders by uid what is of the same second."""
        self._uids += 1
        return str(uuid.UUID(int=self._uids << 80, version=4))

    def _patch(self, action: Patch, *, dry_run: bool = False) -> bool:
        current = self._current(action.resource, action.observed)
        if current is None:
            return False
        body = {key: value for key, value in action.body.items() if key == "status" or action.subresource != "status"}
        if action.subresource != "status":
            body.pop("status", None)
        changed: Json = merged(current, copy.deepcopy(body))
        if changed["spec"] != current["spec"]:
            metadata = changed["metadata"]
            changed["metadata"] = {**metadata, "generation": metadata["generation"] + 1}
        if action.resource is WORKLOAD:
            changed = self._admitted(current, changed)
        if changed != current and not dry_run:
            self._put(action.resource, changed)
        return True

    def _admitted(self, old: Json, new: Json) -> Json:
        """The Workload as policies, rules and webhooks let it in. Raises: KubeError."""
        if self.admission is None:
            return new
        new = self.admission.mutated(old, new)
        cluster, nominated = new["status"].get("clusterName"), new["status"].get("nominatedClusterNames")
        if cluster and nominated:
            message = "clusterName and nominatedClusterNames are mutually exclusive"
            raise KubeError(f"is invalid: status: Invalid value: {message}", status=422, reason="Invalid")
        if why := self.admission.refusal(old, new):
            raise KubeError(why, status=403, reason="Forbidden")
        return new

    def _delete(self, action: Delete) -> bool:
        current = self._current(action.resource, action.observed, same_revision=False)
        if current is None:
            return False
        if action.resource is POD and action.grace_seconds != 0 and current["spec"].get("nodeName"):
            ending = {"deletionTimestamp": timestamp(self.now), "deletionGracePeriodSeconds": 30}
            self._put(POD, {**current, "metadata": {**current["metadata"], **ending}})
        else:
            self.remove(action.resource, *_key(current))
        return True

    def _current(self, resource: Resource, observed: Json, *, same_revision: bool = True) -> Json | None:
        current = self.find(resource, *_key(observed))
        if current is None or current["metadata"]["uid"] != observed["metadata"]["uid"]:
            return None
        is_same = current["metadata"]["resourceVersion"] == observed["metadata"]["resourceVersion"]
        return current if is_same or not same_revision else None

    def _put(self, resource: Resource, body: Json) -> None:
        self._revision += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._revision)}
        kept = {**body, "metadata": metadata, "apiVersion": resource.api_version, "kind": resource.kind}
        self._objects.setdefault(resource, {})[_key(body)] = kept
        self.history.append(kept)
        self._changed(resource)

    def _changed(self, resource: Resource) -> None:
        self._sorted.pop(resource, None)
        for wake in self._listeners.get(resource, ()):
            wake()

    # --------------------------------------------------------------------------------------------- what a test may call

    def add(self, resource: Resource, body: Json) -> Json:
        """A new object, as by a user."""
        assert self._create(resource, body)
        found = self.find(resource, *_key(body))
        assert found is not None
        return found

    def restore(self, resource: Resource, body: Json) -> None:
        """An object as it stands in a file, with its age and its status."""
        metadata = {"generation": 1, **body["metadata"]} | {"uid": body["metadata"].get("uid") or self._next_uid()}
        self._put(resource, {"spec": {}, "status": {}, **copy.deepcopy(body), "metadata": metadata})

    def change(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Json,
        subresource: str = "",
        *,
        dry_run: bool = False,
    ) -> None:
        """A merge patch, as by a user. Raises: KubeError where admission denies it."""
        observed = self.find(resource, namespace, name)
        assert observed is not None
        patch = Patch(resource=resource, observed=observed, body=body, subresource=subresource)
        assert self._patch(patch, dry_run=dry_run)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """The object is gone, whatever finalizers it has."""
        del self._objects[resource][(namespace, name)]
        self._removals += 1
        self._changed(resource)

    @property
    def revision(self) -> tuple[int, int]:
        """Another one after every change."""
        return self._revision, self._removals

    def collect_garbage(self) -> None:
        """What is owned by objects that are gone, goes."""
        there = {body["metadata"]["uid"] for kept in self._objects.values() for body in kept.values()}
        for resource, kept in self._objects.items():
            for key, body in tuple(kept.items()):
                owners = body["metadata"].get("ownerReferences") or ()
                if owners and not any(owner["uid"] in there for owner in owners):
                    if resource is POD and body["spec"].get("nodeName"):
                        ending = {"deletionTimestamp": timestamp(self.now), "deletionGracePeriodSeconds": 30}
                        if "deletionTimestamp" not in body["metadata"]:
                            self._put(POD, {**body, "metadata": {**body["metadata"], **ending}})
                    else:
                        self.remove(resource, *key)

    def run_pods(self) -> None:
        """Every pod that is to run does, and every one that was suspended is gone."""
        for pod in self.all(POD):
            namespace, name = _key(pod)
            if pod["metadata"].get("deletionTimestamp"):
                self.remove(POD, namespace, name)
            elif pod["status"]["phase"] == "Pending":
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.change(POD, namespace, name, {"spec": {"nodeName": "node-a"}})
                self.change(POD, namespace, name, {"status": ready}, "status")

    async def settle(self, *controllers: Controller, after: timedelta = timedelta(0)) -> None:
        """Time passes, and then everything that follows is done."""
        self.now += after
        for _ in range(100):
            before = self.revision
            for controller in controllers:
                await controller.tick(self.now)
            if before == self.revision:
                return
        raise AssertionError("the controllers never come to rest")


def _key(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def merged(target: Json, patch: Json) -> Json:
    """RFC 7386."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


CONDITIONS = ("QuotaReserved", "Evicted", "Admitted", "Requeued", "Finished")


def state_of(workload: Json) -> tuple[str, ...]:
    """A Workload as one line: active?, and its conditions as `QuotaReserved=True/QuotaReserved`."""
    state = ["active" if workload["spec"].get("active", True) else "inactive"]
    for kind in CONDITIONS:
        found = condition(workload, kind)
        if found:
            state.append(f"{kind}={found['status']}/{found['reason']}")
    return tuple(state)


def states_of(history: Sequence[Json], name: str) -> list[tuple[str, ...]]:
    """The different states that a Workload has gone through."""
    states: list[tuple[str, ...]] = []
    for body in history:
        if body["kind"] == WORKLOAD.kind and body["metadata"]["name"] == name:
            state = state_of(body)
            if not states or states[-1] != state:
                states.append(state)
    return states
