"""For which remote copies of MultiKueue may this cluster suspend idle workloads or request nodes?"""

from typing import Any

import msgspec
import pytest

from scaler.admission.remote_copies import NominatedCopies, nominations_of, words
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_GATE, MULTIKUEUE_ORIGIN, Workload
from scaler.kube.objects.multikueue import ClusterOffer


def workload(*, is_copy: bool = True, gate: str = "", is_blocked: bool = False, name: str = "gang") -> Workload:
    labels = {MULTIKUEUE_ORIGIN: "multikueue"} if is_copy else {}
    status: dict[str, Any] = {"conditions": []}
    if gate:
        status["preemptionGates"] = [{"name": MULTIKUEUE_GATE, "position": gate}]
    if is_blocked:
        status["conditions"] = [{"type": "BlockedOnPreemptionGates", "status": "True", "reason": "PreemptionGated"}]
    metadata = {"name": name, "namespace": "team", "labels": labels}
    return decode(Workload, msgspec.json.encode({"metadata": metadata, "status": status}))


def offer(*workloads: dict[str, Any], name: str = "hub") -> ClusterOffer:
    named = [{"namespace": "team", "name": "gang", "uid": "of-the-hub", **each} for each in workloads]
    return decode(ClusterOffer, msgspec.json.encode({"metadata": {"name": name}, "spec": {"workloads": named}}))


NOT_NOMINATED = "it is a remote copy of MultiKueue, and the hub has not nominated this cluster for it"
CASES = {
    "no remote copy": (workload(is_copy=False), NominatedCopies(unknown="not listed"), ""),
    "always": (workload(), NominatedCopies(always=True, unknown="not listed"), ""),
    "nominated": (workload(), nominations_of([offer({"reclaim": True})]), ""),
    "nominated by one of two hubs": (
        workload(),
        nominations_of([offer({"reclaim": False}, name="a"), offer({"reclaim": True}, name="b")]),
        "",
    ),
    "nominated while Kueue's hub opens no gate": (
        workload(gate="Closed", is_blocked=True),
        nominations_of([offer({"reclaim": True})]),
        "",
    ),
    "an open gate": (workload(gate="Open"), NominatedCopies(unknown="not listed"), ""),
    "a closed gate says nothing": (workload(gate="Closed"), NominatedCopies(), NOT_NOMINATED),
    "a hub that is choosing": (
        workload(gate="Closed", is_blocked=True),
        NominatedCopies(),
        "it is a remote copy of MultiKueue, and the hub has not opened its preemption gate on this cluster",
    ),
    "no offer": (workload(), NominatedCopies(), NOT_NOMINATED),
    "only asked about": (workload(), nominations_of([offer({"request": {"queueName": "lq"}})]), NOT_NOMINATED),
    "another of that name": (
        workload(),
        nominations_of([offer({"reclaim": True, "namespace": "other"}, {"reclaim": True, "name": "other"})]),
        NOT_NOMINATED,
    ),
    "not known": (
        workload(),
        nominations_of([offer({"reclaim": True})], unknown="not synced: ClusterOffers (no answer)"),
        Unknown,
    ),
}


@pytest.mark.parametrize(("found", "nominations", "why"), CASES.values(), ids=CASES)
def test_a_remote_copy_is_served_only_where_it_is_known_that_this_cluster_is_meant(
    found: Workload, nominations: NominatedCopies, why: Any
) -> None:
    answer = nominations.why_not(found)
    assert isinstance(answer, Unknown) if why is Unknown else answer == why
    assert words(answer) if why else not words(answer)


def test_what_is_not_known_is_said() -> None:
    answer = NominatedCopies(unknown="not synced: ClusterOffers (no answer)").why_not(workload())
    assert words(answer) == (
        "whether the hub has nominated this cluster for it is not known: not synced: ClusterOffers (no answer)"
    )


def test_without_any_knowledge_nothing_is_nominated() -> None:
    assert NominatedCopies().why_not(workload()) == NOT_NOMINATED
