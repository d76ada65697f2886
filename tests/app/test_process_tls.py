"""TLS in the whole program: served by settings, followed while it runs, and tested by `doctor`."""

from base64 import b64encode
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import trustme
import yaml
from app.cli.command import command_beside
from reporting.usage.test_fleet_metrics import values
from running_scaler import gpus, run_gang, runtime, settings_document
from scaler_sandbox.job_manifests import manifest
from scaler_sandbox.manifests import Applier
from secret_volume import TOMORROW, YESTERDAY, SecretVolume, chain_of
from small_cluster import NAME, NAMESPACE_NAME, until
from structlog.testing import capture_logs

from scaler.app.server_tls import ServerCertificates
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.kube.objects.resources import SCALED_OBJECT, SECRET, TRIGGER_AUTHENTICATION
from scaler.reporting.metrics import Metrics

KEDA = "keda-operator.keda.svc"
EXPIRY = "certificate_expiry_timestamp_seconds", "use"
HURRIED = {"checkEvery": "20ms"}
CRDS = Path(__file__).parent.parent / "example_crds.yaml"


@asynccontextmanager
async def secured(cluster, volume):
    """The program, with both servers on the volume's certificate, and KEDA's name."""
    async with gpus() as (_, exporter):
        mutual = volume.settings(mutual=True, clientNames=[KEDA], **HURRIED)
        document = settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])
        document["grpc"]["tls"], document["http"]["tls"] = mutual, mutual
        async with runtime(document) as one:
            yield one


# ----------------------------------------------------------------------------------------------------------------- log


def served(**sections):
    with capture_logs() as log:
        ServerCertificates.of(Settings.model_validate(sections), Metrics())
    return log


def test_what_is_served_in_the_clear_is_told_once_and_only_if_others_can_hear_it(tmp_path):
    [warning] = served()
    assert (warning["log_level"], warning["servers"]) == ("warning", ["grpc", "http"])
    assert "docs/tls.md" in warning["do"]
    volume = SecretVolume(tmp_path)
    volume.put_certificate(trustme.CA().issue_cert("localhost"))
    [_, half] = served(grpc={"tls": volume.settings()})
    assert half["servers"] == ["http"]
    [only] = served(components=["reconciler"])
    assert only["servers"] == ["http"]
    local = {"http": {"address": "127.0.0.1:8080"}, "grpc": {"address": "[::1]:9090"}}
    assert served(**local) == served(**local | {"grpc": {"address": "unix:/run/scaler.sock"}}) == []


def test_a_certificate_that_is_over_is_served_and_told(tmp_path):
    volume = SecretVolume(tmp_path)
    volume.put_certificate(trustme.CA().issue_cert("localhost", not_after=YESTERDAY))
    told = served(grpc={"tls": volume.settings(), "address": "localhost:9090"}, http={"address": "localhost:8080"})
    assert [(each["log_level"], each["do"], each["names"]) for each in told] == [("error", "renew it", ("localhost",))]


def test_files_that_cannot_be_served_and_new_ones_are_told_and_shown(tmp_path):
    authority, volume, metrics = trustme.CA(), SecretVolume(tmp_path), Metrics()
    volume.put_certificate(authority.issue_cert("localhost"), authority)
    settings = Settings.model_validate({"grpc": {"tls": volume.settings(mutual=True)}})
    [rotation] = ServerCertificates.of(settings, metrics).rotations
    renewed, end = trustme.CA(), YESTERDAY.replace(microsecond=0) + timedelta(days=365)
    with capture_logs() as log:
        volume.put(tls_crt=chain_of(authority.issue_cert("localhost"))[:-50], tls_key=b"", ca_crt=b"")
        rotation.take(rotation.look())
        assert values(metrics, "certificate_files_usable", "use") == {("grpc",): 0}
        assert values(metrics, *EXPIRY)["grpc-clients",] > end.timestamp()
        volume.put_certificate(renewed.issue_cert("localhost", not_after=end), renewed)
        rotation.take(rotation.look())
    assert [(each["use"], each["log_level"]) for each in log] == [("grpc", "error"), ("grpc", "info")]
    assert values(metrics, "certificate_files_usable", "use") == {("grpc",): 1}
    assert values(metrics, *EXPIRY)["grpc",] == end.timestamp()


def test_files_that_are_not_there_end_the_start_with_their_name(tmp_path):
    settings = {"grpc": {"tls": SecretVolume(tmp_path).settings()}}
    with pytest.raises(ConfigurationError, match=r"tls\.crt: No such file or directory"):
        served(**settings)


# -------------------------------------------------------------------------------------------------------------- doctor


@pytest.mark.slow
async def test_doctor_calls_the_program_as_keda_does_and_it_takes_new_certificates(cluster, tmp_path):
    authority, volume = trustme.CA(), SecretVolume(tmp_path / "certificate")
    client = authority.issue_cert(KEDA)
    host = "idle-gpu-scaler.gpus.svc"
    volume.put_certificate(authority.issue_cert(host), authority)
    trigger = {"scalerAddress": f"{host}:9090", "idleAfter": "10m"}
    async with secured(cluster, volume) as one:
        await run_gang(cluster, trigger)
        await authenticate(cluster, authority, client)
        where = ("--kubeconfig", str(cluster.kubeconfig), "--connect-to", f"127.0.0.1:{one.grpc_port}")
        done = await command_beside("doctor", *where, "--json")
        found = {each["check"]: each for each in done.json["findings"] if each["topic"] == "TLS"}
        assert found.keys() == {"Reached"}
        assert found["Reached"]["where"] == f"scalerAddress {host}:9090"
        soon = TOMORROW.replace(microsecond=0)
        volume.put_certificate(authority.issue_cert(host, not_after=soon), authority)
        of_servers = {("grpc",): soon.timestamp(), ("http",): soon.timestamp()}
        await until(lambda: values(one.metrics, *EXPIRY).items() >= of_servers.items())


async def authenticate(cluster, authority, client):
    """As an owner does it: a Secret, a TriggerAuthentication, and the trigger's reference to it."""
    crds = yaml.safe_load(CRDS.read_text(encoding="utf-8"))["items"]
    content = {"ca.crt": authority.cert_pem.bytes(), "tls.crt": chain_of(client)}
    content["tls.key"] = client.private_key_pem.bytes()
    keys = {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
    references = [{"parameter": parameter, "name": "tls", "key": key} for parameter, key in keys.items()]
    data = {name: b64encode(value).decode() for name, value in content.items()}
    await Applier(cluster.kube).apply(
        [
            *(each for each in crds if each["metadata"]["name"] == "triggerauthentications.keda.sh"),
            manifest(SECRET, "tls", NAMESPACE_NAME, data=data),
            manifest(TRIGGER_AUTHENTICATION, "tls", NAMESPACE_NAME, spec={"secretTargetRef": references}),
        ]
    )
    [trigger] = (await cluster.read(SCALED_OBJECT, NAME))["spec"]["triggers"]
    triggers = [trigger | {"authenticationRef": {"name": "tls"}}]
    await cluster.change(SCALED_OBJECT, NAME, {"spec": {"triggers": triggers}})
