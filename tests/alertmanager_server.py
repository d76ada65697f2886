"""A real Alertmanager for tests: the `prometheus-alertmanager` program in a temporary folder, on a port of its own.

    with alertmanager_server(folder, receiver.url) as url:
        ...  # it hands alerts over to the webhook receiver as soon as they come

Call `require_alertmanager()` first: where the program is not installed tests are skipped, in CI they fail.
"""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_server import free_port

PROGRAM = "prometheus-alertmanager"
_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 5.0


def require_alertmanager() -> None:
    if shutil.which(PROGRAM):
        return
    reason = f"the program {PROGRAM!r} is not installed (Debian: apt-get install {PROGRAM})"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def alertmanager_server(folder: Path, receiver: str) -> Iterator[str]:
    """Its URL. `receiver` is that of a webhook, which is told of each alert by itself, and of its end."""
    folder.mkdir(parents=True, exist_ok=True)
    config, port = folder / "alertmanager.yml", free_port()
    route = {"receiver": "hook", "group_by": ["..."], "group_wait": "10ms", "group_interval": "100ms"}
    hook = {"name": "hook", "webhook_configs": [{"url": receiver, "send_resolved": True}]}
    config.write_text(json.dumps({"route": route, "receivers": [hook]}), encoding="utf-8")  # JSON is YAML
    command = [
        PROGRAM,
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with (folder / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_ready(f"http://127.0.0.1:{port}", process, folder / "alertmanager.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise RuntimeError(f"{PROGRAM} did not start; its log says:\n{log.read_text(encoding='utf-8', errors='replace')}")
