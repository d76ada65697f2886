"""Several workloads at random, under one policy: warnings, deliveries, budgets, plans, and a scaler that is restarted.

What decides, writes, tells and counts is the scaler's own. Kueue, KEDA, owners and the search for victims are played.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from builders import (
    BUSY,
    IDLE,
    LONG_AGO,
    NOON,
    UNKNOWN,
    gpu_evidence,
    minutes,
    observed,
    pod,
    situation,
    status_of,
    suspended,
)
from builders import scalable_workload as a_scalable_workload
from builders import verdict as a_verdict
from builders import window as a_window
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import structs

from scaler.decision.candidate import HistoryLine
from scaler.decision.decision import Active, Decision, Inactive, Quiet
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.gates import decide
from scaler.idleness.policy import Limit, Overrides, PerPeriod, Policy, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown, WorkloadVerdict, distrust
from scaler.kube.objects.core import decode, without_defaults
from scaler.kube.objects.idlegpu import GrantStatus, Mark, ScalableWorkload
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.notifications.notice import NotifiedWorkload, pending
from scaler.reclaim.budget import BudgetedWorkload, budget_check
from scaler.reclaim.candidates import is_idle
from scaler.reclaim.policy_budgets import PolicyBudgets, budgets_of, names_of
from scaler.suspension.status import is_worth_writing
from scaler.targets.target_state import ObservedTarget, ObservedWorkload, TargetState, WakeCause, WakeRequest, state_of
from scaler.targets.workloads import grant_of, notified_at

LENGTH, WARNING, GRANTED_FOR, PERIOD, POLLED_EVERY = 10, 6, 8, 40, 3
HELD = LENGTH + WARNING
"""Minutes that samples go back after a start."""
NAMES, TOLD_BY = "abc", ("chat", "mail")
PARTS = ("receivers", "leader", "source")
SOURCE_DOWN = Unknown(reason=UnknownReason.SOURCE_UNAVAILABLE, message="down")


def at(minute: int) -> datetime:
    return NOON + minutes(minute)


def minute_of(instant: datetime) -> int:
    return round((instant - NOON).total_seconds() / 60)


@dataclass
class Life:
    """A workload: its objects in the API, what its GPUs do, and what was really done about it."""

    name: str
    scalable: ScalableWorkload = field(default_factory=a_scalable_workload)
    is_active: bool = True
    """Its Workload."""
    suspended_at: datetime | None = None
    runs_since: int = minute_of(LONG_AGO)
    unseen_until: int = 0
    """Its GPUs report nothing until that minute."""
    keep_until: datetime | None = None
    wakes: bool = False
    worked: list[int] = field(default_factory=list)
    warned: list[int] = field(default_factory=list)
    """Minutes at which warnings were written."""
    told: list[tuple[int, int]] = field(default_factory=list)
    """Minutes of the lines that targets accepted messages of, and when they did."""
    taken: int | None = None
    """When KEDA got 0 and scaled it to 0 the last time."""
    quiet: Quiet | None = None
    """What the last decision leaves to know of its quiet."""

    @property
    def replicas(self) -> int:
        return self.scalable.spec.replicas

    @property
    def workload(self) -> ObservedWorkload:
        return observed() if self.is_active else suspended(suspended_at=self.suspended_at)

    def situation(self, now: int) -> ObservedTarget:
        status, grant = self.scalable.status, grant_of(self.scalable)
        pods = [pod(name, running_since=at(self.runs_since)) for name in ("worker-0", "worker-1")]
        return situation(
            self.workload,
            desired=self.replicas,
            pods=pods if self.is_active else (),
            warned_at=status.warned_at,
            suspended_at=status.suspended_at,
            wake_request=WakeRequest(WakeCause.ANNOTATION, "annotation") if self.wakes else None,
            grant=grant.words if grant is not None and at(now) < grant.expires_at else "",
            is_held=grant is not None,
        )

    def state(self, now: int) -> TargetState:
        state = state_of(self.situation(now))
        told = notified_at(self.scalable.status.notified, state.warned_at, TOLD_BY)
        return replace(state, notified_by=TOLD_BY, notified_at=told)

    def verdict(self, now: int, read_since: int, *, is_source_up: bool) -> WorkloadVerdict | None:
        if not self.is_active:
            return None
        seen = [n for n in self.worked if max(now - HELD, read_since) <= n <= now]
        found = BUSY if seen and now - seen[-1] < LENGTH else IDLE
        found = found if now >= self.unseen_until else UNKNOWN
        windows = {"gpu_util": a_window(last=at(now))}
        evidence = gpu_evidence(
            found,
            last_active_at=at(seen[-1]) if seen else None,
            unseen_until=at(max(now - HELD, read_since, self.unseen_until)) if found == IDLE else None,
            windows=windows,
        )
        return distrust(a_verdict(found, evidence), None if is_source_up else SOURCE_DOWN)

    def write(self, status: dict[str, Any]) -> None:
        """A merge patch of the status."""
        merged = msgspec.json.decode(msgspec.json.encode(self.scalable.status)) | status
        body = {
            "metadata": msgspec.to_builtins(self.scalable.metadata),
            "spec": msgspec.to_builtins(self.scalable.spec),
            "status": {name: value for name, value in merged.items() if value is not None},
        }
        self.scalable = decode(ScalableWorkload, msgspec.json.encode(body))

    def scale(self, replicas: int) -> None:
        self.scalable = structs.replace(self.scalable, spec=structs.replace(self.scalable.spec, replicas=replicas))


names = st.sampled_from(NAMES)
limits = st.sampled_from([None, None, 1, 2, 0])
quiet = st.integers(0, LENGTH + 2)
"""Minutes that pass before something happens."""


class LivesUnderBudgets(RuleBasedStateMachine):
    """Minute by minute."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.read_since = 0, -HELD
        self.lives = {name: Life(name) for name in NAMES}
        self.led_at = 0
        self.ends: dict[str, int] = dict.fromkeys(PARTS, 0)
        """Until which minute each is away."""
        self.policy = Policy()

    @initialize(
        reclaim=st.sampled_from([Reclaim.ALWAYS, Reclaim.ON_PRESSURE]),
        requires=st.sampled_from([True, False, True]),
        at_once=limits,
        per_period=limits,
        receivers_away=quiet,
    )
    def apply_policy(
        self, reclaim: Reclaim, requires: bool, at_once: int | None, per_period: int | None, receivers_away: int
    ) -> None:
        self.ends["receivers"] = receivers_away
        self.policy = Policy(
            idle_after=minutes(LENGTH),
            warm_up=timedelta(0),
            warning=minutes(WARNING),
            require_delivery=requires,
            reclaim=reclaim,
            suspended_at_once=None if at_once is None else Limit(count=at_once),
            suspended_per_period=None
            if per_period is None
            else PerPeriod(limit=Limit(count=per_period), period=minutes(PERIOD)),
            sources=dict.fromkeys(("suspended_at_once", "suspended_per_period"), "ClusterIdlePolicy/all"),
        )
        self.start()

    def start(self) -> None:
        """A process that leads: nothing is remembered."""
        self.cache = DecisionCache(max_age=timedelta(days=1))
        self.budgets = PolicyBudgets(self.cache, clock=lambda: at(self.now))
        self.evaluate()

    # ------------------------------------------------------------------------------------------ what the scaler does

    def evaluate(self) -> None:
        entries = {}
        for name, life in self.lives.items():
            target = scalable_workload_ref(name)
            entries["demo", name] = EvaluatedScaledObject(target=target, triggers={Overrides(): self.decide(life)})
        self.cache.publish(Evaluation.of(entries, at=at(self.now)))

    def decide(self, life: Life) -> Decision:
        found = life.verdict(self.now, self.read_since, is_source_up=self.is_there("source"))
        policy = replace(self.policy, keep_until=life.keep_until)
        made = decide(life.state(self.now), found, policy=policy, now=at(self.now), quiet=life.quiet)
        life.quiet = made.quiet_until(at(self.now))
        return made

    def decision(self, name: str) -> Decision:
        assert self.cache.evaluation is not None
        return next(iter(self.cache.evaluation.entries["demo", name].triggers.values()))

    def lead(self) -> None:
        self.led_at = self.now
        for _, name in [*self.budgets.next_in_line(), *(("demo", name) for name in NAMES)]:
            self.reconcile(self.lives[name])
        for life in self.lives.values():
            for target in TOLD_BY if self.is_there("receivers") else ():
                self.tell(life, target)
        self.evaluate()

    def reconcile(self, life: Life) -> None:
        self.take_step(life)
        before, key = life.scalable.status, ("demo", life.name)
        status = status_of(
            life.scalable,
            life.state(self.now),
            life.workload,
            self.decision(life.name),
            now=at(self.now),
            permits=lambda: self.budgets.permits_warning(key),
        )
        if is_worth_writing(before, status):
            life.write(status)
        now_warned = life.scalable.status.warned_at
        if now_warned is not None and now_warned != before.warned_at:
            life.warned.append(self.now)

    def take_step(self, life: Life) -> None:
        grant = grant_of(life.scalable)
        if life.replicas == 0 and life.is_active:
            life.is_active, life.suspended_at = False, at(self.now)
            life.write({"grant": None})
        elif grant is not None and grant.expires_at <= at(self.now):
            life.write({"grant": None})
        if life.replicas > 0 and not life.is_active:
            life.is_active, life.runs_since, life.wakes = True, self.now, False

    def tell(self, life: Life, target: str) -> None:
        """What is pending is accepted, and marked."""
        history = tuple(msgspec.json.decode(each, type=HistoryLine) for each in life.scalable.status.history)
        told = NotifiedWorkload(
            namespace="demo",
            name=life.name,
            uid=life.name,
            kind="ScalableWorkload",
            target_name=life.name,
            owner="team",
            targets=TOLD_BY,
            lines=history,
            marks=life.scalable.status.notified,
        )
        lines = [each.line for each in pending(told, target, not_before=at(self.now) - timedelta(hours=6))]
        if lines:
            mark = Mark(at=lines[-1].at, state=lines[-1].state, delivered_at=at(self.now))
            life.write({"notified": without_defaults({**life.scalable.status.notified, target: mark})})
            life.told += [(minute_of(each.at), self.now) for each in lines if each.state == "Warned"]

    def poll(self, life: Life) -> None:
        """KEDA asks, and does as it is told."""
        decision = self.decision(life.name)
        if isinstance(decision.answer, Inactive) and life.replicas:
            self.check_suspension(life, decision)
            life.scale(0)
            life.taken = self.now
            self.evaluate()
        elif isinstance(decision.answer, Active) and not life.replicas:
            life.scale(1)
            self.evaluate()

    # ------------------------------------------------------------------------------------------------- what happens

    def rest(self, count: int) -> None:
        for _ in range(count):
            self.pass_a_minute()

    @rule(after=quiet, working=st.sets(names))
    def work(self, after: int, working: Collection[str]) -> None:
        self.rest(after)
        self.pass_a_minute(working)

    def pass_a_minute(self, working: Collection[str] = ()) -> None:
        self.now += 1
        self.do_work(working)
        self.evaluate()
        # Somebody leads once in a window: what is left is named in docs/policies.md.
        if self.is_there("leader") or self.now - self.led_at >= LENGTH - 1:
            self.lead()
        if self.now % POLLED_EVERY == 0:
            for life in self.lives.values():
                self.poll(life)

    def do_work(self, working: Collection[str]) -> None:
        for name in working:
            if self.lives[name].is_active:
                self.lives[name].worked.append(self.now)

    def is_there(self, part: str) -> bool:
        return self.now >= self.ends[part]

    @rule(after=quiet, part=st.sampled_from(PARTS), lasts=st.integers(1, 20))
    def fail(self, after: int, part: str, lasts: int) -> None:
        self.rest(after)
        self.ends[part] = self.now + lasts

    @rule(after=quiet)
    def elect(self, after: int) -> None:
        """Another replica, which has read samples for as long."""
        self.rest(after)
        self.start()

    @rule(after=quiet, away=st.sampled_from([0, 5, LENGTH + 2, 2 * HELD]), working=st.sets(names, min_size=1))
    def restart(self, after: int, away: int, working: Collection[str]) -> None:
        """Every process, and GPUs work meanwhile."""
        self.rest(after)
        self.now += min(away, 1)
        self.do_work(working)
        self.now += max(away - 1, 0)
        self.read_since = self.now - HELD
        for life in self.lives.values():
            life.quiet = None
        self.start()

    @rule(after=quiet, name=names, lasts=st.integers(1, 5))
    def stop_reporting(self, after: int, name: str, lasts: int) -> None:
        self.rest(after)
        self.lives[name].unseen_until = self.now + lasts

    @rule(after=quiet, name=names, lasts=st.integers(1, 20))
    def keep(self, after: int, name: str, lasts: int) -> None:
        self.rest(after)
        self.lives[name].keep_until = at(self.now + lasts)
        self.evaluate()

    @rule(after=quiet, some=st.sets(names, min_size=1))
    def wake(self, after: int, some: Collection[str]) -> None:
        self.rest(after)
        for name in some:
            self.lives[name].wakes = self.lives[name].replicas == 0
        self.evaluate()

    @rule(after=quiet, most=st.integers(1, 3))
    @precondition(lambda self: self.policy.reclaim is Reclaim.ON_PRESSURE)
    def plan(self, after: int, most: int) -> None:
        """Whole or not at all."""
        self.rest(after)
        if not self.is_there("leader"):
            return
        idle = [name for name in NAMES if is_idle([self.decision(name)])]
        victims = [name for name in idle if self.lives[name].scalable.status.grant is None][:most]
        members = [
            BudgetedWorkload(namespace="demo", name=name, budgets=names_of(budgets_of("demo", [self.decision(name)])))
            for name in victims
        ]
        spending = self.budgets.spending(at(self.now))
        if victims and budget_check(spending, at(self.now))(members) is None:
            grant = GrantStatus(
                plan="p1", workload="demo/gang", workload_uid="g", victims=tuple(victims),
                granted_at=at(self.now), expires_at=at(self.now + GRANTED_FOR),
            )  # fmt: skip
            for name in victims:
                self.lives[name].write({"grant": msgspec.json.decode(msgspec.json.encode(grant))})
        self.evaluate()

    # ---------------------------------------------------------------------------------------------- what must hold

    def check_suspension(self, life: Life, decision: Decision) -> None:
        now = minute_of(decision.decided_at)
        assert not any(now - LENGTH < n <= now for n in life.worked), "its GPUs were not idle"
        assert life.keep_until is None or life.keep_until <= at(now), "it was kept"
        assert life.warned, "its owner was not warned"
        warned = life.warned[-1]
        assert now - warned >= WARNING, "its owner was warned a moment ago"
        assert not any(warned < n <= now for n in life.worked), "it worked after its warning"
        if self.policy.require_delivery:
            stood = [line for line, accepted in life.told if line >= warned and now - accepted >= WARNING]
            assert stood, "its owner was not told of the warning for long enough"
        if self.policy.reclaim is Reclaim.ON_PRESSURE:
            grant = grant_of(life.scalable)
            assert grant is not None, "no plan took it"
            assert grant.expires_at > at(now), "no plan takes it any more"
        self.check_budgets([each for each in self.lives.values() if each is not life])

    def check_budgets(self, others: Collection[Life]) -> None:
        at_0 = [each.name for each in others if each.replicas == 0]
        most = self.policy.suspended_at_once
        assert most is None or len(at_0) < most.count, f"{at_0} are suspended already"
        recent = [each.name for each in others if each.taken is not None and self.now - each.taken < PERIOD]
        rate = self.policy.suspended_per_period
        assert rate is None or len(recent) < rate.limit.count, f"{recent} were suspended a while ago"


TestLivesUnderBudgets = LivesUnderBudgets.TestCase
TestLivesUnderBudgets.settings = settings(max_examples=8, stateful_step_count=30, deadline=None)
