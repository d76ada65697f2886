"""What the chart makes of its values, as the program and the kubelet will see it."""

import json
import re
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import typer
import yaml
from builders import NOON
from helm_python import HelmError, lint
from kustomized import OVERLAYS, built
from programs import needs
from scripted_metrics import Metrics, gpu
from scripted_prometheus import ExactNamesOnly

import deploy.helm_chart as helm_chart
from deploy.helm_chart import FOLDER, ROOT, objects, one, platform, settings_object, settings_of
from scaler import __version__
from scaler.app.cli.main import app
from scaler.app.metrics_source import prometheus_config
from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.app.wiring import trigger_target
from scaler.idleness.gpu import ENERGY
from scaler.samples.prometheus import PrometheusSource

TLS: dict[str, dict[str, Any]] = {
    "from a Secret": {"tls": {"source": "secret", "http": True}},
    "from cert-manager": {"tls": {"source": "certManager", "certManager": {"issuerRef": {"name": "ca"}}}},
    "from OpenShift": {"tls": {"source": "openshift"}},
    "mutual": {"tls": {"source": "secret", "clients": {"required": True, "names": ["keda-operator"]}}},
    "mutual, with another CA": {"tls": {"source": "secret", "clients": {"required": True, "caSecretName": "keda-ca"}}},
}


def read(values: dict[str, Any], folder: Path) -> Settings:
    """The settings as the program takes them from the ConfigMap."""
    file = folder / "settings.yaml"
    file.write_text(settings_object(values)["data"]["settings.yaml"], encoding="utf-8")
    return load(file, environ={}, flags={})


def container(values: dict[str, Any] | None = None) -> dict[str, Any]:
    [only] = one("Deployment", values)["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 3},
        {"mode": "Enforce"},
        {"platform": "k3s"},
        {"settings": {"promethius": {"url": "http://p"}}},
        {"settings": {"prometheus": {"ulr": "http://p"}}},
        {"settings": {"grpc": {"address": "0.0.0.0:1"}}},
        {"settings": {"kubernetes": {"namespaces": ["a"]}}},
        {"namespaces": ["a", "a"]},
        {"namespaces": ["Team A"]},
        {"tls": {"source": "certManager"}},
        {"tls": {"source": "none", "http": True}},
        {"tls": {"source": "none", "clients": {"required": True}}},
        {"networkPolicy": {"kedaPeers": [{}]}},
        {"admissionPolicy": {"validationActions": ["Deny", "Warn"]}},
        {"image": {"digest": "sha256:abc"}},
    ],
    ids=str,
)
def test_what_could_only_be_a_mistake_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HelmError):
        helm_chart.texts(values)


REFUSED: dict[str, dict[str, Any]] = {
    "admissionCheck.enabled with namespaces": {"namespaces": ["a"], "admissionCheck": {"enabled": True}},
    "settings.dcgm.endpoints with settings.prometheus.url": {"settings": {"dcgm": {"endpoints": ["http://e:9400"]}}},
    "report.schedule without report.target": {"report": {"schedule": "0 9 * * 1"}},
    "tls.clients.required with tls.source=openshift": {"tls": {"source": "openshift", "clients": {"required": True}}},
}
"""By how the sentence begins that says so."""


@pytest.mark.parametrize(("said", "values"), REFUSED.items(), ids=REFUSED)
def test_what_does_not_go_together_is_refused_with_what_to_do(said: str, values: dict[str, Any]) -> None:
    with pytest.raises(HelmError, match=rf"{re.escape(said)}: .+; "):
        helm_chart.texts(values)


def test_helm_finds_nothing_to_complain_about() -> None:
    report = lint(str(FOLDER), {}, strict=True, kube_version="v1.30.0")
    assert not report["errors"]
    assert not [each for each in report["messages"] if each["severity"] > 1]


def test_the_chart_is_of_the_program_beside_it() -> None:
    chart = yaml.load((FOLDER / "Chart.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert container()["image"] == f"idle-gpu-scaler:{__version__}"


# -------------------------------------------------------------------------------------------------------------- report


def test_a_report_is_sent_by_a_pod_that_nothing_else_selects() -> None:
    assert not [each for each in objects() if each["kind"] == "CronJob"]
    mounts = {"extraVolumes": [{"name": "mail"}], "extraVolumeMounts": [{"name": "mail", "mountPath": "/etc/notify"}]}
    values = {"report": {"schedule": "0 9 * * 1", "target": "mail", "since": "30d"}, **mounts}
    spec = one("CronJob", values, "idle-gpu-scaler-report")["spec"]
    pod = spec["jobTemplate"]["spec"]["template"]
    [only] = pod["spec"]["containers"]
    assert (spec["schedule"], spec["timeZone"], only["image"]) == ("0 9 * * 1", "Etc/UTC", container()["image"])
    assert {each["mountPath"] for each in only["volumeMounts"]} == {"/etc/idle-gpu-scaler", "/etc/notify"}
    assert {each["name"] for each in pod["spec"]["volumes"]} == {"settings", "mail"}
    bodies = [each["spec"] for each in objects(values) if each["kind"] in ("Service", "Deployment", "NetworkPolicy")]
    selectors = [each.get("podSelector", each.get("selector")) for each in bodies]
    labels = [each.get("matchLabels", each) for each in selectors]
    assert labels
    assert not [each for each in labels if each.items() <= pod["metadata"]["labels"].items()]
    verb, *flags = only["args"]
    known = {option for each in typer.main.get_command(app).commands[verb].params for option in each.opts}  # type: ignore[attr-defined]
    assert {each.partition("=")[0] for each in flags} <= known


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("name", ["kubernetes", "openshift", "gke", "dev"])
def test_the_program_takes_the_settings_of_every_platform(name: str, tmp_path: Path) -> None:
    settings = read(helm_chart.platform(name), tmp_path)
    assert settings.prometheus.url
    ports = {each["name"]: each["containerPort"] for each in container(helm_chart.platform(name))["ports"]}
    assert settings.grpc.address.endswith(f":{ports['grpc']}")
    assert settings.http.address.endswith(f":{ports['http']}")


async def test_what_the_program_asks_on_gke_is_answered_there(tmp_path: Path) -> None:
    """By one that refuses what Google's does."""
    settings = read(helm_chart.platform("gke"), tmp_path)
    with ExactNamesOnly(Metrics(series=gpu("GPU-0", pod="train")), clock=lambda: NOON) as frontend:
        source = PrometheusSource(prometheus_config(settings.prometheus, frontend.url))
        for signal in (*(each.signal() for each in settings.signals), ENERGY):
            reading = await source.read(signal, start=NOON - timedelta(minutes=5), end=NOON)
            assert len([*reading.series]) == (signal is not ENERGY), signal.name
        await source.close()


@pytest.mark.parametrize("values", TLS.values(), ids=TLS)
def test_the_program_finds_its_certificates_where_they_are_mounted(values: dict[str, Any], tmp_path: Path) -> None:
    settings = read(values, tmp_path)
    assert settings.grpc.tls is not None
    files = [settings.grpc.tls.cert_file, settings.grpc.tls.key_file, settings.grpc.tls.client_ca_file]
    folders = {Path(each["mountPath"]) for each in container(values)["volumeMounts"]}
    assert {file.parent for file in files if file} <= folders
    assert (settings.http.tls is not None) == values["tls"].get("http", False)
    assert (settings.grpc.tls.client_ca_file is not None) == ("clients" in values["tls"])


def test_what_is_given_goes_under_what_the_chart_decides(tmp_path: Path) -> None:
    given = {"settings": {"defaults": {"idleAfter": "1h"}, "grpc": {"drain": "5s"}, "log": {"level": "debug"}}}
    settings = read(given, tmp_path)
    assert settings.log.level == "debug"
    assert settings.grpc.drain.total_seconds() == 5
    assert settings.grpc.address == "0.0.0.0:9090"
    assert settings.components == ("scaler", "reconciler")


def test_dcgm_exporters_are_read_where_there_is_no_prometheus(tmp_path: Path) -> None:
    values = {"settings": {"prometheus": {"url": None}, "dcgm": {"endpoints": ["http://dcgm-exporter:9400/metrics"]}}}
    settings = read(values, tmp_path)
    assert settings.dcgm.endpoints == ("http://dcgm-exporter:9400/metrics",)
    assert settings.prometheus.url is None


def test_the_program_looks_after_the_namespaces_that_the_chart_is_confined_to(tmp_path: Path) -> None:
    assert read({"namespaces": ["a", "b"]}, tmp_path).kubernetes.namespaces == ("a", "b")
    assert read({}, tmp_path).kubernetes.namespaces == ()


@pytest.mark.parametrize("given", [{}, {"mode": "observe"}, {"mode": "enforce"}], ids=str)
def test_it_observes_unless_it_is_asked_to_enforce_and_attaches_either_way(
    given: dict[str, Any], tmp_path: Path
) -> None:
    settings = read(given, tmp_path)
    assert settings.mode == given.get("mode", "observe")
    assert settings.components == ("scaler", "reconciler")


def test_the_scaler_knows_all_names_of_its_service() -> None:
    service = one("Service")
    port = service["spec"]["ports"][0]["port"]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
    assert settings_of()["keda"]["scalerAddresses"] == [
        f"{host}.svc.cluster.local:{port}",
        f"{host}.svc:{port}",
        f"{host}:{port}",
    ]


def test_changed_settings_replace_the_pods() -> None:
    def checksum(values: dict[str, Any]) -> str:
        return str(one("Deployment", values)["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    assert checksum({}) != checksum({"settings": {"log": {"level": "debug"}}})
    assert checksum({}) == checksum({"resources": {"requests": {"cpu": "1"}}})


# ---------------------------------------------------------------------------------------------------------------- pods


def test_pods_keep_to_the_restricted_standard_and_write_to_no_disk() -> None:
    pod = one("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not [volume for volume in pod["volumes"] if "emptyDir" in volume or "hostPath" in volume]


def test_labels_of_pods_are_added_to_those_by_which_they_are_selected() -> None:
    values = {"podLabels": {"app.kubernetes.io/name": "mine", "team": "gpu"}}
    deployment = one("Deployment", values)["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert labels["team"] == "gpu"
    for selector in (deployment["selector"]["matchLabels"], one("Service", values)["spec"]["selector"]):
        assert selector.items() <= labels.items()


def test_openshift_chooses_the_user_itself() -> None:
    pod = one("Deployment", {"platform": "openshift"})["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_the_kubelet_asks_by_grpc_and_by_http_where_grpc_speaks_tls() -> None:
    plain = container()
    assert plain["livenessProbe"]["grpc"] == {"port": 9090, "service": "liveness"}
    assert plain["readinessProbe"]["grpc"] == {"port": 9090, "service": "readiness"}
    over_tls = container(TLS["from OpenShift"])
    assert over_tls["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "scheme": "HTTP"}
    assert "grpc" not in over_tls["livenessProbe"]
    both = container(TLS["from a Secret"])
    assert both["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}


def test_there_is_time_to_end_well() -> None:
    """5 s until everybody knows + 10 s of drain + the Lease < 30 s."""
    pod = one("Deployment")["spec"]["template"]["spec"]
    sleep = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert sleep + Settings().grpc.drain.total_seconds() + 10 <= pod["terminationGracePeriodSeconds"]


def test_the_account_is_only_mounted_where_it_is_used() -> None:
    assert one("ServiceAccount")["automountServiceAccountToken"] is False
    assert one("Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"] is True


# ------------------------------------------------------------------------------------------------------------- network


def test_keda_gets_a_service_without_an_address_of_its_own() -> None:
    assert one("Service")["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in one("Service", name="idle-gpu-scaler-metrics")["spec"]


def test_only_keda_reaches_grpc_and_only_prometheus_reaches_http() -> None:
    rules = {rule["ports"][0]["port"]: rule["from"] for rule in one("NetworkPolicy")["spec"]["ingress"]}
    assert set(rules) == {"grpc", "http"}
    assert rules["grpc"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}},
            "podSelector": {"matchLabels": {"app": "keda-operator"}},
        }
    ]
    assert len(rules["http"]) == 1


def test_nobody_named_is_nobody_let_in() -> None:
    policy = one("NetworkPolicy", {"networkPolicy": {"kedaPeers": [], "metricsPeers": []}})["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert not policy["ingress"]


def test_the_certificate_is_for_the_names_that_scaled_objects_use() -> None:
    values = TLS["from cert-manager"]
    hosts = [address.rpartition(":")[0] for address in settings_of(values)["keda"]["scalerAddresses"]]
    certificate = one("Certificate", values)["spec"]
    assert sorted(certificate["dnsNames"]) == sorted(hosts)
    volumes = one("Deployment", values)["spec"]["template"]["spec"]["volumes"]
    assert certificate["secretName"] in [each["secret"]["secretName"] for each in volumes if "secret" in each]


# --------------------------------------------------------------------------------------------------------------- notes


@pytest.mark.parametrize("values", [{}, {"mode": "observe"}, {"namespaces": ["a", "b"]}, *TLS.values()], ids=str)
def test_the_notes_lead_to_a_scaled_object_that_names_this_release(values: dict[str, Any]) -> None:
    notes = helm_chart.texts(values)["NOTES.txt"]
    example = re.search(r"   apiVersion: idlegpu.io.*?\n\n", notes, re.DOTALL)
    assert example
    scalable, scaled = yaml.load_all(dedent(example[0]), yaml.CSafeLoader)
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["scalerAddress"] in settings_of(values)["keda"]["scalerAddresses"]
    assert ("enableTLS" in trigger["metadata"]) == ("authenticationRef" in trigger) == ("tls" in values)
    assert scaled["spec"]["scaleTargetRef"]["name"] == scalable["metadata"]["name"]


AUTHENTICATIONS = {
    "plain": ({}, None),
    "OpenShift's": (TLS["from OpenShift"], None),
    "mutual": (TLS["mutual"], "cluster-trigger-authentication.yaml"),
}


@pytest.mark.parametrize(("values", "example"), AUTHENTICATIONS.values(), ids=AUTHENTICATIONS)
def test_the_notes_and_the_examples_say_the_same_of_whom_keda_trusts(
    values: dict[str, Any], example: str | None
) -> None:
    """One for all namespaces: a client's key is nothing for namespaces of tenants."""
    notes = helm_chart.texts(values)["NOTES.txt"]
    told = re.search(
        r"   apiVersion: keda.sh/v1alpha1\n   kind: ClusterTriggerAuthentication\n.*?\n\n", notes, re.DOTALL
    )
    if example is None:
        assert told is None
    else:
        assert told
        file = helm_chart.DEPLOY / "examples" / "tls" / example
        assert yaml.load(dedent(told[0]), yaml.CSafeLoader) == yaml.load(
            file.read_text(encoding="utf-8"), yaml.CSafeLoader
        )


def test_names_of_releases_are_kept_apart() -> None:
    first = {(each["kind"], each["metadata"]["name"]) for each in objects(name="a")}
    second = {(each["kind"], each["metadata"]["name"]) for each in objects(name="b")}
    assert not first & second


# ----------------------------------------------------------------------------------- what policies attach

RELEASES = {
    **{f"TLS {name}": values for name, values in TLS.items()},
    **{name: platform(name) for name in ("kubernetes", "openshift", "gke", "dev")},
}


@pytest.mark.parametrize("values", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize("name", ["idle-gpu-scaler", "another"])
def test_what_a_policy_attaches_calls_as_the_server_answers(values: dict[str, Any], name: str) -> None:
    calls_as_the_server_answers(objects(values, name=name), helm_chart.texts(values, name=name)["NOTES.txt"])


@needs("kubectl")
@pytest.mark.parametrize("overlay", ["openshift", "gke", "dev"])
def test_so_it_does_with_an_overlay(overlay: str) -> None:
    calls_as_the_server_answers(built(OVERLAYS / overlay))


def calls_as_the_server_answers(bodies: list[dict[str, Any]], notes: str = "") -> None:
    """By a name that its certificate is for, over TLS where it speaks TLS, by an authentication that is there."""
    [text] = [each["data"]["settings.yaml"] for each in bodies if "settings.yaml" in each.get("data", {})]
    settings = Settings.model_validate(yaml.load(text, yaml.CSafeLoader), by_alias=True, by_name=False)
    target = trigger_target(settings)
    assert target is not None
    [service] = [each for each in bodies if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None"]
    metadata, port = service["metadata"], service["spec"]["ports"][0]["port"]
    # Every certificate is for it, a service-serving one, too. Source: OpenShift, "Securing service traffic using
    # service serving certificate secrets".
    assert target.scaler_address == f"{metadata['name']}.{metadata['namespace']}.svc.cluster.local:{port}"
    has_tls = settings.grpc.tls is not None
    assert (target.enable_tls, target.authentication is not None) == (has_tls, has_tls)
    for certificate in (each for each in bodies if each["kind"] == "Certificate"):
        assert target.scaler_address.partition(":")[0] in certificate["spec"]["dnsNames"]
    if target.authentication is not None:
        made = [each["metadata"]["name"] for each in bodies if each["kind"] == target.authentication["kind"]]
        assert (
            made == [target.authentication["name"]] or f"metadata: {{name: {target.authentication['name']}}}" in notes
        )


def test_whom_keda_trusts_is_the_users_to_say() -> None:
    given = {"name": "mine", "kind": "TriggerAuthentication"}
    values = {**TLS["from OpenShift"], "settings": {"keda": {"authenticationRef": given}}}
    assert settings_of(values)["keda"]["authenticationRef"] == given
    assert not [each for each in objects(values) if each["kind"] == "ClusterTriggerAuthentication"]


# ---------------------------------------------------------------------------------------------------- pages

INSTALL_PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


def test_objects_are_called_as_the_chart_calls_them() -> None:
    names = {each["metadata"]["name"] for each in helm_chart.objects({"rbac": {"tokens": True}})}
    called = set(re.findall(r"`(idle-gpu-scaler-[a-z]+)`", INSTALL_PAGE))
    assert called
    assert called <= names


def test_what_the_first_holder_wants_on_openshift_is_what_the_release_says_there() -> None:
    """Its trigger, patched as docs/platforms.md has it, speaks TLS like that of the notes."""
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    [patch] = re.findall(r"patch scaledobject holder --type json -p '(.*?)'", page, re.DOTALL)
    added = {each["path"].rpartition("/triggers/0/")[2]: each["value"] for each in json.loads(patch)}
    notes = helm_chart.texts(helm_chart.platform("openshift"))["NOTES.txt"]
    told = re.search(r" +- type: external-push\n.*?\n\n", notes, re.DOTALL)
    assert told
    [trigger] = yaml.load(dedent(told[0]), yaml.CSafeLoader)
    assert added == {
        "metadata/enableTLS": trigger["metadata"]["enableTLS"],
        "authenticationRef": trigger["authenticationRef"],
    }
