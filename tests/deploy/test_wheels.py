"""The distributions, built and installed as a user installs them: each brings its verbs to the program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.test_image import OFFLINE

from deploy.helm_chart import ROOT

EXTRAS = ["analysis", "demo"]


def run(*command: object, seconds: float = 100) -> str:
    """What the command prints on standard output."""
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    words = [str(each) for each in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode and any(word in done.stderr for word in OFFLINE):
        reason = "the package index cannot be reached, and wheels need their dependencies"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    return done.stdout


@pytest.mark.slow
def test_wheels_bring_their_verbs_in_an_empty_environment(tmp_path: Path) -> None:
    run("uv", "build", "--quiet", "--wheel", "--all-packages", "--directory", ROOT, "--out-dir", tmp_path / "dist")
    wheels = sorted((tmp_path / "dist").glob("*.whl"))
    assert [each.name.partition("-")[0] for each in wheels] == [
        "idle_gpu_scaler",
        "idle_gpu_scaler_analysis",
        "idle_gpu_scaler_sandbox",
    ]
    python, program = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "bin" / "idle-gpu-scaler"
    run("uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
    run("uv", "pip", "install", "--quiet", "--python", python, wheels[0])
    assert [each for each in EXTRAS if f"(extra '{each}')" in run(program, "--help")] == EXTRAS
    run("uv", "pip", "install", "--quiet", "--python", python, wheels[1])
    assert "--idle-after" in run(program, "simulate", "--help")
    assert "--focus" in run(program, "report", "--help")
    run("uv", "pip", "install", "--quiet", "--python", python, wheels[2])
    story = run(program, "demo", "--act", "second", "--json")
    assert json.loads(story.splitlines()[-1])["ok"]
