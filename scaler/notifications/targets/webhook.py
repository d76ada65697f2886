"""A program that takes signed JSON over HTTP. `Idempotency-Key` is the id of the message."""

from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from scaler.notifications.senders import Content, Sender, TargetConfig
from scaler.webhook import post_signed

TAKES = frozenset({"key_file", "token_file", "ca_file"})


def sender(target: TargetConfig, threads: Executor, timeout: timedelta) -> Sender:  # noqa: ARG001 - of its own it needs none
    return Webhook(target, timeout)


@dataclass(frozen=True, slots=True)
class Webhook:
    _target: TargetConfig
    _timeout: timedelta

    async def send(self, content: Content, now: datetime) -> None:
        body = msgspec.json.encode(content.json)
        await post_signed(self._target, body, content.id, self._timeout, now=now)
