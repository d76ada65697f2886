"""`idle-gpu-scaler simulate`: what policies would have done with the samples of a trace."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.client import check_outputs, write_output
from scaler.app.cli.layout import count, in_hours, print_json, show, table_or_list
from scaler.app.cli.policy import policies_in
from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.attachment.policy import AttachmentPolicy
from scaler.decision.trigger_metadata import in_words, parse_metadata
from scaler.errors import ConfigurationError, MetadataError
from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import Signal
from scaler.idleness.policy import Overrides, Trust
from scaler.reporting.usage.prices import Prices
from scaler_analysis.cli.main import SimulateFlags
from scaler_analysis.cli.progress import progress_bar
from scaler_analysis.cli.recordings import record_past
from scaler_analysis.simulation.cases import PolicyBounds, file_case, policy_of_settings
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.recordings.trace import read_trace
from scaler_analysis.simulation.replay import ReplayConfig
from scaler_analysis.simulation.report.files import html_of, write_csv
from scaler_analysis.simulation.study import CURVE, StudyConfig, study

Json = dict[str, Any]


def run_simulate(flags: SimulateFlags) -> int:
    """Raises: ScalerError."""
    settings = load(flags.config, environ=os.environ, flags={"prometheus.url": flags.prometheus_url})
    notes: list[str] = []
    check_outputs(html=flags.html, csv=flags.csv)
    asked = _asked(flags, settings)
    with recording_of(flags, settings, notes) as recording:
        config = _config(asked, settings, recording, notes)
        with progress_bar("replay") as progress:
            answer = study(recording, config, progress=progress)
    answer["notes"] = notes
    answer["trace"]["intervalIsMeasured"] = _is_measured(settings)
    if flags.as_json:
        print_json(answer)
    else:
        show(lambda width: render(answer, width))
    _write(answer, flags)  # last: a file that cannot be written takes nothing away
    return 0


@contextmanager
def recording_of(flags: SimulateFlags, settings: Settings, notes: list[str]) -> Iterator[Recording]:
    """The samples of the past, for as long as they are needed. Raises: ScalerError."""
    if (flags.trace is None) is not bool(flags.since):
        both = ", not both" if flags.since else ""
        raise ConfigurationError(f"write either --trace FILE or --since 30d{both}: where are the samples from?")
    signals = signals_of(settings)
    with tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-") as folder:
        recording = Recording(folder=Path(folder))
        if flags.trace is not None:
            with progress_bar(f"read {flags.trace.name}") as progress:
                notes += read_trace(flags.trace, recording, signals, progress=progress)
        else:
            with progress_bar(f"read {settings.prometheus.url}") as progress:
                notes += record_past(flags.since, settings, recording, signals, cache=flags.cache, progress=progress)
        notes += _missing(signals, recording)
        yield recording


def signals_of(settings: Settings) -> list[Signal]:
    return [each.signal() for each in settings.signals]


class _Asked(NamedTuple):
    """What the flags ask for, before any sample is read."""

    given: Overrides
    windows: Mapping[str, Overrides]
    files: Mapping[Path, Sequence[AttachmentPolicy]]
    floors: Sequence[float]
    accepted_regret: float | None
    has_curve: bool


def _asked(flags: SimulateFlags, settings: Settings) -> _Asked:
    """Raises: ConfigurationError."""
    given = _overrides(warmUp=flags.warm_up, activeAbove=flags.active_above)
    asked = _Asked(
        given=given,
        windows={each: _merged(given, _overrides(idleAfter=each)) for each in _items(flags.idle_after)},
        files={file: _policies(file) for file in flags.files or ()},
        floors=[_share("--floors", each) for each in _items(flags.floors)],
        accepted_regret=_share("--accept-regret", flags.accept_regret) if flags.accept_regret else None,
        has_curve=flags.has_curve,
    )
    shortest = timedelta(seconds=1) if _is_measured(settings) else settings.trust.into(Trust).interval
    bounds = _bounds(settings, shortest)
    for each in (given, *asked.windows.values()):
        policy_of_settings(bounds, each)
    for file, policies in asked.files.items():
        file_case(str(file), policies, bounds, datetime.now(UTC))
    return asked


def _bounds(settings: Settings, shortest: timedelta) -> PolicyBounds:
    return PolicyBounds(
        defaults=settings.defaults.overrides(),
        longest=settings.evaluation.max_window,
        shortest=shortest,
        hooks=settings.hook_timeouts.keys(),
    )


def _items(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _config(asked: _Asked, settings: Settings, recording: Recording, notes: list[str]) -> StudyConfig:
    signals, trust = signals_of(settings), trust_of(settings, recording, notes)
    prices = settings.metrics.limits().prices
    notes += _unpriced(prices, recording)
    bounds = _bounds(settings, trust.interval)
    today = policy_of_settings(bounds, asked.given)
    windows = {each: policy_of_settings(bounds, given).idle_after for each, given in asked.windows.items()}
    if not windows and not asked.files:
        windows = {format_duration(today.idle_after): today.idle_after}
    begin = datetime.fromtimestamp(floor(recording.begin_s), UTC)
    return StudyConfig(
        replay=ReplayConfig(
            signals=signals,
            trust=trust,
            tick=settings.evaluation.interval,
            prices=prices,
            rule_signal=_rule_signal(signals),
            rule_floor=today.active_above_ratio,
            rule_warm_up=today.warm_up,
        ),
        today=today,
        windows=windows,
        files=[file_case(str(file), given, bounds, begin) for file, given in asked.files.items()],
        floors=asked.floors,
        curve=[each for each in CURVE if trust.interval <= each <= bounds.longest] if asked.has_curve else [],
        accepted_regret=asked.accepted_regret,
    )


def trust_of(settings: Settings, recording: Recording, notes: list[str]) -> Trust:
    """The trust of the settings, with the measured interval where they name none."""
    trust, measured = settings.trust.into(Trust), timedelta(seconds=max(1, round(recording.interval_s())))
    if _is_measured(settings):
        return settings.trust.into(Trust, interval=measured)
    if measured > 1.5 * trust.interval:
        notes.append(
            f"samples are {format_duration(measured)} apart, and trust.collectionInterval of the settings is "
            f"{format_duration(trust.interval)}: most will be unknown"
        )
    return trust


def _is_measured(settings: Settings) -> bool:
    return "interval" not in settings.trust.model_fields_set


def _missing(signals: Sequence[Signal], recording: Recording) -> Iterator[str]:
    known = {each.signal for each in recording.series}
    for each in signals:
        if each.name not in known:
            yield f"signal {each.name} has no sample: what needs it is unknown; take it out of the settings' signals"


def _unpriced(prices: Prices, recording: Recording) -> Iterator[str]:
    models = {each.gpu.model for each in recording.series if prices and prices.of(each.gpu.model) is None}
    if models:
        names = ", ".join(each or "GPUs whose model is not known" for each in sorted(models))
        yield f"metrics.prices has no price for {names}: what is freed of them is missing in the money"


def _rule_signal(signals: Sequence[Signal]) -> str:
    """The one that published rules are about: a GPU's utilisation, or what comes first."""
    return next((each.name for each in signals if each.name == "gpu_util"), signals[0].name)


_FLAGS = {"idleAfter": "--idle-after", "warmUp": "--warm-up", "activeAbove": "--active-above"}


def _overrides(**metadata: str) -> Overrides:
    """Flags are written as trigger metadata is. Raises: ConfigurationError."""
    try:
        return parse_metadata({key: text for key, text in metadata.items() if text})
    except MetadataError as error:
        raise ConfigurationError(in_words(error.problems, lambda key: _FLAGS[key])) from None


def _merged(first: Overrides, second: Overrides) -> Overrides:
    return Overrides(**{**first.given(), **second.given()})


def _share(flag: str, text: str) -> float:
    """Raises: ConfigurationError."""
    try:
        found = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not text.strip().endswith("%") or not 0 <= found <= 1:
        raise ConfigurationError(f"{flag} {text!r} is not a share; write for example '5%'")
    return found


def _policies(file: Path) -> list[AttachmentPolicy]:
    """Raises: ConfigurationError."""
    if not (policies := [*policies_in(file)]):
        raise ConfigurationError(f"{file}: there is no IdlePolicy or ClusterIdlePolicy in it")
    return policies


# ---- what is printed


def _write(answer: Json, flags: SimulateFlags) -> None:
    """Raises: ConfigurationError where a file cannot be written."""
    if flags.html is not None:
        write_output(flags.html, html_of(answer, at=datetime.now(UTC)))
    if flags.csv is not None:
        write_csv(answer, table := StringIO(newline=""))
        write_output(flags.csv, table.getvalue())


_HEADINGS = ("", "GPU-HOURS FREED", "SHARE", "SUSPENSIONS", "BACK IN 15m", "BACK IN 1h", "INTERRUPTED", "UNKNOWN")


def render(answer: Json, width: int) -> RenderableType:
    trace = answer["trace"]
    begin, end = (trace[each].replace("T", " ").removesuffix("Z") for each in ("begin", "end"))
    gpu_hours = max((each["gpuHours"] for each in answer["policies"]), default=0.0)
    head = Text(
        f"{count(trace['workloads'], 'workload')}, {count(trace['pods'], 'pod')}, {in_hours(gpu_hours)} GPU-hours, "
        f"{begin} to {end} UTC, a sample every {trace['collectionInterval']}"
        f"{' (measured)' if trace['intervalIsMeasured'] else ''}"
    )
    rows = [_line(each, answer["trace"]["currency"]) for each in answer["policies"]]
    rows += [_line(each, None, style="dim") for each in answer["published"]]
    parts: list[RenderableType] = [head, *(Text(each, style="yellow") for each in answer["notes"])]
    parts += ["", table_or_list(_HEADINGS, rows, width), *_curve(answer, width), *_reasons(answer)]
    return Group(*parts)


def _line(case: Json, currency: str | None, style: str = "") -> list[str | Text]:
    freed = f"{case['freedGpuHours']:,.1f}"
    if currency and "freedCost" in case:
        freed += f" ({case['freedCost']:,.0f} {currency})"
    cells = [
        case["name"],
        freed,
        f"{case['freedShare']:.1%}",
        f"{case['suspensions']:,}",
        _returns(case, "returnsWithin15m"),
        _returns(case, "returnsWithin60m"),
        f"{case['interruptedGpuHours']:,.0f}",
        f"{case['unknownGpuHours']:,.1f}",
    ]
    return [Text(each, style=style) for each in cells]


def _returns(case: Json, within: str) -> str:
    """The returns with their share; none where nothing was suspended that could come back."""
    suspensions = case["suspensions"]
    return f"{case[within]:,} ({case[within] / suspensions:.0%})" if suspensions else "–"


def _curve(answer: Json, width: int) -> Iterator[RenderableType]:
    """Freed against regret, as bars of the same scale."""
    if not (points := answer.get("curve")):
        return
    yield ""
    longest = max(*(each["freedShare"] for each in points), 1e-09)
    rows = [
        [
            Text(each["idleAfter"] + (" today" if each["isToday"] else ""), style="bold" if each["isToday"] else ""),
            each["activeAbove"],
            f"{each['freedShare']:.1%}",
            Text("█" * round(24 * each["freedShare"] / longest), style="green"),
            f"{each['regretShare']:.0%}" if each["suspensions"] else "–",
            Text("█" * round(24 * each["regretShare"]), style="red"),
        ]
        for each in points
    ]
    yield table_or_list(("IDLE AFTER", "FLOOR", "FREED", "", "REGRET", ""), rows, width, words=(0, 1, 3, 5))
    if said := answer.get("recommendation"):
        yield ""
        is_any_freed = any(each["freedShare"] for each in points)
        yield Text(_recommendation(said) if is_any_freed else "No window of the curve suspends anything.", style="bold")


def _recommendation(said: Json) -> str:
    accepted = f"{said['acceptedRegret']:.0%}"
    if said["idleAfter"] is None:
        return f"No window of the curve has a regret of {accepted} or less; a longer one may."
    return (
        f"With a regret of at most {accepted}: idleAfter {said['idleAfter']}, activeAbove {said['activeAbove']} "
        f"(frees {said['freedShare']:.1%}, regret {said['regretShare']:.1%})."
    )


def _reasons(answer: Json) -> Iterator[RenderableType]:
    """Why the first policy had no answer for a while."""
    for case in answer["policies"]:
        if case["unknownReasons"]:
            words = ", ".join(f"{reason} {hours:,.1f} h" for reason, hours in case["unknownReasons"].items())
            yield Text(f"unknown with {case['name']}: {words}", style="dim")
