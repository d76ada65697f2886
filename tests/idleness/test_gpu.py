import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.idleness.gpu import GpuId, Unit, identify, utilisation_ratio

GPU = "GPU-603a8873-0edd-c157-ce48-2078e8b1a935"
POD = {"namespace": "demo", "pod": "worker-0"}


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        pytest.param(0.0, Unit.RATIO, 0.0, id="quiet"),
        pytest.param(0.117468, Unit.RATIO, 0.117468, id="a ratio is itself"),
        pytest.param(1.02, Unit.RATIO, 1.02, id="exporters overshoot by rounding"),
        pytest.param(1, Unit.PERCENT, 0.01, id="one percent"),
        pytest.param(100, Unit.PERCENT, 1.0, id="a hundred percent"),
        pytest.param(57, Unit.RATIO, 57.0, id="percent where a ratio was declared is work, not a blank"),
    ],
)
def test_a_measurement_is_a_ratio(value: float, unit: Unit, expected: float) -> None:
    assert utilisation_ratio(value, unit) == pytest.approx(expected)


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(math.nan, id="NaN: stale or not collected"),
        pytest.param(math.inf, id="infinity"),
        pytest.param(-math.inf, id="minus infinity"),
        pytest.param(-0.01, id="below nothing"),
        *(pytest.param(0x7FFFFFFFFFFFFFF0 + n, id=f"64-bit blank + {n}") for n in range(4)),
        *(pytest.param(0x7FFFFFF0 + n, id=f"32-bit blank + {n}") for n in range(4)),
        *(pytest.param(140737488355328.0 + n, id=f"floating blank + {n}") for n in range(4)),
    ],
)
def test_a_blank_is_no_measurement_in_any_unit(value: float, unit: Unit) -> None:
    assert utilisation_ratio(value, unit) is None


@given(value=st.floats(min_value=0.01, max_value=1e6), unit=st.sampled_from([Unit.RATIO, Unit.PERCENT]))
def test_work_is_never_taken_for_a_blank_because_its_unit_was_declared_wrongly(value: float, unit: Unit) -> None:
    """Dropped samples leave the quiet ones around them, and those would prove idleness."""
    assert utilisation_ratio(value, unit) is not None


@pytest.mark.parametrize("name", ["UUID", "uuid", "gpu_uuid"])
def test_a_series_names_its_device_as_any_exporter_spells_it(name: str) -> None:
    found = identify({name: GPU, "gpu": "0", "GPU_I_ID": "", **POD})
    assert found is not None
    assert (found.gpu, found.namespace, found.pod) == (GpuId(device=GPU), "demo", "worker-0")


@pytest.mark.parametrize("name", ["Hostname", "hostname", "node"])
def test_without_a_uuid_the_device_is_the_nodes_index(name: str) -> None:
    found = identify({name: "phx8-2fa", "gpu": "3", **POD})
    assert found is not None
    assert (str(found.gpu), found.node) == ("phx8-2fa/3", "phx8-2fa")


@pytest.mark.parametrize("name", ["GPU_I_ID", "gpu_i_id"])
def test_instances_of_a_partitioned_gpu_are_devices_of_their_own(name: str) -> None:
    one, two = (identify({"UUID": GPU, name: number, **POD}) for number in ("1", "2"))
    assert one is not None
    assert two is not None
    assert one.gpu != two.gpu
    assert one.gpu.is_mig
    assert str(one.gpu) == f"{GPU}/mig-1"


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"UUID": GPU, "namespace": "", "pod": ""}, id="no pod holds the GPU, empty labels"),
        pytest.param({"UUID": GPU}, id="no pod holds the GPU, no labels"),
        pytest.param({"UUID": GPU, "pod": "worker-0"}, id="no namespace"),
        pytest.param({"gpu": "0", **POD}, id="an index without its node is any node's"),
        pytest.param({"Hostname": "phx8-2fa", **POD}, id="a node without an index"),
    ],
)
def test_a_series_without_a_device_or_a_pod_is_dropped(labels: dict[str, str]) -> None:
    assert identify(labels) is None


def test_a_series_keeps_what_people_ask_for() -> None:
    found = identify({"UUID": GPU, "modelName": "NVIDIA A30", "Hostname": "n1", **POD})
    assert found is not None
    assert (found.model, found.node) == ("NVIDIA A30", "n1")
