"""The chart grants what the program needs and nothing else, whatever its mode."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from deploy.helm_chart import NAMESPACE, objects, one, settings_of
from scaler.app.settings.model import Settings
from scaler.doctor.permissions import CONFINED, OPTIONAL, REQUIRED_RULES, RuleUser, attributes_of
from scaler.kube.objects.resources import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET
from scaler.suspension.keep_record import SUFFIX

TARGETS = frozenset({DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET})
"""What the chart's default values name as kinds that are scaled."""
READS = {"get", "list", "watch"}
WRITERS_OF_CLAIMS = {"provisioningrequests", "podtemplates"}


class Grant(NamedTuple):
    """One thing that an account may do; without a namespace, in all of them."""

    verb: str
    group: str
    resource: str
    namespace: str = ""


def granted(*roles: str, **values: Any) -> set[Grant]:
    """What the account of a release may do by these of its roles; without any, by all that are bound to it."""
    return {grant for each in bound(values) if not roles or each[0] in roles for grant in each[1]}


def bound(values: dict[str, Any]) -> Iterator[tuple[str, list[Grant]]]:
    rendered = objects(values)
    roles = {(each["kind"], key(each)): each for each in rendered if each["kind"] in ("Role", "ClusterRole")}
    for binding in rendered:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert [(each["name"], each["namespace"]) for each in binding["subjects"]] == [(NAMESPACE, NAMESPACE)]
            namespace, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
            role = roles[reference["kind"], (namespace, reference["name"])]
            yield reference["name"].removeprefix("idle-gpu-scaler-"), list(grants_of(role))


def key(body: dict[str, Any]) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def grants_of(role: dict[str, Any]) -> Iterator[Grant]:
    for rule in role["rules"]:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        for verb in rule["verbs"]:
            for resource in rule["resources"]:
                yield Grant(verb, rule["apiGroups"][0], resource, role["metadata"].get("namespace", ""))


def needed(*parts: RuleUser, namespaces: Sequence[str] = ()) -> set[Grant]:
    """What the program says that it needs, for these parts of it."""
    return {
        Grant(ask.verb, ask.group, ask.resource + (f"/{ask.subresource}" if ask.subresource else ""), ask.namespace)
        for need in REQUIRED_RULES
        if need.part in parts
        for ask in attributes_of(need, targets=TARGETS, namespaces=namespaces, lease_namespace=NAMESPACE)
    }


BY_DEFAULT = frozenset(RuleUser) - OPTIONAL - {RuleUser.PROVISIONING}
WATCHED = {each for each in needed(RuleUser.PROVISIONING) if each.verb in ("list", "watch")}
"""Requests of others, whose nodes plans have to know of."""


def test_what_is_granted_is_what_is_needed() -> None:
    scored = {"multiKueue": {"scores": True}}
    everything = dict.fromkeys(("suspendAt", "tokens", "dispatcher", "provisioning"), True)
    assert granted(rbac=everything, settings=scored) == needed(*RuleUser)
    assert granted() == needed(*BY_DEFAULT) | WATCHED


def test_a_scaler_that_observes_attaches_and_resumes_and_so_writes_what_any_other_does() -> None:
    assert granted(mode="observe") == granted(mode="enforce")
    assert {each.verb for each in granted("read")} <= READS
    assert not [each for each in granted("read") if each.resource in ("secrets", "configmaps", "leases")]


def test_pods_may_be_patched_only_where_they_are_to_be_told_and_then_they_are() -> None:
    assert granted(rbac={"suspendAt": True}) - granted() == {Grant("patch", "", "pods")}
    told, others = (Settings.model_validate(settings_of({"rbac": {"suspendAt": each}})) for each in (True, False))
    assert (told.suspend_at, others.suspend_at) == (True, False)


CLAIMING = ({"rbac": {"provisioning": True}}, {"admissionCheck": {"policy": {"provisioning": {"amount": "Missing"}}}})


@pytest.mark.parametrize("values", CLAIMING, ids=str)
def test_nodes_may_be_asked_for_only_where_a_policy_may_say_so(values: dict[str, Any]) -> None:
    """By the value of that name, or by the policy of the release itself."""
    more = granted(**values) - granted()
    assert {each.resource for each in more} == WRITERS_OF_CLAIMS
    assert {each.verb for each in granted() if each.resource in WRITERS_OF_CLAIMS} == {"list", "watch"}


@pytest.mark.parametrize("namespaces", [["team-a"], ["team-a", "team-b"]], ids=len)
def test_confined_to_namespaces_nothing_is_granted_outside_of_them(namespaces: list[str]) -> None:
    confined = granted(namespaces=namespaces)
    assert confined == needed(*CONFINED & BY_DEFAULT, namespaces=namespaces)
    assert {each.namespace for each in confined} - {NAMESPACE} == {*namespaces}
    kinds = {each["kind"] for each in objects({"namespaces": namespaces})}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy"}


def test_kinds_that_are_scaled_are_named_one_by_one() -> None:
    none, more = granted(targets=[]), granted(targets=[{"apiGroup": "leaderworkerset.x-k8s.io", "resources": ["sets"]}])
    assert more - none == {
        Grant("list", "leaderworkerset.x-k8s.io", "sets"),
        Grant("watch", "leaderworkerset.x-k8s.io", "sets"),
        Grant("get", "leaderworkerset.x-k8s.io", "sets/scale"),
    }


def test_whoever_suspends_no_notebooks_may_not_touch_them() -> None:
    less = granted(rbac={"switches": False})
    assert {(each.verb, each.resource) for each in granted() - less} == {
        (verb, resource) for verb in ("list", "watch", "patch") for resource in ("notebooks", "inferenceservices")
    }


@pytest.mark.parametrize("values", [{}, {"mode": "observe"}, {"namespaces": ["team-a"]}], ids=str)
def test_who_is_to_know_users_by_their_tokens_may_review_them_and_nothing_else_is_granted(
    values: dict[str, Any],
) -> None:
    assert granted(rbac={"tokens": True}, **values) - granted(**values) == {
        Grant("create", "authentication.k8s.io", "tokenreviews"),
        Grant("create", "authorization.k8s.io", "subjectaccessreviews"),
    }


def test_wake_ups_by_tokens_imply_that_these_are_reviewed() -> None:
    assert granted(settings={"http": {"wake": True}}) == granted(rbac={"tokens": True})
    assert granted(settings={"http": {"wake": False}}) == granted()


def test_on_a_hub_secrets_are_read_in_the_namespace_of_kueue_and_scores_are_written_only_where_they_are_on() -> None:
    more = granted(rbac={"dispatcher": True}) - granted()
    assert more == needed(RuleUser.DISPATCHER) - granted()
    assert [each for each in more if each.resource == "secrets"] == [Grant("get", "", "secrets", "kueue-system")]
    scored = {"multiKueue": {"scores": True, "namespace": "kueue"}}
    assert granted(rbac={"dispatcher": True}, settings=scored) - granted(rbac={"dispatcher": True}) == {
        *needed(RuleUser.SCORES),
        Grant("get", "", "secrets", "kueue"),
    }
    settings = Settings.model_validate(settings_of({"rbac": {"dispatcher": True}}))
    assert settings.components == ("scaler", "reconciler", "dispatcher")


def test_nothing_more_is_granted_for_a_dispatcher_that_sees_not_all() -> None:
    confined = {"namespaces": ["team-a"]}
    assert granted(rbac={"dispatcher": True}, **confined) == granted(**confined)


@pytest.mark.parametrize("namespaces", [[], ["team-a"]], ids=len)
def test_objects_of_hooks_may_be_made_and_read_where_their_kind_is_named(namespaces: list[str]) -> None:
    snapshots = {"apiGroup": "podsnapshot.gke.io", "resources": ["podsnapshotmanualtriggers"]}
    more = granted(hooks={"resources": [snapshots]}, namespaces=namespaces) - granted(namespaces=namespaces)
    assert more == {
        Grant(verb, "podsnapshot.gke.io", "podsnapshotmanualtriggers", *namespaces) for verb in ("create", "get")
    }


def test_users_whom_a_proxy_names_imply_that_it_is_asked_what_they_may() -> None:
    page = {"userHeader": "X-Forwarded-User", "trustedProxies": ["10.1.2.0/24"]}
    assert granted(settings={"page": page}) == granted(rbac={"tokens": True})
    assert granted(settings={"page": {}}) == granted()


def test_the_lease_is_in_the_namespace_of_the_release() -> None:
    leases = {Grant(verb, "coordination.k8s.io", "leases", NAMESPACE) for verb in ("get", "create", "update")}
    record = {Grant(verb, "", "configmaps", NAMESPACE) for verb in ("get", "create", "patch")}
    assert granted("lease") == leases | record


def test_of_the_leases_there_only_its_own_may_be_read_and_changed() -> None:
    changing, creating, *of_record = one("Role", name="idle-gpu-scaler-lease")["rules"]
    lease_name = Settings.model_validate(settings_of()).lease_name
    assert lease_name in changing["resourceNames"]
    assert all(name.startswith("idle-gpu-scaler") for name in changing["resourceNames"])
    assert (set(changing["verbs"]), creating["verbs"]) == ({"get", "update"}, ["create"])
    assert "resourceNames" not in creating
    assert [each.get("resourceNames") for each in of_record] == [[lease_name + SUFFIX], None]


def test_people_get_our_kinds_with_the_roles_that_they_have() -> None:
    view, edit = one("ClusterRole", name="idle-gpu-scaler-view"), one("ClusterRole", name="idle-gpu-scaler-edit")
    assert {each.verb for each in grants_of(view)} == READS
    assert {each.resource for each in grants_of(edit)} == {"scalableworkloads", "scalableworkloads/scale"}
    assert "rbac.authorization.k8s.io/aggregate-to-edit" in edit["metadata"]["labels"]


def test_nothing_is_granted_where_others_grant() -> None:
    kinds = {each["kind"] for each in objects({"rbac": {"create": False}})}
    assert not {kind for kind in kinds if "Role" in kind}
