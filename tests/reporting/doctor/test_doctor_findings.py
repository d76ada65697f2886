"""What `doctor` says of kinds, permissions, AdmissionChecks, ClusterQueues and ScaledObjects, as tables."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from scaler.idleness.policy import Overrides, Reclaim
from scaler.kube.objects.idlegpu import ReclaimPolicy, ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, Service
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import DEPLOYMENT
from scaler.reporting.doctor.api_resources import REQUIRED_KINDS
from scaler.reporting.doctor.facts import ClusterObjects, DoctorInputs, DoctorSettings, diagnose, parts_in_use
from scaler.reporting.doctor.findings import Listing, Severity, Topic, Unread, counts
from scaler.reporting.doctor.permissions import REQUIRED_RULES, RuleUser, attributes_of, required_rules

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OK, WARN, FAIL = Severity.OK, Severity.WARN, Severity.FAIL

SERVED = {
    group: {
        wanted.resources[0].version: {each.kind for each in REQUIRED_KINDS if each.group == group} for wanted in wanteds
    }
    for group in {each.group for each in REQUIRED_KINDS}
    for wanteds in [[each for each in REQUIRED_KINDS if each.group == group]]
}
WANTED_BY_DEFAULT = DoctorSettings()

# ------------------------------------------------------------------------------------------------------------- builders


def made(kind, name, namespace="", **parts):
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, **parts}, kind)


def policy(name="policy", **spec):
    return made(ReclaimPolicy, name, spec=spec)


PROVISIONS = {"className": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}
PODS_ONLY = {"requireFit": False, "reuse": {"enabled": False}}


def ours(name="gate", params="policy", active="True"):
    status = {"conditions": [{"type": "Active", "status": active, "reason": "Because", "message": "of it"}]}
    parameters = {"apiGroup": "idlegpu.io", "kind": "ReclaimPolicy", "name": params}
    spec = {"controllerName": "idlegpu.io/reclaim"} | ({"parameters": parameters} if params else {})
    return made(AdmissionCheck, name, spec=spec, status=status if active else {})


def theirs(name, controller):
    return made(AdmissionCheck, name, spec={"controllerName": f"kueue.x-k8s.io/{controller}"})


KUEUE = theirs("nodes-by-kueue", "provisioning-request")
MULTIKUEUE = theirs("elsewhere", "multikueue")


def queue(name="gpus", *checks, flavors=("a100",), cohort="", strategy="StrictFIFO", **more):
    rules = [each if isinstance(each, dict) else {"name": each} for each in checks]
    quotas = [{"name": flavor, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]} for flavor in flavors]
    spec = {
        "cohortName": cohort,
        "queueingStrategy": strategy,
        "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": quotas}],
        "admissionChecksStrategy": {"admissionChecks": rules},
    }
    return made(ClusterQueue, name, spec=spec | more.pop("spec", {}), **more)


def flavor(name="a100", **spec):
    return made(ResourceFlavor, name, spec=spec)


def scaled_object(name="notebook", *, metadata=None, target="ScalableWorkload", status=None, **spec):
    api_version = "apps/v1" if target == "Deployment" else "idlegpu.io/v1alpha1"
    trigger = {"type": "external", "metadata": {"scalerAddress": "scaler.gpus.svc:9090", **(metadata or {})}}
    defaults = {
        "scaleTargetRef": {"apiVersion": api_version, "kind": target, "name": name},
        "maxReplicaCount": 1,
        "triggers": [trigger],
    }
    return made(ScaledObject, name, "team", spec=defaults | spec, status=status or {})


def scalable(name="notebook"):
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
    return made(ScalableWorkload, name, "team", spec={"jobRef": job})


def workload(job="notebook"):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
    metadata = {"name": f"job-{job}", "namespace": "team", "ownerReferences": [owner]}
    return msgspec.convert({"metadata": metadata, "spec": {"queueName": "local"}}, Workload)


def service(**spec):
    return made(Service, "scaler", "gpus", spec={"clusterIP": "None", "ports": [{"port": 9090}]} | spec)


def facts(*objects, wanted=WANTED_BY_DEFAULT, served=SERVED):
    def of(kind):
        return Listing(items=[each for each in objects if isinstance(each, kind)])

    found = ClusterObjects(
        checks=of(AdmissionCheck),
        policies=of(ReclaimPolicy),
        cluster_queues=of(ClusterQueue),
        cohorts=of(Cohort),
        local_queues=of(LocalQueue),
        flavors=of(ResourceFlavor),
        workloads=of(Workload),
        scaled_objects=of(ScaledObject),
        scalable_workloads=of(ScalableWorkload),
        services=of(Service),
    )
    return DoctorInputs(version="v1.36.0", served=served, objects=found, wanted=wanted)


def told(the_facts, topic):
    """What is not in order with the topic: severity, check and object."""
    found = [each for each in diagnose(the_facts, NOW) if each.topic is topic]
    return {(each.severity, each.check, each.where.partition(" ")[2]) for each in found if each.severity is not OK}


# ---------------------------------------------------------------------------------------------------------------- kinds

KINDS = {
    "everything there": ({}, set()),
    "no Kueue at all, which Deployments do not need": (
        {"kueue.x-k8s.io": {}},
        {(WARN, "NotServed")},
    ),
    "a Kueue that is too old": (
        {"kueue.x-k8s.io": {"v1beta1": {"Workload"}}},
        {(FAIL, "VersionNotServed"), (WARN, "NotServed")},
    ),
    "no KEDA": ({"keda.sh": {}}, {(FAIL, "NotServed")}),
    "our own definitions are missing": ({"idlegpu.io": {}}, {(FAIL, "NotServed")}),
    "an older autoscaler's ProvisioningRequest will do": (
        {"autoscaling.x-k8s.io": {"v1beta1": {"ProvisioningRequest"}}},
        set(),
    ),
    "none is needed where nobody asks for nodes": ({"autoscaling.x-k8s.io": {}}, set()),
}


@pytest.mark.parametrize(("change", "expected"), KINDS.values(), ids=KINDS.keys())
def test_kinds_that_are_not_served_are_told_by_what_does_not_work_without_them(change, expected):
    found = [each for each in diagnose(facts(served=SERVED | change), NOW) if each.topic is Topic.KINDS]
    assert {(each.severity, each.check) for each in found if each.severity is not OK} == expected
    assert all(each.do for each in found if each.severity is not OK)


def test_an_api_that_does_not_answer_is_one_failure_and_not_a_hundred():
    silent = DoctorInputs(version=Unread("refused"), served=Unread("refused"), objects=ClusterObjects())
    failed = [each.check for each in diagnose(silent, NOW) if each.severity is FAIL]
    assert failed == ["Unreachable", "NotRead"]


def test_what_may_not_be_listed_is_a_failure_and_what_is_no_kind_is_told_once():
    denied = facts()
    denied = replace(denied, objects=replace(denied.objects, cluster_queues=Unread("403: grant verb 'list'")))
    assert (FAIL, "NotRead", "of ClusterQueue") in told(denied, Topic.QUEUES)
    absent = replace(denied, objects=replace(denied.objects, cluster_queues=Unread("404", is_absent=True)))
    assert not told(absent, Topic.QUEUES)
    # Only this diagnosis reads Services; the program itself does without, and its roles leave them out.
    unserved = replace(denied, objects=ClusterObjects(services=Unread("403: grant verb 'list'")))
    [services] = [each for each in diagnose(unserved, NOW) if each.what.startswith("Services were not read")]
    assert (services.severity, services.check, services.do) == (OK, "NotRead", "")
    assert not [each for each in diagnose(unserved, NOW) if "Service" in each.where]
    garbled = replace(denied, objects=replace(denied.objects, cluster_queues=Listing(unreadable=[("gpus", "no int")])))
    assert told(garbled, Topic.QUEUES) == {(WARN, "Unreadable", "gpus")}


# ---------------------------------------------------------------------------------------------------------- permissions


def permissions(the_facts, *denied, unknown=()):
    asked = [
        (need, attributes_of(need, targets=frozenset({DEPLOYMENT}), lease_namespace="gpus")) for need in REQUIRED_RULES
    ]
    answers = {str(ask): ask for _, asks in asked for ask in asks}
    assert {*denied, *unknown} <= answers.keys()
    allowed = {ask: text not in denied for text, ask in answers.items()}
    allowed |= {answers[each]: Unread("no answer") for each in unknown}
    return replace(the_facts, asked=asked, allowed=allowed)


DENIED = {
    "nothing is denied": ([], facts(), set()),
    "what everybody needs": (["list pods"], facts(), {(FAIL, "Denied", "scaler")}),
    "a kind that is scaled": (["get deployments/scale.apps"], facts(), {(FAIL, "Denied", "scaler")}),
    "the Lease, in its own namespace": (
        ["update leases.coordination.k8s.io in namespace gpus"],
        facts(),
        {(FAIL, "Denied", "scaler")},
    ),
    "what plans need, and plans are made": (["watch nodes"], facts(), {(FAIL, "Denied", "")}),
    "what plans need, and none are made": (
        ["watch nodes"],
        facts(wanted=DoctorSettings(pressure=False)),
        {(WARN, "Denied", "")},
    ),
    "what checks need, and there is none": (["patch workloads/status.kueue.x-k8s.io"], facts(), {(WARN, "Denied", "")}),
    "what checks need, and there is one": (
        ["patch workloads/status.kueue.x-k8s.io"],
        facts(ours(), policy()),
        {(FAIL, "Denied", "")},
    ),
    "what asking for nodes needs": (
        ["create podtemplates"],
        facts(ours(), policy(provisioning=PROVISIONS)),
        {(FAIL, "Denied", "")},
    ),
}


@pytest.mark.parametrize(("denied", "the_facts", "expected"), DENIED.values(), ids=DENIED.keys())
def test_a_permission_that_is_missing_fails_where_something_needs_it(denied, the_facts, expected):
    assert told(permissions(the_facts, *denied), Topic.PERMISSIONS) == expected


def test_every_need_is_told_with_what_it_is_for_and_what_is_missing_is_named():
    found = [
        each
        for each in diagnose(permissions(facts(), "list pods", unknown=["create events"]), NOW)
        if each.topic is Topic.PERMISSIONS
    ]
    assert len(found) == len(REQUIRED_RULES)
    [denied] = [each for each in found if each.severity is FAIL]
    assert denied.what == "it may not list pods"
    assert [each.what for each in found if each.severity is WARN] == ["no answer"]


def asked_of_the_confined(*namespaces):
    needs = required_rules(reconciles=True, is_confined=True)
    targets = frozenset({DEPLOYMENT})
    return [
        (need, attributes_of(need, targets=targets, namespaces=namespaces, lease_namespace="gpus")) for need in needs
    ]


def test_one_who_looks_after_some_namespaces_asks_in_each_and_for_nothing_of_the_whole_cluster():
    asks = [ask for _, asks in asked_of_the_confined("a", "b") for ask in asks]
    assert {ask.namespace for ask in asks if ask.resource == "leases"} == {"gpus"}
    others = [ask for ask in asks if ask.resource != "leases"]
    assert {ask.resource for ask in others} == {
        "pods", "scaledobjects", "workloads", "scalableworkloads", "deployments", "events"
    }  # fmt: skip
    in_a = {replace(ask, namespace="") for ask in others if ask.namespace == "a"}
    assert in_a == {replace(ask, namespace="") for ask in others if ask.namespace == "b"}
    assert {ask.namespace for ask in others} == {"a", "b"}


def test_it_is_asked_about_the_one_lease_but_for_making_it():
    """Who makes an object has no name to be allowed by: a Role that grants it by name grants nothing."""
    [need] = [each for each in REQUIRED_RULES if each.in_lease_namespace]
    asks = attributes_of(need, targets=frozenset(), lease_namespace="gpus", lease_name="ours")
    assert {ask.verb: ask.name for ask in asks} == {"get": "ours", "create": "", "update": "ours"}


def test_what_is_missing_in_one_namespace_is_named_and_a_role_there_is_enough():
    asked = asked_of_the_confined("a", "b")
    allowed = {ask: not (ask.namespace == "b" and ask.resource == "pods") for _, asks in asked for ask in asks}
    found = diagnose(replace(confined("a", "b"), asked=asked, allowed=allowed), NOW)
    in_namespaces = [each for each in found if each.where == "the scaler" and "leases" not in each.what]
    by_severity = {each.severity: each for each in in_namespaces}
    assert by_severity[FAIL].what == "it may not list pods in namespace b; watch pods in namespace b"
    assert by_severity[FAIL].do.startswith("bind its account to a Role there")
    assert by_severity[Severity.OK].what == "get deployments/scale.apps in namespaces a, b"


def confined(*namespaces, **more):
    return replace(facts(wanted=DoctorSettings(namespaces=namespaces)), **more)


def test_it_is_said_that_only_some_namespaces_are_looked_after_and_which_do_not_exist():
    [said] = [each for each in diagnose(confined("a", "b"), NOW) if each.check == "Confined"]
    assert (said.severity, said.where) == (Severity.OK, "a, b")
    assert "no plans are made and no AdmissionChecks are answered" in said.what
    assert told(confined("a", "b", unborn=["b"]), Topic.PERMISSIONS) == {(FAIL, "NoSuchNamespace", "b")}
    assert told(confined("a", "b"), Topic.PERMISSIONS) == set()
    assert not [each for each in diagnose(facts(), NOW) if each.check == "Confined"]


def test_a_namespace_that_cannot_be_read_hides_what_is_there_and_not_the_others():
    """Nothing is said to be missing that may be in there."""
    hidden = Listing(hidden=[("b", "403: forbidden")])
    found = told(confined("a", "b", objects=ClusterObjects(scalable_workloads=hidden)), Topic.SCALED_OBJECTS)
    assert (FAIL, "NotRead", "of ScalableWorkload in namespace b") in found
    assert ClusterObjects(scalable_workloads=hidden).scaling(DoctorSettings()).scalable_workloads is None


def test_where_nothing_is_reconciled_nobody_has_to_write_but_the_lease():
    elected = [need for need in required_rules(reconciles=False) if need.in_lease_namespace]
    assert elected == [need for need in REQUIRED_RULES if need.in_lease_namespace] != []
    needs = [need for need in required_rules(reconciles=False) if not need.in_lease_namespace]
    assert {verb for need in needs for verb in need.verbs} == {"get", "list", "watch"}
    assert {need.part for need in needs if "get" in need.verbs} == {RuleUser.SCALER}
    watched = {(part, on) for part, on, verb in uses(REQUIRED_RULES) if verb in ("list", "watch")}
    assert watched == {(part, on) for part, on, verb in uses(needs) if verb != "get"}


def uses(needs):
    return {(need.part, str(on), verb) for need in needs for on in need.on for verb in need.verbs}


def test_parts_that_are_used_follow_from_checks_and_policies():
    everybody = {RuleUser.SCALER, RuleUser.RECONCILER, RuleUser.PLANS}
    assert parts_in_use(facts()) == everybody
    assert parts_in_use(facts(ours(), policy())) == everybody | {RuleUser.CHECKS}
    assert parts_in_use(facts(ours(), policy(provisioning=PROVISIONS))) == everybody | {
        RuleUser.CHECKS,
        RuleUser.PROVISIONING,
    }


# ------------------------------------------------------------------------------------------------------ AdmissionChecks

FROM_DETAIL = [{"key": "pool", "valueFromProvisioningClassDetail": "pool"}]
CHECKS = {
    "active, used, followed": ([ours(), policy(), queue("gpus", "gate")], set()),
    "without parameters all are defaults": ([ours(params=""), queue("gpus", "gate")], set()),
    "its policy is not there": ([ours(), queue("gpus", "gate")], {(FAIL, "PolicyUnusable", "gate")}),
    "its policy makes no sense": (
        [ours(), policy(requireFit=False, provisioning=PROVISIONS), queue("gpus", "gate")],
        {(FAIL, "PolicyUnusable", "gate")},
    ),
    "its parameters are of another kind": (
        [
            made(
                AdmissionCheck,
                "gate",
                spec={
                    "controllerName": "idlegpu.io/reclaim",
                    "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "x"},
                },
                status={"conditions": [{"type": "Active", "status": "True"}]},
            ),
            queue("gpus", "gate"),
        ],
        {(FAIL, "PolicyUnusable", "gate")},
    ),
    "nobody uses it": ([ours(), policy()], {(WARN, "Unused", "gate")}),
    "nobody keeps it active": ([ours(active=""), policy(), queue("gpus", "gate")], {(FAIL, "NotActive", "gate")}),
    "it says that it is not active": (
        [ours(active="False"), policy(), queue("gpus", "gate")],
        {(FAIL, "NotActive", "gate")},
    ),
    "not active, and nobody waits for it": (
        [ours(active="False"), policy()],
        {(WARN, "NotActive", "gate"), (WARN, "Unused", "gate")},
    ),
    "it pins by a label of a flavor": (
        [
            ours(),
            policy(pin={"enabled": True}),
            queue("gpus", "gate"),
            flavor(nodeLabels={"kubernetes.io/hostname": "n1"}),
        ],
        {(FAIL, "KeyOfFlavor", "gate")},
    ),
    "it selects by a label of a flavor": (
        [
            ours(),
            policy(provisioning=PROVISIONS | {"podSetUpdates": {"nodeSelector": FROM_DETAIL}}),
            queue("gpus", "gate"),
            flavor(nodeLabels={"pool": "a"}),
        ],
        {(FAIL, "KeyOfFlavor", "gate")},
    ),
    "of a flavor that the check is not for": (
        [
            ours(),
            policy(provisioning=PROVISIONS | {"podSetUpdates": {"nodeSelector": FROM_DETAIL}}),
            queue("gpus", {"name": "gate", "onFlavors": ["spot"]}, flavors=("spot", "a100")),
            flavor(nodeLabels={"pool": "a"}),
        ],
        set(),
    ),
}


@pytest.mark.parametrize(("objects", "expected"), CHECKS.values(), ids=CHECKS.keys())
def test_checks_that_cannot_work_are_told(objects, expected):
    assert told(facts(*objects), Topic.CHECKS) == expected


def test_a_check_that_asks_for_nodes_needs_provisioning_requests_to_be_served():
    objects = [ours(), policy(provisioning=PROVISIONS), queue("gpus", "gate")]
    without = SERVED | {"autoscaling.x-k8s.io": {}}
    assert told(facts(*objects, served=without), Topic.CHECKS) == {(FAIL, "ProvisioningNotServed", "gate")}
    beta = SERVED | {"autoscaling.x-k8s.io": {"v1beta1": {"ProvisioningRequest"}}}
    assert told(facts(*objects, served=beta), Topic.CHECKS) == set()


def test_a_check_that_is_in_order_says_what_its_gangs_wait_for():
    objects = [ours(), policy(provisioning=PROVISIONS), queue("gpus", "gate"), queue("more", "gate")]
    [fine] = [each for each in diagnose(facts(*objects), NOW) if each.topic is Topic.CHECKS]
    assert fine.what == (
        "Active in gpus, more: waits for victims' pods to terminate and free capacity for the whole gang; "
        "reclaims idle GPUs; requests nodes of class best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    )


# -------------------------------------------------------------------------------------------------------- ClusterQueues


def gate(name="gate", **spec):
    return [ours(name, params=f"{name}-policy"), policy(f"{name}-policy", **spec)]


NODES = {"provisioning": PROVISIONS}
QUEUES = {
    "no checks at all": ([queue()], set()),
    "ours alone": ([*gate(), queue("gpus", "gate")], set()),
    "a check that is not there": ([queue("gpus", "gate")], {(FAIL, "CheckNotFound", "gpus")}),
    "ours for pods beside Kueue's provisioning: a pre-gate": (
        [*gate(**PODS_ONLY), KUEUE, queue("gpus", "gate", "nodes-by-kueue")],
        set(),
    ),
    "ours for room beside Kueue's provisioning": (
        [*gate(), KUEUE, queue("gpus", "gate", "nodes-by-kueue")],
        {(WARN, "NodesBeforeReuse", "gpus")},
    ),
    "ours for nodes beside Kueue's provisioning": (
        [*gate(**NODES), KUEUE, queue("gpus", "gate", "nodes-by-kueue")],
        {(FAIL, "TwoAskForNodes", "gpus")},
    ),
    "the same, each for a flavor of its own": (
        [
            *gate(**NODES),
            KUEUE,
            queue(
                "gpus",
                {"name": "gate", "onFlavors": ["spot"]},
                {"name": "nodes-by-kueue", "onFlavors": ["a100"]},
                flavors=("spot", "a100"),
            ),
        ],
        set(),
    ),
    "the same, one of them for all flavors": (
        [
            *gate(**NODES),
            KUEUE,
            queue("gpus", {"name": "gate", "onFlavors": ["spot"]}, "nodes-by-kueue", flavors=("spot", "a100")),
        ],
        {(FAIL, "TwoAskForNodes", "gpus")},
    ),
    "two of ours that ask for nodes": (
        [*gate("one", **NODES), *gate("two", **NODES), queue("gpus", "one", "two")],
        {(FAIL, "TwoAskForNodes", "gpus")},
    ),
    "two of ours, one of which asks for nodes": (
        [*gate("one", **NODES), *gate("two"), queue("gpus", "one", "two")],
        set(),
    ),
    "ours beside MultiKueue: a pre-gate": ([*gate(), MULTIKUEUE, queue("gpus", "gate", "elsewhere")], set()),
    "MultiKueue beside Kueue's provisioning": (
        [MULTIKUEUE, KUEUE, queue("gpus", "elsewhere", "nodes-by-kueue")],
        {(FAIL, "MultiKueueWithProvisioning", "gpus")},
    ),
    "MultiKueue beside Kueue's provisioning on any flavor": (
        [MULTIKUEUE, KUEUE, queue("gpus", "elsewhere", {"name": "nodes-by-kueue", "onFlavors": ["other"]})],
        {(FAIL, "MultiKueueWithProvisioning", "gpus")},
    ),
    "MultiKueue twice": (
        [MULTIKUEUE, theirs("too", "multikueue"), queue("gpus", "elsewhere", "too")],
        {(FAIL, "MultiKueueTwice", "gpus")},
    ),
    "a policy that nobody can follow says nothing about the pair": (
        [ours(), KUEUE, queue("gpus", "gate", "nodes-by-kueue")],
        set(),
    ),
    "Kueue says that it is inactive": (
        [queue(status={"conditions": [{"type": "Active", "status": "False", "reason": "FlavorNotFound"}]})],
        {(FAIL, "Inactive", "gpus")},
    ),
    "it was stopped on purpose": (
        [
            queue(
                spec={"stopPolicy": "Hold"},
                status={"conditions": [{"type": "Active", "status": "False", "reason": "Stopped"}]},
            )
        ],
        {(WARN, "Inactive", "gpus")},
    ),
    "a flavor with a Topology that has to do with us": (
        [*gate(), queue("gpus", "gate"), flavor(topologyName="racks")],
        {(WARN, "Topology", "gpus")},
    ),
    "a flavor with a Topology that has not": ([queue(), flavor(topologyName="racks")], set()),
    "asking for nodes of a flavor with a Topology": (
        [*gate(**NODES), queue("gpus", "gate"), flavor(topologyName="racks")],
        {(WARN, "Topology", "gpus"), (WARN, "TopologyAsksForNothing", "gpus")},
    ),
}


@pytest.mark.parametrize(("objects", "expected"), QUEUES.values(), ids=QUEUES.keys())
def test_combinations_of_checks_that_do_not_work_are_told(objects, expected):
    assert told(facts(*objects), Topic.QUEUES) == expected


def test_a_pre_gate_is_explained_and_not_complained_about():
    objects = [*gate(**PODS_ONLY), KUEUE, queue("gpus", "gate", "nodes-by-kueue")]
    found = [each for each in diagnose(facts(*objects), NOW) if each.check == "PreGate"]
    assert [(each.severity, each.where) for each in found] == [(OK, "ClusterQueue gpus")]
    assert "while ours waits for victims' pods to end" in found[0].what


LOCAL = made(LocalQueue, "local", "team", spec={"clusterQueue": "gpus"})
PRESSED = {"reclaim": "OnPressure", "idleAfterUnderPressure": "5m"}
NOTEBOOK = [scaled_object(metadata=PRESSED, cooldownPeriod=30), scalable(), workload(), LOCAL, service()]
ALWAYS = [scaled_object(), *NOTEBOOK[1:]]
FREED = {
    "guarded and in order": ([*NOTEBOOK, *gate(), queue("gpus", "gate")], set()),
    "BestEffortFIFO": (
        [*NOTEBOOK, *gate(), queue("gpus", "gate", strategy="BestEffortFIFO")],
        {(WARN, "FreedQuotaNotReserved", "gpus")},
    ),
    "BestEffortFIFO where nobody is reclaimed": (
        [*ALWAYS, *gate(), queue("gpus", "gate", strategy="BestEffortFIFO")],
        set(),
    ),
    "BestEffortFIFO of a neighbour": (
        [
            *NOTEBOOK,
            *gate(),
            queue("gpus", "gate", cohort="all"),
            queue("other", "gate", cohort="all", strategy="BestEffortFIFO"),
        ],
        {(WARN, "FreedQuotaNotReserved", "other")},
    ),
    "of a neighbour by way of the cohorts' parent": (
        [
            *NOTEBOOK,
            *gate(),
            queue("gpus", "gate", cohort="left"),
            queue("other", "gate", cohort="right", strategy="BestEffortFIFO"),
            made(Cohort, "left", spec={"parentName": "root"}),
            made(Cohort, "right", spec={"parentName": "root"}),
        ],
        {(WARN, "FreedQuotaNotReserved", "other")},
    ),
    "of somebody who shares no quota": (
        [*NOTEBOOK, *gate(), queue("gpus", "gate"), queue("other", "gate", strategy="BestEffortFIFO")],
        set(),
    ),
    "cohorts in a ring end nowhere, and nobody waits for that": (
        [
            *NOTEBOOK,
            *gate(),
            queue("gpus", "gate", cohort="left"),
            made(Cohort, "left", spec={"parentName": "right"}),
            made(Cohort, "right", spec={"parentName": "left"}),
        ],
        set(),
    ),
    "nothing guards what is freed": ([*ALWAYS, queue()], {(WARN, "Unguarded", "gpus")}),
    "nothing guards it with the neighbour": (
        [*ALWAYS, *gate(), queue("gpus", "gate", cohort="all"), queue("other", cohort="all")],
        {(WARN, "Unguarded", "other")},
    ),
}


@pytest.mark.parametrize(("objects", "expected"), FREED.values(), ids=FREED.keys())
def test_queues_in_which_freed_quota_is_not_safe_are_told(objects, expected):
    assert told(facts(*objects), Topic.QUEUES) == expected


UNREAD = {
    "AdmissionChecks": ("checks", Unread("403"), {(Topic.CHECKS, FAIL, "NotRead")}),
    "one AdmissionCheck": ("checks", Listing(unreadable=[("gate", "no int")]), {(Topic.CHECKS, WARN, "Unreadable")}),
    "ReclaimPolicies": ("policies", Unread("403"), {(Topic.CHECKS, FAIL, "NotRead")}),
    "one ReclaimPolicy": (
        "policies",
        Listing(unreadable=[("gate-policy", "no int")]),
        {(Topic.CHECKS, WARN, "Unreadable")},
    ),
    "ClusterQueues": ("cluster_queues", Unread("403"), {(Topic.QUEUES, FAIL, "NotRead")}),
    "ScaledObjects": ("scaled_objects", Unread("403"), {(Topic.SCALED_OBJECTS, FAIL, "NotRead")}),
    "ScaledObjects of a namespace": (
        "scaled_objects",
        Listing(hidden=[("team", "403")]),
        {(Topic.SCALED_OBJECTS, FAIL, "NotRead")},
    ),
    "one ScalableWorkload": (
        "scalable_workloads",
        Listing(unreadable=[("team/notebook", "no int")]),
        {(Topic.SCALED_OBJECTS, WARN, "Unreadable")},
    ),
}


@pytest.mark.parametrize(("kind", "unread", "expected"), UNREAD.values(), ids=UNREAD.keys())
def test_what_could_not_be_read_is_told_once_and_not_said_to_be_missing(kind, unread, expected):
    whole = facts(*ALWAYS, *gate(), queue("gpus", "gate"))
    found = diagnose(replace(whole, objects=replace(whole.objects, **{kind: unread})), NOW)
    topics = (Topic.CHECKS, Topic.QUEUES, Topic.SCALED_OBJECTS)
    assert {
        (each.topic, each.severity, each.check) for each in found if each.severity is not OK and each.topic in topics
    } == expected
    assert not any(each.what.rstrip().endswith((":", " in")) for each in found)


def test_a_queue_that_names_no_check_is_unguarded_whoever_may_read_checks():
    the_facts = facts(*ALWAYS, queue())
    the_facts = replace(the_facts, objects=replace(the_facts.objects, checks=Unread("403")))
    assert told(the_facts, Topic.QUEUES) == {(WARN, "Unguarded", "gpus")}


def test_plans_and_requests_for_nodes_go_together_without_further_settings():
    assert told(facts(*NOTEBOOK, *gate(**NODES), queue("gpus", "gate")), Topic.CHECKS) == set()


def test_what_follows_from_unreserved_quota_depends_on_the_settings():
    objects = [*NOTEBOOK, *gate(), queue("gpus", "gate", strategy="BestEffortFIFO")]
    for refuses, words in ((False, "may be admitted into freed quota"), (True, "no plan is made for its gangs")):
        the_facts = facts(*objects, wanted=DoctorSettings(refuses_unprotected=refuses))
        [found] = [each for each in diagnose(the_facts, NOW) if each.check == "FreedQuotaNotReserved"]
        assert words in found.what


# -------------------------------------------------------------------------------------------------------- ScaledObjects

SCALED = {
    "as it has to be": ({}, set()),
    "a fallback": ({"fallback": {"failureThreshold": 3, "replicas": 0}}, {(FAIL, "Fallback")}),
    "a minimum above 0": ({"minReplicaCount": 1}, {(WARN, "NeverZero")}),
    "a minimum above 0 that is left when idle": ({"minReplicaCount": 1, "idleReplicaCount": 0}, set()),
    "KEDA's default maximum of 100": ({"maxReplicaCount": 100}, {(WARN, "MoreThanOne")}),
    "no cooldown": ({"cooldownPeriod": 0}, {(WARN, "NoCooldown")}),
    "not ready": (
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "TriggerError"}]}},
        {(WARN, "NotReady")},
    ),
    "metadata that is misspelt": ({"metadata": {"idleafter": "5 minutes"}}, {(FAIL, "InvalidMetadata")}),
    "longer than the operator allows": ({"metadata": {"idleAfter": "25h"}}, {(FAIL, "WindowTooLong")}),
    # 30 s + 570 s = 10 min, which is when the grant has ended.
    "KEDA as slow as grants last": (
        {"metadata": PRESSED, "cooldownPeriod": 570},
        {(WARN, "SlowerThanGrants")},
    ),
    "KEDA a second faster": ({"metadata": PRESSED, "cooldownPeriod": 569}, set()),
    "as slow, and taken by time": ({"cooldownPeriod": 570}, set()),
    "a Deployment that only a plan may take": (
        {"metadata": PRESSED, "cooldownPeriod": 30, "target": "Deployment"},
        {(WARN, "NotReclaimable")},
    ),
    "a Deployment that only preemption may take": (
        {"metadata": {"reclaim": "PriorityBoost"}, "target": "Deployment"},
        {(WARN, "NotReclaimable")},
    ),
    "a Deployment that time takes": ({"target": "Deployment"}, set()),
}


@pytest.mark.parametrize(("spec", "expected"), SCALED.values(), ids=SCALED.keys())
def test_scaled_objects_that_are_treated_otherwise_than_meant_are_told(spec, expected):
    found = told(facts(scaled_object(**spec), scalable(), service()), Topic.SCALED_OBJECTS)
    assert found == {(*each, "team/notebook") for each in expected}


def test_settings_decide_where_metadata_is_silent():
    pressed = DoctorSettings(defaults=Overrides(reclaim=Reclaim.ON_PRESSURE), grant_for=timedelta(minutes=5))
    objects = [scaled_object(), scalable(), service()]
    # 30 s + 300 s > 5 min
    assert told(facts(*objects, wanted=pressed), Topic.SCALED_OBJECTS) == {(WARN, "SlowerThanGrants", "team/notebook")}
    off = replace(pressed, grant_for=timedelta(hours=1), pressure=False)
    assert told(facts(*objects, wanted=off), Topic.SCALED_OBJECTS) == {(WARN, "PressureOff", "team/notebook")}
    confined = replace(off, namespaces=("team",))
    assert told(facts(*objects, wanted=confined), Topic.SCALED_OBJECTS) == {(WARN, "NoPlans", "team/notebook")}


def test_a_target_that_is_missing_is_told_unless_nobody_may_look():
    alone = facts(scaled_object(), service())
    assert told(alone, Topic.SCALED_OBJECTS) == {(FAIL, "TargetNotFound", "team/notebook")}
    blind = replace(alone, objects=replace(alone.objects, scalable_workloads=Unread("403")))
    assert told(blind, Topic.SCALED_OBJECTS) == {(FAIL, "NotRead", "of ScalableWorkload")}


ADDRESSES = {
    "a headless Service with that port": ("scaler.gpus.svc:9090", [service()], set()),
    "in full": ("scaler.gpus.svc.cluster.local:9090", [service()], set()),
    "no Service of that name": ("scaler.elsewhere.svc:9090", [service()], {(FAIL, "NoService")}),
    "another port": ("scaler.gpus.svc:8080", [service()], {(FAIL, "NoPort")}),
    "a Service with a cluster IP": ("scaler.gpus.svc:9090", [service(clusterIP="10.0.0.1")], {(WARN, "NotHeadless")}),
    "no port": ("scaler.gpus.svc", [service()], {(FAIL, "NoAddress")}),
    "no address": ("", [service()], {(FAIL, "NoAddress")}),
    "a scheme and a port": ("dns:///:9090", [service()], {(FAIL, "NoAddress")}),
    "a name that is no name": ("scaler..svc:9090", [service()], {(FAIL, "NoAddress")}),
    "a port that is no port": ("scaler.gpus.svc:65536", [service()], {(FAIL, "NoAddress")}),
    "somewhere outside, which nobody here can see": ("gpus.example.com.:9090", [], set()),
    "an IP address": ("10.0.0.1:9090", [], set()),
}


@pytest.mark.parametrize(("address", "services", "expected"), ADDRESSES.values(), ids=ADDRESSES.keys())
def test_addresses_that_lead_nowhere_are_told_once(address, services, expected):
    metadata = {"scalerAddress": address}
    two = [scaled_object("one", metadata=metadata), scaled_object("two", metadata=metadata)]
    found = [
        each
        for each in diagnose(facts(*two, scalable("one"), scalable("two"), *services), NOW)
        if each.topic is Topic.SCALED_OBJECTS and each.severity is not OK
    ]
    assert {(each.severity, each.check) for each in found} == expected
    assert len(found) == len(expected)


def test_scaled_objects_of_others_are_none_of_our_business():
    cron = scaled_object("cron", triggers=[{"type": "cron"}], fallback={"replicas": 1})
    elsewhere = scaled_object("elsewhere", metadata={"scalerAddress": "other.team.svc:1"}, fallback={"replicas": 1})
    mine = [scaled_object(), scalable(), service()]
    named = DoctorSettings(addresses=frozenset({"scaler.gpus.svc:9090"}))
    assert told(facts(cron, elsewhere, *mine, wanted=named), Topic.SCALED_OBJECTS) == set()
    assert told(facts(cron), Topic.SCALED_OBJECTS) == {(WARN, "None", "")}


# ----------------------------------------------------------------------------------------------------------- as a whole


def test_whatever_is_not_in_order_comes_with_what_to_do():
    objects = [*NOTEBOOK, ours(active="False"), KUEUE, queue("gpus", "gate", "nodes-by-kueue", "absent")]
    objects += [scaled_object("bad", fallback={}, minReplicaCount=1, maxReplicaCount=2, metadata={"mode": "?"})]
    findings = diagnose(facts(*objects), NOW)
    found = counts(findings)
    assert found[FAIL] >= 5
    assert found[WARN] >= 3
    assert sum(found.values()) == len(findings)
    for each in findings:
        assert each.what
        assert each.do or each.severity is OK or each.check == "NotRead"
    topics = [each.topic for each in findings]
    assert topics == sorted(topics, key=list(Topic).index)
