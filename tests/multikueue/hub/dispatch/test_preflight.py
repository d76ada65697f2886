import pytest

from scaler.multikueue.hub.dispatch.preflight import PreflightResult, judged, nominators_of, owners_of

EXCLUSIVE = "status: Invalid value: clusterName and nominatedClusterNames are mutually exclusive"
NOT_NOMINATED = 'admission webhook "vworkload.kb.io" denied the request: it must be one of the nominatedClusterNames'
APPLIED, UPDATED, NOBODY = {"kueue-admission/Apply"}, {"kueue/Update"}, set[str]()


@pytest.mark.parametrize(
    ("status", "said", "owners", "expected"),
    [
        pytest.param(403, NOT_NOMINATED, APPLIED, PreflightResult.POLICY, id="the policy has cleared it"),
        pytest.param(422, EXCLUSIVE, APPLIED, PreflightResult.NO_REMEDY, id="nobody clears it"),
        pytest.param(422, EXCLUSIVE, UPDATED, PreflightResult.FEATURE_GATE, id="Kueue patches"),
        pytest.param(422, EXCLUSIVE, NOBODY, PreflightResult.NO_REMEDY, id="nothing is known of owners"),
        pytest.param(
            403, "workloads/status is forbidden", APPLIED, PreflightResult.NOT_KNOWN, id="it may not be patched"
        ),
        pytest.param(500, "busy", APPLIED, PreflightResult.NOT_KNOWN, id="the API server fails"),
        pytest.param(200, "", APPLIED, PreflightResult.NOT_KNOWN, id="an API server without the rule"),
    ],
)
def test_the_answer_to_the_dry_run_says_who_can_clear_nominations(
    status: int, said: str, owners: set[str], expected: PreflightResult
) -> None:
    found = judged(status, said, admission=owners, nominations=())
    assert found.result is expected
    assert found.is_passed == (found.message == "")


def test_where_kueue_nominates_by_itself_its_dispatcher_is_named() -> None:
    found = judged(403, NOT_NOMINATED, admission=(), nominations=APPLIED)
    assert (found.result, found.is_passed) == (PreflightResult.KUEUE_DISPATCHES, False)
    assert "Kueue's own dispatcher is configured" in found.message


def test_owners_of_fields_are_read_from_the_metadata() -> None:
    def entry(manager: str, operation: str, field: str) -> dict[str, object]:
        return {"manager": manager, "operation": operation, "fieldsV1": {"f:status": {field: {}}}}

    entries = [entry("kueue-admission", "Apply", "f:admission"), entry("us", "Update", "f:nominatedClusterNames")]
    metadata, status = {"managedFields": [*entries, {"manager": "x"}]}, {"nominatedClusterNames": ["w1"]}
    workload = {"metadata": metadata, "status": status}
    assert (owners_of(workload, "f:admission"), nominators_of(workload)) == (APPLIED, {"us/Update"})
    assert owners_of({"metadata": {}}, "f:admission") == set()


def test_who_has_emptied_nominations_does_not_nominate() -> None:
    """Kueue's policy empties them in a write of Kueue's, which then owns the field."""
    entry = {
        "manager": "kueue-admission",
        "operation": "Apply",
        "fieldsV1": {"f:status": {"f:nominatedClusterNames": {}}},
    }
    for status in ({"nominatedClusterNames": []}, {}):
        assert nominators_of({"metadata": {"managedFields": [entry]}, "status": status}) == set()
