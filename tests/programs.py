"""Programs that tests call and that do not come with Python: without one its tests are skipped, except in CI.

    pytestmark = needs("kubectl")

There they run and fail, so that nothing is left out quietly; `.ci/run` installs all of them.
"""

import os
import shutil

import pytest

WHERE_FROM = {
    "kubectl": "1.27 or newer, for its kustomize; Debian 13: apt-get install kubectl",
    "promtool": "Debian: apt-get install prometheus",
}


def needs(program: str) -> pytest.MarkDecorator:
    """Marks tests that call the program."""
    is_left_out = shutil.which(program) is None and not os.environ.get("CI")
    return pytest.mark.skipif(is_left_out, reason=f"{program} is not installed ({WHERE_FROM[program]})")
