"""`idle-gpu-scaler run`: the external scaler and the reconciler, until a signal ends them."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scaler.app.process import Runtime
from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.reporting import logs


def run_scaler(config: Path | None, flags: Mapping[str, Any]) -> int:
    """The exit status. Raises: ConfigurationError."""
    settings = load(config, environ=os.environ, flags=flags)
    logs.configure(level=settings.log.level, style=settings.log.format)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve(settings))
    return 0


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where the extra `fast` is installed; None means asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: Settings) -> None:
    runtime = Runtime(settings)
    await runtime.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.stop)
    await runtime.run()
