import subprocess
import sys
from importlib.metadata import version

import pytest
from app.cli.command import command

from scaler import __version__


def test_the_version_is_the_one_of_the_distribution():
    assert command("version").out == f"idle-gpu-scaler {__version__}\n"
    assert __version__ == version("idle-gpu-scaler")


@pytest.mark.parametrize(("verb", "extra"), [("demo", "demo"), ("report", "analysis"), ("simulate", "analysis")])
def test_a_verb_that_is_not_installed_says_how_to_install_it(verb: str, extra: str) -> None:
    alone = (
        "import importlib.metadata as m; m.entry_points = lambda **_: []; from scaler.app.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", alone, verb, "--help"], capture_output=True, text=True)
    said = f"error: {verb} is not installed; install it with: pip install 'idle-gpu-scaler[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
