import asyncio
import ssl
import stat
import sys
from dataclasses import replace

import pytest
import trustme
from aiohttp import web
from kube.faulty_api import FaultyApi, write_kubeconfig

from scaler.errors import ConfigurationError, KubeError
from scaler.kube.access import access_of_kubeconfig, open_access
from scaler.kube.objects.resources import POD
from scaler.kube.transport import KubeTransport

PODS = POD.path("ns")


async def ok(_):
    return web.Response(body=b"{}")


def authorization(api: FaultyApi) -> str:
    return api.requests[-1].headers.get("Authorization", "")


@pytest.fixture(autouse=True)
def no_configuration_of_the_machine(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def script(path, text):
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def refused(**arguments) -> str:
    with pytest.raises(ConfigurationError) as error:
        await open_access(**arguments)
    return str(error.value)


async def test_without_any_configuration_it_is_said_what_to_do():
    message = await refused()
    assert "--kubeconfig" in message
    assert ".kube/config" in message


@pytest.mark.parametrize("text", [None, "{", "[]", "", "clusters: 5"])
async def test_a_kubeconfig_that_is_missing_or_cannot_be_used_is_named(tmp_path, text):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    assert str(path) in await refused(kubeconfig=path)


async def test_a_context_that_does_not_exist_is_named(tmp_path):
    path = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    assert "elsewhere" in await refused(kubeconfig=path, context="elsewhere")


async def test_the_environment_names_the_kubeconfig(monkeypatch, tmp_path):
    path = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1/base/")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'nowhere'}:{path}")
    async with KubeTransport(await open_access()) as transport:
        assert transport.server == "http://127.0.0.1:1/base"


async def test_the_kubeconfig_at_home_is_the_last_resort(tmp_path):
    folder = tmp_path / "home" / ".kube"
    folder.mkdir(parents=True)
    write_kubeconfig(folder / "config", "http://127.0.0.1:1")
    async with await KubeTransport.connect() as transport:
        assert transport.server == "http://127.0.0.1:1"


# ------------------------------------------------------------------------------------------------------ credentials


async def test_a_token_file_that_ends_in_a_newline_is_sent_and_read_again(faulty, tmp_path):
    faulty.handler = ok
    token = tmp_path / "token"
    token.write_text("first\n")
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", faulty.url, tokenFile=str(token))
    access = await open_access(kubeconfig)
    async with KubeTransport(replace(access, refresh_seconds=0.02)) as transport:
        await transport.get(PODS)
        assert authorization(faulty) == "Bearer first"
        token.unlink()
        await asyncio.sleep(0.05)
        await transport.get(PODS)
        assert authorization(faulty) == "Bearer first", "it is kept while it cannot be loaded again"
        token.write_text("second\n")
        async with asyncio.timeout(300):
            while authorization(faulty) != "Bearer second":
                await asyncio.sleep(0.02)
                await transport.get(PODS)


def plugin_user(command):
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}


SLOW_AFTERWARDS = """
import json, pathlib, time
folder = pathlib.Path({folder!r})
if (folder / "ran").exists():
    (folder / "begun").touch()
    time.sleep(0.3)
    (folder / "done").touch()
(folder / "ran").touch()
status = {{"token": "token"}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


async def test_a_credential_plugin_that_is_under_way_is_waited_for_in_the_end(faulty, tmp_path):
    """Left alone, it would go on, and its pipes would be closed by an event loop that is not any more."""
    command = script(tmp_path / "plugin", SLOW_AFTERWARDS.format(folder=str(tmp_path)))
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", faulty.url, **plugin_user(command))
    async with KubeTransport(replace(await open_access(kubeconfig), refresh_seconds=0.01)):
        async with asyncio.timeout(300):
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert (tmp_path / "done").exists()


async def test_a_credential_plugin_that_fails_is_named(tmp_path):
    command = script(tmp_path / "plugin", "import sys; sys.exit('no such profile')")
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1", **plugin_user(command))
    assert command in await refused(kubeconfig=kubeconfig)


# -------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
async def tls_api(authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    api = FaultyApi()
    api.handler = ok
    async with api.serving(ssl_context=context):
        yield api


def client_certificate(authority, tmp_path):
    certificate = authority.issue_cert("user@example.org")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    return {"client-certificate": str(tmp_path / "cert.pem"), "client-key": str(tmp_path / "key.pem")}


async def test_a_client_certificate_is_presented(tls_api, authority, tmp_path):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    kubeconfig = write_kubeconfig(
        tmp_path / "kubeconfig",
        tls_api.url,
        cluster={"certificate-authority": "ca.pem"},
        **client_certificate(authority, tmp_path),
    )
    async with await KubeTransport.connect(kubeconfig) as transport:
        assert await transport.get(PODS) == b"{}"


async def test_a_server_of_another_authority_is_not_talked_to(tls_api, authority, tmp_path):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    kubeconfig = write_kubeconfig(
        tmp_path / "kubeconfig",
        tls_api.url,
        cluster={"certificate-authority": str(tmp_path / "ca.pem")},
        **client_certificate(authority, tmp_path),
    )
    async with await KubeTransport.connect(kubeconfig) as transport:
        with pytest.raises(KubeError, match="check certificate-authority") as error:
            await transport.get(PODS)
    assert error.value.reason == "CertificateRefused"
    assert tls_api.requests == []


async def test_certificates_that_cannot_be_read_are_a_configuration_error(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    kubeconfig = write_kubeconfig(
        tmp_path / "kubeconfig", "https://127.0.0.1:1", cluster={"certificate-authority": str(tmp_path / "ca.pem")}
    )
    assert "certificates cannot be used" in await refused(kubeconfig=kubeconfig)


# -------------------------------------------------------------------------------------------------------- in a Pod


async def test_a_pod_uses_its_service_account(monkeypatch, authority, tmp_path):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("mounted")
    api = FaultyApi()
    api.handler = ok
    async with api.serving(ssl_context=context):
        host, _, port = api.url.removeprefix("https://").partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        async with KubeTransport(await open_access(service_account=tmp_path)) as transport:
            await transport.get(PODS)
    assert authorization(api).lower() == "bearer mounted"


async def test_a_service_account_without_its_authority_is_a_configuration_error(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("mounted")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert "service account" in await refused(service_account=tmp_path)


async def test_a_given_kubeconfig_goes_before_the_service_account(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("mounted")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    path = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    access = await open_access(path, service_account=tmp_path)
    assert access.server == "http://127.0.0.1:1"
    await access.api.close()


# ------------------------------------------------------------------------------------- kubeconfigs that others wrote


def with_token(server: str) -> bytes:
    return f"""
clusters: [{{name: worker, cluster: {{server: "{server}"}}}}]
users: [{{name: hub, user: {{token: secret}}}}]
contexts: [{{name: hub, context: {{cluster: worker, user: hub}}}}]
current-context: hub
""".encode()


async def test_a_token_of_a_secret_is_not_sent_in_the_clear_to_another_machine():
    with pytest.raises(ConfigurationError, match="a token is not sent without TLS"):
        access_of_kubeconfig(with_token("http://worker.example"), source="a Secret")


@pytest.mark.parametrize("server", ["https://worker.example", "http://127.0.0.1:6443", "http://[::1]:6443"])
async def test_a_token_of_a_secret_is_sent_with_tls_or_on_this_machine(server):
    access = access_of_kubeconfig(with_token(server), source="a Secret")
    assert access.server == server
    await access.api.close()
