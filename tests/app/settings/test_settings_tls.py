from datetime import timedelta
from pathlib import Path

import pytest

from scaler.app.settings.load import load
from scaler.app.settings.model import TlsSettings
from scaler.errors import ConfigurationError

PAIR = {"certFile": "/tls/tls.crt", "keyFile": "/tls/tls.key"}


def loaded(**tls: object) -> TlsSettings | None:
    return load(None, environ={}, flags={"grpc": {"tls": tls}}).grpc.tls


def test_a_certificate_and_its_key_are_enough() -> None:
    tls = loaded(**PAIR)
    assert tls
    assert (tls.cert_file, tls.key_file) == (Path("/tls/tls.crt"), Path("/tls/tls.key"))
    assert (tls.client_ca_file, tls.client_names, tls.check_every) == (None, (), timedelta(seconds=10))


REFUSED = {
    "a certificate without its key": ({"certFile": "/a"}, "grpc.tls.keyFile: Field required"),
    "a key without its certificate": ({"keyFile": "/a"}, "grpc.tls.certFile: Field required"),
    "names without an authority": ({**PAIR, "clientNames": ["keda"]}, "set clientCaFile, too"),
    "an empty name": ({**PAIR, "clientCaFile": "/c", "clientNames": [" "]}, "clientNames: a name is empty"),
    "a misspelt key": ({**PAIR, "clientCAFile": "/c"}, "did you mean 'clientCaFile'?"),
    "no time at all": ({**PAIR, "checkEvery": "0s"}, "write a duration above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused(case: str) -> None:
    tls, words = REFUSED[case]
    with pytest.raises(ConfigurationError) as refusal:
        loaded(**tls)
    assert words in str(refusal.value)
