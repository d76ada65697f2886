"""How KEDA calls, read from what it reads itself."""

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from scaler_sandbox.manifests import objects_in
from scaler_sandbox.packaged import packaged

from scaler.doctor.calls.call_credentials import CallCredentials, credentials_of
from scaler.doctor.calls.tls_findings import tls_findings
from scaler.doctor.calls.trigger_authentication import AuthenticatedTrigger, TriggerAuthenticationReader
from scaler.errors import KubeError
from scaler.kube.objects import resources as kinds
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.transport import KubeTransport

Json = dict[str, Any]

NOW = datetime(2026, 11, 21, tzinfo=UTC)
RESOURCES = {each.kind: each for each in vars(kinds).values() if isinstance(each, kinds.Resource)}
PEM = {"ca.crt": b"authority", "tls.crt": b"certificate", "tls.key": b"key"}
PARAMETERS = {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
REFERENCES = {"secretTargetRef": [{"parameter": each, "name": "pair", "key": key} for each, key in PARAMETERS.items()]}
NO_TLS = CallCredentials()
WHOLE = CallCredentials(encrypted=True, authorities_pem=b"authority", certificate_pem=b"certificate", key_pem=b"key")


class Api:
    """A Kubernetes API that serves these objects; to read those of `denied` kinds is not allowed."""

    def __init__(self, *objects: Json, denied: str = "") -> None:
        self._objects = {_path(each): each for each in objects}
        self._denied = RESOURCES[denied].plural if denied else "-"
        self.read: list[str] = []

    async def get(self, path: str) -> bytes:
        self.read.append(path)
        if f"/{self._denied}/" in path:
            raise KubeError(f"403: grant verb 'get' on '{self._denied}'", status=403)
        if path not in self._objects:
            raise KubeError(f"get {path}: not found", status=404)
        return msgspec.json.encode(self._objects[path])


def _path(body: Json) -> str:
    return RESOURCES[body["kind"]].path(body["metadata"].get("namespace", ""), body["metadata"]["name"])


def made(kind: str, namespace: str, name: str, **content: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}), **content}


def secret(namespace: str, name: str = "pair", **changed: bytes) -> Json:
    content = PEM | {key.replace("_", "."): value for key, value in changed.items()}
    return made("Secret", namespace, name, data={key: b64encode(value).decode() for key, value in content.items()})


def authentication(namespace: str = "demo", **spec: Any) -> Json:
    """Of one namespace, or of the cluster."""
    kind = "TriggerAuthentication" if namespace else "ClusterTriggerAuthentication"
    return made(kind, namespace, "tls", spec=spec or REFERENCES)


async def callers(api: Api, *, kind: str = "", name: str = "tls", count: int = 1) -> list[AuthenticatedTrigger]:
    """Of ScaledObjects that refer to the authentication of that kind."""
    ref = {"name": name} | ({"kind": kind} if kind else {})
    trigger = {"type": "external", "metadata": {"scalerAddress": "scaler.gpus.svc:9090"}, "authenticationRef": ref}
    body = {"metadata": {"namespace": "demo", "name": "ana"}, "spec": {"triggers": [trigger]}}
    scaled_object = msgspec.convert(body, ScaledObject)
    triggers = [(scaled_object, scaled_object.spec.triggers[0])] * count
    return await TriggerAuthenticationReader(cast(KubeTransport, api)).take(triggers)


WITHOUT: dict[str, tuple[dict[str, str], CallCredentials]] = {
    "nothing": ({}, NO_TLS),
    "enableTLS": ({"enableTLS": "true"}, CallCredentials(encrypted=True)),
    "caCert, which KEDA does not read there": ({"enableTLS": "true", "caCert": "x"}, CallCredentials(encrypted=True)),
    "unsafeSsl": ({"unsafeSsl": "true"}, CallCredentials(verifies=False)),
}


@pytest.mark.parametrize(("metadata", "credentials"), WITHOUT.values(), ids=WITHOUT)
def test_a_trigger_without_authentication_is_its_metadata(
    metadata: dict[str, str], credentials: CallCredentials
) -> None:
    assert credentials_of(metadata, {}) == credentials


CLUSTER_WIDE = "ClusterTriggerAuthentication"
IN_CONFIG_MAP = authentication(configMapTargetRef=[{"parameter": "caCert", "name": "pair", "key": "ca.crt"}])
OF_ANOTHER_SCALER = authentication(secretTargetRef=[{"parameter": "password", "name": "gone", "key": "password"}])
READ: dict[str, tuple[list[Json], str, CallCredentials]] = {
    "Secrets of the namespace": ([authentication(), secret("demo")], "", WHOLE),
    "Secrets of KEDA's namespace, for the whole cluster": (
        [authentication(""), secret("keda"), secret("demo", tls_key=b"another")],
        CLUSTER_WIDE,
        WHOLE,
    ),
    "Secrets of KEDA's namespace on OpenShift": ([authentication(""), secret("openshift-keda")], CLUSTER_WIDE, WHOLE),
    "a ConfigMap": (
        [IN_CONFIG_MAP, made("ConfigMap", "demo", "pair", data={"ca.crt": "authority"})],
        "",
        CallCredentials(encrypted=True, authorities_pem=b"authority"),
    ),
    "no parameters but those of other scalers": ([OF_ANOTHER_SCALER], "", NO_TLS),
}


@pytest.mark.parametrize(("objects", "kind", "credentials"), READ.values(), ids=READ)
async def test_parameters_come_from(objects: list[Json], kind: str, credentials: CallCredentials) -> None:
    [caller] = await callers(Api(*objects), kind=kind)
    assert (caller.credentials, caller.missing, caller.unread) == (credentials, (), None)
    assert "key" not in repr(caller.credentials).replace("key_pem", "")


async def test_what_is_not_there_is_gone_without() -> None:
    [caller] = await callers(Api(authentication(), secret("demo", ca_crt=b"", tls_key=b"")))
    assert caller.credentials == NO_TLS
    assert caller.missing == (
        "caCert from key 'ca.crt' of Secret pair",
        "tlsClientKey from key 'tls.key' of Secret pair",
    )
    checks = {each.check: each.what for each in tls_findings([caller], {}, NOW)}
    assert checks.keys() == {"Missing", "IncompleteKeyPair", "TLSOff"}
    assert "nor tlsClientKey from key 'tls.key' of Secret pair: KEDA calls without it" in checks["Missing"]
    [without_secret] = await callers(Api(authentication()))
    assert len(without_secret.missing) == 3


VAULT = authentication(azureKeyVault={"vaultUri": "x", "secrets": [{"parameter": "caCert", "name": "ca"}]})
UNREAD = {
    "it does not exist": (Api(), "fail NotRead", "TriggerAuthentication tls: get "),
    "it may not be read": (Api(authentication(), denied="Secret"), "warn NotRead", "grant verb 'get' on 'secrets'"),
    "only KEDA can read it": (Api(VAULT), "warn NotRead", "caCert comes from azureKeyVault, which only KEDA can read"),
}


@pytest.mark.parametrize(("api", "check", "words"), UNREAD.values(), ids=UNREAD)
async def test_how_keda_calls_is_not_known_where(api: Api, check: str, words: str) -> None:
    [finding] = tls_findings(await callers(api), {}, NOW)
    assert f"{finding.severity} {finding.check}" == check
    assert words in finding.what
    assert ("KEDA builds no scaler" in finding.do) == (check == "fail NotRead")


async def test_each_object_is_read_once() -> None:
    api = Api(authentication(), secret("demo"))
    assert {caller.credentials for caller in await callers(api, count=5)} == {WHOLE}
    assert len(api.read) == 2


@pytest.mark.parametrize("kind", ["", CLUSTER_WIDE])
async def test_the_example_calls_as_it_says(kind: str) -> None:
    file = "cluster-trigger-authentication.yaml" if kind else "trigger-authentication.yaml"
    bodies = [*objects_in((packaged("examples") / "tls" / file).read_text(encoding="utf-8"))]
    given = secret("keda" if kind else "demo", "idle-gpu-scaler-client")
    api = Api(*(each for each in bodies if each["kind"] in RESOURCES and each["kind"] != "Secret"), given)
    [caller] = await callers(api, kind=kind, name="idle-gpu-scaler")
    assert caller.credentials == WHOLE
