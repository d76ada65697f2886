"""The GPU fleet: devices, who holds them, how busy their holders keep them, and what the exporter last collected.

Laws:

* A collection happens once per interval and node, at instants that are multiples of the interval since the start, and
  values stand still in between, as with a real exporter: a second scrape within the interval returns the same sample.
* Activity belongs to pods, since it is programs that are busy. A device without a holder is quiet.
* Noise is drawn from the seed, the device and the number of the collection: the same story shows the same numbers,
  however often it is scraped.
* Machines come and go at any time. One that is removed takes its devices and what they showed with it, as a machine
  does whose power is cut; the kubelets delete its Node and its pods.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from scaler_sandbox.fleet.gpus import A100, SENTINEL, Gpu, GpuModel, Holder, Level, Machine, Reading, gpus_of, values_at


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """What the fleet consists of at first."""

    nodes: Mapping[str, int]
    """GPUs by node name."""
    model: GpuModel = A100
    collect_seconds: float = 30.0
    """The exporter's collection interval. Source: dcgm-exporter's default of 30 s."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activity:
    namespace: str
    pods: str
    level: Level
    noise: float


class Faults:
    """Faults between the devices and the readers of their metrics, in force until cleared."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        """Nodes whose exporter closes connections without an answer, as a pod that is restarting."""
        self._gone: set[str] = set()
        self._blank: set[tuple[str, str]] = set()

    def exporter_down(self, node: str) -> None:
        self.down.add(node)

    def vanish(self, uuid: str) -> None:
        """The device is not shown any more, as after an Xid error or a failed collection."""
        self._gone.add(uuid)

    def blank(self, metric: str, *, uuid: str) -> None:
        """The metric of the device shows the driver's sentinel for "not supported"."""
        self._blank.add((metric, uuid))

    def clear(self) -> None:
        for state in (self.down, self._gone, self._blank):
            state.clear()

    def applied(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings as a reader gets to see them."""
        return [self._distorted(reading) for reading in readings if reading.gpu.uuid not in self._gone]

    def _distorted(self, reading: Reading) -> Reading:
        lost = {metric: SENTINEL for metric, uuid in self._blank if uuid == reading.gpu.uuid}
        return replace(reading, values={**reading.values, **lost}) if lost else reading


class Fleet:
    """The devices of some nodes. Reading it never fails; what fails on purpose is in `faults`."""

    def __init__(self, config: FleetConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.gpus = gpus_of(config.nodes, model=config.model, seed=config.seed)
        self.faults = Faults()
        self.gone: set[str] = set()
        """Names of machines that were removed and have not come back."""
        self._machines = {name: Machine(name=name, gpus=count) for name, count in config.nodes.items()}
        self._listeners: list[Callable[[], None]] = []
        self._clock = clock
        self._started = clock()
        self._holders: dict[str, Holder] = {}
        self._activities: list[_Activity] = []
        self._collected: dict[str, tuple[int, list[Reading]]] = {}

    # ------------------------------------------------------------------------------------------- what it consists of

    @property
    def machines(self) -> Mapping[str, Machine]:
        """The machines that are there, by name."""
        return MappingProxyType(self._machines)

    def add(self, machine: Machine) -> None:
        """The machine is there from now on. A name has the same devices every time.

        Raises: ValueError where one of that name is there already.
        """
        if machine.name in self._machines:
            raise ValueError(f"node {machine.name!r} is there already; remove it first, or choose another name")
        self.gone.discard(machine.name)
        self._recompose({**self._machines, machine.name: machine})

    def remove(self, name: str) -> None:
        """The machine is not there from now on. Raises: ValueError where it was not."""
        if name not in self._machines:
            raise ValueError(f"there is no node {name!r}; there are {', '.join(self._machines) or 'none'}")
        self.gone.add(name)
        self.hold(name, {})
        self._collected.pop(name, None)
        self._recompose({each: machine for each, machine in self._machines.items() if each != name})

    def _recompose(self, machines: dict[str, Machine]) -> None:
        self._machines = machines
        counts = {machine.name: machine.gpus for machine in machines.values()}
        self.gpus = gpus_of(counts, model=self.config.model, seed=self.config.seed)
        for wake in self._listeners:
            wake()

    @contextmanager
    def listening(self, wake: Callable[[], None]) -> Iterator[None]:
        """Calls `wake` whenever a machine comes or goes."""
        self._listeners.append(wake)
        try:
            yield
        finally:
            self._listeners.remove(wake)

    # ------------------------------------------------------------------------------------------------- what it does

    def set_activity(self, namespace: str, pods: str, level: Level, *, noise: float = 0.0) -> None:
        """The namespace's pods whose names match the pattern keep their devices this busy from now on.

        Units: level and noise (standard deviation) 0..1; a function gets the seconds since the fleet was started.
        The latest setting that matches a pod counts. What is wholly quiet has no noise.
        """
        kept = [each for each in self._activities if (each.namespace, each.pods) != (namespace, pods)]
        self._activities = [*kept, _Activity(namespace=namespace, pods=pods, level=level, noise=noise)]

    def hold(self, node: str, holders: Mapping[str, Holder]) -> None:
        """The node's devices, by UUID, are given to these containers and to no others."""
        for gpu in self.gpus:
            if gpu.node == node:
                self._holders.pop(gpu.uuid, None)
        self._holders.update(holders)

    def holder(self, uuid: str) -> Holder | None:
        """Who holds the device."""
        return self._holders.get(uuid)

    def on(self, node: str) -> list[Gpu]:
        """The node's devices, in the order of their indexes."""
        return [gpu for gpu in self.gpus if gpu.node == node]

    # ------------------------------------------------------------------------------------------------ what is seen

    def readings(self, node: str) -> list[Reading]:
        """What the node's exporter last collected, faults of the data included."""
        number = int((self._clock() - self._started) / self.config.collect_seconds)
        known = self._collected.get(node)
        if known is None or (known[0] != number):
            known = (number, [self._reading(gpu, number) for gpu in self.on(node)])
            self._collected[node] = known
        return self.faults.applied(known[1])

    async def collect(self) -> None:
        """Collects at every interval until cancelled, so that values are those of the instant and not of the scrape."""
        while True:
            for node in self._machines:
                self.readings(node)
            elapsed = self._clock() - self._started
            await asyncio.sleep(self.config.collect_seconds - elapsed % self.config.collect_seconds)

    def _reading(self, gpu: Gpu, number: int) -> Reading:
        holder = self._holders.get(gpu.uuid)
        activity = self._level(gpu, holder, number) if holder and holder.is_running else 0.0
        return Reading(gpu=gpu, holder=holder, values=values_at(gpu.model, activity, is_held=holder is not None))

    def _level(self, gpu: Gpu, holder: Holder, number: int) -> float:
        setting = next((each for each in reversed(self._activities) if _concerns(each, holder)), None)
        if setting is None:
            return 0.0
        at = number * self.config.collect_seconds
        level = setting.level(at) if callable(setting.level) else setting.level
        if level > 0 and setting.noise > 0:
            draw = random.Random(f"{self.config.seed}/{gpu.uuid}/{number}")  # noqa: S311 (a simulation's noise)
            level = max(0.001, level + draw.gauss(0.0, setting.noise))
        return min(1.0, max(0.0, level))


def _concerns(activity: _Activity, holder: Holder) -> bool:
    return activity.namespace == holder.namespace and fnmatchcase(holder.pod, activity.pods)
