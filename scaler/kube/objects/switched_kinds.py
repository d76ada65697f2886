"""Kinds that are stopped and started by a field or annotation of their own, as far as they are read, by the laws of
`core.py`: Notebook (kubeflow.org) and InferenceService (serving.kserve.io)."""

from scaler.kube.objects.core import Condition, Container, ObjectMeta, PodSpec, Struct
from scaler.kube.objects.scaled_kinds import PodTemplateSpec, TemplatePodSpec


class Predictor(TemplatePodSpec, frozen=True):
    """The predictor of an InferenceService: a pod spec with more fields."""

    min_replicas: int | None = None
    model: Container | None = None
    """What its ServingRuntime's container is completed with."""
    worker_spec: PodSpec | None = None


class SwitchedSpec(Struct, frozen=True):
    template: PodTemplateSpec = PodTemplateSpec()
    """The pods of a Notebook."""
    predictor: Predictor = Predictor()
    """The pods of an InferenceService."""


class SwitchedStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    deployment_mode: str = ""
    """The mode of an InferenceService, since KServe 0.15."""


class SwitchedObject(Struct, frozen=True):
    """A Notebook or an InferenceService."""

    metadata: ObjectMeta
    spec: SwitchedSpec = SwitchedSpec()
    status: SwitchedStatus = SwitchedStatus()
