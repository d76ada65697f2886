"""`explain`: against a running scaler and by itself."""

import json

import pytest
import yaml
from app.cli.command import command, command_beside
from http_stub import HttpStub, Reply
from rich.console import Console
from running_scaler import TRIGGER, fetch, gpus, prometheus, run_gang, runtime, settings_document
from small_cluster import NAME, until

from scaler.app.cli import explain
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT

JOB_REF = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME}


@pytest.fixture
async def cluster(cluster):
    await run_gang(cluster)
    return cluster


async def is_decided(port: int) -> bool:
    status, _, body = await fetch(port, f"/api/v1/decisions/demo/{NAME}")
    return status == 200 and json.loads(body)["triggers"][0]["reason"] == "GPUsBusy"


async def test_a_running_scaler_is_asked(cluster):
    async with (
        gpus(busy=0.9) as (_, exporter),
        runtime(settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])) as running,
    ):
        await until(lambda: is_decided(running.http_port))
        server = f"http://127.0.0.1:{running.http_port}"
        told = await command_beside("explain", f"demo/{NAME}", "--server", server)
        whole = await command_beside("explain", f"demo/{NAME}", "--server", server, "--all")
        as_json = await command_beside("explain", f"demo/{NAME}", "--server", f"{server}/", "--json")
        nobody = await command_beside("explain", "demo/nobody", "--server", server)
        top = await command_beside("top", "--server", server)
    assert (top.status, top.err) == (0, "")
    assert f"demo/{NAME} 2 Busy" in " ".join(top.out.split())
    assert "1 workload, 2 GPUs; idle: 0 GPUs" in top.out
    assert told.status == 0
    words = " ".join(told.out.split())
    for text in (
        f"demo/{NAME} scales ScalableWorkload {NAME}",
        "answer active GPUsBusy",
        "verdict Busy",
        "replicas 1 asked for, Running",
        "idleAfter 1s trigger metadata",
        "settings at built-in defaults: --all shows them",
        "pod worker-0",
        "gr_engine_active",
    ):
        assert text in words
    assert "activeAbove" not in words
    assert "activeAbove 1 % built-in default" in " ".join(whole.out.split())
    assert "--all shows them" not in whole.out
    sources = [each["source"] for each in as_json.json["triggers"][0]["settings"]]
    assert whole.out.count("built-in default") == sources.count("built-in default") > 1
    assert as_json.json["triggers"][0]["reason"] == "GPUsBusy"
    assert nobody.status == 2
    assert nobody.out == ""
    assert "error: ScaledObject demo/nobody is not evaluated" in nobody.err


async def test_without_a_running_scaler_it_evaluates_by_itself(cluster, tmp_path):
    """Read-only: not even the Lease is asked for."""
    config = tmp_path / "settings.yaml"
    with HttpStub(prometheus(busy=0.9)) as stub:
        document = settings_document(cluster.kubeconfig, "") | {"prometheus": {"url": stub.url}, "dcgm": {}}
        config.write_text(yaml.safe_dump(document))
        before = await cluster.scalable()
        told = await command_beside("explain", f"demo/{NAME}", "--local", "--config", str(config))
        assert (told.status, told.err) == (0, "")
        assert "active  GPUsBusy" in told.out
        assert await cluster.scalable() == before
        assert await leases(cluster) == []
        nobody = await command_beside("explain", "demo/nobody", "--local", "--config", str(config))
    assert nobody.status == 2
    assert "ScaledObject demo/nobody: there is no such ScaledObject with an external trigger" in nobody.err


async def test_a_job_is_explained_by_whatever_scales_it_and_without_that_only_its_workload(cluster, tmp_path):
    """An IdlePolicy names what it makes by kind and job."""
    await cluster.delete(SCALED_OBJECT, NAME)
    await cluster.delete(SCALABLE_WORKLOAD, NAME)
    config = tmp_path / "settings.yaml"
    with HttpStub(prometheus(busy=0.9)) as stub:
        document = settings_document(cluster.kubeconfig, "") | {"prometheus": {"url": stub.url}, "dcgm": {}}
        config.write_text(yaml.safe_dump(document))
        alone = await command_beside("explain", f"demo/{NAME}", "--local", "--config", str(config))
        await cluster.wants(1, name="raycluster-1", jobRef=JOB_REF)
        await cluster.is_scaled_by(TRIGGER, name="raycluster-1")
        scaled = await command_beside("explain", f"demo/{NAME}", "--local", "--config", str(config))
    assert f"RayCluster/{NAME}" in alone.out
    assert "no ScaledObject of that name, or of that job, is evaluated by this scaler" in alone.out
    assert "demo/raycluster-1  scales ScalableWorkload raycluster-1" in scaled.out
    assert "active  GPUsBusy" in scaled.out


async def leases(cluster):
    return json.loads(await cluster.kube.get("/apis/coordination.k8s.io/v1/leases"))["items"]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"<html>hello</html>", headers={"Content-Type": "text/html"}),
        Reply(b'["something else"]', headers={"Content-Type": "application/json"}),
        Reply(b'{"status": "up"}', headers={"Content-Type": "application/json"}),
        Reply(b'"no"', status=500, headers={"Content-Type": "application/json"}),
        Reply(b"bad gateway", status=502),
    ],
)
def test_what_is_no_scaler_is_not_taken_for_one(reply):
    with HttpStub(lambda _request: reply) as stub:
        done = command("explain", "demo/notebook", "--server", stub.url)
    assert done.status == 2
    assert f"no scaler answers at {stub.url}" in done.err
    assert "--local" in done.err


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("http://127.0.0.1:1", "(Connection refused)"),
        ("127.0.0.1:8080", "(no http:// URL)"),
        ("nonsense", "(no http:// URL)"),
    ],
)
def test_where_nothing_answers_it_says_why_and_what_to_do(server, why):
    done = command("explain", "demo/notebook", "--server", server)
    assert done.status == 2
    assert f"no scaler answers at {server}" in done.err
    assert why in done.err
    assert "--kubeconfig" in done.err


def test_a_worker_that_says_little_of_its_gpus_is_shown_as_far_as_it_goes():
    told = [{"pod": "p", "gpu": "0", "node": "east", "verdict": "Idle"}]
    told.append({**told[0], "gpu": "1", "signals": [{}]})
    with (console := Console(width=100)).capture() as shown:
        console.print(explain._gpus(told))
    words = "Idle 0 on east, pod p Idle 1 on east, pod p - peak - % coverage - % newest -"
    assert " ".join(shown.get().split()) == words
