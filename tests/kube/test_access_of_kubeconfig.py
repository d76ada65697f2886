"""Kubeconfigs of other clusters, which somebody has written into a Secret."""

import base64
import ssl
from typing import Any

import pytest
import trustme
import yaml
from aiohttp import web

from scaler.errors import ConfigurationError
from scaler.kube.access import access_of_kubeconfig
from scaler.kube.objects.resources import POD
from scaler.kube.transport import KubeTransport

PODS = POD.path("ns")


def kubeconfig(server: str = "https://10.0.0.1:6443", *, user: Any = None, **cluster: Any) -> bytes:
    body = {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return yaml.safe_dump(body).encode()


def refused(content: bytes) -> str:
    with pytest.raises(ConfigurationError) as error:
        access_of_kubeconfig(content, source="Secret w1")
    assert str(error.value).startswith("Secret w1")
    return str(error.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(kubeconfig(user={"exec": {"command": "sh"}}), "exec plugins", id="it runs no programs"),
        pytest.param(kubeconfig(user={"auth-provider": {"name": "gcp"}}), "auth providers", id="nor cloud SDKs"),
        pytest.param(kubeconfig(user={"tokenFile": "/etc/passwd"}), "tokenFile", id="it reads no token file"),
        pytest.param(kubeconfig(user={"client-key": "/k"}), "client-key is a file", id="nor a key file"),
        pytest.param(
            kubeconfig(user={"client-certificate": "/c"}), "client-certificate is a file", id="nor a certificate"
        ),
        pytest.param(kubeconfig(**{"certificate-authority": "/ca"}), "certificate-authority is a file", id="nor a CA"),
        pytest.param(kubeconfig(**{"insecure-skip-tls-verify": True}), "insecure-skip", id="TLS is checked"),
        pytest.param(kubeconfig(user={"username": "u", "password": "p"}), "basic auth", id="no basic auth"),
        pytest.param(kubeconfig("http://10.0.0.1", user={"token": "t"}), "without TLS", id="no token in the clear"),
        pytest.param(kubeconfig("file:///etc"), "no cluster with a server", id="a server is an URL"),
        pytest.param(kubeconfig(""), "no cluster with a server", id="a server is named"),
        pytest.param(b"[]", "not a kubeconfig", id="no mapping"),
        pytest.param(b"{", "is not YAML at line 2", id="no YAML"),
        pytest.param(
            kubeconfig().replace(b"current-context: x", b"current-context: y"), "it has no 'y'", id="no context"
        ),
        pytest.param(kubeconfig(**{"certificate-authority-data": "%%"}), "certificates cannot be used", id="no base64"),
    ],
)
def test_what_kueue_refuses_is_refused(content: bytes, expected: str) -> None:
    assert expected in refused(content)


def test_a_refusal_shows_no_credentials() -> None:
    assert "s3cret" not in refused(kubeconfig("http://10.0.0.1", user={"token": "s3cret"}))


async def test_the_token_and_the_authority_of_the_data_are_used() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(body=b"{}")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        data = base64.b64encode(authority.cert_pem.bytes()).decode()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        content = kubeconfig(url, user={"token": "abc\n"}, **{"certificate-authority-data": data})
        async with KubeTransport(access_of_kubeconfig(content, source="Secret w1")) as transport:
            await transport.get(PODS)
    finally:
        await runner.cleanup()
    assert seen == ["Bearer abc"]


async def test_a_client_certificate_of_the_data_is_shown_to_the_server() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"{}")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    client = authority.issue_cert("idle-gpu-scaler")
    user = {
        "client-certificate-data": base64.b64encode(b"".join(each.bytes() for each in client.cert_chain_pems)).decode(),
        "client-key-data": base64.b64encode(client.private_key_pem.bytes()).decode(),
    }
    data = base64.b64encode(authority.cert_pem.bytes()).decode()
    content = kubeconfig(
        f"https://127.0.0.1:{runner.addresses[0][1]}", user=user, **{"certificate-authority-data": data}
    )
    try:
        async with KubeTransport(access_of_kubeconfig(content, source="Secret w1")) as transport:
            assert await transport.get(PODS) == b"{}"
    finally:
        await runner.cleanup()
