"""Who may do what can be asked, of oneself and of others."""

import pytest
from contract.contract_client import Client

GROUP = "/apis/authorization.k8s.io/v1"
ASKED = {"verb": "patch", "group": "kueue.x-k8s.io", "resource": "workloads", "subresource": "status"}


@pytest.mark.parametrize(
    ("kind", "who"),
    [
        ("SelfSubjectAccessReview", {}),
        ("SubjectAccessReview", {"user": "system:serviceaccount:a:b", "groups": ["system:authenticated"]}),
    ],
    ids=["self", "another"],
)
async def test_a_review_is_answered_and_not_kept(client: Client, kind: str, who: dict[str, object]) -> None:
    spec = {"resourceAttributes": ASKED, **who}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {}, "spec": spec}
    answer = await client.post(f"{GROUP}/{kind.lower()}s", body)
    assert answer.status == 201
    told = answer.ok()
    assert (told["kind"], told["spec"]["resourceAttributes"]) == (kind, ASKED)
    assert isinstance(told["status"]["allowed"], bool)
