from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crooked_api import CrookedApi, write_kubeconfig

from scaler.kube.calls import Call
from scaler.kube.transport import KubeTransport


@pytest.fixture
async def crooked() -> AsyncIterator[CrookedApi]:
    async with CrookedApi().serving() as api:
        yield api


@pytest.fixture
def calls() -> list[Call]:
    """What the transport has reported to its observer."""
    return []


@pytest.fixture
async def transport(crooked: CrookedApi, tmp_path: Path, calls: list[Call]) -> AsyncIterator[KubeTransport]:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", crooked.url)
    async with await KubeTransport.connect(kubeconfig, call_seconds=5, observe=calls.append) as connected:
        yield connected
