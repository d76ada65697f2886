"""What is installed: little for a first look, what only tests need with the tests, and extras where they are used."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import distribution
from pathlib import Path

import pytest
import tests_group
from packaging.requirements import Requirement

from deploy.helm_chart import ROOT
from scaler.errors import ConfigurationError
from scaler.notifications.senders import TargetConfig, target_kind
from scaler.requests.links import LinkConfig, Links

MOST_PACKAGES, MOST_MEGABYTES = 60, 350


def first_look() -> list[str]:
    """Distributions that the first `uv run idle-gpu-scaler demo` installs on this platform, ours among them."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed (pip install uv)")
    only = ["--only-group", "dev", "--no-annotate", "--no-header", "--no-hashes", "--no-editable"]
    command = [uv, "export", "--quiet", "--frozen", "--offline", *only]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    ours = {".": "", "./analysis": "-analysis", "./sandbox": "-sandbox"}
    others = [Requirement(line) for line in lines if line not in ours]
    return [f"idle-gpu-scaler{ours[line]}" for line in lines if line in ours] + [
        each.name for each in others if each.marker is None or each.marker.evaluate()
    ]


def installed_bytes(name: str) -> int:
    files = distribution(name).files or []
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).exists())


def test_a_first_look_installs_few_packages_and_little() -> None:
    names = first_look()
    assert {"idle-gpu-scaler", "idle-gpu-scaler-analysis", "idle-gpu-scaler-sandbox", "pytest"} <= {*names}
    assert len([each for each in names if not each.startswith("idle-gpu-scaler")]) <= MOST_PACKAGES
    assert sum(map(installed_bytes, names)) <= MOST_MEGABYTES * 1e6


def brought(packages: list[str], uv: str | None) -> subprocess.CompletedProcess[str]:
    program = f"import tests_group; tests_group.bring({packages!r}, {uv!r}); print('goes on')"
    command = [sys.executable, "-c", program, "-x", "tests/tls"]
    return subprocess.run(
        command, cwd=Path(tests_group.__file__).parent, capture_output=True, text=True, check=False, timeout=60
    )


def test_what_only_tests_need_is_installed_by_the_uv_that_runs_them() -> None:
    assert tests_group.missing() == []
    assert brought([], shutil.which("false")).stdout == "goes on\n"
    done = brought(["trustme", "responses"], shutil.which("echo"))
    assert done.stdout == "run --group tests pytest -x tests/tls\n"
    assert "trustme, responses" in done.stderr


def test_without_uv_an_error_says_what_installs_it() -> None:
    done = brought(["trustme"], None)
    assert done.returncode
    assert done.stderr == "Tests need trustme: uv sync --inexact --group tests\n"


def test_what_python_compiles_for_tests_is_kept() -> None:
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def apprise(folder: Path) -> object:
    target = TargetConfig(name="mail", kind="apprise", url_file=folder / "mail")
    with ThreadPoolExecutor() as threads:
        return target_kind("apprise").sender(target, threads, timedelta(seconds=1))


def links(folder: Path) -> object:
    hour = timedelta(hours=1)
    return Links(LinkConfig(base_url="https://example.com", key_file=folder / "keys", valid_for=hour, keep_for=hour))


@pytest.mark.parametrize(("module", "use"), [("apprise", apprise), ("itsdangerous", links)])
def test_who_configures_what_an_extra_has_is_told_its_name(
    module: str, use: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=re.escape("install 'idle-gpu-scaler[notifications]'")):
        use(tmp_path)
