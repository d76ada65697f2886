"""What `kubectl kustomize` makes of a folder."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deploy.helm_chart import DEPLOY

BASE, OVERLAYS = DEPLOY / "kustomize" / "base", DEPLOY / "kustomize" / "overlays"


@cache
def built(folder: Path) -> list[dict[str, Any]]:
    """The objects. Raises: AssertionError with what kustomize says."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))
