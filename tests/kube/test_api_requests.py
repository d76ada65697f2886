import msgspec
import pytest

from scaler.kube.api_requests import ApiRequest, no_answer, refusal

WORDS = {
    "a pod is got": ("GET", "/api/v1/namespaces/ns/pods/p", "get", "", "pods"),
    "the pods of a namespace are listed": ("GET", "/api/v1/namespaces/ns/pods", "list", "", "pods"),
    "all pods are listed": ("GET", "/api/v1/pods", "list", "", "pods"),
    "a namespace is got": ("GET", "/api/v1/namespaces/ns", "get", "", "namespaces"),
    "namespaces are listed": ("GET", "/api/v1/namespaces", "list", "", "namespaces"),
    "an event is created": ("POST", "/api/v1/namespaces/ns/events", "create", "", "events"),
    "a Job is replaced": ("PUT", "/apis/batch/v1/namespaces/ns/jobs/j", "update", "batch", "jobs"),
    "a status is patched": ("PATCH", "/apis/batch/v1/namespaces/ns/jobs/j/status", "patch", "batch", "jobs/status"),
    "a scale is read": ("GET", "/apis/apps/v1/namespaces/ns/deployments/d/scale", "get", "apps", "deployments/scale"),
    "a pod is deleted": ("DELETE", "/api/v1/namespaces/ns/pods/p", "delete", "", "pods"),
    "pods are deleted": ("DELETE", "/api/v1/namespaces/ns/pods", "deletecollection", "", "pods"),
    "an API version is discovered": ("GET", "/apis/apps/v1", "get", "", ""),
}


@pytest.mark.parametrize(("method", "path", "verb", "group", "resource"), WORDS.values(), ids=WORDS.keys())
def test_a_request_is_described_in_the_words_of_rbac(method, path, verb, group, resource):
    asked = ApiRequest(method=method, path=path, params={"limit": 5})
    assert (asked.verb, asked.group, asked.resource) == (verb, group, resource)


PATCH = ApiRequest(method="PATCH", path="/apis/kueue.x-k8s.io/v1beta2/namespaces/ns/workloads/w/status")


def test_a_refusal_says_what_was_asked_where_what_was_said_and_what_to_do():
    body = b'{"kind":"Status","reason":"Forbidden","message":"user x cannot patch","code":403}'
    error = refusal(PATCH, server="https://kube:6443", status=403, body=body)
    assert (error.status, error.reason) == (403, "Forbidden")
    for part in (f"patch {PATCH.path}", "https://kube:6443", "user x cannot patch"):
        assert part in str(error)
    assert "grant verb 'patch' on 'workloads/status' in API group 'kueue.x-k8s.io'" in str(error)


ADVICE = {
    "a missing object": (
        404,
        b'{"kind":"Status","reason":"NotFound","message":"pods \\"p\\" not found"}',
        "does not exist",
    ),
    "an unknown path": (404, b"404 page not found", "CustomResourceDefinition installed?"),
    "a missing subresource": (
        404,
        b'{"kind":"Status","reason":"NotFound","message":"the server could not find the requested resource"}',
        "CustomResourceDefinition installed?",
    ),
    "bad credentials": (401, b'{"kind":"Status","reason":"Unauthorized","message":"Unauthorized"}', "renew the token"),
    "a proxy's page": (502, b"<html>\n  Bad\n  Gateway</html>", "<html> Bad Gateway</html>"),
    "an empty body": (500, b"", "no message"),
    "bytes that are no text": (500, b"\xff\xfe", "without a Status"),
}


@pytest.mark.parametrize(("status", "body", "expected"), ADVICE.values(), ids=ADVICE.keys())
def test_a_refusal_of_any_shape_becomes_words(status, body, expected):
    assert expected in str(refusal(PATCH, server="s", status=status, body=body))


def test_parameters_and_bodies_stay_out_of_messages():
    request = ApiRequest(
        method="PUT", path="/api/v1/namespaces/ns/pods/p", params={"q": "secret"}, body={"k": "secret"}
    )
    error = no_answer(request, server="s", reason="Timeout", what="no answer in time")
    assert "secret" not in str(error)
    assert error.status == 0


REFUSED = {
    "a namespace that is being deleted": (
        'events "e" is forbidden: unable to create new content in namespace ns because it is being terminated'
    ),
    "a quota": 'configmaps "c" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: 9, limited: 9',
    "a webhook": 'admission webhook "v.example.com" denied the request: no',
}


@pytest.mark.parametrize("said", REFUSED.values(), ids=REFUSED.keys())
def test_what_admission_refuses_is_no_missing_permission(said):
    body = msgspec.json.encode({"kind": "Status", "reason": "Forbidden", "message": said, "code": 403})
    error = refusal(PATCH, server="s", status=403, body=body)
    assert str(error).endswith(f": 403 Forbidden: {said}")
    assert error.status == 403


def test_where_a_proxy_refuses_and_does_not_say_why_a_missing_permission_is_likely():
    assert "grant verb 'patch'" in str(refusal(PATCH, server="s", status=403, body=b"<html>Forbidden</html>"))
