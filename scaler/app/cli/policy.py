"""`idle-gpu-scaler policy test -f FILE`: which jobs IdlePolicies would attach, and what would happen at once."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect
from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient
from scaler.app.cli.layout import count, table_or_list
from scaler.attachment.objects import policy_of
from scaler.attachment.policy import AttachmentPolicy
from scaler.documents import UNREADABLE, documents, read_text, unreadable
from scaler.errors import ConfigurationError
from scaler.kube.objects import idlegpu
from scaler.kube.objects.core import decode
from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, IDLE_POLICY

_KINDS = {each.kind: each for each in (IDLE_POLICY, CLUSTER_IDLE_POLICY)}
_COLOURS = {
    "Attached": "green",
    "Changed": "cyan",
    "Detached": "yellow",
    "Conflict": "magenta",
    "Problem": "red",
    "NotValid": "red",
}


def run_policy_test(client: ScalerClient, files: Sequence[Path]) -> int:
    """Exits with 1 where a policy is not valid. Raises: ScalerError."""
    given = [policy for file in files for policy in policies_in(file)]
    if not given:
        raise ConfigurationError(f"{', '.join(map(str, files))}: there is no IdlePolicy or ClusterIdlePolicy in it")
    needs = client.has_metrics_source()
    answer = asyncio.run(client.ask([], [], lambda local: local.try_policies(given), key="jobs", needs_verdicts=needs))
    client.show(answer, render)
    return 1 if any(each["problem"] for each in answer["policies"]) else 0


def policies_in(file: Path) -> Iterator[AttachmentPolicy]:
    """The policies of a file, of standard input (`-`), or of all YAML files of a folder, as `kubectl apply -f` reads
    them.

    Raises: ConfigurationError saying what is wrong, and in which document.
    """
    if os.path.isdir(file):  # noqa: PTH112 (no name is too long for it)
        for each in sorted(file.iterdir()):
            if each.suffix in {".yaml", ".yml", ".json"}:
                yield from policies_in(each)
        return
    text = read_text(Path("/dev/stdin") if str(file) == "-" else file)
    for number, body in enumerate(documents(text, str(file)), 1):
        items = body.get("items", [body]) if isinstance(body, Mapping) else []
        for item in items if isinstance(items, list) else []:
            if isinstance(item, Mapping) and str(item.get("kind")) in _KINDS:
                yield _policy(item, f"{file}, document {number}")


def _policy(body: Mapping[str, Any], where: str) -> AttachmentPolicy:
    resource, metadata = _KINDS[body["kind"]], body.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ConfigurationError(f"{where}: {body['kind']}: metadata is no mapping; write names with values")
    where = f"{where}: {body['kind']} {metadata.get('name', '')}"
    if body.get("apiVersion") != resource.api_version:
        raise ConfigurationError(f"{where}: apiVersion is {body.get('apiVersion')!r}; write {resource.api_version!r}")
    metadata = metadata | {"namespace": metadata.get("namespace", "default") if resource.namespaced else ""}
    _check_fields(body.get("spec"), _SPEC, f"{where}: spec")
    try:
        return policy_of(decode(idlegpu.IdlePolicy, msgspec.json.encode({**body, "metadata": metadata})))
    except UNREADABLE as error:
        raise ConfigurationError(f"{where}: {unreadable(error)}") from None


_SPEC = inspect.type_info(idlegpu.IdlePolicySpec)


def _check_fields(found: object, kind: inspect.Type, where: str) -> None:
    """Raises: ConfigurationError for a field that there is not. Values are checked where it is decoded."""
    match kind, found:
        case inspect.UnionType(), _:
            for each in kind.types:
                _check_fields(found, each, where)
        case inspect.VarTupleType(), list():
            for number, item in enumerate(found):
                _check_fields(item, kind.item_type, f"{where}[{number}]")
        case inspect.StructType(), Mapping():
            known = {each.encode_name: each.type for each in kind.fields}
            for name, value in found.items():
                if name not in known:
                    raise ConfigurationError(f"{where}.{name} is no field; there are {', '.join(sorted(known))}")
                _check_fields(value, known[name], f"{where}.{name}")


# ---- what is printed


def render(answer: Json, width: int) -> RenderableType:
    parts: list[RenderableType] = [
        Text.assemble((f"{each['policy']} is not valid: ", "red"), each["problem"])
        for each in answer["policies"]
        if each["problem"]
    ]
    parts += [Text(f"may not be listed: {each}", style="magenta") for each in answer["denied"]]
    jobs = answer["jobs"]
    if not jobs:
        parts.append(Text("No job with GPUs follows it."))
    else:
        headings = ("JOB", "POLICY", "CHANGE", "VERDICT", "NOW")
        parts.append(table_or_list(headings, [_line(each) for each in jobs], width, words=range(5), prose=True))
    parts += ["", _summary(jobs, answer["others"])]
    return Group(*parts)


def _line(job: Json) -> list[str | Text]:
    differs = ", ".join(f"{each['field']} {each['from'] or '–'} → {each['to'] or '–'}" for each in job["differs"])
    change = Text(job["change"], style=_COLOURS.get(job["change"], "dim"))
    name = Text.assemble((f"{job['namespace']}/", "dim"), job["name"], (f" {job['kind']}", "dim"))
    words = f"suspended: {job['now']}" if job["answer"] == "inactive" else job["now"] or job["words"]
    if job["change"] == "Changed" and differs:
        words = f"{differs}; {words}"
    moved = f"{job['before']} → {job['policy'] or 'none'}" if job["before"] not in (None, job["policy"]) else ""
    return [name, moved or job["policy"] or "none", change, job["verdict"] or "", words]


def _summary(jobs: Sequence[Json], others: int) -> Text:
    changes = [each["change"] for each in jobs]
    counts = {word: changes.count(word) for word in dict.fromkeys(changes)}
    at_once = sum(each["answer"] == "inactive" for each in jobs)
    words = ", ".join(f"{number} {word}" for word, number in counts.items())
    return Text(
        f"{count(len(jobs), 'job')}{f': {words}' if words else ''}. Suspended at once: {at_once}. "
        f"Other jobs with GPUs: {others}."
    )
