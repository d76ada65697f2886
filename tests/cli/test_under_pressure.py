"""The whole program where a gang waits: plans, grants, KEDA, Kueue and the ledger, in a hurried embedded world.

Everybody's GPUs are quiet from the beginning. Idle is who was quiet for a second.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from running_scaler import metric, runtime, settings_document
from small_cluster import until

from scaler.cli.packaged import crds
from scaler.cli.runtime import Runtime
from scaler.embedded.conditions import has
from scaler.embedded.config import Part, WorldConfig
from scaler.embedded.keda import KedaTiming
from scaler.embedded.kinds import EVENT, JOB, WORKLOAD, Json
from scaler.embedded.kubelet import KubeletTiming
from scaler.embedded.world import World
from scaler.kube.resources import SCALABLE_WORKLOAD, SCALED_OBJECT

TEAM = "team"
GPU = "nvidia.com/gpu"
SECONDS = 10.0
"""Everything that is waited for takes one or two on an idle machine."""
HURRIED = replace(
    WorldConfig.fast({"node-a": 4, "node-b": 4, "node-c": 4}, collect=timedelta(seconds=0.2)),
    parts=frozenset({Part.KUEUE, Part.JOBS, Part.KUBELETS, Part.KEDA}),
    kubelet=KubeletTiming(start_delay=timedelta(seconds=0.05), termination=timedelta(seconds=0.3)),
    keda=KedaTiming(polling=timedelta(seconds=0.2), push_backoff=timedelta(seconds=0.2)),
    follows=(SCALABLE_WORKLOAD,),
)


@dataclass
class Team:
    """A namespace with one queue, and what is to be seen of it."""

    world: World
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

    async def has_queue(self, gpus: int, strategy: str = "StrictFIFO") -> None:
        kueue = "kueue.x-k8s.io/v1beta2"
        flavor = {"name": "gpus", "resources": [{"name": GPU, "nominalQuota": str(gpus)}]}
        spec = {"namespaceSelector": {}, "queueingStrategy": strategy}
        spec |= {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}]}
        await self.world.apply(
            [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}},
                {"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": "gpus"}, "spec": {}},
                {"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": spec},
                {
                    "apiVersion": kueue,
                    "kind": "LocalQueue",
                    "metadata": {"name": "lq", "namespace": TEAM},
                    "spec": {"clusterQueue": "cq"},
                },
            ]
        )

    async def submits(self, name: str, *, gpus: int, pods: int = 1) -> None:
        """A Job whose pods need so many GPUs each."""
        amounts = {GPU: str(gpus)}
        container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        spec = {"parallelism": pods, "completions": pods, "suspend": True, "template": template}
        labels = {"kueue.x-k8s.io/queue-name": "lq"}
        metadata = {"name": name, "namespace": TEAM, "labels": labels}
        await self.world.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
        await self.sees(lambda: self.workload(name), "its Workload")

    async def runs(self, *names: str, cooldowns: Mapping[str, int] | None = None) -> None:
        """Jobs with 2 GPUs each that are admitted, run, and may be taken by plans."""
        for name in names:
            metadata = {"name": name, "namespace": TEAM}
            job = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
            target = {"apiVersion": SCALABLE_WORKLOAD.api_version, "kind": SCALABLE_WORKLOAD.kind}
            trigger = {"scalerAddress": f"127.0.0.1:{self.port}", "reclaim": "OnPressure", "warmUp": "0s"}
            trigger |= {"idleAfter": "1h", "idleAfterUnderPressure": "1s"}
            spec = {
                "scaleTargetRef": {**target, "name": name},
                "minReplicaCount": 0,
                "maxReplicaCount": 1,
                "cooldownPeriod": (cooldowns or {}).get(name, 0),
                "triggers": [{"type": "external-push", "metadata": trigger}],
            }
            await self.submits(name, gpus=2)
            await self.world.apply(
                [
                    {**target, "metadata": metadata, "spec": {"replicas": 1, "jobRef": job}},
                    {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata, "spec": spec},
                ]
            )
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
async def team(folder: Path, gpus: int, *, strategy: str = "StrictFIFO", **reclaim: Any) -> AsyncIterator[Team]:
    """A team with so many GPUs, and the scaler that looks after it is still to be started."""
    world = World(HURRIED)
    world.api.install_crds(crds())
    async with world:
        world.write_kubeconfig(folder / "kubeconfig")
        document = settings_document(
            folder / "kubeconfig", world.exporter_url, reclaim={"replanBackoff": "1s", **reclaim}
        )
        made = Team(world, document)
        await made.has_queue(gpus, strategy)
        yield made


async def test_four_free_and_four_idle_serve_a_gang_of_eight(tmp_path: Path) -> None:
    async with team(tmp_path, 8) as ours, ours.scaler() as scaler:
        await ours.runs("a", "b")
        await ours.sees(lambda: ours.status("a").get("reason") == "NobodyWaits", "an idle workload that nobody needs")
        await asyncio.sleep(0.5)
        assert ours.replicas("a", "b") == [1, 1]
        assert ours.has_no_grants("a", "b")

        await ours.submits("gang", gpus=4, pods=2)
        await ours.sees(lambda: ours.is_admitted("gang"), "the gang's admission")
        await ours.sees(lambda: ours.status("a") and ours.has_no_grants("a", "b"), "the end of the plan")
        assert ours.replicas("a", "b") == [0, 0]
        assert ours.are_active("a", "b") == [False, False]
        for name in ("a", "b"):
            entry = ours.status(name)["reallocation"]
            assert (entry["stage"], entry["gpus"], entry["times"]) == ("Admitted", 2, 1)
            assert entry["workload"] == f"{TEAM}/{ours.workload('gang')['metadata']['name']}"
            assert entry["reclaimableAt"] <= entry["releasingAt"] <= entry["availableAt"] <= entry["admittedAt"]
        assert f"4 GPUs of {TEAM}/a, {TEAM}/b" in await ours.hears("gang", "ReclaimAdmitted")
        assert f"{TEAM}/a (2 GPUs), {TEAM}/b (2 GPUs)" in await ours.hears("gang", "ReclaimPlanned")
        assert await ours.hears("a", "ReclaimGranted")
        assert await ours.hears("a", "Reclaimed")
        port = scaler.http_port
        assert await metric(port, "idle_gpu_scaler_reallocated_gpus_total", outcome="Admitted") == 4
        assert await metric(port, "idle_gpu_scaler_reallocated_gpus_total", outcome="Cancelled") == 0


async def test_a_victim_that_works_half_way_ends_the_plan_at_no_cost(tmp_path: Path) -> None:
    async with team(tmp_path, 8) as ours, ours.scaler() as scaler:
        await ours.runs("a", "b", cooldowns={"b": 300})
        await until(lambda: scaler.pressure is not None)
        assert scaler.pressure is not None
        scaler.pressure.settling.after = timedelta(seconds=1)
        await ours.submits("gang", gpus=4, pods=2)
        await ours.sees(lambda: ours.replicas("a") == [0] and ours.status("a")["phase"] == "HeldForPlan", "a at 0")
        assert ours.replicas("b") == [1]

        ours.works("b")
        await ours.sees(lambda: ours.replicas("a", "b") == [1, 1] and ours.has_no_grants("a", "b"), "both as before")
        assert ours.are_active("a", "b") == [True, True]
        assert ours.status("a")["reallocation"]["stage"] == "Cancelled"
        assert [ours.is_admitted(name) for name in ("a", "b", "gang")] == [True, True, False]
        assert f"VictimBusy ({TEAM}/b)" in await ours.hears("gang", "ReclaimCancelled")
        assert not await ours.told("a", "EvictedDueToDeactivated")


async def test_who_takes_a_piece_of_what_was_freed_is_seen_and_the_plan_is_made_anew(tmp_path: Path) -> None:
    async with team(tmp_path, 10, strategy="BestEffortFIFO") as ours, ours.scaler():
        await ours.runs("a", "b", "c")
        await ours.submits("gang", gpus=1, pods=8)
        await ours.sees(lambda: ours.are_active("a", "b", "c").count(False) == 2, "two victims deactivated")
        await ours.submits("thief", gpus=1)
        await ours.sees(lambda: ours.is_admitted("thief"), "the thief's admission")
        await ours.sees(lambda: ours.is_admitted("gang"), "the gang's admission")
        await ours.sees(lambda: ours.has_no_grants("a", "b", "c"), "the end of the plan")
        assert ours.are_active("a", "b", "c") == [False, False, False]
        assert {ours.status(name)["reallocation"]["stage"] for name in ("a", "b", "c")} == {"Admitted"}
        thief = ours.workload("thief")["metadata"]["name"]
        assert f"Workload {TEAM}/{thief} got quota" in await ours.hears("gang", "FreedQuotaTaken")
        assert sum([bool(await ours.told(name, "FreedQuotaTaken")) for name in ("a", "b", "c")]) == 2


async def test_another_process_goes_on_with_the_plan(tmp_path: Path) -> None:
    async with team(tmp_path, 8) as ours:
        async with ours.scaler():
            await ours.runs("a", "b", cooldowns={"b": 300})
            await ours.submits("gang", gpus=4, pods=2)
            await ours.sees(lambda: ours.replicas("a", "b") == [0, 1] and ours.has_grants("a", "b"), "a at 0")
            plan = ours.status("a")["grant"]["plan"]
        assert ours.are_active("a", "b") == [True, True]
        await ours.world.patch(SCALED_OBJECT, TEAM, "b", {"spec": {"cooldownPeriod": 0}})
        async with ours.scaler():
            await ours.sees(lambda: ours.is_admitted("gang"), "the gang's admission")
            await ours.sees(lambda: ours.has_no_grants("a", "b"), "the end of the plan")
        assert ours.are_active("a", "b") == [False, False]
        assert {ours.status(name)["reallocation"]["plan"] for name in ("a", "b")} == {plan}


async def test_a_budget_without_room_lets_nobody_go_and_says_so(tmp_path: Path) -> None:
    budgets: Sequence[Mapping[str, Any]] = [{"name": "few", "atOnce": {"count": 1}}]
    async with team(tmp_path, 8, budgets=budgets) as ours, ours.scaler() as scaler:
        await ours.runs("a", "b")
        await ours.submits("gang", gpus=4, pods=2)
        assert "budget few" in await ours.hears("gang", "BudgetExhausted")
        await asyncio.sleep(0.5)
        assert ours.replicas("a", "b") == [1, 1]
        assert ours.has_no_grants("a", "b")
        assert await metric(scaler.http_port, "idle_gpu_scaler_pending_gangs", reason="BudgetExhausted") == 1
