import subprocess
import sys
from importlib.metadata import version

from app.cli.command import command

from scaler import __version__


def test_the_version_is_the_one_of_the_distribution():
    assert command("version").out == f"idle-gpu-scaler {__version__}\n"
    assert __version__ == version("idle-gpu-scaler")


def test_demo_without_the_sandbox_says_how_to_install_it():
    alone = (
        "import importlib.metadata as m; m.entry_points = lambda **_: []; from scaler.app.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", alone, "demo", "--act", "first"], capture_output=True, text=True)
    said = "error: the demo is not installed; install it with: pip install 'idle-gpu-scaler[demo]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
