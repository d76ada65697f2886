"""What is written to ask for nodes, how answers are read, and what a gang's pods are given then."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import NOON, WorkloadJson, at
from provisioning_builders import (
    CHECK,
    CLASS,
    CONSUME,
    GPU,
    condition,
    entry,
    flavor,
    flavors,
    gang,
    pod_set,
    provisioning_request,
)
from recordings import one

from scaler.admission.policy import MergePolicy, ProvisioningPolicy, Unusable
from scaler.admission.provisioning.lifecycle import PodSetPatch, ProvisioningInputs, RequestState, ReservationStage
from scaler.admission.provisioning.manifests import (
    RequestManifests,
    limited,
    request_manifests_of,
    request_name,
    template_name,
)
from scaler.admission.provisioning.requests import (
    provisioning_inputs_of,
    ready_updates,
    request_of,
    workload_uid_of,
)
from scaler.admission.workload import reserved_workload_of
from scaler.kube.objects.resources import PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA

POLICY = ProvisioningPolicy(
    provisioning_class=CLASS, parameters={"zone": "a", "ValidUntilSeconds": "600"}, managed_resources=frozenset({GPU})
)
FLAVORS = flavors()


def order(workload: WorkloadJson, policy: ProvisioningPolicy = POLICY, **given: Any) -> RequestManifests | Unusable:
    options: dict[str, Any] = {"check": CHECK, "attempt": 1, "missing": {}, "flavors": FLAVORS.get} | given
    return request_manifests_of(workload.decoded(), msgspec.json.encode(workload.json), policy, **options)


def ordered(workload: WorkloadJson, policy: ProvisioningPolicy = POLICY, **given: Any) -> RequestManifests:
    found = order(workload, policy, **given)
    assert isinstance(found, RequestManifests), found
    return found


def inputs_of(workload: WorkloadJson) -> ProvisioningInputs:
    made = workload.decoded()
    return provisioning_inputs_of(made, reserved_workload_of(made, CHECK), POLICY)


# --------------------------------------------------------------------------------------------------- what is written


def test_a_gang_asks_for_the_pods_that_it_was_admitted_with() -> None:
    found = ordered(gang(pod_set(count=16)).with_annotations({"provreq.kueue.x-k8s.io/zone": "b", "other/x": "y"}))
    assert found.name == "job-a-reclaim-1"
    assert found.pods == 16
    assert found.request["spec"] == {
        "provisioningClassName": CLASS,
        "parameters": {"zone": "b", "ValidUntilSeconds": "600"},  # the Workload's annotation wins
        "podSets": [{"podTemplateRef": {"name": "ppt-job-a-reclaim-1-main"}, "count": 16}],
    }


def test_the_template_is_that_of_the_pods_to_come() -> None:
    """Flavor labels and tolerations are added once; limits stand in for requests that are missing."""
    tolerated = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    own = pod_set(metadata={"labels": {"app": "a"}}, nodeSelector={"disk": "ssd"}, tolerations=[tolerated])
    (template,) = ordered(gang(own)).templates
    assert template["template"]["metadata"] == {"labels": {"app": "a"}}
    spec = template["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd", "pool": "new"}
    assert spec["tolerations"] == [tolerated]
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "1", GPU: "8"}, "limits": {GPU: "8"}}
    assert spec["restartPolicy"] == "Never"


def test_the_workload_owns_the_templates_and_these_own_the_request() -> None:
    """A request that names its Workload as owner is deleted by Kueue's own provisioning controller."""
    found = ordered(gang(pod_set("a"), pod_set("b")))
    for template in found.templates:
        (owner,) = template["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Workload", "job-a", "7e6b1a34")
    request = found.owned_by(["u-a", "u-b"], PROVISIONING_REQUEST)
    owners = [(each["kind"], each["name"], each["uid"]) for each in request["metadata"]["ownerReferences"]]
    assert owners == [
        ("PodTemplate", "ppt-job-a-reclaim-1-a", "u-a"),
        ("PodTemplate", "ppt-job-a-reclaim-1-b", "u-b"),
    ]


@pytest.mark.parametrize("resource", [PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA])
def test_a_request_is_written_in_the_version_that_is_served(resource: Any) -> None:
    written = ordered(gang()).owned_by(["u"], resource)
    assert (written["apiVersion"], written["kind"]) == (resource.api_version, "ProvisioningRequest")


def test_only_pod_sets_with_a_managed_resource_are_asked_for() -> None:
    launcher = pod_set("launcher", 1, gpus=0)
    found = ordered(gang(launcher, pod_set("workers")))
    assert [each["metadata"]["name"] for each in found.templates] == ["ppt-job-a-reclaim-1-workers"]
    everything = ordered(gang(launcher, pod_set("workers")), replace(POLICY, managed_resources=frozenset()))
    assert len(everything.templates) == 2


def test_pod_sets_that_were_admitted_without_pods_are_not_asked_for() -> None:
    workload = gang(pod_set("a"), pod_set("b"))
    workload.json["status"]["admission"]["podSetAssignments"][1]["count"] = 0
    assert [each["count"] for each in ordered(workload).request["spec"]["podSets"]] == [2]


def test_where_only_missing_pods_are_asked_for_the_others_are_not() -> None:
    missing = replace(POLICY, only_missing=True)
    found = ordered(gang(pod_set("a", 4), pod_set("b", 4)), missing, missing={"a": 3, "b": 0})
    assert found.request["spec"]["podSets"] == [{"podTemplateRef": {"name": "ppt-job-a-reclaim-1-a"}, "count": 3}]
    assert found.request["metadata"]["annotations"]["idlegpu.io/pod-sets"] == "a"
    assert isinstance(order(gang(), missing), Unusable)


TEMPLATES, REQUIREMENTS = MergePolicy.IDENTICAL_TEMPLATES, MergePolicy.IDENTICAL_REQUIREMENTS


@pytest.mark.parametrize(
    ("other", "policy", "counts"),
    [
        pytest.param(pod_set("b", 3), None, [2, 3], id="without policy none are merged"),
        pytest.param(pod_set("b", 3), TEMPLATES, [5], id="the same templates are one"),
        pytest.param(pod_set("b", 3, hostNetwork=True), TEMPLATES, [2, 3], id="other templates are two"),
        pytest.param(pod_set("b", 3, nodeSelector={}), TEMPLATES, [5], id="empty is absent"),
        pytest.param(pod_set("b", 3, hostNetwork=True), REQUIREMENTS, [5], id="what decides on nodes is the same"),
        pytest.param(pod_set("b", 3, gpus=4), REQUIREMENTS, [2, 3], id="other limits, and no requests"),
        pytest.param(pod_set("b", 3, nodeSelector={"disk": "ssd"}), REQUIREMENTS, [2, 3], id="other nodes"),
        pytest.param(pod_set("b", 3, resources={"requests": {"cpu": "9"}}), REQUIREMENTS, [2, 3], id="other pods"),
    ],
)
def test_pod_sets_are_merged_as_the_policy_says(
    other: Mapping[str, Any], policy: MergePolicy | None, counts: list[int]
) -> None:
    found = ordered(gang(pod_set("a"), other), replace(POLICY, merge_policy=policy))
    assert [each["count"] for each in found.request["spec"]["podSets"]] == counts
    assert found.request["metadata"]["annotations"]["idlegpu.io/pod-sets"] == "a,b"


def test_the_same_quantity_written_otherwise_is_the_same() -> None:
    one, other = pod_set("a"), pod_set("b", 3)
    other["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000m"
    merging = replace(POLICY, merge_policy=TEMPLATES)
    assert [each["count"] for each in ordered(gang(one, other), merging).request["spec"]["podSets"]] == [5]


UNASKABLE: dict[str, tuple[WorkloadJson, str]] = {
    "no pods with a managed resource": (gang(pod_set(gpus=0)), "lacks a node"),
    "its flavor is not known": (gang(flavor="gone"), "ResourceFlavor 'gone' of PodSet main is not known"),
    "its pods contradict their flavor": (gang(pod_set(nodeSelector={"pool": "old"})), "selects nodes with pool=old"),
    "its owner has asked for nodes himself": (
        gang(pod_set(metadata={"annotations": {CONSUME: "mine"}})),
        "consumes ProvisioningRequest 'mine'",
    ),
}


@pytest.mark.parametrize("case", UNASKABLE)
def test_what_cannot_be_asked_for_is_a_reason(case: str) -> None:
    workload, reason = UNASKABLE[case]
    found = order(workload)
    assert isinstance(found, Unusable)
    assert reason in found.reason


def test_names_are_kueues_and_long_ones_are_cut_as_there() -> None:
    """247 characters, a dash, and the first five of the SHA-1 of the whole: `printf 'a%.0s' $(seq 300) | sha1sum`."""
    assert request_name("job-a", "reclaim", 12) == "job-a-reclaim-12"
    assert template_name("job-a-reclaim-12", "main") == "ppt-job-a-reclaim-12-main"
    assert limited("a" * 247) == "a" * 247
    assert limited("a" * 300) == "a" * 247 + "-003ef"
    assert limited("a" * 246 + "." + "b" * 20).startswith("a" * 246 + "-"), "a label must not end in a dot or a dash"


# ----------------------------------------------------------------------------------------------------- what is read


def test_a_request_is_read_as_it_was_written() -> None:
    workload = gang()
    found = provisioning_request(ordered(workload, attempt=3).owned_by(["u"], PROVISIONING_REQUEST))
    read = request_of(found)
    assert read.attempt == 3
    assert read.spec == inputs_of(workload).spec
    assert read.state is RequestState.NEW
    assert list(workload_uid_of(found)) == ["7e6b1a34"]


@pytest.mark.parametrize("attempt", ["0", "-1", "x", "", "1" * 9, "٣"])
def test_an_attempt_that_somebody_has_garbled_is_none(attempt: str) -> None:
    manifest = ordered(gang()).request
    manifest["metadata"]["annotations"]["idlegpu.io/attempt"] = attempt
    assert request_of(provisioning_request(manifest)).attempt == 0


def test_a_reservation_that_somebody_has_garbled_is_another_one() -> None:
    workload = gang()
    manifest = ordered(workload).request
    for garbled in ("", "yesterday", "9999-99-99T00:00:00Z"):
        manifest["metadata"]["annotations"]["idlegpu.io/reserved-at"] = garbled
        ask = inputs_of(workload).spec
        assert request_of(provisioning_request(manifest)).spec != ask


def test_the_same_second_on_another_flavor_is_another_reservation() -> None:
    def ask(workload: WorkloadJson) -> Any:
        return inputs_of(workload).spec

    assert ask(gang()) == ask(gang())
    assert ask(gang(flavor="other")) != ask(gang())
    assert ask(gang(pod_set(count=3))) != ask(gang())


def test_a_request_of_another_controller_is_not_ours() -> None:
    manifest = ordered(gang()).request
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/managed": "true"}
    assert list(workload_uid_of(provisioning_request(manifest))) == []


CONDITIONS: dict[str, tuple[list[dict[str, Any]], RequestState, str]] = {
    "none": ([], RequestState.NEW, ""),
    "not accepted": ([condition("Accepted", False, message="busy")], RequestState.NEW, ""),
    "accepted": ([condition("Accepted", message="seen")], RequestState.ACCEPTED, "seen"),
    "accepted, with an expectation": (
        [condition("Accepted"), condition("Provisioned", False, message="ETA: 2026-12-01T12:30:00Z")],
        RequestState.ACCEPTED,
        "ETA: 2026-12-01T12:30:00Z",
    ),
    "provisioned": ([condition("Accepted"), condition("Provisioned", message="ok")], RequestState.PROVISIONED, "ok"),
    "booking expired": ([condition("Provisioned"), condition("BookingExpired")], RequestState.BOOKING_EXPIRED, ""),
    "revoked": ([condition("Provisioned"), condition("CapacityRevoked")], RequestState.CAPACITY_REVOKED, ""),
    "revoked after it expired": (
        [condition("BookingExpired"), condition("CapacityRevoked")],
        RequestState.CAPACITY_REVOKED,
        "",
    ),
    "failed": ([condition("Accepted"), condition("Failed", message="no capacity")], RequestState.FAILED, "no capacity"),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_the_most_final_condition_counts(case: str) -> None:
    conditions, state, message = CONDITIONS[case]
    read = request_of(provisioning_request(ordered(gang()).request, *conditions))
    assert (read.state, read.message) == (state, message)
    assert read.since == (at(-3600) if state is RequestState.NEW else NOON), "a state begins with its condition"


def test_an_expectation_is_read_where_it_is_written_as_a_time() -> None:
    def eta(message: str) -> Any:
        waiting = condition("Provisioned", False, message=message)
        return request_of(provisioning_request(ordered(gang()).request, condition("Accepted"), waiting)).eta

    assert eta("queued. ETA: 2026-12-01T12:30:00Z") == at(1800)
    assert eta("ETA: 2026-12-01T14:30:00+02:00.") == at(1800)
    assert eta("ETA: unknown") is None
    assert eta("ETA: 2026-13-41T99:00:00Z") is None


def test_a_gang_counts_what_is_missing_only_where_the_policy_provisions() -> None:
    workload = gang(pod_set("launcher", gpus=0), pod_set("workers"))
    found = inputs_of(workload).lacking({"launcher": 1, "workers": 2}, "p")
    assert (found.missing, found.reuse) == (2, "p")


def test_a_gang_knows_what_it_consumes() -> None:
    workload = gang().with_status(admissionChecks=[entry("Ready", name="other"), entry("Ready", consumes="r-1")])
    started, waiting = (inputs_of(each) for each in (workload, gang()))
    assert started == replace(waiting, stage=ReservationStage.STARTED, consumes="r-1")


# -------------------------------------------------------------------------------------------------- when it is ready

SELECTING = replace(POLICY, node_selector={"example.com/r": "ResizeRequestName"})


def test_every_pod_set_of_the_request_gets_what_to_consume() -> None:
    merging = replace(SELECTING, merge_policy=TEMPLATES)
    workload = gang(pod_set("launcher", 1, gpus=0), pod_set("a"), pod_set("b"))
    found = provisioning_request(ordered(workload, merging).request, details={"ResizeRequestName": "rr-42"})
    updates, left_out = ready_updates(found, workload.decoded(), merging, FLAVORS.get)
    annotations = {CONSUME: "job-a-reclaim-1", "autoscaling.x-k8s.io/provisioning-class-name": CLASS}
    assert updates == tuple(
        PodSetPatch(name=name, annotations=annotations, node_selector={"example.com/r": "rr-42"}) for name in "ab"
    )
    assert left_out == ()


LEFT_OUT: dict[str, tuple[WorkloadJson, dict[str, str], str]] = {
    "the autoscaler gave no such detail": (gang(), {}, "has no class detail 'ResizeRequestName'"),
    "a detail is no label value": (gang(), {"ResizeRequestName": "a b"}, "is no label value: 'a b'"),
    "its pods demand another value": (
        gang(pod_set(nodeSelector={"example.com/r": "mine"})),
        {"ResizeRequestName": "rr-42"},
        "which has example.com/r=mine already",
    ),
    "its flavor demands another value": (
        gang(flavor="other"),
        {"ResizeRequestName": "rr-42"},
        "which has example.com/r=theirs already",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_kueue_would_fail_the_workload_for_is_left_out(case: str) -> None:
    workload, details, reason = LEFT_OUT[case]
    known = flavors(flavor("other", {"example.com/r": "theirs"}))
    found = provisioning_request(ordered(workload, flavors=known.get).request, details=details)
    updates, left_out = ready_updates(found, workload.decoded(), SELECTING, known.get)
    assert [each.node_selector for each in updates] == [{}]
    (left_out,) = left_out
    assert reason in left_out


def test_what_another_check_gives_is_not_contradicted() -> None:
    """Kueue's own check for ProvisioningRequests on the same queue names another request to consume."""
    workload = gang().with_status(admissionChecks=[entry(), entry("Ready", name="kueues", consumes="theirs")])
    updates, left_out = ready_updates(
        provisioning_request(ordered(workload).request), workload.decoded(), POLICY, FLAVORS.get
    )
    assert [CONSUME in each.annotations for each in updates] == [False]
    assert left_out == (f"{CONSUME}=job-a-reclaim-1 for PodSet main, which has {CONSUME}=theirs already",)


def test_what_our_own_entry_still_holds_of_an_earlier_request_is_no_contradiction() -> None:
    """Kueue resets entries to Pending with the updates that they had."""
    workload = gang().with_status(admissionChecks=[entry(consumes="job-a-reclaim-0")])
    updates, left_out = ready_updates(
        provisioning_request(ordered(workload).request), workload.decoded(), POLICY, FLAVORS.get
    )
    assert [each.annotations[CONSUME] for each in updates] == ["job-a-reclaim-1"]
    assert left_out == ()


# ---------------------------------------------------------------------------------------------- what Kueue itself did


@one("kueue-provreq-provisioned")
def test_kueue_has_asked_for_the_same_and_given_the_same(path: Path) -> None:
    recorded = msgspec.json.decode(path.read_bytes())
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in recorded["events"]:
        by_kind.setdefault(event["object"]["kind"], []).append(event["object"])
    config, request = by_kind["ProvisioningRequestConfig"][0]["spec"], by_kind["ProvisioningRequest"][2]
    held = next(each for each in by_kind["Workload"] if _is_reserved(each))
    (check,) = held["status"]["admissionChecks"]
    policy = ProvisioningPolicy(
        provisioning_class=config["provisioningClassName"],
        parameters=config["parameters"],
        managed_resources=frozenset(config["managedResources"]),
        node_selector={
            each["key"]: each["valueFromProvisioningClassDetail"] for each in config["podSetUpdates"]["nodeSelector"]
        },
    )
    known = flavors(*(each for each in recorded["static"] if each["kind"] == "ResourceFlavor"))
    workload = WorkloadJson()
    workload.json = held
    ours = ordered(workload, policy, check=check["name"], flavors=known.get)
    assert ours.name == request["metadata"]["name"]
    assert ours.request["spec"] == request["spec"]
    (template,) = ours.templates
    assert template["metadata"]["name"] == by_kind["PodTemplate"][0]["metadata"]["name"]
    assert template["template"] == by_kind["PodTemplate"][0]["template"]
    answered = provisioning_request(ours.request, *request["status"]["conditions"])
    answered = msgspec.structs.replace(answered, status=_status(request))
    updates, _ = ready_updates(answered, workload.decoded(), policy, known.get)
    ready = next(each for each in by_kind["Workload"] if _state(each) == "Ready")
    assert [
        {"name": each.name, "annotations": each.annotations, "nodeSelector": each.node_selector} for each in updates
    ] == ready["status"]["admissionChecks"][0]["podSetUpdates"]


def _status(request: Mapping[str, Any]) -> Any:
    return provisioning_request({**request}, details=request["status"]["provisioningClassDetails"]).status


def _state(workload: Mapping[str, Any]) -> str:
    checks = workload.get("status", {}).get("admissionChecks") or [{}]
    return str(checks[0].get("state"))


def _is_reserved(workload: Mapping[str, Any]) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    is_reserved = any(each["type"] == "QuotaReserved" and each["status"] == "True" for each in conditions)
    return is_reserved and _state(workload) == "Pending"
