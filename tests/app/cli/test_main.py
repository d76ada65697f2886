import subprocess
import sys
from importlib.metadata import version

from app.cli.command import command

from scaler import __version__


def test_the_version_is_the_one_of_the_distribution():
    assert command("version").out == f"idle-gpu-scaler {__version__}\n"
    assert __version__ == version("idle-gpu-scaler")


def test_a_verb_that_is_not_installed_says_how_to_install_it() -> None:
    verbs = {"demo": "demo", "report": "analysis", "simulate": "analysis"}
    alone = (
        "import importlib.metadata as m, sys; m.entry_points = lambda **_: []; from scaler.app.cli.main import main\n"
        "for sys.argv[1] in sys.argv[2:]:\n"
        "    try:\n        main()\n"
        "    except SystemExit as ended:\n        assert ended.code == 2"
    )
    words = [sys.executable, "-c", alone, "", *verbs]
    done = subprocess.run(words, capture_output=True, text=True)
    said = "".join(
        f"error: {verb} is not installed; install it with: pip install 'idle-gpu-scaler[{extra}]'\n"
        for verb, extra in verbs.items()
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)
