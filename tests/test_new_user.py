"""A new user's path, typed in as the pages have it: from an empty namespace to a suspended workload on a dashboard.

kustomize is left out: its objects are the chart's, which tests/deploy/test_kustomize.py holds.
"""

from pathlib import Path

import pytest
from followed_page import ROOT, commands, commands_in, first_objects
from new_user import FLEET, Json, Terminal, a_cluster, hurried
from prometheus_server import require_prometheus
from scaler_sandbox.manifests import objects_in
from scaler_sandbox.packaged import packaged

from scaler.kube.objects.resources import SCALABLE_WORKLOAD

pytestmark = [pytest.mark.slow, pytest.mark.prometheus]

README, INSTALL = ROOT / "README.md", ROOT / "docs" / "install.md"
README_TEXT = README.read_text(encoding="utf-8")


async def test_ten_minutes_of_the_readme_suspend_its_holder_and_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between commands the user looks at the dashboard, as the last of the steps says."""
    require_prometheus()
    async with a_cluster(tmp_path, monkeypatch) as terminal:
        for words in commands(README, "## Ten minutes on a cluster", "\n## "):
            said = await terminal.type(words)
            match words[-1]:
                case "first/holder":
                    assert "scales Deployment holder" in said
                    await terminal.has_shown("Held", {"value": 1})
                case "--watch":
                    await terminal.will_show("Suspended", {"first": 1})
                    await terminal.will_show("Held", {})
                    await terminal.will_show("Free", {"value": 2})
                case "idlegpu.io/wake=true":
                    await terminal.until(lambda: terminal.replicas("first", "holder") == 1, "the holder to be back")
        steps = {words[-1] for words in terminal.typed}
        assert steps >= {"first/holder", "--watch", "idlegpu.io/wake=true"}, "the page has changed: what is to be seen?"
        assert f"*{FLEET}*" in README_TEXT


NOTEBOOK = "my-team", "my-notebook"
"""The workload of the release's notes."""


def notebook() -> list[Json]:
    """What the user had before: a RayCluster of two GPUs that no one uses, from the examples."""
    files = ("queue/queue.yaml", "raycluster/rayclusters.yaml")
    text = "\n---\n".join((packaged("examples") / path).read_text(encoding="utf-8") for path in files)
    mine = text.replace("namespace: demo", "namespace: my-team").replace("name: demo", "name: my-team")
    bodies = objects_in(mine.replace("first-raycluster", "my-notebook"))
    return [body for body in bodies if body["metadata"]["name"] != "second-raycluster"]


async def test_installing_to_look_first_leads_by_the_notes_to_a_suspended_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica, as two are in the README's path; and what is looked at first is not touched."""
    require_prometheus()
    async with a_cluster(tmp_path, monkeypatch, values={"replicas": 1}) as terminal:
        await terminal.world.apply(notebook())
        for words in commands(INSTALL, "<!-- quick start -->", "<!-- /quick start -->"):
            notes = await terminal.type(words)
        assert words[:3] == ["helm", "get", "notes"]
        bodies = [hurried(body) for body in first_objects(notes)]
        await terminal.world.apply(bodies)
        await terminal.will_show("Idle", {"value": 2})
        await terminal.will_show("Idle GPUs by namespace", {"my-team": 2})
        said = {words[-1]: await terminal.type(words) for words in commands_in(notes) if words not in terminal.typed}
        assert "mode observe only reports" in said["my-team/my-notebook"]

        [trigger] = bodies[-1]["spec"]["triggers"]
        del trigger["metadata"]["mode"]  # "remove it to let it be suspended"
        await terminal.world.apply(bodies)
        await terminal.will_show("Suspended", {"my-team": 2})
        await terminal.will_show("Held", {})
        await terminal.until(lambda: phase(terminal) == "Suspended", "kubectl get scalableworkloads to say so")


def phase(terminal: Terminal) -> str:
    found = terminal.world.find(SCALABLE_WORKLOAD, *NOTEBOOK) or {}
    return str(found.get("status", {}).get("phase", ""))
