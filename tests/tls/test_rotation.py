"""Files that are replaced in every way, good and bad, and what is served after it."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from made_certificates import Made
from secret_volume import TOMORROW, YESTERDAY, SecretVolume, chain_of
from small_cluster import until
from virtual_clock import VirtualClock

from scaler.clock import Clock
from scaler.errors import ConfigurationError
from scaler.tls.material import CertificateFiles, read_material
from scaler.tls.rotation import CertificateChange, Rotation

AUTHORITY = trustme.CA()
ONE, OTHER = AUTHORITY.issue_cert("one"), AUTHORITY.issue_cert("other")


def key_of(issued: trustme.LeafCert) -> bytes:
    return issued.private_key_pem.bytes()


def rotating(volume: SecretVolume, *, mutual: bool = False, **more: Clock) -> tuple[Rotation, list[CertificateChange]]:
    events: list[CertificateChange] = []
    return Rotation(volume.files(mutual=mutual), use="grpc", observe=events.append, **more), events


def follow(rotation: Rotation) -> str:
    """Look once; the name that is served then."""
    rotation.take(rotation.look())
    return rotation.material.chain[0].dns_names[0]


@pytest.fixture
def volume(tmp_path: Path) -> SecretVolume:
    made = SecretVolume(tmp_path)
    made.put_certificate(ONE, AUTHORITY)
    return made


def test_a_volume_that_is_swapped_by_its_link_is_noticed(volume: SecretVolume) -> None:
    rotation, events = rotating(volume)
    assert follow(rotation) == "one"
    volume.put_certificate(OTHER)
    assert follow(rotation) == "other"
    assert follow(rotation) == "other"
    assert [(event.is_new, event.served.chain[0].dns_names) for event in events] == [
        (True, ("one",)),
        (True, ("other",)),
    ]


@pytest.mark.parametrize("way", ["written in place", "moved to its place"])
def test_plain_files_are_followed_even_when_their_times_do_not_change(way: str, tmp_path: Path) -> None:
    pair = tmp_path / "tls.crt", tmp_path / "tls.key"
    for path, content in zip(pair, (chain_of(ONE), key_of(ONE)), strict=True):
        path.write_bytes(content)
        os.utime(path, (1_000, 1_000))
    rotation = Rotation(CertificateFiles(certificate=pair[0], key=pair[1]), use="grpc")
    for path, content in zip(pair, (chain_of(OTHER), key_of(OTHER)), strict=True):
        target = path if way == "written in place" else path.with_suffix(".new")
        target.write_bytes(content)
        target.replace(path)
        os.utime(path, (1_000, 1_000))
    assert follow(rotation) == "other"


HALF = chain_of(OTHER)[:-100]
ENCRYPTED = serialization.load_pem_private_key(key_of(OTHER), None).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"secret"),
)
SPOILT = {
    "a certificate without its key": ({"tls_crt": chain_of(OTHER), "tls_key": key_of(ONE)}, "belongs to another key"),
    "half a certificate": ({"tls_crt": HALF, "tls_key": key_of(OTHER)}, "a certificate in it cannot be read"),
    "half a key": ({"tls_crt": chain_of(OTHER), "tls_key": key_of(OTHER)[:60]}, "cannot be used together"),
    "an empty certificate": ({"tls_crt": b"", "tls_key": key_of(OTHER)}, "holds no certificate in PEM"),
    "an empty key": ({"tls_crt": chain_of(OTHER), "tls_key": b""}, "cannot be used together"),
    "a key that is encrypted": ({"tls_crt": chain_of(OTHER), "tls_key": ENCRYPTED}, "is encrypted"),
    "something else": ({"tls_crt": b"\0" * 100, "tls_key": b"\xff" * 100}, "holds no certificate in PEM"),
    "a key in the certificate's place": ({"tls_crt": key_of(ONE), "tls_key": chain_of(ONE)}, "holds no certificate"),
    "far too much": ({"tls_crt": chain_of(OTHER) * 3000, "tls_key": key_of(OTHER)}, "larger than 1,024 KiB"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_what_cannot_be_served_leaves_what_is_and_is_told_once(case: str, volume: SecretVolume) -> None:
    content, words = SPOILT[case]
    rotation, events = rotating(volume)
    volume.put(**content)
    assert [follow(rotation) for _ in range(3)] == ["one"] * 3
    [_, kept] = events
    assert not kept.is_new
    assert words in kept.problem
    assert str(volume.folder) in kept.problem, "it says which file"
    assert "PRIVATE" not in kept.problem
    volume.put_certificate(OTHER)
    assert follow(rotation) == "other"
    assert [event.is_new for event in events] == [True, False, True]


def test_what_cannot_be_served_ends_the_start(volume: SecretVolume) -> None:
    volume.put(tls_crt=HALF, tls_key=key_of(OTHER))
    with pytest.raises(ConfigurationError, match="a certificate in it cannot be read"):
        rotating(volume)


def test_files_that_go_leave_what_is_served_until_they_are_back(volume: SecretVolume) -> None:
    rotation, events = rotating(volume)
    hidden = volume.folder / "hidden"
    (volume.folder / "..data").rename(hidden)
    assert follow(rotation) == "one"
    hidden.rename(volume.folder / "..data")
    assert [follow(rotation) for _ in range(2)] == ["one", "one"]
    _, unusable, again = events
    assert not unusable.is_new
    assert "No such file or directory" in unusable.problem
    assert (again.is_new, again.problem) == (False, "")


def test_a_certificate_that_is_over_does_not_replace_one_that_is_not(volume: SecretVolume) -> None:
    rotation, events = rotating(volume)
    volume.put_certificate(AUTHORITY.issue_cert("other", not_after=YESTERDAY))
    assert follow(rotation) == "one"
    assert "its certificate was good until" in events[-1].problem


def test_a_certificate_waits_for_its_time(volume: SecretVolume) -> None:
    clock = VirtualClock(datetime.now(UTC))
    rotation, events = rotating(volume, clock=clock)
    volume.put_certificate(AUTHORITY.issue_cert("other", not_before=TOMORROW))
    assert follow(rotation) == "one"
    assert "is good from" in events[-1].problem
    clock.jump((TOMORROW - clock.now()).total_seconds() + 1)
    assert follow(rotation) == "other"


def test_one_that_is_over_is_served_at_the_start_and_that_is_told(volume: SecretVolume) -> None:
    volume.put_certificate(AUTHORITY.issue_cert("other", not_after=YESTERDAY))
    rotation, events = rotating(volume)
    assert [follow(rotation) for _ in range(2)] == ["other", "other"]
    [taken] = events
    assert taken.is_new
    assert "was good until" in taken.problem


def test_an_authority_of_clients_is_followed_by_itself(volume: SecretVolume) -> None:
    rotation, events = rotating(volume, mutual=True)
    renewed = trustme.CA()
    volume.put_certificate(ONE, renewed)
    follow(rotation)
    assert rotation.material.client_authorities_pem == renewed.cert_pem.bytes()
    assert [event.is_new for event in events] == [True, True]
    volume.put(tls_crt=chain_of(ONE), tls_key=key_of(ONE), ca_crt=b"")
    follow(rotation)
    assert rotation.material.client_authorities_pem == renewed.cert_pem.bytes()
    assert "ca.crt holds no certificate in PEM" in events[-1].problem


def test_a_bundle_of_authorities_ends_with_the_last_and_a_chain_with_the_first(volume: SecretVolume) -> None:
    shorter = Made.of("shorter", is_authority=True).pair.certificate
    volume.put(tls_crt=chain_of(ONE), tls_key=key_of(ONE), ca_crt=AUTHORITY.cert_pem.bytes() + shorter)
    first, second = read_material(volume.files(mutual=True)).authorities
    assert read_material(volume.files(mutual=True)).trust_ends == first.not_after > second.not_after
    between = AUTHORITY.create_child_ca()
    issued = between.issue_cert("other", not_after=TOMORROW)
    volume.put_certificate(issued, AUTHORITY)
    material = read_material(volume.files())
    assert material.ends == material.chain[0].not_after < material.chain[1].not_after
    assert material.trust_ends is None


def test_nothing_of_a_key_is_in_what_is_printed(volume: SecretVolume) -> None:
    secret = key_of(ONE).splitlines()[1].decode()
    assert secret not in repr(read_material(volume.files()))


def test_reading_leaves_no_file_open(volume: SecretVolume) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(20):
        read_material(volume.files(mutual=True))
    volume.put(tls_crt=chain_of(ONE), tls_key=b"")
    for _ in range(20):
        with pytest.raises(ConfigurationError):
            read_material(volume.files())
    assert len([*Path("/proc/self/fd").iterdir()]) == before


async def test_the_loop_looks_again_and_again(volume: SecretVolume) -> None:
    clock = VirtualClock()
    rotation = Rotation(volume.files(), use="grpc", every=timedelta(seconds=10), clock=clock)
    looking = asyncio.create_task(rotation.run())
    for issued, name in ((OTHER, "other"), (ONE, "one")):
        volume.put_certificate(issued)
        await clock.advance(9.9)
        assert rotation.material.chain[0].dns_names != (name,)
        await clock.advance(0.1)
        await until(lambda served=name: rotation.material.chain[0].dns_names == (served,))  # a thread reads the files
    looking.cancel()
