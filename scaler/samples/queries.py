"""Which PromQL fetches the raw samples of a signal, for the whole cluster, in one query?

A range selector (`DCGM_FI_DEV_GPU_UTIL[1800s]`) evaluated as an *instant* query at the window's end. It returns the
samples that are really there, each with the time it was taken, and stops at a stale marker. The tempting alternative,
`/query_range` with a step, returns values at the steps instead: it looks back up to five minutes for each, so that an
exporter which died four minutes ago still seems to report, and a hole in the data cannot be seen.

Neither thresholds nor functions appear here. PromQL fetches, Python decides.

Prometheus 2 returns [end - span, end], Prometheus 3 (end - span, end]. The query is the same; `responses` removes the
sample at the left edge, so that both give (end - span, end].
"""

import json
import re
from collections.abc import Mapping
from datetime import timedelta

from scaler.errors import ConfigurationError
from scaler.idleness.gpu import Signal

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


def signal_query(signal: Signal, *, matchers: Mapping[str, str], span: timedelta) -> str:
    """The range selector over all metrics under which the signal is published.

    `matchers` are labels that every series must carry, such as {"cluster": "prod"}.
    """
    conditions = [f"{name}={_quoted(value)}" for name, value in matchers.items()]
    duration = range_duration(span)
    only = signal.metrics[0]
    if len(signal.metrics) == 1 and _METRIC.fullmatch(only):
        return f"{only}{{{','.join(conditions)}}}[{duration}]" if conditions else f"{only}[{duration}]"
    return f"{{{','.join([_name_matcher(signal.metrics), *conditions])}}}[{duration}]"


def range_duration(span: timedelta) -> str:
    """The span as PromQL writes it: `1800s`, or `1500ms` where it is no whole number of seconds.

    Raises: ValueError for a span that is not at least a millisecond, PromQL's finest.
    """
    milliseconds = -(-span // timedelta(milliseconds=1))
    if milliseconds < 1:
        raise ValueError(f"a range of {span} holds nothing")
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def check_matchers(matchers: Mapping[str, str]) -> None:
    """Raises: ConfigurationError naming the label that cannot be matched."""
    for name, value in matchers.items():
        if not _LABEL.fullmatch(name):
            raise ConfigurationError(f"matcher {name!r}: not a label name; use letters, digits and underscores")
        if name == "__name__":
            raise ConfigurationError("matcher '__name__': the metric's name is set by the signal; configure it there")
        if not isinstance(value, str):
            raise ConfigurationError(f"matcher {name!r}: its value must be text, not {value!r}; put it in quotes")


def _name_matcher(metrics: tuple[str, ...]) -> str:
    if len(metrics) == 1:
        return f"__name__={_quoted(metrics[0])}"
    alternatives = "|".join(_SPECIAL.sub(r"\\\1", name) for name in metrics)
    return f"__name__=~{_quoted(alternatives)}"


def _quoted(value: str) -> str:
    """The value as a PromQL string. JSON's escapes are a subset of those of Go, which PromQL uses."""
    return json.dumps(value, ensure_ascii=False)
