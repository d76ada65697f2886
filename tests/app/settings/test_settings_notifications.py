"""Settings of notifications: the example of the page, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError

PAGE = Path(__file__).parents[3] / "docs" / "notifications.md"
SOURCE = {"prometheus": {"url": "http://p:9090"}}
HOOK = {"name": "hook", "kind": "webhook", "urlFile": "/u"}


def settings(**notifications: Any) -> Settings:
    return load(None, environ={}, flags={**SOURCE, "notifications": notifications})


def test_the_example_of_the_page_is_valid() -> None:
    found = re.search(r"```yaml\n(notifications:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    section = settings(**yaml.load(found[1], yaml.CSafeLoader)["notifications"]).notifications
    assert [each.kind for each in section.configs()] == ["apprise", "apprise", "webhook"]


def test_nothing_is_told_by_default() -> None:
    assert settings().notifications.configs() == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"targets": [HOOK, HOOK]}, "two targets are named hook"),
        ({"targets": [{**HOOK, "name": "none"}]}, "no target may be named none"),
        ({"targets": [{**HOOK, "name": "A b"}]}, "should match pattern"),
        ({"targets": [{**HOOK, "ownerDomains": ["b"]}]}, "target hook: a target of kind webhook has no ownerDomains"),
        ({"targets": [{**HOOK, "kind": "apprise", "keyFile": "/k"}]}, "a target of kind apprise has no keyFile"),
        ({"targets": [{**HOOK, "kind": "pigeon"}]}, "'pigeon' is none of the kinds apprise, webhook"),
        (
            {"targets": [{**HOOK, "kind": "mail", "from": "a@b"}]},
            "mailtos://USER:PASSWORD@HOST?from=ADDRESS&to=ADDRESS",
        ),
        ({"targets": [{**HOOK, "kind": "alertmanager"}]}, "rules of Prometheus now, by dashboards/rules/owners"),
        ({"targets": [HOOK], "defaultTargets": ["chat"]}, "defaultTargets: chat is no target"),
        ({"links": {"baseUrl": "gpus.example.com", "keyFile": "/k"}}, "links.baseUrl"),
        ({"perOwnerPerHour": 0}, "perOwnerPerHour"),
        ({"targets": [HOOK], "digest": {"timeZone": "UTC"}}, "idle-gpu-scaler report --notify TARGET"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        settings(**given)
