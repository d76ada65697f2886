"""Our AdmissionCheck: lets gangs that have quota start once they can start whole. Leader only.

Laws:

* Read → who is promised what (pure, `core/promises.py`) → what each entry says (pure, `core/gate.py`) → look again →
  write → tell. Level-triggered: whatever was missed, and whatever was in work when the process died, is seen next time.
* All that matters stands in the API. In memory are only what was written a moment ago, and when a message was.
* A new leader first lets its copies catch up with what its predecessor wrote last, and lists everything: it neither
  lets anybody go by an old picture, nor tells everybody that it sees nothing yet.
* What nobody sees lets nobody go. Who was let go before is not held back for that.

| step of a tick       | where                                                     |
|----------------------|-----------------------------------------------------------|
| look after checks    | `gate_checks.py`                                          |
| who waits for what   | `gate_view.py`, `endings.py` → `gate_cases.py`            |
| who is promised what | `core/promises.py`, beside the event loop                 |
| ask for nodes        | a `Provisioner`, and promise again where that has changed |
| who yields to whom   | `heirs.py`                                                |
| what entries say     | `core/gate.py`                                            |
| write                | `gate_writer.py`                                          |
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from scaler.core.claims import Seated, Waits
from scaler.core.gate import decide
from scaler.core.gate_policy import GatePolicy
from scaler.core.gate_values import Answer, Because, Ending, Gang, Nothing, Outlook, State
from scaler.core.placement import Capacity
from scaler.core.promises import promise
from scaler.core.prospects import Line
from scaler.core.quota.snapshot import Snapshot
from scaler.errors import KubeError
from scaler.loops.endings import Endings, Giver
from scaler.loops.gate_cases import GangCase, Name, Opened, Standing, merged, plan_words
from scaler.loops.gate_checks import Checks, Policy, Unseen
from scaler.loops.gate_view import GateView, Held
from scaler.loops.gate_writer import EntryWriter
from scaler.loops.heirs import Heirs
from scaler.loops.leadership import Api
from scaler.loops.provisioning import Case, Progress
from scaler.loops.quota_view import Blind
from scaler.loops.reconciliation import Announcer, is_conflict

log = structlog.get_logger(__name__)

_AT_ONCE = 8
"""Workloads that are written to at the same time."""
_ASKING_SECONDS = 5.0
"""Of one tick, for asking for nodes. Who has had no turn then has one in the next."""
_LISTING_FOR = timedelta(seconds=30)
"""How long a new leader waits until everything is listed before it says that it is not."""


class Provisioner(Protocol):
    """Asks autoscalers for nodes. `loops/provisioning.py` has one."""

    async def follow(self, case: Case, now: datetime) -> Progress:
        """Take the next step for the gang, if any, and tell how it stands. Raises: KubeError with NotLeading."""

    async def sweep(self, followed: Collection[str], now: datetime) -> None:
        """Remove requests of all other Workloads than these, by uid. Raises: KubeError with NotLeading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What one tick found and did."""

    at: datetime
    blind: str = ""
    """Why nobody could be let go; empty where somebody could."""
    waiting: tuple[Standing, ...] = ()
    opened: tuple[Opened, ...] = ()

    @property
    def reasons(self) -> Counter[Because]:
        """How many wait for what."""
        return Counter(each.answer.because for each in self.waiting)


class Gate:
    """The loop. `capacity` gives what nodes have free, `quota` what Kueue has; `observe` is told of every tick."""

    def __init__(
        self,
        api: Api,
        view: GateView,
        endings: Endings,
        checks: Checks,
        announcer: Announcer,
        *,
        capacity: Callable[[], Capacity | Blind],
        quota: Callable[[], Snapshot | Blind] = lambda: Blind("quota is not looked at"),
        provisioning: Provisioner | None = None,
        interval: timedelta = timedelta(seconds=5),
        rest: timedelta = timedelta(seconds=0.3),
        settle: timedelta = timedelta(seconds=2),
        observe: Callable[[GateReport], None] = lambda _: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`rest` is the least time between two ticks, `settle` how long a new leader lets its copies catch up."""
        self._view = view
        self._endings = endings
        self._checks = checks
        self._writer = EntryWriter(api, announcer, remember=view.remember)
        self._capacity = capacity
        self._heirs = Heirs(quota)
        self._provisioning = provisioning
        self._interval = interval
        self._rest = rest
        self._settle = settle
        self._observe = observe
        self._clock = clock
        self._wake = asyncio.Event()
        self._progress: dict[Name, Progress] = {}
        self._turn: Name = ("", "")
        """The last for whom nodes were asked, where there was no time for all."""
        self._patient_until: datetime | None = None
        self._doubt = ""
        """Why nobody knows who was let go; empty where it is known."""
        self.report: GateReport | None = None
        """Of the latest tick or look."""
        self.considers: Callable[[str, datetime], str] = lambda _uid, _now: ""
        """What is said while it is being found out whether idle GPUs can serve the gang of that uid; empty once that is
        known. Until then nobody is asked for nodes."""

    # ------------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and as soon as something is heard that a gang may wait for."""
        self._view.changed = self.wake
        await self._begin()
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            began = loop.time()
            try:
                await self.tick(self._clock())
            except KubeError as error:
                tell = log.debug if is_conflict(error) else log.warning
                tell("gangs could not be looked after; tried again", error=str(error))
            except Exception:
                log.exception("the gate broke")
            # Whoever answers KEDA shares this process: a tick that took long is followed by a longer rest.
            await asyncio.sleep(max(self._rest.total_seconds(), 2 * (loop.time() - began)))
            try:
                async with asyncio.timeout(self._interval.total_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _begin(self) -> None:
        """What comes before anybody is let go. Checks are looked after from the first moment on."""
        self._progress, self._patient_until = {}, self._clock() + _LISTING_FOR
        try:
            await self._checks.keep(self._view.checks(), self._clock())
        except KubeError as error:
            log.warning("AdmissionChecks could not be looked after; tried again", error=str(error))
        await asyncio.sleep(self._settle.total_seconds())

    def wake(self) -> None:
        """Something has changed that a gang may wait for."""
        self._wake.set()

    async def tick(self, now: datetime) -> GateReport:
        """One look at everything. Raises: KubeError where this replica does not lead any more."""
        checks = self._view.checks()
        await self._checks.keep(checks, now)
        if self._view.unlisted and self._patient_until is not None and now < self._patient_until:
            return self._reported(GateReport(at=now, blind=f"not listed yet: {self._view.unlisted}"))
        self._doubt = await self._writer.clear_doubts()
        blind, answers = await self._answers(now)
        opened = await self._say(answers, blind, now)
        return self._reported(GateReport(at=now, blind=blind, waiting=_waiting(answers), opened=tuple(opened)))

    async def look(self, now: datetime) -> GateReport:
        """What a tick would find at this moment. Nothing is written, if the Provisioner only looks, too."""
        blind, answers = await self._answers(now)
        self.report = GateReport(at=now, blind=blind, waiting=_waiting(answers))
        return self.report

    def asking(self) -> frozenset[str]:
        """Names of our checks that hold gangs back until they fit, and ask for the nodes that are missing."""
        return frozenset(
            name
            for name, policy in self._policies().items()
            if isinstance(policy, GatePolicy) and policy.require_fit and policy.provisioning is not None
        )

    def line(self, now: datetime) -> Line | Blind:
        """All who have a claim on nodes at this moment, and what these have free; or why nobody sees that."""
        capacity = self._seen()
        return (
            capacity if isinstance(capacity, Blind) else self._line(self._cases(self._policies(), now), capacity, now)
        )

    async def _answers(self, now: datetime) -> tuple[str, list[tuple[GangCase, Answer]]]:
        """Why nobody sees what is free, and what the entries are to say."""
        blind, cases = await self._judged(self._cases(self._policies(), now), now)
        cases = await self._wanted(cases, now)
        return blind, [(case, answer) for case in cases if (answer := self._decided(case, blind, now)) is not None]

    def _reported(self, report: GateReport) -> GateReport:
        self.report = report
        self._observe(report)
        return report

    # -------------------------------------------------------------------------------------------------------- looking

    def _policies(self) -> Mapping[str, Policy]:
        return {check.metadata.name: self._checks.policy(check) for check in self._view.checks()}

    def _seen(self) -> Capacity | Blind:
        """What nodes have free, where it is also known who has quota, and who was let go."""
        capacity, reason = self._capacity(), self._view.unseen or self._doubt
        return Blind(reason) if reason and isinstance(capacity, Capacity) else capacity

    def _cases(self, policies: Mapping[str, Policy], now: datetime) -> list[GangCase]:
        givers = self._endings.givers(now)
        cases = [self._case(held, policies[held.check.metadata.name], givers, now) for held in self._view.held()]
        self._writer.forget_others(case.name for case in cases)
        return cases

    def _case(self, held: Held, policy: Policy, givers: Mapping[str, Sequence[Giver]], now: datetime) -> GangCase:
        case = GangCase(held=held, policy=policy, needs="", progress=self._progress.get((held.key, held.check_name)))
        if not held.gang.waits:
            return case
        given = givers.get(held.key, ())
        waits_for_pods = isinstance(policy, GatePolicy) and policy.wait_for_pods_gone
        return replace(
            case,
            needs=self._view.needs(held.workload),
            endings=self._pods_left(held.gang, given, now) if waits_for_pods else (),
            plan=plan_words(given),
        )

    def _pods_left(self, gang: Gang, givers: Sequence[Giver], now: datetime) -> tuple[Ending, ...]:
        """Of those that gave up their quota for the gang: taken by a plan of ours, or preempted by Kueue."""
        left = [each.left for each in givers if each.left is not None] + self._endings.preempted_for(gang.uid, now)
        return tuple({each.owner: each for each in left}.values())

    async def _judged(self, cases: Sequence[GangCase], now: datetime) -> tuple[str, list[GangCase]]:
        """Why nobody sees what is free, and the cases with what they are promised and how asking for nodes stands."""
        capacity = self._seen()
        if isinstance(capacity, Blind):
            return capacity.reason, await self._followed(cases, now)
        judged = await self._promised(cases, capacity, now)
        followed = await self._followed(judged, now)
        if [case.nodes for case in followed] != [case.nodes for case in judged]:
            followed = await self._promised(followed, capacity, now)
        return "", followed

    async def _promised(self, cases: Sequence[GangCase], capacity: Capacity, now: datetime) -> list[GangCase]:
        line = self._line(cases, capacity, now)
        if not line.waiting:
            return list(cases)
        # Up to a second of computing for a thousand gangs; meanwhile KEDA gets its answers.
        verdicts = await asyncio.to_thread(promise, capacity, line.held, line.waiting, overdue=line.overdue)
        return [replace(case, verdict=verdicts.get(case.gang.key) if case.asks_for_places else None) for case in cases]

    def _line(self, cases: Sequence[GangCase], capacity: Capacity, now: datetime) -> Line:
        claims = merged(case.claim() for case in cases if case.asks_for_places)
        if not claims:
            return Line(capacity=capacity)
        return Line(
            capacity=capacity,
            held=tuple(self._view.let_go()),
            waiting=tuple(claims),
            overdue=tuple(self._endings.overdue(now)),
        )

    async def _followed(self, cases: Sequence[GangCase], now: datetime) -> list[GangCase]:
        """Take the next step for everybody who lacks nodes, has asked for some, or has got them."""
        if self._provisioning is None:
            return list(cases)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ASKING_SECONDS
        for case in self._in_turn(cases):
            question = case.question(self.considers(case.gang.uid, now) if case.may_be_served else "")
            if question is not None:
                self._progress[case.name] = await self._provisioning.follow(question, now)
            if loop.time() > deadline:
                self._turn = case.name
                self.wake()
                break
        await self._let_requests_go({case.name for case in cases}, now)
        await self._provisioning.sweep({case.gang.uid for case in cases}, now)
        return [replace(case, progress=self._progress.get(case.name)) for case in cases]

    async def _let_requests_go(self, names: Collection[Name], now: datetime) -> None:
        """Of those that have lost their quota or our check, or are done. What is missed here is swept up later."""
        for key, check in self._progress.keys() - names:
            workload = self._view.workload(key)
            if workload is not None and self._provisioning is not None:
                await self._provisioning.follow(Case(workload=workload, check=check, policy=None), now)
            del self._progress[key, check]

    def _in_turn(self, cases: Sequence[GangCase]) -> list[GangCase]:
        """By name, beginning after the last one that had a turn."""
        ordered = sorted(cases, key=lambda case: case.name)
        first = next((at for at, case in enumerate(ordered) if case.name > self._turn), 0)
        self._turn = ("", "")
        return ordered[first:] + ordered[:first]

    # -------------------------------------------------------------------------------------------- deciding, and saying

    def _decided(self, case: GangCase, blind: str, now: datetime) -> Answer | None:
        if isinstance(case.policy, Unseen) and case.gang.waits:
            return None
        answer = decide(case.gang, self._outlook(case, blind), now)
        return None if isinstance(answer, Nothing) else answer

    def _outlook(self, case: GangCase, blind: str) -> Outlook:
        verdict = case.verdict
        in_the_way = self._endings.on(verdict.nodes) if isinstance(verdict, Waits) and not case.awaits_pods else ()
        since = case.nodes.open_since
        came_at = self._view.came(verdict.seats, since=since) if isinstance(verdict, Seated) and since else None
        return case.outlook(blind=blind, in_the_way=tuple(in_the_way), came_at=came_at)

    async def _wanted(self, cases: Sequence[GangCase], now: datetime) -> list[GangCase]:
        """The cases with whoever would get quota if they gave theirs back, of those that may do so now."""
        gangs = [case.gang for case in cases if case.nodes.is_yielding and case.gang.waits]
        asked = sorted({gang.key for gang in gangs if gang.may_yield(now)})
        heirs = await self._heirs.of(asked, now) if asked else {}
        return [replace(case, wanted_by=heirs.get(case.gang.key, "")) for case in cases] if heirs else list(cases)

    async def _say(self, answers: Sequence[tuple[GangCase, Answer]], blind: str, now: datetime) -> list[Opened]:
        """Write what entries do not say yet. Raises: KubeError with the reason NotLeading."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def say(case: GangCase, answer: Answer) -> Opened | None:
            async with limit:
                written = await self._writer.write(case, answer, self._outlook(case, blind), now)
            if not written and self._writer.may_write(case.name, now):
                self.wake()
            return self._opened(case, answer, now) if written and answer.state is State.READY else None

        due = self._writer.due(answers, now)
        outcomes = await asyncio.gather(*(say(case, answer) for case, answer in due), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Opened)]

    def _opened(self, case: GangCase, answer: Answer, now: datetime) -> Opened | None:
        """For telemetry; None of one that was running already."""
        reserved_at = case.gang.reserved_at
        if answer.because is Because.ADMITTED_BEFORE or reserved_at is None:
            return None
        seats = case.verdict.seats if isinstance(case.verdict, Seated) else ()
        reused, provisioned = self._view.gpus_on(case.held.workload, seats, since=reserved_at)
        return Opened(
            key=case.gang.key,
            because=answer.because,
            waited=max(timedelta(0), now - reserved_at),
            reused_gpus=reused,
            provisioned_gpus=provisioned,
        )

    # --------------------------------------------------------------------------------------------------- standing back

    async def stand_back(self, key: str, plan: str) -> str:
        """Let a Workload that has taken what the plan had freed give its quota back, once.

        Empty when it was told to, and otherwise why not: it was let go, has yielded before, or is not held by a check
        of ours. The pressure loop calls this where `onTheft` is Yield. Raises: KubeError.
        """
        checks = [check.metadata.name for check in self._view.checks()]
        return await self._writer.stand_back(key, checks, plan, self._clock())


def _waiting(answers: Sequence[tuple[GangCase, Answer]]) -> tuple[Standing, ...]:
    return tuple(_standing(case, answer) for case, answer in answers if answer.state is State.PENDING)


def _standing(case: GangCase, answer: Answer) -> Standing:
    return Standing(
        key=case.gang.key,
        uid=case.gang.uid,
        check=case.held.check_name,
        reserved_at=case.gang.reserved_at,
        answer=answer,
        verdict=case.verdict,
        progress=case.progress,
        may_reuse=isinstance(case.policy, GatePolicy) and case.policy.reuse,
    )
