"""Every state that a card of the page can be in, made from the enumerations and the views of production.

What production adds to one of them is here at once. Each state is there twice: in namespace `team`, and in `hidden`,
where names begin with `secret-`. Texts name `hidden/secret-other`, too. It is noon.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import cycle, islice, product
from random import Random
from typing import Any

import msgspec
from builders import BUSY, IDLE, LONG_AGO, a_target, at, decision, gpu_evidence, minutes, pod, unknown, verdict, window
from builders import policy as a_policy
from loops_builders import scalable_workload, scaled_object
from page_builders import PageSite, line

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import EvaluatedScaledObject
from scaler.decision.reasons import DecisionReason
from scaler.errors import QueryError
from scaler.idleness.hooks import HookOutcome, HookRun
from scaler.idleness.policy import EnforcementMode, Overrides, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.remote import RemoteAnswer
from scaler.idleness.verdict import WorkloadVerdict
from scaler.kube.objects.keda import ScaleTargetRef, scalable_workload_ref
from scaler.multikueue.hub.remote_verdicts import _Evidence
from scaler.quota.demands import PendingReason
from scaler.reclaim.active_plans import ActivePlan, VictimStatus
from scaler.reclaim.search.values import NoPlanReason
from scaler.reclaim.transitions import GangState, LedgerEntry, LedgerStage
from scaler.reporting.usage.gpu_states import GpuState
from scaler.reporting.views.active_plan import active_plan_view
from scaler.targets.target_state import Grant, Phase, Seeks, WakeCause, WakeRequest

Json = dict[str, Any]

NAMESPACES = {"team": "", "hidden": "secret-"}
"""With what names begin there."""
OTHER = "hidden/secret-other"


# ---------------------------------------------------------------------------------------------------------- workloads

ANSWERS: list[Answer] = [
    *(kind(reason=reason, message=f"for {OTHER}") for kind, reason in product((Active, Inactive), DecisionReason)),
    *(unknown(reason, f"because of {OTHER}") for reason in UnknownReason),
]
SAID_BY_OTHERS = [b'{"pod":"p","gpu":"0","verdict":"Idle"}', b'{"pod":"p","gpu":"1","verdict":"Idle","signals":[{}]}']
REMOTE = RemoteAnswer(
    cluster="east", verdict=IDLE, gpus=2, evidence=_Evidence([msgspec.Raw(each) for each in SAID_BY_OTHERS])
)
VERDICTS: list[WorkloadVerdict | None] = [
    None,
    verdict(IDLE),
    verdict(BUSY, gpu_evidence(BUSY), gpu_evidence(unknown(), windows={})),
    verdict(unknown(), gpu_evidence(unknown(), windows={"gpu_util": window(peak=None, last=None)})),
    WorkloadVerdict(verdict=IDLE, remote=REMOTE),
]
QUIET_SINCE: list[tuple[datetime | None, bool]] = [(None, False), (at(-3000), False), (at(-3000), True)]
POLICIES = [
    a_policy(),
    *(a_policy(mode=mode, reclaim=how, warning=minutes(10)) for mode, how in product(EnforcementMode, Reclaim)),
    a_policy(keep_until=at(3600), before_suspend="save", sources={"idle_after": f"IdlePolicy {OTHER}"}),
    a_policy(exclude_until=datetime.max.replace(tzinfo=LONG_AGO.tzinfo), keep_users=("*@example.com",)),
]
RUNS = [None, *(HookRun(hook="save", started_at=at(-60), ended_at=at(-9), outcome=each) for each in HookOutcome)]
WOKEN = WakeRequest(WakeCause.ANNOTATION, f"asked for by {OTHER}")
TARGETS = [
    a_target(
        phase=phase,
        hook_run=run,
        running_since=since,
        warned_at=warned,
        wake_request=WOKEN,
    )
    for (phase, run), since, warned in zip(
        product(Phase, RUNS), cycle([None, LONG_AGO]), cycle([None, at(-99), None]), strict=False
    )
]
KEEPS = ["", "[]", "{", '[{"at": "2026-12-01T09:00:00Z", "until": "2026-12-01T19:00:00Z", "by": "ada"}]']
HISTORIES: list[list[Any]] = [
    [],
    [line(-7200, "Busy"), line(-600, "Warned", "Warned", f"for {OTHER}", by="ada"), line(-60, "Suspended", "GPUsIdle")],
    [{"at": "soon"}, "no object", None, line(-60, "no such state"), {"at": "2026-12-01T11:00:00", "state": "Busy"}],
]


def _given(stage: LedgerStage | None) -> Json:
    """As plans leave it, with all times up to its own."""
    if stage is None:
        return {}
    times = {f"{each.lower()}At": "2026-12-01T11:00:00Z" for each in [*LedgerStage][: [*LedgerStage].index(stage) + 1]}
    return {"reallocation": {"plan": "p1", "workload": OTHER, "gpus": 4, "stage": str(stage), "times": 1, **times}}


STAGES = [None, *LedgerStage]


def columns(number: int, seed: int, *columns: list[Any]) -> Iterator[tuple[Any, ...]]:
    """So many rows in which every value of every column occurs, and meets others by chance."""
    chance = Random(seed)
    for each in columns:
        assert len(each) <= number
    repeated = [[each[n % len(each)] for n in range(number)] for each in columns]
    for each in repeated:
        chance.shuffle(each)
    return zip(*repeated, strict=True)


def workloads(one: PageSite, seed: int, *, most: int = 70) -> None:
    one.policy("all")
    kinds = [scalable_workload_ref, scalable_workload_ref, lambda name: ScaleTargetRef(name=name)]
    rows = columns(70, seed, ANSWERS, VERDICTS, QUIET_SINCE, POLICIES, TARGETS, STAGES, HISTORIES, KEEPS, kinds)
    for number, (answer, of, (since, at_least), policy, target, stage, lines, keeps, kind) in enumerate(
        islice(rows, most)
    ):
        quiet = {"idle_since": since, "idle_at_least": at_least}
        found = decision(answer, verdict=of, policy=policy, target=target, **quiet)
        for namespace, prefix in NAMESPACES.items():
            name = f"{prefix}w{number}"
            pods = [replace(pod(f"{name}-0", gpus=2), namespace=namespace)] * (number % 2)
            triggers = {Overrides(): found} if number % 10 else {}
            one.entries[namespace, name] = EvaluatedScaledObject(
                target=kind(name),
                triggers=triggers,
                pods=pods,
                problems=(f"metadata of {OTHER}",),
                ignored=("idleafter",),
            )
            history = msgspec.json.encode(lines).decode()
            marks = {"policy": "ClusterIdlePolicy/all", "history": history, "keeps": keeps}
            annotations = {f"idlegpu.io/{key}": value for key, value in marks.items()}
            one.cluster.scaled_objects.put(scaled_object(name, namespace=namespace, annotations=annotations))
            status = {"history": lines, **_given(stage)}
            one.cluster.scalable_workloads.put(
                scalable_workload(name, job=("batch/v1", "Job", f"{prefix}job"), namespace=namespace, **status)
            )
        one.samples("team", f"w{number}", [(-7200, -3000, 0.5), (-1500, 0, 0.0)])


# -------------------------------------------------------------------------------------------------- gangs and clusters


def _victim(name: str, stage: LedgerStage | None, **fields: Any) -> VictimStatus:
    entry = LedgerEntry(plan="p1", gang=OTHER, gpus=2, stage=stage, reclaimable_at=LONG_AGO) if stage else None
    given = {"desired_replicas": 1, "is_idle": True, "is_deactivated": False, "pods_left": 1}
    return VictimStatus(name=name, entry=entry, **{**given, **fields})


def _plan(seeks: Seeks, state: GangState, stages: tuple[LedgerStage | None, ...], expires: int, zero: int) -> Json:
    names = ("team/own", "hidden/secret-theirs")
    grant = Grant(
        plan="p1",
        gang="team/gang",
        gang_uid="u",
        victims=names,
        granted_at=LONG_AGO,
        expires_at=at(expires),
        seeks=seeks,
    )
    victims = tuple(
        _victim(name, stage, desired_replicas=zero, is_unknown=bool(zero), is_deactivated=not zero)
        for name, stage in zip(names, stages, strict=False)
    )
    plan = ActivePlan(grant=grant, gang=None, gang_state=state, victims=victims)
    return active_plan_view(plan, at(0))


PLANS: list[Json | None] = [
    None,
    *(
        _plan(seeks, state, (stage,) * victims, expires, zero)
        for seeks, state, stage in product(Seeks, GangState, (None, *LedgerStage))
        if (seeks, state) != (Seeks.NODES, GangState.RESERVED)  # it holds its quota all the time
        for victims, expires, zero in [(2, 600, 1), (2, -600, 0), (1, 600, 0), (0, 600, 1)]
    ),
]
CLUSTER = {"name": "east", "answer": "Reclaim", "why": f"a plan suspends {OTHER}", "nominatedAt": None}
DISPATCHES: list[Json | None] = [
    None,
    *(
        {
            "namespace": "team",
            "name": "gang",
            "clusterQueue": "cq",
            "priority": 0,
            "active": True,
            "nominated": ["east"] if nominated else [],
            "reason": "Free",
            "step": f"it waits for {OTHER}",
            "message": f"like {OTHER}",
            "clusters": [{**CLUSTER, "nominated": nominated, "reclaim": reclaims}] if clusters else [],
        }
        for nominated, reclaims, clusters in product([True, False], repeat=3)
    ),
]
SHORTAGE = {"flavor": "f", "resource": "nvidia.com/gpu", "wanted": 8, "available": 0, "most": 8}
QUOTAS: list[list[Json]] = [
    [],
    [{**SHORTAGE, "lacking": 8, "refusal": None}, {**SHORTAGE, "lacking": 0, "refusal": None}],
    [{**SHORTAGE, "lacking": None, "refusal": "a taint"}],
]
KUEUE: list[Json | None] = [
    None,
    {"condition": "QuotaReserved=False", "reason": "Pending", "message": f"{OTHER} holds it", "since": None},
]
CHECKS: list[list[Json]] = [
    [],
    [{"name": "reclaim", "state": "Pending", "message": f"after {OTHER}", "since": None}],
    [{"name": "reclaim", "state": "Ready", "message": "", "since": "2026-12-01T11:00:00Z"}],
]
OUTCOMES = [
    "Planned",
    "UnderWay",
    "NotNeeded",
    "AfterAnother",
    "NotNext",
    "NotJudged",
    "NotAsked",
    *map(str, NoPlanReason),
]
JOBS = [(None, None, None), ("Job/gang", "cq", 1), ("RayCluster/gang", None, 2)]
"""With its ClusterQueue, and its place there."""


def gangs(seed: int) -> Iterator[Json]:
    """As `/api/v1/pending` has them."""
    rows = columns(
        len(PLANS),
        seed,
        PLANS,
        DISPATCHES,
        QUOTAS,
        KUEUE,
        CHECKS,
        OUTCOMES,
        JOBS,
        [*PendingReason],
        ["", f"by {OTHER}"],
    )
    for number, (plan, dispatch, quota, kueue, checks, outcome, job, reason, message) in enumerate(rows):
        for namespace, prefix in NAMESPACES.items():
            yield {
                "namespace": namespace,
                "name": f"{prefix}gang-{number}",
                "job": job[0],
                "gpus": number % 9,
                "podSets": [],
                "priority": 0,
                "since": "2026-12-01T11:00:00Z",
                "waits": "5m",
                "localQueue": "lq",
                "clusterQueue": job[1],
                "queueingStrategy": None,
                "position": job[2],
                "inLine": 2 if job[2] else 0,
                "kueue": kueue,
                "reason": str(reason),
                "message": message,
                "reasons": [{"reason": str(reason), "message": message}] * (1 + number % 2),
                "quota": quota,
                "before": ["team/first", OTHER][: number % 3],
                "checks": checks,
                "admissionChecks": [],
                "plan": plan,
                "reclaim": {"outcome": outcome, "message": message},
                "dispatch": dispatch,
            }


FLAVOR = {"name": "f", "resource": "nvidia.com/gpu", "models": [], "nominal": 8, "free": 0, "idle": 2, "reclaimable": 2}
QUEUE = {"name": "secret-queue", "largestGang": {"now": 0, "afterReclaim": 2}, "flavors": []}
CLUSTERS: list[Json] = [
    {"name": f"secret-{number}", "problem": problem, "observedAt": None, "clusterQueues": queues}
    for number, (problem, queues) in enumerate(
        product(
            [None, f"its ClusterOffer is about {OTHER}"],
            [[], [QUEUE], [{**QUEUE, "flavors": [FLAVOR, {**FLAVOR, "models": ["H100", "A100"]}]}, QUEUE]],
        )
    )
]
"""Of no namespace, so for those who may see everything."""


@dataclass(kw_only=True)
class ScriptedQueries:
    gangs: list[Json]
    problem: str = ""
    is_hub: bool = True
    omitted: int = 3

    async def pending(self) -> Json:
        if self.problem:
            raise QueryError(self.problem, status=503)
        return {"at": "2026-12-01T12:00:00Z", "gangs": self.gangs, "omitted": self.omitted, "unjudged": None}

    async def clusters(self) -> Json:
        return {"at": "2026-12-01T12:00:00Z", "clusters": CLUSTERS}


# ----------------------------------------------------------------------------------------------- policies and the fleet

EVERYTHING_SAID: Json = {
    "mode": "Enforce",
    "idleAfter": "30m",
    "selector": {
        "kinds": ["Job"],
        "queues": ["q"],
        "labels": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
    },
    "exclude": [{"reason": "release", "until": "2026-12-24T00:00:00Z", "kinds": ["Job"]}, {}],
    "notify": ["mail"],
    "keep": {"longest": "8h"},
    "wakeAt": [{"days": ["Mon"], "begin": "08:00"}],
}
SAID: list[Json] = [{}, {"mode": "Observe"}, {"mode": "no such mode", "idleAfter": "soon"}, EVERYTHING_SAID]
COUNTED: list[Json] = [
    {},
    {"matched": 30, "attached": 1, "conflicts": 12, "conflicting": [f"Job {OTHER}"] * 12, "problems": [OTHER] * 5},
]


def policies(one: PageSite) -> None:
    for number, (spec, status) in enumerate(product(SAID, COUNTED)):
        one.policy(f"all-{number}", **spec, status=status)
        for namespace, prefix in NAMESPACES.items():
            own = {**status, "conflicting": ["Job team/x"] * 12, "problems": ["no queue"] * 5} if status else {}
            one.policy(f"{prefix}own-{number}", namespace=namespace, **spec, status=own)
    one.policies.of_cluster.undecodable["", "unreadable"] = "no object"
    one.policies.namespaced.undecodable["hidden", "secret-unreadable"] = "no object"


def fleet(one: PageSite) -> None:
    for number, state in enumerate(GpuState):
        one.remember(60.0 * number - 9000, {("hidden", "secret-queue"): number}, **{str(state): number})
    one.remember(0, {}, **{str(each): 1 for each in GpuState})
