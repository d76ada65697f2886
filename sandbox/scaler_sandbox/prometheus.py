"""A real Prometheus beside the world, which scrapes its exporters and the scaler as it would on a cluster.

Target labels win over those of the exporter (`honor_labels` is off, as by default), so workloads are found under
exported_namespace and exported_pod, and `pod` is the exporter's own: the case that relabelling is for.
"""

import asyncio
import json
import shutil
import socket
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from scaler.errors import ScalerError

PROGRAM = "prometheus"
_START_SECONDS = 30.0
_STOP_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


class PrometheusProcess:
    """One Prometheus in a temporary folder, on a free port. Use as an async context manager."""

    def __init__(self, exporters: Mapping[str, str], *, interval: timedelta, scaler: str = "") -> None:
        """`exporters` are metrics URLs by node; `scaler` is the HOST:PORT of the scaler's own metrics."""
        self._exporters = exporters
        self._scaler = scaler
        self._interval = f"{round(interval.total_seconds() * 1000)}ms"
        self._folder = tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-prometheus-")
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        program = shutil.which(PROGRAM)
        if program is None:
            raise ScalerError(f"the program {PROGRAM!r} is not installed (Debian: apt-get install prometheus)")
        folder, port = Path(self._folder.name), free_port()
        config = folder / "prometheus.yml"
        config.write_text(json.dumps(self._config()), encoding="utf-8")  # JSON is YAML
        self._process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.url = f"http://127.0.0.1:{port}"
        await self._until_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._folder.cleanup()

    def _config(self) -> dict[str, object]:
        jobs = [self._job(node, url) for node, url in self._exporters.items()]
        if self._scaler:
            jobs.append({"job_name": "idle-gpu-scaler", "static_configs": [{"targets": [self._scaler]}]})
        return {"global": {"scrape_interval": self._interval, "scrape_timeout": self._interval}, "scrape_configs": jobs}

    def _job(self, node: str, url: str) -> dict[str, object]:
        labels = {"namespace": "gpu-operator", "pod": f"dcgm-exporter-{node}", "container": "exporter"}
        parts = urlsplit(url)
        return {
            "job_name": f"dcgm-{node}",
            "metrics_path": parts.path,
            "static_configs": [{"targets": [parts.netloc], "labels": labels}],
        }

    async def _until_ready(self) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(_START_SECONDS):
            while not await self._is_ready(session):
                if self._process is None or self._process.returncode is not None:
                    raise ScalerError(f"{PROGRAM} ended at once; is its version 2.x or newer?")
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


def free_port() -> int:
    """A port on which nothing listens yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
