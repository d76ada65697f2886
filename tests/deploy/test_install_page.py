"""What docs/install.md and docs/platforms.md call the chart's objects, and say of them, is what the chart makes.

Commands, links, files and values on all pages are held by tests/test_docs.py.
"""

import json
import re
from textwrap import dedent

import deploy.helm_chart as helm_chart
import yaml
from deploy.helm_chart import ROOT

PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


def test_objects_are_called_as_the_chart_calls_them() -> None:
    names = {each["metadata"]["name"] for each in helm_chart.objects()}
    called = set(re.findall(r"`(idle-gpu-scaler-[a-z]+)`", PAGE))
    assert called
    assert called <= names


def test_what_the_first_holder_wants_on_openshift_is_what_the_release_says_there() -> None:
    """Its trigger, patched as docs/platforms.md has it, speaks TLS like that of the notes."""
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    [patch] = re.findall(r"patch scaledobject holder --type json -p '(.*?)'", page, re.DOTALL)
    added = {each["path"].rpartition("/triggers/0/")[2]: each["value"] for each in json.loads(patch)}
    notes = helm_chart.texts(helm_chart.platform("openshift"))["NOTES.txt"]
    told = re.search(r" +- type: external-push\n.*?\n\n", notes, re.DOTALL)
    assert told
    [trigger] = yaml.safe_load(dedent(told[0]))
    assert added == {
        "metadata/enableTLS": trigger["metadata"]["enableTLS"],
        "authenticationRef": trigger["authenticationRef"],
    }
