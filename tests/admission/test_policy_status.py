"""What ReclaimPolicies say of themselves, and how little is written for it."""

from datetime import timedelta
from typing import Any

import pytest
from sim.cluster import SimCluster

from scaler.admission.checks import AdmissionChecks
from scaler.admission.policy import CheckPolicy, ProvisioningPolicy
from scaler.kube.objects.resources import RECLAIM_POLICY

PROVISIONING = {"className": "check-capacity.autoscaling.x-k8s.io"}
PLAIN = {"waitForPodsGone": True}
NOON = "2026-12-01T12:00:00Z"
BROKEN = {"provisioning": {**PROVISIONING, "retry": {"base": "2h", "max": "1h"}}}


class Author:
    """Writes ReclaimPolicies, and looks what their status says."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.cluster = SimCluster({}, policy=spec)
        self.checks = AdmissionChecks(self.cluster.api, self.cluster.copies[RECLAIM_POLICY], self.cluster.recorded)
        self.cluster.follow()

    async def looks(self) -> None:
        await self.checks.keep([], self.cluster.client.now)
        self.cluster.follow()

    def writes(self, spec: dict[str, Any]) -> None:
        self.cluster.change(RECLAIM_POLICY, "policy", {"spec": spec})
        self.cluster.follow()

    @property
    def conditions(self) -> dict[str, Any]:
        found = self.cluster.client.find(RECLAIM_POLICY, "", "policy")
        assert found is not None
        return {each["type"]: each for each in (found.get("status") or {}).get("conditions") or []}

    @property
    def generation(self) -> int:
        found = self.cluster.client.find(RECLAIM_POLICY, "", "policy")
        assert found is not None
        return int(found["metadata"]["generation"])

    @property
    def usable(self) -> tuple[str, str]:
        return self.conditions["Usable"]["status"], self.conditions["Usable"]["message"]

    @property
    def written(self) -> int:
        return len(self.cluster.api.patches)


async def test_what_can_be_followed_says_what_it_does() -> None:
    author = Author({"provisioning": PROVISIONING})
    await author.looks()
    status, message = author.usable
    assert status == "True"
    assert message.endswith("reclaims idle GPUs; requests nodes of class check-capacity.autoscaling.x-k8s.io")
    condition = author.conditions["Usable"]
    assert condition["lastTransitionTime"] == f"{author.cluster.client.now:%Y-%m-%dT%H:%M:%SZ}"
    assert condition["observedGeneration"] == author.generation
    assert condition["reason"] == "Usable"


async def test_what_stands_there_is_not_written_again() -> None:
    author = Author(PLAIN)
    for _ in range(3):
        await author.looks()
        author.cluster.client.now += timedelta(minutes=5)
    assert author.written == 1


async def test_the_time_changes_with_the_status_only_and_the_generation_with_the_spec() -> None:
    author = Author({"provisioning": PROVISIONING})
    await author.looks()
    began = author.conditions["Usable"]["lastTransitionTime"]
    author.cluster.client.now += timedelta(minutes=1)
    author.writes({"provisioning": PROVISIONING, "reuse": {"enabled": False}})
    await author.looks()
    assert author.conditions["Usable"]["lastTransitionTime"] == began
    assert author.conditions["Usable"]["observedGeneration"] == author.generation
    assert "reclaims idle GPUs" not in author.usable[1]
    author.writes(BROKEN)
    await author.looks()
    assert author.usable[0] == "False"
    assert author.conditions["Usable"]["lastTransitionTime"] != began


async def test_one_that_cannot_be_read_says_so() -> None:
    author = Author(PLAIN)
    author.writes({"waitForPodsGone": "perhaps"})
    await author.looks()
    assert author.usable[0] == "False"
    assert "ReclaimPolicy 'policy' cannot be read" in author.usable[1]
    await author.looks()
    assert author.written == 1


async def test_what_somebody_writes_meanwhile_wins_and_is_looked_at_next() -> None:
    author = Author(PLAIN)

    def interfere(_: str) -> None:
        author.cluster.api.before_patch = lambda _: None
        author.cluster.change(RECLAIM_POLICY, "policy", {"spec": BROKEN})

    author.cluster.api.before_patch = interfere
    await author.looks()
    assert author.conditions == {}
    await author.looks()
    assert author.usable[0] == "False"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            CheckPolicy(),
            "waits for victims' pods to terminate and free capacity for the whole gang; reclaims idle GPUs",
        ),
        (CheckPolicy(require_fit=False), "waits for victims' pods to terminate"),
        (CheckPolicy(wait_for_pods_gone=False, require_fit=False), "waits for nothing"),
        (
            CheckPolicy(wait_for_pods_gone=False, reuse=False, provisioning=ProvisioningPolicy(provisioning_class="c")),
            "waits for free capacity for the whole gang; requests nodes of class c",
        ),
    ],
)
def test_a_policy_in_words(policy: CheckPolicy, words: str) -> None:
    assert policy.words == words
