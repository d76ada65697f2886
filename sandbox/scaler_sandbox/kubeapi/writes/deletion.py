"""When does an object go, and what holds it back? Marks of deletion, finalizers, and the grace of pods.

| delete of …                     | what happens                                                |
|---------------------------------|-------------------------------------------------------------|
| an object that nothing holds    | it is removed at once                                       |
| an object with finalizers       | it is marked; removed by the write that takes the last      |
| a pod on a node that still runs | it is marked; removed when its kubelet deletes with grace 0 |
| a namespace, a definition       | it is marked; removed when its contents are gone            |

Pure: bodies and `now` in, bodies out. A mark is never taken off, and its grace only ever shortens.
"""

from datetime import datetime, timedelta

from scaler_sandbox.kubeapi.errors import Cause, Json, invalid
from scaler_sandbox.kubeapi.schema.resources import View
from scaler_sandbox.kubeapi.writes.lifecycle import immutable, timestamp


def check_not_deleted_by_hand(view: View, old: Json, new: Json) -> None:
    """Raises: ApiError 422 where a write sets or moves the time of deletion; leaving it out changes nothing."""
    sent = new["metadata"].get("deletionTimestamp")
    if sent and sent != old["metadata"].get("deletionTimestamp"):
        cause = Cause(reason="FieldValueInvalid", field="metadata.deletionTimestamp", message=immutable(sent))
        raise invalid(view.resource.group, view.resource.kind, old["metadata"]["name"], [cause])


def check_finalizers(view: View, old: Json, new: Json) -> None:
    """Raises: ApiError 422 where a finalizer is added to an object that is being deleted."""
    if "deletionTimestamp" not in old["metadata"]:
        return
    before = set(old["metadata"].get("finalizers") or ())
    added = sorted(set(new["metadata"].get("finalizers") or ()) - before)
    if added:
        message = f"Forbidden: no new finalizers can be added if the object is being deleted, found {added}"
        cause = Cause(reason="FieldValueForbidden", field="metadata.finalizers", message=message)
        raise invalid(view.resource.group, view.resource.kind, old["metadata"]["name"], [cause])


def is_due_for_removal(body: Json) -> bool:
    """Whether nothing holds a deleted object back any more."""
    metadata = body["metadata"]
    waiting = metadata.get("deletionGracePeriodSeconds", 0) or metadata.get("finalizers") or holds_contents(body)
    return "deletionTimestamp" in metadata and not waiting


def holds_contents(body: Json) -> bool:
    """Whether this is a namespace whose contents were not cleared away yet."""
    is_namespace = body["kind"] == "Namespace" and body["apiVersion"] == "v1"
    return is_namespace and bool((body.get("spec") or {}).get("finalizers"))


def grace_seconds(view: View, body: Json, asked: int | None) -> int:
    """How long a kubelet may take. Only pods that are bound and still run wait for one."""
    if not view.resource.graceful:
        return 0
    spec, status = body.get("spec") or {}, body.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    wanted = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, int(wanted))


def marked_deleted(body: Json, *, grace: int, now: datetime, finalizers: list[str]) -> Json:
    """The object with its deletion announced, or the same object where a mark stands that is not longer than this."""
    metadata: Json = body["metadata"]
    marked = dict(metadata)
    if finalizers != (metadata.get("finalizers") or []):
        marked["finalizers"] = finalizers
    if "deletionTimestamp" not in metadata:
        marked |= _deletion(now=now, grace=grace)
        if "generation" in metadata:
            marked["generation"] = metadata["generation"] + 1
    elif grace < metadata.get("deletionGracePeriodSeconds", 0):
        marked |= _deletion(now=now, grace=grace)
    if marked == metadata:
        return body
    announced = {**body, "metadata": marked}
    return {**announced, "status": {"phase": "Terminating"}} if holds_contents(body) else announced


def _deletion(*, now: datetime, grace: int) -> Json:
    return {"deletionTimestamp": timestamp(now + timedelta(seconds=grace)), "deletionGracePeriodSeconds": grace}


def finalizers_for(view: View, body: Json) -> list[str]:
    """The finalizers that a delete leaves on the object."""
    finalizers = list(body["metadata"].get("finalizers") or [])
    cleanup = view.resource.cleanup_finalizer
    if cleanup and cleanup not in finalizers and "deletionTimestamp" not in body["metadata"]:
        finalizers.append(cleanup)
    return finalizers
