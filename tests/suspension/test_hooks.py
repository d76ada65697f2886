"""What hooks do: real HTTP, and objects in the embedded API."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from builders import NOON, at, minutes
from http_stub import HttpStub, Reply, Wire
from small_cluster import SmallCluster, definitions, embedded_api

from scaler.idleness.hooks import HookOutcome, HookRun
from scaler.kube.discovery import Discovery
from scaler.kube.objects.resources import NAMESPACE, NODE, SCALABLE_WORKLOAD, SCALED_OBJECT, SECRET, Resource
from scaler.kube.transport import KubeTransport
from scaler.suspension.hooks import (
    HookCall,
    HookConfig,
    HookKind,
    HookProgress,
    ObjectHook,
    TemplateError,
    WebhookHook,
    hook_of,
    is_so,
    object_of,
    run_id,
)
from scaler.webhook import Receiver

RUN = HookRun(hook="checkpoint", started_at=NOON)


def a_call(**changes: Any) -> HookCall:
    given: dict[str, Any] = {
        "id": run_id("uid-1", RUN),
        "hook": "checkpoint",
        "namespace": "demo",
        "kind": "RayCluster",
        "name": "research",
        "scaled_object": "raycluster-research",
        "uid": "uid-1",
        "workload": "raycluster-research-6cd3b",
        "pod": "research-head",
        "idle_since": at(-1800),
        "started_at": NOON,
        "deadline": at(300),
        "evidence": [{"gpu": "GPU-0", "verdict": "Idle"}],
    }
    return HookCall(**{**given, **changes})


def test_the_id_of_a_run_is_its_own_and_the_same_for_whoever_goes_on_with_it() -> None:
    later = HookRun(hook="checkpoint", started_at=at(1))
    ids = [run_id("uid-1", RUN), run_id("uid-2", RUN), run_id("uid-1", later)]
    assert len(set(ids)) == 3
    assert ids[0] == run_id("uid-1", HookRun(hook="checkpoint", started_at=NOON, saved_at=at(-60)))


# ------------------------------------------------------------------------------------------------------------ webhooks


def webhook(tmp_path: Path, url: str, **files: Path) -> WebhookHook:
    (tmp_path / "url").write_text(url)
    return WebhookHook(Receiver(url_file=tmp_path / "url", **files))


@pytest.mark.parametrize(
    ("status", "outcome", "message"),
    [
        (200, HookOutcome.SUCCEEDED, ""),
        (204, HookOutcome.SUCCEEDED, ""),
        (202, None, "accepted, and not done"),
        (301, HookOutcome.FAILED, "it answers HTTP 301"),
        (403, HookOutcome.FAILED, "it answers HTTP 403"),
        (408, None, "it answers HTTP 408"),
        (429, None, "it answers HTTP 429"),
        (500, None, "it answers HTTP 500"),
        (503, None, "it answers HTTP 503"),
    ],
)
async def test_an_answer_is_the_end_or_is_asked_for_again(
    tmp_path: Path, status: int, outcome: HookOutcome | None, message: str
) -> None:
    with HttpStub(lambda _: Reply(b"", status, {"Location": "/elsewhere", "Retry-After": "60"})) as stub:
        found = await webhook(tmp_path, stub.url).attempt(a_call(), NOON)
        assert len(stub.received) == 1
    assert (found.outcome, found.message) == (outcome, message)
    assert found.again_after == (
        minutes(1) if status in (408, 429, 500, 503) else HookProgress(outcome=None).again_after
    )


async def test_a_call_is_signed_as_notifications_are_and_says_what_is_to_be_saved_until_when(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k1\n")
    (tmp_path / "token").write_text("t1\n")
    with HttpStub(lambda _: Reply(b"")) as stub:
        hook = webhook(tmp_path, stub.url + "/save", key_file=tmp_path / "key", token_file=tmp_path / "token")
        await hook.attempt(a_call(), NOON)
    [got] = stub.received
    assert (got.method, got.path, got.headers["Authorization"]) == ("POST", "/save", "Bearer t1")
    assert got.headers["Idempotency-Key"] == a_call().id
    time, _, signature = got.headers["Idlegpu-Signature"].partition(",v1=")
    signed = time.removeprefix("t=").encode() + b"." + got.body
    assert hmac.compare_digest(signature, hmac.new(b"k1", signed, hashlib.sha256).hexdigest())
    assert json.loads(got.body) == {
        "id": a_call().id,
        "hook": "checkpoint",
        "namespace": "demo",
        "kind": "RayCluster",
        "name": "research",
        "scaledobject": "raycluster-research",
        "uid": "uid-1",
        "workload": "raycluster-research-6cd3b",
        "pod": "research-head",
        "idleSince": "2026-12-01T11:30:00Z",
        "startedAt": "2026-12-01T12:00:00Z",
        "deadline": "2026-12-01T12:05:00Z",
        "evidence": [{"gpu": "GPU-0", "verdict": "Idle"}],
    }


async def test_a_receiver_that_hangs_costs_no_more_than_what_is_left_of_the_time(tmp_path: Path) -> None:
    def hang(wire: Wire) -> None:
        wire.closing.wait(30)

    with HttpStub(lambda _: Reply(hang)) as stub:
        found = await webhook(tmp_path, stub.url).attempt(a_call(), at(299.8))
    assert (found.outcome, found.message) == (None, "it cannot be reached: TimeoutError")


@pytest.mark.parametrize("files", [{"key_file": "no-such-file"}, {"ca_file": "no-such-file"}], ids=str)
async def test_a_file_that_is_missing_may_come_and_is_no_end(tmp_path: Path, files: dict[str, str]) -> None:
    hook = webhook(tmp_path, "https://127.0.0.1:1", **{name: tmp_path / file for name, file in files.items()})
    assert (await hook.attempt(a_call(), NOON)).outcome is None


# ------------------------------------------------------------------------------------------------------------- objects

SNAPSHOT = Resource(group="example.com", version="v1", plural="snapshots", kind="Snapshot")
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "snapshots.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Snapshot", "plural": "snapshots", "singular": "snapshot", "listKind": "SnapshotList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": ANYTHING},
            }
        ],
    },
}
TEMPLATE = """
apiVersion: example.com/v1
kind: Snapshot
metadata:
  namespace: kube-system
  name: mine
  labels: {of: $name}
spec:
  pod: $pod
  note: "$kind $namespace/$name costs $$5"
  keep: 3
"""


@pytest.fixture
async def kube(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    """With a ScaledObject: what has an owner that does not exist is collected as garbage."""
    async with embedded_api(tmp_path, *json.loads(definitions()), CRD) as (api, transport):
        await transport.create(NAMESPACE.path(), {"metadata": {"name": "demo"}})
        cluster = SmallCluster(api, transport, tmp_path / "kubeconfig")
        await cluster.is_scaled_by({}, name="raycluster-research")
        await cluster.is_scaled_by({}, name="another")
        yield cluster


async def a_run(kube: SmallCluster, scaled_object: str = "raycluster-research", **changes: Any) -> HookCall:
    """Of that ScaledObject, as it is in the API."""
    uid = (await kube.read(SCALED_OBJECT, scaled_object))["metadata"]["uid"]
    return a_call(**{"uid": uid, "scaled_object": scaled_object, **changes})


def an_object(kube: KubeTransport, tmp_path: Path, template: str = TEMPLATE, **config: Any) -> ObjectHook:
    (tmp_path / "template.yaml").write_text(template)
    given = {"template_file": tmp_path / "template.yaml", "condition": "Ready", **config}
    made = HookConfig(name="checkpoint", kind=HookKind.OBJECT, timeout=minutes(5), **given)
    hook = hook_of(made, kube, Discovery(kube))
    assert isinstance(hook, ObjectHook)
    return hook


async def test_an_object_is_made_once_in_the_workloads_namespace_and_goes_with_its_scaled_object(
    kube: SmallCluster, tmp_path: Path
) -> None:
    call = await a_run(kube)
    hook = an_object(kube.kube, tmp_path)
    first, second = await hook.attempt(call, NOON), await hook.attempt(call, NOON)
    after_a_restart = await an_object(kube.kube, tmp_path).attempt(call, NOON)
    assert {each.outcome for each in (first, second, after_a_restart)} == {None}
    [made] = await kube.all(SNAPSHOT)
    assert made["metadata"]["name"] == f"checkpoint-{call.id[:16]}"
    assert made["metadata"]["namespace"] == "demo"
    assert made["metadata"]["labels"] == {"of": "research"}
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ScaledObject", "raycluster-research", call.uid)
    assert made["spec"] == {"pod": "research-head", "note": "RayCluster demo/research costs $5", "keep": 3}


STATUSES: dict[str, tuple[dict[str, Any], HookOutcome | None]] = {
    "nothing yet": ({}, None),
    "not yet": ({"conditions": [{"type": "Ready", "status": "False", "reason": "Waiting"}]}, None),
    "another reason": ({"conditions": [{"type": "Ready", "status": "True", "reason": "Begun"}]}, None),
    "done": ({"conditions": [{"type": "Ready", "status": "True", "reason": "Complete"}]}, HookOutcome.SUCCEEDED),
    "given up": ({"conditions": [{"type": "Ready", "status": "False", "reason": "Failed"}]}, HookOutcome.FAILED),
    "the other one": ({"conditions": [{"type": "Broken", "status": "True", "message": "full"}]}, HookOutcome.FAILED),
}


@pytest.mark.parametrize(("status", "outcome"), STATUSES.values(), ids=STATUSES.keys())
async def test_its_condition_says_when_it_has_ended(
    kube: SmallCluster, tmp_path: Path, status: dict[str, Any], outcome: HookOutcome | None
) -> None:
    call = await a_run(kube)
    hook = an_object(kube.kube, tmp_path, reason="Complete", failure_condition="Broken")
    await hook.attempt(call, NOON)
    await kube.change(SNAPSHOT, f"checkpoint-{call.id[:16]}", {"status": status}, "status")
    assert (await hook.attempt(call, NOON)).outcome is outcome


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"readyToUse": True}, True),
        ({"readyToUse": False}, False),
        ({}, False),
        ({"conditions": [{"type": "readyToUse", "status": "False"}], "readyToUse": True}, False),
        ({"conditions": "none"}, False),
    ],
    ids=str,
)
def test_a_field_of_the_status_may_be_waited_for_as_well(status: dict[str, Any], expected: bool) -> None:
    assert is_so(status, "readyToUse") is expected


async def test_what_was_made_and_is_gone_has_failed_and_is_not_made_again(kube: SmallCluster, tmp_path: Path) -> None:
    call = await a_run(kube)
    hook = an_object(kube.kube, tmp_path)
    await hook.attempt(call, NOON)
    await kube.delete(SNAPSHOT, f"checkpoint-{call.id[:16]}")
    assert (await hook.attempt(call, NOON)).outcome is HookOutcome.FAILED
    assert await kube.all(SNAPSHOT) == []


async def test_an_object_of_somebody_else_is_not_taken_for_its_own(kube: SmallCluster, tmp_path: Path) -> None:
    call = await a_run(kube)
    await an_object(kube.kube, tmp_path).attempt(await a_run(kube, "another"), NOON)
    found = await an_object(kube.kube, tmp_path).attempt(call, NOON)
    assert found.outcome is HookOutcome.FAILED
    assert "is there already, and not the ScaledObject's" in found.message


@pytest.mark.parametrize(("status", "outcome"), [(500, None), (429, None), (403, HookOutcome.FAILED)])
async def test_an_api_that_fails_is_asked_again_and_a_refusal_is_an_end(
    kube: SmallCluster, tmp_path: Path, status: int, outcome: HookOutcome | None
) -> None:
    call = await a_run(kube)
    hook = an_object(kube.kube, tmp_path)
    with kube.refusing("POST", "/snapshots", status=status):
        assert (await hook.attempt(call, NOON)).outcome is outcome
    assert (await hook.attempt(call, NOON)).outcome is None
    assert len(await kube.all(SNAPSHOT)) == 1


BROKEN: dict[str, tuple[str, str]] = {
    "no YAML": ("a: [", "is not YAML at line 2, column 1"),
    "no manifest": ("- 1", "it is no manifest"),
    "a name that there is not": ("apiVersion: v1\nkind: Secret\nx: $nobody", "'$nobody': 'nobody' cannot be filled in"),
    "a lone dollar": ("apiVersion: v1\nkind: Secret\nx: 5 $", "cannot be filled in; there are $hook, $id, $kind"),
    "of the whole cluster": ("apiVersion: v1\nkind: Node", "Node is of the whole cluster"),
}


@pytest.mark.parametrize(("template", "message"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_template_that_cannot_be_used_says_why_and_nothing_is_made(
    kube: SmallCluster, tmp_path: Path, template: str, message: str
) -> None:
    call = await a_run(kube)
    found = await an_object(kube.kube, tmp_path, template).attempt(call, NOON)
    assert found.outcome is HookOutcome.FAILED
    assert message in found.message
    assert await kube.all(SECRET) == []
    assert await kube.all(NODE) == []


def test_what_a_scalable_workload_without_a_scaled_object_has_made_is_its_own() -> None:
    made = object_of({"apiVersion": "v1", "kind": "ConfigMap"}, a_call(owner=SCALABLE_WORKLOAD))
    assert made["metadata"]["ownerReferences"][0]["kind"] == "ScalableWorkload"


def test_what_tenants_name_never_becomes_part_of_the_structure() -> None:
    evil = "x\nkind: Secret\nspec: {admin: true} # $uid"
    made = object_of(
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"name": "of $name", "$name": "key"}}, a_call(name=evil)
    )
    assert made["kind"] == "ConfigMap"
    assert "spec" not in made
    assert made["data"] == {"name": f"of {evil}", "$name": "key"}
    with pytest.raises(TemplateError):
        object_of({"apiVersion": "v1"}, a_call())
