"""The committed stubs are what the generator makes of the proto, and load on every protobuf we claim to support."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scaler.keda._pb import __doc__ as regenerate

ROOT = Path(__file__).parents[2]
STUBS = Path("scaler/keda/_pb")
GENERATED = ("externalscaler_pb2.py", "externalscaler_pb2.pyi", "externalscaler_pb2_grpc.py")

GENERATOR = "grpcio-tools==1.78.0"
LOWEST = ("protobuf==6.31.1", "grpcio==1.78.0")
NEWEST = ("protobuf>=7,<8", "grpcio>=1.78,<2")

_UNREACHABLE = ("dns error", "failed to fetch", "error sending request", "network", "could not connect", "timed out")


def run_isolated(packages: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with only these packages, in the repository's root. Skips where they cannot be had, except in CI."""
    uv = shutil.which("uv")
    if uv is None:
        return _skip("uv is not installed")
    wanted = [word for package in packages for word in ("--with", package)]
    command = [uv, "run", "--isolated", "--no-project", "--quiet", *wanted, "python", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode and any(sign in done.stderr.lower() for sign in _UNREACHABLE):
        return _skip(f"{packages} cannot be fetched: {done.stderr.strip()[-200:]}")
    return done


def _skip(why: str) -> subprocess.CompletedProcess[str]:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def test_the_stubs_are_what_the_proto_generates(tmp_path: Path) -> None:
    done = run_isolated(
        (GENERATOR,),
        *("-m", "grpc_tools.protoc", f"-I{STUBS}=protos"),
        *(f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")),
        str(STUBS / "externalscaler.proto"),
    )
    assert done.returncode == 0, done.stderr
    for name in GENERATED:
        committed, generated = ROOT / STUBS / name, tmp_path / STUBS / name
        assert committed.read_bytes() == generated.read_bytes(), f"{name} is out of date; regenerate:\n{regenerate}"


@pytest.mark.parametrize("packages", [LOWEST, NEWEST], ids=["lowest", "newest"])
def test_the_stubs_load_without_a_warning(packages: tuple[str, ...]) -> None:
    reply = "pb.GetMetricsResponse(metricValues=[pb.MetricValue(metricName='m', metricValue=1, metricValueFloat=1.0)])"
    program = (
        "from scaler.keda._pb import externalscaler_pb2 as pb, externalscaler_pb2_grpc\n"
        f"assert pb.GetMetricsResponse.FromString({reply}.SerializeToString()) == {reply}\n"
    )
    done = run_isolated(packages, "-W", "error", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
