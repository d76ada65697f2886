"""What is sent to a target, and what sends it: a kind of target is a module of `targets`, found by its name."""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from scaler.notifications import targets
from scaler.webhook import Receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig(Receiver):
    """One of the settings' targets."""

    name: str
    kind: str
    owner_domains: tuple[str, ...] = ()
    """Domains of owners' addresses that mails may be sent to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A message as it is sent."""

    id: str
    owner: str
    subject: str
    text: str
    json: Mapping[str, object]


class Sender(Protocol):
    async def send(self, content: Content, now: datetime) -> None:
        """Returns when it was accepted. Raises: SendError."""


class TargetKind(Protocol):
    """A module of `targets`."""

    @property
    def TAKES(self) -> frozenset[str]:  # noqa: N802 - a constant of the module
        """Fields of a target that this kind has a use for."""

    def sender(self, target: TargetConfig, threads: Executor, timeout: timedelta) -> Sender: ...


def target_kinds() -> list[str]:
    return sorted(each.name for each in iter_modules(targets.__path__))


def target_kind(name: str) -> TargetKind:
    """The class of one of `target_kinds`."""
    return cast(TargetKind, import_module(f"{targets.__name__}.{name}"))
