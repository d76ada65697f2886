"""Test parts that several folders share (`prometheus_server`, `http_stub`) lie beside this file.

That this file exists puts its folder on the import path, so that `import prometheus_server` works in every test.
"""

import gc
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

# What a scaler says that runs in the same process is no part of what a command prints.
structlog.configure(
    logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
)

# An example, and making it up, may take as long as a busy machine makes it.
# How fast something is, is measured elsewhere.
# Others are made up each time, and many runs of 20 see more than one of a hundred does; in CI they stay the same, so
# that what fails there is of the change.
settings.register_profile("project", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


if TYPE_CHECKING:
    from small_cluster import SmallCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> "AsyncIterator[SmallCluster]":
    """An embedded API with an empty namespace."""
    from small_cluster import small_cluster

    async with small_cluster(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Chromium that all tests of this process share."""
    from browser import require_chromium, running_chromium

    require_chromium()
    with running_chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected
    if config.getoption("kubeconfig") is None:
        # The embedded API speaks no TLS, and reading the system's authorities takes 20 ms for each of its clients.
        os.environ["SSL_CERT_FILE"] = os.devnull


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: the garbage collector need not go over them, now or later."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubeconfig",
        default=None,
        help="run the contract and end-to-end suites against the cluster of this kubeconfig, not the embedded one",
    )
    parser.addoption(
        "--worker-kubeconfig",
        action="append",
        default=[],
        help="a worker of the cluster of --kubeconfig, which is then a hub of MultiKueue; the suite needs two of them",
    )
    parser.addoption("--seed", type=int, default=None, help="play only this run of tests/admission/test_random_runs.py")
