"""What `deploy/` ships applies cleanly, against our own definitions and, where they are at hand, the real ones."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaler.cli.packaged import crds, packaged
from scaler.embedded import crds as world_crds
from scaler.embedded.kubeapi import KubeApi
from scaler.embedded.manifests import Applier
from scaler.kube.transport import KubeTransport

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("SCALER_SHARED_DATA", ROOT.parent / "shared" / "data"))
EXAMPLES = sorted(path.relative_to(packaged("examples")) for path in packaged("examples").rglob("*.yaml"))


def real_crds() -> list[dict[str, Any]]:
    folder = SHARED / "crds"
    if not folder.is_dir():
        pytest.skip(f"the real CustomResourceDefinitions are not at {folder} (set SCALER_SHARED_DATA)")
    names = ("kueue.x-k8s.io_", "keda.sh_", "ray.io_")
    paths = [path for path in sorted(folder.glob("*.yaml")) if path.name.startswith(names)]
    return [yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in paths]


@pytest.fixture(params=["own", "real"])
async def applier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Applier]:
    definitions = world_crds.load() if request.param == "own" else real_crds()
    api = KubeApi()
    await api.start()
    api.write_kubeconfig(tmp_path / "kubeconfig")
    try:
        async with await KubeTransport.connect(tmp_path / "kubeconfig") as transport:
            applier = Applier(transport)
            await applier.apply([*definitions, *crds()])
            yield applier
    finally:
        await api.stop()


async def test_every_example_applies_with_schema_validation(applier: Applier) -> None:
    await applier.apply((packaged("examples") / "queue/queue.yaml").read_text(encoding="utf-8"))
    for example in EXAMPLES:
        applied = await applier.apply((packaged("examples") / example).read_text(encoding="utf-8"))
        assert applied, example


def test_every_example_scales_something_that_an_example_defines() -> None:
    objects = [
        body
        for example in EXAMPLES
        for body in yaml.safe_load_all((packaged("examples") / example).read_text(encoding="utf-8"))
    ]
    defined = {(body["apiVersion"], body["kind"], body["metadata"]["name"]) for body in objects}
    scaled = [body for body in objects if body["kind"] == "ScaledObject"]
    assert len(scaled) == 3
    for body in scaled:
        target = body["spec"]["scaleTargetRef"]
        assert (target["apiVersion"], target["kind"], target["name"]) in defined
        assert body["spec"]["maxReplicaCount"] == 1
        assert "fallback" not in body["spec"]
    for body in objects:
        if body["kind"] == "ScalableWorkload":
            job = body["spec"]["jobRef"]
            assert (job["apiVersion"], job["kind"], job["name"]) in defined
