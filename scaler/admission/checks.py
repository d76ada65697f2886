"""Our AdmissionChecks and their ReclaimPolicies: which policy a check has, and the conditions `Active` and `Usable`.

Laws:

* A check stays Active, also while no replica leads: in a ClusterQueue with an inactive check Kueue reserves no quota.
* `Active` is False only where it is known that the ReclaimPolicy does not exist or is not valid. While ReclaimPolicies
  are not listed yet, or are not followed, the condition does not change.
* The API server validates most of a ReclaimPolicy. What it accepts (a duration that is too long, an object older than
  its definition) is a reason here and never an exception: where the policy is not known, Workloads wait.
* Level-triggered: conditions depend on the object alone. Before a write the object is read from the API and evaluated
  again; a condition that is up to date is not written.
"""

from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime, timedelta
from math import isfinite

import msgspec
import structlog

from scaler.admission.policy import CheckPolicy, MergePolicy, ProvisioningPolicy, Retry, Unusable
from scaler.admission.workload import ACTIVE, POLICY_GROUP, POLICY_KIND, is_ours
from scaler.documents import UNREADABLE
from scaler.idleness.durations import parse_duration
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import Json, condition, condition_patch, decode
from scaler.kube.objects.idlegpu import ProvisioningSpec, ReclaimPolicy, RetryStrategy
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.kube.objects.resources import ADMISSION_CHECK, RECLAIM_POLICY, Resource
from scaler.kube.reflector import Absent, Reflecting, Reflector
from scaler.kube.writes import PatchApi, is_written
from scaler.quota.watch import NotSynced

log = structlog.get_logger(__name__)

USABLE = "Usable"

# ------------------------------------------------------------------------------------------ the spec of ReclaimPolicies


def check_policy_of(policy: ReclaimPolicy) -> CheckPolicy | Unusable:
    """The policy, or why it is not valid."""
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
    return CheckPolicy(
        wait_for_pods_gone=spec.wait_for_pods_gone,
        require_fit=spec.require_fit,
        reuse=spec.reuse.enabled,
        pin_label=spec.pin.node_label if spec.pin.enabled else "",
        provisioning=provisioning,
    )


def _provisioning(spec: ProvisioningSpec) -> ProvisioningPolicy:
    """Raises: ValueError."""
    if not spec.class_name:
        raise ValueError("spec.provisioning.className: is empty; name a provisioning class")
    only_missing = _among("amount", spec.amount, ("Gang", "Missing")) == "Missing"
    selectors = spec.pod_set_updates.node_selector
    if only_missing and selectors:
        raise ValueError(
            "spec.provisioning.podSetUpdates.nodeSelector: with amount Missing it would keep whole PodSets off the "
            "nodes that are free already; remove it, or set amount to Gang"
        )
    merge = spec.pod_set_merge_policy
    return ProvisioningPolicy(
        provisioning_class=spec.class_name,
        parameters=spec.parameters,
        managed_resources=frozenset(spec.managed_resources),
        only_missing=only_missing,
        merge_policy=MergePolicy(_among("podSetMergePolicy", merge, [*MergePolicy])) if merge else None,
        node_selector={each.key: each.value_from_provisioning_class_detail for each in selectors},
        after=_duration("after", spec.after),
        withdraws=_among("withdraw", spec.withdraw, ("WhenFree", "Never")) == "WhenFree",
        retry=_retry(spec.retry),
        yields_at_limit=_among("atLimit", spec.at_limit, ("Hold", "Yield")) == "Yield",
        evicts_on_revocation=_among("onCapacityRevoked", spec.on_capacity_revoked, ("Evict", "Ignore")) == "Evict",
    )


def _retry(spec: RetryStrategy) -> Retry:
    base, longest = _duration("retry.base", spec.base), _duration("retry.max", spec.max)
    if spec.limit < 0:
        raise ValueError(f"spec.provisioning.retry.limit: {spec.limit} is less than none; 0 means one request only")
    if not base:
        raise ValueError("spec.provisioning.retry.base: 0s would let requests that fail at once follow without pause")
    if base > longest:
        raise ValueError(
            f"spec.provisioning.retry.base: the first pause, {spec.base}, is longer than the longest, {spec.max}"
        )
    return Retry(limit=spec.limit, base=base, longest=longest)


def _duration(field: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"spec.provisioning.{field}: {error}") from error


def _among(field: str, text: str, known: Sequence[str]) -> str:
    """The text, where it is one of those that are known. Raises: ValueError."""
    if text not in known:
        raise ValueError(f"spec.provisioning.{field}: {text!r} is not known; write {' or '.join(known)}")
    return text


# ----------------------------------------------------------------------------------- which policy an AdmissionCheck has


PolicyOrReason = CheckPolicy | Unusable | NotSynced
"""NotSynced: it is not known at the moment."""
ReclaimPolicies = Reflector[ReclaimPolicy]


def policy_of(check: AdmissionCheck, policies: ReclaimPolicies) -> PolicyOrReason:
    """The policy of the check; the defaults where it has no parameters."""
    parameters = check.spec.parameters
    if parameters is None:
        return CheckPolicy()
    where = f"AdmissionCheck {check.metadata.name}: spec.parameters"
    if (parameters.api_group, parameters.kind) != (POLICY_GROUP, POLICY_KIND):
        named = f"{parameters.kind or 'nothing'} of {parameters.api_group or 'no group'}"
        return Unusable(f"{where}: names {named}; name a {POLICY_KIND} of {POLICY_GROUP}")
    return _named(parameters.name, policies, where)


def _named(name: str, policies: ReclaimPolicies, where: str) -> PolicyOrReason:
    found, why = policies.get("", name), policies.undecodable.get(("", name))
    if why is not None:
        return Unusable(f"{where}: ReclaimPolicy {name!r} cannot be read: {why}")
    if found is not None:
        return check_policy_of(found)
    state = policies.state
    if isinstance(state, Absent):
        return Unusable(
            f"{where}: the API knows no ReclaimPolicies; install the CustomResourceDefinition of {POLICY_GROUP}"
        )
    if not (isinstance(state, Reflecting) and isfinite(policies.age)):
        reason = "" if isinstance(state, Reflecting) else f": {state.message}"
        return NotSynced(f"ReclaimPolicies are not listed{reason}")
    return Unusable(f"{where}: there is no ReclaimPolicy {name!r}; create it, or name another one")


def checks_with_provisioning(checks: Iterable[AdmissionCheck], policies: ReclaimPolicies) -> frozenset[str]:
    """Names of our checks that wait until gangs fit, and request missing nodes."""
    found = {each.metadata.name: policy_of(each, policies) for each in checks if is_ours(each)}
    return frozenset(
        name
        for name, policy in found.items()
        if isinstance(policy, CheckPolicy) and policy.require_fit and policy.provisioning is not None
    )


def checks_with_reuse(checks: Iterable[AdmissionCheck], policies: ReclaimPolicies) -> frozenset[str]:
    """Names of our checks for which idle workloads are suspended where a gang with quota lacks nodes."""
    found = {each.metadata.name: policy_of(each, policies) for each in checks if is_ours(each)}
    return frozenset(
        name
        for name, policy in found.items()
        if isinstance(policy, CheckPolicy) and policy.require_fit and policy.reuse
    )


# ------------------------------------------------------------------------------------------------------- the conditions


class AdmissionChecks:
    """Keeps the condition `Active` of our AdmissionChecks up to date, and `Usable` of all ReclaimPolicies."""

    def __init__(self, api: PatchApi, policies: ReclaimPolicies, announcer: EventSink) -> None:
        self._api = api
        self._policies = policies
        self._announcer = announcer

    async def keep(self, checks: Sequence[AdmissionCheck], now: datetime) -> None:
        """Write the conditions that are not up to date. Raises: KubeError with the reason NotLeading."""
        for check in checks:
            policy = policy_of(check, self._policies)
            if not isinstance(policy, NotSynced) and check.metadata.deletion_timestamp is None:
                await _keep(ADMISSION_CHECK, check.metadata.name, self._keep_active(check, policy, now))
        due = {each.metadata.name for each in self._policies.items() if not _is_current(each)}
        due |= {name for _, name in self._policies.undecodable}
        for name in sorted(due):
            await _keep(RECLAIM_POLICY, name, self._keep_usable(name, now))

    async def _keep_active(self, check: AdmissionCheck, policy: CheckPolicy | Unusable, now: datetime) -> None:
        """Raises: KubeError."""
        reason, message = ("Unusable", policy.reason) if isinstance(policy, Unusable) else ("Active", _ACTIVE_MESSAGE)
        known, status = condition(check.status.conditions, ACTIVE), str(isinstance(policy, CheckPolicy))
        wanted = (status, reason, message, check.metadata.generation)
        if known and (known.status, known.reason, known.message, known.observed_generation) == wanted:
            return
        fresh: Json = msgspec.json.decode(await self._api.get(ADMISSION_CHECK.path("", check.metadata.name)))
        if fresh["metadata"]["uid"] != check.metadata.uid:
            return
        patch = condition_patch(fresh, ACTIVE, status=status, reason=reason, message=message, now=now)
        if patch is None:
            return
        await self._api.patch(ADMISSION_CHECK.path("", check.metadata.name, "status"), patch)
        if known is None or known.status != status:
            about, is_active = ObjectReference.of(ADMISSION_CHECK, check.metadata), isinstance(policy, CheckPolicy)
            event = "CheckActive" if is_active else "CheckInactive"
            self._announcer.record(about, event, message, warning=not is_active)

    async def _keep_usable(self, name: str, now: datetime) -> None:
        """Raises: KubeError."""
        body = await self._api.get(RECLAIM_POLICY.path("", name))
        status, reason, message = _usable(_decoded_policy(name, body))
        fresh: Json = msgspec.json.decode(body)
        patch = condition_patch(fresh, USABLE, status=status, reason=reason, message=message, now=now)
        if patch is not None:
            await self._api.patch(RECLAIM_POLICY.path("", name, "status"), patch)


_ACTIVE_MESSAGE = "stays Pending until all pods of a gang can start"


async def _keep(resource: Resource, name: str, update: Awaitable[None]) -> None:
    """Update it; where that fails the next tick repeats it. Raises: KubeError with the reason NotLeading."""
    await is_written(update, log, "condition not updated; retried", kind=resource.kind, name=name)


def _decoded_policy(name: str, body: bytes) -> CheckPolicy | Unusable:
    try:
        return check_policy_of(decode(ReclaimPolicy, body))
    except UNREADABLE as error:
        return Unusable(f"ReclaimPolicy {name!r} cannot be read: {error}")


def _is_current(policy: ReclaimPolicy) -> bool:
    """Whether its condition is up to date."""
    known = condition(policy.status.conditions, USABLE)
    if known is None or known.observed_generation != policy.metadata.generation:
        return False
    return (known.status, known.reason, known.message) == _usable(check_policy_of(policy))


def _usable(found: CheckPolicy | Unusable) -> tuple[str, str, str]:
    """Status, reason and message of the condition."""
    if isinstance(found, Unusable):
        return "False", "Unusable", found.reason
    return "True", "Usable", found.words
