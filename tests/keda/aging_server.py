"""A server whose connections and streams grow old within a second, in a process of its own that can be stopped."""

import asyncio
import sys
from datetime import timedelta

from memory_decisions import IDLE, MemoryDecisions

from scaler.keda.server import ExternalScalerServer, ServerConfig


async def serve() -> None:
    config = ServerConfig(
        addresses=("127.0.0.1:0",),
        max_connection_age=timedelta(seconds=0.25),
        max_stream_life=timedelta(seconds=0.4),
    )
    server = ExternalScalerServer(config, MemoryDecisions({("demo", "first-raycluster"): IDLE}))
    sys.stdout.write(f"{await server.start()}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
