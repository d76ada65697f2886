"""Wake-ups over real HTTP, by tokens and roles of a real API: who may patch ScaledObjects may wake, and nobody else."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest
from builders import NOON, a_target, decision, unknown
from reporting.test_http_tls import views
from small_cluster import NAME, NAMESPACE_NAME, SmallCluster, until
from suspension.replica import Replica, replica
from virtual_clock import VirtualClock

from scaler.decision.decision import Active, Decision, Inactive
from scaler.decision.reasons import DecisionReason
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, Resource
from scaler.kube.reviews import AccessReviews, TokenReviews
from scaler.reporting.http import HttpServer
from scaler.reporting.metrics import Metrics
from scaler.requests.wake import REQUESTS_PER_MINUTE, WakeRequests
from scaler.targets.target_state import Phase
from scaler.targets.workloads import WAKE_ANNOTATION

ANA = f"system:serviceaccount:{NAMESPACE_NAME}:ana"
WRITTEN_ON = "scaledobjects.keda.sh (scalableworkloads.idlegpu.io, where no KEDA scales them)"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE_NAME}"
GROUP = {"apiGroup": "rbac.authorization.k8s.io"}


@dataclass
class Site:
    cluster: SmallCluster
    one: Replica
    clock: VirtualClock
    url: str

    async def token(self, name: str = "ana", *, verbs: str = "patch", on: Resource = SCALED_OBJECT) -> str:
        """Of an account that may do this with such objects of the namespace."""
        kube, where = self.cluster.kube, f"/api/v1/namespaces/{NAMESPACE_NAME}/serviceaccounts"
        await kube.create(where, {"metadata": {"name": name}})
        rules = [{"apiGroups": [on.group], "resources": [on.plural], "verbs": [verbs]}]
        await kube.create(f"{RBAC}/roles", {"metadata": {"name": name}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE_NAME}
        binding = {"roleRef": {**GROUP, "kind": "Role", "name": name}, "subjects": [subject]}
        await kube.create(f"{RBAC}/rolebindings", {"metadata": {"name": name}, **binding})
        answer = msgspec.json.decode(await kube.create(f"{where}/{name}/token", {"spec": {}}))
        return str(answer["status"]["token"])

    async def posts(
        self, token: str = "", name: str = NAME, **more: Any
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with aiohttp.ClientSession() as session:
            path = f"{self.url}/wake/{more.pop('namespace', NAMESPACE_NAME)}/{name}"
            async with session.request(more.pop("verb", "POST"), path, headers=headers, **more) as got:
                return got.status, await got.json() if got.content_type.endswith("json") else {}, got.headers

    async def status(self, *args: Any, **more: Any) -> int:
        return (await self.posts(*args, **more))[0]

    async def annotations(self) -> dict[str, str]:
        found: dict[str, str] = (await self.cluster.read(SCALED_OBJECT, NAME))["metadata"].get("annotations") or {}
        return found


@pytest.fixture
async def site(cluster: SmallCluster) -> AsyncIterator[Site]:
    await cluster.wants(0)
    await cluster.is_scaled_by({"idleAfter": "1s"})
    async with served(cluster) as one:
        one.one.decides(SUSPENDED)
        yield one


@asynccontextmanager
async def served(cluster: SmallCluster) -> AsyncIterator[Site]:
    clock = VirtualClock(NOON)
    async with replica(cluster) as one:
        await until(one.is_current)
        tokens, access = TokenReviews(one.transport, clock=clock), AccessReviews(one.transport, clock=clock)
        requests = WakeRequests(
            one.transport, tokens, access, one.copies.scaled_objects.get, one.decision_cache, clock=clock
        )
        server = HttpServer("127.0.0.1:0", Metrics(), views(), routes=requests.routes())
        port = await server.start()
        try:
            yield Site(cluster, one, clock, f"http://127.0.0.1:{port}")
        finally:
            await server.stop()


def at_zero(answer: Active | Inactive, phase: Phase = Phase.SUSPENDED) -> Decision:
    return decision(answer, target=a_target(desired_replicas=0, phase=phase))


SUSPENDED = at_zero(Inactive(reason=DecisionReason.SUSPENDED, message="suspended"))


async def test_who_may_patch_scaled_objects_wakes_what_is_suspended(site: Site) -> None:
    status, answer, _ = await site.posts(await site.token())
    assert (status, answer["askedBy"]) == (202, ANA)
    assert "KEDA scales it to 1" in answer["message"]
    by = f"{ANA} over HTTP"
    assert await site.annotations() == {"idlegpu.io/wake": "2026-12-01T12:00:00Z", "idlegpu.io/asked-by": by}


async def test_what_is_scaled_without_keda_is_woken_by_who_may_patch_it(cluster: SmallCluster) -> None:
    job = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME}
    await cluster.wants(0, jobRef=job, actuator="Direct", triggerMetadata={"idleAfter": "1s"})
    async with served(cluster) as site:
        site.one.decides(SUSPENDED)
        assert await site.status(await site.token()) == 403
        status, answer, _ = await site.posts(await site.token("ben", on=SCALABLE_WORKLOAD))
        assert status == 202
        assert "the leader scales it to 1" in answer["message"]
        assert "idlegpu.io/wake" in (await cluster.scalable())["metadata"]["annotations"]


async def test_asking_again_changes_nothing_else(site: Site) -> None:
    token = await site.token()
    assert [await site.status(token) for _ in range(3)] == [202, 202, 202]
    before = await site.annotations()
    site.one.decides(at_zero(Active(reason=DecisionReason.WAKING, message="wake-up requested: annotation")))
    await site.clock.advance(60)
    status, answer, _ = await site.posts(token)
    assert (status, answer["message"].startswith("it is resumed already")) == (202, True)
    assert await site.annotations() == before


STATES: Mapping[str, tuple[Decision, int, str | None]] = {
    "suspended": (SUSPENDED, 202, "2026-12-01T12:00:00Z"),
    "at 0, and its pods end": (
        at_zero(Inactive(reason=DecisionReason.SUSPENDED, message=""), Phase.SUSPENDING),
        202,
        "2026-12-01T12:00:00Z",
    ),
    "about to be suspended, later than the request": (
        decision(Inactive(reason=DecisionReason.GPUS_IDLE, message="quiet")),
        202,
        "true",
    ),
    "taken by a plan": (decision(Inactive(reason=DecisionReason.RECLAIMED, message="quiet")), 202, "true"),
    "not known, at 0": (
        decision(unknown(), target=a_target(desired_replicas=0, phase=Phase.NO_WORKLOAD)),
        202,
        "2026-12-01T12:00:00Z",
    ),
    "busy": (decision(), 409, None),
    "kept": (decision(Active(reason=DecisionReason.KEPT, message="kept")), 409, None),
    "finished": (decision(Active(reason=DecisionReason.FINISHED, message="finished")), 409, None),
}


async def test_what_is_written_depends_on_the_state(site: Site) -> None:
    token = await site.token()
    for state, (decided, status, written) in STATES.items():
        await site.cluster.annotate(SCALED_OBJECT, NAME, WAKE_ANNOTATION, "")
        site.one.decides(decided)
        assert await site.status(token) == status, state
        assert (await site.annotations())[WAKE_ANNOTATION] == (written or ""), state


async def test_before_the_first_evaluation_a_wake_up_is_written(cluster: SmallCluster) -> None:
    await cluster.wants(0)
    await cluster.is_scaled_by({"idleAfter": "1s"})
    async with served(cluster) as site:
        assert await site.status(await site.token()) == 202
        assert "idlegpu.io/wake" in await site.annotations()


async def test_without_a_token_that_the_api_accepts_nothing_is_said(site: Site) -> None:
    for token in ("", "made-up", "embedded-"):
        status, answer, headers = await site.posts(token)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "a token is needed" in answer["error"]
    assert await site.status(name="no-such") == 401
    assert await site.annotations() == {}


async def test_other_schemes_than_bearer_are_not_tokens(site: Site) -> None:
    token = await site.token()
    async with aiohttp.ClientSession() as session:
        path = f"{site.url}/wake/{NAMESPACE_NAME}/{NAME}"
        for value, status in ((f"Basic {token}", 401), (token, 401), ("Bearer", 401), (f"bearer {token}", 202)):
            async with session.post(path, headers={"Authorization": value}) as got:
                assert got.status == status, value


async def test_a_user_without_permission_learns_nothing_of_workloads(site: Site) -> None:
    token = await site.token(verbs="get")
    status, answer, _ = await site.posts(token)
    assert status == 403
    assert answer["error"] == f"{ANA} may not patch {WRITTEN_ON} in namespace {NAMESPACE_NAME}"
    assert (await site.posts(token, "no-such"))[1] == answer
    assert await site.status(await site.token("ben"), namespace="other") == 403
    assert await site.annotations() == {}


async def test_what_is_not_there_cannot_be_woken(site: Site) -> None:
    token = await site.token()
    assert await site.status(token, "no-such") == 404
    assert await site.status(token, "%2e%2e") in (400, 404)
    assert await site.status(token, "a b") == 400
    site.one.decides()
    assert await site.status(token) == 404, "it has no trigger of this scaler"
    assert await site.annotations() == {}


async def test_a_user_who_asks_too_often_waits_and_others_do_not(site: Site) -> None:
    token, other = await site.token(), await site.token("ben")
    for _ in range(REQUESTS_PER_MINUTE):
        assert await site.status(token, "no-such") == 404
    status, _, headers = await site.posts(token)
    assert (status, headers["Retry-After"]) == (429, "10")
    assert await site.status(other) == 202
    await site.clock.advance(10)
    assert await site.status(token) == 202


async def test_where_the_api_refuses_it_is_said_that_it_did_and_not_what(site: Site) -> None:
    token = await site.token()
    for path in ("tokenreviews", "subjectaccessreviews", "scaledobjects"):
        with site.cluster.refusing("PATCH" if path == "scaledobjects" else "POST", path, status=403):
            status, answer, _ = await site.posts(token)
        assert (status, answer) == (503, {"error": "the cluster did not accept it; try again later"}), path
    assert await site.status(token) == 202


async def test_nothing_but_post_is_answered_and_a_body_is_not_read(site: Site) -> None:
    token = await site.token()
    for verb in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        assert await site.status(token, verb=verb) == 405, verb
    assert await site.annotations() == {}
    assert await site.status(token, data=b"{" * 5_000_000) == 202


async def test_two_at_once_are_one(site: Site) -> None:
    token = await site.token()
    assert await asyncio.gather(*(site.status(token) for _ in range(5))) == [202] * 5
    assert (await site.annotations())["idlegpu.io/asked-by"] == f"{ANA} over HTTP"
