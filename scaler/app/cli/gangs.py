"""`idle-gpu-scaler simulate --compare`: what would each policy have given the Workloads of a trace?"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scaler.app.cli.layout import count, table_or_list, terminal
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Policy
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.simulation.gangs.course import simulate_gangs
from scaler.simulation.gangs.idle_mix import IdleMix, with_sessions
from scaler.simulation.gangs.outcomes import GangPolicy
from scaler.simulation.gangs.pressure_plans import GangTimes
from scaler.simulation.gangs.report import PolicyReport, WaitTimes, as_json, report_of
from scaler.simulation.gangs.simulated_job import DEFAULT_QUEUE, SimulatedJob
from scaler.simulation.gangs.trace import read_jobs

_MINUTE = timedelta(minutes=1)


def run_gangs(
    workloads: Path,
    *,
    compare: str,
    gpus: str,
    settings: Settings,
    idle_share: float,
    seed: int,
    price: float | None = None,
    is_json: bool = False,
) -> int:
    """`gpus` is a number, or one for each ClusterQueue: `team-a=64,team-b=32`. Raises: ConfigurationError."""
    policies, quota = policies_of(compare), quota_of(gpus)
    jobs, left_out = _fitting(read_jobs(workloads, GpuResources(patterns=settings.gpu_resources)), quota)
    mixed = with_sessions(jobs, IdleMix(share_ratio=idle_share), seed=seed)
    times = times_of(settings)
    with terminal(is_error=True).status("") as status:
        reports = []
        for policy in policies:
            status.update(f"simulating {policy}")
            reports.append(report_of(simulate_gangs(mixed, quota, policy, times)))
    facts = facts_of(mixed, quota, left_out=left_out, seed=seed)
    if is_json:
        answer = {**facts, "policies": [as_json(each, price) for each in reports]}
        print(json.dumps(answer, indent=2))  # noqa: T201 (the program's output)
    else:
        console = terminal()
        console.print(render(facts, reports, console.width, price=price, currency=settings.metrics.currency))
    return 0


def policies_of(text: str) -> list[GangPolicy]:
    known = {str(each): each for each in GangPolicy}
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"--compare: {unknown[0]!r} is not a policy; write some of {','.join(known)}")
    return [known[name] for name in names]


def quota_of(text: str) -> dict[str, int]:
    """GPUs by ClusterQueue."""
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
    """By which idle workloads are suspended with these settings."""
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
    """Those that fit into the quota when nothing else does, and how many do not."""
    strangers = sorted({job.queue for job in jobs} - set(quota))
    if strangers:
        raise ConfigurationError(f"--gpus says nothing of ClusterQueue {strangers[0]}; write {strangers[0]}=GPUS, too")
    total = sum(quota.values())
    fitting = [job for job in jobs if job.gpus <= total]
    if not fitting:
        raise ConfigurationError(f"no Workload of the trace fits into {total} GPUs; raise --gpus")
    return fitting, len(jobs) - len(fitting)


def facts_of(jobs: Sequence[SimulatedJob], quota: Mapping[str, int], *, left_out: int, seed: int) -> dict[str, Any]:
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
        "seed": seed,
    }


# --------------------------------------------------------------------------------------------------------- as a table


def render(
    facts: Mapping[str, Any], reports: Sequence[PolicyReport], width: int, *, price: float | None, currency: str
) -> RenderableType:
    """A column for each policy."""
    rows = [[label, *(value(each) for each in reports)] for label, value in _ROWS]
    if price is not None:
        rows.append([f"given, {currency}", *(f"{each.given_gpu_hours * price:,.0f}" for each in reports)])
    return Group(
        Text(_summary(facts), style="dim"),
        table_or_list(["", *(each.policy for each in reports)], rows, width),
    )


def _summary(facts: Mapping[str, Any]) -> str:
    idle, hours = facts["idleGpuHours"], facts["gpuHours"]
    text = (
        f"{count(facts['jobs'], 'Workload')}, {facts['gangs']} of them gangs, {hours:,.0f} GPU-hours, of which "
        f"{idle / hours:.1%} idle in {count(facts['sessions'], 'session')}; "
        f"quota {count(sum(facts['quotaGpus'].values()), 'GPU')}"
    )
    return f"{text}; {count(facts['leftOut'], 'Workload')} that need more left out" if facts["leftOut"] else text


def _duration(duration: timedelta) -> str:
    """Rounded to minutes."""
    rounded = round(duration / _MINUTE) * _MINUTE
    return format_duration(rounded) if rounded else "0m"


def _waits(waits: WaitTimes) -> str:
    return " / ".join(map(_duration, (waits.mean, waits.p50, waits.p95)))


_ROWS: tuple[tuple[str, Callable[[PolicyReport], str]], ...] = (
    ("GPUs that worked", lambda each: f"{each.worked_ratio:.1%}"),
    ("GPUs that were held", lambda each: f"{each.held_ratio:.1%}"),
    ("gangs waited, mean / p50 / p95", lambda each: _waits(each.gang_waits)),
    ("all waited, mean / p50 / p95", lambda each: _waits(each.job_waits)),
    ("suspensions", lambda each: f"{each.suspensions:,}"),
    ("back within 15m", lambda each: f"{each.returns_soon:,}"),
    ("back within 1h", lambda each: f"{each.returns_later:,}"),
    ("coming back waited, mean / p50 / p95", lambda each: _waits(each.resume_waits)),
    ("GPU-hours freed", lambda each: f"{each.freed_gpu_hours:,.0f}"),
    ("GPU-hours given", lambda each: f"{each.given_gpu_hours:,.0f}"),
)
