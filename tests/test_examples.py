"""What `deploy/` ships applies cleanly, against our own definitions and, where they are at hand, the real ones; and the
pages of the examples speak of the objects that are there."""

import re
import shlex
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from recordings import CRDS, needs_data
from scaler_sandbox import crds as world_crds
from scaler_sandbox.manifests import Applier, objects_in
from scaler_sandbox.packaged import crds, packaged
from small_cluster import embedded_api

from scaler.doctor.diagnosis import diagnose
from scaler.doctor.facts import TYPES_READ, DoctorInputs, Listing
from scaler.doctor.findings import Severity, Topic
from scaler.kube.objects.keda import Service
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import Resource

ROOT = Path(__file__).parent.parent
FOLDER = packaged("examples")
EXAMPLES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.yaml"))
PAGES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*/README.md"))
FLOWS = {
    "gke-queued-provisioning",
    "multikueue-ocm",
    "one-gpu-two-teams",
    "openshift-autoscaling",
    "teams-in-a-cohort",
    "two-flavors-with-fallback",
}

ON_WORKERS = {Path("multikueue-ocm", name) for name in ("worker.yaml", "worker-access.yaml", "notebook.yaml")}
"""What is applied to another cluster than the other files of its example."""
CLUSTERS = {"workers": [*sorted(ON_WORKERS)], "all others": [each for each in EXAMPLES if each not in ON_WORKERS]}

Json = dict[str, Any]


def objects_of(*examples: Path) -> list[Json]:
    return [body for example in examples for body in objects_in((FOLDER / example).read_text(encoding="utf-8"))]


def real_crds() -> list[Json]:
    names = ("kueue.x-k8s.io_", "keda.sh_", "ray.io_", "kubeflow.org_", "clusters.open-cluster-management.io_")
    paths = [path for path in sorted(CRDS.glob("*.yaml")) if path.name.startswith(names)]
    return [yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in paths]


def definitions(which: str) -> list[Json]:
    """The chosen ones, and those that only the examples need."""
    chosen = world_crds.load() if which == "own" else real_crds()
    names = {each["metadata"]["name"] for each in chosen}
    others = yaml.load((Path(__file__).parent / "example_crds.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)[
        "items"
    ]
    return [*chosen, *(each for each in others if each["metadata"]["name"] not in names), *crds()]


@pytest.fixture(params=["own", pytest.param("real", marks=[pytest.mark.slow, needs_data(CRDS)])])
async def applier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Applier]:
    async with embedded_api(tmp_path) as (_, transport):
        applier = Applier(transport)
        await applier.apply(definitions(request.param))
        yield applier


# ------------------------------------------------------------------------------------------------------------ manifests


@pytest.mark.parametrize("cluster", CLUSTERS)
async def test_every_example_applies_with_schema_validation_and_no_field_is_dropped(
    applier: Applier, cluster: str
) -> None:
    namespaces = {body["metadata"]["namespace"] for body in objects_of(*EXAMPLES) if "namespace" in body["metadata"]}
    await applier.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in namespaces])
    for example in CLUSTERS[cluster]:
        for body in objects_of(example):
            [applied] = await applier.apply(body)
            assert not [*dropped(body, applied)], f"{example}: {body['kind']} {body['metadata']['name']}"


def dropped(written: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Where there is something else than was written, or nothing; what was added to it is no matter."""
    if isinstance(written, dict) and isinstance(stored, dict):
        for key, value in written.items():
            yield from dropped(value, stored.get(key), f"{path}.{key}")
    elif isinstance(written, list) and isinstance(stored, list) and len(written) == len(stored):
        for place, (one, other) in enumerate(zip(written, stored, strict=True)):
            yield from dropped(one, other, f"{path}[{place}]")
    elif written != stored:
        yield f"{path}: {written!r} became {stored!r}"


def test_every_example_scales_something_that_an_example_defines() -> None:
    objects = objects_of(*EXAMPLES)
    defined = {(body["apiVersion"], body["kind"], *key_of(body)) for body in objects}
    scaled = [body for body in objects if body["kind"] == "ScaledObject"]
    assert len(scaled) > 3
    for body in scaled:
        target, namespace = body["spec"]["scaleTargetRef"], body["metadata"]["namespace"]
        assert (target["apiVersion"], target["kind"], namespace, target["name"]) in defined
        assert body["spec"]["maxReplicaCount"] == 1
        assert "fallback" not in body["spec"]
    for body in objects:
        if body["kind"] == "ScalableWorkload":
            job = body["spec"]["jobRef"]
            assert (job["apiVersion"], job["kind"], body["metadata"]["namespace"], job["name"]) in defined


def key_of(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def test_every_name_that_an_example_refers_to_is_defined_beside_it() -> None:
    for flow in FLOWS:
        objects = objects_of(*(each for each in EXAMPLES if each.parts[0] == flow))
        defined = {(body["kind"], key_of(body)) for body in objects}
        missing = [each for body in objects for each in references(body) if each not in defined]
        assert not missing, flow


def references(body: Json) -> Iterator[tuple[str, tuple[str, str]]]:
    """The objects that this one names, by kind."""
    spec, namespace = body.get("spec") or {}, body["metadata"].get("namespace", "")
    labels = labels_of(body)
    if namespace and body["kind"] != "MachineAutoscaler":
        yield "Namespace", ("", namespace)
    if "kueue.x-k8s.io/queue-name" in labels:
        yield "LocalQueue", (namespace, labels["kueue.x-k8s.io/queue-name"])
    if "kueue.x-k8s.io/priority-class" in labels:
        yield "WorkloadPriorityClass", ("", labels["kueue.x-k8s.io/priority-class"])
    if body["kind"] == "LocalQueue":
        yield "ClusterQueue", ("", spec["clusterQueue"])
    if "parameters" in spec:
        yield spec["parameters"]["kind"], ("", spec["parameters"]["name"])
    for rule in spec.get("admissionChecksStrategy", {}).get("admissionChecks", []):
        yield "AdmissionCheck", ("", rule["name"])
        yield from (("ResourceFlavor", ("", flavor)) for flavor in rule.get("onFlavors", []))
    for group in spec.get("resourceGroups", []):
        yield from (("ResourceFlavor", ("", flavor["name"])) for flavor in group["flavors"])


def test_a_doctor_finds_nothing_wrong_with_any_example() -> None:
    for flow, cluster in [(flow, cluster) for flow in FLOWS for cluster in CLUSTERS.values()]:
        files = [each for each in cluster if each.parts[0] == flow]
        if not files:
            continue
        findings = diagnose(as_they_stand_in_a_cluster(*files), datetime(2026, 11, 20, tzinfo=UTC))
        about_objects = [each for each in findings if each.topic in (Topic.CHECKS, Topic.QUEUES, Topic.SCALED_OBJECTS)]
        complaints = [f"{each.where}: {each.check}" for each in about_objects if each.severity is not Severity.OK]
        assert [each for each in complaints if each != ": None"] == [], flow
        assert about_objects, flow


def as_they_stand_in_a_cluster(*files: Path) -> DoctorInputs:
    """The flow's objects with what controllers add: Workloads of its jobs, checks that are Active, the Service.

    The settings are the default ones but for what the page asks for.
    """
    found = objects_of(*files)
    active = {"conditions": [{"type": "Active", "status": "True"}]}

    more: dict[type, list[Json]] = {
        Workload: [workload_of(each) for each in found if "kueue.x-k8s.io/queue-name" in labels_of(each)],
        Service: [
            {
                "metadata": {"namespace": "idle-gpu-scaler", "name": "idle-gpu-scaler"},
                "spec": {"clusterIP": "None", "ports": [{"port": 9090}]},
            }
        ],
    }

    def of(kind: type[Any], resource: Resource) -> Listing[Any]:
        named = [each for each in found if each["kind"] == resource.kind]
        status = {"status": active} if kind is AdmissionCheck else {}
        return Listing(items=[msgspec.convert(each | status, kind) for each in (*named, *more.get(kind, ()))])

    return DoctorInputs(
        version="v1.36.0",
        served={"autoscaling.x-k8s.io": {"v1": {"ProvisioningRequest"}}},
        listings={kind: of(kind, resource) for kind, (resource, _) in TYPES_READ.items()},
    )


def labels_of(body: Json) -> Json:
    return body["metadata"].get("labels") or {}


def workload_of(job: Json) -> Json:
    """As much of the Workload that Kueue makes of the job as tells where it queues."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": job["metadata"]["name"], "controller": True}
    metadata = {"namespace": job["metadata"]["namespace"], "name": "workload", "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"queueName": labels_of(job)["kueue.x-k8s.io/queue-name"]}}


# ---------------------------------------------------------------------------------------------------------------- pages

ALIASES = {
    "swl": "ScalableWorkload", "so": "ScaledObject", "scaledobject": "ScaledObject", "job": "Job", "rayjob": "RayJob",
    "raycluster": "RayCluster", "clusterqueue": "ClusterQueue", "localqueue": "LocalQueue",
    "admissioncheck": "AdmissionCheck", "reclaimpolicy": "ReclaimPolicy",
}  # fmt: skip
MADE_BY_CONTROLLERS = {"workloads", "workload", "pods", "provisioningrequests", "nodes", "events"}


def test_every_flow_has_a_page_and_the_page_shows_all_of_its_files() -> None:
    assert {page.parts[0] for page in PAGES} == FLOWS
    for page in PAGES:
        files = {each.name for each in EXAMPLES if each.parts[0] == page.parts[0]}
        assert set(re.findall(r"[\w-]+\.yaml", text_of(page))) == files, page


def text_of(page: Path) -> str:
    return (FOLDER / page).read_text(encoding="utf-8")


def test_every_object_of_a_flow_is_named_on_its_page() -> None:
    for page in PAGES:
        words = set(re.findall(r"[\w.-]*\w", text_of(page)))
        unnamed = [
            f"{body['kind']} {body['metadata']['name']}"
            for body in objects_of(*(each for each in EXAMPLES if each.parts[0] == page.parts[0]))
            if body["metadata"]["name"] not in words
        ]
        assert not unnamed, page


def test_whatever_a_page_calls_by_kind_and_name_is_in_its_manifests() -> None:
    """`ClusterQueue gpu-training`, `Job vision/pretrain`: kind and name in one piece of code."""
    for page in PAGES:
        objects = objects_of(*(each for each in EXAMPLES if each.parts[0] == page.parts[0]))
        kinds = {body["kind"] for body in objects}
        defined = {(body["kind"], name) for body in objects for name in (key_of(body)[1], "/".join(key_of(body)))}
        called = re.findall(r"`([A-Z]\w+) ([\w./-]+)`", text_of(page))
        assert called
        assert not [(kind, name) for kind, name in called if kind in kinds and (kind, name) not in defined], page


def test_whatever_the_commands_of_a_page_ask_for_is_in_its_manifests() -> None:
    for page in PAGES:
        objects = objects_of(*(each for each in EXAMPLES if each.parts[0] == page.parts[0]))
        defined = {(body["kind"], key_of(body)) for body in objects}
        commands = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (.+)$", text_of(page), re.MULTILINE)]
        assert commands, page
        for command in commands:
            assert not [each for each in asked_for(command) if each not in defined], (page, command)


def asked_for(command: list[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The objects that a command line names."""
    options = {"-n": "", "--namespace": "", "-o": "", "-f": "", "--queue": "", "--prometheus-url": ""}
    words: list[str] = []
    left = iter(command)
    for word in left:
        if word in options:
            options[word] = next(left)
        elif not word.startswith("-"):
            words.append(word)
    namespace = options["-n"] or options["--namespace"]
    if namespace:
        yield "Namespace", ("", namespace)
    match words:
        case ["kubectl", "get" | "describe" | "scale" | "annotate" | "delete", what, *names]:
            if what in MADE_BY_CONTROLLERS or "," in what:
                return
            kind = ALIASES[what]
            scope = "" if kind in ("ClusterQueue", "AdmissionCheck", "ReclaimPolicy") else namespace
            yield from ((kind, (scope, name)) for name in names if "=" not in name)
        case ["kubectl", "apply"]:
            assert (FOLDER / options["-f"].removeprefix("deploy/examples/")).exists()
        case ["idle-gpu-scaler", "plan", gang]:
            team, _, name = gang.partition("/")
            yield "Job", (team, name)
        case ["idle-gpu-scaler", "explain", name]:
            yield "ScaledObject", tuple(name.split("/"))  # type: ignore[misc]
        case ["idle-gpu-scaler", "pending" | "queues" | "doctor"]:
            if options["--queue"]:
                yield "ClusterQueue", ("", options["--queue"])
        case _:
            raise AssertionError(f"what does {command} ask for?")
