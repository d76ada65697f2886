r"""Which samples does an exporter's page hold? Text in, series out; no I/O.

Reads Prometheus' text exposition format 0.0.4:

    DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-604a",pod="train-0",namespace="team-a"} 97 1700000000000

Laws of this file:

* Only lines of the wanted metrics are read, because a page has a hundred times as many others. A wanted line that
  cannot be read makes the whole page unusable: what else is wrong with it is unknown.
* A page must end with a newline. Without it `0.95` may have become `0` on the way.
* A sample has the exporter's own timestamp where there is one (dcgm-exporter writes none), else the time of the scrape.

The tempting alternative, `prometheus_client.parser`, reads every line into objects, 80 times as slowly:
10 s for 1,250 nodes. Tests hold this reader against that one.
"""

import re
from collections.abc import Collection, Sequence

_NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_PAIR = rb'[ \t]*+[a-zA-Z_][a-zA-Z0-9_]*+[ \t]*+=[ \t]*+"(?:[^"\\]|\\.)*+"[ \t]*+'
_LINE = re.compile(
    rb"(?P<series>(?P<name>%b)[ \t]*+(?:\{(?:%b(?:,%b)*+,?)?[ \t]*+\})?)" % (_NAME, _PAIR, _PAIR)
    + rb"[ \t]*+(?P<value>[^ \t{}]++)(?:[ \t]++(?P<milliseconds>-?\d++))?"
)
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class ExpositionSeries:
    """One sample of one series. Implements RawSeries."""

    __slots__ = ("_instance", "_text", "at_s", "metric", "value")

    def __init__(self, *, metric: str, text: bytes, instance: str, at_s: float, value: float) -> None:
        self.metric = metric
        self.at_s = at_s
        """Unix time."""
        self.value = value
        self._text = text
        self._instance = instance

    @property
    def key(self) -> bytes:
        """The series as the exporter wrote it, and where."""
        return self._text + b" " + self._instance.encode()

    def labels(self) -> dict[str, str]:
        """The exporter's labels, and `instance` as Prometheus would set it unless the exporter does."""
        own = {name.decode(): _unescaped(value.decode()) for name, value in _LABEL.findall(self._text)}
        return {"instance": self._instance, **own, "__name__": self.metric}

    def samples(self) -> Sequence[tuple[float, float]]:
        return [(self.at_s, self.value)]


def parse_exposition(
    page: bytes, *, metrics: Collection[str], instance: str, scraped_at_s: float
) -> list[ExpositionSeries]:
    """The series of the wanted metrics. Raises: ValueError naming the line that cannot be read."""
    if page and not page.endswith(b"\n"):
        raise ValueError("the page breaks off: its last line has no end")
    prefixes, wanted = tuple(name.encode() for name in metrics), frozenset(metrics)
    found = []
    for number, line in enumerate(page.split(b"\n"), start=1):
        stripped = line.strip()
        if stripped.startswith(prefixes):
            series = _series(stripped, number, instance, scraped_at_s)
            if series.metric in wanted:
                found.append(series)
    return found


def _series(line: bytes, number: int, instance: str, scraped_at_s: float) -> ExpositionSeries:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"line {number} is not a sample: {_clipped(line)}")
    try:
        match["series"].decode()
        value = float(match["value"])
    except ValueError:
        raise ValueError(f"line {number} holds no number, or text that is not UTF-8: {_clipped(line)}") from None
    milliseconds = match["milliseconds"]
    return ExpositionSeries(
        metric=match["name"].decode(),
        text=match["series"],
        instance=instance,
        at_s=int(milliseconds) / 1000 if milliseconds else scraped_at_s,
        value=value,
    )


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), value) if "\\" in value else value


def _clipped(line: bytes) -> str:
    return ascii(line[:120].decode(errors="replace"))
