"""IdlePolicies and ClusterIdlePolicies: what they say, how they stand, and what they have attached. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaler.attachment.objects import POLICY_ANNOTATION, policy_of
from scaler.attachment.policy import AttachmentPolicy, in_order
from scaler.clock import Turns
from scaler.decision.decision_cache import Key
from scaler.kube.objects.idlegpu import IdlePolicy, JobExclusion, JobSelector
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_queues import LabelSelector
from scaler.reporting.page.access import Looker

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLine:
    policy: AttachmentPolicy
    found: IdlePolicy | None
    """The policy; None where it cannot be read."""
    shows_counts: bool = True
    """Whether what it is about may all be seen."""

    @property
    def title(self) -> str:
        return "/".join(filter(None, self.policy.key))

    @property
    def mode(self) -> str:
        return (self.found.spec.mode if self.found is not None else "") or "not set"

    @property
    def problems(self) -> Sequence[str]:
        """Each once."""
        problems = self.found.status.problems if self.found is not None and self.shows_counts else ()
        return [*dict.fromkeys(each for each in (self.policy.problem, *problems) if each)]

    @property
    def selects(self) -> Sequence[tuple[str, str]]:
        return _criteria(self.found.spec.selector) if self.found is not None else ()

    @property
    def excludes(self) -> Sequence[tuple[Sequence[tuple[str, str]], JobExclusion]]:
        found = self.found.spec.exclude if self.found is not None else ()
        return [(_criteria(each), each) for each in found]

    @property
    def says(self) -> Sequence[tuple[str, str]]:
        """The trigger metadata that it sets."""
        return [(key, value) for key, value in self.policy.metadata.items() if key != "mode"]


def lines_of_policies(
    found: Iterable[IdlePolicy], unreadable: Mapping[Key, str], *, namespace: str = "", looker: Looker
) -> list[PolicyLine]:
    """Policies in the order in which jobs follow them, those of the cluster last."""
    by_key = {each.metadata.key: each for each in found}
    policies = [policy_of(each) for each in by_key.values()]
    policies += [
        AttachmentPolicy(namespace=key[0], name=key[1], problem=f"it cannot be read: {why}")
        for key, why in unreadable.items()
    ]
    return [
        PolicyLine(
            policy=each, found=by_key.get(each.key), shows_counts=bool(each.namespace) or not looker.is_restricted
        )
        for each in in_order(policies)
        if (not each.namespace or looker.visible(each.namespace)) and namespace in ("", each.namespace)
    ]


def _criteria(selector: JobSelector) -> list[tuple[str, str]]:
    """Each criterion in words."""
    labels = {"namespaces": selector.namespaces, "labels": selector.labels}
    lists = {"kinds": selector.kinds, "queues": selector.queues}
    lists |= {"priority classes": selector.priority_classes, "GPU models": selector.gpu_models}
    return [
        *((name, _labels(each)) for name, each in labels.items() if each is not None),
        *((name, ", ".join(values)) for name, values in lists.items() if values),
    ]


def _labels(selector: LabelSelector) -> str:
    parts = [f"{key}={value}" for key, value in selector.match_labels.items()]
    for each in selector.match_expressions:
        words = _WORD.sub(" ", each.operator).lower()
        parts.append(f"{each.key} {words}" + (f" ({', '.join(each.values)})" if each.values else ""))
    return ", ".join(parts) or "all"


async def attached_by(policy: AttachmentPolicy, scaled_objects: Iterable[ScaledObject], *, looker: Looker) -> set[Key]:
    """Keys of the ScaledObjects of jobs that follow it."""
    mark, found, turns = str(policy), set[Key](), Turns()
    for each in scaled_objects:
        metadata = each.metadata
        is_its_own = metadata.annotations.get(POLICY_ANNOTATION) == mark
        if is_its_own and policy.namespace in ("", metadata.namespace) and looker.visible(metadata.namespace):
            found.add(metadata.key)
        await turns.give_way()
    return found


def sources_of_policy(scaled_object: ScaledObject) -> str:
    """The policy that has attached it; empty where an author has."""
    return scaled_object.metadata.annotations.get(POLICY_ANNOTATION, "")
