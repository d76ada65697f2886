"""Kinds with a switch of their own: how an object is stopped and started, and by whom it was stopped.

| kind                 | is stopped by                                  | is started by            |
|----------------------|------------------------------------------------|--------------------------|
| Notebook             | annotation `kubeflow-resource-stopped`: a time | its removal              |
| InferenceService     | annotation `serving.kserve.io/stop: "true"`    | its removal              |
| – before KServe 0.16 | `spec.predictor.minReplicas: 0`, Knative only  | what was there before    |

Laws:

* The patch that stops an object also writes our annotation `idlegpu.io/suspended`, with the time and with what the
  start has to restore. So a restart between two writes loses nothing.
* A running object is never written to, but to stop it: KServe copies annotations into the template of its pods, and a
  template that changes replaces the pods. So our annotation stays on an object that another client has started. It is
  spent then: one from before the object ran last says nothing any more, and goes when the object is stopped again.
* An object that carries an annotation of ours that is not spent, and runs although it is asked to be at 0, was started
  by another client. That is a wake-up.
* What an object says of its last activity may make it busier, never idle.

Why minReplicas is not enough in general: without Knative KServe treats 0 as 1, so those are refused.

Sources: kubeflow/notebooks (notebook_controller.go, culling_controller.go of branch notebooks-v1), kserve/kserve
(GetForceStopRuntime; deployment, hpa and ksvc reconcilers of v0.14.1, v0.15.2, v0.16.0 and v0.17.1; issue 3514).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scaler.kube.objects.core import condition
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import JobRef
from scaler.kube.objects.resources import INFERENCE_SERVICE, NOTEBOOK, Resource, group_of
from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.targets import target_state
from scaler.targets.workloads import instant_of, suspended_annotation

Patch = dict[str, Any]
"""A JSON merge patch."""

NOTEBOOK_STOPPED = "kubeflow-resource-stopped"
"""Its presence stops a Notebook, whatever its value. The dashboards and the culler write the time."""
LAST_ACTIVITY = "notebooks.kubeflow.org/last-activity"
"""The annotation of the Notebook's culler: when a kernel was busy, or a terminal used. RFC 3339."""
SERVICE_STOPPED = "serving.kserve.io/stop"
DEPLOYMENT_MODE = "serving.kserve.io/deploymentMode"
_KNATIVE = frozenset({"serverless", "knative"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A line of the table."""

    resource: Resource
    pod_label: str
    """Its value on the pods is the object's name."""
    is_stopped: Callable[[SwitchedObject], bool]
    """Whether the object's own switch is off, by whomever."""
    stop: Callable[[SwitchedObject, str], Patch]
    """The patch that stops it at that time, without our annotation."""
    saved: Callable[[SwitchedObject], Mapping[str, Any] | None] = lambda _: None
    """What the start has to restore, beside the annotations."""
    start: Callable[[SwitchedObject], Patch]
    expected_gpu_pods: Callable[[SwitchedObject, GpuResources], int]
    """The least number of pods that run while it does."""
    refusal: Callable[[SwitchedObject], str] = lambda _: ""
    """Why it cannot be stopped, in words; empty where it can."""
    last_activity: Callable[[SwitchedObject], datetime | None] = lambda _: None
    requests_gpus: Callable[[SwitchedObject, GpuResources], bool]
    """Whether its own specification does."""

    def selector(self, name: str) -> str:
        return f"{self.pod_label}={name}"


def switch_of(job: JobRef | None) -> Switch | None:
    """The switch of the job; None for what has no switch of its own: a job that Kueue admits."""
    return None if job is None else SWITCHES.get((group_of(job.api_version), job.kind))


# ------------------------------------------------------------------------------------------------------------- Notebook


def _notebook_gpu_pods(notebook: SwitchedObject, gpus: GpuResources) -> int:
    return 1 if gpus.of_pod(notebook.spec.template.spec) else 0


# ---------------------------------------------------------------------------------------------------- InferenceService


def _has_stop_annotation(service: SwitchedObject) -> bool:
    """Whether its KServe stops by annotation: since 0.16 it keeps the condition Stopped on every InferenceService."""
    conditions = service.status.conditions
    return not conditions or condition(conditions, "Stopped") is not None


def _service_is_stopped(service: SwitchedObject) -> bool:
    if service.metadata.annotations.get(SERVICE_STOPPED, "").lower() == "true":
        return True
    mark = suspended_annotation(service.metadata)
    return mark is not None and mark.restore is not None and service.spec.predictor.min_replicas == 0


def _service_refusal(service: SwitchedObject) -> str:
    if _has_stop_annotation(service):
        return ""
    mode = service.status.deployment_mode or service.metadata.annotations.get(DEPLOYMENT_MODE, "")
    if mode.lower() in _KNATIVE:
        return ""
    return (
        f"KServe stops an InferenceService since version 0.16; before, only one of deployment mode Knative goes to 0, "
        f"and this one is {mode or 'of an unknown mode'} (status.deploymentMode, annotation {DEPLOYMENT_MODE})"
    )


def _service_saved(service: SwitchedObject) -> Mapping[str, Any] | None:
    return None if _has_stop_annotation(service) else {"minReplicas": service.spec.predictor.min_replicas}


def _stop_service(service: SwitchedObject, _at: str) -> Patch:
    if _has_stop_annotation(service):
        return _annotated(SERVICE_STOPPED, "true")
    return {"spec": {"predictor": {"minReplicas": 0}}}


def _start_service(service: SwitchedObject) -> Patch:
    patch = _annotated(SERVICE_STOPPED, None)
    mark = suspended_annotation(service.metadata)
    if mark is not None and mark.restore is not None:
        patch["spec"] = {"predictor": {"minReplicas": mark.restore.get("minReplicas")}}
    return patch


def _service_gpu_pods(service: SwitchedObject, _gpus: GpuResources) -> int:
    """GPUs may be requested by its ServingRuntime, which is not read. One with minReplicas 0 Knative scales itself."""
    return 0 if service.spec.predictor.min_replicas == 0 else 1


def _service_requests_gpus(service: SwitchedObject, gpus: GpuResources) -> bool:
    predictor = service.spec.predictor
    model = 0 if predictor.model is None else gpus.of_container(predictor.model)
    worker = 0 if predictor.worker_spec is None else gpus.of_pod(predictor.worker_spec)
    return bool(gpus.of_pod(predictor) or model or worker)


def _annotated(key: str, value: str | None) -> Patch:
    return {"metadata": {"annotations": {key: value}}}


SWITCHES: Mapping[tuple[str, str], Switch] = {
    (each.resource.group, each.resource.kind): each
    for each in (
        Switch(
            resource=NOTEBOOK,
            pod_label="notebook-name",
            is_stopped=lambda notebook: NOTEBOOK_STOPPED in notebook.metadata.annotations,
            stop=lambda _notebook, at: _annotated(NOTEBOOK_STOPPED, at),
            start=lambda _notebook: _annotated(NOTEBOOK_STOPPED, None),
            expected_gpu_pods=_notebook_gpu_pods,
            requests_gpus=lambda notebook, gpus: _notebook_gpu_pods(notebook, gpus) > 0,
            last_activity=lambda notebook: instant_of(notebook.metadata.annotations.get(LAST_ACTIVITY, "")),
        ),
        Switch(
            resource=INFERENCE_SERVICE,
            pod_label="serving.kserve.io/inferenceservice",
            is_stopped=_service_is_stopped,
            stop=_stop_service,
            saved=_service_saved,
            start=_start_service,
            expected_gpu_pods=_service_gpu_pods,
            refusal=_service_refusal,
            requests_gpus=_service_requests_gpus,
        ),
    )
}
"""The switches by (API group, kind)."""


# ------------------------------------------------------------------------------------------ the object as a Workload is


def observe_switched(
    switch: Switch, found: SwitchedObject, gpus: GpuResources, *, resumed_at: datetime | None
) -> target_state.ObservedWorkload:
    """The object reduced to what a suspension depends on. It has no quota, and is admitted while it is not stopped.

    `resumed_at` is when it was last seen running after a suspension.
    """
    is_active, mark = not switch.is_stopped(found), suspended_annotation(found.metadata)
    at = mark.at if mark is not None else None
    is_spent = at is None or (resumed_at is not None and resumed_at >= at)
    return target_state.ObservedWorkload(
        resource=switch.resource,
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        uid=found.metadata.uid,
        resource_version=found.metadata.resource_version,
        active=is_active,
        finished=False,
        quota_reserved=is_active,
        admitted=is_active,
        annotations=found.metadata.annotations,
        suspended_by_us=mark is not None and not is_spent,
        has_spent_annotation=mark is not None and is_spent,
        suspended_at=at,
        refusal=switch.refusal(found),
        expected_gpu_pods=switch.expected_gpu_pods(found, gpus),
        has_quota=False,
        last_activity=switch.last_activity(found),
    )
