"""One gang in one tick of the gate: everything that is known of it, and what follows from that alone. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.core.claims import Claim, Lacks, Verdict
from scaler.core.gate_policy import GatePolicy, Unusable
from scaler.core.gate_values import NOBODY_ASKED, Answer, Because, Ending, Gang, Nodes, Outlook
from scaler.core.provisioning import Kind
from scaler.kueue.gangs import Needs, on_booked_nodes
from scaler.loops.endings import Giver
from scaler.loops.gate_checks import Policy
from scaler.loops.gate_view import Held
from scaler.loops.provisioning import Case, Progress

Name = tuple[str, str]
"""(key of the Workload, name of the check)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangCase:
    """A Workload that has quota, with one of our checks."""

    held: Held
    policy: Policy
    needs: Needs | str
    """What its pods need, or why nobody knows; of one that waits."""
    endings: tuple[Ending, ...] = ()
    """Pods of those that gave up their quota for it, where its policy waits for these."""
    plan: str = ""
    """What is being done to free GPUs for it, in words."""
    progress: Progress | None = None
    """Of asking for nodes."""
    wanted_by: str = ""
    """Who would get quota if it gave its own back; empty where nobody would, or nobody knows."""
    verdict: Verdict | None = None

    @property
    def gang(self) -> Gang:
        return self.held.gang

    @property
    def name(self) -> Name:
        return self.held.key, self.held.check_name

    @property
    def asks_for_places(self) -> bool:
        is_judged = self.gang.waits and not self.held.runs_elsewhere and isinstance(self.needs, Needs)
        return is_judged and isinstance(self.policy, GatePolicy) and self.policy.require_fit

    @property
    def requires_fit(self) -> bool:
        return not isinstance(self.policy, GatePolicy) or self.policy.require_fit

    @property
    def awaits_pods(self) -> bool:
        """Whether pods end that it waits for, whatever nodes have free."""
        return bool(self.outlook().awaited)

    @property
    def nodes(self) -> Nodes:
        return nodes_of(self.progress)

    def claim(self) -> Claim | None:
        """Its claim on nodes, for all of its pods; None where it has none to make.

        Pods of it that are on nodes while it waits are of its last life. They end, and hold their places until then.
        """
        policy, needs, reserved_at = self.policy, self.needs, self.gang.reserved_at
        if not isinstance(policy, GatePolicy) or not isinstance(needs, Needs) or reserved_at is None:
            return None
        nodes, label = self.nodes, policy.pin_label
        return Claim(
            key=self.gang.key,
            uid=self.gang.uid,
            demands=on_booked_nodes(needs.demands, nodes.updates),
            at=reserved_at,
            is_booked=nodes.is_booked,
            awaits_nodes=nodes.is_coming and not nodes.is_late,
            waits_for_pods=self.awaits_pods,
            may_ask=policy.provisioning is not None,
            pin_label=label if label not in needs.selected else "",
        )

    def question(self, considered: str = "") -> Case | None:
        """What is told to whoever asks for nodes; None where nobody knows by which policy.

        `considered` says that it is being found out whether idle GPUs can serve it; empty once that is known.
        """
        if not isinstance(self.policy, GatePolicy):
            return None
        return Case(
            workload=self.held.workload,
            check=self.held.check_name,
            policy=self.policy.provisioning,
            missing=dict(self.verdict.missing) if isinstance(self.verdict, Lacks) else {},
            reuse=self.plan or (considered if self.may_be_served else ""),
        )

    @property
    def may_be_served(self) -> bool:
        """Whether it lacks nodes, and idle workloads may be suspended for it."""
        return isinstance(self.policy, GatePolicy) and self.policy.reuse and isinstance(self.verdict, Lacks)

    def outlook(
        self, *, blind: str = "", in_the_way: Sequence[Ending] = (), came_at: datetime | None = None
    ) -> Outlook:
        return Outlook(
            problem=self.policy.reason if isinstance(self.policy, Unusable) else "",
            endings=self.endings,
            requires_fit=self.requires_fit,
            runs_elsewhere=self.held.runs_elsewhere,
            blind=blind or (self.needs if isinstance(self.needs, str) else ""),
            verdict=self.verdict,
            in_the_way=in_the_way,
            came_at=came_at,
            nodes=self.nodes,
            plan=self.plan,
            wanted_by=self.wanted_by,
            note=self.needs.note if isinstance(self.needs, Needs) else "",
        )


def nodes_of(progress: Progress | None) -> Nodes:
    """How asking for nodes stands, as the gate's table needs it."""
    if progress is None or progress.kind is Kind.NOTHING:
        return NOBODY_ASKED
    is_booked = progress.kind is Kind.PROVISIONED
    return Nodes(
        message=progress.message,
        is_booked=is_booked,
        is_coming=is_booked or (progress.kind is Kind.WAIT and bool(progress.request)),
        is_late=progress.is_late,
        open_since=progress.open_since,
        updates=progress.updates,
        is_yielding=progress.kind is Kind.AT_LIMIT and progress.is_yielding,
        is_revoked=progress.kind is Kind.REVOKED,
        is_at_limit=progress.kind is Kind.AT_LIMIT,
    )


def merged(claims: Iterable[Claim | None]) -> list[Claim]:
    """One claim for each Workload. One with two checks of ours has places once, and by the first of them."""
    found: dict[str, Claim] = {}
    for claim in claims:
        if claim is not None:
            found.setdefault(claim.key, claim)
    return list(found.values())


def plan_words(givers: Sequence[Giver]) -> str:
    """The plan that is being carried out, in words; empty where there is none, or it has done its work."""
    working = [each for each in givers if not each.is_done]
    if not working:
        return ""
    return f"plan {working[0].plan} frees GPUs of {', '.join(each.name for each in working)}"


# ---------------------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A gang that was let go, for telemetry."""

    key: str
    because: Because
    waited: timedelta
    """Since its quota was reserved."""
    reused_gpus: int = 0
    """On nodes that were there before."""
    provisioned_gpus: int = 0
    """On nodes that have come since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a gang that waits stands with one check."""

    key: str
    uid: str
    check: str
    reserved_at: datetime | None
    answer: Answer
    verdict: Verdict | None
    progress: Progress | None
    may_reuse: bool
    """Whether idle workloads may be suspended for it."""

    @property
    def lacks_nodes(self) -> bool:
        """Whether it fits no nodes, and nothing that ends now changes that."""
        return isinstance(self.verdict, Lacks)

    @property
    def awaits_nodes(self) -> bool:
        """Whether nodes are on their way."""
        return nodes_of(self.progress).is_coming
