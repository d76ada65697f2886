"""How Prometheus is reached: address, limits and credentials. Secrets are paths to files, never values."""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from scaler.documents import read_bytes, read_secret
from scaler.errors import ConfigurationError

THANOS_PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "dedup": "true",
        # Thanos' default is to leave out what a broken store holds. What is left out would look like idleness.
        "partial_response": "false",
        # Thanos' default on long ranges is samples averaged over 5 min or 1 h. An average hides work.
        "max_source_resolution": "0s",
    }
)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OURS = frozenset({"query", "time", "timeout"})
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """A configuration that is valid when it is made, except for the files, which `check_files` opens.

    Raises: ConfigurationError that names every problem at once.
    """

    url: str
    """The address, with the path prefix where there is one, such as http://mimir.monitoring:8080/prometheus."""
    timeout: timedelta = timedelta(seconds=10)
    """The longest time of one read or demand query from connecting to the last byte, retries included."""
    attempts: int = 3
    """How often a request is sent at most where it fails in a way that may pass."""
    max_bytes: int = 256 * 2**20
    """Largest decompressed answer. 10,000 GPUs over 30 min take about 25 MiB a signal; this is ten times that."""
    concurrency: int = 4
    """Requests under way at once, each in a thread of its own; more wait. Two signals and a demand query fit."""
    thanos: bool = False
    """Ask for deduplicated, complete, raw data: `THANOS_PARAMETERS`."""
    matchers: Mapping[str, str] = field(default_factory=dict)
    """Labels that every series must carry, such as {"cluster": "prod"}."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Further parameters of each query, such as {"storeMatch[]": "…"}."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers, such as {"X-Scope-OrgID": "team-a"}. Not for secrets."""
    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    """Certificates of the authorities to trust, in place of the system's."""
    cert_file: Path | None = None
    key_file: Path | None = None
    """The file of the key; None: the key is in `cert_file`."""
    insecure_skip_verify: bool = False
    """Accept every certificate. Any server that answers in its place can then cause suspensions."""

    def __post_init__(self) -> None:
        _raise_all(
            [
                *_address_problems(self.url),
                *_limit_problems(self),
                *_request_problems(self),
                *_credential_problems(self),
            ]
        )

    @property
    def base_url(self) -> str:
        """The URL without trailing slashes, which would make a path that no server knows."""
        return self.url.rstrip("/")

    @property
    def fixed_parameters(self) -> dict[str, str]:
        return {**self.parameters, **(THANOS_PARAMETERS if self.thanos else {})}

    def check_files(self) -> None:
        """Raises: ConfigurationError where a file cannot be read or does not hold what it should."""
        context, key = ssl.create_default_context(), self.key_file
        pair = f"a certificate in PEM that fits the key in {key or 'the same file'}"
        _raise_all(
            [
                *_file_problems("bearer_token_file", self.bearer_token_file, read_secret, "a token"),
                *_file_problems("password_file", self.password_file, read_secret, "a password"),
                *_file_problems("ca_file", self.ca_file, context.load_verify_locations, "a certificate in PEM"),
                *_file_problems("cert_file", self.cert_file, lambda path: context.load_cert_chain(path, key), pair),
            ]
        )


def _raise_all(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError("\n".join(f"prometheus: {problem}" for problem in problems))


def _address_problems(url: str) -> Iterator[str]:
    """The URL is quoted only after it is known to hold no password."""
    try:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            yield "url: holds a user or password; use username and password_file"
        elif parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            yield f"url: {url!r} is not a URL; write for example 'http://prometheus.monitoring:9090'"
        elif parts.query or parts.fragment or any(char.isspace() for char in url):
            yield f"url: {url!r} holds more than scheme, host, port and path; put query parameters into parameters"
        elif parts.path.rstrip("/").endswith("/api/v1"):
            yield f"url: {url!r} ends with the API's own path; leave /api/v1 out"
    except ValueError as error:
        yield f"url: cannot be read ({error}); write for example 'http://prometheus.monitoring:9090'"


def _limit_problems(config: PrometheusConfig) -> Iterator[str]:
    if config.timeout < timedelta(milliseconds=1):
        yield f"timeout: {config.timeout} is no time at all; write for example '10s'"
    for name, least in (("attempts", 1), ("max_bytes", 1024), ("concurrency", 1)):
        if getattr(config, name) < least:
            yield f"{name}: {getattr(config, name)} is too few; {least} is the least"


def _request_problems(config: PrometheusConfig) -> Iterator[str]:
    yield from _matcher_problems(config.matchers)
    for name in config.parameters:
        if name in _OURS:
            yield f"parameters: {name!r} is set by every query itself; remove it"
        elif config.thanos and name in THANOS_PARAMETERS:
            yield f"parameters: {name!r} is already set by thanos: true; remove one of them"
    for name, value in config.headers.items():
        if name.lower() in _SECRET_HEADERS:
            yield f"headers: {name!r} would hold a secret; use bearer_token_file, or username and password_file"
        elif not _is_header(name) or not _is_header(value):
            yield f"headers: {name!r} or its value has characters that a header cannot carry"


def _matcher_problems(matchers: Mapping[str, str]) -> Iterator[str]:
    for name, value in matchers.items():
        if not _LABEL.fullmatch(name):
            yield f"matcher {name!r}: not a label name; use letters, digits and underscores"
        elif name == "__name__":
            yield "matcher '__name__': the metric's name is set by the signal; configure it there"
        elif not isinstance(value, str):
            yield f"matcher {name!r}: its value must be text, not {value!r}; put it in quotes"


def _is_header(text: str) -> bool:
    return isinstance(text, str) and bool(text) and text == text.strip() and text.isascii() and text.isprintable()


def _credential_problems(config: PrometheusConfig) -> Iterator[str]:
    if config.bearer_token_file and (config.username is not None or config.password_file):
        yield "bearer_token_file and username/password_file are both set; a request can carry only one of them"
    if (config.username is None) != (config.password_file is None):
        yield "username and password_file belong together; set both or none"
    if config.username is not None and ":" in config.username:
        yield "username: basic authentication cannot carry a ':' in it"
    if config.key_file and not config.cert_file:
        yield "key_file is set without cert_file; set both, or only cert_file where it holds the key too"
    if config.insecure_skip_verify and config.ca_file:
        yield "insecure_skip_verify and ca_file are both set; with the first the second checks nothing"


def _file_problems(name: str, path: Path | None, check: Callable[[Path], object], wanted: str) -> Iterator[str]:
    """Why the file cannot be used; `check` raises SSLError or ValueError where it does not hold what is wanted."""
    try:
        if path is not None:
            read_bytes(path)
            check(path)
    except (ssl.SSLError, ValueError):
        yield f"{name} {path}: does not hold {wanted}"
    except ConfigurationError as error:
        yield f"{name} {error}"
