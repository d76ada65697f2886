"""Files that come with the program: CRDs, examples and roles, in a source checkout or in an installed wheel."""

from pathlib import Path
from typing import Any

import yaml

import scaler
from scaler.errors import ScalerError

_PACKAGE = Path(scaler.__file__).parent


def packaged(name: str) -> Path:
    """The folder `crds`, `examples` or `kustomize/base`. Raises: ScalerError where the installation lacks it."""
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / "deploy" / name):
        if folder.is_dir():
            return folder
    raise ScalerError(f"the installation lacks its folder {name!r}; install idle-gpu-scaler again")


def crds() -> list[dict[str, Any]]:
    """The project's own CustomResourceDefinitions."""
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(packaged("crds").glob("*.yaml"))]


NAMESPACE = "idle-gpu-scaler"
"""Where it is installed by default."""
SERVICE_ACCOUNT = "idle-gpu-scaler"


def account() -> list[dict[str, Any]]:
    """Its namespace, its ServiceAccount, and the roles that let this do what the program does, and no more."""
    folder = packaged("kustomize/base")
    texts = [(folder / f"{name}.yaml").read_text(encoding="utf-8") for name in ("namespace", "serviceaccount", "roles")]
    return [body for text in texts for body in yaml.safe_load_all(text)]
