"""Which replica may act? One Lease, one holder: leader election over coordination.k8s.io/v1.

Laws:

* **Never two at once**, as long as the replicas' monotonic clocks run alike within `lease_duration / renew_deadline`
  (15 s / 10 s: by half). A leader counts from before it *sent* its last successful renewal and stops after
  `renew_deadline`. A follower counts from after it *saw* the record change last and waits `lease_duration`. The
  follower's start is never earlier than the leader's, and its wait is longer.
* `is_leader` is computed from the clock whenever it is asked, so neither a hung call nor a busy event loop can
  prolong it. Ask it before each write.
* No wall clock is trusted: who leads does not depend on the times in the record.
* Every write carries the resourceVersion that was read. A write whose answer was lost may have been done; the next
  one then fails with 409, and the record is read again.
* A Lease that was deleted is not free: its holder is given the same time to notice.
* Work ends before the Lease is released. A released Lease has no holder, so the next replica takes it at its next look.

Durations may be shorter than a second, but `leaseDurationSeconds` is a whole number: it is written rounded up. A
follower waits for its own `lease_duration` or the holder's, whichever is longer, so that replicas of two configurations
are safe during a rollout; a holder's that equals its own rounded up counts as its own.

The holder's identity is made unique with a random suffix: two processes that were given the same name (a laptop, a
copied manifest) must not both recognise themselves.
"""

import asyncio
import math
import random
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import structlog

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.objects.resources import LEASE
from scaler.kube.transport import KubeTransport

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Durations in seconds; they have to ascend from the last to the first, which the settings make sure of."""

    lease_duration: float = 15.0
    """How long followers wait without a sign of the leader. The longest time without a leader after a crash."""
    renew_deadline: float = 10.0
    """How long a leader goes on without a successful renewal."""
    retry_period: float = 2.0
    """The time between two renewals, and between two looks of a replica that does not lead."""

    @property
    def written_seconds(self) -> int:
        return max(1, math.ceil(self.lease_duration))


class LeaderElector:
    """One candidate. `await elector.run(work)` is all that most callers need."""

    def __init__(
        self,
        transport: KubeTransport,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming = LeaseTiming(),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self.identity = f"{identity}_{secrets.token_hex(4)}"
        self._timing = timing
        self._lease: dict[str, Any] = {}
        """The Lease as last read or written; empty where there is none."""
        self._is_current = False
        """Whether `_lease` is what this replica itself has written last, so that it need not be read again."""
        self._seen_at = -math.inf
        """When the record was first seen as it is."""
        self._vacant_from = -math.inf
        """When a Lease that does not exist may be taken."""
        self._leads_until = -math.inf
        self._led_at = -math.inf
        """When some replica was last known to lead."""
        self.led_until: datetime | None = None
        """When the holder had renewed it at the first look; None where there was none before this one. By that one's
        clock: it tells up to when others have led, not who may lead."""
        self.problem = ""
        """Why the Lease could not be read or written the last time; empty where it could."""

    @property
    def is_leader(self) -> bool:
        return self._clock.monotonic() < self._leads_until

    @property
    def holder(self) -> str:
        """Identity of the holder as far as known; empty where there is none."""
        return str(self._spec.get("holderIdentity") or "")

    @property
    def leaderless_seconds(self) -> float:
        """The time for which no replica has been known to lead; infinite where none ever was."""
        return 0.0 if self.is_leader else self._clock.monotonic() - self._led_at

    async def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Runs `work` whenever this replica leads: starts it when leadership is won, cancels it when it is lost.

        Returns when `work` returns, raises what it raises; otherwise runs until cancelled. The Lease is released then.
        """
        try:
            while True:
                await self._win()
                if await self._lead(work):
                    return
        finally:
            await self._release()

    # ---------------------------------------------------------------------------------------------------- campaigns

    async def _win(self) -> None:
        """Returns as leader."""
        while True:
            await self._attempt()
            if self.is_leader:
                return
            await self._clock.sleep(self._timing.retry_period * random.uniform(1.0, 1.2))  # noqa: S311 (spreads load)

    async def _lead(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Whether the work has come to its own end; False where leadership was lost before."""
        _log.info("KubeLeadershipGained", lease=self._name, identity=self.identity)
        working = asyncio.create_task(work(), name=f"leading-{self._name}")
        renewing = asyncio.create_task(self._renew_while_leading(), name=f"renewing-{self._name}")
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            has_finished = working.done()
        finally:
            # Renewals go on while the work cleans up: no other replica may begin before it has ended.
            await _end(working)
            await _end(renewing)
        if not has_finished:
            _log.warning("KubeLeadershipLost", lease=self._name, holder=self.holder, problem=self.problem)
        if not working.cancelled():
            working.result()
        return has_finished

    async def _renew_while_leading(self) -> None:
        while self.is_leader:
            await self._clock.sleep(min(self._timing.retry_period, self._seconds_left()))
            if self.is_leader:
                await self._attempt()

    def _seconds_left(self) -> float:
        return max(0.0, self._leads_until - self._clock.monotonic())

    async def _attempt(self) -> None:
        """Takes or renews the Lease where that is allowed. Never raises: what went wrong is in `problem`."""
        try:
            if not self._is_current:
                await self._read()
            if self._may_take():
                await self._write(self._spec_as_holder())
            self.problem = ""
            if self.is_leader or not self._may_take():
                self._led_at = self._clock.monotonic()
        except KubeError as error:
            self._is_current = False
            if not error.is_conflict:
                self._note(error)

    def _may_take(self) -> bool:
        if not self._lease:
            return self._clock.monotonic() >= self._vacant_from
        return self.holder in ("", self.identity) or self._clock.monotonic() >= self._seen_at + self._wait_for_holder()

    def _wait_for_holder(self) -> float:
        """Seconds without a change of the record after which its holder has stopped leading."""
        holders = int(self._spec.get("leaseDurationSeconds") or 0)
        own = self._timing.lease_duration
        return own if holders == self._timing.written_seconds else max(own, float(holders))

    def _note(self, error: KubeError) -> None:
        if not self.problem:
            _log.warning("KubeLeaseUnavailable", lease=self._name, is_leader=self.is_leader, error=str(error))
        self.problem = str(error)

    # --------------------------------------------------------------------------------------------------- the record

    @property
    def _spec(self) -> dict[str, Any]:
        return self._lease.get("spec") or {}

    async def _read(self) -> None:
        path = LEASE.path(self._namespace, self._name)
        try:
            self._learn(await self._transport.get(path, within=self._call_seconds(), attempts=1))
        except KubeError as error:
            if not error.is_absent:
                raise
            self._forget()
        if self.holder != self.identity:
            self._leads_until = -math.inf

    def _forget(self) -> None:
        """Takes note that there is no Lease. Its holder may not know that yet, and is given its time."""
        if self.holder not in ("", self.identity):
            self._vacant_from = self._clock.monotonic() + self._wait_for_holder()
        self._lease = {}

    async def _write(self, spec: dict[str, Any]) -> None:
        """Writes the record and, where it names this replica, leads from the moment before."""
        sent_at = self._clock.monotonic()
        body = {**self._lease, "spec": spec}
        if self._lease:
            path = LEASE.path(self._namespace, self._name)
            answer = await self._transport.replace(path, body, within=self._call_seconds())
        else:
            body |= {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
            }
            answer = await self._transport.create(LEASE.path(self._namespace), body, within=self._call_seconds())
        self._learn(answer)
        self._is_current = True
        if self.holder == self.identity:
            self._leads_until = sent_at + self._timing.renew_deadline

    def _learn(self, answer: bytes) -> None:
        try:
            lease = msgspec.json.decode(answer, type=dict[str, Any])
        except UNREADABLE as error:
            raise KubeError(
                f"Lease {self._namespace}/{self._name}: not an object: {error}", reason="NotALease"
            ) from error
        if self._seen_at == -math.inf and lease.get("spec", {}).get("holderIdentity") != self.identity:
            self.led_until = _instant(lease)
        if lease.get("spec") != self._lease.get("spec"):
            self._seen_at = self._clock.monotonic()
        self._lease = lease

    def _call_seconds(self) -> float:
        """The limit of a call: half the deadline, so that one that hangs leaves time for another.

        Not beyond what is left of the leadership, where there is any.
        """
        half = self._timing.renew_deadline / 2
        return min(half, self._seconds_left() or half)

    def _spec_as_holder(self) -> dict[str, Any]:
        before, now = self._spec, _micro_time(self._clock.now())
        spec = {
            **before,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.written_seconds,
            "renewTime": now,
        }
        if self.holder != self.identity:
            transitions = int(before.get("leaseTransitions") or 0)
            spec |= {"acquireTime": now, "leaseTransitions": transitions + 1 if before else 0}
        return spec

    async def _release(self) -> None:
        """Removes this replica as the holder of the Lease. Where the API does not answer, time does."""
        self._leads_until = -math.inf
        while self.holder == self.identity:
            try:
                if not self._is_current:
                    await self._read()
                await self._write({**self._spec, "holderIdentity": "", "renewTime": _micro_time(self._clock.now())})
                _log.info("KubeLeaseReleased", lease=self._name)
            except KubeError as error:
                self._is_current = False
                if not error.is_conflict:
                    _log.warning("KubeLeaseNotReleased", lease=self._name, error=str(error))
                    return


def _micro_time(now: datetime) -> str:
    """The time as the API's MicroTime, which wants all six digits."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _instant(lease: dict[str, Any]) -> datetime | None:
    """When the Lease was renewed last."""
    try:
        found = datetime.fromisoformat(lease["spec"]["renewTime"])
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
