"""Has an API kept what was written? A misspelt field, say, is dropped without a word."""

from collections.abc import Iterator
from typing import Any


def dropped(written: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Where there is something else than was written, or nothing; what was added to it is no matter."""
    if isinstance(written, dict) and isinstance(stored, dict):
        for key, value in written.items():
            yield from dropped(value, stored.get(key), f"{path}.{key}")
    elif isinstance(written, list) and isinstance(stored, list) and len(written) == len(stored):
        for place, (one, other) in enumerate(zip(written, stored, strict=True)):
            yield from dropped(one, other, f"{path}[{place}]")
    elif written != stored:
        yield f"{path}: {written!r} became {stored!r}"
