"""A ReclaimPolicy as the gate follows it, or the reason why it cannot be followed. Pure.

The API server checks most of this. What it lets through (where another version of the definition is installed, say) is
a reason here and never an exception: a gate that does not know what its operator wants says so and holds.
"""

from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from scaler.core.durations import parse_duration
from scaler.core.gate_policy import (
    Amount,
    AtLimit,
    GatePolicy,
    LabelFromDetail,
    MergePolicy,
    OnCapacityRevoked,
    ProvisioningPolicy,
    Retry,
    Unusable,
    Withdraw,
)
from scaler.kube.reclaim_policy_objects import Provisioning, ReclaimPolicy, RetryStrategy

_Word = TypeVar("_Word", bound=StrEnum)


def gate_policy_of(policy: ReclaimPolicy) -> GatePolicy | Unusable:
    """What the object says, or why nobody can follow it."""
    spec = policy.spec
    try:
        provisioning = _provisioning(spec.provisioning) if spec.provisioning else None
        if not spec.require_fit and (provisioning or spec.pin.enabled):
            raise ValueError(
                "spec.requireFit: is false, so that nothing is found to be missing and no nodes are found to be free; "
                "remove spec.provisioning and spec.pin, or set it to true"
            )
    except (ValueError, OverflowError) as error:
        return Unusable(f"ReclaimPolicy {policy.metadata.name!r}: {error}")
    return GatePolicy(
        wait_for_pods_gone=spec.wait_for_pods_gone,
        require_fit=spec.require_fit,
        reuse=spec.reuse.enabled,
        pin_label=spec.pin.node_label if spec.pin.enabled else "",
        provisioning=provisioning,
    )


def _provisioning(asked: Provisioning) -> ProvisioningPolicy:
    """Raises: ValueError."""
    if not asked.class_name:
        raise ValueError("spec.provisioning.className: is empty; name a provisioning class")
    amount = _word(Amount, "amount", asked.amount)
    selectors = asked.pod_set_updates.node_selector
    if amount is Amount.MISSING and selectors:
        raise ValueError(
            "spec.provisioning.podSetUpdates.nodeSelector: with amount Missing it would keep whole PodSets off the "
            "nodes that are free already; remove it, or set amount to Gang"
        )
    merge = asked.pod_set_merge_policy
    return ProvisioningPolicy(
        provisioning_class=asked.class_name,
        parameters=asked.parameters,
        managed_resources=frozenset(asked.managed_resources),
        amount=amount,
        merge_policy=_word(MergePolicy, "podSetMergePolicy", merge) if merge else None,
        node_selector=tuple(
            LabelFromDetail(key=each.key, detail=each.value_from_provisioning_class_detail) for each in selectors
        ),
        after=_duration("after", asked.after),
        withdraw=_word(Withdraw, "withdraw", asked.withdraw),
        retry=_retry(asked.retry),
        at_limit=_word(AtLimit, "atLimit", asked.at_limit),
        on_capacity_revoked=_word(OnCapacityRevoked, "onCapacityRevoked", asked.on_capacity_revoked),
    )


def _retry(asked: RetryStrategy) -> Retry:
    base, longest = _duration("retry.base", asked.base), _duration("retry.max", asked.max)
    if asked.limit < 0:
        raise ValueError(f"spec.provisioning.retry.limit: {asked.limit} is less than none; 0 means one request only")
    if not base:
        raise ValueError("spec.provisioning.retry.base: 0s would let requests that fail at once follow without pause")
    if base > longest:
        raise ValueError(
            f"spec.provisioning.retry.base: the first pause, {asked.base}, is longer than the longest, {asked.max}"
        )
    return Retry(limit=asked.limit, base=base, longest=longest)


def _duration(field: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"spec.provisioning.{field}: {error}") from error


def _word(words: type[_Word], field: str, text: str) -> _Word:
    try:
        return words(text)
    except ValueError:
        known = " or ".join(words)
        raise ValueError(f"spec.provisioning.{field}: {text!r} is not known; write {known}") from None
