"""The image's steps, run as the Dockerfile runs them, without a container: building one takes minutes."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from deploy.helm_chart import DEPLOY, ROOT
from scaler import __version__

DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
SCRIPT = DEPLOY / "image" / "build.sh"
NOT_FOR_USE = {
    *("pip", "setuptools", "wheel", "hatchling", "pytest", "mypy", "ruff", "helm-python-sdk", "jsonschema-rs"),
    "idle-gpu-scaler-sandbox",
}


OFFLINE = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "client error (Connect)", "ProxyError")


def step(*arguments: object) -> str:
    """What one step of the script prints, run from the project's root."""
    command = [str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": sys.executable}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode and any(word in done.stderr for word in OFFLINE):
        reason = "the package index cannot be reached, and the image is made of packages"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_steps_make_a_program_that_starts_and_a_complete_list_of_it(tmp_path: Path) -> None:
    """One test, since they take seconds: the image's contents are made only once."""
    tools, program, sbom = tmp_path / "tools", tmp_path / "program", tmp_path / "sbom.json"
    step("tools", tools)
    step("dependencies", tools, program)
    step("program", tools, program)
    step("sbom", tools, sbom)
    assert step("check", program) == f"idle-gpu-scaler {__version__}\n"
    [packages] = program.glob("lib/*/site-packages")
    brought = {path.name for path in (packages / "scaler" / "_data" / "crds").iterdir()}
    assert brought == {path.name for path in (DEPLOY / "crds").iterdir()}
    installed = {plain(each.name): each.version for each in distributions(path=[str(packages)])}
    assert not installed.keys() & NOT_FOR_USE
    assert (packages / "scaler_analysis").exists()
    assert not (packages / "scaler_sandbox").exists()
    document = json.loads(sbom.read_text(encoding="utf-8"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    components = [*document["components"], document["metadata"]["component"]]
    # Of a package that is locked in a version for each Python all are listed.
    assert installed.items() <= {(each["name"], each["version"]) for each in components}
    listed = {each["name"] for each in components}
    assert not {name for name in listed - installed.keys() if not is_elsewhere(name, document)}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def is_elsewhere(name: str, document: dict[str, object]) -> bool:
    """Whether it is listed for another platform or another Python than this one."""
    components = document["components"]
    assert isinstance(components, list)
    [component] = [each for each in components if each["name"] == name]
    return any(each["name"] == "uv:package:marker" for each in component.get("properties", ()))


def test_every_tool_is_held_to_a_hash() -> None:
    text = (DEPLOY / "image" / "tools.txt").read_text(encoding="utf-8")
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert {each.partition("==")[0] for each in requirements} >= {"uv", "hatchling"}
    assert all("--hash=sha256:" in each for each in requirements)
    for line in (DEPLOY / "image" / "tools.in").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or line in text


def test_the_dockerfile_runs_every_step_of_the_script() -> None:
    steps = re.search(r"^    ((?:\w+ \| )+\w+)\) ", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    assert steps
    assert re.findall(r"deploy/image/build\.sh (\w+)", DOCKERFILE) == steps[1].split(" | ")


def test_the_dockerfile_copies_what_the_wheel_is_made_of_and_nothing_that_is_ignored() -> None:
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for source in line.split()
    }
    assert all((ROOT / each).exists() for each in copied)
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == copied
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].keys() <= copied


def test_the_image_needs_no_root_no_shell_and_no_disk() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "USER 65532:65532" in last
    assert 'ENTRYPOINT ["idle-gpu-scaler"]' in last
    assert "PYTHONDONTWRITEBYTECODE=1" in last
    assert "HEALTHCHECK" not in last
    assert f"ARG VERSION={__version__}" in last
    assert all(line.startswith("RUN [") for line in last.splitlines() if line.startswith("RUN"))
