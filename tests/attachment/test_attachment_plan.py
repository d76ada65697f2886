"""What is written so that jobs have what their policies say: plans carried out against a cluster in memory."""

import json
from dataclasses import replace

import msgspec
import pytest
from attachment_builders import JOB, cluster_policy, policy
from builders import at
from loops_builders import MemoryStore

from scaler.attachment.objects import POLICY_ANNOTATION, TriggerTarget, attached_name
from scaler.attachment.plan import Attached, plan_steps
from scaler.attachment.writes import Verb
from scaler.decision.trigger_metadata import SOURCES_ANNOTATION
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.targets.cluster_state import scalable_workload_indexes, scaled_object_indexes
from scaler.targets.workloads import NO_TARGETS, NotifyTargets

TARGET = TriggerTarget(scaler_address="scaler:9090")
NAME = attached_name(JOB)
NOTEBOOK = replace(JOB, api_version="apps/v1", kind="Deployment", name="notebook", uid="uid-notebook")
SPEECH = replace(JOB, name="speech", uid="uid-speech", labels={"team": "speech"})
MARK = "idlegpu.io/policy-kind"


def plan(*given, **more):
    """The whole one."""
    *_, made = plan_steps(*given, **more)
    return made


class Cluster:
    """Objects as the API keeps them. KEDA restores the replicas when a ScaledObject goes that says so, unless it is
    away."""

    def __init__(self):
        self.objects, self.jobs, self.policies = {}, [JOB], [policy("a")]
        self.keda_is_there, self.target, self.notified_by = True, TARGET, NO_TARGETS

    def plan(self, now=None):
        attached = Attached(MemoryStore(scalable_workload_indexes()), MemoryStore(scaled_object_indexes()))
        for (resource, *_), body in self.objects.items():
            if resource == SCALABLE_WORKLOAD:
                attached.scalable_workloads.put(decode(ScalableWorkload, msgspec.json.encode(body)))
            else:
                attached.scaled_objects.put(decode(ScaledObject, msgspec.json.encode(body)))
        return plan(self.jobs, self.policies, attached, self.target, now or at(), notified_by=self.notified_by)

    def settle(self, now=None):
        """Carries plans out until there is nothing to do; what was written, in order."""
        done = []
        while writes := self.plan(now).writes:
            assert len(done) < 20, done
            done += [f"{each.verb} {each.resource.kind} {each.name}" for each in writes]
            for each in writes:
                self.write(each)
        return done

    def write(self, write):
        key = write.resource, write.namespace, write.name
        match write.verb:
            case Verb.CREATE:
                assert key not in self.objects
                self.put(write.resource, write.body)
            case Verb.PATCH:
                self.objects[key] = merged(self.objects[key], write.body)
                self.observe(key)
            case Verb.DELETE:
                gone = self.objects.pop(key)
                assert gone["metadata"]["uid"] == write.uid
                restores = gone["spec"].get("advanced", {}).get("restoreToOriginalReplicaCount")
                if write.resource == SCALED_OBJECT and self.keda_is_there and restores:
                    self.scale(1)

    def put(self, resource, body):
        metadata = {"uid": f"uid-of-{body['metadata']['name']}", "generation": 1, **body["metadata"]}
        key = resource, metadata["namespace"], metadata["name"]
        self.objects[key] = {**body, "metadata": metadata}
        self.observe(key)

    def observe(self, key):
        """The reconciler writes the status."""
        if key[0] == SCALABLE_WORKLOAD:
            found = self.objects[key]
            phase = "Running" if found["spec"]["replicas"] else "Suspended"
            found["status"] = {"phase": phase, "observedGeneration": 1}

    def scale(self, replicas, name=NAME):
        key = SCALABLE_WORKLOAD, "demo", name
        if key in self.objects:
            self.objects[key]["spec"]["replicas"] = replicas
            self.observe(key)

    def get(self, resource, name=NAME):
        return self.objects[resource, "demo", name]

    def status(self, now=None):
        """(matched, attached, excluded, suspended) and the words, of the first policy."""
        found = self.plan(now).statuses[self.policies[0].key]
        return (found.matched, found.attached, found.excluded, found.suspended), found.conflicts + found.problems


def merged(into, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    changed = {**(into if isinstance(into, dict) else {})}
    for key, value in patch.items():
        changed[key] = merged(changed.get(key), value)
    return {key: value for key, value in changed.items() if value is not None}


@pytest.fixture
def cluster():
    return Cluster()


BOTH = [f"create ScalableWorkload {NAME}", f"create ScaledObject {NAME}"]
GONE = [f"delete ScaledObject {NAME}", f"delete ScalableWorkload {NAME}"]


def test_a_job_gets_a_scalable_workload_and_a_scaled_object_that_are_owned_by_it(cluster):
    assert cluster.settle() == BOTH
    assert cluster.status() == ((1, 1, 0, 0), [])
    scalable, scaled = cluster.get(SCALABLE_WORKLOAD), cluster.get(SCALED_OBJECT)
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-4711"}
    assert scalable["spec"] == {"replicas": 1, "jobRef": job}
    assert scaled["spec"] == {
        "scaleTargetRef": {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ScalableWorkload", "name": NAME},
        "minReplicaCount": 0,
        "maxReplicaCount": 1,
        "pollingInterval": 30,
        "cooldownPeriod": 300,
        "initialCooldownPeriod": 300,
        "advanced": {"restoreToOriginalReplicaCount": True},
        "triggers": [
            {
                "type": "external-push",
                "name": "gpu-idle",
                "metadata": {"scalerAddress": "scaler:9090", "mode": "observe"},
            }
        ],
    }
    for each in (scalable, scaled):
        assert each["metadata"]["ownerReferences"] == [{**job, "uid": JOB.uid}]
        assert each["metadata"]["annotations"][POLICY_ANNOTATION] == "IdlePolicy/a"
    assert json.loads(scaled["metadata"]["annotations"][SOURCES_ANNOTATION]) == {"mode": "IdlePolicy/a (default)"}


def test_what_scales_its_own_pods_gets_a_scaled_object_only(cluster):
    cluster.jobs = [NOTEBOOK]
    assert cluster.settle() == ["create ScaledObject deployment-notebook"]
    target = cluster.get(SCALED_OBJECT, "deployment-notebook")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "notebook"}


def test_tls_and_authentication_of_the_settings_are_in_every_trigger(cluster):
    cluster.target = TriggerTarget(scaler_address="s:1", enable_tls=True, authentication={"kind": "K", "name": "n"})
    [_, scaled] = cluster.plan().writes
    [trigger] = scaled.body["spec"]["triggers"]
    assert trigger["authenticationRef"] == {"kind": "K", "name": "n"}
    assert trigger["metadata"] == {"scalerAddress": "s:1", "enableTLS": "true", "mode": "observe"}


def test_a_change_of_the_policy_changes_the_scaled_object_and_not_the_replicas(cluster):
    cluster.settle()
    cluster.scale(0)
    cluster.policies = [policy("a", mode="Enforce", idleAfter="20m")]
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    metadata = cluster.get(SCALED_OBJECT)["spec"]["triggers"][0]["metadata"]
    assert metadata == {"scalerAddress": "scaler:9090", "mode": "enforce", "idleAfter": "20m"}
    assert cluster.get(SCALABLE_WORKLOAD)["spec"]["replicas"] == 0
    assert cluster.status() == ((1, 1, 0, 1), [])


def test_who_is_told_is_on_the_scaled_object_and_goes_with_the_policy_s_word(cluster):
    cluster.policies = [policy("a", notify=["chat", "mail"])]
    cluster.settle()
    assert cluster.get(SCALED_OBJECT)["metadata"]["annotations"]["idlegpu.io/notify"] == "chat, mail"
    cluster.policies = [policy("a")]
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    assert "idlegpu.io/notify" not in cluster.get(SCALED_OBJECT)["metadata"]["annotations"]


@pytest.mark.parametrize(
    "change", [{"maxReplicaCount": 5}, {"minReplicaCount": 1}, {"triggers": []}, {"fallback": {"replicas": 0}}]
)
def test_a_scaled_object_that_was_changed_by_hand_is_set_right(cluster, change):
    cluster.settle()
    before = json.dumps(cluster.get(SCALED_OBJECT)["spec"], sort_keys=True)
    cluster.get(SCALED_OBJECT)["spec"].update(change)
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    assert json.dumps(cluster.get(SCALED_OBJECT)["spec"], sort_keys=True) == before


def test_another_policy_takes_a_job_over_without_detaching_it(cluster):
    cluster.settle()
    cluster.policies = [policy("a", precedence=1), policy("b", precedence=2)]
    assert cluster.settle() == [f"patch ScalableWorkload {NAME}", f"patch ScaledObject {NAME}"]
    assert cluster.get(SCALED_OBJECT)["metadata"]["annotations"][POLICY_ANNOTATION] == "IdlePolicy/b"


@pytest.mark.parametrize(
    "policies",
    [
        [],
        [policy("a", selector={"kinds": ["RayCluster"]})],
        [policy("a", exclude=[{"kinds": ["Job"]}]), cluster_policy("b")],
        [policy("a", namespace="other")],
    ],
    ids=["gone", "no match", "excluded", "of another namespace"],
)
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_job_that_follows_no_policy_any_more_is_detached_and_resumed_first(cluster, policies, is_seen):
    cluster.settle()
    cluster.scale(0)
    cluster.policies = policies
    if not is_seen:
        cluster.jobs = []
    is_known = is_seen or not any(each.key == ("demo", "a") for each in policies)
    assert cluster.settle() == (GONE if is_known else [])
    assert bool(cluster.objects) != is_known


def test_where_keda_has_not_restored_the_replicas_they_are_set_before_the_scalable_workload_goes(cluster):
    cluster.settle()
    cluster.scale(0)
    cluster.keda_is_there, cluster.policies = False, []
    assert cluster.settle() == [GONE[0], f"patch ScalableWorkload {NAME}", GONE[1]]


@pytest.mark.parametrize("phase", ["Suspended", "Suspending", "Resuming", "HeldForPlan", ""])
def test_a_scalable_workload_stays_until_its_workload_is_active_again(cluster, phase):
    cluster.settle()
    cluster.policies = []
    [write] = cluster.plan().writes
    cluster.write(write)
    cluster.get(SCALABLE_WORKLOAD)["status"]["phase"] = phase
    assert cluster.plan().writes == []
    cluster.get(SCALABLE_WORKLOAD)["status"] |= {"phase": "WaitingForQuota", "observedGeneration": 0}
    assert cluster.plan().writes == []
    cluster.get(SCALABLE_WORKLOAD)["status"]["observedGeneration"] = 1
    assert cluster.settle() == GONE[1:]


def test_what_is_being_deleted_is_left_alone(cluster):
    cluster.settle()
    for each in cluster.objects.values():
        each["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    cluster.policies = [policy("a", idleAfter="20m")]
    assert cluster.plan().writes == []
    cluster.policies = []
    assert cluster.plan().writes == []


def test_a_job_without_a_workload_keeps_what_its_policy_has_attached(cluster):
    cluster.settle()
    cluster.jobs = []
    assert cluster.settle() == []
    assert len(cluster.objects) == 2


def test_a_policy_that_is_not_valid_attaches_nothing_and_what_it_has_attached_only_observes(cluster):
    cluster.policies = [policy("a", mode="Enforce")]
    cluster.settle()
    cluster.policies, cluster.jobs = [policy("a", mode="Enforce", gpus="some")], [JOB, SPEECH]
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    assert cluster.get(SCALED_OBJECT)["spec"]["triggers"][0]["metadata"]["mode"] == "observe"
    assert len(cluster.objects) == 2
    assert cluster.status()[0] == (2, 1, 0, 0), "what is attached is counted, whoever is not attached any more"


def test_without_an_address_nothing_is_attached_and_what_is_stays_as_it_is(cluster):
    cluster.target = None
    assert cluster.settle() == []
    cluster.target = TARGET
    cluster.settle()
    cluster.target, cluster.policies = None, [policy("a", idleAfter="20m")]
    assert cluster.settle() == []
    assert cluster.status()[0][:2] == (1, 1)
    cluster.policies = [policy("a", gpus="some")]
    assert cluster.settle() == []
    assert cluster.status()[0][:2] == (1, 1)
    cluster.policies = []
    assert cluster.settle() == GONE


def test_a_job_whose_two_policies_contradict_each_other_is_only_observed_and_the_nearer_one_says_why(cluster):
    cluster.settle()
    cluster.policies = [policy("a", idleAfterUnderPressure="30m", mode="Enforce"), cluster_policy("c", idleAfter="20m")]
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    assert cluster.get(SCALED_OBJECT)["spec"]["triggers"][0]["metadata"]["mode"] == "observe"
    counts, [words] = cluster.status()
    assert counts == (1, 1, 0, 0)
    assert words.startswith(
        "Job demo/train-4711: idleAfterUnderPressure, with the idleAfter of ClusterIdlePolicy/c: 30m"
    )


@pytest.mark.parametrize("ours_first", [False, True])
@pytest.mark.parametrize(
    ("resource", "name", "spec", "words"),
    [
        (
            SCALABLE_WORKLOAD,
            "mine",
            {"replicas": 1, "jobRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "train-4711"}},
            "ScalableWorkload mine",
        ),
        (
            SCALABLE_WORKLOAD,
            "mine",
            {"replicas": 1, "workloadRef": {"name": "job-train-4711-1a2b3"}},
            "ScalableWorkload mine",
        ),
        (
            SCALED_OBJECT,
            "mine",
            {"scaleTargetRef": {"apiVersion": "idlegpu.io/v1alpha1", "kind": "ScalableWorkload", "name": NAME}},
            "ScaledObject mine",
        ),
        (SCALED_OBJECT, NAME, {"scaleTargetRef": {"name": "other"}}, f"the name {NAME}, which is taken"),
    ],
)
def test_what_an_author_scales_is_left_alone(cluster, ours_first, resource, name, spec, words):
    if ours_first and name != NAME:
        cluster.settle()
    cluster.put(resource, {"metadata": {"namespace": "demo", "name": name}, "spec": spec})
    done = cluster.settle()
    assert done == (GONE if ours_first and name != NAME else [])
    assert cluster.status() == ((1, 0, 0, 0), [f"Job demo/train-4711: {words}"])
    assert list(cluster.objects) == [(resource, "demo", name)]


def test_a_deployment_that_has_a_scaled_object_is_left_alone(cluster):
    cluster.jobs = [NOTEBOOK]
    spec = {"scaleTargetRef": {"name": "notebook"}}
    cluster.put(SCALED_OBJECT, {"metadata": {"namespace": "demo", "name": "mine"}, "spec": spec})
    assert cluster.settle() == []
    assert cluster.status() == ((1, 0, 0, 0), ["Deployment demo/notebook: ScaledObject mine"])


def test_what_cannot_be_scaled_between_1_and_0_is_a_problem_of_the_policy(cluster):
    cluster.jobs = [replace(NOTEBOOK, problem="it has 3 replicas")]
    assert cluster.settle() == []
    assert cluster.status() == ((1, 0, 0, 0), ["Deployment demo/notebook: it has 3 replicas"])


def test_what_the_jobs_owner_asks_for_is_copied_once_and_taken_back_with_it(cluster):
    keep, wake = "idlegpu.io/keep-for", "idlegpu.io/wake"
    cluster.jobs = [replace(JOB, annotations={keep: "4h", wake: "true"})]
    assert cluster.settle() == [*BOTH, f"patch ScaledObject {NAME}"]
    annotations = cluster.get(SCALED_OBJECT)["metadata"]["annotations"]
    assert (annotations[keep], annotations[wake]) == ("4h", "true")
    # The leader has written until when, and the wake-up has taken effect.
    del annotations[keep], annotations[wake]
    annotations["idlegpu.io/keep-until"] = "2026-12-01T16:00:00Z"
    assert cluster.settle() == []
    cluster.policies = [policy("a", idleAfter="1h")]
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    assert keep not in cluster.get(SCALED_OBJECT)["metadata"]["annotations"]
    cluster.jobs = [replace(JOB, annotations={"idlegpu.io/exclude": "true"})]
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    cluster.jobs = [JOB]
    assert cluster.settle() == [f"patch ScaledObject {NAME}"]
    left = cluster.get(SCALED_OBJECT)["metadata"]["annotations"]
    assert "idlegpu.io/exclude" not in left
    assert left["idlegpu.io/keep-until"] == "2026-12-01T16:00:00Z"


def test_an_exclusion_that_ends_lets_the_job_be_attached(cluster):
    cluster.policies = [policy("a", exclude=[{"kinds": ["Job"], "until": "2026-12-01T12:01:00Z"}])]
    assert cluster.settle() == []
    assert cluster.status()[0] == (1, 0, 1, 0)
    assert cluster.settle(at(60)) == BOTH


def test_the_status_of_a_policy_names_a_few_and_counts_all(cluster):
    cluster.jobs = [replace(NOTEBOOK, name=f"n{n}", uid=f"u{n}", problem="3 replicas") for n in range(30)]
    status = cluster.plan().statuses["demo", "a"].as_status("it cannot be read", 7)
    assert (status.observed_generation, status.matched, status.attached, len(status.problems)) == (7, 30, 0, 10)
    assert "it cannot be read" in status.problems


def test_nothing_of_others_is_ever_written(cluster):
    for name in (NAME, "mine"):
        for resource in (SCALABLE_WORKLOAD, SCALED_OBJECT):
            spec = {"replicas": 1, "workloadRef": {"name": name}} if resource == SCALABLE_WORKLOAD else {}
            cluster.put(resource, {"metadata": {"namespace": "demo", "name": name}, "spec": spec})
    assert MARK not in json.dumps([each["metadata"] for each in cluster.objects.values()])
    for policies in ([policy("a")], [], [policy("a", gpus="some")]):
        cluster.policies = policies
        assert cluster.plan().writes == []


def test_a_policy_whose_jobs_are_never_suspended_because_nothing_tells_their_owners_says_so_once(cluster):
    cluster.jobs = [JOB, NOTEBOOK]
    cluster.policies = [policy("a", notify=["alerts"]), cluster_policy("b", warning="10m", requireDelivery=True)]
    cluster.settle()
    assert cluster.get(SCALED_OBJECT)["spec"]["triggers"][0]["metadata"]["requireDelivery"] == "true"
    _, [problem] = cluster.status()
    assert problem.startswith("requireDelivery: no target tells owners by messages")
    cluster.notified_by = NotifyTargets(names=("mail",), default=("mail",))
    assert cluster.status()[1], "alerts are no messages"
    cluster.policies[0] = policy("a")
    assert cluster.status()[1] == []
    cluster.notified_by, cluster.policies[0] = NO_TARGETS, policy("a", requireDelivery=False)
    assert cluster.status()[1] == []
