import pytest

from scaler.errors import ConfigurationError
from scaler.samples.dcgm_endpoints import Endpoint, addresses, parse_endpoint


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.7:9400/metrics", "http://10.0.0.7:9400/metrics"),
        ("http://10.0.0.7:9400", "http://10.0.0.7:9400/metrics"),
        ("http://10.0.0.7:9400/", "http://10.0.0.7:9400/metrics"),
        ("https://node-a/gpus?collect=all", "https://node-a/gpus?collect=all"),
        ("http://[fd00::7]:9400", "http://[fd00::7]:9400/metrics"),
    ],
)
async def test_a_url_is_one_endpoint(text: str, url: str) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(url=url)
    assert await addresses(endpoint) == [endpoint]


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.7:9400", "ftp://10.0.0.7", "http://", "http://a:99999", "http://[::1", "http://u:s3cret@a:9400"],
)
def test_what_is_no_url_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write for example 'http://10") as refused:
        parse_endpoint(text)
    assert "s3cret" not in str(refused.value)


def test_addresses_cannot_be_checked_by_certificates() -> None:
    with pytest.raises(ConfigurationError, match="with http only"):
        parse_endpoint("dns+https://dcgm-exporter:9400")


async def test_a_name_stands_for_all_of_its_addresses() -> None:
    found = await addresses(parse_endpoint("dns+http://localhost:9400"))
    assert Endpoint(url="http://127.0.0.1:9400/metrics") in found
    assert {endpoint.instance for endpoint in found} <= {"127.0.0.1:9400", "[::1]:9400"}


async def test_a_name_without_addresses_is_an_error() -> None:
    with pytest.raises(OSError, match="not known"):
        await addresses(parse_endpoint("dns+http://dcgm-exporter.invalid:9400"))
