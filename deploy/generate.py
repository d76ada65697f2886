"""What of `deploy/` is made of something else: the chart's CRDs, rules, dashboards, permissions, schema
and page, and kustomize's base.

`uv run python -m deploy.generate` writes it anew.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy import helm_chart
from deploy.helm_chart import DEPLOY, FOLDER, ROOT, Json
from deploy.policy_schema import properties
from scaler.app.settings.model import Settings
from scaler.doctor.permissions import CONFINED, REQUIRED_RULES, RequiredRule, RuleUser
from scaler.idleness.policy import FIELDS
from scaler.kube.objects import resources as kinds

BASE = DEPLOY / "kustomize" / "base"
OVERLAYS = ("openshift", "gke", "dev")
_VALUES = FOLDER / "values.yaml"
_SCHEMA = FOLDER / "values.schema.json"
_PAGE = FOLDER / "README.md"


def contents() -> Iterator[tuple[Path, str]]:
    """Every generated file and what belongs into it."""
    for crd in sorted((DEPLOY / "crds").glob("*.yaml")):
        text = with_policy_fields(crd.read_text(encoding="utf-8"))
        for folder in (DEPLOY, FOLDER, BASE):
            yield folder / "crds" / crd.name, text
    yield FOLDER / "files" / "policy-keys.json", json.dumps([each.key for each in FIELDS.values()]) + "\n"
    for source, pattern, target in (("rules", "*.rules.yaml", "rules"), ("grafana", "*.json", "dashboards")):
        for file in sorted((ROOT / "dashboards" / source).glob(pattern)):
            yield FOLDER / "files" / target / file.name, file.read_text(encoding="utf-8")
    yield FOLDER / "files" / "permissions.yaml", permissions()
    yield _SCHEMA, schema()
    yield _PAGE, page()
    yield from base()


# ------------------------------------------------------------------------------------------------- fields of a policy


def with_policy_fields(definition: str) -> str:
    """The definition with the fields of a policy between the marks, where it has some."""
    fields = yaml.dump(properties(), Dumper=_Plain, sort_keys=False, default_flow_style=None, width=10_000)
    return _POLICY.sub(lambda found: found[1] + textwrap.indent(fields, found[2]) + found[3], definition)


_POLICY = re.compile(r"(( *)# <policy>.*\n)(?:.*\n)*?( *# </policy>\n)")


# --------------------------------------------------------------------------------------------------------- permissions


def permissions() -> str:
    """The roles, of the one list of what the program needs."""
    names = ("read", "write", "lease", "tokens", "dispatcher", "kubeconfigs")
    roles: dict[str, list[Json]] = {name: [] for name in names}
    for need in REQUIRED_RULES:
        for verbs, role in _split(need):
            roles[role] += _entries(need, verbs)
    head = "# Made of REQUIRED_RULES in scaler/doctor/permissions.py: uv run python -m deploy.generate\n"
    return head + yaml.dump(roles, Dumper=_Plain, sort_keys=False, default_flow_style=None, width=120)


class _Plain(yaml.SafeDumper):
    """Writes out what occurs twice, instead of referring to it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_OPTIONAL_ROLES = {RuleUser.TOKENS: "tokens", RuleUser.DISPATCHER: "dispatcher", RuleUser.SCORES: "dispatcher"}
"""Roles of their own, which are bound only where settings turn on what needs them."""


def _split(need: RequiredRule) -> Iterator[tuple[list[str], str]]:
    """Which of its verbs go to which role: all replicas read copies, the leader the rest, and it writes."""
    if need.in_lease_namespace:
        yield list(need.verbs), "lease"
        return
    if (role := _OPTIONAL_ROLES.get(need.part)) is not None:
        yield list(need.verbs), "kubeconfigs" if need.in_kueue_namespace else role
        return
    are_policies = all(each.resource in (kinds.IDLE_POLICY, kinds.CLUSTER_IDLE_POLICY) for each in need.on)
    if need.part in (RuleUser.POLICIES, RuleUser.CLUSTER_POLICIES) and not are_policies:
        yield list(need.verbs), "write"  # jobs are read by the leader, policies by the pages of every replica
        return
    is_readers = need.part in (RuleUser.SCALER, RuleUser.PLANS)
    reads = [verb for verb in need.verbs if verb in ("list", "watch") or (verb == "get" and is_readers)]
    writes = [verb for verb in need.verbs if verb not in reads]
    if reads:
        yield reads, "read"
    if writes:
        yield writes, "write"


def _entries(need: RequiredRule, verbs: list[str]) -> Iterator[Json]:
    common = {"part": str(need.part), "verbs": verbs, "confined": need.part in CONFINED}
    for group in dict.fromkeys(each.resource.group for each in need.on):
        names = [
            each.resource.plural + (f"/{each.subresource}" if each.subresource else "")
            for each in need.on
            if each.resource.group == group
        ]
        yield {**common, "ofTargets": False, "apiGroup": group, "resources": names}
    if need.on_targets:
        yield {**common, "ofTargets": True, "subresource": need.subresource_of_targets}


# -------------------------------------------------------------------------------------------------------------- schema

_OF_THE_CHART = {
    *(
        "mode",
        "components",
        "suspendAt",
        "keda.scalerAddresses",
        "grpc.address",
        "grpc.tls",
        "http.address",
        "http.tls",
    ),
    *("kubernetes.kubeconfig", "kubernetes.context", "kubernetes.namespaces"),
    *("kubernetes.lease.name", "kubernetes.lease.namespace"),
}
"""Settings that the chart itself writes."""


def schema() -> str:
    """The schema with the names of all settings, and with what values.yaml says of each value."""
    document: Json = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    settings = _of_the_user(_inlined(Settings.model_json_schema(by_alias=True)))
    settings["description"] = ""
    for path in _NEVER_EMPTY:
        _at(settings, path)["minItems"] = 1
    settings["properties"]["page"]["dependencies"] = _OF_PROXIES
    _at(settings, "signals")["items"] |= _UNIT_ONCE
    document["properties"]["settings"] = settings
    for path, comment in comments().items():
        _describe(document, path, comment)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _at(document: Json, path: str) -> Json:
    for part in path.split("."):
        document = document["properties"][part]
    return document


def _describe(document: Json, path: str, comment: str) -> None:
    at = _at(document, path)
    rest = {key: value for key, value in at.items() if key != "description"}
    at.clear()
    at.update({"description": comment, **rest})


def _inlined(schema: Json) -> Json:
    """The schema of the settings as one tree, with nothing in it that only describes."""
    definitions = schema.pop("$defs")

    def inline(at: Any, *, names: bool = False) -> Any:
        if isinstance(at, list):
            return [inline(each) for each in at]
        if not isinstance(at, dict):
            return at
        if "$ref" in at:
            at = definitions[at["$ref"].rpartition("/")[2]]
        if names:
            return {key: inline(_named(key, each)) for key, each in at.items()}
        at = _written(at)
        return {key: inline(each, names=key == "properties") for key, each in at.items() if key not in _DESCRIBING}

    tree: Json = inline(schema)
    return tree


_UNIT, _ABOVE_0 = "(ms|s|m|h|d)", r"([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)"
_PARTS = rf"([0-9]+(\.[0-9]+)?{_UNIT})"
PATTERNS = {
    "Duration": f"{_PARTS}*{_ABOVE_0}{_UNIT}{_PARTS}*",
    "DurationOrZero": f"{_PARTS}+",
    "Ratio": r"(100(\.0+)?|[1-9][0-9]?(\.[0-9]+)?|0?\.[0-9]*[1-9][0-9]*) *%",
    "Network": "[0-9A-Fa-f:.]+(/[0-9]{1,3})?",
    "gpus": r"all|any|quorum:(1|0?\.[0-9]*[1-9][0-9]*)",
}
"""How the program reads what is written as text, spaces around it aside."""
_NAMED = {"trustedProxies": "Network", "gpus": "gpus"}


def pattern(name: str) -> str:
    """The pattern of a kind of text."""
    return f"^ *({PATTERNS[name]}) *$"


def _written(at: Json) -> Json:
    """The schema with a pattern for the program's own types, of which pydantic does not know how they are written."""
    match at:
        case {"format": "duration"}:
            return {"type": "string", "pattern": pattern("DurationOrZero" if "ge" in at else "Duration")}
        case {"type": "number", "gt": 0, "le": 1}:
            return {"type": "string", "pattern": pattern("Ratio")}
    return at


def _named(name: str, at: Json) -> Json:
    """What is text for pydantic and has a form, which only its name tells."""
    if name not in _NAMED:
        return at
    text = {"type": "string", "pattern": pattern(_NAMED[name])}
    return {"type": "array", "items": text} if at.get("type") == "array" else {"anyOf": [text, {"type": "null"}]}


_NEVER_EMPTY = ("signals", "reclaim.fairSharing.preemptionStrategies")
_OF_PROXIES = {"userHeader": ["trustedProxies"], "groupsHeader": ["userHeader"], "trustedProxies": ["userHeader"]}
"""What users a proxy names, it names by a header, and is known by its address."""
_UNIT_ONCE = {
    "if": {"properties": {"metrics": {"type": "array"}}},
    "then": {"required": ["unit"], "properties": {"unit": {"type": "string"}}},
    "else": {"properties": {"unit": {"type": "null"}}},
}
"""The unit of a signal: a list of metrics has one, a map has that of each."""
_DESCRIBING = ("title", "description", "default", "format", "discriminator")


def _of_the_user(at: Json, path: str = "") -> Json:
    """The schema without what the chart itself writes. A section whose lines are all comments is null."""
    sections = {key: each for key, each in at["properties"].items() if f"{path}{key}" not in _OF_THE_CHART}
    properties = {
        key: _of_the_user(each, f"{path}{key}.") if "properties" in each else each for key, each in sections.items()
    }
    return {**at, "type": ["object", "null"], "properties": properties}


# ---------------------------------------------------------------------------------------------------------------- page

_LINE = re.compile(r"(?P<indent> *)(?:# -- (?P<comment>.*)|(?P<key>\w+):.*)")


def comments() -> dict[str, str]:
    """What values.yaml says of its values, by their paths: lines that begin with `# --`."""
    found: dict[str, str] = {}
    path: list[str] = []
    pending = ""
    for line in _VALUES.read_text(encoding="utf-8").splitlines():
        if not (match := _LINE.fullmatch(line)):
            continue
        if match["comment"]:
            pending = match["comment"]
        elif match["key"]:
            path[len(match["indent"]) // 2 :] = [match["key"]]
            if pending:
                found[".".join(path)] = pending
            pending = ""
    return found


def values() -> Json:
    """The chart's values as they are by default."""
    parsed: Json = yaml.safe_load(_VALUES.read_text(encoding="utf-8"))
    return parsed


def page() -> str:
    """The chart's README."""
    known = comments()
    rows = [f"| `{path}` | {_default(values(), path, known)} | {_cell(text)} |" for path, text in known.items()]
    head = (FOLDER / "README.md.in").read_text(encoding="utf-8")
    return head + "\n".join(["| value | default | |", "|---|---|---|", *rows, ""])


def _default(value: Any, path: str, known: Mapping[str, str]) -> str:
    """The default as it is written; nothing for a group whose values have lines of their own."""
    for part in path.split("."):
        value = value[part]
    has_own_lines = any(each.startswith(f"{path}.") for each in known)
    return "" if has_own_lines else f"`{_cell(json.dumps(value, ensure_ascii=False))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# ----------------------------------------------------------------------------------------------------------- kustomize

_HELMS = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by|checksum/settings): .*\n", re.MULTILINE)
_OF_CHECKSUM = re.compile(r"^ *# Settings are read at start\.\n", re.MULTILINE)


def base() -> Iterator[tuple[Path, str]]:
    """The chart's objects for its default values, as plain manifests; settings as a file that gives the ConfigMap."""
    for file, text in helm_chart.texts().items():
        documents = [body for body in yaml.load_all(text, Loader=yaml.CSafeLoader) if body] if "yaml" in file else []
        if file == "settings.yaml":
            yield BASE / file, _settings({})
        elif documents:
            plain = _OF_CHECKSUM.sub("", _HELMS.sub("", text))
            yield BASE / file, _tidy(plain)
    for overlay in OVERLAYS:
        yield DEPLOY / "kustomize" / "overlays" / overlay / "settings.yaml", _settings(helm_chart.platform(overlay))


def _settings(values: Json) -> str:
    """The settings file, as the chart writes it."""
    return str(helm_chart.settings_object(values)["data"]["settings.yaml"])


def _tidy(text: str) -> str:
    """The text without the blank lines that templates leave."""
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line).removeprefix("---\n") + "\n"


def rewrite() -> None:
    # The chart is rendered for kustomize's base, so what it is made of comes first.
    for _ in range(2):
        helm_chart.forget()
        for path, text in [*contents()]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
