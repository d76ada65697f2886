r"""Which samples does an exporter's page hold? Text in, series out; no I/O.

Reads Prometheus' text exposition format 0.0.4:

    DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-604a",pod="train-0",namespace="team-a"} 97 1700000000000

Laws of this file:

* Only lines of the wanted metrics are read, because a page has a hundred times as many others. A line is of the metric
  whose name it begins with, up to a brace or a blank; whatever is odd about other lines costs nothing.
* A wanted line that cannot be read makes the whole page unusable, for it may be the work of any GPU of the page: they
  have no new sample, and stale is Unknown. GPUs of other pages have theirs.
* What a line costs grows with its length and no faster: labels are written by tenants, too.
* A page must end with a newline. Without it `0.95` may have become `0` on the way.
* A sample has the exporter's own timestamp where there is one (dcgm-exporter writes none), else the time of the scrape.

The tempting alternative, `prometheus_client.parser`, reads every line into objects, 80 times as slowly:
10 s for 1,250 nodes. Tests hold this reader against that one.
"""

import re
from collections.abc import Collection, Sequence

_NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_PAIR = rb'[ \t]*+[a-zA-Z_][a-zA-Z0-9_]*+[ \t]*+=[ \t]*+"%b"[ \t]*+' % _TEXT
_LINE = re.compile(
    rb"(?P<series>(?P<name>%b)[ \t]*+(?:\{(?:%b(?:,%b)*+,?)?[ \t]*+\})?)" % (_NAME, _PAIR, _PAIR)
    + rb"[ \t]*+(?P<value>[0-9a-zA-Z.+-]++)(?:[ \t]++(?P<milliseconds>-?\d++))?"
)
_BEFORE_LABELS = re.compile(rb"[^ \t{]*+")
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"(%b)"' % _TEXT)


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
    wanted = frozenset(name.encode() for name in metrics)
    # Most lines are dropped by their prefix alone.
    prefixes, lines = tuple(wanted), enumerate((line.strip() for line in page.split(b"\n")), start=1)
    return [
        _series(line, number, instance, scraped_at_s)
        for number, line in lines
        if line.startswith(prefixes) and _name_of(line) in wanted
    ]


def _name_of(line: bytes) -> bytes:
    found = _BEFORE_LABELS.match(line)
    return found[0] if found else b""


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
        # int refuses so many digits; what is beyond a float is refused as too late.
        at_s=float(milliseconds) / 1000 if milliseconds else scraped_at_s,
        value=value,
    )


def _unescaped(value: str) -> str:
    return "\\".join(part.replace("\\n", "\n").replace('\\"', '"') for part in value.split("\\\\"))


def _clipped(line: bytes) -> str:
    return ascii(line[:120].decode(errors="replace"))
