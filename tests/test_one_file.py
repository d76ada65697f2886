"""What comes often is one product file: a field of policies, a job kind with replicas. One of each is added, and runs.

A new notification target is in tests/notifications/test_senders.py; a new reason is a row of its table, and its page.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]


class Addition(NamedTuple):
    file: str
    at: str
    """What it takes the place of."""
    added: str
    works: str
    """A program that fails where it does not."""


FIELD = Addition(
    "scaler/idleness/policy.py",
    "    keep_until: datetime | None = field(",
    '''    quiet_hook: str = field(default="", metadata=written("quietHook", HOOK, "lights"))
    """The hook that turns the lights off."""
    keep_until: datetime | None = field(''',
    """
from deploy.generate import contents
from docs.generate import parameters, policy_spec
from scaler.attachment.objects import policy_of
from scaler.decision.trigger_metadata import parse_metadata
from scaler.idleness.policy import describe, resolve
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import IdlePolicy

assert describe("quiet_hook", resolve(("trigger", parse_metadata({"quietHook": "lights"})))) == "lights"
body = b'{"metadata": {"name": "p", "namespace": "t"}, "spec": {"quietHook": "lights"}}'
assert policy_of(decode(IdlePolicy, body)).metadata == {"quietHook": "lights"}
meaning = "turns the lights off"
assert len([text for path, text in contents() if path.name.endswith("policies.yaml") and meaning in text]) >= 2
assert meaning in parameters() and "quietHook" in policy_spec()
""",
)
KIND = Addition(
    "scaler/kube/objects/resources.py",
    "SCALED_KINDS = (DEPLOYMENT,",
    """ROLLOUT = _of("argoproj.io/v1alpha1", "rollouts", "Rollout")
SCALED_KINDS = (ROLLOUT, DEPLOYMENT,""",
    """
from deploy.generate import permissions
from docs.generate import permission_table
from scaler.attachment.jobs import SCALED_KINDS
from scaler.attachment.objects import scale_target
from scaler.attachment.policy import Job

assert SCALED_KINDS[0].kind == "Rollout"
job = Job(namespace="t", api_version="argoproj.io/v1alpha1", kind="Rollout", name="serve", uid="u")
assert scale_target(job)["kind"] == "Rollout"
assert "rollouts" in permissions() and "rollouts" in permission_table()
""",
)


@pytest.mark.parametrize("addition", [FIELD, KIND], ids=["a field", "a kind"])
def test_one_file_is_enough(addition: Addition, tmp_path: Path) -> None:
    for name in ("scaler", "deploy", "docs", "dashboards"):
        shutil.copytree(ROOT / name, tmp_path / name)  # and what is compiled, which stays valid with the times
    file = tmp_path / addition.file
    text = file.read_text(encoding="utf-8")
    assert text.count(addition.at) == 1
    file.write_text(text.replace(addition.at, addition.added), encoding="utf-8")
    run, environment = [sys.executable, "-c", addition.works], {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
