"""The program as a process of its own, which can be killed and started again on the same ports."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, Self

import aiohttp
from prometheus_server import free_port


class ScalerProcess:
    """`idle-gpu-scaler run` with these settings. Use as an async context manager."""

    def __init__(self, folder: Path, settings: dict[str, Any], *, name: str = "scaler") -> None:
        self.grpc_port, self.http_port = free_port(), free_port()
        self._config = folder / f"{name}.yaml"
        self._log = folder / f"{name}.log"
        listening = {
            "grpc": {"address": f"127.0.0.1:{self.grpc_port}", "drain": "1s"},
            "http": {"address": f"127.0.0.1:{self.http_port}"},
        }
        self._config.write_text(json.dumps(settings | listening), encoding="utf-8")
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    async def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "scaler", "run", "--config", str(self._config), stdout=log, stderr=log
            )

    async def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def terminate(self, within: float = 30.0) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self._process.wait(), within)

    async def until_ready(self, within: float = 60.0) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(within):
            while True:
                try:
                    async with session.get(f"{self.http_url}/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
