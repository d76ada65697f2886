"""The pods of an installed Deployment, as kubelets would run them: the same arguments, files, account and probes.

| in a cluster                          | here                                                                 |
|---------------------------------------|----------------------------------------------------------------------|
| the image's entrypoint                | `python -m scaler`                                                   |
| a volume of the ConfigMap             | a folder; its path takes the mount path's place in arguments         |
| the account's token, mounted          | a kubeconfig with a token of that account, named by `KUBECONFIG`     |
| the downward API                      | the same environment variables                                       |
| an address of the pod's own           | ports of the loopback interface, by environment variables            |
| DNS, to the scaler's Services         | a proxy (`grpc_proxy`), so that ScaledObjects keep the address they have |
| DNS, to Prometheus                    | an environment variable, if the settings file has the name that is known |
"""

import asyncio
import os
import signal
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any, Self

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running_scaler import Process
from scaler_sandbox.sandbox import Sandbox

Json = dict[str, Any]

_READY_SECONDS = 120.0
_END_SECONDS = 30.0


# ------------------------------------------------------------------------------------------------------------------ DNS


class Names:
    """An HTTP proxy that knows the names of Services, and leads to one of their endpoints after the other."""

    def __init__(self) -> None:
        self.endpoints: dict[str, list[int]] = {}
        """Ports of the loopback interface by `host:port`."""
        self.unknown: list[str] = []
        """What was asked for and is no one's name."""
        self._turn = count()
        self.url = ""

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        name = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        ports = self.endpoints.get(name, [])
        if not ports:
            self.unknown.append(name)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", ports[next(self._turn) % len(ports)])
        except (OSError, ZeroDivisionError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(source: StreamReader, sink: StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


# ----------------------------------------------------------------------------------------------------------------- pods


class Pod(Process):
    """One container of the Deployment, running."""

    def __init__(self, name: str, log: Path, *arguments: str, environment: Mapping[str, str]) -> None:
        super().__init__(log, *arguments, environment=environment)
        self.name = name

    @property
    def ports(self) -> dict[int, int]:
        """Ports here by the container's."""
        return {9090: self.grpc_port, 8080: self.http_port}

    async def becomes_ready(self, probe: Json) -> None:
        """Asks as the readiness probe does. Raises: AssertionError with its log."""
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self.listens()
                await self._serving(self.ports[probe["grpc"]["port"]], probe["grpc"]["service"])
        except TimeoutError:
            raise AssertionError(f"pod {self.name} never became ready:\n{self.log()}") from None

    async def _serving(self, port: int, service: str) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            async for answer in stub.Watch(health_pb2.HealthCheckRequest(service=service)):
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return

    async def ends(self) -> None:
        with suppress(ProcessLookupError):
            self.send(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended(), _END_SECONDS)
        await self.kill()


# ----------------------------------------------------------------------------------------------------------- Deployment


class InstalledScaler:
    """Whatever pods the Deployment has at the moment. Use as an async context manager."""

    def __init__(self, world: Sandbox, names: Names, folder: Path, *, prometheus: Mapping[str, str]) -> None:
        """`prometheus` is where the one of that URL really is."""
        self._world, self._names, self._folder, self._prometheus = world, names, folder, prometheus
        self._revision = count(1)
        self._template: Json = {}
        self._container: Json = {}
        self._mounts: dict[str, Path] = {}
        self._environment: dict[str, str] = {}
        self.pods: list[Pod] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(pod.ends() for pod in self.pods))

    @property
    def http_url(self) -> str:
        """Where `kubectl port-forward` would lead to."""
        return f"http://127.0.0.1:{self.pods[0].ports[8080]}"

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    async def roll_out(self, applied: Sequence[Json]) -> None:
        """A rolling update to what was applied: new pods first, and old ones end when those are ready."""
        deployment = _one(applied, "Deployment")
        self._template, namespace = deployment["spec"]["template"], deployment["metadata"]["namespace"]
        pod_spec = self._template["spec"]
        [self._container] = pod_spec["containers"]
        revision = next(self._revision)
        self._mount(pod_spec, applied, revision)
        await self._give_account(namespace, pod_spec["serviceAccountName"], revision)
        name = deployment["metadata"]["name"]
        old, new = self.pods, [f"{name}-{revision}-{n}" for n in range(deployment["spec"]["replicas"])]
        self.pods = [*old, *[await self._start(pod, namespace) for pod in new]]
        probe = self._container["readinessProbe"]
        await asyncio.gather(*(pod.becomes_ready(probe) for pod in self.pods[len(old) :]))
        self.pods = self.pods[len(old) :]
        self._publish(applied)
        await asyncio.gather(*(pod.ends() for pod in old))

    async def run_inside(self, words: Sequence[str]) -> tuple[int, str]:
        """A command of ours in the container, as by `kubectl exec`: its status, and what it prints."""
        program, *arguments = words
        assert program == "idle-gpu-scaler", f"the image has no {program}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "scaler",
            *self._inside(arguments),
            env=self._environment,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), _READY_SECONDS)
        return int(process.returncode or 0), f"{out.decode()}{err.decode()}"

    # ------------------------------------------------------------------------------------------------------- a kubelet

    def _mount(self, pod_spec: Json, applied: Sequence[Json], revision: int) -> None:
        volumes = {each["name"]: each["configMap"]["name"] for each in pod_spec["volumes"]}
        self._mounts = {}
        for mount in self._container["volumeMounts"]:
            folder = self._folder / f"{mount['name']}-{revision}"
            folder.mkdir()
            for file, text in _one(applied, "ConfigMap", volumes[mount["name"]])["data"].items():
                (folder / file).write_text(text, encoding="utf-8")
            self._mounts[mount["mountPath"]] = folder

    async def _give_account(self, namespace: str, account: str, revision: int) -> None:
        kubeconfig = self._folder / f"account-{revision}"
        self._world.write_kubeconfig(kubeconfig, token=await self._world.token_of(namespace, account))
        outside = {key: value for key, value in os.environ.items() if not key.startswith("IDLE_GPU_SCALER__")}
        self._environment = {**outside, **self._addresses(), "KUBECONFIG": str(kubeconfig)}

    def _addresses(self) -> dict[str, str]:
        """What goes before the settings file, as nothing here resolves names or has an address of its own."""
        settings = yaml.load((self._mounts["/etc/idle-gpu-scaler"] / "settings.yaml").read_text(), yaml.CSafeLoader)
        free = {f"IDLE_GPU_SCALER__{server}__ADDRESS": "127.0.0.1:0" for server in ("GRPC", "HTTP")}
        real = self._prometheus.get(settings["prometheus"]["url"])
        return {**free, **({"IDLE_GPU_SCALER__PROMETHEUS__URL": real} if real else {})}

    async def _start(self, name: str, namespace: str) -> Pod:
        fields = {"metadata.name": name, "metadata.namespace": namespace}
        for variable in self._container["env"]:
            given = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            self._environment[variable["name"]] = given
        pod = Pod(
            name, self._folder / f"{name}.log", *self._inside(self._container["args"]), environment=self._environment
        )
        await pod.start()
        return pod

    def _inside(self, arguments: Sequence[str]) -> list[str]:
        """With the paths of mounted files as they are here."""
        folders = self._mounts.items()
        return [
            reduce(lambda word, each: word.replace(f"{each[0]}/", f"{each[1]}/"), folders, word) for word in arguments
        ]

    def endpoints(self, service: Json, port: Json) -> list[tuple[Pod, int]]:
        """The pods behind a Service, each with the port here; none if it selects others."""
        labels = self._template["metadata"]["labels"]
        if not service["spec"]["selector"].items() <= labels.items():
            return []
        ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
        return [(pod, pod.ports[ports[port["targetPort"]]]) for pod in self.pods]

    def _publish(self, applied: Sequence[Json]) -> None:
        """Every name of the Services leads to the pods from now on."""
        for service in (each for each in applied if each["kind"] == "Service"):
            short = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
            for port in service["spec"]["ports"]:
                targets = [here for _, here in self.endpoints(service, port)]
                for host in (short, f"{short}.svc", f"{short}.svc.cluster.local"):
                    self._names.endpoints[f"{host}:{port['port']}"] = targets


def _one(applied: Sequence[Json], kind: str, name: str = "") -> Json:
    [found] = [each for each in applied if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found
