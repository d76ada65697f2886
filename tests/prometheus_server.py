"""A real Prometheus for tests: the `prometheus` program in a temporary folder, on a port of its own.

    with PrometheusServer(folder, [static_scrape("gpus", exporter.address, interval="200ms")]) as prometheus:
        prometheus.url  # http://127.0.0.1:41234

Mark tests that use it with `@pytest.mark.prometheus` and call `require_prometheus()` first: where the program is not
installed they are skipped with that reason, except in CI, where they fail.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

PROGRAM = "prometheus"
_START_LIMIT_S = 300.0
_STOP_LIMIT_S = 5.0
_PORT_ATTEMPTS = 5


def require_prometheus() -> None:
    """Skip the test where Prometheus is not installed; fail it in CI, where nothing may be skipped quietly."""
    if shutil.which(PROGRAM):
        return
    reason = f"the program {PROGRAM!r} is not installed (Debian: apt-get install prometheus)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def static_scrape(job: str, *targets: str, interval: str = "200ms", **more: Any) -> dict[str, Any]:
    """A scrape config for fixed `host:port` targets; `more` are further fields such as `honor_labels=True`."""
    return {
        "job_name": job,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": [{"targets": list(targets)}],
        **more,
    }


_PORTS = range(20_000, 32_000)
"""Below those that systems hand out to whoever asks for any: one of those may be taken a moment later."""


def free_port() -> int:
    """A TCP port of the loopback interface that is free, and outside the range from which ports are assigned."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free TCP port was found in {_PORTS}")


class PrometheusServer:
    """One Prometheus process. `web_config` turns on TLS or basic auth: its URL then starts with https."""

    def __init__(
        self,
        folder: Path,
        scrape_configs: Sequence[dict[str, Any]] = (),
        *,
        web_config: dict[str, Any] | None = None,
        flags: Sequence[str] = (),
        route_prefix: str = "",
    ) -> None:
        self._folder = folder
        self._config = {"scrape_configs": list(scrape_configs)}
        self._web_config = web_config
        self._flags = list(flags)
        self._prefix = f"/{route_prefix.strip('/')}" if route_prefix else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        scheme = "https" if "tls_server_config" in (self._web_config or {}) else "http"
        return f"{scheme}://127.0.0.1:{self._port}{self._prefix}"

    def start(self) -> Self:
        """Return once it listens, after a stop on the same port again; on another one where it is taken."""
        for _ in range(_PORT_ATTEMPTS):
            self._launch()
            if self._listens():
                return self
            self._port = 0
        raise RuntimeError(f"prometheus did not start; its log says:\n{self.log()}")

    def stop(self) -> None:
        """End the process; its data stays in the folder, so that `start` resumes with it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def backfill(self, openmetrics: str) -> None:
        """Give it samples of the past, each line with its timestamp in seconds, before it is started.

        Needs no scrape, so no test has to wait the 5 s before Prometheus' first one.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        source = self._folder / "backfill.txt"
        source.write_text(f"{openmetrics.rstrip()}\n# EOF\n", encoding="utf-8")
        # It reads all samples once for each block, which are of two hours where nothing is said.
        long = "--max-block-duration=720h"
        command = [
            "promtool",
            "tsdb",
            "create-blocks-from",
            long,
            "openmetrics",
            str(source),
            str(self._folder / "data"),
        ]
        subprocess.run(command, check=True, capture_output=True)

    def log(self) -> str:
        return (self._folder / "prometheus.log").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._port = self._port or free_port()
        config = self._written("prometheus.yml", self._config)
        command = [
            PROGRAM,
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
            *self._flags,
        ]
        if self._prefix:
            command.append(f"--web.route-prefix={self._prefix}")
        if self._web_config is not None:
            command.append(f"--web.config.file={self._written('web.yml', self._web_config)}")
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def _written(self, name: str, content: dict[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
        return path

    def _listens(self) -> bool:
        """Whether it came to answer; False when it ended or never did."""
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            if self._is_ready():
                return True
            time.sleep(0.02)
        self.stop()
        return False

    def _is_ready(self) -> bool:
        if self._web_config is not None:
            # The probe has no credentials; that the port accepts is all it can know.
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._port)) == 0
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
