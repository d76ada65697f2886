"""How is the scaler of a cluster reached from outside? By `kubectl port-forward` to its Service.

A forward comes from the pod's own node, which no NetworkPolicy keeps out; what the API server's proxy asks does not.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from scaler.errors import ScalerError
from scaler.kube.access import check_kubeconfig

_LABELS = "app.kubernetes.io/name=idle-gpu-scaler,app.kubernetes.io/component=metrics"
_EACH = "{range .items[*]}{.metadata.namespace} {.metadata.name} {.spec.ports[0].port} {end}"
_SECONDS = 20.0


@contextmanager
def forwarded(kubeconfig: Path) -> Iterator[str]:
    """The URL here of the cluster's scaler, while this lasts. Raises: ScalerError with what kubectl says."""
    check_kubeconfig(str(kubeconfig))
    kubectl = ["kubectl", "--kubeconfig", str(kubeconfig)]
    namespace, name, port = _service(kubectl)
    with TemporaryFile() as output:
        command = [*kubectl, "-n", namespace, "port-forward", f"service/{name}", f":{port}"]
        process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603
        try:
            yield f"http://{_address(process, output.fileno())}"
        finally:
            process.kill()
            process.wait()


def _service(kubectl: Sequence[str]) -> Sequence[str]:
    """Namespace, name and port. Who may not list all namespaces may list the usual one, perhaps."""
    for place in ("--all-namespaces", "--namespace=idle-gpu-scaler"):
        command = [*kubectl, "get", "services", place, "-l", _LABELS, "-o", f"jsonpath={_EACH}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _unreachable(str(error)) from None
        if len(found := done.stdout.split()) == 3:
            return found
    raise _unreachable(done.stderr or f"no single Service is labelled {_LABELS}, but: {' '.join(found) or 'none'}")


def _address(process: "subprocess.Popen[bytes]", output: int) -> str:
    """The forward's own, as soon as kubectl says it."""
    deadline, text = time.monotonic() + _SECONDS, ""
    while time.monotonic() < deadline:
        has_ended, text = process.poll() is not None, os.pread(output, 4096, 0).decode(errors="replace")
        if here := re.search(r"^Forwarding from (127\.0\.0\.1:\d+)", text, re.MULTILINE):
            return here[1]
        if has_ended:
            break
        time.sleep(0.05)
    raise _unreachable(text or "no answer in time")


def _unreachable(why: str) -> ScalerError:
    last = (why.strip().splitlines() or [""])[-1]
    return ScalerError(f"kubectl does not reach a scaler ({last}); set --server to its address, or use --local")
