"""What a real Kueue and KEDA did, recorded as watch events, for tests that replay it where the recordings are at hand.

They lie in `recordings/` of the folder that SCALER_SHARED_DATA names, by default `../shared/data` from the project's
root. Where they are not, the tests over them are shown as skipped.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from builders import GPUS

from scaler.idleness.pods import GpuPod
from scaler.kube.objects import core
from scaler.kube.objects.core import decode
from scaler.kube.objects.gpu_pods import gpu_pod
from scaler.kube.objects.kueue_workloads import Workload
from scaler.targets import target_state
from scaler.targets.workloads import observe

_ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SCALER_SHARED_DATA") or _ROOT / ".." / "shared" / "data")
FOLDER, CRDS, ORACLE = SHARED / "recordings", SHARED / "crds", SHARED / "oracle"

_WORKLOAD_OF_POD = "kueue.x-k8s.io/workload"


def needs_data(path: Path) -> pytest.MarkDecorator:
    """Marks tests that read this file or folder of the shared data: without it they are skipped."""
    return pytest.mark.skipif(not path.exists(), reason=f"no {path.name}: set SCALER_SHARED_DATA")


def real_crd(name: str) -> dict[str, Any]:
    """The definition of that name (`workloads.kueue.x-k8s.io`) as it is shipped."""
    plural, _, group = name.partition(".")
    (path,) = CRDS.glob(f"*{group.partition('.')[2]}_{plural}.yaml")
    found: dict[str, Any] = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    return found


def recorded(*patterns: str) -> list[Any]:
    """The recordings' files as test parameters; one that is skipped where there are none."""
    files = sorted(path for pattern in patterns for path in FOLDER.glob(pattern))
    if not files:
        return [pytest.param(None, id="recordings", marks=needs_data(FOLDER))]
    return [pytest.param(path, id=path.stem) for path in files]


def one(name: str) -> pytest.MarkDecorator:
    """Parametrizes a test over one recording."""
    return pytest.mark.parametrize("path", recorded(f"{name}.json"))


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A Workload as it stood at one moment, with its pods."""

    at_s: float
    json: dict[str, Any]
    workload: target_state.ObservedWorkload
    pods: list[GpuPod] = field(default_factory=list)

    @property
    def is_reserved(self) -> bool:
        """As the JSON says, not as the code under test does."""
        return self.has("QuotaReserved")

    def has(self, condition: str) -> bool:
        conditions = self.json.get("status", {}).get("conditions", [])
        return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def moments(path: Path) -> Iterator[Moment]:
    """Every state of every Workload, whenever it or one of its pods changed, in the order of etcd."""
    events = msgspec.json.decode(path.read_bytes())["events"]
    relevant = [event for event in events if event["object"]["kind"] in {"Workload", "Pod"}]
    workloads: dict[tuple[str, str], dict[str, Any]] = {}
    pods: dict[tuple[str, str], dict[tuple[str, str], GpuPod]] = {}
    for event in sorted(relevant, key=lambda event: int(event["object"]["metadata"]["resourceVersion"])):
        document = event["object"]
        key = _take_pod(event, pods) if document["kind"] == "Pod" else _take_workload(event, workloads)
        if key in workloads:
            workload = observe(decode(Workload, msgspec.json.encode(workloads[key])), GPUS)
            members = list(pods.get(key, {}).values())
            yield Moment(at_s=event["t_offset_s"], json=workloads[key], workload=workload, pods=members)


def _take_workload(event: dict[str, Any], into: dict[tuple[str, str], dict[str, Any]]) -> tuple[str, str]:
    key = event["object"]["metadata"]["namespace"], event["object"]["metadata"]["name"]
    if event["type"] == "DELETED":
        into.pop(key, None)
    else:
        into[key] = event["object"]
    return key


def _take_pod(event: dict[str, Any], into: dict[tuple[str, str], dict[tuple[str, str], GpuPod]]) -> tuple[str, str]:
    metadata = event["object"]["metadata"]
    owner = metadata["namespace"], metadata.get("annotations", {}).get(_WORKLOAD_OF_POD, "")
    members, key = into.setdefault(owner, {}), (metadata["namespace"], metadata["name"])
    if event["type"] == "DELETED":
        members.pop(key, None)
    else:
        members[key] = gpu_pod(decode(core.Pod, msgspec.json.encode(event["object"])), GPUS)
    return owner
