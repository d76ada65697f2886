"""How KEDA calls, read from what it reads itself in the embedded Kubernetes API."""

from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from scaler_sandbox.kubeapi import KubeApi
from scaler_sandbox.manifests import Applier, objects_in
from scaler_sandbox.packaged import packaged

from scaler.keda.call_credentials import CallCredentials
from scaler.kube.api_requests import ApiRequest
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.transport import KubeTransport
from scaler.reporting.doctor.tls_findings import tls_findings
from scaler.reporting.doctor.trigger_authentication import AuthenticatedTrigger, TriggerAuthenticationReader

Json = dict[str, Any]

CRDS = Path(__file__).parent.parent.parent / "example_crds.yaml"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
PEM = {"ca.crt": b"authority", "tls.crt": b"certificate", "tls.key": b"key"}
PARAMETERS = {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
WHOLE = CallCredentials(encrypted=True, authorities_pem=b"authority", certificate_pem=b"certificate", key_pem=b"key")


class Cluster:
    def __init__(self, api: KubeApi, transport: KubeTransport, calls: list[ApiRequest]) -> None:
        self.api = api
        self.calls = calls
        self.transport = transport
        self._applier = Applier(transport)

    async def apply(self, *bodies: Json) -> None:
        await self._applier.apply([*bodies])

    async def caller(self, *, kind: str = "", name: str = "tls", namespace: str = "demo") -> AuthenticatedTrigger:
        """Of a ScaledObject that refers to the authentication of that kind."""
        ref = {"name": name} | ({"kind": kind} if kind else {})
        [caller] = await TriggerAuthenticationReader(self.transport).take([scaled(ref, namespace)])
        return caller


def scaled(ref: Json, namespace: str = "demo") -> Any:
    trigger = {"type": "external", "metadata": {"scalerAddress": "scaler.gpus.svc:9090"}, "authenticationRef": ref}
    body = {"metadata": {"namespace": namespace, "name": "ana"}, "spec": {"triggers": [trigger]}}
    scaled_object = msgspec.convert(body, ScaledObject)
    return scaled_object, scaled_object.spec.triggers[0]


def namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def secret(where: str, **content: bytes) -> Json:
    data = {name.replace("_", "."): b64encode(value).decode() for name, value in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": where, "name": "pair"}, "data": data}


WHOLE_SECRET = {name.replace(".", "_"): value for name, value in PEM.items()}


def authentication(where: str | None, **spec: Any) -> Json:
    """Of one namespace, or of the cluster."""
    kind = "TriggerAuthentication" if where else "ClusterTriggerAuthentication"
    metadata = {"name": "tls"} | ({"namespace": where} if where else {})
    return {"apiVersion": "keda.sh/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec or REFERENCES}


REFERENCES = {"secretTargetRef": [{"parameter": each, "name": "pair", "key": key} for each, key in PARAMETERS.items()]}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    api = KubeApi()
    await api.start()
    api.write_kubeconfig(tmp_path / "kubeconfig")
    crds = yaml.safe_load(CRDS.read_text(encoding="utf-8"))["items"]
    try:
        calls: list[ApiRequest] = []
        async with await KubeTransport.connect(tmp_path / "kubeconfig", observe=calls.append) as transport:
            started = Cluster(api, transport, calls)
            await started.apply(*(each for each in crds if each["metadata"]["name"].endswith("keda.sh")))
            await started.apply(*map(namespace, ("demo", "keda", "openshift-keda")))
            yield started
    finally:
        await api.stop()


WITHOUT: dict[str, tuple[dict[str, str], CallCredentials]] = {
    "nothing": ({}, CallCredentials()),
    "enableTLS": ({"enableTLS": "true"}, CallCredentials(encrypted=True)),
    "caCert, which KEDA does not read there": ({"enableTLS": "true", "caCert": "x"}, CallCredentials(encrypted=True)),
    "unsafeSsl": ({"unsafeSsl": "true"}, CallCredentials(verifies=False)),
}


@pytest.mark.parametrize(("metadata", "credentials"), WITHOUT.values(), ids=WITHOUT)
def test_a_trigger_without_authentication_is_its_metadata(
    metadata: dict[str, str], credentials: CallCredentials
) -> None:
    assert AuthenticatedTrigger(namespace="demo", name="ana", metadata=metadata).credentials == credentials


async def test_parameters_come_from_secrets_of_the_namespace(cluster: Cluster) -> None:
    await cluster.apply(authentication("demo"), secret("demo", **WHOLE_SECRET))
    caller = await cluster.caller()
    assert (caller.credentials, caller.missing, caller.unread) == (WHOLE, (), None)
    assert "key" not in repr(caller.credentials).replace("key_pem", "")


@pytest.mark.parametrize("home", ["keda", "openshift-keda"])
async def test_those_of_the_whole_cluster_come_from_kedas_namespace(home: str, cluster: Cluster) -> None:
    await cluster.apply(authentication(None), secret(home, **WHOLE_SECRET), secret("demo", tls_key=b"another"))
    caller = await cluster.caller(kind="ClusterTriggerAuthentication")
    assert (caller.credentials, caller.missing) == (WHOLE, ())


async def test_a_config_map_can_hold_the_authority(cluster: Cluster) -> None:
    reference = {"configMapTargetRef": [{"parameter": "caCert", "name": "pair", "key": "ca.crt"}]}
    metadata = {"namespace": "demo", "name": "pair"}
    await cluster.apply(
        authentication("demo", **reference),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": "authority"}},
    )
    assert (await cluster.caller()).credentials == CallCredentials(encrypted=True, authorities_pem=b"authority")


async def test_what_is_not_there_is_gone_without(cluster: Cluster) -> None:
    await cluster.apply(authentication("demo"), secret("demo", tls_crt=b"certificate", tls_key=b""))
    caller = await cluster.caller()
    assert caller.credentials == CallCredentials()
    assert caller.missing == (
        "caCert from key 'ca.crt' of Secret pair",
        "tlsClientKey from key 'tls.key' of Secret pair",
    )
    checks = {each.check: each.what for each in tls_findings([caller], {}, NOW)}
    assert checks.keys() == {"Missing", "IncompleteKeyPair", "TLSOff"}
    assert "nor tlsClientKey from key 'tls.key' of Secret pair: KEDA calls without it" in checks["Missing"]


async def finding_of(caller: AuthenticatedTrigger) -> tuple[str, str, str, str]:
    [finding] = tls_findings([caller], {}, NOW)
    return str(finding.severity), finding.check, finding.what, finding.do


async def test_an_authentication_that_does_not_exist_fails(cluster: Cluster) -> None:
    severity, check, what, do = await finding_of(await cluster.caller(name="gone"))
    assert (severity, check) == ("fail", "NotRead")
    assert "TriggerAuthentication gone" in what
    assert "KEDA builds no scaler" in do


async def test_what_may_not_be_read_or_only_by_keda_is_not_known(cluster: Cluster) -> None:
    await cluster.apply(authentication("demo"), secret("demo", **WHOLE_SECRET))
    cluster.api.permissions.deny("get", "secrets")
    severity, check, what, _ = await finding_of(await cluster.caller())
    assert (severity, check) == ("warn", "NotRead")
    assert "grant verb 'get' on 'secrets'" in what
    vault = {"vaultUri": "https://vault", "secrets": [{"parameter": "caCert", "name": "ca"}]}
    await cluster.apply(authentication("keda", azureKeyVault=vault))
    caller = await cluster.caller(namespace="keda")
    assert caller.unread
    assert caller.unread.reason == "caCert comes from azureKeyVault, which only KEDA can read"


async def test_parameters_of_other_scalers_do_not_matter(cluster: Cluster) -> None:
    reference = {"secretTargetRef": [{"parameter": "password", "name": "gone", "key": "password"}]}
    await cluster.apply(authentication("demo", **reference))
    caller = await cluster.caller()
    assert (caller.credentials, caller.missing, caller.unread) == (CallCredentials(), (), None)


async def test_each_object_is_read_once(cluster: Cluster) -> None:
    await cluster.apply(authentication("demo"), secret("demo", **WHOLE_SECRET))
    cluster.calls.clear()
    callers = await TriggerAuthenticationReader(cluster.transport).take([scaled({"name": "tls"}) for _ in range(5)])
    assert {caller.credentials for caller in callers} == {WHOLE}
    gets = [each.resource for each in cluster.calls if each.verb == "get"]
    assert sorted(gets) == ["secrets", "triggerauthentications"]


@pytest.mark.parametrize("kind", ["", "ClusterTriggerAuthentication"])
async def test_the_example_calls_as_it_says(kind: str, cluster: Cluster) -> None:
    file = "cluster-trigger-authentication.yaml" if kind else "trigger-authentication.yaml"
    bodies = [*objects_in((packaged("examples") / "tls" / file).read_text(encoding="utf-8"))]
    content = {name: b64encode(value).decode() for name, value in PEM.items()}
    metadata = {"namespace": "keda" if kind else "demo", "name": "idle-gpu-scaler-client"}
    given = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content}
    await cluster.apply(*(each for each in bodies if each["kind"] != "Secret"), given)
    assert (await cluster.caller(kind=kind, name="idle-gpu-scaler")).credentials == WHOLE
