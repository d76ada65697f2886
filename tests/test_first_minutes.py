"""What the README's ten minutes promise of their example: it is taken to 0, and comes back when it is asked for.

Typed as it stands there, in the embedded world and hurried up. What comes before it (image, chart, `doctor`) is left to
tests/test_new_user.py, which types all of it, with processes and a Prometheus, and takes its time.
"""

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from followed_page import ROOT, commands
from running_scaler import runtime, settings_document
from scaler_sandbox.kinds import Json
from scaler_sandbox.manifests import objects_in
from scaler_sandbox.sandbox import Sandbox, SandboxConfig
from small_cluster import until

from scaler.app.packaged import crds
from scaler.app.process import Runtime
from scaler.kube.objects.resources import DEPLOYMENT, SCALED_OBJECT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## Ten minutes on a cluster") : README.index("## Documentation")]
BEFORE = (["docker", "build"], ["docker", "push"], ["helm", "install"], ["kubectl", "-n", "idle-gpu-scaler"])
"""How commands begin that are left out."""
HURRIED = {"idleAfter": "1s", "warmUp": "0s"}


def typed() -> list[list[str]]:
    found = commands(ROOT / "README.md", "## Ten minutes on a cluster", "\n## ")
    return [words for words in found if not any(words[: len(begin)] == begin for begin in BEFORE)]


class Terminal:
    """Where it is typed. A command that it does not know is an error."""

    def __init__(self, world: Sandbox, scaler: Runtime) -> None:
        self._world, self._scaler = world, scaler
        self.seen: list[int] = []
        """Replicas of the Deployment, as they were watched."""

    async def type(self, words: list[str]) -> None:
        match words:
            case ["kubectl", "apply", "-f", folder]:
                await self._world.apply(self._hurried(ROOT / folder))
            case ["uv", "run", "idle-gpu-scaler", "explain", name]:
                await until(lambda: self._is_explained(name), seconds=40)
            case ["kubectl", "-n", namespace, "get", "deployment", name, "--watch"]:
                await until(lambda: self._replicas(namespace, name) == 0, seconds=40)
                self.seen.append(0)
            case ["kubectl", "-n", namespace, "annotate", "scaledobject", name, wish]:
                key, _, value = wish.partition("=")
                await self._world.patch(SCALED_OBJECT, namespace, name, {"metadata": {"annotations": {key: value}}})
                await until(lambda: self._replicas(namespace, name) == 1, seconds=40)
                self.seen.append(1)
            case ["kubectl", "delete", "namespace", name]:
                assert {"kind": "Namespace", "name": name} in [
                    {"kind": body["kind"], "name": body["metadata"]["name"]} for body in example()
                ]
            case _:
                raise AssertionError(f"nobody has told this test what this does: {shlex.join(words)}")

    def _hurried(self, folder: Path) -> list[Json]:
        bodies = [body for path in sorted(folder.glob("*.yaml")) for body in objects_in(path.read_text("utf-8"))]
        for body in bodies:
            if body["kind"] == "ScaledObject":
                body["spec"] |= {"pollingInterval": 1, "cooldownPeriod": 1}
                address = {"scalerAddress": f"127.0.0.1:{self._scaler.grpc_port}"}
                body["spec"]["triggers"][0]["metadata"] |= HURRIED | address
        return bodies

    def _replicas(self, namespace: str, name: str) -> int:
        found = self._world.find(DEPLOYMENT, namespace, name)
        return int(found["spec"]["replicas"]) if found else -1

    def _is_explained(self, name: str) -> bool:
        evaluation = self._scaler.decision_cache.evaluation
        return evaluation is not None and tuple(name.split("/")) in evaluation.entries


def example() -> list[Json]:
    return list(objects_in((ROOT / "deploy/examples/first/holder.yaml").read_text(encoding="utf-8")))


@asynccontextmanager
async def a_terminal(folder: Path) -> AsyncIterator[Terminal]:
    config = SandboxConfig.fast({"node-a": 1}, collect=timedelta(milliseconds=200))
    async with Sandbox(replace(config, follows=(DEPLOYMENT,))) as world:
        await world.apply(crds())
        world.write_kubeconfig(folder / "kubeconfig")
        async with runtime(settings_document(folder / "kubeconfig", world.exporter_url)) as scaler:
            yield Terminal(world, scaler)


async def test_the_example_is_suspended_and_comes_back(tmp_path: Path) -> None:
    async with a_terminal(tmp_path) as terminal:
        for words in typed():
            await terminal.type(words)
        assert terminal.seen == [0, 1]


def test_the_times_that_are_told_are_those_of_the_example() -> None:
    [scaled] = [body for body in example() if body["kind"] == "ScaledObject"]
    metadata = scaled["spec"]["triggers"][0]["metadata"]
    assert (metadata["warmUp"], metadata["idleAfter"]) == ("1m", "3m")
    assert "1 minute of `warmUp` and 3 minutes of `idleAfter`" in " ".join(SECTION.split())
