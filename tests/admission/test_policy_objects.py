"""A ReclaimPolicy is followed as its definition says, or refused with the reason."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from scaler_sandbox.job_manifests import reclaim_policy
from small_cluster import embedded_api

from scaler.admission.checks import check_policy_of
from scaler.admission.policy import CheckPolicy, MergePolicy, ProvisioningPolicy, Retry, Unusable
from scaler.errors import KubeError
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import ReclaimPolicy
from scaler.kube.objects.resources import RECLAIM_POLICY

CRD = yaml.load(
    (Path(__file__).parents[2] / "deploy/crds/idlegpu.io_reclaimpolicies.yaml").read_text("utf-8"), yaml.CSafeLoader
)
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


def read(**spec: Any) -> CheckPolicy | Unusable:
    """What follows from an object that no API server has completed."""
    body = {"metadata": {"name": "p"}, "spec": spec}
    return check_policy_of(decode(ReclaimPolicy, msgspec.json.encode(body)))


def provisioning(**fields: Any) -> dict[str, Any]:
    return {"className": CLASS, **fields}


def test_an_empty_policy_waits_and_reuses_and_requests_no_nodes() -> None:
    assert (
        read()
        == CheckPolicy(wait_for_pods_gone=True, require_fit=True, reuse=True, pin_label="", provisioning=None)
        == CheckPolicy()
    )


def test_a_class_alone_is_enough_to_ask_for_nodes() -> None:
    found = read(provisioning=provisioning())
    assert isinstance(found, CheckPolicy)
    assert found.provisioning == ProvisioningPolicy(provisioning_class=CLASS)


def test_everything_that_is_said_is_followed() -> None:
    found = read(
        waitForPodsGone=False,
        reuse={"enabled": False},
        pin={"enabled": True, "nodeLabel": "example.com/node"},
        provisioning=provisioning(
            parameters={"ValidUntilSeconds": "600"},
            managedResources=["nvidia.com/gpu"],
            podSetMergePolicy="IdenticalPodTemplates",
            podSetUpdates={"nodeSelector": [{"key": "example.com/r", "valueFromProvisioningClassDetail": "Resize"}]},
            after="1m30s",
            withdraw="Never",
            retry={"limit": 1, "base": "10s", "max": "1h"},
            atLimit="Yield",
            onCapacityRevoked="Ignore",
        ),
    )
    assert found == CheckPolicy(
        wait_for_pods_gone=False,
        reuse=False,
        pin_label="example.com/node",
        provisioning=ProvisioningPolicy(
            provisioning_class=CLASS,
            parameters={"ValidUntilSeconds": "600"},
            managed_resources=frozenset({"nvidia.com/gpu"}),
            merge_policy=MergePolicy.IDENTICAL_TEMPLATES,
            node_selector={"example.com/r": "Resize"},
            after=timedelta(seconds=90),
            withdraws=False,
            retry=Retry(limit=1, base=timedelta(seconds=10), longest=timedelta(hours=1)),
            yields_at_limit=True,
            evicts_on_revocation=False,
        ),
    )


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "a pin without fit": ({"requireFit": False, "pin": {"enabled": True}}, "spec.requireFit"),
    "provisioning without fit": ({"requireFit": False, "provisioning": provisioning()}, "spec.requireFit"),
    "no class": ({"provisioning": {}}, "spec.provisioning.className"),
    "a duration without unit": ({"provisioning": provisioning(after="5")}, "spec.provisioning.after: '5' is not a dur"),
    "a duration that no calendar holds": (
        {"provisioning": provisioning(retry={"max": "999999999999h"})},
        "spec.provisioning.retry.max",
    ),
    "a first pause that is longer than the longest": (
        {"provisioning": provisioning(retry={"base": "2h", "max": "1h"})},
        "the first pause, 2h, is longer than the longest, 1h",
    ),
    "no pause at all": ({"provisioning": provisioning(retry={"base": "0s"})}, "without pause"),
    "fewer than no retries": ({"provisioning": provisioning(retry={"limit": -1})}, "spec.provisioning.retry.limit"),
    "a word of another version": (
        {"provisioning": provisioning(atLimit="Reject")},
        "spec.provisioning.atLimit: 'Reject' is not known; write Hold or Yield",
    ),
    "missing pods asked for on nodes of their own": (
        {
            "provisioning": provisioning(
                amount="Missing",
                podSetUpdates={"nodeSelector": [{"key": "k", "valueFromProvisioningClassDetail": "d"}]},
            )
        },
        "spec.provisioning.podSetUpdates.nodeSelector",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_is_not_valid_is_a_reason_that_says_where(case: str) -> None:
    spec, where = UNUSABLE[case]
    found = read(**spec)
    assert isinstance(found, Unusable), case
    assert found.reason.startswith("ReclaimPolicy 'p': ")
    assert where in found.reason


def test_missing_pods_may_be_asked_for_alone() -> None:
    found = read(provisioning=provisioning(amount="Missing"))
    assert isinstance(found, CheckPolicy)
    assert found.provisioning is not None
    assert found.provisioning.only_missing


def test_pauses_double_up_to_the_longest() -> None:
    """60 s · 2^(n-1), at most 30 min: 1, 2, 4, 8, 16, then 30 (not 32) minutes."""
    minutes = [Retry().pause_after(attempt).total_seconds() / 60 for attempt in range(1, 8)]
    assert minutes == [1, 2, 4, 8, 16, 30, 30]
    assert Retry(longest=timedelta.max).pause_after(10**9) <= timedelta.max


def test_a_limit_counts_what_follows_the_first_request() -> None:
    assert [attempt for attempt in range(1, 6) if Retry(limit=2).allows_another_after(attempt)] == [1, 2]
    assert not Retry(limit=0).allows_another_after(1)


async def test_the_definition_and_its_reader_have_the_same_defaults(tmp_path: Path) -> None:
    async with embedded_api(tmp_path, CRD) as (_, transport):
        for name, spec in {"bare": {}, "asking": {"provisioning": {"className": CLASS}}}.items():
            completed = await transport.create(RECLAIM_POLICY.path(), reclaim_policy(name, spec))
            stored = decode(ReclaimPolicy, completed)
            assert stored.spec == decode(ReclaimPolicy, msgspec.json.encode(reclaim_policy(name, spec))).spec
            assert msgspec.json.decode(completed)["spec"].keys() >= {"waitForPodsGone", "requireFit", "reuse", "pin"}
        for case in ("a pin without fit", "provisioning without fit", "no class", "no pause at all"):
            with pytest.raises(KubeError) as refused:
                await transport.create(RECLAIM_POLICY.path(), reclaim_policy("bad", UNUSABLE[case][0]))
            assert refused.value.status == 422, case
