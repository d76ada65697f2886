"""The page of a running scaler over the embedded cluster: a gang, a replica that never leads, and Prometheus."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import Browser
from prometheus_server import PrometheusServer, require_prometheus, static_scrape
from running_scaler import fetch, gpus, run_gang, runtime, settings_document
from small_cluster import NAME, NAMESPACE_NAME, SmallCluster, until

from scaler.kube.objects.core import Json
from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, IDLE_POLICY

WORKLOAD = f"/workloads/{NAMESPACE_NAME}/{NAME}"


async def shows(port: int, path: str, *words: str) -> bool:
    status, _, html = await fetch(port, path)
    return status == 200 and all(each in html for each in words)


async def test_a_gang_goes_idle_and_the_page_follows(cluster: SmallCluster) -> None:
    async with gpus(busy=0.6) as (fleet, exporter):
        document = settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])
        async with runtime(document) as one:
            port = one.http_port
            await run_gang(cluster)
            await until(lambda: shows(port, "/", "Busy</span>", "1 workload, 2 GPUs"))
            await until(lambda: shows(port, WORKLOAD, "fill-Busy", "RayCluster/first-raycluster"))
            fleet.set_activity(NAMESPACE_NAME, "*", 0.0)
            await until(lambda: shows(port, "/", f'data-key="workload {NAMESPACE_NAME}/{NAME}"', "Suspending"))
            # What it showed while it worked is on the page with the state that it is in now.
            now = "KEDA gets “inactive”: GPUsIdle"
            await until(lambda: shows(port, WORKLOAD, "Suspending", 'class="highest"', now))


async def test_a_replica_that_only_answers_keda_has_the_policies_and_the_fleet_as_well(cluster: SmallCluster) -> None:
    async with gpus(busy=0.6) as (_, exporter):
        document = settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])
        lease = document["kubernetes"]["lease"] | {"namespace": ""}
        document["kubernetes"] |= {"lease": lease}
        async with runtime({**document, "components": ["scaler"], "metrics": {"fleet": "Leader"}}) as one:
            await run_gang(cluster)
            await cluster.create(CLUSTER_IDLE_POLICY, policy("everybody", mode="Enforce", idleAfter="1h"))
            await cluster.create(IDLE_POLICY, policy("nights"))
            await until(lambda: shows(one.http_port, "/policies", "everybody", f"{NAMESPACE_NAME}/nights"))
            await until(lambda: shows(one.http_port, "/policies/everybody", "idleAfter", "1h"))
            await until(lambda: shows(one.http_port, "/", "GPUs are held by pods", "seen by this process"))


async def test_behind_a_proxy_a_user_sees_what_the_api_server_says(cluster: SmallCluster) -> None:
    rbac, group = "/apis/rbac.authorization.k8s.io/v1/namespaces/demo", {"apiGroup": "rbac.authorization.k8s.io"}
    rules = [{"apiGroups": ["keda.sh"], "resources": ["scaledobjects"], "verbs": ["list"]}]
    await cluster.kube.create(f"{rbac}/roles", {"metadata": {"name": "ada"}, "rules": rules})
    subjects = [{**group, "kind": "User", "name": "ada"}]
    binding = {"roleRef": {**group, "kind": "Role", "name": "ada"}, "subjects": subjects}
    await cluster.kube.create(f"{rbac}/rolebindings", {"metadata": {"name": "ada"}, **binding})
    page = {"userHeader": "X-Forwarded-User", "trustedProxies": ["127.0.0.1"]}
    async with (
        gpus(busy=0.6) as (_, exporter),
        runtime(settings_document(cluster.kubeconfig, exporter.node_urls["node-a"], page=page)) as one,
    ):
        await run_gang(cluster)

        async def seen(user: str, path: str = WORKLOAD) -> int:
            return (await fetch(one.http_port, path, **({"X-Forwarded-User": user} if user else {})))[0]

        async def ada_sees_it() -> bool:
            return await seen("ada") == 200

        await until(ada_sees_it)
        assert await seen("bob") == 404
        assert await seen("") == 403
        assert [await seen(user, "/metrics") for user in ("ada", "")] == [403, 403]


def policy(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.prometheus
async def test_prometheus_has_what_was_before_this_process(cluster: SmallCluster, tmp_path: Path) -> None:
    require_prometheus()
    async with gpus(busy=0.6) as (_, exporter):
        scrapes = [static_scrape("gpus", urlsplit(exporter.url).netloc)]
        with PrometheusServer(tmp_path / "prometheus", scrapes) as prometheus:
            document = settings_document(cluster.kubeconfig, "")
            del document["dcgm"]
            document["prometheus"] |= {"url": prometheus.url}
            async with runtime(document) as one:
                await run_gang(cluster)
                await until(lambda: shows(one.http_port, WORKLOAD, "samples in Prometheus.", 'class="highest"'))
                # Prometheus does not scrape this scaler.
                why = "seen by this process since it started; Prometheus has no metrics of this scaler"
                await until(lambda: shows(one.http_port, "/", why))
                await until(
                    lambda: shows(one.http_port, "/report", "Prometheus has no metrics of this scaler in this time")
                )


@pytest.mark.chromium
@pytest.mark.slow
async def test_the_demo_serves_it(chromium: str) -> None:
    """As whoever tries it out sees it, with what it says at its end."""
    program = [sys.executable, "-m", "scaler", "demo", "--serve", "--act", "second", "--json"]
    process = await asyncio.create_subprocess_exec(*program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        address = ""
        async for said in process.stderr:
            if b'"Serving"' in said:
                address = said.decode().partition('"page": "')[2].partition('"')[0]
                break
        assert address.startswith("http://127.0.0.1:")
        async with Browser.at(chromium) as browser, browser.page() as page:
            await page.open(address)
            text = await page.run("document.querySelector('main').textContent")
            assert "research/Job/notebook-b1" in text
            assert "research/job-big-gang" in text
            assert page.complaints == []
    finally:
        process.terminate()
        await process.wait()
