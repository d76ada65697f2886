"""Another tenant, who asks as KEDA does while somebody attacks the same process.

How long an answer takes is counted without the time in which one of the two processes was ready and had no core:
otherwise a busy machine would be an attack.

    with Bystander(process.grpc_port, pid) as bystander:
        ...
    bystander.slowest_s     # of all its answers
    bystander.answers       # {True}, {False}, or with codes of gRPC
"""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import grpc
from running_scaler import TRIGGER
from small_cluster import NAME, NAMESPACE_NAME

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc

_EACH_S = 0.05
_LONGEST_S = 30.0


class Bystander:
    """It asks in a thread of its own, so that it does not wait for what else the test does."""

    def __init__(self, port: int, pid: int) -> None:
        self._port, self._pid = port, pid
        self._ends, self._asked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers = set[bool | grpc.StatusCode]()
        self.count, self.slowest_s = 0, 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """An attack may be over before anybody has asked: the first answer is waited for."""
        self._asked.wait(_LONGEST_S)
        self._ends.set()
        self._thread.join(2 * _LONGEST_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        reference = pb.ScaledObjectRef(name=NAME, namespace=NAMESPACE_NAME, scalerMetadata=dict(TRIGGER))
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            stub = pb_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
            while not self._ends.wait(_EACH_S):
                begin, waited = time.monotonic(), self._without_a_core_s()
                try:
                    answer = bool(stub.IsActive(reference, timeout=_LONGEST_S).result)
                except grpc.RpcError as error:
                    answer = error.code()  # type: ignore[attr-defined]
                took = time.monotonic() - begin - (self._without_a_core_s() - waited)
                self.answers.add(answer)
                self.count, self.slowest_s = self.count + 1, max(self.slowest_s, took)
                self._asked.set()

    def _without_a_core_s(self) -> float:
        """For how long the event loop there, and this thread, were ready to run and did not."""
        found = 0
        for thread in (f"{self._pid}/task/{self._pid}", "thread-self"):
            with suppress(OSError):
                found += int(Path("/proc", thread, "schedstat").read_text().split()[1])
        return found / 1e9
