"""What can go wrong between a GPU and who reads its metrics, each as one method that can be taken back.

Faults of the way (the exporter is down, hangs, answers 500, breaks off) belong to a node. Faults of the data lie about
devices whose exporter answers properly, which is the more dangerous kind.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from scaler.embedded.fleet.gpus import Gpu, Reading

SENTINEL = 9223372036854775794.0
"""What exporters have printed for a field that the driver does not support: DCGM's int64 "not supported"."""


class Outage(StrEnum):
    """How an exporter fails to answer."""

    DOWN = "Down"
    """The connection is closed without an answer, as by a pod that is restarting."""
    HANG = "Hang"
    ERROR = "Error"
    """Status 500."""
    TRUNCATED = "Truncated"
    """The body ends in the middle of a line."""


class Faults:
    """The faults that are in force. Nodes, devices (UUIDs) and metrics are named as in the exposition."""

    def __init__(self) -> None:
        self._outages: dict[str, Outage] = {}
        self._frozen: set[str] = set()
        self._gone: set[str] = set()
        self._stuck: dict[tuple[str, str], float] = {}
        self._swapped: dict[tuple[str, str], tuple[str, str]] = {}

    # ---------------------------------------------------------------------------------------------------- the way

    def exporter_down(self, node: str) -> None:
        self._outages[node] = Outage.DOWN

    def exporter_hangs(self, node: str) -> None:
        self._outages[node] = Outage.HANG

    def exporter_errors(self, node: str) -> None:
        self._outages[node] = Outage.ERROR

    def exporter_truncates(self, node: str) -> None:
        self._outages[node] = Outage.TRUNCATED

    def exporter_recovers(self, node: str) -> None:
        self._outages.pop(node, None)

    def outage(self, node: str) -> Outage | None:
        """How the node's exporter fails at the moment."""
        return self._outages.get(node)

    # --------------------------------------------------------------------------------------------------- the data

    def freeze(self, node: str) -> None:
        """The exporter of the node goes on telling what it last collected, whatever the devices do."""
        self._frozen.add(node)

    def thaw(self, node: str) -> None:
        self._frozen.discard(node)

    def is_frozen(self, node: str) -> bool:
        return node in self._frozen

    def stick(self, metric: str, value: float, *, uuid: str) -> None:
        """The metric of the device shows this value, whatever it does; engine activity at 0 is known from the field."""
        self._stuck[(metric, uuid)] = value

    def blank(self, metric: str, *, uuid: str) -> None:
        """The metric of the device shows the driver's sentinel for "not supported"."""
        self.stick(metric, SENTINEL, uuid=uuid)

    def unstick(self, metric: str, *, uuid: str) -> None:
        self._stuck.pop((metric, uuid), None)

    def vanish(self, uuid: str) -> None:
        """The device is not told of any more, as after an Xid error or a failed collection."""
        self._gone.add(uuid)

    def reappear(self, uuid: str) -> None:
        self._gone.discard(uuid)

    def swap_labels(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        """Two pods, each as (namespace, name), whose devices are attributed to each other."""
        self._swapped |= {one: other, other: one}

    def unswap_labels(self) -> None:
        self._swapped.clear()

    def clear(self) -> None:
        """Everything works again."""
        for state in (self._outages, self._frozen, self._gone, self._stuck, self._swapped):
            state.clear()

    # ------------------------------------------------------------------------------------------------- the effect

    def applied(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings as a reader gets to see them."""
        return [self._distorted(reading) for reading in readings if reading.gpu.uuid not in self._gone]

    def _distorted(self, reading: Reading) -> Reading:
        values = {
            metric: self._stuck.get((metric, reading.gpu.uuid), value) for metric, value in reading.values.items()
        }
        holder = reading.holder
        other = self._swapped.get((holder.namespace, holder.pod)) if holder else None
        if holder and other:
            holder = replace(holder, namespace=other[0], pod=other[1])
        return replace(reading, values=values, holder=holder)


def uuids_on(gpus: Iterable[Gpu], node: str) -> list[str]:
    """The UUIDs of a node's devices, to name them to a fault."""
    return [gpu.uuid for gpu in gpus if gpu.node == node]
