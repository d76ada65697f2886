"""Which policy a job follows, and what it says."""

from dataclasses import replace

import msgspec
import pytest
from attachment_builders import JOB, cluster_policy, policy
from builders import at

from scaler.attachment.objects import attached_name, policy_of
from scaler.attachment.policy import followed_policy, in_order, next_end
from scaler.kube.objects import idlegpu
from scaler.kube.objects.core import decode


def said(*policies, job=JOB, now=None):
    found = followed_policy(job, in_order(policies), now or at())
    if found is None:
        return None
    words = "excluded" if found.excluded else "not valid" if found.policy.problem else "attaches"
    return str(found.policy), words


MODELS = {"gpuModels": ["*A100*"]}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"kinds": ["Job"]}, True),
        ({"kinds": ["RayCluster", "J*"]}, True),
        ({"kinds": ["RayCluster"]}, False),
        ({"labels": {"matchLabels": {"team": "vision"}}}, True),
        ({"labels": {"matchLabels": {"team": "speech"}}}, False),
        ({"labels": {"matchExpressions": [{"key": "keep", "operator": "DoesNotExist"}]}}, True),
        ({"queues": ["user-queue"]}, True),
        ({"queues": ["batch-*"]}, False),
        ({"queues": ["user-queu?"]}, False),
        ({"queues": ["[u]ser-queue"]}, False),
        ({"priorityClasses": ["low", "batch"]}, True),
        ({"priorityClasses": ["production"]}, False),
        (MODELS, True),
        ({"gpuModels": ["*H100*"]}, False),
        ({"kinds": ["Job"], "queues": ["batch-*"]}, False),
    ],
)
def test_all_that_a_selector_gives_must_match(selector, matches):
    assert (said(policy("a", selector=selector)) is not None) == matches


def test_namespaces_are_selected_by_their_labels():
    selector = {"namespaces": {"matchLabels": {"tier": "research"}}}
    assert said(cluster_policy("a", selector=selector)) == ("ClusterIdlePolicy/a", "attaches")
    assert said(cluster_policy("a", selector=selector), job=replace(JOB, namespace_labels={})) is None


def test_the_namespaces_own_policy_comes_first_then_precedence_then_the_name():
    cluster, high, low, other = (
        cluster_policy("a", precedence=100),
        policy("z", precedence=5),
        policy("b"),
        policy("c", namespace="other", precedence=9),
    )
    assert said(cluster, low, high, other) == ("IdlePolicy/z", "attaches")
    assert said(cluster, low, policy("a2"), other) == ("IdlePolicy/a2", "attaches")
    assert said(cluster, other) == ("ClusterIdlePolicy/a", "attaches")
    assert said(other) is None


def test_where_its_policy_excludes_a_job_no_other_one_attaches_it():
    excluding = policy("a", exclude=[{"labels": {"matchLabels": {"team": "vision"}}}])
    assert said(excluding, cluster_policy("b")) == ("IdlePolicy/a", "excluded")


def test_an_exclusion_ends():
    until = policy("a", exclude=[{"kinds": ["Job"], "until": "2026-12-01T12:01:00Z"}])
    assert said(until, now=at(59)) == ("IdlePolicy/a", "excluded")
    assert said(until, now=at(60)) == ("IdlePolicy/a", "attaches")
    assert next_end([until], at(0)) == at(60)
    assert next_end([until], at(60)) is None


def test_a_job_whose_gpu_models_are_unknown_is_not_selected_by_them_but_excluded():
    unseen = replace(JOB, gpu_models=None)
    assert said(policy("a", selector=MODELS), job=unseen) is None
    assert said(policy("a", exclude=[MODELS]), job=unseen) == ("IdlePolicy/a", "excluded")
    assert said(policy("a", exclude=[{"gpuModels": ["*H100*"]}])) == ("IdlePolicy/a", "attaches")


def test_fields_are_completed_by_the_policy_of_the_cluster_one_by_one():
    own, cluster = policy("a", idleAfter="20m"), cluster_policy("b", idleAfter="1h", gpus="any", mode="Enforce")
    found = followed_policy(JOB, in_order([own, cluster]), at())
    assert found.metadata == {"mode": "enforce", "idleAfter": "20m", "gpus": "any"}
    assert found.sources == {
        "mode": "ClusterIdlePolicy/b",
        "idleAfter": "IdlePolicy/a",
        "gpus": "ClusterIdlePolicy/b",
    }


def test_hours_are_written_as_trigger_metadata():
    night = {"days": ["Mon", "Tue"], "from": "19:00", "to": "07:00", "timeZone": "Europe/Berlin"}
    weekend = {"days": ["Sat", "Sun"], "timeZone": "Europe/Berlin"}
    morning = {"days": ["Mon"], "time": "07:30", "timeZone": "Europe/Berlin"}
    found = policy("a", allowedDuring=[night, weekend], wakeAt=[morning])
    assert found.problem == ""
    assert dict(found.metadata) == {
        "allowedDuring": "Mon,Tue 19:00-07:00 Europe/Berlin; Sat,Sun 00:00-24:00 Europe/Berlin",
        "wakeAt": "Mon 07:30 Europe/Berlin",
    }


PRESSED = {"reclaim": "OnPressure"}
WAKES = {
    "both of the cluster's": ({}, PRESSED | {"wake": "WhenFree"}, {"reclaim": "OnPressure", "wake": "WhenFree"}, ""),
    "of either": ({"wake": "WhenFree"}, PRESSED, {"reclaim": "OnPressure", "wake": "WhenFree"}, ""),
    "the cluster's is left out where time suspends": (
        {"reclaim": "Always"},
        PRESSED | {"wake": "WhenFree"},
        {"reclaim": "Always"},
        "",
    ),
    "its own does not go with what the cluster says": (
        {"wake": "WhenFree"},
        {"reclaim": "Always"},
        {},
        "wake, with the reclaim of ClusterIdlePolicy/b: WhenFree needs reclaim: OnPressure",
    ),
}


@pytest.mark.parametrize(("own", "clusters", "metadata", "problem"), WAKES.values(), ids=WAKES.keys())
def test_what_comes_back_when_there_is_room_is_completed_with_what_suspends(own, clusters, metadata, problem):
    found = followed_policy(JOB, in_order([policy("a", **own), cluster_policy("b", **clusters)]), at())
    assert found.metadata == {"mode": "observe"} | metadata
    assert found.problem.startswith(problem) if problem else found.problem == ""
    assert found.sources.keys() == found.metadata.keys()


def test_limits_of_keeps_are_written_as_trigger_metadata():
    found = policy("a", keep={"longest": "8h", "perWeek": 0, "users": ["*@example.com", "anna"]})
    assert dict(found.metadata) == {"longestKeep": "8h", "keepsPerWeek": "0", "keepUsers": "*@example.com, anna"}


def test_budgets_are_written_as_trigger_metadata():
    found = policy("a", budget={"atOnce": 0, "perPeriod": {"count": 5, "period": "24h"}})
    assert dict(found.metadata) == {"suspendedAtOnce": "0", "suspendedPerPeriod": "5 per 24h"}
    found = policy("a", budget={"atOnce": "20%", "perPeriod": {"count": "50%", "period": "24h"}})
    assert dict(found.metadata) == {"suspendedAtOnce": "20%", "suspendedPerPeriod": "50% per 24h"}
    assert "spec.budget.atOnce: '120%' is out of range" in policy("a", budget={"atOnce": "120%"}).problem
    assert "spec.budget.perPeriod: '0s' leaves no time" in policy("a", budget={"perPeriod": {"period": "0s"}}).problem


def test_hooks_are_written_as_trigger_metadata_and_one_that_the_settings_do_not_have_is_not_valid():
    spec = {"beforeSuspend": {"hook": "checkpoint", "onFailure": "Continue"}}
    found = policy("a", **spec)
    assert dict(found.metadata) == {"beforeSuspend": "checkpoint", "beforeSuspendOnFailure": "Continue"}
    body = decode(idlegpu.IdlePolicy, msgspec.json.encode({"metadata": {"name": "a"}, "spec": spec}))
    assert policy_of(body, hooks={"checkpoint"}).problem == ""
    assert policy_of(body, hooks={"snapshot"}).problem == (
        "spec.beforeSuspend: the settings have no hook 'checkpoint'; write 'snapshot'"
    )


def test_targets_are_those_of_the_nearest_policy_that_names_some():
    own, cluster = policy("a"), cluster_policy("b", notify=["chat"])
    assert followed_policy(JOB, in_order([own, cluster]), at()).notify == ("chat",)
    assert followed_policy(JOB, in_order([policy("a", notify=["none"]), cluster]), at()).notify == ("none",)
    assert followed_policy(JOB, in_order([own]), at()).notify == ()


def test_only_the_policy_that_the_job_would_follow_otherwise_completes_it():
    own, first, second = policy("a"), cluster_policy("b", gpus="any"), cluster_policy("c", mode="Enforce")
    assert followed_policy(JOB, in_order([own, second, first]), at()).metadata == {"mode": "observe", "gpus": "any"}
    elsewhere = cluster_policy("b", selector={"kinds": ["RayCluster"]}, gpus="any")
    assert followed_policy(JOB, in_order([own, second, elsewhere]), at()).metadata == {"mode": "enforce"}


def test_what_the_cluster_says_of_pressure_is_left_out_where_the_nearer_window_is_shorter():
    own, cluster = policy("a", idleAfter="10m"), cluster_policy("b", idleAfter="1h", idleAfterUnderPressure="20m")
    found = followed_policy(JOB, in_order([own, cluster]), at())
    assert (found.metadata, found.problem) == ({"mode": "observe", "idleAfter": "10m"}, "")


def test_a_time_without_a_zone_ends_no_exclusion():
    broken = policy("a", exclude=[{"kinds": ["Job"], "until": "2020-01-01T12:00:00"}])
    assert "spec.exclude[0].until: 2020-01-01T12:00:00 has no zone" in broken.problem
    assert said(broken) == ("IdlePolicy/a", "not valid")
    assert next_end([broken], at()) is None


def test_without_a_word_on_the_mode_it_is_observe():
    found = followed_policy(JOB, [policy("a")], at())
    assert (found.metadata, found.sources) == ({"mode": "observe"}, {"mode": "IdlePolicy/a (default)"})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"idleAfter": "20"}, "spec.idleAfter: '20' is not a duration; write '20s'"),
        ({"selector": {"labels": {"matchExpressions": [{"key": "a", "operator": "Has"}]}}}, "spec.selector.labels"),
        ({"selector": {"namespaces": {}}}, "spec.selector.namespaces: an IdlePolicy is about its own namespace"),
        ({"exclude": [{"labels": {"matchExpressions": [{"key": "a", "operator": "~"}]}}]}, "spec.exclude[0].labels"),
        ({"allowedDuring": [{"timeZone": "Europe/Berlim"}]}, "spec.allowedDuring: time zone 'Europe/Berlim' cannot be"),
        ({"wake": "WhenFree", "reclaim": "Always"}, "spec.wake: WhenFree needs reclaim: OnPressure"),
        ({"wakeAt": [{"time": "24:00", "timeZone": "UTC"}]}, "spec.wakeAt: '24:00 UTC' is no time of day"),
        ({"idleAfter": "10m", "idleAfterUnderPressure": "20m"}, "is longer than idleAfter (10m)"),
    ],
)
def test_a_policy_that_is_not_valid_attaches_nothing_and_lets_no_later_one_do_so(fields, problem):
    broken = policy("a", **fields)
    assert problem in broken.problem
    assert said(broken, cluster_policy("b", mode="Enforce")) == ("IdlePolicy/a", "not valid")
    assert followed_policy(JOB, in_order([broken, cluster_policy("b", mode="Enforce")]), at()).metadata == {
        "mode": "observe"
    }
    assert said(policy("b", selector={"kinds": ["RayCluster"]}, **{"idleAfter": "20"})) is None


def test_a_cluster_policy_that_is_not_valid_completes_nothing():
    own, broken = policy("a"), cluster_policy("b", mode="Enforce", idleAfter="never")
    assert followed_policy(JOB, in_order([own, broken]), at()).metadata == {"mode": "observe"}


def test_names_of_what_is_attached_are_the_jobs_own_and_short_enough_for_keda():
    assert attached_name(JOB) == "job-train-4711"
    long = [replace(JOB, name=f"{'x' * 60}-{n}") for n in range(2)]
    names = {attached_name(each) for each in long}
    assert len(names) == 2
    assert all(len(each) <= 54 for each in names)


def test_a_job_that_a_hub_of_multikueue_runs_here_is_excluded_whatever_its_policy_says():
    remote = replace(JOB, is_remote_copy=True)
    assert said(policy("a"), job=remote) == ("IdlePolicy/a", "excluded")
    assert said(policy("a", idleAfter="x"), job=remote) == ("IdlePolicy/a", "excluded")
    found = followed_policy(remote, in_order([policy("a")]), at())
    assert found.excluded.reason.startswith("RemoteCopy")
