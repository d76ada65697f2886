"""The page about TLS speaks of what there is: settings, findings, objects."""

import re
from pathlib import Path

import pytest
import yaml

from scaler.app.settings.model import Settings, TlsSettings
from scaler.keda.call_credentials import PARAMETERS
from scaler.keda.probe import CallProblem
from scaler.reporting.doctor import tls_findings
from scaler.reporting.metrics import Metrics

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tls.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_finding_is_explained_and_every_explained_finding_exists() -> None:
    code = Path(tls_findings.__file__).read_text(encoding="utf-8")
    own = set(re.findall(r'about\.(?:ok|warn|fail|finding)\((?:[^"]*,)?\s*"(\w+)"', code))
    table = PAGE[PAGE.index("| finding |") : PAGE.index("It uses the authorities")]
    assert set(re.findall(r"`([A-Z]\w+)`", table)) == own | {str(each) for each in CallProblem}


def test_every_setting_is_explained() -> None:
    assert {str(field.alias) for field in TlsSettings.model_fields.values()} <= CODE


def test_every_parameter_of_kedas_is_explained() -> None:
    assert {*PARAMETERS, 'enableTLS: "true"', 'unsafeSsl: "true"'} <= CODE


def test_metrics_that_it_names_are_declared() -> None:
    assert set(re.findall(r"idle_gpu_scaler_\w+", PAGE)) <= {each.name for each in Metrics().declared}


@pytest.mark.parametrize("block", BLOCKS)
def test_what_it_shows_in_yaml_is_what_it_says(block: str) -> None:
    documents = [*yaml.safe_load_all(block)]
    for document in documents:
        if "kind" in document:
            assert document["kind"] == "Certificate"
        else:
            settings = Settings.model_validate(document)
            assert settings.grpc.tls
            assert settings.http.tls
    assert documents


def test_the_names_in_the_certificates_are_those_of_the_examples() -> None:
    server, client = yaml.safe_load_all(next(block for block in BLOCKS if "cert-manager" in block))
    example = yaml.safe_load((ROOT / "deploy/examples/tls/scaling.yaml").read_text(encoding="utf-8"))
    [trigger] = example["spec"]["triggers"]
    assert trigger["metadata"]["scalerAddress"].partition(":")[0] in server["spec"]["dnsNames"]
    cluster = yaml.safe_load((ROOT / "deploy/examples/tls/cluster-trigger-authentication.yaml").read_text("utf-8"))
    assert {each["name"] for each in cluster["spec"]["secretTargetRef"]} == {client["spec"]["secretName"]}
    [settings] = (yaml.safe_load(block) for block in BLOCKS if "clientNames" in block)
    assert settings["grpc"]["tls"]["clientNames"] == client["spec"]["dnsNames"]
