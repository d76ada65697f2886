"""Notifications of whole processes to real receivers, over SIGKILL and a change of the leader."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from http_stub import HttpStub, Received, Reply
from running_scaler import Process, gpus, metric, run_gang, settings_document
from small_cluster import NAME, SmallCluster, until
from smtp_stub import SmtpStub

from scaler.kube.objects.resources import SCALED_OBJECT

TRIGGER = {"idleAfter": "3s", "warning": "2s", "warmUp": "0s"}


@pytest.fixture
async def cluster(cluster: SmallCluster) -> SmallCluster:
    await run_gang(cluster, TRIGGER)
    return cluster


@asynccontextmanager
async def settings(cluster: SmallCluster, tmp_path: Path, **urls: str) -> AsyncIterator[Path]:
    """A file with a target of each of these names, by which it is of a kind."""
    key, targets = tmp_path / "link-keys", list[dict[str, Any]]()
    key.write_text("k" * 32)
    for name, url in urls.items():
        file = tmp_path / name
        file.write_text(url)
        kind = "apprise" if name == "mail" else "webhook"
        targets.append({"name": name, "kind": kind, "urlFile": str(file)})
    async with gpus() as (_, exporter):
        document = settings_document(
            cluster.kubeconfig,
            f"{exporter.url}/metrics",
            notifications={
                "targets": targets,
                "defaultTargets": [*urls],
                "groupFor": "200ms",
                "retry": {"base": "300ms", "max": "600ms"},
                "links": {"baseUrl": "http://gpus.example.com", "keyFile": str(key)},
            },
        )
        document["kubernetes"]["lease"] |= {"duration": "3s", "renewDeadline": "2s"}
        path = tmp_path / "settings.yaml"
        path.write_text(yaml.safe_dump(document))
        yield path


def notices(stub: HttpStub) -> list[dict[str, Any]]:
    """Of all requests, in order."""
    return [each for request in stub.received for each in json.loads(request.body)["notices"]]


def states(stub: HttpStub) -> list[str]:
    return [each["state"] for each in notices(stub)]


async def suspended(cluster: SmallCluster) -> None:
    """What KEDA, Kueue and the kubelet do after an answer of 0."""
    await cluster.scale(0)
    await until(lambda: cluster.has_phase("Suspending"))
    await cluster.evict()
    await cluster.end_pods()
    await cluster.release()
    await until(lambda: cluster.has_phase("Suspended"))


async def resumed(cluster: SmallCluster) -> None:
    await cluster.scale(1)
    await until(lambda: _is_in_state(cluster, "Waking"))
    await until(cluster.is_active)
    await cluster.admit()
    await cluster.run_pods()


async def _is_in_state(cluster: SmallCluster, state: str) -> bool:
    return (await cluster.status()).get("state") == state


def is_told(stub: HttpStub, *wanted: str) -> Callable[[], Any]:
    async def check() -> bool:
        return states(stub) == [*wanted]

    return check


async def is_marked(cluster: SmallCluster, state: str, target: str = "hook") -> bool:
    marks = (await cluster.status()).get("notified", {})
    return marks.get(target, {}).get("state") == state


async def test_an_owner_reads_the_evidence_and_what_happens_when(cluster: SmallCluster, tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(b"")) as hook, SmtpStub() as smtp:
        mail_url = f"{smtp.url}from=scaler@example.com&to=ops@example.com"
        async with (
            settings(cluster, tmp_path, hook=hook.url, mail=mail_url) as path,
            Process(tmp_path / "log", "run", "--config", str(path)) as one,
        ):
            await one.listens()
            await until(is_told(hook, "Warned"))
            await until(lambda: _has(smtp.mails))
            await suspended(cluster)
            await until(is_told(hook, "Warned", "Suspended"))
            await until(lambda: _has_delivered(one, 2))
    warned, down = notices(hook)
    assert (warned["namespace"], warned["name"], warned["gpus"]) == ("demo", NAME, 2)
    assert warned["at"] <= warned["suspendAt"]
    assert warned["signals"][0]["floorPercent"] == 1
    assert set(warned["signals"][0]["bars"]) <= {"▁", "·"}
    assert down["at"] >= warned["at"]
    text = smtp.mails[0].get_content()
    assert f"ScalableWorkload demo/{NAME} will be suspended" in text
    assert re.search("2 GPUs idle (at least )?since", text)
    assert "to keep it: http://gpus.example.com/answer/keep/" in text
    # Each message is made when it is sent: a sample may have come between them.
    name, bars = warned["signals"][0]["name"], len(warned["signals"][0]["bars"])
    assert re.search(rf"^  [▁·]{{{bars}}}  {name}: peak \S+ %, floor 1 %", text, re.MULTILINE)


async def _has_delivered(one: Process, messages: int) -> bool:
    name = "idle_gpu_scaler_notifications_total"
    return await metric(one.http_port, name, target="hook", outcome="delivered") == messages


async def _has(found: list[Any]) -> bool:
    return bool(found)


@pytest.mark.slow
async def test_nothing_is_lost_or_repeated_over_kills(cluster: SmallCluster, tmp_path: Path) -> None:
    is_down = [True]

    def answer(_: Received) -> Reply:
        return Reply(b"", 500 if is_down[0] else 200)

    with HttpStub(answer) as hook:
        async with (
            settings(cluster, tmp_path, hook=hook.url) as path,
            Process(tmp_path / "log", "run", "--config", str(path)) as one,
        ):
            await one.listens()
            await until(lambda: _has(hook.received))
            await suspended(cluster)
            await one.kill()  # SIGKILL, with everything untold
            refused = len(notices(hook))
            is_down[0] = False
            await one.start()
            await until(lambda: is_marked(cluster, "Suspended"))
            await one.kill()
            await one.start()
            await one.listens()
            await resumed(cluster)
            await until(lambda: _has([each for each in notices(hook) if each["state"] == "Waking"]))
            await one.kill()
    accepted = notices(hook)[refused:]
    assert [each["state"] for each in accepted][:3] == ["Warned", "Suspended", "Waking"]
    assert len({each["id"] for each in accepted}) == len(accepted)


@pytest.mark.slow
async def test_nothing_is_suspended_before_its_owner_was_told(cluster: SmallCluster, tmp_path: Path) -> None:
    required = {"scalerAddress": "scaler:9090", "requireDelivery": "true", **TRIGGER}
    triggers = [{"type": "external-push", "metadata": required}]
    await cluster.change(SCALED_OBJECT, NAME, {"spec": {"triggers": triggers}})
    is_down, accepted_at = [True], list[float]()

    def answer(_: Received) -> Reply:
        accepted_at.extend([] if is_down[0] else [time.time()])
        return Reply(b"", 500 if is_down[0] else 200)

    with HttpStub(answer) as hook:
        async with (
            settings(cluster, tmp_path, hook=hook.url) as path,
            Process(tmp_path / "log", "run", "--config", str(path)) as one,
        ):
            await one.listens()
            await until(lambda: _has(hook.received))
            await one.kill()
            await asyncio.sleep(2)
            await one.start()  # now idle for longer than its policy asks, and warned for longer
            await until(lambda: _waits(cluster))
            warned_at = (await cluster.status())["warnedAt"]
            is_down[0] = False
            await until(lambda: _is_in_state(cluster, "Suspending"))
            suspending = (await cluster.status())["history"][-1]
    assert suspending["reason"] == "GPUsIdle"
    assert datetime.fromisoformat(suspending["at"]).timestamp() >= int(accepted_at[0]) + 2
    assert (await cluster.status())["warnedAt"] == warned_at, "the warning of before counts"


async def _waits(cluster: SmallCluster) -> bool:
    status = await cluster.status()
    is_late = "idleSince" in status and time.time() > datetime.fromisoformat(status["idleSince"]).timestamp() + 6
    return is_late and status["reason"] == "Warned" and "counts once its owner has it from hook" in status["message"]


@pytest.mark.slow
async def test_a_change_of_the_leader_repeats_nothing(cluster: SmallCluster, tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(b"")) as hook:
        async with settings(cluster, tmp_path, hook=hook.url) as path:
            arguments = ("run", "--config", str(path))
            async with Process(tmp_path / "one", *arguments) as one, Process(tmp_path / "other", *arguments) as other:
                await one.listens()
                await other.listens()
                await until(is_told(hook, "Warned"))
                leading, following = (one, other) if await _leads(one) else (other, one)
                leading.send(signal.SIGTERM)
                await leading.ended()
                await until(lambda: _leads(following))
                await asyncio.sleep(1)
                await suspended(cluster)
                await until(lambda: is_marked(cluster, "Suspended"))
                await asyncio.sleep(1)
    history = [(each["at"], each["state"]) for each in (await cluster.status())["history"]]
    told = [(each["at"], each["state"]) for each in notices(hook)]
    # Twice the same state within a second is one notice.
    assert told == [*dict.fromkeys(each for each in history if each[1] in ("Warned", "Suspended"))]


async def _leads(one: Process) -> bool:
    return await metric(one.http_port, "idle_gpu_scaler_leader") == 1


async def test_a_link_keeps_the_workload_and_only_its_button_does(cluster: SmallCluster, tmp_path: Path) -> None:
    with HttpStub(lambda _: Reply(b"")) as hook:
        async with (
            settings(cluster, tmp_path, hook=hook.url) as path,
            Process(tmp_path / "log", "run", "--config", str(path)) as one,
            aiohttp.ClientSession() as browser,
        ):
            await one.listens()
            await until(is_told(hook, "Warned"))
            link = notices(hook)[0]["links"]["keep"]
            url = link.replace("http://gpus.example.com", f"http://127.0.0.1:{one.http_port}")
            async with browser.get(url) as page:
                assert page.status == 200
            before = await cluster.read(SCALED_OBJECT, NAME)
            assert "idlegpu.io/keep-until" not in before["metadata"].get("annotations", {})
            async with browser.post(url) as done:
                assert done.status == 200
            await until(lambda: _is_in_state(cluster, "Kept"))
            async with browser.post(url) as again:
                assert again.status == 410
