"""Kinds that scale their own pods (apps/v1, LeaderWorkerSet), as far as they are read, by the laws of `core.py`."""

from scaler.kube.objects.core import ObjectMeta, PodSpec, Struct
from scaler.kube.objects.kueue_queues import LabelSelector


class TemplatePodSpec(PodSpec, frozen=True):
    priority_class_name: str = ""


class PodTemplateSpec(Struct, frozen=True):
    spec: TemplatePodSpec = TemplatePodSpec()


class LeaderWorkerTemplate(Struct, frozen=True):
    leader_template: PodTemplateSpec | None = None
    worker_template: PodTemplateSpec = PodTemplateSpec()


class ScaledKindSpec(Struct, frozen=True):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplateSpec | None = None
    leader_worker_template: LeaderWorkerTemplate | None = None

    @property
    def templates(self) -> tuple[PodTemplateSpec, ...]:
        group = self.leader_worker_template
        found = (self.template, group and group.leader_template, group and group.worker_template)
        return tuple(each for each in found if each)


class ScaledKind(Struct, frozen=True):
    """A Deployment, StatefulSet or LeaderWorkerSet."""

    metadata: ObjectMeta
    spec: ScaledKindSpec = ScaledKindSpec()
