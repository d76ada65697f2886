"""Files that come with the program: CRDs, examples and roles, in a source checkout or in an installed wheel."""

from pathlib import Path
from typing import Any

import yaml

import scaler
from scaler.doctor.permissions import REQUIRED_RULES, RequiredRule, RuleUser
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
    return [
        yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        for path in sorted(packaged("crds").glob("*.yaml"))
    ]


NAMESPACE = "idle-gpu-scaler"
"""The namespace in which it is installed by default."""
SERVICE_ACCOUNT = "idle-gpu-scaler"


def account() -> list[dict[str, Any]]:
    """Its namespace, its ServiceAccount, and the roles that let this do what the program does, and no more.

    Requests for nodes among it, as the chart grants them with `rbac.provisioning`.
    """
    folder = packaged("kustomize/base")
    texts = [(folder / f"{name}.yaml").read_text(encoding="utf-8") for name in ("namespace", "serviceaccount", "roles")]
    provisioning = [each for each in REQUIRED_RULES if each.part is RuleUser.PROVISIONING]
    granted = _granted(f"{SERVICE_ACCOUNT}-provisioning", provisioning, "Cluster", {})
    return [*(body for text in texts for body in yaml.load_all(text, yaml.CSafeLoader)), *granted]


_KUEUE_NAMESPACE = "kueue-system"
_RBAC = "rbac.authorization.k8s.io"


def dispatcher_account() -> list[dict[str, Any]]:
    """What that ServiceAccount may do on a hub of MultiKueue besides, as the chart grants it with `rbac.dispatcher`."""
    rules = [each for each in REQUIRED_RULES if each.part is RuleUser.DISPATCHER]
    everywhere = [each for each in rules if not each.in_kueue_namespace]
    secrets = [each for each in rules if each.in_kueue_namespace]
    return [
        *_granted(f"{SERVICE_ACCOUNT}-dispatcher", everywhere, "Cluster", {}),
        *_granted(f"{SERVICE_ACCOUNT}-kubeconfigs", secrets, "", {"namespace": _KUEUE_NAMESPACE}),
    ]


def _granted(name: str, rules: list[RequiredRule], scope: str, place: dict[str, str]) -> list[dict[str, Any]]:
    metadata = {"name": name, **place}
    subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": SERVICE_ACCOUNT}
    head = {"apiVersion": f"{_RBAC}/v1", "metadata": metadata}
    return [
        {**head, "kind": f"{scope}Role", "rules": [_rule(each) for each in rules]},
        {
            **head,
            "kind": f"{scope}RoleBinding",
            "roleRef": {"apiGroup": _RBAC, "kind": f"{scope}Role", "name": name},
            "subjects": [subject],
        },
    ]


def _rule(required: RequiredRule) -> dict[str, Any]:
    groups = sorted({each.resource.group for each in required.on})
    names = [each.resource.plural + (f"/{each.subresource}" if each.subresource else "") for each in required.on]
    return {"apiGroups": groups, "resources": names, "verbs": [*required.verbs]}
