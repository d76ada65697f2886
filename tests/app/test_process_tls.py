"""TLS in the whole program: served by settings, followed while it runs, and tested by `doctor`."""

import ssl
from base64 import b64encode
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import grpc
import pytest
import trustme
import yaml
from app.cli.command import command_beside
from prometheus_client.parser import text_string_to_metric_families
from running_scaler import TRIGGER, gpus, run_gang, runtime, settings_document
from scaler_sandbox.manifests import Applier
from secret_volume import YESTERDAY, SecretVolume, chain_of
from small_cluster import NAME, NAMESPACE_NAME, until
from structlog.testing import capture_logs

from scaler.app.server_tls import ServerCertificates
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler.reporting.metrics import Metrics

KEDA = "keda-operator.keda.svc"
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


@asynccontextmanager
async def channel(port, authority, client):
    pair = (client.private_key_pem.bytes(), chain_of(client)) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options=own) as opened:
        yield pb_grpc.ExternalScalerStub(opened)


def reference():
    return pb.ScaledObjectRef(name=NAME, namespace=NAMESPACE_NAME, scalerMetadata=TRIGGER)


async def get(port, path, authority, client=None):
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    if client:
        client.configure_cert(context)
    async with aiohttp.ClientSession() as session, session.get(f"https://localhost:{port}{path}", ssl=context) as got:
        return got.status, await got.text()


async def shown(port, authority, client):
    """The samples about certificates, by metric and use."""
    _, text = await get(port, "/metrics", authority, client)
    return {
        (sample.name.removeprefix("idle_gpu_scaler_certificate_"), sample.labels["use"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "certificate" in sample.name
    }


async def test_a_program_that_runs_takes_new_certificates_and_tells(cluster, tmp_path):
    authority, volume = trustme.CA(), SecretVolume(tmp_path / "certificate")
    client = authority.issue_cert(KEDA)
    volume.put_certificate(authority.issue_cert("localhost"), authority)
    async with secured(cluster, volume) as one:
        await run_gang(cluster)
        assert await get(one.http_port, "/healthz", authority) == (200, "ok\n")
        assert (await get(one.http_port, "/metrics", authority))[0] == 401
        async with channel(one.grpc_port, authority, client) as stub:
            await until(lambda: is_known(stub))
            stream = stub.StreamIsActive(reference())
            before = await shown(one.http_port, authority, client)

            # Half of what a Secret has: it is told, and what was served goes on.
            half = {"tls_crt": chain_of(authority.issue_cert("localhost"))[:-50], "tls_key": b"", "ca_crt": b""}
            with capture_logs() as log:
                volume.put(**half)
                await until(lambda: is_broken(one.http_port, authority, client))
            assert {(each["use"], each["log_level"]) for each in log if "certificate" in each["event"]} == {
                ("grpc", "error"),
                ("http", "error"),
            }
            assert (await stub.GetMetricSpec(reference(), timeout=20)).metricSpecs

            renewed = trustme.CA()
            volume.put_certificate(renewed.issue_cert("localhost", not_after=trustme_end()), renewed)
            newcomer = renewed.issue_cert(KEDA)
            await until(lambda: is_renewed(one, renewed, newcomer))
            after = await shown(one.http_port, renewed, newcomer)
            end = trustme_end().timestamp()
            assert after["files_usable", "grpc"] == after["files_usable", "http"] == 1
            assert after["expiry_timestamp_seconds", "grpc"] == after["expiry_timestamp_seconds", "http"] == end
            assert before["expiry_timestamp_seconds", "grpc-clients"] > end
            await until(lambda: is_known(stub))  # what stands goes on
            assert not stream.done()
            stream.cancel()


def trustme_end():
    return YESTERDAY.replace(microsecond=0) + timedelta(days=365)


async def is_known(stub):
    try:
        return isinstance((await stub.IsActive(reference(), timeout=20)).result, bool)
    except grpc.aio.AioRpcError:
        return False


async def is_broken(port, authority, client):
    found = await shown(port, authority, client)
    return found["files_usable", "grpc"] == found["files_usable", "http"] == 0


async def is_renewed(one, authority, client):
    try:
        async with channel(one.grpc_port, authority, client) as stub:
            await stub.GetMetricSpec(reference(), timeout=20)
        return (await get(one.http_port, "/metrics", authority, client))[0] == 200
    except (aiohttp.ClientError, ssl.SSLError, grpc.aio.AioRpcError):
        return False


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


def test_files_that_are_not_there_end_the_start_with_their_name(tmp_path):
    settings = {"grpc": {"tls": SecretVolume(tmp_path).settings()}}
    with pytest.raises(ConfigurationError, match=r"tls\.crt cannot be read: No such file or directory"):
        served(**settings)


# -------------------------------------------------------------------------------------------------------------- doctor


async def test_doctor_calls_the_program_as_keda_does(cluster, tmp_path):
    authority, volume = trustme.CA(), SecretVolume(tmp_path / "certificate")
    client = authority.issue_cert(KEDA)
    host = "idle-gpu-scaler.gpus.svc"
    volume.put_certificate(authority.issue_cert(host), authority)
    trigger = {"scalerAddress": f"{host}:9090", "idleAfter": "1h"}
    async with secured(cluster, volume) as one:
        await run_gang(cluster, trigger)
        await authenticate(cluster, authority, client)
        where = ("--kubeconfig", str(cluster.kubeconfig), "--connect-to", f"127.0.0.1:{one.grpc_port}")
        done = await command_beside("doctor", *where, "--json")
        found = {each["check"]: each for each in done.json["findings"] if each["topic"] == "TLS"}
        assert found.keys() == {"Reached"}
        assert found["Reached"]["where"] == f"scalerAddress {host}:9090"


async def authenticate(cluster, authority, client):
    """As an owner does it: a Secret, a TriggerAuthentication, and the trigger's reference to it."""
    crds = yaml.safe_load(CRDS.read_text(encoding="utf-8"))["items"]
    content = {"ca.crt": authority.cert_pem.bytes(), "tls.crt": chain_of(client)}
    content["tls.key"] = client.private_key_pem.bytes()
    keys = {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
    metadata = {"namespace": NAMESPACE_NAME, "name": "tls"}
    await Applier(cluster.kube).apply(
        [
            *(each for each in crds if each["metadata"]["name"] == "triggerauthentications.keda.sh"),
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": metadata,
                "data": {name: b64encode(value).decode() for name, value in content.items()},
            },
            {
                "apiVersion": "keda.sh/v1alpha1",
                "kind": "TriggerAuthentication",
                "metadata": metadata,
                "spec": {"secretTargetRef": [{"parameter": p, "name": "tls", "key": key} for p, key in keys.items()]},
            },
        ]
    )
    [trigger] = (await cluster.read(SCALED_OBJECT, NAME))["spec"]["triggers"]
    triggers = [trigger | {"authenticationRef": {"name": "tls"}}]
    await cluster.change(SCALED_OBJECT, NAME, {"spec": {"triggers": triggers}})
