"""Users are those that the API server says, and may do what it says, for ten seconds."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from scaler_sandbox.kubeapi import KubeApi
from virtual_clock import VirtualClock

from scaler.errors import KubeError
from scaler.kube import reviews
from scaler.kube.reviews import (
    ANSWERS_SECONDS,
    REVIEW_SECONDS,
    AccessReviews,
    AuthenticatedUser,
    ResourceAttributes,
    TokenReviews,
    is_allowed,
)
from scaler.kube.transport import KubeTransport

Json = dict[str, Any]

ANA = {"username": "ana@example.com", "uid": "7", "groups": ["team-a"], "extra": {"scopes": ["user:info"]}}
USER = AuthenticatedUser(name="ana@example.com", uid="7", groups=("team-a",), extra={"scopes": ["user:info"]})
PATCH = ResourceAttributes(verb="patch", group="keda.sh", resource="scaledobjects", namespace="team-a")


class ScriptedReviews:
    """Answers every review by one status, and keeps what was asked."""

    def __init__(self, status: Json | bytes | KubeError) -> None:
        self.status = status
        self.asked: list[Json] = []

    async def create(self, path: str, body: Mapping[str, Any], *, within: float | None = None) -> bytes:
        assert within == REVIEW_SECONDS
        assert path == f"/apis/{body['apiVersion']}/{body['kind'].lower()}s"
        self.asked.append(dict(body["spec"]))
        if isinstance(self.status, KubeError):
            raise self.status
        return self.status if isinstance(self.status, bytes) else json.dumps({**body, "status": self.status}).encode()


TOKENS: Mapping[str, tuple[Json, tuple[str, ...], AuthenticatedUser | None]] = {
    "authenticated": ({"authenticated": True, "user": ANA}, (), USER),
    "not authenticated": ({"user": {}, "error": "expired"}, (), None),
    "not authenticated, and a user is named all the same": ({"user": ANA}, (), None),
    "authenticated as nobody": ({"authenticated": True, "user": {"groups": ["team-a"]}}, (), None),
    "for the audience asked for": ({"authenticated": True, "user": ANA, "audiences": ["a"]}, ("a", "b"), USER),
    "for another audience": ({"authenticated": True, "user": ANA, "audiences": ["c"]}, ("a", "b"), None),
    "by a server that does not know audiences": ({"authenticated": True, "user": ANA}, ("a",), None),
    "with nulls": ({"authenticated": True, "user": {"username": "ana", "groups": None}}, (), None),
}


@pytest.mark.parametrize(("status", "audiences", "expected"), TOKENS.values(), ids=TOKENS.keys())
async def test_a_token_is_of_the_user_that_the_api_server_authenticates(status, audiences, expected):
    if status["user"].get("username") == "ana":
        expected = AuthenticatedUser(name="ana")
    api = ScriptedReviews(status)
    assert await TokenReviews(api, audiences=audiences).user_of("secret") == expected
    assert api.asked == [{"token": "secret"} | ({"audiences": [*audiences]} if audiences else {})]


async def test_however_many_tokens_are_tried_few_are_reviewed_at_a_time():
    class Counted(ScriptedReviews):
        under_way, most = 0, 0

        async def create(self, path: str, body: Mapping[str, Any], *, within: float | None = None) -> bytes:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(0)
            self.under_way -= 1
            return await super().create(path, body, within=within)

    api = Counted({"user": {}})
    tokens = TokenReviews(api)
    assert {*await asyncio.gather(*(tokens.user_of(f"guess {n}") for n in range(40)))} == {None}
    assert (len(api.asked), api.most) == (40, 4)


BROKEN: Mapping[str, bytes | KubeError] = {
    "the API does not answer": KubeError("no answer in time", reason="Timeout"),
    "it refuses to review": KubeError("forbidden", status=403, reason="Forbidden"),
    "a page of a proxy": b"<html>",
    "a review without status": b'{"kind": "TokenReview"}',
    "another type": b'{"status": {"authenticated": {}, "allowed": {}}}',
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_what_is_no_answer_is_neither_a_user_nor_a_permission_and_is_asked_again(answer):
    api = ScriptedReviews(answer)
    tokens, access = TokenReviews(api), AccessReviews(api)
    for _ in range(2):
        with pytest.raises(KubeError):
            await tokens.user_of("secret")
        with pytest.raises(KubeError):
            await access.may(USER, PATCH)
    assert len(api.asked) == 4


@pytest.mark.parametrize("token", ["", "x" * 20_000], ids=["no token", "too long for one"])
async def test_what_cannot_be_a_token_is_not_sent(token):
    api = ScriptedReviews({"authenticated": True, "user": ANA})
    assert await TokenReviews(api).user_of(token) is None
    assert api.asked == []


async def test_all_that_is_known_of_a_user_is_passed_on():
    api = ScriptedReviews({"allowed": True})
    assert await AccessReviews(api).may(USER, PATCH)
    asked = {"verb": "patch", "group": "keda.sh", "resource": "scaledobjects", "namespace": "team-a"}
    who = {"user": "ana@example.com", "uid": "7", "groups": ["team-a"], "extra": {"scopes": ["user:info"]}}
    assert api.asked == [{**who, "resourceAttributes": asked}]
    assert await is_allowed(api, PATCH)
    assert api.asked[1:] == [{"resourceAttributes": asked}], "of whoever asks"


@pytest.mark.parametrize("status", [{}, {"allowed": False}, {"denied": True}], ids=str)
async def test_what_is_not_allowed_is_not_allowed(status):
    assert not await AccessReviews(ScriptedReviews(status)).may(USER, PATCH)


async def test_answers_are_kept_for_a_while_each_for_its_own_question():
    clock, api = VirtualClock(), ScriptedReviews({"authenticated": True, "user": ANA, "allowed": True})
    tokens, access = TokenReviews(api, clock=clock), AccessReviews(api, clock=clock)

    async def ask() -> None:
        assert await tokens.user_of("secret") == USER
        assert await access.may(USER, PATCH)

    await ask()
    await clock.advance(ANSWERS_SECONDS - 1)
    await ask()
    assert len(api.asked) == 2
    others = AuthenticatedUser(name="ana@example.com", uid="7", groups=("team-b",))
    await access.may(others, PATCH)
    await tokens.user_of("another")
    assert len(api.asked) == 4
    api.status = {"user": {}, "allowed": False}
    await clock.advance(1)
    assert await tokens.user_of("secret") is None
    assert not await access.may(USER, PATCH)


async def test_the_number_of_answers_that_are_kept_is_bounded():
    api = ScriptedReviews({"user": {}})
    tokens = TokenReviews(api, clock=VirtualClock())
    for number in range(reviews._MOST_ANSWERS + 1):
        await tokens.user_of(str(number))
    asked = len(api.asked)
    await tokens.user_of(str(reviews._MOST_ANSWERS))
    assert len(api.asked) == asked
    await tokens.user_of("0")
    assert len(api.asked) == asked + 1


# ------------------------------------------------------------------------------------------------- a Kubernetes API


@pytest.fixture
async def transport(tmp_path: Path) -> AsyncIterator[KubeTransport]:
    api = KubeApi()
    await api.start()
    api.write_kubeconfig(tmp_path / "kubeconfig")
    async with await KubeTransport.connect(tmp_path / "kubeconfig") as connected:
        yield connected
    await api.stop()


async def account(transport: KubeTransport, *audiences: str) -> str:
    """The token of an account that may patch ScaledObjects in the namespace default."""
    where, rbac = "/namespaces/default", "/apis/rbac.authorization.k8s.io/v1"
    group = {"apiGroup": "rbac.authorization.k8s.io"}
    rules = [{"apiGroups": ["keda.sh"], "resources": ["scaledobjects"], "verbs": ["patch"]}]
    await transport.create(f"/api/v1{where}/serviceaccounts", {"metadata": {"name": "ana"}})
    await transport.create(f"{rbac}{where}/roles", {"metadata": {"name": "waker"}, "rules": rules})
    subjects = [{"kind": "ServiceAccount", "name": "ana", "namespace": "default"}]
    binding = {"roleRef": {**group, "kind": "Role", "name": "waker"}, "subjects": subjects}
    await transport.create(f"{rbac}{where}/rolebindings", {"metadata": {"name": "waker"}, **binding})
    spec = {"audiences": [*audiences]} if audiences else {}
    answer = await transport.create(f"/api/v1{where}/serviceaccounts/ana/token", {"spec": spec})
    return str(json.loads(answer)["status"]["token"])


async def test_against_an_api_the_token_says_who_and_the_roles_what(transport):
    token = await account(transport, "idle-gpu-scaler")
    user = await TokenReviews(transport, audiences=["idle-gpu-scaler"]).user_of(token)
    assert user is not None
    assert (user.name, bool(user.uid)) == ("system:serviceaccount:default:ana", True)
    assert await TokenReviews(transport).user_of(token) is None, "for another audience"
    assert await TokenReviews(transport).user_of("made up") is None
    asked = [
        ResourceAttributes(verb="patch", group="keda.sh", resource="scaledobjects", namespace=each)
        for each in ("default", "team-b")
    ]
    assert await asyncio.gather(*(AccessReviews(transport).may(user, each) for each in asked)) == [True, False]
