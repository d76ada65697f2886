"""Settings of hooks: what they become, and what is refused."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.suspension.hooks import HookConfig, HookKind
from scaler.webhook import Receiver

WEBHOOK = {"name": "checkpoint", "kind": "Webhook", "urlFile": "/u"}
OBJECT = {"name": "snapshot", "kind": "Object", "templateFile": "/t", "condition": "Ready"}


def settings(*hooks: dict[str, Any]) -> Settings:
    return load(None, environ={}, flags={"prometheus.url": "http://p:9090", "hooks": list(hooks)})


def test_hooks_become_what_the_leader_runs() -> None:
    found = settings({**WEBHOOK, "keyFile": "/k", "timeout": "90s"}, {**OBJECT, "reason": "Complete"})
    assert [each.config() for each in found.hooks] == [
        HookConfig(
            name="checkpoint",
            kind=HookKind.WEBHOOK,
            timeout=timedelta(seconds=90),
            receiver=Receiver(url_file=Path("/u"), key_file=Path("/k")),
        ),
        HookConfig(
            name="snapshot",
            kind=HookKind.OBJECT,
            timeout=timedelta(minutes=5),
            template_file=Path("/t"),
            condition="Ready",
            reason="Complete",
        ),
    ]
    assert found.hook_timeouts == {"checkpoint": timedelta(seconds=90), "snapshot": timedelta(minutes=5)}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([WEBHOOK, WEBHOOK], "two hooks are named checkpoint"),
        ([{**WEBHOOK, "name": "A b"}], "should match pattern"),
        ([{**WEBHOOK, "timeout": "2h"}], "write at most '1h'"),
        ([{**WEBHOOK, "url": "https://x"}], "unknown setting"),
        ([{**WEBHOOK, "condition": "Ready"}], "a Webhook needs urlFile, and has no templateFile"),
        ([{**WEBHOOK, "kind": "Object"}], "an Object needs templateFile and condition"),
        ([{**OBJECT, "condition": ""}], "an Object needs templateFile and condition"),
        ([{**OBJECT, "tokenFile": "/t"}], "has no files of a webhook"),
    ],
)
def test_what_cannot_be_used_is_refused(given: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        settings(*given)
