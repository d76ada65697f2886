"""What may our account do, of what it has to?

`REQUIRED_RULES` is the one list: the roles of the chart and the table in docs/install.md are made from it, and `doctor`
asks the API about it. Each new call to the API needs its line here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from scaler.doctor.findings import Finding, Severity, Subject, Topic, Unread
from scaler.kube.objects import resources as kinds
from scaler.kube.objects.resources import Resource
from scaler.kube.reviews import ResourceAttributes
from scaler.suspension.keep_record import SUFFIX


class RuleUser(StrEnum):
    """What of the program needs it; what is not used needs nothing."""

    SCALER = "the scaler"
    RECONCILER = "the reconciler"
    POLICIES = "IdlePolicies"
    CLUSTER_POLICIES = "ClusterIdlePolicies"
    SWITCHES = "Notebooks and InferenceServices"
    SUSPEND_AT = "suspend-at of pods"
    PLANS = "plans"
    CHECKS = "AdmissionChecks"
    PROVISIONING = "provisioning"
    OFFERS = "ClusterOffers"
    TOKENS = "bearer tokens"
    DISPATCHER = "the dispatcher"
    SCORES = "AddOnPlacementScores"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResource:
    resource: Resource
    subresource: str = ""

    def __str__(self) -> str:
        name = self.resource.plural + (f"/{self.subresource}" if self.subresource else "")
        return f"{name}.{self.resource.group}" if self.resource.group else name


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRule:
    """One line of the table: every verb on all of these."""

    part: RuleUser
    verbs: tuple[str, ...]
    on: tuple[RuleResource, ...] = ()
    on_targets: bool = False
    """Whether it is needed on whatever other kinds ScaledObjects scale, too."""
    subresource_of_targets: str = ""
    in_lease_namespace: bool = False
    """Whether it is needed in the Lease's namespace alone; all else in every namespace, or in each that is watched."""
    suffix: str = ""
    """The end of the name there, after that of the Lease."""
    in_kueue_namespace: bool = False
    """Whether it is needed in the namespace of Kueue alone."""


def _on(*resources: Resource, subresource: str = "") -> tuple[RuleResource, ...]:
    return tuple(RuleResource(resource=each, subresource=subresource) for each in resources)


REQUIRED_RULES: Sequence[RequiredRule] = (
    RequiredRule(
        part=RuleUser.SCALER,
        verbs=("list", "watch"),
        on=_on(kinds.POD, kinds.SCALED_OBJECT, kinds.WORKLOAD, kinds.SCALABLE_WORKLOAD),
        on_targets=True,
    ),
    # The owners between pods and a scale target, or a pod of it (`targets/owned_pods.py`).
    RequiredRule(part=RuleUser.SCALER, verbs=("list", "watch"), on=_on(kinds.REPLICA_SET, kinds.JOB)),
    RequiredRule(part=RuleUser.SCALER, verbs=("get",), on_targets=True, subresource_of_targets="scale"),
    RequiredRule(part=RuleUser.RECONCILER, verbs=("get", "patch"), on=_on(kinds.WORKLOAD)),
    RequiredRule(part=RuleUser.RECONCILER, verbs=("get", "create", "patch"), on=_on(kinds.SCALABLE_WORKLOAD)),
    RequiredRule(
        part=RuleUser.RECONCILER,
        verbs=("patch",),
        on=(*_on(kinds.SCALABLE_WORKLOAD, subresource="status"), *_on(kinds.SCALED_OBJECT)),
    ),
    # Processes that only answer KEDA need it, too: one of them shows what is counted about the cluster.
    RequiredRule(part=RuleUser.SCALER, verbs=("get", "create", "update"), on=_on(kinds.LEASE), in_lease_namespace=True),
    RequiredRule(
        part=RuleUser.RECONCILER,
        verbs=("get", "create", "patch"),
        on=_on(kinds.CONFIG_MAP),
        in_lease_namespace=True,
        suffix=SUFFIX,
    ),
    RequiredRule(part=RuleUser.RECONCILER, verbs=("create", "patch"), on=_on(kinds.EVENT)),
    RequiredRule(part=RuleUser.POLICIES, verbs=("get", "list", "watch"), on=_on(kinds.IDLE_POLICY)),
    RequiredRule(
        part=RuleUser.POLICIES,
        verbs=("list", "watch"),
        on=_on(*kinds.JOB_KINDS, *kinds.SCALED_KINDS),
    ),
    RequiredRule(part=RuleUser.POLICIES, verbs=("patch",), on=_on(kinds.IDLE_POLICY, subresource="status")),
    RequiredRule(part=RuleUser.POLICIES, verbs=("delete",), on=_on(kinds.SCALABLE_WORKLOAD)),
    RequiredRule(part=RuleUser.POLICIES, verbs=("create", "delete"), on=_on(kinds.SCALED_OBJECT)),
    RequiredRule(part=RuleUser.CLUSTER_POLICIES, verbs=("get", "list", "watch"), on=_on(kinds.CLUSTER_IDLE_POLICY)),
    RequiredRule(
        part=RuleUser.CLUSTER_POLICIES, verbs=("patch",), on=_on(kinds.CLUSTER_IDLE_POLICY, subresource="status")
    ),
    RequiredRule(
        part=RuleUser.SWITCHES, verbs=("list", "watch", "patch"), on=_on(kinds.NOTEBOOK, kinds.INFERENCE_SERVICE)
    ),
    RequiredRule(part=RuleUser.SUSPEND_AT, verbs=("patch",), on=_on(kinds.POD)),
    RequiredRule(
        part=RuleUser.PLANS,
        verbs=("list", "watch"),
        on=_on(
            kinds.NAMESPACE,
            kinds.NODE,
            kinds.CLUSTER_QUEUE,
            kinds.COHORT,
            kinds.LOCAL_QUEUE,
            kinds.RESOURCE_FLAVOR,
            kinds.ADMISSION_CHECK,
            kinds.CLUSTER_OFFER,
        ),
    ),
    RequiredRule(part=RuleUser.CHECKS, verbs=("list", "watch"), on=_on(kinds.RECLAIM_POLICY)),
    RequiredRule(
        part=RuleUser.CHECKS,
        verbs=("patch",),
        on=_on(kinds.WORKLOAD, kinds.ADMISSION_CHECK, kinds.RECLAIM_POLICY, subresource="status"),
    ),
    RequiredRule(part=RuleUser.CHECKS, verbs=("get",), on=_on(kinds.ADMISSION_CHECK, kinds.RECLAIM_POLICY)),
    RequiredRule(
        part=RuleUser.PROVISIONING,
        verbs=("get", "list", "watch", "create", "delete"),
        on=_on(kinds.PROVISIONING_REQUEST),
    ),
    RequiredRule(part=RuleUser.PROVISIONING, verbs=("get", "create", "delete"), on=_on(kinds.POD_TEMPLATE)),
    RequiredRule(part=RuleUser.OFFERS, verbs=("patch",), on=_on(kinds.CLUSTER_OFFER, subresource="status")),
    RequiredRule(
        part=RuleUser.DISPATCHER,
        verbs=("list", "watch"),
        on=_on(kinds.MULTIKUEUE_CONFIG, kinds.MULTIKUEUE_CLUSTER, kinds.PLACEMENT_DECISION, kinds.PROFILE_DECISION),
    ),
    RequiredRule(part=RuleUser.DISPATCHER, verbs=("get",), on=_on(kinds.SECRET), in_kueue_namespace=True),
    RequiredRule(part=RuleUser.DISPATCHER, verbs=("get",), on=_on(kinds.WORKLOAD)),
    RequiredRule(part=RuleUser.DISPATCHER, verbs=("patch",), on=_on(kinds.WORKLOAD, subresource="status")),
    RequiredRule(part=RuleUser.SCORES, verbs=("create",), on=_on(kinds.ADD_ON_PLACEMENT_SCORE)),
    RequiredRule(part=RuleUser.SCORES, verbs=("patch",), on=_on(kinds.ADD_ON_PLACEMENT_SCORE, subresource="status")),
    RequiredRule(part=RuleUser.TOKENS, verbs=("create",), on=_on(kinds.TOKEN_REVIEW, kinds.SUBJECT_ACCESS_REVIEW)),
)


OPTIONAL = frozenset({RuleUser.TOKENS, RuleUser.SUSPEND_AT, RuleUser.DISPATCHER, RuleUser.SCORES})
"""What is off unless settings turn it on."""
CONFINED = frozenset(
    {RuleUser.SCALER, RuleUser.RECONCILER, RuleUser.POLICIES, RuleUser.SWITCHES, RuleUser.TOKENS, RuleUser.SUSPEND_AT}
)
"""The rules that count where only some namespaces are watched: quota and nodes are not known then."""


def required_rules(
    *, reconciles: bool, is_confined: bool = False, optional: Collection[RuleUser] = ()
) -> Sequence[RequiredRule]:
    """The lines that count: processes that only answer KEDA watch what the others watch, and write nothing.

    `optional`: of what is optional, what is on.
    """
    needs = [need for need in REQUIRED_RULES if need.part in CONFINED or not is_confined]
    needs = [need for need in needs if need.part not in OPTIONAL or need.part in optional]
    if reconciles:
        return needs
    watching = [replace(need, verbs=tuple(verb for verb in need.verbs if verb in ("list", "watch"))) for need in needs]
    own = (RuleUser.SCALER, RuleUser.TOKENS)
    answering = (need if need.part in own else seen for need, seen in zip(needs, watching, strict=True))
    return [need for need in answering if need.verbs]


def attributes_of(
    need: RequiredRule,
    *,
    targets: Set[Resource],
    namespaces: Collection[str] = (),
    lease_namespace: str,
    lease_name: str = "",
    kueue_namespace: str = "kueue-system",
) -> list[ResourceAttributes]:
    """The questions that the need comes to.

    `targets` are the kinds that ScaledObjects scale; `namespaces` are the only ones that are watched; empty: all are.
    With a `lease_name` no more is asked for than that Lease, and what is named after it; `create` cannot be restricted
    by name.
    """
    things = [*need.on]
    if need.on_targets:
        scaled = sorted(targets, key=lambda each: each.qualified_name)
        things += [RuleResource(resource=each, subresource=need.subresource_of_targets) for each in scaled]
    places = namespaces or ("",)
    if need.in_lease_namespace or need.in_kueue_namespace:
        places = (lease_namespace if need.in_lease_namespace else kueue_namespace,)
    return [
        ResourceAttributes(
            verb=verb,
            group=thing.resource.group,
            resource=thing.resource.plural,
            subresource=thing.subresource,
            namespace=place,
            name=lease_name + need.suffix if lease_name and need.in_lease_namespace and verb != "create" else "",
        )
        for thing in things
        for place in (places if thing.resource.namespaced else ("",))
        for verb in need.verbs
    ]


Reviews = Sequence[tuple[RequiredRule, Mapping[ResourceAttributes, bool | Unread]]]
"""The questions of every rule, and what the API answered."""


def permission_findings(reviews: Reviews, used: Set[RuleUser]) -> Iterator[Finding]:
    """One finding per rule, but for nodes that no ReclaimPolicy asks for. `used` are the parts that are needed here."""
    needed = (
        (rule, answers) for rule, answers in reviews if rule.part is not RuleUser.PROVISIONING or rule.part in used
    )
    return (_finding(rule, answers, is_used=rule.part in used) for rule, answers in needed if answers)


def _finding(rule: RequiredRule, answers: Mapping[ResourceAttributes, bool | Unread], *, is_used: bool) -> Finding:
    unknown = [answer for answer in answers.values() if isinstance(answer, Unread)]
    denied = [str(each) for each, answer in answers.items() if answer is False]
    about = Subject(Topic.PERMISSIONS, str(rule.part))
    if denied:
        role = "Role there" if all(each.namespace for each in answers) else "ClusterRole"
        do = f"bind its account to a {role} that allows this; docs/install.md has the whole table"
        severity = Severity.FAIL if is_used else Severity.WARN
        return about.finding(severity, "Denied", f"it may not {'; '.join(denied)}", do)
    if unknown:
        return about.warn("NotRead", unknown[0].reason)
    return about.ok("Allowed", f"{', '.join(rule.verbs)} {_objects_of(answers)}")


def _objects_of(asks: Iterable[ResourceAttributes]) -> str:
    names = dict.fromkeys(str(replace(ask, verb="", namespace="", name="")).strip() for ask in asks)
    places = [*dict.fromkeys(ask.namespace for ask in asks if ask.namespace)]
    where = f" in namespace{'s' if len(places) > 1 else ''} {', '.join(places)}" if places else ""
    return ", ".join(names) + where
