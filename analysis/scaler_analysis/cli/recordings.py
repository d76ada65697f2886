"""What do the samples of a simulation come from? A trace file, or the Prometheus that the settings name."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scaler.app.metrics_source import prometheus_config
from scaler.app.settings.model import PrometheusSettings, Settings
from scaler.errors import ConfigurationError
from scaler.idleness.durations import format_duration, parse_duration
from scaler.idleness.gpu import GpuSeries, Signal, identify
from scaler.idleness.relabel import DEFAULT_RULES, RelabelRules, parse_rules, relabel
from scaler.samples.prometheus import PrometheusSource
from scaler_analysis.report.periods import LONGEST_RANGE
from scaler_analysis.simulation.gangs.past_workloads import PastJobs, past_jobs
from scaler_analysis.simulation.recordings.past_days import PastDays
from scaler_analysis.simulation.recordings.past_pods import past_facts
from scaler_analysis.simulation.recordings.past_samples import (
    READS_AT_ONCE,
    SHORTEST_PART,
    PastSamples,
    include,
    remove_unfinished,
)
from scaler_analysis.simulation.recordings.recording import Recording

_READ_TIMEOUT = timedelta(minutes=2)
"""The longest that one read takes. Samples of the past come from disks and object stores."""

_SILENCE = timedelta(hours=1)
"""A pod of which nothing is recorded for longer was gone, as a notebook that is off overnight."""

Progress = Callable[[float], None]
"""A function that is given the share that is done."""


def record_past(
    since: str,
    settings: Settings,
    recording: Recording,
    signals: Sequence[Signal],
    *,
    cache: Path | None,
    progress: Progress,
    now: datetime | None = None,
) -> list[str]:
    """Notes on the samples of Prometheus. What has been read is kept, and not asked for again. Raises: ScalerError."""
    prometheus, length = settings.prometheus, _length(since)
    if not prometheus.url:
        raise ConfigurationError("--since needs prometheus.url (--prometheus-url)")
    folder = _source_folder(cache, prometheus)
    end = _newest(settings, now)
    fetching = _fetch(settings, recording, signals, folder, (end - length, end), progress)
    try:
        remove_unfinished(folder, now or datetime.now(UTC))
        unidentified = asyncio.run(fetching)
    except OSError as error:
        raise ConfigurationError(f"{folder}: samples cannot be kept there: {error.strerror}; choose --cache") from None
    if not recording.samples:
        raise ConfigurationError(
            f"no sample of any signal of a pod in the last {since} ({unidentified} series name no pod or no GPU)"
        )
    remade = recording.tell_remade_pods_apart(_SILENCE)
    notes = [_note_of_outage(*each) for each in recording.outages]
    if remade:
        silence = format_duration(_SILENCE)
        notes.append(
            f"{remade:,} pods count as made anew: nothing was recorded under their names for more than {silence}"
        )
    return [*notes, f"samples are kept in {folder}; remove it when they are needed no more"]


def _note_of_outage(begin_s: float, end_s: float) -> str:
    begin, end = (datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%d %H:%M") for each in (begin_s, end_s))
    return f"nothing is recorded of any pod from {begin} to {end} UTC"


def past_workloads(
    settings: Settings, recording: Recording, *, cache: Path | None, now: datetime | None = None
) -> PastJobs:
    """Kueue's Workloads since the first sample that `record_past` has found. Raises: SourceError."""
    begin, end = datetime.fromtimestamp(recording.begin_s, UTC), _newest(settings, now)
    return asyncio.run(_workloads(settings, _source_folder(cache, settings.prometheus), begin, end))


def _newest(settings: Settings, now: datetime | None) -> datetime:
    """The end of the past that is asked for: what is newer may not be there yet."""
    return (now or datetime.now(UTC)) - settings.evaluation.overlap


async def _workloads(settings: Settings, folder: Path, begin: datetime, end: datetime) -> PastJobs:
    async with _past_source(settings.prometheus) as (source, matchers):
        days = PastDays(source=source, folder=folder, gpu_resources=settings.gpu_resources, matchers=matchers)
        return await past_jobs(days, begin, end)


async def _fetch(  # noqa: PLR0917
    settings: Settings,
    recording: Recording,
    signals: Sequence[Signal],
    folder: Path,
    span: tuple[datetime, datetime],
    progress: Progress,
) -> int:
    """Take in what there is; how many series are of no pod or no GPU."""
    rules = DEFAULT_RULES if settings.relabel is None else parse_rules(settings.relabel)
    async with _past_source(settings.prometheus) as (source, matchers):
        past = PastSamples(source, folder, signals, interval=settings.trust.interval)
        parts = await past.parts(*span)
        await past.fetch(parts, progress=progress)
        unidentified = include(parts, recording, lambda labels: _identified(labels, rules))
        days = PastDays(source=source, folder=folder, gpu_resources=settings.gpu_resources, matchers=matchers)
        recording.facts.update(await past_facts(days, *span, {each.pod for each in recording.series}))
        return unidentified


@asynccontextmanager
async def _past_source(prometheus: PrometheusSettings) -> AsyncIterator[tuple[PrometheusSource, Mapping[str, str]]]:
    """The source, and the labels that every series must carry. Patient, as the past is asked for in large parts."""
    config = prometheus_config(prometheus, prometheus.url or "")
    config = replace(config, timeout=max(config.timeout, _READ_TIMEOUT), concurrency=READS_AT_ONCE)
    source = PrometheusSource(config)
    try:
        yield source, config.matchers
    finally:
        await source.close()


def _identified(labels: Mapping[str, str], rules: RelabelRules) -> GpuSeries | None:
    relabelled = relabel(labels, rules)
    return None if relabelled is None else identify(relabelled)


def _length(text: str) -> timedelta:
    """Raises: ConfigurationError."""
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"--since: {error}") from None
    except OverflowError:
        found = timedelta.max
    if not SHORTEST_PART <= found <= LONGEST_RANGE:
        shortest, longest = format_duration(SHORTEST_PART), format_duration(LONGEST_RANGE)
        raise ConfigurationError(f"--since {text}: write at least '{shortest}' and at most '{longest}'")
    return found


def _cache() -> Path:
    """The user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idle-gpu-scaler"


_ANSWERS = {"url", "matchers", "parameters", "thanos", "headers", "basic", "bearer_token_file"}
"""What may make the same query have another answer."""


def _source_folder(cache: Path | None, prometheus: PrometheusSettings) -> Path:
    """One for each source, and for each that asks it."""
    said = json.dumps(prometheus.model_dump(mode="json", include=_ANSWERS), sort_keys=True)
    return (cache or _cache()) / f"samples-{hashlib.blake2b(said.encode(), digest_size=6).hexdigest()}"
