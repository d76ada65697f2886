"""What is written of objects that were read: no more than it takes to read the same again."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scaler.kube.objects.core import decode, without_defaults
from scaler.kube.objects.kueue_workloads import PodSet, PodTemplate, TemplateContainer, TemplateSpec
from scaler.kube.scheduling import Toleration

containers = st.builds(TemplateContainer, name=st.text(max_size=3), restart_policy=st.sampled_from(["", "Always"]))
specs = st.builds(
    TemplateSpec,
    containers=st.lists(containers, max_size=2).map(tuple),
    node_selector=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    priority=st.none() | st.integers(0, 3),
    tolerations=st.lists(st.builds(Toleration, key=st.text(max_size=3)), max_size=2).map(tuple),
)
pod_sets = st.builds(
    PodSet, name=st.sampled_from(["main", "x"]), count=st.integers(0, 3), template=st.builds(PodTemplate, spec=specs)
)


@given(pod_sets)
def test_what_is_left_out_is_read_as_it_was(pod_set: PodSet) -> None:
    assert decode(PodSet, msgspec.json.encode(without_defaults(pod_set))) == pod_set


def test_nothing_is_written_of_what_says_nothing() -> None:
    assert without_defaults(PodSet()) == {}
    assert without_defaults(PodSet(count=0)) == {"count": 0}
