from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from scaler.errors import ConfigurationError
from scaler.samples.config import PrometheusConfig

URL = "http://prometheus.monitoring:9090"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no URL": ({"url": ""}, "'' is not a URL; write for example"),
    "an address without a scheme": ({"url": "prometheus:9090"}, "is not a URL"),
    "another scheme": ({"url": "ftp://prometheus"}, "is not a URL"),
    "a port that is none": ({"url": "http://prometheus:99999"}, "cannot be read"),
    "a broken IPv6 address": ({"url": "http://[::1"}, "cannot be read"),
    "a password in the URL": ({"url": "http://u:t0p-secret@p:9090"}, "use username and password_file"),
    "query parameters": ({"url": f"{URL}/?dedup=true"}, "put query parameters into parameters"),
    "the API's path": ({"url": f"{URL}/api/v1/"}, "leave /api/v1 out"),
    "no time": ({"timeout": timedelta(0)}, "timeout: 0:00:00 is no time"),
    "no attempts": ({"attempts": 0}, "attempts: 0 is too few"),
    "no bytes": ({"max_bytes": 10}, "max_bytes: 10 is too few"),
    "no concurrency": ({"concurrency": 0}, "concurrency: 0 is too few"),
    "a matcher on the name": ({"matchers": {"__name__": "up"}}, "set by the signal"),
    "our own parameters": ({"parameters": {"query": "up"}}, "'query' is set by every query itself"),
    "Thanos' parameters twice": (
        {"thanos": True, "parameters": {"partial_response": "true"}},
        "already set by thanos: true",
    ),
    "a secret header": ({"headers": {"authorization": "Bearer t0p-secret"}}, "use bearer_token_file"),
    "a header that breaks its line": ({"headers": {"X-A": "a\r\nX-B: b"}}, "characters that a header cannot carry"),
    "an empty header": ({"headers": {"X-A": ""}}, "characters that a header cannot carry"),
    "two kinds of credentials": (
        {"bearer_token_file": Path("t"), "username": "u", "password_file": Path("p")},
        "only one of them",
    ),
    "a user without a password": ({"username": "u"}, "belong together"),
    "a password without a user": ({"password_file": Path("p")}, "belong together"),
    "a user with a colon": ({"username": "a:b", "password_file": Path("p")}, "cannot carry a ':'"),
    "a key without a certificate": ({"key_file": Path("k")}, "key_file is set without cert_file"),
    "authorities that are not checked": ({"insecure_skip_verify": True, "ca_file": Path("c")}, "checks nothing"),
}


@pytest.mark.parametrize(("settings", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_with_the_reason_and_without_secrets(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PrometheusConfig(**{"url": URL, **settings})
    assert reason in str(refused.value)
    assert str(refused.value).startswith("prometheus: ")
    assert "t0p-secret" not in str(refused.value)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        PrometheusConfig(url="nonsense", attempts=0, username="u", headers={"Cookie": "c"})
    assert len(str(refused.value).splitlines()) == 4


@pytest.mark.parametrize("url", [f"{URL}/", URL, "https://[::1]:9090", "https://mimir.test/prometheus//"])
def test_trailing_slashes_do_not_matter(url: str) -> None:
    assert not PrometheusConfig(url=url).base_url.endswith("/")


def test_headers_are_not_shown() -> None:
    assert "team-a" not in repr(PrometheusConfig(url=URL, headers={"X-Scope-OrgID": "team-a"}))


def test_files_that_can_be_read_are_accepted(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("client.test").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    (tmp_path / "token").write_text("t")
    PrometheusConfig(
        url=URL,
        ca_file=tmp_path / "ca.pem",
        cert_file=tmp_path / "client.pem",
        bearer_token_file=tmp_path / "token",
    ).check_files()


@pytest.mark.parametrize("name", ["bearer_token_file", "password_file", "ca_file", "cert_file"])
def test_files_that_are_not_there_are_named(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {name: tmp_path / "missing", "username": "u" if name == "password_file" else None}
    with pytest.raises(ConfigurationError, match=rf"prometheus: {name} .*missing.*: No such file"):
        PrometheusConfig(url=URL, **given).check_files()


def test_files_that_hold_something_else_are_named(tmp_path: Path) -> None:
    for name in ("ca.pem", "client.pem", "token"):
        (tmp_path / name).write_text("\n")
    config = PrometheusConfig(
        url=URL,
        ca_file=tmp_path / "ca.pem",
        cert_file=tmp_path / "client.pem",
        bearer_token_file=tmp_path / "token",
    )
    with pytest.raises(ConfigurationError) as refused:
        config.check_files()
    assert [line.split()[1] for line in str(refused.value).splitlines()] == [
        "bearer_token_file",
        "ca_file",
        "cert_file",
    ]


def test_a_key_that_does_not_fit_is_named(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("a.test").cert_chain_pems[0].write_to_path(tmp_path / "a.pem")
    authority.issue_cert("b.test").private_key_pem.write_to_path(tmp_path / "b.key")
    with pytest.raises(ConfigurationError, match="fits the key"):
        PrometheusConfig(url=URL, cert_file=tmp_path / "a.pem", key_file=tmp_path / "b.key").check_files()
