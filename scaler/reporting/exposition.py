"""The page of all metrics in parts, each made in a few milliseconds, so that RPCs are answered in between.

Laws:

* A page shows the metrics as they are when it is asked for, however long it takes to make the parts.
* Joined, the parts are what the client library writes for the same metrics, in each of its formats (with times of
  creation switched off, as they are). How a line looks is learned from one that the library has written.

Tempting: to render in a thread. That takes half a second for 50,000 series, and holds the interpreter as well.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

from prometheus_client import CollectorRegistry, utils
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scaler.reporting.metric_declarations import GaugeSamples

Encode = Callable[[Any], bytes]
"""The client library's function: a registry → its page."""

_go_text: Callable[[float], str] = utils.floatToGoString
_EXPONENT_FROM = 1e6
_PART = 1000
"""Series of one part: about 2 ms."""
_PLACE = re.compile("\0(\\d+)\0")


def parts_of(registry: CollectorRegistry, encode: Encode) -> Iterator[bytes]:
    """The page of the registry as it is now."""
    return _parts(list(registry.collect()), encode)


def _parts(families: list[Metric], encode: Encode) -> Iterator[bytes]:
    end = encode(_Families())
    for family in families:
        samples = family.samples
        head = _encoded(family, [], encode, end)
        yield head
        if isinstance(samples, GaugeSamples):
            yield from _lines(family, samples, encode, end)
            samples = samples.others
        for some in _split(samples):
            yield _encoded(family, some, encode, end)[len(head) :]
    yield end


class _Families(Collector):
    """Families in the form in which the library's encoders read a registry."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _encoded(family: Metric, samples: Any, encode: Encode, end: bytes) -> bytes:
    shown = Metric(family.name, family.documentation, family.type, family.unit)
    shown.samples = samples
    return encode(_Families(shown)).removesuffix(end)


def _lines(family: Metric, series: GaugeSamples, encode: Encode, end: bytes) -> Iterator[bytes]:
    """The lines of the series that are shown all at once, which may be thousands."""
    places = tuple(f"\0{place}\0" for place in range(len(series.labels)))
    sample = GaugeSamples(series.name, series.labels, {places: 0}, [])
    line = _encoded(family, sample, encode, end).decode().splitlines(keepends=True)[-1].removesuffix("0.0\n")
    template = _PLACE.sub("%s", line.replace("%", "%%")) + "%s\n"
    in_order = itemgetter(*map(int, _PLACE.findall(line)), len(places))
    for some in _split(series.rows.items()):
        text = "".join([template % in_order((*labels, _number(value))) for labels, value in some])
        if "\\" in text or text.count('"') != line.count('"') * len(some) or text.count("\n") != len(some):
            rows = [(*map(_escaped, labels), _number(value)) for labels, value in some]
            text = "".join([template % in_order(row) for row in rows])
        yield text.encode()


def _escaped(label: object) -> str:
    """The value of a label as it stands between quotes."""
    return str(label).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """The number as the library writes it: as Python does where Go would not write an exponent."""
    return repr(float(value)) if -_EXPONENT_FROM < value < _EXPONENT_FROM else _go_text(value)


def _split(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while some := list(islice(rest, _PART)):
        yield some
