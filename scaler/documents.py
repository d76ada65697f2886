"""What does a file that somebody names say? Read within bounds, and refused with the place and without its text.

Laws:

* Every file is read here, but traces, which are read a line at a time: no more of it than may be there is in memory.

* What is too large, too deep, or would be too large once its aliases are written out is refused before it is built:
  each alias counts as many values as its anchor has.
* A mapping with two equal keys is refused: which of them is meant, only who wrote it knows.
* Nothing of the text but the name of such a key is in an error: next to what is wrong there may be a password.
"""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from scaler.errors import ConfigurationError

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding raises for what others have written: not JSON, not the expected object, or brackets without end."""
_MOST_BYTES = 2**20
"""A bundle of all public authorities has a fifth of it."""
_LONGEST_TEXT = 64 * 2**20
_LONGEST_SECRET = 2**16
_DEEPEST = 100
_MOST_VALUES = 5_000_000
"""Aliases written out; a list of 10,000 Pods has about two million."""
_MERGE = "tag:yaml.org,2002:merge"
_NAME = re.compile(r"[A-Za-z][\w./-]{0,62}")


def read_bytes(path: Path, *, most_bytes: int = _MOST_BYTES) -> bytes:
    """Raises: ConfigurationError that begins with the path, as do the next ones."""
    try:
        with path.open("rb") as file:
            found = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    if len(found) > most_bytes:
        raise ConfigurationError(f"{path}: it is larger than {most_bytes >> 10:,} KiB, which is the most that is read")
    return found


def read_text(path: Path, *, most_bytes: int = _LONGEST_TEXT) -> str:
    found = read_bytes(path, most_bytes=most_bytes)
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None


def read_secret(path: Path) -> str:
    """What stands there without the newline at its end."""
    if not (found := read_text(path, most_bytes=_LONGEST_SECRET).rstrip("\r\n")):
        raise ConfigurationError(f"{path}: it is empty")
    return found


def read_json(path: Path, kind: type[T]) -> T:
    """What this program has written before."""
    try:
        return msgspec.json.decode(read_bytes(path, most_bytes=_LONGEST_TEXT), type=kind)
    except UNREADABLE:
        raise ConfigurationError(f"{path}: it is not what was written there; remove it") from None


def document(text: str, where: str) -> Any:
    """The only one; None where there is none. Raises: ConfigurationError that begins with `where`."""
    found = documents(text, where)
    if len(found) > 1:
        raise ConfigurationError(f"{where} has {len(found)} documents; write one, without lines of ---")
    return found[0] if found else None


def unreadable(error: Exception) -> str:
    """`spec.idleAfter: expected str, got int; write it in quotes`, of what decoding raises."""
    if not isinstance(error, msgspec.ValidationError):
        return "it is no JSON that can be read; check brackets, quotes and commas"
    message, _, place = str(error).replace("`", "").partition(" - at $")
    quotes = "; write it in quotes" if message.startswith("Expected str, got") else ""
    return f"{place.lstrip('.') or 'all of it'}: {message[:1].lower()}{message[1:]}{quotes}"


def documents(text: str, where: str) -> list[Any]:
    """All documents of the YAML, of which JSON is a part. Raises: ConfigurationError that begins with `where`."""
    try:
        _check(text, where)
        return _built(text, where)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        # A character that no text has, a date such as 2026-02-30, or a key that is a list.
        at = ""
    raise ConfigurationError(f"{where} is not YAML{at}; check brackets, quotes, colons and indentation there")


def _built(text: str, where: str) -> list[Any]:
    """Raises: ConfigurationError for equal keys, and what building does."""
    loader, found = yaml.CSafeLoader(text), []
    while loader.check_node() and (node := loader.get_node()) is not None:
        _check_keys(node, loader, where)
        found.append(loader.construct_document(node))
    return found


def _check_keys(root: yaml.Node, loader: yaml.CSafeLoader, where: str) -> None:
    """Raises: ConfigurationError for a mapping in which two keys are equal. What it merges it may well replace."""
    left, seen = [root], {id(root)}
    while left:
        node = left.pop()
        inner = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            inner, keys = [value for _, value in node.value], set()
            for key in (each for each, _ in node.value if isinstance(each, yaml.ScalarNode) and each.tag != _MERGE):
                value = loader.construct_object(key, deep=True)
                if value in keys:
                    name = f" {key.value}" if _NAME.fullmatch(key.value) else ""
                    line = key.start_mark.line + 1
                    raise ConfigurationError(f"{where}: line {line}: the key{name} is there for the second time")
                keys.add(value)
        left += [each for each in inner if id(each) not in seen]
        seen.update(map(id, inner))


def _check(text: str, where: str) -> None:
    """Raises: ConfigurationError for what would be too much, yaml.YAMLError."""
    values: dict[str, int] = {}
    """The values below each anchor that is complete, aliases written out."""
    around: list[tuple[str | None, int]] = []
    """Anchor, and the count before it, of what is open."""
    count = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        anchor, before = getattr(event, "anchor", None), count
        match event:
            case yaml.AliasEvent():
                # An alias within its own anchor never ends: it counts as the most that there may be.
                count += values.get(anchor or "", 1 if anchor not in dict(around) else _MOST_VALUES)
            case yaml.ScalarEvent():
                count += 1
            case yaml.CollectionStartEvent():
                count += 1
                around.append((anchor, before))
            case yaml.CollectionEndEvent():
                anchor, before = around.pop()
            case yaml.DocumentStartEvent():
                values.clear()
        if anchor is not None and not isinstance(event, yaml.AliasEvent | yaml.CollectionStartEvent):
            values[anchor] = count - before
        if count > _MOST_VALUES or len(around) > _DEEPEST:
            what = "nested too deeply" if len(around) > _DEEPEST else "too much, its aliases written out"
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ConfigurationError(f"{where} is {what} at line {line}")
