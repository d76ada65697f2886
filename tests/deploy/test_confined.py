"""The program under the chart's Roles for two namespaces, with a third one that comes later and a fourth one that it
does not watch: quiet GPUs are suspended where it may look, and it asks for nothing elsewhere.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from running_scaler import fetch, runtime, settings_document
from scaler_sandbox.job_manifests import cluster_queue, flavor, job, local_queue, namespace, scaling
from scaler_sandbox.keda import KedaTiming
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.packaged import crds
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig
from small_cluster import until

from deploy.helm_chart import NAMESPACE, objects
from scaler.doctor.cluster_reader import ClusterReader, reviewed_user
from scaler.doctor.diagnosis import diagnose
from scaler.doctor.facts import DoctorSettings
from scaler.doctor.findings import Topic, Unread
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_queues import ClusterQueue
from scaler.kube.objects.resources import JOB, SCALABLE_WORKLOAD, WORKLOAD
from scaler.kube.transport import KubeTransport

LISTED = ["team-a", "team-b", "late"]
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAMESPACE}"
SECONDS = 120.0
HURRIED = replace(
    SandboxConfig.fast({"node-a": 4, "node-b": 4}, collect=timedelta(seconds=0.2)),
    parts=frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS, Component.KEDA}),
    kubelet=KubeletTiming(start_delay=timedelta(seconds=0.05), termination=timedelta(seconds=0.2)),
    keda=KedaTiming(polling=timedelta(seconds=0.2), push_backoff=timedelta(seconds=0.2)),
    follows=(SCALABLE_WORKLOAD,),
)


def team(name: str) -> list[Json]:
    return [namespace(name), local_queue("gpus", name, "gpus")]


def roles(*namespaces: str) -> list[Json]:
    """The account and the roles in these namespaces, of a chart that lists more."""
    kinds = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    made = [each for each in objects({"namespaces": LISTED, "targets": []}) if each["kind"] in kinds]
    return [each for each in made if each["metadata"].get("namespace", "") in ("", *namespaces)]


def train(where: str, address: str) -> list[Json]:
    """A Job that Kueue admits, with what scales it."""
    scaled = scaling("train", where, address, {"idleAfter": "1s", "warmUp": "0s"}, cooldownPeriod=0)
    return [job("train", where, "gpus", gpus=1), *scaled]


@asynccontextmanager
async def confined_cluster(config: SandboxConfig = HURRIED) -> AsyncIterator[Sandbox]:
    """Three of the namespaces; of those that the chart lists one is not there yet."""
    async with Sandbox(config) as world:
        queue = cluster_queue("gpus", 8, flavor="gpus")
        await world.apply([*crds(), flavor("gpus"), queue, namespace(NAMESPACE)])
        for each in ("team-a", "team-b", "other"):
            await world.apply(team(each))
        await world.apply(roles(NAMESPACE, "team-a", "team-b"))
        yield world


async def settings(world: Sandbox, folder: Path) -> dict[str, Any]:
    kubeconfig = folder / "kubeconfig"
    world.write_kubeconfig(kubeconfig, token=await world.token_of(NAMESPACE, NAMESPACE))
    lease = {"namespace": NAMESPACE, "duration": "3s", "renewDeadline": "2s", "retryPeriod": "200ms"}
    confined = {"namespaces": LISTED, "lease": {"name": "idle-gpu-scaler", **lease}}
    return settings_document(kubeconfig, world.exporter_url, kubernetes=confined)


async def test_it_looks_after_the_namespaces_that_are_listed_and_asks_for_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with confined_cluster() as world, runtime(await settings(world, tmp_path)) as running:
        address = f"127.0.0.1:{running.grpc_port}"

        def is_suspended(where: str) -> bool:
            workload = world.workload_of(JOB, where, "train")
            return workload is not None and workload["spec"].get("active") is False

        def seen() -> set[tuple[str, str]]:
            return set(running.decision_cache.evaluation.entries) if running.decision_cache.evaluation else set()

        for each in ("team-a", "team-b", "other"):
            await world.apply(train(each, address))
        await world.wait_for(lambda: is_suspended("team-a"), "team-a's job to be suspended", within=SECONDS)
        await world.wait_for(lambda: is_suspended("team-b"), "team-b's job to be suspended", within=SECONDS)
        assert seen() == {("team-a", "train"), ("team-b", "train")}
        assert [each["spec"].get("active", True) for each in world.all(WORKLOAD, "other")] == [True]
        status, *_, body = await fetch(running.http_port, "/api/v1/queues")
        assert status == 503
        assert "only namespaces team-a, team-b, late are watched" in str(body)

        # The one that is listed and was not there joins without a restart.
        await world.apply([*team("late"), *roles("late")])
        await world.apply(train("late", address))
        await world.wait_for(lambda: is_suspended("late"), "the latecomer to be suspended")
        await until(lambda: ("late", "train") in seen(), seconds=SECONDS)
        done = world.api.permissions.done[ACCOUNT]
        assert {each.namespace for each in done} == {NAMESPACE, *LISTED}
    said = capsys.readouterr()
    # As a word: it may be in the number of a port as well.
    refused = [line for line in (said.out + said.err).splitlines() if re.search(r"\b403\b", line)]
    assert refused
    assert not [line for line in refused if "/namespaces/late/" not in line]


async def test_doctor_asks_in_each_namespace_and_names_the_one_that_is_not_there(tmp_path: Path) -> None:
    async with confined_cluster(replace(HURRIED, parts=frozenset())) as world:
        await world.apply([*train("team-a", "scaler:9090"), *train("other", "scaler:9090")])
        assert await diagnosed(world, tmp_path) == {
            ("ok", "Confined", ", ".join(LISTED)),
            ("fail", "NoSuchNamespace", "Namespace late"),
            *(("fail", "Denied", part) for part in ("the scaler", "the reconciler")),
            *(("warn", "Denied", part) for part in ("IdlePolicies", "Notebooks and InferenceServices")),
            *(
                ("ok", "Allowed", part) for part in ("the scaler", "the reconciler")
            ),  # of the Lease, and the record beside it
        }
        await world.apply([*team("late"), *roles("late")])
        assert await diagnosed(world, tmp_path) == {
            ("ok", "Confined", ", ".join(LISTED)),
            *(("ok", "Allowed", part) for part in ("the scaler", "the reconciler", "IdlePolicies")),
            ("ok", "Allowed", "Notebooks and InferenceServices"),
        }


async def diagnosed(world: Sandbox, folder: Path) -> set[tuple[str, str, str]]:
    """What an administrator's doctor says of the account's permissions. It looks at nothing outside."""
    world.write_kubeconfig(folder / "kubeconfig")
    wanted, now = DoctorSettings(namespaces=tuple(LISTED)), datetime.now(UTC)
    async with await KubeTransport.connect(folder / "kubeconfig") as kube:
        surveyor = ClusterReader(
            kube,
            GpuResources(patterns=("nvidia.com/gpu",)),
            namespaces=LISTED,
            lease_namespace=NAMESPACE,
            lease_name="idle-gpu-scaler",
        )
        facts = await surveyor.take(wanted, Unread("there is none"), reviewed_user(ACCOUNT), now)
    assert [each.metadata.key for each in facts.of(ScaledObject)] == [("team-a", "train")]
    assert not facts.of(ClusterQueue)
    found = [each for each in diagnose(facts, now) if each.topic is Topic.PERMISSIONS]
    assert not [each.what for each in found if each.severity == "fail" and "team-" in each.what]
    return {(str(each.severity), each.check, each.where) for each in found}
