"""Equal values of many objects, kept once.

Of 100,000 pods most have the labels, the containers and the owners of other pods. What is decoded from the API is never
changed, so one value can stand for all equal ones. Only the latest values are remembered: what no object has any more
is forgotten, and a value that comes back later is merely kept twice.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)

_MOST = 1024
"""Values of each kind that are remembered: lists come in the order of names, so that those alike follow each other."""

_pack = msgspec.msgpack.Encoder().encode


@lru_cache(maxsize=_MOST)
def shared_text(text: str) -> str:
    return text


@lru_cache(maxsize=_MOST)
def shared_time(time: datetime | None) -> datetime | None:
    return time


def shared_texts(texts: dict[str, str]) -> dict[str, str]:
    """The texts of labels and the like, each of them once in memory."""
    return _texts(tuple(texts.items()))


@lru_cache(maxsize=_MOST)
def _texts(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {shared_text(key): shared_text(value) for key, value in items}


def shared(struct: S) -> S:
    """One that is equal, down to its last field; the very same where it holds what cannot be compared this way."""
    try:
        found: S = _unpacked(type(struct), _pack(struct))
    except (OverflowError, RecursionError, msgspec.MsgspecError):
        return struct  # custom resources may hold numbers of any length, nested to any depth
    return found


@lru_cache(maxsize=_MOST)
def _unpacked(kind: type[Any], packed: bytes) -> Any:
    return msgspec.msgpack.decode(packed, type=kind)
