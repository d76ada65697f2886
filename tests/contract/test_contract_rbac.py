"""A ServiceAccount with a token may do what roles grant it, where they are bound, and nothing else."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from contract.contract_client import Client, Json

RBAC = "/apis/rbac.authorization.k8s.io/v1"
AUTHENTICATION = "authentication.k8s.io/v1"
GROUP = {"apiGroup": "rbac.authorization.k8s.io"}


async def token_of(client: Client, namespace: str, *audiences: str) -> str:
    """A token of the namespace's ServiceAccount `default`."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    spec = {"audiences": list(audiences)} if audiences else {}
    answer = await client.post(path, {"apiVersion": AUTHENTICATION, "kind": "TokenRequest", "spec": spec})
    assert answer.status == 201
    return str(answer.ok()["status"]["token"])


@pytest.fixture
async def account(client: Client, namespace: str, service_account: None) -> AsyncIterator[Client]:
    """Requests of the namespace's ServiceAccount `default`."""
    other = Client(client.access.with_token(await token_of(client, namespace)))
    yield other
    await other.close()


def rule(verbs: str, *resources: str, group: str = "", names: tuple[str, ...] = ()) -> Json:
    found: Json = {"apiGroups": [group], "resources": list(resources), "verbs": verbs.split()}
    return found | ({"resourceNames": list(names)} if names else {})


async def bind(client: Client, namespace: str, *rules: Json, name: str = "some", whose: str = "") -> None:
    """Grant the rules in the namespace to its account, or to that of the namespace `whose`."""
    where = f"{RBAC}/namespaces/{namespace}"
    (await client.post(f"{where}/roles", {"metadata": {"name": name}, "rules": list(rules)})).ok()
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": whose or namespace}
    body = {"metadata": {"name": name}, "roleRef": {**GROUP, "kind": "Role", "name": name}, "subjects": [subject]}
    (await client.post(f"{where}/rolebindings", body)).ok()


async def settled(account: Client, path: str, status: int) -> None:
    """Wait until a real server's caches have seen what was granted, or taken away."""
    for _ in range(200):
        if (await account.get(path)).status == status:
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"GET {path} never answered {status}")


async def test_nothing_is_allowed_that_was_not_granted(account: Client, namespace: str) -> None:
    answer = await account.get(f"/api/v1/namespaces/{namespace}/configmaps")
    assert answer.status == 403
    assert answer.body["reason"] == "Forbidden"
    assert answer.body["details"] == {"kind": "configmaps"}
    user = f"system:serviceaccount:{namespace}:default"
    assert answer.body["message"] == (
        f'configmaps is forbidden: User "{user}" cannot list resource "configmaps" in API group "" '
        f'in the namespace "{namespace}"'
    )


async def test_at_the_cluster_scope_a_role_of_a_namespace_does_not_count(
    client: Client, account: Client, namespace: str
) -> None:
    await bind(client, namespace, rule("list", "configmaps"))
    await settled(account, f"/api/v1/namespaces/{namespace}/configmaps", 200)
    everywhere = await account.get("/api/v1/configmaps")
    assert everywhere.status == 403
    assert everywhere.body["message"].endswith('cannot list resource "configmaps" in API group "" at the cluster scope')
    assert (await account.get("/api/v1/namespaces/default/configmaps")).status == 403


async def test_a_namespace_counts_as_being_in_itself(client: Client, account: Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    refused = await account.get(path)
    assert refused.body["message"].endswith(
        f'cannot get resource "namespaces" in API group "" in the namespace "{namespace}"'
    )
    await bind(client, namespace, rule("get", "namespaces"))
    await settled(account, path, 200)
    assert (await account.get("/api/v1/namespaces/default")).status == 403
    assert (await account.get("/api/v1/namespaces")).status == 403


async def test_a_verb_a_subresource_and_a_name_are_granted_each_for_itself(
    client: Client, account: Client, namespace: str
) -> None:
    place = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in ("ours", "theirs"):
        (await client.post(place, {"metadata": {"name": name}})).ok()
    await bind(client, namespace, rule("get patch", "configmaps", names=("ours",)))
    await settled(account, f"{place}/ours", 200)
    assert (await account.get(f"{place}/theirs")).status == 403
    assert (await account.patch(f"{place}/ours", {"data": {"a": "b"}})).status == 200
    assert (await account.delete(f"{place}/ours")).status == 403
    assert (await account.post(place, {"metadata": {"name": "new"}})).status == 403


async def test_to_list_is_not_to_watch_and_to_delete_one_is_not_to_delete_all(
    client: Client, account: Client, namespace: str
) -> None:
    place = f"/api/v1/namespaces/{namespace}/configmaps"
    await bind(client, namespace, rule("list delete", "configmaps"))
    await settled(account, place, 200)
    refused = await account.get(place, watch="true", timeoutSeconds=1)
    assert (refused.status, "cannot watch resource" in refused.body["message"]) == (403, True)
    refused = await account.delete(place)
    assert (refused.status, "cannot deletecollection resource" in refused.body["message"]) == (403, True)


async def test_a_binding_to_the_account_of_another_namespace_grants_nothing_here(
    client: Client, account: Client, namespace: str
) -> None:
    await bind(client, namespace, rule("list", "configmaps"), name="others", whose="kube-system")
    await bind(client, namespace, rule("list", "secrets"))
    await settled(account, f"/api/v1/namespaces/{namespace}/secrets", 200)
    assert (await account.get(f"/api/v1/namespaces/{namespace}/configmaps")).status == 403


async def test_a_token_ends_with_its_service_account(client: Client, account: Client, namespace: str) -> None:
    await bind(client, namespace, rule("list", "configmaps"))
    await settled(account, f"/api/v1/namespaces/{namespace}/configmaps", 200)
    (await client.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")).ok()
    # One of the same name follows it, and is another one.
    await settled(account, f"/api/v1/namespaces/{namespace}/configmaps", 401)


async def test_a_cluster_role_may_be_bound_in_one_namespace(
    client: Client, account: Client, namespace: str, suffix: str
) -> None:
    name = f"contract-{suffix}-{namespace}"
    (await client.post(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": [rule("list", "*")]})).ok()
    try:
        role = {**GROUP, "kind": "ClusterRole", "name": name}
        subjects = [{**GROUP, "kind": "Group", "name": f"system:serviceaccounts:{namespace}"}]
        body = {"metadata": {"name": "any"}, "roleRef": role, "subjects": subjects}
        (await client.post(f"{RBAC}/namespaces/{namespace}/rolebindings", body)).ok()
        await settled(account, f"/api/v1/namespaces/{namespace}/secrets", 200)
        assert (await account.get("/api/v1/secrets")).status == 403
        assert (await account.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")).status == 403
    finally:
        await client.delete(f"{RBAC}/clusterroles/{name}")


async def test_reviews_say_what_would_be_allowed(client: Client, account: Client, namespace: str) -> None:
    await bind(client, namespace, rule("list", "configmaps"))
    await settled(account, f"/api/v1/namespaces/{namespace}/configmaps", 200)

    async def allowed(asker: Client, kind: str, who: Json, **attributes: str) -> bool:
        spec = {"resourceAttributes": {"resource": "configmaps", **attributes}, **who}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        answer = (await asker.post(f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body)).ok()
        return bool(answer["status"]["allowed"])

    own, others = "SelfSubjectAccessReview", "SubjectAccessReview"
    who = {"user": f"system:serviceaccount:{namespace}:default"}
    assert await allowed(client, own, {}, verb="delete", namespace=namespace)
    assert await allowed(client, others, who, verb="list", namespace=namespace)
    assert not await allowed(client, others, who, verb="delete", namespace=namespace)
    assert not await allowed(client, others, who, verb="list")


async def test_a_review_of_another_user_needs_permission(account: Client, namespace: str) -> None:
    spec = {"resourceAttributes": {"resource": "configmaps", "verb": "list", "namespace": namespace}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    path = "/apis/authorization.k8s.io/v1"
    assert (await account.post(f"{path}/selfsubjectaccessreviews", body)).ok()["status"]["allowed"] is False
    about = body | {"kind": "SubjectAccessReview", "spec": spec | {"user": "somebody"}}
    refused = await account.post(f"{path}/subjectaccessreviews", about)
    assert refused.status == 403
    assert refused.body["message"].endswith(
        'cannot create resource "subjectaccessreviews" in API group "authorization.k8s.io" at the cluster scope'
    )


async def token_review(client: Client, token: str, *audiences: str) -> Json:
    """The status."""
    spec = {"token": token} | ({"audiences": list(audiences)} if audiences else {})
    body = {"apiVersion": AUTHENTICATION, "kind": "TokenReview", "spec": spec}
    answer = await client.post(f"/apis/{AUTHENTICATION}/tokenreviews", body)
    assert answer.status == 201
    return dict(answer.ok()["status"])


async def test_the_review_of_a_token_says_whose_it_is(client: Client, namespace: str, service_account: None) -> None:
    status = await token_review(client, await token_of(client, namespace))
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:default"
    assert status["user"]["uid"]
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
    assert set(status["user"]["groups"]) == groups
    assert status["audiences"], "those of the API itself"


async def test_a_token_that_nobody_was_given_authenticates_nobody(client: Client) -> None:
    status = await token_review(client, "no-such-token")
    assert not status.get("authenticated")
    assert not status["user"].get("username")
    assert status["error"]


async def test_a_token_for_one_audience_is_not_one_for_others(
    client: Client, namespace: str, service_account: None
) -> None:
    token = await token_of(client, namespace, "scaler")
    assert not (await token_review(client, token)).get("authenticated")
    assert not (await token_review(client, token, "other")).get("authenticated")
    status = await token_review(client, token, "other", "scaler")
    assert (status["authenticated"], status["audiences"]) == (True, ["scaler"])
    bearer = Client(client.access.with_token(token))
    try:
        assert (await bearer.get(f"/api/v1/namespaces/{namespace}/configmaps")).status == 401
    finally:
        await bearer.close()


async def test_the_review_of_a_token_needs_permission_and_that_of_oneself_none(account: Client, namespace: str) -> None:
    path, body = f"/apis/{AUTHENTICATION}", {"apiVersion": AUTHENTICATION}
    asked = body | {"kind": "TokenReview", "spec": {"token": "some"}}
    refused = await account.post(f"{path}/tokenreviews", asked)
    assert refused.status == 403
    assert refused.body["message"].endswith(
        'cannot create resource "tokenreviews" in API group "authentication.k8s.io" at the cluster scope'
    )
    own = (await account.post(f"{path}/selfsubjectreviews", body | {"kind": "SelfSubjectReview"})).ok()
    assert own["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"
