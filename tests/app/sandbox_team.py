"""A team with a queue of GPUs in a hurried embedded world, and the whole program that looks after it.

Everybody's GPUs are quiet from the beginning. Idle is who was quiet for a second.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from running_scaler import runtime, settings_document
from scaler_sandbox.conditions import has
from scaler_sandbox.job_manifests import (
    admission_check,
    cluster_queue,
    flavor,
    job,
    local_queue,
    namespace,
    reclaim_policy,
    scaling,
)
from scaler_sandbox.keda import KedaTiming
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import KubeletTiming
from scaler_sandbox.packaged import crds
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig
from small_cluster import until

from scaler.app.process import Runtime
from scaler.kube.objects.resources import EVENT, JOB, SCALABLE_WORKLOAD, WORKLOAD

TEAM, CHECK = "team", "gate"
TRIGGER = {"reclaim": "OnPressure", "idleAfter": "10m", "idleAfterUnderPressure": "3s", "warmUp": "0s"}
SECONDS = 600.0
"""Everything that is waited for takes one to four on an idle machine."""
HURRIED = replace(
    SandboxConfig.fast({"node-a": 4, "node-b": 4, "node-c": 4}, collect=timedelta(seconds=0.2)),
    parts=frozenset({Component.KUEUE, Component.JOBS, Component.KUBELETS, Component.KEDA}),
    kubelet=KubeletTiming(start_delay=timedelta(seconds=0.05), termination=timedelta(seconds=0.3)),
    keda=KedaTiming(polling=timedelta(seconds=0.2), push_backoff=timedelta(seconds=0.2)),
    follows=(SCALABLE_WORKLOAD,),
)


@dataclass
class Team:
    """A namespace with one queue, and what is to be seen of it."""

    world: Sandbox
    document: Mapping[str, Any]
    port: int = 0
    """Where KEDA finds the scaler, whichever process that is."""

    @asynccontextmanager
    async def scaler(self) -> AsyncIterator[Runtime]:
        grpc = {**self.document["grpc"], "address": f"127.0.0.1:{self.port}"}
        async with runtime({**self.document, "grpc": grpc}) as started:
            self.port = started.grpc_port
            yield started

    # ---- what its members do

    async def has_queue(self, gpus: int, *, gate: Json | None = None) -> None:
        """One ClusterQueue. With `gate`, the spec of a ReclaimPolicy, our AdmissionCheck holds gangs back there."""
        policy = [] if gate is None else [reclaim_policy("policy", gate), admission_check(CHECK, "policy")]
        checks = [] if gate is None else [CHECK]
        queues = [cluster_queue("cq", gpus, flavor="gpus", checks=checks), local_queue("lq", TEAM, "cq")]
        await self.world.apply([*policy, namespace(TEAM), flavor("gpus"), *queues])

    async def submits(self, name: str, *, gpus: int, pods: int = 1) -> None:
        """A Job whose pods need so many GPUs each."""
        await self.world.apply(job(name, TEAM, "lq", gpus=gpus, pods=pods))
        await self.sees(lambda: self.workload(name), "its Workload")

    async def runs(self, *names: str, cooldowns: Mapping[str, int] | None = None) -> None:
        """Jobs with 2 GPUs each that are admitted, run, and may be taken by plans."""
        address = f"127.0.0.1:{self.port}"
        for name in names:
            await self.submits(name, gpus=2)
            cooldown = (cooldowns or {}).get(name, 0)
            await self.world.apply(scaling(name, TEAM, address, TRIGGER, cooldownPeriod=cooldown))
        await self.sees(lambda: all(self.status(name).get("phase") == "Running" for name in names), "running")

    def works(self, name: str) -> None:
        self.world.fleet.set_activity(TEAM, f"{name}-*", 0.9)

    # ---- what is seen

    async def sees(self, condition: Any, what: str) -> None:
        await self.world.wait_for(condition, what, within=SECONDS)

    def status(self, name: str) -> Json:
        """Of the ScalableWorkload."""
        return (self.world.find(SCALABLE_WORKLOAD, TEAM, name) or {}).get("status") or {}

    def replicas(self, *names: str) -> list[int]:
        found = [self.world.find(SCALABLE_WORKLOAD, TEAM, name) for name in names]
        return [each["spec"]["replicas"] for each in found if each]

    def has_grants(self, *names: str) -> bool:
        return all("grant" in self.status(name) for name in names)

    def has_no_grants(self, *names: str) -> bool:
        return not any("grant" in self.status(name) for name in names)

    def workload(self, name: str) -> Json:
        return self.world.workload_of(JOB, TEAM, name) or {}

    def is_admitted(self, name: str) -> bool:
        return has(self.workload(name), "Admitted")

    def are_active(self, *names: str) -> list[bool]:
        return [self.workload(name)["spec"]["active"] for name in names]

    async def told(self, name: str, reason: str) -> list[str]:
        """The messages of such Events on the ScalableWorkload or on the Job's Workload."""
        about = {(SCALABLE_WORKLOAD.kind, name), (WORKLOAD.kind, self.workload(name)["metadata"]["name"])}
        return [
            each["message"]
            for each in await self.world.read_all(EVENT, TEAM)
            if each["reason"] == reason and (each["involvedObject"]["kind"], each["involvedObject"]["name"]) in about
        ]

    async def hears(self, name: str, reason: str) -> str:
        """The message of the first such Event."""
        await until(lambda: self.told(name, reason), seconds=SECONDS)
        return (await self.told(name, reason))[0]


@asynccontextmanager
async def team(
    folder: Path,
    gpus: int,
    *,
    gate: Json | None = None,
    config: SandboxConfig = HURRIED,
    **reclaim: Any,
) -> AsyncIterator[Team]:
    """A team with so many GPUs, and the scaler that looks after it is still to be started."""
    world = Sandbox(config)
    world.api.install_crds(crds())
    async with world:
        world.write_kubeconfig(folder / "kubeconfig")
        document = settings_document(
            folder / "kubeconfig", world.exporter_url, reclaim={"replanBackoff": "1s", **reclaim}
        )
        made = Team(world, document)
        await made.has_queue(gpus, gate=gate)
        yield made
