import pytest

from scaler.multikueue.hub.dispatch.preflight import FieldOwners, PreflightResult, field_owners, judged

EXCLUSIVE = "status: Invalid value: clusterName and nominatedClusterNames are mutually exclusive"
NOT_NOMINATED = 'admission webhook "vworkload.kb.io" denied the request: it must be one of the nominatedClusterNames'
APPLIED, UPDATED = FieldOwners(admission=frozenset({"kueue-admission/Apply"})), frozenset({"kueue/Update"})


@pytest.mark.parametrize(
    ("status", "said", "owners", "expected"),
    [
        pytest.param(403, NOT_NOMINATED, APPLIED, PreflightResult.POLICY, id="the policy has cleared it"),
        pytest.param(422, EXCLUSIVE, APPLIED, PreflightResult.NO_REMEDY, id="nobody clears it"),
        pytest.param(422, EXCLUSIVE, FieldOwners(admission=UPDATED), PreflightResult.FEATURE_GATE, id="Kueue patches"),
        pytest.param(422, EXCLUSIVE, FieldOwners(), PreflightResult.NO_REMEDY, id="nothing is known of owners"),
        pytest.param(
            403, "workloads/status is forbidden", APPLIED, PreflightResult.NOT_KNOWN, id="it may not be patched"
        ),
        pytest.param(500, "busy", APPLIED, PreflightResult.NOT_KNOWN, id="the API server fails"),
        pytest.param(200, "", APPLIED, PreflightResult.NOT_KNOWN, id="an API server without the rule"),
        pytest.param(
            403,
            NOT_NOMINATED,
            FieldOwners(nominations=frozenset({"kueue-admission/Apply"})),
            PreflightResult.KUEUE_DISPATCHES,
            id="Kueue nominates by itself",
        ),
    ],
)
def test_the_answer_to_the_dry_run_says_who_can_clear_nominations(
    status: int, said: str, owners: FieldOwners, expected: PreflightResult
) -> None:
    found = judged(status, said, owners)
    assert found.result is expected
    assert found.is_passed == (found.message == "")


def test_owners_of_fields_are_read_from_the_metadata() -> None:
    def entry(manager: str, operation: str, field: str) -> dict[str, object]:
        return {"manager": manager, "operation": operation, "fieldsV1": {"f:status": {field: {}}}}

    entries = [entry("kueue-admission", "Apply", "f:admission"), entry("us", "Update", "f:nominatedClusterNames")]
    metadata, status = {"managedFields": [*entries, {"manager": "x"}]}, {"nominatedClusterNames": ["w1"]}
    admission = frozenset({"kueue-admission/Apply"})
    found = field_owners({"metadata": metadata, "status": status})
    assert found == FieldOwners(admission=admission, nominations=frozenset({"us/Update"}))
    assert field_owners({"metadata": {}}) == FieldOwners()


def test_who_has_emptied_nominations_does_not_nominate() -> None:
    """Kueue's policy empties them in a write of Kueue's, which then owns the field."""
    entry = {
        "manager": "kueue-admission",
        "operation": "Apply",
        "fieldsV1": {"f:status": {"f:nominatedClusterNames": {}}},
    }
    for status in ({"nominatedClusterNames": []}, {}):
        assert field_owners({"metadata": {"managedFields": [entry]}, "status": status}) == FieldOwners()
