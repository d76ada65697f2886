"""Jobs that are scaled without KEDA, and those that change between both: plans against a cluster in memory."""

import json
from dataclasses import replace

import pytest
from attachment.test_attachment_plan import BOTH, GONE, NAME, NOTEBOOK, TARGET, Cluster
from attachment_builders import JOB, cluster_policy, policy

from scaler.attachment.actuators import copied, removed
from scaler.attachment.objects import POLICY_ANNOTATION
from scaler.decision.trigger_metadata import SOURCES_ANNOTATION
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT

PATCHED = f"patch ScalableWorkload {NAME}"
DIRECT = policy("a", actuator="Direct", mode="Enforce")
KEEP = "idlegpu.io/keep-until"


@pytest.fixture
def cluster():
    made = Cluster()
    made.policies = [DIRECT]
    return made


def swl(cluster):
    return cluster.get(SCALABLE_WORKLOAD)


def asked(cluster, resource):
    return cluster.get(resource)["metadata"].setdefault("annotations", {})


def test_a_job_gets_a_scalable_workload_only_with_what_its_trigger_would_say(cluster):
    cluster.target = None  # no address of KEDA's is needed
    assert cluster.settle() == BOTH[:1]
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-4711"}
    metadata = {"mode": "enforce"}
    assert swl(cluster)["spec"] == {"replicas": 1, "jobRef": job, "actuator": "Direct", "triggerMetadata": metadata}
    annotations = asked(cluster, SCALABLE_WORKLOAD)
    assert annotations[POLICY_ANNOTATION] == "IdlePolicy/a"
    assert json.loads(annotations[SOURCES_ANNOTATION]) == {"mode": "IdlePolicy/a"}
    assert cluster.status() == ((1, 1, 0, 0), [])
    assert not cluster.plan().statuses[DIRECT.key].needs_keda


def test_what_has_replicas_of_its_own_needs_keda(cluster):
    cluster.jobs, cluster.policies = [NOTEBOOK], [policy("a")]
    cluster.settle()
    cluster.policies = [DIRECT]
    assert cluster.settle() == ["delete ScaledObject deployment-notebook"]
    words = (
        "Deployment demo/notebook: actuator Direct scales no Deployment, which has replicas of its own: it needs KEDA"
    )
    assert cluster.status() == ((1, 0, 0, 0), [words])


@pytest.mark.parametrize(
    ("policies", "is_direct"),
    [
        ([policy("a"), cluster_policy("c", actuator="Direct")], True),
        ([policy("a", actuator="KEDA"), cluster_policy("c", actuator="Direct")], False),
        ([policy("a")], False),
        ([cluster_policy("c", actuator="Direct")], True),
    ],
    ids=["completed by the cluster's", "its own word", "none says it", "the cluster's alone"],
)
def test_the_actuator_is_the_policy_s_then_the_cluster_s_then_keda(cluster, policies, is_direct):
    cluster.policies = policies
    assert cluster.settle() == (BOTH[:1] if is_direct else BOTH)


def test_what_the_policy_says_no_more_goes_and_replicas_stay(cluster):
    cluster.policies = [policy("a", actuator="Direct", idleAfter="20m", notify=["chat"])]
    cluster.settle()
    cluster.scale(0)
    assert asked(cluster, SCALABLE_WORKLOAD)["idlegpu.io/notify"] == "chat"
    cluster.policies = [DIRECT]
    assert cluster.settle() == [PATCHED]
    assert swl(cluster)["spec"]["triggerMetadata"] == {"mode": "enforce"}
    assert "idlegpu.io/notify" not in asked(cluster, SCALABLE_WORKLOAD)
    assert cluster.status() == ((1, 1, 0, 1), [])
    assert swl(cluster)["spec"]["replicas"] == 0


@pytest.mark.parametrize("change", [{"actuator": "KEDA"}, {"triggerMetadata": {"mode": "observe", "idleAfter": "1h"}}])
def test_what_was_changed_by_hand_is_set_right(cluster, change):
    cluster.settle()
    before = json.dumps(swl(cluster)["spec"], sort_keys=True)
    swl(cluster)["spec"].update(change)
    assert cluster.settle() == [PATCHED]
    assert json.dumps(swl(cluster)["spec"], sort_keys=True) == before


def test_a_policy_that_is_not_valid_only_observes_what_it_has_attached(cluster):
    cluster.settle()
    cluster.policies = [policy("a", mode="Enforce", gpus="some")]
    assert cluster.settle() == [PATCHED]
    assert swl(cluster)["spec"]["triggerMetadata"] == {"mode": "observe"}


def test_what_its_owner_asks_for_on_the_job_is_copied_once(cluster):
    cluster.settle()
    cluster.jobs = [replace(JOB, annotations={"idlegpu.io/wake": "true"})]
    assert cluster.settle() == [PATCHED]
    del asked(cluster, SCALABLE_WORKLOAD)["idlegpu.io/wake"]  # the leader, when it has taken effect
    assert cluster.settle() == []


def test_a_suspended_job_is_resumed_before_it_is_detached_and_nothing_scales_it_meanwhile(cluster):
    cluster.settle()
    cluster.scale(0)
    cluster.policies = []
    [write] = cluster.plan().writes
    cluster.write(write)
    assert swl(cluster)["spec"] == {"replicas": 1, "jobRef": swl(cluster)["spec"]["jobRef"], "actuator": "KEDA"}
    assert cluster.settle() == GONE[1:]


# ------------------------------------------------------------------------------------------------ from one to the other


def steps(cluster):
    """What is written until there is nothing to do, and the replicas after each step."""
    done, replicas = [], []
    while writes := cluster.plan().writes:
        assert len(done) < 20, done
        for each in writes:
            cluster.write(each)
            done.append(f"{each.verb} {each.resource.kind}")
            replicas.append(swl(cluster)["spec"]["replicas"])
    return done, replicas


TO_DIRECT = ["patch ScalableWorkload", "patch ScaledObject", "delete ScaledObject"]
TO_KEDA = ["create ScaledObject", "patch ScalableWorkload"]


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_job_changes_to_direct_and_back_as_it_is(cluster, replicas):
    by_keda = [policy("a", mode="Enforce")]
    cluster.policies = by_keda
    cluster.settle()
    before = json.dumps(swl(cluster)["spec"]["jobRef"])
    cluster.scale(replicas)
    cluster.policies = [DIRECT]
    done, seen = steps(cluster)
    assert (done, set(seen)) == (TO_DIRECT, {replicas})
    assert swl(cluster)["spec"]["actuator"] == "Direct"
    cluster.policies = by_keda
    done, seen = steps(cluster)
    assert (done, set(seen)) == (TO_KEDA, {replicas})
    assert "triggerMetadata" not in swl(cluster)["spec"]
    assert SOURCES_ANNOTATION not in asked(cluster, SCALABLE_WORKLOAD)
    assert cluster.get(SCALED_OBJECT)["spec"]["advanced"] == {"restoreToOriginalReplicaCount": True}
    assert json.dumps(swl(cluster)["spec"]["jobRef"]) == before


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_change_of_mind_half_way_ends_as_the_policy_says(cluster, stop_after):
    by_keda = [policy("a", mode="Enforce")]
    cluster.policies = by_keda
    cluster.settle()
    cluster.scale(0)
    cluster.policies = [DIRECT]
    for _ in range(stop_after):
        [write] = cluster.plan().writes
        cluster.write(write)
    cluster.policies = by_keda
    _, replicas = steps(cluster)
    assert set(replicas) == {0}
    assert cluster.get(SCALED_OBJECT)["spec"]["advanced"] == {"restoreToOriginalReplicaCount": True}
    assert swl(cluster)["spec"]["actuator"] == "KEDA"


def test_what_its_owner_has_asked_for_moves_along(cluster):
    by_keda = [policy("a", mode="Enforce")]
    cluster.policies = by_keda
    cluster.settle()
    asked(cluster, SCALED_OBJECT).update({KEEP: "2026-12-24T18:00:00Z", "idlegpu.io/keeps": "[]", "other": "x"})
    asked(cluster, SCALABLE_WORKLOAD)["idlegpu.io/notified-chat"] = "{}"
    cluster.policies = [DIRECT]
    done, _ = steps(cluster)
    assert done == [TO_DIRECT[0], "patch ScalableWorkload", *TO_DIRECT[1:]]
    found = asked(cluster, SCALABLE_WORKLOAD)
    assert (found[KEEP], found["idlegpu.io/keeps"]) == ("2026-12-24T18:00:00Z", "[]")
    assert "other" not in found
    cluster.policies = by_keda
    steps(cluster)
    assert asked(cluster, SCALED_OBJECT)[KEEP] == "2026-12-24T18:00:00Z"
    assert KEEP not in asked(cluster, SCALABLE_WORKLOAD), "the owner ends it where verbs set it"
    assert asked(cluster, SCALABLE_WORKLOAD)["idlegpu.io/notified-chat"] == "{}", "marks stay with the history"


def test_a_keep_of_the_last_moment_is_copied_while_the_scaled_object_ends(cluster):
    cluster.policies = [policy("a", mode="Enforce")]
    cluster.settle()
    cluster.policies = [DIRECT]
    for _ in range(2):
        [write] = cluster.plan().writes
        cluster.write(write)
    scaled = cluster.get(SCALED_OBJECT)["metadata"]
    scaled["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    scaled["annotations"][KEEP] = "2026-12-24T18:00:00Z"
    [write] = cluster.plan().writes
    cluster.write(write)
    assert asked(cluster, SCALABLE_WORKLOAD)[KEEP] == "2026-12-24T18:00:00Z"
    assert cluster.plan().writes == []


EXCLUDE = "idlegpu.io/exclude"


@pytest.mark.parametrize(
    ("key", "value", "there", "is_copied"),
    [
        pytest.param(KEEP, "2026-12-24T18:00:00Z", None, True, id="only one has it"),
        pytest.param(KEEP, "2026-12-24T18:00:00Z", "2026-12-24T17:00:00Z", True, id="the later end stays"),
        pytest.param(KEEP, "2026-12-24T17:00:00Z", "2026-12-24T18:00:00Z", False, id="an earlier one is dropped"),
        pytest.param(KEEP, "tomorrow", "2026-12-24T18:00:00Z", True, id="what cannot be read suspends nothing"),
        pytest.param(EXCLUDE, "true", "2026-12-24T18:00:00Z", True, id="for good is later than any time"),
        pytest.param(EXCLUDE, "false", "true", False, id="no exclusion ends none"),
        pytest.param(EXCLUDE, "true", "true", False, id="the same on both"),
        pytest.param("idlegpu.io/asked-by", "ben", "anna", False, id="of other annotations the one that is there"),
        pytest.param("idlegpu.io/policy-sources", "{}", None, False, id="what the policy writes is not an owner's"),
    ],
)
def test_of_two_ends_the_later_one_stays(key, value, there, is_copied):
    other = {} if there is None else {key: there}
    assert bool(copied({key: value}, other, own=())) == is_copied
    assert bool(removed({key: value}, other, own=())) == (value == there)


def test_without_an_address_jobs_of_keda_stay_and_those_without_keda_are_attached(cluster):
    cluster.target, cluster.policies = None, [policy("a"), policy("b", actuator="Direct", precedence=1)]
    assert cluster.settle() == BOTH[:1]
    cluster.target, cluster.policies = TARGET, [policy("a")]
    assert cluster.settle()[:1] == BOTH[1:]
