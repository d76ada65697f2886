"""Pages that list what the program knows have all of it, and nothing else: parameters, reasons, phases, annotations."""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from scaler_sandbox.manifests import objects_in

import scaler.decision.trigger_metadata as trigger_metadata
from scaler.admission.check import CheckReason
from scaler.admission.provisioning.lifecycle import LOST, RequestState
from scaler.app.settings.model import Settings, TlsSettings
from scaler.decision.reasons import DecisionReason
from scaler.decision.trigger_metadata import parse_metadata
from scaler.doctor.calls import tls_findings
from scaler.doctor.calls.call_credentials import PARAMETERS as CALL_PARAMETERS
from scaler.doctor.calls.probe import CallProblem
from scaler.idleness.policy import NAME_OF_KEY, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.keda.servicer import METRIC_NAME
from scaler.reclaim.search.values import NoPlanReason
from scaler.reporting.metrics import Metrics
from scaler.reporting.waiting_reasons import WaitingReason
from scaler.targets.target_state import Phase
from scaler.targets.workloads import KEEP_UNTIL, WAKE_ANNOTATION

DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """From that heading to the next one of its level or above."""
    text = page(name)
    level = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert level, f"{name}.md has no heading {heading!r}"
    rest = text[level.end() :]
    end = re.search(rf"^#{{1,{len(level[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each table's row, by each word in its first cell that is code."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), cells)
    return found


def yaml_of(text: str) -> list[dict[str, Any]]:
    return [
        each
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        for each in yaml.load_all(block, yaml.CSafeLoader)
    ]


# ----------------------------------------------------------------------------------------------------- trigger metadata

PARAMETERS = rows(section("trigger-reference", "Parameter list"))
OURS = {key for key in PARAMETERS if key not in trigger_metadata.KEDA_KEYS}


def test_every_parameter_is_listed_and_every_listed_one_is_taken() -> None:
    assert set(NAME_OF_KEY) == OURS


def test_what_is_shown_as_a_trigger_can_be_used() -> None:
    documents = yaml_of(page("trigger-reference"))
    triggers = [each["triggers"] for each in documents if "triggers" in each]
    triggers += [each["spec"]["triggers"] for each in documents if each.get("kind") == "ScaledObject"]
    assert len(triggers) == 3
    for [trigger] in triggers:
        assert parse_metadata(trigger["metadata"])
    assert set(triggers[0][0]["metadata"]) == OURS | {"scalerAddress"}


def test_what_is_shown_to_be_applied_is_one_object_after_the_other() -> None:
    example = section("trigger-reference", "Examples")
    kinds = [
        body["kind"] for block in re.findall(r"```yaml\n(.*?)```", example, re.DOTALL) for body in objects_in(block)
    ]
    assert kinds == ["ScalableWorkload", "TriggerAuthentication", "ScaledObject", "ScaledObject"]


def test_the_metric_has_the_name_that_keda_gets() -> None:
    assert f"`{METRIC_NAME}`" in section("trigger-reference", "The metric")


@pytest.mark.parametrize("annotation", [WAKE_ANNOTATION, KEEP_UNTIL])
def test_annotations_are_explained(annotation: str) -> None:
    assert annotation in section("trigger-reference", "Annotations")
    assert annotation in section("policies", "For the owner of a workload")


# -------------------------------------------------------------------------------------------------------------- reasons


def missing(known: Iterable[StrEnum], text: str) -> set[str]:
    return {str(each) for each in known} - set(re.findall(r"`(\w+)`", text))


def test_every_reason_for_0_or_1_is_in_the_table_of_decisions() -> None:
    assert missing(DecisionReason, section("concepts", "The decision")) == set()


def test_every_reason_not_to_know_says_what_to_do() -> None:
    table = rows(section("troubleshooting", "Everything is Unknown"))
    assert set(table) >= {str(each) for each in UnknownReason}
    assert not [reason for reason in UnknownReason if not table[str(reason)][2]]


def test_every_reason_for_which_nobody_is_suspended_is_explained() -> None:
    assert missing(NoPlanReason, page("waiting-gangs")) == set()


def test_every_reason_why_a_gang_waits_is_explained() -> None:
    assert missing(WaitingReason, section("waiting-gangs", "Show quota, pending Workloads and plans")) == set()


def test_every_phase_in_which_a_workload_does_not_come_back_is_explained() -> None:
    settled = {Phase.RUNNING, Phase.FINISHED, Phase.REFUSED, Phase.HELD}
    assert set(rows(section("troubleshooting", "It does not come back"))) == {str(each) for each in {*Phase} - settled}


def test_every_way_to_reclaim_is_explained() -> None:
    assert {str(each) for each in Reclaim} <= set(rows(section("policies", "What suspends an idle workload")))


def test_symptoms_lead_to_their_sections() -> None:
    text = page("troubleshooting")
    named = set(re.findall(r"\]\(#([\w-]+)\)", text[: text.index("\n## ")]))
    headings = {each.lower().replace(" ", "-") for each in re.findall(r"^## (.*)$", text, re.MULTILINE)}
    assert named == headings


# ---------------------------------------------------------------------------------------------------- AdmissionChecks

CHECK_PAGE = page("admission-check")
CRD = yaml.load(
    (DOCS.parent / "deploy" / "crds" / "idlegpu.io_reclaimpolicies.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field that holds a value, by its path, with its default."""
    for name, found in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if found["type"] == "object" and "properties" in found:
            yield from fields(found, below)
        else:
            yield below, found.get("default")


SPEC = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


@pytest.mark.parametrize(("path", "default"), list(fields(SPEC)))
def test_every_field_of_a_policy_stands_in_the_guide_with_its_default(path: str, default: Any) -> None:
    row = re.search(rf"^\| `{re.escape(path)}` \| (.*?) \| (.*) \|$", CHECK_PAGE, re.MULTILINE)
    assert row is not None, path
    shown = "–" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    assert row[1] == shown


def test_the_guide_tells_of_no_field_that_there_is_not() -> None:
    section = CHECK_PAGE[CHECK_PAGE.index("## The ReclaimPolicy") : CHECK_PAGE.index("## What it says")]
    told = set(re.findall(r"^\| `([^`]+)` \| [–`]", section, re.MULTILINE))
    assert told - {"provisioning"} == {path for path, _ in fields(SPEC)}


@pytest.mark.parametrize("reason", CheckReason)
def test_every_reason_of_an_admission_check_is_explained(reason: CheckReason) -> None:
    assert re.search(rf"^\| `{reason}` \| .+ \|$", CHECK_PAGE, re.MULTILINE)


@pytest.mark.parametrize("state", [RequestState.PROVISIONED, *sorted(LOST)])
def test_every_event_about_nodes_is_named(state: RequestState) -> None:
    assert f"`Nodes{state}`" in CHECK_PAGE


def test_its_manifests_can_be_applied() -> None:
    """What stands in the example is a policy by the definition's own words."""
    example = next(
        block for block in re.findall(r"```yaml\n(.*?)```", CHECK_PAGE, re.DOTALL) if "kind: ReclaimPolicy" in block
    )
    policy, check = yaml.load_all(example, yaml.CSafeLoader)
    assert set(policy["spec"]["provisioning"]) <= set(SPEC["properties"]["provisioning"]["properties"])
    assert check["spec"]["parameters"]["name"] == policy["metadata"]["name"]


# ---------------------------------------------------------------------------------------------------- TLS

TLS_PAGE = page("tls")
CODE = set(re.findall(r"`([^`\n]+)`", TLS_PAGE))
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TLS_PAGE, re.MULTILINE | re.DOTALL)


def test_every_finding_is_explained_and_every_explained_finding_exists() -> None:
    code = Path(tls_findings.__file__).read_text(encoding="utf-8")
    own = set(re.findall(r'about\.(?:ok|warn|fail|finding)\((?:[^"]*,)?\s*"(\w+)"', code))
    table = TLS_PAGE[TLS_PAGE.index("| finding |") : TLS_PAGE.index("It uses the authorities")]
    assert set(re.findall(r"`([A-Z]\w+)`", table)) == own | {str(each) for each in CallProblem}


def test_every_setting_of_tls_is_explained() -> None:
    assert {str(field.alias) for field in TlsSettings.model_fields.values()} <= CODE


def test_every_parameter_of_kedas_is_explained() -> None:
    assert {*CALL_PARAMETERS, 'enableTLS: "true"', 'unsafeSsl: "true"'} <= CODE


def test_metrics_that_it_names_are_declared() -> None:
    assert set(re.findall(r"idle_gpu_scaler_\w+", TLS_PAGE)) <= {each.name for each in Metrics().declared}


@pytest.mark.parametrize("block", BLOCKS)
def test_what_it_shows_in_yaml_is_what_it_says(block: str) -> None:
    documents = [*yaml.load_all(block, yaml.CSafeLoader)]
    for document in documents:
        if "kind" in document:
            assert document["kind"] == "Certificate"
        else:
            settings = Settings.model_validate(document)
            assert settings.grpc.tls
            assert settings.http.tls
    assert documents


def test_the_names_in_the_certificates_are_those_of_the_examples() -> None:
    server, client = yaml.load_all(next(block for block in BLOCKS if "cert-manager" in block), yaml.CSafeLoader)
    example = yaml.load(
        (DOCS.parent / "deploy/examples/tls/scaling.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
    )
    [trigger] = example["spec"]["triggers"]
    assert trigger["metadata"]["scalerAddress"].partition(":")[0] in server["spec"]["dnsNames"]
    cluster = yaml.load(
        (DOCS.parent / "deploy/examples/tls/cluster-trigger-authentication.yaml").read_text("utf-8"), yaml.CSafeLoader
    )
    assert {each["name"] for each in cluster["spec"]["secretTargetRef"]} == {client["spec"]["secretName"]}
    [settings] = (yaml.load(block, yaml.CSafeLoader) for block in BLOCKS if "clientNames" in block)
    assert settings["grpc"]["tls"]["clientNames"] == client["spec"]["dnsNames"]
