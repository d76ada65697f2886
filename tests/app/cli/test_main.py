import subprocess
import sys
from importlib.metadata import version

import pytest
from app.cli.command import command

from scaler import __version__


def test_the_version_is_the_one_of_the_distribution():
    assert command("version").out == f"idle-gpu-scaler {__version__}\n"
    assert __version__ == version("idle-gpu-scaler")


def test_without_a_verb_it_says_what_there_is():
    shown = command()
    for verb in ("demo", "run", "explain", "version"):
        assert f"  {verb}" in shown.out + shown.err


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("demo", ["--json", "--source", "--serve"]),
        (
            "run",
            [
                "--config",
                "--components",
                "--kubeconfig",
                "--context",
                "--prometheus-url",
                "--dcgm-endpoint",
                "--grpc-address",
                "--http-address",
                "--log-level",
                "--log-format",
            ],
        ),
        (
            "explain",
            ["NAMESPACE/NAME", "--server", "--local", "--config", "--kubeconfig", "--prometheus-url", "--json"],
        ),
        ("version", []),
    ],
)
def test_every_verb_explains_its_flags(verb, flags):
    shown = command(verb, "--help")
    assert shown.status == 0
    for flag in flags:
        assert flag in shown.out
    assert "Traceback" not in shown.err


def test_an_unknown_flag_is_refused():
    shown = command("run", "--no-such-flag")
    assert shown.status == 2
    assert "--no-such-flag" in shown.err


def test_demo_without_the_sandbox_says_how_to_install_it():
    alone = (
        "import importlib.metadata as m; m.entry_points = lambda **_: []; from scaler.app.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", alone, "demo", "--act", "first"], capture_output=True, text=True)
    said = "error: the demo is not installed; install it with: pip install 'idle-gpu-scaler[demo]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
