"""How is a range of samples asked for in PromQL? Pure.

Neither thresholds nor functions appear in what is asked for signals. PromQL fetches, Python decides.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from scaler.idleness.gpu import Signal

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPES = str.maketrans(
    {chr(number): f"\\u{number:04x}" for number in range(0x20)}
    | {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


def signal_query(signal: Signal, *, matchers: Mapping[str, str], span: timedelta, more: Sequence[str] = ()) -> str:
    """The range selector over all metrics under which the signal is published.

    `matchers` are labels that every series must carry, such as {"cluster": "prod"}; `more` are further ones as PromQL.
    """
    conditions = [*(f"{name}={quoted(value)}" for name, value in matchers.items()), *more]
    duration = range_duration(span)
    only = signal.metrics[0]
    if len(signal.metrics) == 1 and _METRIC.fullmatch(only):
        return f"{only}{{{','.join(conditions)}}}[{duration}]" if conditions else f"{only}[{duration}]"
    return f"{{{','.join([_name_matcher(signal.metrics), *conditions])}}}[{duration}]"


def selector(matchers: Mapping[str, str], *more: str) -> str:
    """`{cluster="prod",...}`: what a series must carry, `more` as PromQL; empty where that is nothing."""
    conditions = [*more, *(f"{name}={quoted(value)}" for name, value in matchers.items())]
    return f"{{{','.join(conditions)}}}" if conditions else ""


def range_duration(span: timedelta) -> str:
    """The span as PromQL writes it: `1800s`, or `1500ms` where it is no whole number of seconds.

    Raises: ValueError for a span that is not at least a millisecond, PromQL's finest.
    """
    milliseconds = -(-span // timedelta(milliseconds=1))
    if milliseconds < 1:
        raise ValueError(f"a range of {span} holds nothing")
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def _name_matcher(metrics: tuple[str, ...]) -> str:
    return f"__name__={quoted(metrics[0])}" if len(metrics) == 1 else f"__name__=~{any_of(metrics)}"


def any_of(texts: Iterable[str]) -> str:
    """A regular expression that matches these texts and no other, as a PromQL string."""
    return quoted("|".join(_SPECIAL.sub(r"\\\1", each) for each in texts))


def quoted(value: str) -> str:
    """The value as a PromQL string, which has the escapes of Go."""
    return f'"{value.translate(_ESCAPES)}"'
