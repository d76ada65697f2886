"""`idle-gpu-scaler policy test -f FILE`: which jobs IdlePolicies would attach, and what would happen at once."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.client import Json, ScalerClient
from scaler.app.cli.layout import count, table_or_list
from scaler.attachment.objects import policy_of
from scaler.attachment.policy import AttachmentPolicy
from scaler.errors import ConfigurationError
from scaler.kube.objects import idlegpu
from scaler.kube.objects.core import UNREADABLE, decode
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
    """Of a file, of standard input (`-`), or of all YAML files of a folder, as `kubectl apply -f` reads them.

    Raises: ConfigurationError saying what is wrong, and in which document.
    """
    if file.is_dir():
        for each in sorted(file.iterdir()):
            if each.suffix in {".yaml", ".yml", ".json"}:
                yield from policies_in(each)
        return
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"{file}: {reason}") from None
    for number, body in enumerate(documents, 1):
        items = body.get("items", [body]) if isinstance(body, Mapping) else [body] if body else []
        for item in items:
            if isinstance(item, Mapping) and item.get("kind") in _KINDS:
                yield _policy(item, f"{file}, document {number}")


def _policy(body: Mapping[str, Any], where: str) -> AttachmentPolicy:
    resource, metadata = _KINDS[body["kind"]], dict(body.get("metadata") or {})
    where = f"{where}: {body['kind']} {metadata.get('name', '')}"
    if body.get("apiVersion") != resource.api_version:
        raise ConfigurationError(f"{where}: apiVersion is {body.get('apiVersion')!r}; write {resource.api_version!r}")
    metadata |= {"namespace": metadata.get("namespace", "default") if resource.namespaced else ""}
    spec = body.get("spec") or {}
    exclude = spec.get("exclude") if isinstance(spec, Mapping) else ()
    _check_fields(spec, idlegpu.IdlePolicySpec, f"{where}: spec")
    _check_fields(spec.get("selector"), idlegpu.JobSelector, f"{where}: spec.selector")
    for number, each in enumerate(exclude if isinstance(exclude, list) else ()):
        _check_fields(each, idlegpu.JobExclusion, f"{where}: spec.exclude[{number}]")
    try:
        return policy_of(decode(idlegpu.IdlePolicy, msgspec.json.encode({**body, "metadata": metadata})))
    except UNREADABLE as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _check_fields(found: object, kind: type[msgspec.Struct], where: str) -> None:
    """Raises: ConfigurationError for a field that there is not. Values are checked where it is decoded."""
    known = sorted(kind.__struct_encode_fields__)
    unknown = sorted({*found} - {*known}) if isinstance(found, Mapping) else ()
    if unknown:
        raise ConfigurationError(f"{where}.{unknown[0]} is no field; there are {', '.join(known)}")


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
        headings = ("JOB", "POLICY", "CHANGE", "VERDICT", "AT ONCE")
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
