"""What `doctor` finds about kinds, permissions, AdmissionChecks, ClusterQueues and ScaledObjects, as tables."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from scaler.doctor.api_resources import REQUIRED_KINDS
from scaler.doctor.diagnosis import diagnose
from scaler.doctor.facts import TYPES_READ, DoctorInputs, DoctorSettings, Listing
from scaler.doctor.findings import Severity, Topic, Unread, counts
from scaler.doctor.permissions import OPTIONAL, REQUIRED_RULES, RuleUser, attributes_of, required_rules
from scaler.doctor.verdicts import Gpus
from scaler.idleness.pods import GpuPod, PodPhase
from scaler.idleness.policy import Overrides, Reclaim
from scaler.kube.objects.core import ObjectMeta, OwnerReference
from scaler.kube.objects.idlegpu import ClusterIdlePolicy, IdlePolicy, ReclaimPolicy, ScalableWorkload
from scaler.kube.objects.keda import Lease, LeaseSpec, ScaledObject, Service
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import DEPLOYMENT, JOB_KINDS
from scaler.reclaim.planner import ReclaimConfig, Unprotected
from scaler.targets.workloads import NotifyTargets

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OK, WARN, FAIL = Severity.OK, Severity.WARN, Severity.FAIL
SERVED = {each.group: {} for each in REQUIRED_KINDS}
for each in REQUIRED_KINDS:
    SERVED[each.group].setdefault(each.resources[0].version, set()).add(each.kind)

# ------------------------------------------------------------------------------------------------------------- builders


def made(kind, name, namespace="", **parts):
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, **parts}, kind)


def policy(name="policy", **spec):
    return made(ReclaimPolicy, name, spec=spec)


PROVISIONS = {"className": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}
NODES = {"provisioning": PROVISIONS}
PODS_ONLY = {"requireFit": False, "reuse": {"enabled": False}}
CONFIG = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "x"}


def ours(name="gate", params="policy", active="True"):
    status = {"conditions": [{"type": "Active", "status": active, "reason": "Because", "message": "of it"}]}
    ref = {"apiGroup": "idlegpu.io", "kind": "ReclaimPolicy", "name": params} if isinstance(params, str) else params
    spec = {"controllerName": "idlegpu.io/reclaim"} | ({"parameters": ref} if params else {})
    return made(AdmissionCheck, name, spec=spec, status=status if active else {})


def theirs(name, controller):
    return made(AdmissionCheck, name, spec={"controllerName": f"kueue.x-k8s.io/{controller}"})


KUEUE = theirs("kueue", "provisioning-request")
MULTIKUEUE = theirs("multi", "multikueue")


def gate(name="gate", **spec):
    return [ours(name, params=f"{name}-policy"), policy(f"{name}-policy", **spec)]


def on(name, *flavors):
    return {"name": name, "onFlavors": list(flavors)}


def queue(*checks, name="gpus", flavors=("a100",), cohort="", strategy="StrictFIFO", cpus=(), **more):
    spec = {
        "cohortName": cohort,
        "queueingStrategy": strategy,
        "resourceGroups": [
            {
                "coveredResources": [resource],
                "flavors": [{"name": each, "resources": [{"name": resource, "nominalQuota": 8}]} for each in names],
            }
            for resource, names in (("nvidia.com/gpu", flavors), ("cpu", cpus))
        ],
        "admissionChecksStrategy": {
            "admissionChecks": [on(each) if isinstance(each, str) else each for each in checks]
        },
    }
    return made(ClusterQueue, name, spec=spec | more.pop("spec", {}), **more)


def inactive(reason):
    return {"conditions": [{"type": "Active", "status": "False", "reason": reason}]}


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


def scalable(name="notebook", **spec):
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
    return made(ScalableWorkload, name, "team", spec=spec or {"jobRef": job})


def workload(job="notebook", **labels):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
    metadata = {"name": f"job-{job}", "namespace": "team", "ownerReferences": [owner], "labels": labels}
    return msgspec.convert({"metadata": metadata, "spec": {"queueName": "local"}}, Workload)


def service(**spec):
    return made(Service, "scaler", "gpus", spec={"clusterIP": "None", "ports": [{"port": 9090}]} | spec)


def facts(*objects, **more):
    listings = {kind: Listing(items=[each for each in objects if isinstance(each, kind)]) for kind in TYPES_READ}
    return DoctorInputs(**{"version": "v1.36.0", "served": SERVED, "listings": listings} | more)


def unread(inputs, kind, listing):
    return replace(inputs, listings={**inputs.listings, kind: listing})


def problems(inputs, topic, *, named=False):
    """What is not in order: severity and check, once for each, or for each object by its name."""
    found = [each for each in diagnose(inputs, NOW) if each.topic is topic and each.severity is not OK]
    assert all(each.do or each.check == "NotRead" for each in found)
    assert named or topic in (Topic.KINDS, Topic.PERMISSIONS) or len({each.where for each in found}) <= 1
    rows = {f"{each.severity} {each.check} {each.where.partition(' ')[2] if named else ''}".strip() for each in found}
    return ", ".join(sorted(rows))


# ---------------------------------------------------------------------------------------------------------------- kinds

KINDS = {
    "everything is served": ({}, ""),
    "no Kueue at all, which Deployments do not need": ({"kueue.x-k8s.io": {}}, "warn NotServed"),
    "a Kueue that is too old": ({"kueue.x-k8s.io": {"v1beta1": {"Workload"}}}, "fail VersionNotServed, warn NotServed"),
    "no KEDA, without which actuator Direct does": ({"keda.sh": {}}, "warn NotServed"),
    "our own definitions are missing": ({"idlegpu.io": {}}, "fail NotServed"),
    "an older autoscaler's ProvisioningRequest will do": (
        {"autoscaling.x-k8s.io": {"v1beta1": {"ProvisioningRequest"}}},
        "",
    ),
    "no ProvisioningRequest is needed where no check requests nodes": ({"autoscaling.x-k8s.io": {}}, ""),
}


@pytest.mark.parametrize(("change", "expected"), KINDS.values(), ids=KINDS.keys())
def test_kinds_that_are_not_served_are_reported_with_what_helps(change, expected):
    assert problems(facts(served=SERVED | change), Topic.KINDS) == expected


def test_an_api_that_does_not_answer_is_one_failure_and_not_a_hundred():
    silent = DoctorInputs(version=Unread("refused"), served=Unread("refused"))
    assert [each.check for each in diagnose(silent, NOW) if each.severity is FAIL] == ["Unreachable", "NotRead"]


# ---------------------------------------------------------------------------------------------------------- permissions


def reviewed(inputs, *denied, unknown=(), **more):
    asked = {"targets": frozenset({DEPLOYMENT}), "lease_namespace": "gpus", **more}
    optional = inputs.wanted.optional
    rules = required_rules(reconciles=True, is_confined="namespaces" in more, optional=optional)
    answers = dict.fromkeys(denied, False) | dict.fromkeys(unknown, Unread("no answer"))
    reviews = [(rule, {each: answers.get(str(each), True) for each in attributes_of(rule, **asked)}) for rule in rules]
    assert answers.keys() <= {str(each) for _, of_rule in reviews for each in of_rule}
    return replace(inputs, reviews=reviews)


STATUS = "patch workloads/status.kueue.x-k8s.io"
DENIED = {
    "nothing is denied": ([], facts(), ""),
    "what every cluster needs": (["list pods"], facts(), "fail Denied"),
    "a kind that is scaled": (["get deployments/scale.apps"], facts(), "fail Denied"),
    "the Lease, in its own namespace": (
        ["update leases.coordination.k8s.io in namespace gpus"],
        facts(),
        "fail Denied",
    ),
    "what plans need, and plans are made": (["watch nodes"], facts(), "fail Denied"),
    "what plans need, and none are made": (
        ["watch nodes"],
        facts(wanted=DoctorSettings(reclaim=ReclaimConfig(pressure=False))),
        "warn Denied",
    ),
    "what checks need, and there is none": ([STATUS], facts(), "warn Denied"),
    "what checks need, and there is one": ([STATUS], facts(ours(), policy()), "fail Denied"),
    "what requesting nodes needs, and none does": (["create podtemplates"], facts(ours(), policy()), ""),
    "what requesting nodes needs": (["create podtemplates"], facts(ours(), policy(**NODES)), "fail Denied"),
    "what telling pods needs": (["patch pods"], facts(wanted=DoctorSettings(optional=OPTIONAL)), "fail Denied"),
}


@pytest.mark.parametrize(("denied", "inputs", "expected"), DENIED.values(), ids=DENIED.keys())
def test_a_permission_that_is_missing_fails_where_something_needs_it(denied, inputs, expected):
    assert problems(reviewed(inputs, *denied), Topic.PERMISSIONS) == expected


def test_every_rule_has_a_finding_and_what_is_missing_is_named():
    told = facts(ours(), policy(**NODES), wanted=DoctorSettings(optional=OPTIONAL))
    found = diagnose(reviewed(told, "list pods", unknown=["create events"]), NOW)
    found = [each for each in found if each.topic is Topic.PERMISSIONS]
    assert len(found) == len(REQUIRED_RULES)
    of_none = diagnose(reviewed(told, targets=frozenset()), NOW)
    assert sum(each.topic is Topic.PERMISSIONS for each in of_none) == len(REQUIRED_RULES) - 1, "nothing is scaled"
    assert [each.what for each in found if each.severity is FAIL] == ["it may not list pods"]
    assert [each.what for each in found if each.severity is WARN] == ["no answer"]


def test_where_only_some_namespaces_are_watched_nothing_of_the_whole_cluster_is_reviewed():
    reviews = [each for _, of_rule in reviewed(facts(), namespaces=("a", "b")).reviews for each in of_rule]
    assert {each.namespace for each in reviews if each.resource in ("leases", "configmaps")} == {"gpus"}
    others = {namespace: set() for namespace in ("a", "b")}
    for each in reviews:
        if each.resource not in ("leases", "configmaps"):
            others[each.namespace].add(replace(each, namespace=""))
    assert others["a"] == others["b"]
    jobs = {each.plural for each in JOB_KINDS}
    assert {each.resource for each in others["a"]} - jobs == {
        *("pods", "scaledobjects", "workloads", "scalableworkloads", "events", "idlepolicies"),
        *("deployments", "replicasets", "statefulsets", "leaderworkersets", "notebooks", "inferenceservices"),
    }


def test_the_lease_is_reviewed_by_its_name_but_for_its_creation_and_so_is_the_record_beside_it():
    """A Role that grants `create` by name grants nothing."""
    lease, record = (
        {
            each.verb: each.name
            for each in attributes_of(rule, targets=frozenset(), lease_namespace="gpus", lease_name="ours")
        }
        for rule in REQUIRED_RULES
        if rule.in_lease_namespace
    )
    assert lease == {"get": "ours", "create": "", "update": "ours"}
    assert record == {"get": "ours-keeps", "create": "", "patch": "ours-keeps"}


@pytest.mark.parametrize("reconciles", [True, False])
def test_reviews_of_tokens_are_asked_about_where_users_are_known_by_their_tokens(reconciles):
    def asked(**more):
        rules = required_rules(reconciles=reconciles, **more)
        return [on.resource.plural for rule in rules if rule.part is RuleUser.TOKENS for on in rule.on]

    assert asked() == []
    assert asked(optional={RuleUser.TOKENS}) == asked(optional={RuleUser.TOKENS}, is_confined=True)
    assert asked(optional={RuleUser.TOKENS}) == ["tokenreviews", "subjectaccessreviews"]


def test_what_is_missing_in_one_namespace_is_named_and_a_role_there_is_enough():
    confined = facts(wanted=DoctorSettings(namespaces=("a", "b")))
    denied = ["list pods in namespace b", "watch pods in namespace b"]
    found = diagnose(reviewed(confined, *denied, namespaces=("a", "b")), NOW)
    found = [each for each in found if each.where == "the scaler" and "leases" not in each.what]
    by_severity = {each.severity: each for each in found}
    assert by_severity[FAIL].what == "it may not list pods in namespace b; watch pods in namespace b"
    assert by_severity[FAIL].do.startswith("bind its account to a Role there")
    assert by_severity[OK].what == "get deployments/scale.apps in namespaces a, b"


def test_that_only_some_namespaces_are_watched_is_reported_and_which_do_not_exist():
    confined = facts(wanted=DoctorSettings(namespaces=("a", "b")))
    [said] = [each for each in diagnose(confined, NOW) if each.check == "Confined"]
    assert (said.severity, said.where) == (OK, "a, b")
    assert "no plans are made and no AdmissionChecks are answered" in said.what
    assert problems(confined, Topic.PERMISSIONS) == ""
    late = replace(confined, missing_namespaces=["b"])
    assert problems(late, Topic.PERMISSIONS) == "fail NoSuchNamespace"
    assert not [each for each in diagnose(facts(), NOW) if each.check == "Confined"]


def test_where_nothing_is_reconciled_only_the_lease_is_written():
    def watched(rules):
        return {(rule.part, on, verb) for rule in rules for on in rule.on for verb in {*rule.verbs} & {"list", "watch"}}

    rules = required_rules(reconciles=False)
    written = [rule for rule in rules if not {*rule.verbs} <= {"get", "list", "watch"}]
    assert [(rule.part, [each.resource.plural for each in rule.on]) for rule in written] == [
        (RuleUser.SCALER, ["leases"])
    ]
    assert {rule.part for rule in rules if "get" in rule.verbs} == {RuleUser.SCALER}
    assert watched(rules) == watched([rule for rule in REQUIRED_RULES if rule.part not in OPTIONAL])


# ------------------------------------------------------------------------------------------------------ AdmissionChecks

SELECTS = {
    "provisioning": PROVISIONS
    | {"podSetUpdates": {"nodeSelector": [{"key": "pool", "valueFromProvisioningClassDetail": "pool"}]}}
}
YIELDS = {"provisioning": PROVISIONS | {"atLimit": "Yield"}}
HOLDS = {"provisioning": PROVISIONS | {"atLimit": "Hold"}}
BEST_EFFORT = queue("gate", strategy="BestEffortFIFO")
CHECKS = {
    "active, used, with a policy that can be followed": ([ours(), policy(), queue("gate")], ""),
    "without parameters all are defaults": ([ours(params=""), queue("gate")], ""),
    "its policy does not exist": ([ours(), queue("gate")], "fail PolicyUnusable"),
    "its policy contradicts itself": (
        [ours(), policy(requireFit=False, **NODES), queue("gate")],
        "fail PolicyUnusable",
    ),
    "its parameters are of another kind": ([ours(params=CONFIG), queue("gate")], "fail PolicyUnusable"),
    "no queue uses it": ([ours(), policy()], "warn Unused"),
    "it has no Active condition": ([ours(active=""), policy(), queue("gate")], "fail NotActive"),
    "it is not Active": ([ours(active="False"), policy(), queue("gate")], "fail NotActive"),
    "not Active, and no queue uses it": ([ours(active="False"), policy()], "warn NotActive, warn Unused"),
    "it pins by a label of a flavor": (
        [*gate(pin={"enabled": True}), queue("gate"), flavor(nodeLabels={"kubernetes.io/hostname": "n1"})],
        "fail KeyOfFlavor",
    ),
    "it selects by a label of a flavor": (
        [*gate(**SELECTS), queue("gate"), flavor(nodeLabels={"pool": "a"})],
        "fail KeyOfFlavor",
    ),
    "of a flavor that the check is not for": (
        [*gate(**SELECTS), queue(on("gate", "spot"), flavors=("spot", "a100")), flavor(nodeLabels={"pool": "a"})],
        "",
    ),
    "at the limit it holds": ([*gate(**HOLDS), BEST_EFFORT], ""),
    "it yields, and the next in line is looked at first": ([*gate(**YIELDS), queue("gate")], ""),
    "it yields, and is looked at before those that wait": ([*gate(**YIELDS), BEST_EFFORT], "warn YieldTakenBack"),
}


@pytest.mark.parametrize(("objects", "expected"), CHECKS.values(), ids=CHECKS.keys())
def test_checks_that_cannot_work_are_reported(objects, expected):
    assert problems(facts(*objects), Topic.CHECKS) == expected


def test_a_check_that_requests_nodes_needs_provisioning_requests_to_be_served():
    objects = [*gate(**NODES), queue("gate")]
    without = SERVED | {"autoscaling.x-k8s.io": {}}
    assert problems(facts(*objects, served=without), Topic.CHECKS) == "fail ProvisioningNotServed"
    beta = SERVED | {"autoscaling.x-k8s.io": {"v1beta1": {"ProvisioningRequest"}}}
    assert problems(facts(*objects, served=beta), Topic.CHECKS) == ""


def test_a_check_that_is_in_order_says_what_its_gangs_wait_for():
    objects = [*gate(**NODES), queue("gate"), queue("gate", name="more")]
    [fine] = [each for each in diagnose(facts(*objects), NOW) if each.topic is Topic.CHECKS]
    assert fine.what == (
        "Active in gpus, more: waits for victims' pods to terminate and free capacity for the whole gang; "
        "reclaims idle GPUs; requests nodes of class best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    )


BATCH = {"key": "batch", "value": "yes", "effect": "NoSchedule"}
TOLERATES = {"tolerations": [{"key": "batch", "operator": "Exists"}]}


def node(*taints, gpu="h100"):
    status = {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}}
    labels = {"metadata": {"name": "node", "labels": {"gpu": gpu}}}
    return msgspec.convert(labels | {"spec": {"taints": list(taints)}, "status": status}, Node)


def gang(**pod):
    pod_sets = [{"template": {"spec": pod}}]
    return made(Workload, "gang", spec={"podSets": pod_sets}, status={"admissionChecks": [{"name": "gate"}]})


def tainted(*objects, **of_flavor):
    h100 = flavor("h100", nodeLabels={"gpu": "h100"}, **of_flavor)
    inputs = facts(*gate(), queue("gate", flavors=("h100",)), h100, *objects)
    return [each.what for each in diagnose(inputs, NOW) if each.check == "TaintNotTolerated" and each.severity is WARN]


def test_a_taint_that_is_not_tolerated_is_reported_with_its_flavor():
    [what] = tainted(node(BATCH), node(), node(BATCH, gpu="a100"), gang())
    assert what.startswith("1 of 2 nodes of ResourceFlavor h100 have the taint batch (NoSchedule)")


TOLERATED = {
    "there is none": ([node()], {}),
    "its flavor tolerates it": ([node(BATCH)], TOLERATES),
    "all pods tolerate it": ([node(BATCH), gang(**TOLERATES)], {}),
    "it is that of the device": ([node({"key": "nvidia.com/gpu", "effect": "NoSchedule"})], {}),
    "it is set for a while": ([node({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"})], {}),
    "it is only preferred": ([node({**BATCH, "effect": "PreferNoSchedule"})], {}),
}


@pytest.mark.parametrize(("objects", "of_flavor"), TOLERATED.values(), ids=TOLERATED.keys())
def test_a_taint_that_keeps_no_pod_away_is_not_reported(objects, of_flavor):
    assert tainted(*objects, **of_flavor) == []


# -------------------------------------------------------------------------------------------------------- ClusterQueues

BOTH = [*gate(**NODES), KUEUE]
GROUPS = {"flavors": ("spot", "fixed"), "cpus": ("small", "big")}
STOPPED = queue(spec={"stopPolicy": "Hold"}, status=inactive("Stopped"))
RACKS = flavor(topologyName="racks")
ELSEWHERE = [MULTIKUEUE, KUEUE]
QUEUES = {
    "no checks at all": ([queue()], ""),
    "ours alone": ([*gate(), queue("gate")], ""),
    "a check that does not exist": ([queue("gate")], "fail CheckNotFound"),
    "ours for pods beside Kueue's provisioning: a pre-gate": ([*gate(**PODS_ONLY), KUEUE, queue("gate", "kueue")], ""),
    "ours for room beside Kueue's provisioning": ([*gate(), KUEUE, queue("gate", "kueue")], "warn NodesBeforeReuse"),
    "ours for nodes beside Kueue's provisioning": ([*BOTH, queue("gate", "kueue")], "fail TwoAskForNodes"),
    "each for a flavor of the same resource": ([*BOTH, queue(on("gate", "spot"), on("kueue", "fixed"), **GROUPS)], ""),
    "one of them for all flavors": ([*BOTH, queue(on("gate", "spot"), "kueue", **GROUPS)], "fail TwoAskForNodes"),
    "each for a flavor of another resource: gangs get one of each": (
        [*BOTH, queue(on("gate", "spot"), on("kueue", "big"), **GROUPS)],
        "fail TwoAskForNodes",
    ),
    "ours for flavors of both resources": (
        [*BOTH, queue(on("gate", "spot", "small"), on("kueue", "big"), **GROUPS)],
        "fail TwoAskForNodes",
    ),
    "flavors that the queue does not have": ([*BOTH, queue(on("gate", "other"), on("kueue", "fixed"), **GROUPS)], ""),
    "two of ours that request nodes": (
        [*gate("one", **NODES), *gate("two", **NODES), queue("one", "two")],
        "fail TwoAskForNodes",
    ),
    "two of ours, one of which requests nodes": ([*gate("one", **NODES), *gate("two"), queue("one", "two")], ""),
    "ours beside MultiKueue: a pre-gate": ([*gate(), MULTIKUEUE, queue("gate", "multi")], ""),
    "MultiKueue beside Kueue's provisioning": (
        [*ELSEWHERE, queue("multi", "kueue")],
        "fail MultiKueueWithProvisioning",
    ),
    "MultiKueue beside Kueue's provisioning on any flavor": (
        [*ELSEWHERE, queue("multi", on("kueue", "other"))],
        "fail MultiKueueWithProvisioning",
    ),
    "MultiKueue twice": ([MULTIKUEUE, theirs("too", "multikueue"), queue("multi", "too")], "fail MultiKueueTwice"),
    "an unusable policy says nothing about the pair": ([ours(), KUEUE, queue("gate", "kueue")], ""),
    "Kueue says that it is inactive": ([queue(status=inactive("FlavorNotFound"))], "fail Inactive"),
    "it was stopped on purpose": ([STOPPED], "warn Inactive"),
    "a flavor with a Topology that has to do with us": ([*gate(), queue("gate"), RACKS], "warn Topology"),
    "a flavor with a Topology that has not": ([queue(), RACKS], ""),
    "requesting nodes of a flavor with a Topology": (
        [*gate(**NODES), queue("gate"), RACKS],
        "warn Topology, warn TopologyAsksForNothing",
    ),
}


@pytest.mark.parametrize(("objects", "expected"), QUEUES.values(), ids=QUEUES.keys())
def test_combinations_of_checks_that_do_not_work_are_reported(objects, expected):
    assert problems(facts(*objects), Topic.QUEUES) == expected


def test_a_pre_gate_is_explained_and_not_complained_about():
    objects = [*gate(**PODS_ONLY), KUEUE, queue("gate", "kueue")]
    [found] = [each for each in diagnose(facts(*objects), NOW) if each.check == "PreGate"]
    assert (found.severity, found.where) == (OK, "ClusterQueue gpus")
    assert "while ours waits for victims' pods to end" in found.what


LOCAL = made(LocalQueue, "local", "team", spec={"clusterQueue": "gpus"})
PRESSED = {"reclaim": "OnPressure", "idleAfterUnderPressure": "5m"}
NOTEBOOK = [scaled_object(metadata=PRESSED, cooldownPeriod=30), scalable(), workload(), LOCAL, service()]
BY_NAME = [NOTEBOOK[0], scalable(workloadRef={"name": "job-notebook"}), *NOTEBOOK[2:]]
ALWAYS = [scaled_object(), *NOTEBOOK[1:]]
FREED = {
    "guarded and StrictFIFO": ([*NOTEBOOK, queue("gate")], ""),
    "BestEffortFIFO": ([*NOTEBOOK, BEST_EFFORT], "warn FreedQuotaNotReserved gpus"),
    "BestEffortFIFO, of a Workload that is named": ([*BY_NAME, BEST_EFFORT], "warn FreedQuotaNotReserved gpus"),
    "BestEffortFIFO where no plan takes anything": ([*ALWAYS, BEST_EFFORT], ""),
    "BestEffortFIFO of another queue of the Cohort": (
        [*NOTEBOOK, queue("gate", cohort="all"), queue("gate", name="other", cohort="all", strategy="BestEffortFIFO")],
        "warn FreedQuotaNotReserved other",
    ),
    "BestEffortFIFO of another queue below the Cohorts' parent": (
        [
            *NOTEBOOK,
            queue("gate", cohort="left"),
            queue("gate", name="other", cohort="right", strategy="BestEffortFIFO"),
            made(Cohort, "left", spec={"parentName": "root"}),
            made(Cohort, "right", spec={"parentName": "root"}),
        ],
        "warn FreedQuotaNotReserved other",
    ),
    "BestEffortFIFO of a queue that shares no quota": (
        [*NOTEBOOK, queue("gate"), queue("gate", name="other", strategy="BestEffortFIFO")],
        "",
    ),
    "Cohorts in a ring": (
        [
            *NOTEBOOK,
            queue("gate", cohort="left"),
            made(Cohort, "left", spec={"parentName": "right"}),
            made(Cohort, "right", spec={"parentName": "left"}),
        ],
        "",
    ),
    "no check guards what is freed": ([*ALWAYS, queue()], "warn Unguarded gpus"),
    "no check guards it in another queue of the Cohort": (
        [*ALWAYS, queue("gate", cohort="all"), queue(name="other", cohort="all")],
        "warn Unguarded other",
    ),
}


@pytest.mark.parametrize(("objects", "expected"), FREED.values(), ids=FREED.keys())
def test_queues_in_which_freed_quota_is_not_safe_are_reported(objects, expected):
    assert problems(facts(*gate(), *objects), Topic.QUEUES, named=True) == expected


def test_what_follows_from_unreserved_quota_depends_on_the_settings():
    says = {Unprotected.WARN: "may be admitted into freed quota", Unprotected.REFUSE: "no plan is made for its gangs"}
    for unprotected, words in says.items():
        wanted = DoctorSettings(reclaim=ReclaimConfig(unprotected=unprotected))
        inputs = facts(*NOTEBOOK, *gate(), BEST_EFFORT, wanted=wanted)
        [found] = [each for each in diagnose(inputs, NOW) if each.check == "FreedQuotaNotReserved"]
        assert words in found.what


# ----------------------------------------------------------------------------------------------- what could not be read

NO_NUMBER, FORBIDDEN = "no int", Unread("403: grant verb 'list'")
UNREAD = {
    "AdmissionChecks": (AdmissionCheck, FORBIDDEN, (Topic.CHECKS, FAIL, "NotRead", "all of AdmissionCheck")),
    "one AdmissionCheck": (
        AdmissionCheck,
        Listing(unreadable=[("gate", NO_NUMBER)]),
        (Topic.CHECKS, WARN, "Unreadable", "AdmissionCheck gate"),
    ),
    "ReclaimPolicies": (ReclaimPolicy, FORBIDDEN, (Topic.CHECKS, FAIL, "NotRead", "all of ReclaimPolicy")),
    "ClusterQueues": (ClusterQueue, FORBIDDEN, (Topic.QUEUES, FAIL, "NotRead", "all of ClusterQueue")),
    "a kind that is not served": (
        ClusterQueue,
        Unread("404", is_absent=True),
        (Topic.CHECKS, WARN, "Unused", "AdmissionCheck gate"),
    ),
    "ScaledObjects": (ScaledObject, FORBIDDEN, (Topic.SCALED_OBJECTS, FAIL, "NotRead", "all of ScaledObject")),
    "ScaledObjects of a namespace": (
        ScaledObject,
        Listing(hidden=[("team", "403")]),
        (Topic.SCALED_OBJECTS, FAIL, "NotRead", "all of ScaledObject in namespace team"),
    ),
    "one ScalableWorkload": (
        ScalableWorkload,
        Listing(unreadable=[("team/notebook", NO_NUMBER)]),
        (Topic.SCALED_OBJECTS, WARN, "Unreadable", "ScalableWorkload team/notebook"),
    ),
    "ScalableWorkloads of a namespace": (
        ScalableWorkload,
        Listing(hidden=[("team", "403")]),
        (Topic.SCALED_OBJECTS, FAIL, "NotRead", "all of ScalableWorkload in namespace team"),
    ),
}


@pytest.mark.parametrize(("kind", "listing", "expected"), UNREAD.values(), ids=UNREAD.keys())
def test_what_could_not_be_read_is_reported_once_and_not_said_to_be_missing(kind, listing, expected):
    found = diagnose(unread(facts(*ALWAYS, *gate(), queue("gate")), kind, listing), NOW)
    bad = [each for each in found if each.severity is not OK and each.topic not in (Topic.KINDS, Topic.METRICS)]
    assert [(each.topic, each.severity, each.check, each.where) for each in bad] == [expected]
    assert not any(each.what.rstrip().endswith((":", " in")) for each in found)


def test_services_that_may_not_be_read_are_no_problem():
    """Only this diagnosis reads them; the program does without, and its roles leave them out."""
    found = diagnose(unread(facts(scaled_object(), scalable()), Service, FORBIDDEN), NOW)
    [services] = [each for each in found if "Service" in each.what + each.where]
    assert (services.severity, services.check, services.do) == (OK, "NotRead", "")
    assert services.what.startswith("Services were not read")


def test_where_scalable_workloads_are_not_served_none_is_said_to_be_missing():
    inputs = unread(facts(scaled_object(), service()), ScalableWorkload, Unread("404", is_absent=True))
    assert problems(inputs, Topic.SCALED_OBJECTS) == ""


def test_a_queue_that_names_no_check_is_unguarded_even_if_checks_cannot_be_read():
    inputs = unread(facts(*ALWAYS, queue()), AdmissionCheck, FORBIDDEN)
    assert problems(inputs, Topic.QUEUES) == "warn Unguarded"


# -------------------------------------------------------------------------------------------------------- ScaledObjects

NOT_READY = {"conditions": [{"type": "Ready", "status": "False", "reason": "TriggerError"}]}
BOOST = {"reclaim": "PriorityBoost"}
SCALED = {
    "as it has to be": ({}, ""),
    "a fallback": ({"fallback": {"failureThreshold": 3, "replicas": 0}}, "fail Fallback"),
    "a minimum above 0": ({"minReplicaCount": 1}, "warn NeverZero"),
    "a minimum above 0 that is left when idle": ({"minReplicaCount": 1, "idleReplicaCount": 0}, ""),
    "KEDA's default maximum of 100": ({"maxReplicaCount": 100}, "warn MoreThanOne"),
    "no cooldown": ({"cooldownPeriod": 0}, "warn NoCooldown"),
    "not ready": ({"status": NOT_READY}, "fail NotReady"),
    "metadata that is misspelt": ({"metadata": {"idleafter": "5 minutes"}}, "fail InvalidMetadata"),
    "longer than the operator allows": ({"metadata": {"idleAfter": "25h"}}, "fail WindowTooLong"),
    # 30 s + 570 s = 10 min, which is when the grant has ended.
    "KEDA as slow as grants last": ({"metadata": PRESSED, "cooldownPeriod": 570}, "warn SlowerThanGrants"),
    "KEDA a second faster": ({"metadata": PRESSED, "cooldownPeriod": 569}, ""),
    "as slow, and suspended by time": ({"cooldownPeriod": 570}, ""),
    "a Deployment that only a plan may take": (
        {"metadata": PRESSED, "cooldownPeriod": 30, "target": "Deployment"},
        "warn NotReclaimable",
    ),
    "a Deployment that only preemption may take": ({"metadata": BOOST, "target": "Deployment"}, "warn NotReclaimable"),
    "a Deployment that is suspended by time": ({"target": "Deployment"}, ""),
    "a target that does not exist": ({"name": "gone"}, "fail TargetNotFound"),
}


def direct(name="notebook", **status):
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
    return made(ScalableWorkload, name, "team", spec={"jobRef": job, "actuator": "Direct"}, status=status)


def idle(name, namespace="", actuator=""):
    return made(IdlePolicy if namespace else ClusterIdlePolicy, name, namespace, spec={"actuator": actuator})


def lease(seconds_ago):
    renewed = NOW - timedelta(seconds=seconds_ago)
    return Lease(metadata=ObjectMeta(name="operator.keda.sh", namespace="keda"), spec=LeaseSpec(renew_time=renewed))


KEDA_LEASES = {
    "renewed a moment ago": (Listing(items=[lease(5)]), "fail NotReady"),
    "not renewed for an hour": (Listing(items=[lease(3600)]), "fail NotRunning KEDA"),
    "an old one beside the one in use": (Listing(items=[lease(3600), lease(5)]), "fail NotReady"),
    "none": (Listing(), "fail NotReady"),
    "may not be read": (Unread("403"), "fail NotReady"),
}


@pytest.mark.parametrize(("leases", "expected"), KEDA_LEASES.values(), ids=KEDA_LEASES.keys())
def test_a_keda_that_does_not_run_is_named_and_not_the_scaler_it_calls(leases, expected):
    inputs = facts(scaled_object(status=NOT_READY), scalable(), service(), keda_leases=leases)
    found = [each for each in diagnose(inputs, NOW) if each.topic is Topic.SCALED_OBJECTS and each.severity is not OK]
    where = {"NotRunning": " KEDA"}
    assert [f"{each.severity} {each.check}{where.get(each.check, '')}" for each in found] == [expected]


@pytest.mark.parametrize(
    ("leases", "expected"),
    [
        (Listing(items=[lease(100)]), []),
        (Listing(items=[lease(200)]), ["fail NotRunning no replica has renewed its Lease for 3m20s"]),
        (Listing(items=[Lease(metadata=ObjectMeta(name="ours"))]), []),
        (Unread("404", is_absent=True), []),
    ],
    ids=["renewed", "not renewed", "without a time", "no replica was ever there"],
)
def test_a_scaler_of_which_no_replica_leads_is_a_failure(leases, expected):
    inputs = facts(scaled_object(), scalable(), service(), own_leases=leases)
    found = [
        each for each in diagnose(inputs, NOW) if each.where == "the scaler" and each.topic is Topic.SCALED_OBJECTS
    ]
    assert [f"{each.severity} {each.check} {each.what.partition(':')[0]}" for each in found] == expected


@pytest.mark.parametrize(("minutes", "expected"), [(1, []), (3, ["NotSeenByKEDA"])])
def test_a_scaled_object_that_keda_never_looked_at_is_one_it_does_not_scale(minutes, expected):
    young = scaled_object()
    metadata = msgspec.structs.replace(young.metadata, creation_timestamp=NOW - timedelta(minutes=minutes))
    inputs = facts(msgspec.structs.replace(young, metadata=metadata), scalable(), service())
    assert [each.check for each in diagnose(inputs, NOW) if each.severity is Severity.FAIL] == expected


@pytest.mark.parametrize("kind", [IdlePolicy, ClusterIdlePolicy])
def test_permissions_of_policies_are_needed_where_there_is_one(kind):
    rules = [each for each in required_rules(reconciles=True) if each.part in POLICY_PARTS[kind]]
    asked = [attributes_of(each, targets=frozenset(), lease_namespace="x") for each in rules]
    reviews = [(rule, dict.fromkeys(each, False)) for rule, each in zip(rules, asked, strict=True)]
    without = {each.severity for each in diagnose(facts(reviews=reviews), NOW) if each.check == "Denied"}
    policy = idle("all", "team" if kind is IdlePolicy else "")
    used = {each.severity for each in diagnose(facts(policy, reviews=reviews), NOW) if each.check == "Denied"}
    assert (without, used) == ({Severity.WARN}, {Severity.FAIL})


POLICY_PARTS = {
    IdlePolicy: {RuleUser.POLICIES},
    ClusterIdlePolicy: {RuleUser.POLICIES, RuleUser.CLUSTER_POLICIES},
}

WITHOUT_KEDA = {
    "nothing is to be scaled": ([], "warn None"),
    "one that is scaled directly": ([direct()], ""),
    "one that waits for KEDA": ([direct(), scalable("other")], "fail NeedsKEDA ScalableWorkloads"),
    "policies that need KEDA": (
        [direct(), idle("mine", "team", "KEDA"), idle("silent", "team"), idle("all", actuator="KEDA")],
        "fail NeedsKEDA ClusterIdlePolicies, fail NeedsKEDA IdlePolicies",
    ),
    "a policy that is completed by the cluster's": (
        [direct(), idle("silent", "team"), idle("all", actuator="Direct")],
        "",
    ),
}


@pytest.mark.parametrize(("objects", "expected"), WITHOUT_KEDA.values(), ids=WITHOUT_KEDA.keys())
def test_without_keda_what_needs_it_is_named(objects, expected):
    absent = unread(facts(*objects), ScaledObject, Unread("404", is_absent=True))
    found = [each for each in diagnose(absent, NOW) if each.topic is Topic.SCALED_OBJECTS and each.severity is not OK]
    assert ", ".join(sorted(f"{each.severity} {each.check} {each.where}".strip() for each in found)) == expected


def judged(name, reason):
    """A ScalableWorkload of which the leader has written that."""
    status = {"state": "Busy", "reason": reason, "message": f"{name}: 0 of 1"}
    status = msgspec.convert(status, type(scalable().status))
    return msgspec.structs.replace(scalable(name), status=status)


def noted(name, reason):
    """The record of a Deployment's ScaledObject of which the leader has written that."""
    found = judged(name, reason)
    owner = OwnerReference(kind="ScaledObject", name=name, uid=f"uid-{name}", controller=True)
    metadata = msgspec.structs.replace(found.metadata, owner_references=(owner,))
    spec = msgspec.structs.replace(found.spec, actuator="None")
    return msgspec.structs.replace(found, metadata=metadata, spec=spec)


def cleared(name):
    """The record of one about which nothing is decided any more."""
    found = noted(name, "NoGPUPods")
    return msgspec.structs.replace(found, status=type(found.status)())


WRITTEN = {
    "one of two": (
        [judged("a", "NoGPUPods"), noted("b", "GPUsBusy")],
        [("warn NoGPUPods", "ScalableWorkload team/a", "a: 0 of 1")],
    ),
    "the only one": ([noted("b", "NoGPUPods")], [("warn NoGPUPods", "ScaledObject team/b", "b: 0 of 1")]),
    "all of them": (
        [judged("a", "FrozenExporter"), noted("b", "FrozenExporter"), cleared("c")],
        [
            (
                "fail FrozenExporter",
                "ScalableWorkload team/a, ScaledObject team/b",
                "2 of 2; the first: a: 0 of 1",
            )
        ],
    ),
    "all of them, and that is their owners' to mend": (
        [judged("a", "PodsNotRunning"), judged("b", "PodsNotRunning")],
        [
            (
                "warn PodsNotRunning",
                "ScalableWorkload team/a, ScalableWorkload team/b",
                "2 of 2; the first: a: 0 of 1",
            )
        ],
    ),
    "more than are named": (
        [*(judged(name, "StaleSamples") for name in "abcd"), judged("e", "GPUsIdle")],
        [
            (
                "warn StaleSamples",
                "ScalableWorkload team/a, ScalableWorkload team/b, ScalableWorkload team/c, …",
                "4 of 5; the first: a: 0 of 1",
            )
        ],
    ),
    "two reasons": (
        [judged("a", "SharedGPU"), judged("b", "MissingGPUs")],
        [
            ("warn SharedGPU", "ScalableWorkload team/a", "a: 0 of 1"),
            ("warn MissingGPUs", "ScalableWorkload team/b", "b: 0 of 1"),
        ],
    ),
    "left alone": (
        [judged("a", "SetBack"), noted("b", "SetBack"), noted("c", "WarmingUp")],
        [
            (
                "warn SetBack",
                "ScalableWorkload team/a, ScaledObject team/b",
                "2 of 3; the first: a: 0 of 1",
            )
        ],
    ),
    "what ends by itself": ([judged("a", "ColdStart"), judged("b", "Suspending"), noted("c", "Starting")], []),
}


@pytest.mark.parametrize(("objects", "expected"), WRITTEN.values(), ids=WRITTEN.keys())
def test_what_the_leader_cannot_judge_is_one_finding_for_each_reason(objects, expected):
    """By the status of ScalableWorkloads, and of the records of other ScaledObjects."""
    found = [each for each in diagnose(facts(*objects, service()), NOW) if each.topic is Topic.SCALED_OBJECTS]
    bad = [each for each in found if each.severity is not OK]
    assert [
        (f"{each.severity} {each.check}", each.where, each.what) for each in bad if each.check != "None"
    ] == expected
    assert all(each.do for each in bad)


@pytest.mark.parametrize("reason", ["PodsNotRunning", "ContainerEnded"])
def test_pods_that_use_nothing_and_their_workload_are_one_finding(reason):
    """A crash loop is one, whether its leader has seen it, too, or only the pods show it."""
    since = NOW - timedelta(days=1)
    state = {"cause": "waits: CrashLoopBackOff"} if reason == "PodsNotRunning" else {"ended": "has ended", "cause": ""}
    pod = GpuPod(namespace="team", name="a-0", phase=PodPhase.RUNNING, gpus=1, node="n1", started_at=since, **state)
    for objects in ([judged("a", reason), judged("b", "GPUsBusy")], []):
        inputs = facts(*objects, service(), gpus=Gpus(pods={("team", "a-0"): pod}))
        found = [each for each in diagnose(inputs, NOW) if each.topic is Topic.SCALED_OBJECTS]
        [bad] = [each for each in found if each.check == reason]
        assert bad.where == ("ScalableWorkload team/a, pod team/a-0" if objects else "pod team/a-0")
        assert bad.what == ("2; the first: a: 0 of 1" if objects else state.get("ended") or state["cause"])


def test_with_keda_nothing_needs_it_in_vain_and_what_is_not_scaled_directly_says_why():
    status = {"conditions": [{"type": "Direct", "status": "False", "reason": "ScaledByKEDA", "message": "of it"}]}
    inputs = facts(scalable("other"), direct(**status), idle("all"))
    assert problems(inputs, Topic.SCALED_OBJECTS, named=True) == "warn ScaledByKEDA team/notebook"


@pytest.mark.parametrize(("spec", "expected"), SCALED.values(), ids=SCALED.keys())
def test_scaled_objects_that_keda_treats_otherwise_than_meant_are_reported(spec, expected):
    assert problems(facts(scaled_object(**spec), scalable(), service()), Topic.SCALED_OBJECTS) == expected


def test_settings_decide_where_metadata_is_silent():
    hurried = ReclaimConfig(grant_for=timedelta(minutes=5))
    pressed = DoctorSettings(defaults=Overrides(reclaim=Reclaim.ON_PRESSURE), reclaim=hurried)
    off = replace(pressed, reclaim=ReclaimConfig(grant_for=timedelta(hours=1), pressure=False))
    confined = replace(off, namespaces=("team",))
    # 30 s + 300 s > 5 min
    for wanted, check in ((pressed, "SlowerThanGrants"), (off, "PressureOff"), (confined, "NoPlans")):
        inputs = facts(scaled_object(), scalable(), service(), wanted=wanted)
        assert problems(inputs, Topic.SCALED_OBJECTS) == f"warn {check}"


def test_a_workload_whose_owner_has_to_be_told_and_cannot_be_is_reported():
    required = scaled_object(metadata={"requireDelivery": "true"})
    told = DoctorSettings(notified_by=NotifyTargets(names=("mail",), default=("mail",)))
    for wanted, expected in ((DoctorSettings(), "warn OwnerNotTold"), (told, "")):
        assert problems(facts(required, scalable(), service(), wanted=wanted), Topic.SCALED_OBJECTS) == expected


ADDRESSES = {
    "a headless Service with that port": ("scaler.gpus.svc:9090", [service()], ""),
    "in full": ("scaler.gpus.svc.cluster.local:9090", [service()], ""),
    "no Service of that name": ("scaler.elsewhere.svc:9090", [service()], "fail NoService"),
    "another port": ("scaler.gpus.svc:8080", [service()], "fail NoPort"),
    "a Service with a cluster IP": ("scaler.gpus.svc:9090", [service(clusterIP="10.0.0.1")], "warn NotHeadless"),
    "no port": ("scaler.gpus.svc", [service()], "fail NoAddress"),
    "no address": ("", [service()], "fail NoAddress"),
    "a name outside of the cluster": ("gpus.example.com.:9090", [], ""),
    "an IP address": ("10.0.0.1:9090", [], ""),
}


@pytest.mark.parametrize(("address", "services", "expected"), ADDRESSES.values(), ids=ADDRESSES.keys())
def test_addresses_that_lead_nowhere_are_reported_once(address, services, expected):
    two = [scaled_object(name, metadata={"scalerAddress": address}) for name in ("one", "two")]
    inputs = facts(*two, scalable("one"), scalable("two"), *services)
    assert problems(inputs, Topic.SCALED_OBJECTS) == expected
    assert [each.check for each in diagnose(inputs, NOW)].count(expected.rpartition(" ")[2]) == bool(expected)


def test_scaled_objects_of_other_scalers_are_not_judged():
    cron = scaled_object("cron", triggers=[{"type": "cron"}], fallback={"replicas": 1})
    elsewhere = scaled_object("elsewhere", metadata={"scalerAddress": "other.team.svc:1"}, fallback={"replicas": 1})
    named = DoctorSettings(addresses=frozenset({"scaler.gpus.svc:9090"}))
    inputs = facts(cron, elsewhere, scaled_object(), scalable(), service(), wanted=named)
    assert problems(inputs, Topic.SCALED_OBJECTS) == ""
    assert problems(facts(cron), Topic.SCALED_OBJECTS) == "warn None"


# ----------------------------------------------------------------------------------------------------------- as a whole


def test_findings_are_in_the_order_of_topics_and_counted():
    objects = [*NOTEBOOK, ours(active="False"), KUEUE, queue("gate", "kueue", "absent")]
    objects += [scaled_object("bad", fallback={}, minReplicaCount=1, maxReplicaCount=2, metadata={"mode": "?"})]
    findings = diagnose(facts(*objects), NOW)
    found = counts(findings)
    assert (found[FAIL] >= 5, found[WARN] >= 3, sum(found.values())) == (True, True, len(findings))
    topics = [each.topic for each in findings]
    assert topics == sorted(topics, key=list(Topic).index)


# ----------------------------------------------------------------------------------------------------------- MultiKueue


@pytest.mark.parametrize(
    "spec", [{}, {"workloadRef": {"name": "job-notebook"}}], ids=["by its job", "by the name of the Workload"]
)
def test_a_scalable_workload_of_a_remote_copy_belongs_on_the_hub(spec):
    copy = workload(**{"kueue.x-k8s.io/multikueue-origin": "multikueue"})
    found = [each for each in diagnose(facts(scalable(**spec), copy), NOW) if each.check == "RemoteCopy"]
    [(severity, where, do)] = [(each.severity, each.where, each.do) for each in found]
    assert (severity, where) == (WARN, "ScalableWorkload team/notebook")
    assert do.startswith("suspend it on the hub")
    assert not [each for each in diagnose(facts(scalable(**spec), workload()), NOW) if each.check == "RemoteCopy"]
