"""How is the Kubernetes API reached? A kubeconfig or the Pod's service account → an API client.

The official client is used for exactly this: to read configuration, run credential plugins, set up TLS and keep tokens
fresh. Everything else (requests, errors, watches) is `transport.py`'s. Importing it takes most of a second, so it is
imported when it is first needed.

Traps of the client that are closed here:

* A kubeconfig that does not exist is only logged, and fails later as something else.
* A credential plugin that fails is only logged, and every request is then anonymous.
* A token file is read once; service account tokens and many others are rotated within the hour.
* On Python 3.13 certificates are checked by stricter rules than kubectl's, and cluster CAs in the field fail them.
"""

import asyncio
import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import structlog
from msgspec import Struct, ValidationError, convert, field

from scaler import __version__
from scaler.documents import document, read_text, unreadable
from scaler.errors import ConfigurationError
from scaler.tls.certificates import is_loopback

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

_log = structlog.get_logger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LAST_LOAD_SECONDS = 5.0
"""How long an end waits for a credential plugin that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    api: "ApiClient"
    server: str
    source: str
    """The place that the configuration came from, for messages."""
    loader: Any = None
    """Loads the credentials again; None where the client does that itself (a service account) or there are none."""
    refresh_seconds: float = 60.0
    """How often credentials of a kubeconfig are loaded again. A plugin whose token has not expired is not run."""

    async def keep_fresh(self) -> None:
        """Runs until cancelled. A failure leaves the credentials as they are: they may well be good for longer."""
        while self.loader is not None:
            await asyncio.sleep(self.refresh_seconds)
            try:
                await self._load_again()
            except Exception as error:
                _log.warning("KubeCredentialsNotRefreshed", source=self.source, error=str(error))

    async def _load_again(self) -> None:
        """A load runs to its end, even where the caller was cancelled: a plugin would go on and its answer be lost."""
        loading = asyncio.ensure_future(_load(self.loader, self.api.configuration))
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            with suppress(Exception):
                await asyncio.wait_for(loading, _LAST_LOAD_SECONDS)
            raise


async def open_access(
    kubeconfig: str | Path | None = None, context: str | None = None, *, service_account: Path = SERVICE_ACCOUNT
) -> Access:
    """Access by, in this order: the given kubeconfig, $KUBECONFIG, the Pod's service account, ~/.kube/config.

    A given context rules the service account out. Raises: ConfigurationError.
    """
    paths = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG", "")
    if paths:
        return await _from_kubeconfig(paths, context)
    if context is None and os.environ.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").is_file():
        return _from_service_account(service_account)
    home = Path.home() / ".kube" / "config"
    if home.is_file():
        return await _from_kubeconfig(str(home), context)
    raise ConfigurationError(
        "no access to a Kubernetes API is configured: no kubeconfig is given, $KUBECONFIG is not set, "
        f"this does not run in a Pod with a service account, and {home} does not exist; "
        "pass --kubeconfig FILE or run in the cluster"
    )


def _from_service_account(folder: Path) -> Access:
    from kubernetes.aio.config.config_exception import ConfigException
    from kubernetes.aio.config.incluster_config import InClusterConfigLoader

    configuration = _new_configuration()
    loader = InClusterConfigLoader(  # type: ignore[no-untyped-call]
        token_filename=str(folder / "token"), cert_filename=str(folder / "ca.crt")
    )
    try:
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise ConfigurationError(
            f"the Pod's service account in {folder} cannot be used: {error}; is automountServiceAccountToken off?"
        ) from error
    return _access(configuration, source=f"service account {folder}")


async def _from_kubeconfig(paths: str, context: str | None) -> Access:
    from kubernetes.aio import config

    check_kubeconfig(paths, context)
    configuration = _new_configuration()
    try:
        loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=paths, context=context, client_configuration=configuration, persist_config=False
        )
    except Exception as error:
        words = " ".join(str(error).split())
        raise ConfigurationError(f"kubeconfig {paths}: {words or type(error).__name__}") from error
    _check_credentials(loader, configuration, paths)
    has_token = "BearerToken" in configuration.api_key
    return _access(configuration, source=f"kubeconfig {paths}", loader=loader if has_token else None)


def check_kubeconfig(paths: str, context: str | None = None) -> None:
    """Raises: ConfigurationError unless one of the listed files is there, and all of them together name a server."""
    candidates = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    found = [_read_kubeconfig(path) for path in candidates if os.path.isfile(path)]  # noqa: PTH113 (no name is too long)
    if not found:
        raise ConfigurationError(f"kubeconfig {paths} does not exist; check --kubeconfig or $KUBECONFIG")
    wanted = context or next((each.current_context for each in found if each.current_context), "")
    contexts = {each.name: each.context for file in reversed(found) for each in reversed(file.contexts or ())}
    clusters = {each.name for file in found for each in file.clusters or ()}
    if wanted not in contexts:
        known = f"there are: {', '.join(sorted(contexts)) or 'none'}"
        raise ConfigurationError(f"kubeconfig {paths}: it has no context {wanted!r}; {known}")
    if contexts[wanted].cluster not in clusters:
        raise ConfigurationError(f"kubeconfig {paths}: it has no cluster {contexts[wanted].cluster!r}")


def _read_kubeconfig(path: Path) -> "_Kubeconfig":
    """Raises: ConfigurationError."""
    where = f"kubeconfig {path}"
    try:
        return convert(document(read_text(path), where) or {}, _Kubeconfig)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {unreadable(error)}") from None


def _check_credentials(loader: Any, configuration: "Configuration", paths: str) -> None:
    """Raises: ConfigurationError where the kubeconfig names a credential plugin that gave nothing."""
    _strip_tokens(configuration)
    user = loader._user or {}
    if "exec" in user and "BearerToken" not in configuration.api_key and not configuration.cert_file:
        raise ConfigurationError(
            f"kubeconfig {paths}: the credential plugin {user['exec']['command']!r} gave neither token nor "
            "certificate; run it by hand to see why"
        )


async def _load(loader: Any, configuration: "Configuration") -> None:
    await loader.load_and_set(configuration)
    _strip_tokens(configuration)


def _strip_tokens(configuration: "Configuration") -> None:
    # A token file commonly ends in a newline, with which no HTTP header can be sent.
    configuration.api_key = {name: key.strip() for name, key in configuration.api_key.items()}


def _new_configuration() -> "Configuration":
    from kubernetes.aio.client import Configuration

    configuration = Configuration()
    configuration.disable_strict_ssl_verification = True
    # Every watch keeps a connection to itself. With a limit, calls would wait for a watch to end once there are as many
    # (by default 100: 25 namespaces of 4 kinds each).
    configuration.connection_pool_maxsize = 0
    return configuration


def _access(configuration: "Configuration", *, source: str, loader: Any = None) -> Access:
    from kubernetes.aio.client import ApiClient

    try:
        api = ApiClient(configuration)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(f"{source}: its certificates cannot be used: {error}") from error
    api.user_agent = f"idle-gpu-scaler/{__version__}"
    if not configuration.verify_ssl:
        _log.warning("KubeTLSNotVerified", source=source, server=configuration.host)
    return Access(api=api, server=configuration.host, source=source, loader=loader)


# --------------------------------------------------------------------------------------- kubeconfigs of other clusters


class _ClusterEntry(Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _ExecEntry(Struct, frozen=True):
    command: str


class _UserEntry(Struct, frozen=True, rename="kebab"):
    token: str = ""
    token_file: str = field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: _ExecEntry | None = None
    auth_provider: Any = None


class _ContextEntry(Struct, frozen=True):
    cluster: str = ""
    user: str = ""


class _NamedCluster(Struct, frozen=True):
    name: str
    cluster: _ClusterEntry | None = None


class _NamedUser(Struct, frozen=True):
    name: str
    user: _UserEntry | None = None


class _NamedContext(Struct, frozen=True):
    name: str
    context: _ContextEntry = _ContextEntry()


class _Kubeconfig(Struct, frozen=True, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None  # kubectl writes null where there is none
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


def access_of_kubeconfig(content: bytes, *, source: str) -> Access:
    """Access by a kubeconfig that somebody else wrote into a Secret, trusted no further than Kueue trusts it.

    Whoever may write it may not make this process run programs, read its files, or talk without TLS checks.

    Raises: ConfigurationError. Source: Kueue, multikueuecluster.go, validateKubeconfig.
    """
    cluster, user = _entries(content, source)
    if problem := _refused(cluster, user):
        raise ConfigurationError(f"{source}: {problem}")
    configuration = _new_configuration()
    configuration.host = cluster.server.rstrip("/")
    configuration.tls_server_name = cluster.tls_server_name or None
    configuration.proxy = cluster.proxy_url or None
    if user.token:
        configuration.api_key = {"BearerToken": f"Bearer {user.token.strip()}"}
    try:
        if cluster.certificate_authority_data:
            configuration.ca_cert_data = _decoded(cluster.certificate_authority_data).decode("ascii")
        with _client_certificate(user) as files:
            configuration.cert_file, configuration.key_file = files
            return _access(configuration, source=source)
    except ValueError as error:
        raise ConfigurationError(f"{source}: its certificates cannot be used: {error}") from error


def _refused(cluster: _ClusterEntry, user: _UserEntry) -> str:
    """Why a kubeconfig is not used; empty where it is."""
    server = urlsplit(cluster.server)
    refusals = {
        "the context has no cluster with a server": not server.hostname or server.scheme not in ("http", "https"),
        "insecure-skip-tls-verify is not allowed": cluster.insecure_skip_tls_verify,
        "certificate-authority is a file; write certificate-authority-data": bool(cluster.certificate_authority),
        "tokenFile is not allowed; write token": bool(user.token_file),
        "client-certificate is a file; write client-certificate-data": bool(user.client_certificate),
        "client-key is a file; write client-key-data": bool(user.client_key),
        "exec plugins are not allowed": user.exec is not None,
        "auth providers are not allowed": user.auth_provider is not None,
        "basic auth is not allowed": bool(user.username or user.password),
        "a token is not sent without TLS; write an https server": bool(user.token) and _can_be_read(server),
    }
    return next((problem for problem, is_so in refusals.items() if is_so), "")


def _can_be_read(server: SplitResult) -> bool:
    """Whether others on the network could read what is sent there."""
    return server.scheme == "http" and not is_loopback(server.hostname or "")


def _entries(content: bytes, source: str) -> tuple[_ClusterEntry, _UserEntry]:
    """Cluster and user of the current context. Raises: ConfigurationError."""
    try:
        config = convert(document(content.decode(), source), _Kubeconfig)
        context = {each.name: each.context for each in config.contexts or ()}[config.current_context]
        clusters = {each.name: each.cluster or _ClusterEntry() for each in config.clusters or ()}
        users = {each.name: each.user or _UserEntry() for each in config.users or ()}
        return clusters[context.cluster], users.get(context.user, _UserEntry())
    except KeyError as error:
        raise ConfigurationError(f"{source}: it has no {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{source}: it is not a kubeconfig: {type(error).__name__}") from error


def _decoded(data: str) -> bytes:
    return base64.b64decode(data, validate=True)


@contextmanager
def _client_certificate(user: _UserEntry) -> Iterator[tuple[str | None, str | None]]:
    """Paths of certificate and key while this lasts: the TLS library reads files, and nothing is written to a disk."""
    if not user.client_certificate_data:
        yield None, None
        return
    with ExitStack() as stack:
        paths = [_in_memory(stack, data) for data in (user.client_certificate_data, user.client_key_data)]
        yield paths[0], paths[1]


def _in_memory(stack: ExitStack, data: str) -> str:
    file = os.memfd_create("kubeconfig", os.MFD_CLOEXEC)
    stack.callback(os.close, file)
    os.write(file, _decoded(data))
    return f"/proc/self/fd/{file}"
