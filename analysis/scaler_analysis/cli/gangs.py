"""`idle-gpu-scaler simulate --compare`: what would each policy have given the Workloads of a trace?"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.layout import count, in_hours, print_json, show, table_or_list, terminal
from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Policy, Trust
from scaler.kube.objects.gpu_pods import GpuResources
from scaler_analysis.cli.main import SimulateFlags
from scaler_analysis.cli.progress import progress_bar
from scaler_analysis.cli.recordings import past_workloads
from scaler_analysis.cli.simulate import recording_of, signals_of, trust_of
from scaler_analysis.simulation.gangs.course import simulate_gangs
from scaler_analysis.simulation.gangs.idle_mix import IdleMix, with_sessions
from scaler_analysis.simulation.gangs.outcomes import GangPolicy
from scaler_analysis.simulation.gangs.past_workloads import PastJobs
from scaler_analysis.simulation.gangs.pauses import PauseRule
from scaler_analysis.simulation.gangs.pressure_plans import GangTimes
from scaler_analysis.simulation.gangs.recorded_jobs import recorded_jobs, with_recorded_spans
from scaler_analysis.simulation.gangs.report import Json, report_of
from scaler_analysis.simulation.gangs.simulated_job import DEFAULT_QUEUE, SimulatedJob
from scaler_analysis.simulation.gangs.trace import read_jobs
from scaler_analysis.simulation.recordings.recording import Recording

_MINUTE = timedelta(minutes=1)


ALL_POLICIES = ",".join(GangPolicy)
_SHORTEST_PAUSE = timedelta(minutes=5)
"""The shortest pause of recorded samples. A shorter one is work, unless it is long enough for a suspension."""


class _Mix(NamedTuple):
    """The jobs of a simulation, and what is known of their pauses."""

    jobs: Sequence[SimulatedJob]
    left_out: int
    """Jobs that need more than the quota."""
    facts: Mapping[str, Any]


def run_gangs(flags: SimulateFlags) -> int:
    """`flags.gpus` is a number, or one for each ClusterQueue: `team-a=64,team-b=32`. Raises: ScalerError."""
    settings = load(flags.config, environ=os.environ, flags={"prometheus.url": flags.prometheus_url})
    policies, quota, is_recorded = (
        policies_of(flags.compare or ALL_POLICIES),
        quota_of(flags.gpus),
        flags.trace or flags.since,
    )
    workloads = flags.workloads
    if workloads is None and not is_recorded:
        raise ConfigurationError("write --workloads FILE, --trace FILE or --since 30d: which Workloads are simulated?")
    jobs = None if workloads is None else read_jobs(workloads, GpuResources(patterns=settings.gpu_resources))
    if is_recorded or jobs is None:
        mix = _recorded(jobs, quota, flags, settings)
    else:
        mix = _drawn(jobs, quota, IdleMix(share_ratio=flags.idle_share), flags.seed)
    times = times_of(settings)
    with terminal(is_error=True).status("") as status:
        reports = []
        for policy in policies:
            status.update(f"simulating {policy}")
            run = simulate_gangs(mix.jobs, quota, policy, times)
            reports.append(report_of(run, price_per_gpu_hour=flags.price))
    facts = {**facts_of(mix.jobs, quota, left_out=mix.left_out), **mix.facts}
    if flags.as_json:
        print_json({**facts, "policies": reports})
    else:
        show(lambda width: render(facts, reports, width, currency=settings.metrics.currency))
    return 0


def _drawn(jobs: Sequence[SimulatedJob], quota: Mapping[str, int], mix: IdleMix, seed: int) -> _Mix:
    """Some of the jobs are sessions, with pauses from a distribution."""
    fitting, left_out = _fitting(jobs, quota)
    return _Mix(with_sessions(fitting, mix, seed=seed), left_out, {"idleSpans": "drawn", "seed": seed})


def _recorded(
    jobs: Sequence[SimulatedJob] | None, quota: Mapping[str, int], flags: SimulateFlags, settings: Settings
) -> _Mix:
    """Jobs with the pauses that samples show; what is recorded makes up the jobs where no file and no history does."""
    facts: dict[str, Any] = {"idleSpans": "recorded", "notes": (notes := list[str]())}
    others = "the others work all the time"
    fitting, left_out = ([], 0) if jobs is None else _fitting(jobs, quota)
    with recording_of(flags, settings, notes) as recording:
        if jobs is None and flags.since:
            past = past_workloads(settings, recording, cache=flags.cache)
            notes += _notes_of_past(past, recording)
            fitting, left_out = _fitting(past.jobs, quota) if past.jobs else ([], 0)
        rule = pause_rule(settings, trust_of(settings, recording, notes))
        with progress_bar("find pauses") as progress:
            recorded = recorded_jobs(recording, rule, progress=progress)
    if not fitting:
        if not recorded:
            raise ConfigurationError("no pod has two samples; name a longer time or another file")
        return _Mix(*_fitting(recorded, quota), facts)
    joined, facts["withSamples"] = with_recorded_spans(fitting, recorded)
    if jobs is not None:
        others += ", but for pauses that the file has"
    notes.append(f"samples show the pauses of {facts['withSamples']:,} of {count(len(joined), 'Workload')}; {others}")
    return _Mix(joined, left_out, facts)


def _notes_of_past(past: PastJobs, recording: Recording) -> Iterator[str]:
    """The notes on where the jobs are from."""
    if not past.jobs:
        yield (
            "kube-state-metrics names no Workload of Kueue that ran with GPUs (deploy/examples/kube-state-metrics lets "
            "it): jobs are the workloads with samples, created at their first sample, so real waiting is not in it"
        )
    elif past.known_since is not None and past.known_since > datetime.fromtimestamp(recording.begin_s, UTC):
        yield (
            f"kube-state-metrics says nothing of Workloads before {past.known_since:%Y-%m-%d}: those that had ended by "
            "then are missing"
        )


def pause_rule(settings: Settings, trust: Trust) -> PauseRule:
    """What counts as a pause of a recorded workload with these settings."""
    floor, times = settings.defaults.active_above_ratio, times_of(settings)
    return PauseRule(
        signals=signals_of(settings),
        trust=trust,
        floor=Policy().active_above_ratio if floor is None else floor,
        shortest=min(_SHORTEST_PAUSE, times.idle_after, times.window_under_pressure),
    )


def policies_of(text: str) -> list[GangPolicy]:
    known = {str(each): each for each in GangPolicy}
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"--compare: {unknown[0]!r} is not a policy; write some of {','.join(known)}")
    return [known[name] for name in names]


def quota_of(text: str) -> dict[str, int]:
    """GPUs by ClusterQueue."""
    if not text:
        raise ConfigurationError("write --gpus 64, or --gpus team-a=64,team-b=32: how many GPUs does the quota have?")
    quota: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().rpartition("=")
        if not number.isdecimal() or int(number) < 1:
            raise ConfigurationError(f"--gpus: {part!r}: write a number such as 64, or team-a=64,team-b=32")
        if (name or DEFAULT_QUEUE) in quota:
            raise ConfigurationError(f"--gpus: {part!r}: that ClusterQueue has a number already")
        quota[name or DEFAULT_QUEUE] = int(number)
    return quota


def times_of(settings: Settings) -> GangTimes:
    """The times by which these settings suspend idle workloads."""
    defaults, keda, reclaim = settings.defaults, settings.keda, settings.reclaim.policy()
    return GangTimes(
        idle_after=defaults.idle_after or Policy().idle_after,
        idle_after_under_pressure=defaults.idle_after_under_pressure,
        warm_up=Policy().warm_up if defaults.warm_up is None else defaults.warm_up,
        polling_interval=keda.polling_interval,
        cooldown_period=keda.cooldown_period,
        grant_for=reclaim.grant_for,
        replan_backoff=reclaim.replan_backoff,
        weights=reclaim.weights,
        limits=reclaim.limits,
    )


def _fitting(jobs: Sequence[SimulatedJob], quota: Mapping[str, int]) -> tuple[list[SimulatedJob], int]:
    """The jobs that fit into the quota when nothing else does, and how many do not."""
    strangers = sorted({job.queue for job in jobs} - set(quota))
    if strangers:
        raise ConfigurationError(f"--gpus says nothing of ClusterQueue {strangers[0]}; write {strangers[0]}=GPUS, too")
    total = sum(quota.values())
    fitting = [job for job in jobs if job.gpus <= total]
    if not fitting:
        raise ConfigurationError(f"no Workload fits into {count(total, 'GPU')}; raise --gpus")
    return fitting, len(jobs) - len(fitting)


def facts_of(jobs: Sequence[SimulatedJob], quota: Mapping[str, int], *, left_out: int) -> dict[str, Any]:
    """What is the same under every policy."""
    hours = [job.gpus * (job.duration / timedelta(hours=1)) for job in jobs]
    idle = [job.gpus * (sum(job.spans[1::2], timedelta(0)) / timedelta(hours=1)) for job in jobs]
    return {
        "quotaGpus": dict(quota),
        "jobs": len(jobs),
        "gangs": sum(job.is_gang for job in jobs),
        "sessions": sum(len(job.spans) > 1 for job in jobs),
        "leftOut": left_out,
        "gpuHours": sum(hours),
        "idleGpuHours": sum(idle),
        "from": jobs[0].created.isoformat(),
        "until": jobs[-1].created.isoformat(),
    }


# --------------------------------------------------------------------------------------------------------- as a table


def render(facts: Mapping[str, Any], reports: Sequence[Json], width: int, *, currency: str) -> RenderableType:
    """A column for each policy."""
    rows = [[label, *(value(each) for each in reports)] for label, value in _ROWS]
    if "givenCost" in reports[0]:
        rows.append([f"given, {currency}", *(f"{each['givenCost']:,.0f}" for each in reports)])
    return Group(
        Text(_summary(facts), style="dim"),
        table_or_list(["", *(each["policy"] for each in reports)], rows, width),
        *(Text(note, style="yellow") for note in facts.get("notes", ())),
    )


def _summary(facts: Mapping[str, Any]) -> str:
    idle, hours, quota = facts["idleGpuHours"], facts["gpuHours"], sum(facts["quotaGpus"].values())
    source = " (recorded)" if facts["idleSpans"] == "recorded" else ""
    text = (
        f"{count(facts['jobs'], 'Workload')}, {facts['gangs']} of them gangs, {in_hours(hours)} GPU-hours, of which "
        f"{idle / hours:.1%} idle in {count(facts['sessions'], 'session')}{source}; quota {count(quota, 'GPU')}"
    )
    return f"{text}; {count(facts['leftOut'], 'Workload')} that need more left out" if facts["leftOut"] else text


def _duration(seconds: float) -> str:
    """The time rounded to minutes."""
    rounded = round(timedelta(seconds=seconds) / _MINUTE) * _MINUTE
    return format_duration(rounded) if rounded else "0m"


def _waits(waits: Json) -> str:
    return " / ".join(_duration(waits[each]) for each in ("mean", "p50", "p95"))


_ROWS: tuple[tuple[str, Callable[[Json], str]], ...] = (
    ("GPUs that worked", lambda each: f"{each['workedRatio']:.1%}"),
    ("GPUs that were held", lambda each: f"{each['heldRatio']:.1%}"),
    ("gangs waited, mean / p50 / p95", lambda each: _waits(each["gangWaitSeconds"])),
    ("all waited, mean / p50 / p95", lambda each: _waits(each["jobWaitSeconds"])),
    ("suspensions", lambda each: f"{each['suspensions']:,}"),
    ("back within 15m", lambda each: f"{each['returnsWithin15m']:,}"),
    ("back within 1h", lambda each: f"{each['returnsWithin60m']:,}"),
    ("coming back waited, mean / p50 / p95", lambda each: _waits(each["resumeWaitSeconds"])),
    ("GPU-hours freed", lambda each: f"{each['freedGpuHours']:,.0f}"),
    ("GPU-hours given", lambda each: f"{each['givenGpuHours']:,.0f}"),
)
