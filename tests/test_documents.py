"""YAML of users is bounded before it is built, and refused by its line; JSON of others may be nested to any depth."""

import ast
import asyncio
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import scaler_analysis
import yaml
from builders import GPUS, NOON
from hypothesis import given
from hypothesis import strategies as st
from scaler_analysis.simulation.gangs.trace import read_jobs
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.recordings.trace import read_trace

import scaler
from scaler.app.cli.policy import policies_in
from scaler.app.settings.load import load
from scaler.decision import candidate, trigger_metadata
from scaler.decision.annotated_status import annotated_status
from scaler.documents import documents, read_json, read_text
from scaler.errors import ConfigurationError, ScalerError
from scaler.kube.access import open_access
from scaler.kube.api_requests import read_status
from scaler.kube.objects.core import ObjectMeta
from scaler.samples import responses
from scaler.samples.config import PrometheusConfig
from scaler.samples.source import ReadError
from scaler.suspension import keeps, status
from scaler.suspension.hooks import HookConfig, HookKind, ObjectHook
from scaler.targets import workloads
from scaler.tls.material import CertificateFiles, read_material
from scaler.webhook import secret_of

NAMES = "abcdefghij"


def laughs(entry: str) -> str:
    """Each level names the one before nine times: 9¹⁰ values."""
    levels = [
        f"{name}: &{name} {entry % ', '.join(f'*{before}' for _ in range(9))}" for before, name in pairwise(NAMES)
    ]
    return "\n".join(["a: &a {x: 1}", *levels])


TOO_MUCH = {
    "lists of aliases": (laughs("[%s]"), "too much, its aliases written out at line 8"),
    "maps that are merged": (laughs("{<<: [%s]}"), "too much, its aliases written out at line 8"),
    "an alias within its anchor": ("x: 1\na: &a [*a]", "too much, its aliases written out at line 2"),
    "100,000 brackets": (
        "x: 1\ny:\n" + "[" * 100_000,
        "not YAML at line 3, column 1026; check brackets, quotes, colons and indentation there",
    ),
    "100,000 braces": ("{a: " * 100_000, "nested too deeply at line 1"),
    "100,000 dashes": ("- " * 100_000, "nested too deeply at line 1"),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_what_is_too_much_is_refused_at_its_line_before_it_is_built(kind: str) -> None:
    text, expected = TOO_MUCH[kind]
    begin = time.process_time()
    with pytest.raises(ConfigurationError) as refused:
        documents(text, "x.yaml")
    assert str(refused.value) == f"x.yaml is {expected}"
    assert time.process_time() - begin < 5


TWICE = {
    "a setting": ("url: a\ntrust: {}\nurl: b\n", "line 3: the key url"),
    "below others": ("a:\n  - b: 1\n    c: {d: 1, e: 2, d: 3}\n", "line 3: the key d"),
    "in the second document": ("a: 1\n---\na: 1\n'a': 2\n", "line 4: the key a"),
    "JSON": ('{"a": 1,\n "a": 1}', "line 2: the key a"),
    "two spellings of one value": ("yes: 1\non: 2\n", "line 2: the key on"),
    "a number and a truth": ("1: a\ntrue: b\n", "line 2: the key true"),
    "what is no name": ("'pass word': 1\n'pass word': 2\n", "line 2: the key"),
    "below an anchor": ("a: &a {x: 1, x: 2}\nb: *a\n", "line 1: the key x"),
}


@pytest.mark.parametrize("kind", TWICE)
def test_two_equal_keys_are_refused_at_the_second_ones_line(kind: str, tmp_path: Path) -> None:
    text, expected = TWICE[kind]
    file = tmp_path / "x.yaml"
    file.write_text(text)
    for read in (
        lambda: documents(text, str(file)),
        lambda: [*policies_in(file)],
        lambda: load(file, environ={}, flags={}),
    ):
        with pytest.raises(ConfigurationError) as refused:
            read()
        told = str(refused.value).removeprefix("settings file ")
        assert told == f"{file}: {expected} is there for the second time" or "documents" in told


@given(st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner)))
def test_whatever_has_no_equal_keys_is_read_as_before(value: Any) -> None:
    text = yaml.safe_dump(value)
    assert documents(text, "x.yaml") == [*yaml.safe_load_all(text)]


def test_anchors_and_several_documents_are_read() -> None:
    text = "a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n---\na: &a 1\nb: *a\n"
    assert documents(text, "x.yaml") == [
        {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]},
        {"a": 1, "b": 1},
    ]


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a" * (2**20 + 1))
    with pytest.raises(ConfigurationError, match="larger than 1,024 KiB"):
        read_text(path, most_bytes=2**20)
    path.write_bytes(b"a\nb\xff\n")
    with pytest.raises(ConfigurationError, match="line 2 is not UTF-8; save"):
        read_text(path)


# ---------------------------------------------------------------------------------------------- JSON that others write

NESTED = {
    "brackets": "[" * 200_000,
    "braces": '{"x":' * 200_000,
    "a field that nobody knows": '{"x":' + "[" * 200_000,
    "the same in a list": '[{"x":' + "[" * 200_000,
}


def _refused(read: Callable[[bytes], Any]) -> Callable[[str], Any]:
    def refused(text: str) -> None:
        with pytest.raises(ReadError, match="not Prometheus' JSON but"):
            read(text.encode())

    return refused


def suspended(text: str) -> workloads.SuspendedAnnotation | None:
    return workloads.suspended_annotation(ObjectMeta(name="x", annotations={workloads.SUSPENDED_ANNOTATION: text}))


READERS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "an answer of Prometheus": (_refused(responses.read_answer), None),
    "a history of 0.1.0": (lambda text: annotated_status({"idlegpu.io/history": text}, NOON).history, ()),
    "a line of a status": (lambda text: candidate.lines_of([text.encode()]), []),
    "the last line of a status": (lambda text: status.last_line([msgspec.Raw(text)]), None),
    "keeps": (lambda text: keeps.keeps_of({keeps.KEEPS_ANNOTATION: text}), ()),
    "sources of a policy": (trigger_metadata.sources_of, {}),
    "why it is suspended": (suspended, workloads.SuspendedAnnotation()),
    "an error of the API": (lambda text: read_status(text.encode()), None),
}


@pytest.mark.parametrize("nesting", NESTED)
@pytest.mark.parametrize("reader", READERS)
def test_brackets_without_end_are_as_unreadable_as_any_other_text(reader: str, nesting: str) -> None:
    read, nothing = READERS[reader]
    assert read(NESTED[nesting]) == nothing


OTHERS = {
    ("kube/objects/core.py", "ValidationError"),  # it reads once more, less strictly
    ("kube/objects/sharing.py", "MsgspecError"),  # it packs
    ("requests/links.py", "ValidationError"),  # of `convert`, which reads no text
    ("quota/from_objects/pod_nodes.py", "ValidationError"),
}


def test_whoever_decodes_what_others_write_expects_all_that_decoding_raises() -> None:
    """`msgspec.DecodeError` alone lets brackets without end through, as a RecursionError."""
    root = Path(scaler.__file__).parent
    found = {
        (str(path.relative_to(root)), caught.attr)
        for path in root.rglob("*.py")
        if path.name != "documents.py"
        if "msgspec" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        for caught in _caught(node)
    }
    assert found == OTHERS


def _caught(node: ast.AST) -> list[ast.Attribute]:
    """The errors of msgspec that it handles."""
    match node:
        case ast.ExceptHandler(type=ast.AST() as caught):
            named = ast.walk(caught)
        case ast.Call(func=ast.Name(id="suppress")):
            named = ast.walk(node)
        case _:
            return []
    return [each for each in named if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "msgspec"]


# ------------------------------------------------------------------------------------------------- files that are named

FILES: dict[str, Callable[[Path], Any]] = {
    "settings": lambda path: load(path, environ={}, flags={}),
    "a policy": lambda path: [*policies_in(path)],
    "a trace": lambda path: read_trace(path, Recording(folder=path.parent), []),
    "Workloads": lambda path: read_jobs(path, GPUS),
    "a kubeconfig": lambda path: asyncio.run(open_access(path)),
    "a certificate": lambda path: read_material(CertificateFiles(certificate=path, key=path)),
    "a secret of a receiver": lambda path: secret_of(path, "key"),
    "a token of the source": lambda path: PrometheusConfig(url="http://x", bearer_token_file=path).check_files(),
    "an authority of the source": lambda path: PrometheusConfig(url="http://x", ca_file=path).check_files(),
    "a template of a hook": lambda path: ObjectHook(
        HookConfig(name="x", kind=HookKind.OBJECT, timeout=timedelta(1), template_file=path), None, None
    )._template(),  # type: ignore[arg-type]  # they are for what comes after it
    "what was kept of days": lambda path: read_json(path, dict[str, str]),
}
OF_YAML = ("settings", "a policy", "a kubeconfig", "a template of a hook")
SPOILT: dict[str, Callable[[Path], Any]] = {
    "is a folder": lambda path: path.mkdir(),
    "is of a terabyte": lambda path: (path.write_bytes(b"S3CR3T"), os.truncate(path, 2**40)),
    "is not UTF-8": lambda path: path.write_bytes(b"S3CR3T\xff\xfe\n"),
}
SPOILT_YAML = {
    "does not end": "a: S3CR3T\nb: {c: [S3CR3T",
    "has 100,000 brackets": "[" * 100_000,
    "has aliases of aliases": laughs("[%s]"),
}
FAULTS = [
    *((file, kind) for file in FILES for kind in SPOILT if (file, kind) != ("a policy", "is a folder")),
    *((file, kind) for file in OF_YAML for kind in SPOILT_YAML),
]


@pytest.mark.parametrize(("file", "kind"), FAULTS)
def test_a_file_that_cannot_be_used_is_named_and_nothing_of_it_is_repeated(
    file: str, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    SPOILT[kind](path) if kind in SPOILT else path.write_text(SPOILT_YAML[kind], encoding="utf-8")
    with pytest.raises(ScalerError) as refused:
        FILES[file](path)
    text = str(refused.value)
    assert (str(path) in text, "S3CR3T" in text, len(text) < 1000) == (True, False, True)
    assert kind not in SPOILT_YAML or "line" in text


READS_ITSELF = {
    "app/controllers.py",  # the namespace of this Pod
    "doctor/calls/probe.py",  # the authorities of this system
    "reporting/page/rendering.py",  # files of this program
    "tls/material.py",  # memory
}


def test_every_file_that_is_named_is_read_by_the_one_reader() -> None:
    assert reading(scaler) == READS_ITSELF | {"documents.py"}
    assert reading(scaler_analysis) == {"simulation/recordings/trace.py"}  # a line at a time


def reading(package: ModuleType) -> set[str]:
    """The files of a package that read others."""
    root = Path(package.__path__[0])
    return {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if _MAY_READ.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _READS.search(ast.unparse(node.func))
    }


_MAY_READ = re.compile(r"open\(|read_(text|bytes)\(|yaml\.")
"""Most files need not be parsed to know that they read none."""
_READS = re.compile(r"^open$|(path|file|csv|os|gzip)\.(fd)?open$|\.read_(text|bytes)$|yaml\.(\w+_)?load(_all)?$")
