"""What kind of run it is: the nodes, the quota, the policy, and how much goes wrong. Diced from a seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from scaler_sandbox.kinds import Json
from sim.api import FaultRates
from sim.random_autoscaler import DETAIL, LABEL

UNLIMITED = 1000
"""GPUs of quota that no run can use up."""
_MISCHIEF = FaultRates(refused=30, conflicts=60, unheard=30, deadly=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    nodes: Mapping[str, int]
    """GPUs by node, of those that are there from the beginning."""
    quota: int
    is_shaky: bool
    """Whether machines and pods are lost, and gangs are let in that nobody can be sure of."""
    hurries: bool
    """Whether all act in any order, and lag; otherwise all is quiet after every second."""
    pins: bool
    provisions: bool
    labels: bool
    """Whether nodes that are added are for one request."""
    second_check: bool
    """Whether somebody else's AdmissionCheck is on the same queue."""
    policy: Json
    queue: Json
    mischief: FaultRates
    seconds: int
    """In which something may happen."""

    @property
    def preempts(self) -> bool:
        return "preemption" in self.queue

    @property
    def attempts(self) -> int:
        """Requests that may be made for one reservation."""
        return 1 + int(self.policy["provisioning"]["retry"]["limit"])


def nature_of(dice: Random) -> Environment:
    pins, provisions = dice.random() < 0.4, dice.random() < 0.4
    labels = provisions and dice.random() < 0.4
    preempts = dice.random() < 0.3
    return Environment(
        nodes={f"node-{each}": dice.choice((4, 8, 8)) for each in "abcd"[: dice.randrange(2, 5)]},
        quota=dice.choice((8, 12, 16)) if preempts else dice.choice((12, 16, 24, UNLIMITED, UNLIMITED)),
        is_shaky=dice.random() < 0.25,
        hurries=dice.random() < 0.7,
        pins=pins,
        provisions=provisions,
        labels=labels,
        second_check=dice.random() < 0.25,
        policy={
            "waitForPodsGone": dice.random() < 0.9,
            "pin": {"enabled": pins},
            **({"provisioning": _provisioning(dice, labels=labels)} if provisions else {}),
        },
        queue={
            "queueingStrategy": dice.choice(("StrictFIFO", "BestEffortFIFO")),
            **({"preemption": {"withinClusterQueue": "LowerPriority"}} if preempts else {}),
        },
        mischief=dice.choice((FaultRates(), FaultRates(), _MISCHIEF)),
        seconds=dice.randrange(12, 22),
    )


def _provisioning(dice: Random, *, labels: bool) -> Json:
    selector = [{"key": LABEL, "valueFromProvisioningClassDetail": DETAIL}]
    return {
        "className": "example.com",
        "after": dice.choice(("0s", "0s", "3s")),
        "withdraw": dice.choice(("WhenFree", "Never")),
        "atLimit": dice.choice(("Hold", "Yield")),
        "retry": {"limit": dice.choice((0, 1, 2)), "base": "2s", "max": "5s"},
        **({"podSetUpdates": {"nodeSelector": selector}} if labels else {"amount": dice.choice(("Gang", "Missing"))}),
    }
