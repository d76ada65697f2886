"""Equal values are one, and whatever an object holds it stays equal."""

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.kube.objects.core import Quantity, ResourceRequirements, decode
from scaler.kube.objects.kueue_workloads import TemplateContainer, TemplateSpec, Volume
from scaler.kube.objects.sharing import shared, shared_texts

TEXTS = st.text(max_size=5)
QUANTITIES = st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers()))
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
SPECS = st.builds(
    lambda requests, name, claim: TemplateSpec(
        node_name=name,
        containers=(TemplateContainer(name=name, resources=ResourceRequirements(requests=requests)),),
        volumes=(Volume(persistent_volume_claim=claim),),
    ),
    QUANTITIES,
    TEXTS,
    ANYTHING,
)


def spec(requests: dict[str, Quantity], claim: Any = None) -> TemplateSpec:
    container = {"name": "main", "resources": {"requests": requests}}
    volume = {"persistentVolumeClaim": claim}
    return decode(TemplateSpec, msgspec.json.encode({"containers": [container], "volumes": [volume]}))


@given(SPECS)
def test_what_is_shared_is_equal(given_spec: TemplateSpec) -> None:
    assert shared(given_spec) == given_spec


def test_equal_ones_are_the_very_same_and_others_are_not() -> None:
    one, other = shared(spec({"cpu": "1"})), shared(spec({"cpu": "1"}))
    assert one is other
    assert shared(spec({"cpu": "2"})) != one
    assert shared(spec({"cpu": 1})) != one, "as it was written"
    assert shared_texts({"a": "b"}) is shared_texts({"a": "b"})


@pytest.mark.parametrize("claim", [10**40, -(10**40)], ids=["long", "long and negative"])
def test_what_cannot_be_compared_stays_as_it_is(claim: int) -> None:
    whole = TemplateSpec(volumes=(Volume(persistent_volume_claim=claim),))
    assert shared(whole) is whole


def test_what_is_nested_too_deeply_stays_as_it_is() -> None:
    deep: list[Any] = []
    for _ in range(10 * sys.getrecursionlimit()):
        deep = [deep]
    whole = TemplateSpec(volumes=(Volume(ephemeral=deep),))
    assert shared(whole) is whole
