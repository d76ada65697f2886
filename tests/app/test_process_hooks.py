"""What ends before a suspension, by whole processes with a real receiver, over SIGKILL."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from app.cli.command import command_beside
from http_stub import HttpStub, Received, Reply
from running_scaler import Process, keda, metric, prometheus, run_gang, settings_document
from small_cluster import NAME, PODS, SmallCluster, until

from scaler.kube.objects.resources import POD
from scaler.targets.workloads import SUSPEND_AT

TRIGGER = {"idleAfter": "1s", "warmUp": "0s", "beforeSuspend": "checkpoint"}


def settings(cluster: SmallCluster, tmp_path: Path, source: str, receiver: str) -> Path:
    (tmp_path / "url").write_text(receiver)
    (tmp_path / "key").write_text("k1")
    hook = {"name": "checkpoint", "kind": "Webhook", "timeout": "1m"}
    hook |= {"urlFile": str(tmp_path / "url"), "keyFile": str(tmp_path / "key")}
    document = settings_document(cluster.kubeconfig, "", prometheus={"url": source})
    document |= {"dcgm": {}, "hooks": [hook], "suspendAt": True}
    document["kubernetes"]["lease"] |= {"duration": "3s", "renewDeadline": "2s"}
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
async def cluster(cluster: SmallCluster) -> SmallCluster:
    await run_gang(cluster, TRIGGER)
    await cluster.annotate(POD, PODS[0], SUSPEND_AT, "")
    return cluster


@pytest.mark.slow
async def test_a_hook_is_asked_by_the_next_process_with_the_same_key_and_only_then_keda_gets_0(
    cluster: SmallCluster, tmp_path: Path
) -> None:
    is_down = [True]

    def answer(_: Received) -> Reply:
        return Reply(b"", 500 if is_down[0] else 200)

    async def run() -> Any:
        return (await cluster.status()).get("beforeSuspend") or {}

    async def is_told() -> bool:
        return bool((await cluster.read(POD, PODS[0]))["metadata"]["annotations"][SUSPEND_AT])

    async def has_called(count: int) -> bool:
        return len(hook.received) >= count

    async def has_ended() -> bool:
        return (await run()).get("outcome") == "Succeeded"

    with HttpStub(answer) as hook, HttpStub(prometheus(busy=0.0)) as source:
        path = settings(cluster, tmp_path, source.url, hook.url)
        async with Process(tmp_path / "log", "run", "--config", str(path)) as one:
            await one.listens()
            await until(lambda: has_called(1))
            begun = await run()
            async with keda(one.grpc_port, TRIGGER) as asking:
                assert await asking.is_active() is True
            await one.kill()
            is_down[0] = False
            refused = len(hook.received)
            await one.start()
            await one.listens()
            await until(lambda: has_called(refused + 1))
            await until(has_ended)
            async with keda(one.grpc_port, TRIGGER) as asking:

                async def is_inactive() -> bool:
                    return await asking.is_active() is False

                await until(is_inactive)
            name = "idle_gpu_scaler_before_suspend_total"
            assert await metric(one.http_port, name, hook="checkpoint", outcome="Succeeded") == 1
            await until(is_told)
            server = f"http://127.0.0.1:{one.http_port}"
            explained = await command_beside("explain", f"demo/{NAME}", "--server", server)
            await cluster.scale(0)
            await until(lambda: cluster.has_phase("Suspending"))
    assert (await run())["startedAt"] == begun["startedAt"]
    assert len({each.headers["Idempotency-Key"] for each in hook.received}) == 1
    assert len(hook.received) == refused + 1
    assert all("Idlegpu-Signature" in each.headers for each in hook.received)
    assert json.loads(hook.received[0].body)["kind"] == "RayCluster"
    assert f"hook checkpoint, begun at {begun['startedAt']}: Succeeded at" in " ".join(explained.out.split())
    assert "hook checkpoint has succeeded" in (await cluster.status())["history"][-1]["message"]
    assert "BeforeSuspendSucceeded" in await cluster.reasons()
