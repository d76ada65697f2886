import asyncio
from datetime import timedelta
from typing import Any

import grpc
import pytest
from keda.keda_harness import ref, refusal, serving
from keda.memory_decisions import BUSY, IDLE, STALE, BrokenDecisions, EmptyHandedDecisions, MemoryDecisions

from scaler.decision.decision import Answer
from scaler.idleness.policy import EnforcementMode, Overrides
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.servicer import ExternalScalerServicer

FIRST = ("demo", "first-raycluster")


def kedas_number(integer: int, floating: float) -> float:
    """As KEDA 2.17 and later read a pair of fields: the float where it is above 0, the integer otherwise."""
    return floating if floating > 0 else float(integer)


async def poll(stub: Any, target: Any) -> tuple[float, bool]:
    """One poll of KEDA: GetMetricSpec, then GetMetrics for each spec, then IsActive."""
    specs = (await stub.GetMetricSpec(target)).metricSpecs
    assert [kedas_number(spec.targetSize, spec.targetSizeFloat) for spec in specs] == [1.0]
    reply = await stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=target, metricName=specs[0].metricName))
    values = [kedas_number(value.metricValue, value.metricValueFloat) for value in reply.metricValues]
    assert len(values) == 1, "the HorizontalPodAutoscaler would add several up"
    return values[0], (await stub.IsActive(target)).result


@pytest.mark.parametrize(("answer", "expected"), [(BUSY, (1.0, True)), (IDLE, (0.0, False))])
async def test_a_poll_of_keda_sees_one_value_that_agrees_with_the_activity(answer: Answer, expected: Any) -> None:
    async with serving(MemoryDecisions({FIRST: answer})) as served:
        assert await poll(served.stub, ref(idleAfter="5m")) == expected


async def test_an_answer_is_looked_up_by_scaled_object_and_by_what_its_metadata_sets() -> None:
    decisions = MemoryDecisions({FIRST: BUSY})
    async with serving(decisions) as served:
        await served.stub.IsActive(ref(mode="observe", pricing="spot"))
    assert decisions.asked == [("demo", "first-raycluster", Overrides(mode=EnforcementMode.OBSERVE))]


async def test_no_usable_answer_is_an_error_with_its_reason_and_never_a_value() -> None:
    async with serving(MemoryDecisions({FIRST: STALE})) as served:
        expected = (grpc.StatusCode.UNAVAILABLE, "StaleSamples: the newest sample is 5m old")
        assert await refusal(served.stub.IsActive(ref())) == expected
        assert await refusal(served.stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref()))) == expected


async def test_unusable_metadata_is_explained_where_keda_shows_it() -> None:
    async with serving(MemoryDecisions({FIRST: IDLE})) as served:
        target = ref(idleAfter="5 minutes", mdoe="observe")
        code, text = await refusal(served.stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=target)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "trigger metadata 'idleAfter': '5 minutes' is not a duration; write '5m'" in text
        assert "did you mean 'mode'?" in text
        assert await refusal(served.stub.IsActive(target)) == (code, text)


async def test_the_text_of_an_error_fits_an_event_however_much_is_wrong() -> None:
    wrong = {f"idleAfter{number}": "ü" * 60 for number in range(50)}
    async with serving(MemoryDecisions()) as served:
        _, text = await refusal(served.stub.IsActive(ref(**wrong)))
        assert 500 < len(text) <= 900


async def test_more_keys_than_a_trigger_has_are_counted_and_not_read() -> None:
    many = {f"idleAfter{number}": "v" for number in range(40_000)}
    async with serving(MemoryDecisions({FIRST: BUSY})) as served:
        code, text = await refusal(served.stub.IsActive(ref(**many)))
        assert (code, text) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "trigger metadata has 40003 keys, and 100 are the most",
        )
        assert await poll(served.stub, ref(idleAfter="5m")) == (1.0, True)


@pytest.mark.parametrize("decisions", [BrokenDecisions(), EmptyHandedDecisions()])
async def test_a_fault_of_ours_is_an_error_and_not_an_answer(decisions: Any) -> None:
    async with serving(decisions) as served:
        code, text = await refusal(served.stub.IsActive(ref()))
        assert code is grpc.StatusCode.INTERNAL
        assert text.startswith("internal error, ")
        assert (await refusal(served.stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref()))))[0] is code


@pytest.mark.parametrize("decisions", [MemoryDecisions(is_ready=False), BrokenDecisions()])
async def test_the_metric_spec_is_constant_whatever_is_wrong(decisions: Any) -> None:
    async with serving(decisions) as served:
        specs = {(await served.stub.GetMetricSpec(target)).SerializeToString() for target in (ref(), ref(idleAfter=""))}
        specs.add((await served.stub.GetMetricSpec(pb.ScaledObjectRef())).SerializeToString())
    assert len(specs) == 1
    (spec,) = pb.GetMetricSpecResponse.FromString(specs.pop()).metricSpecs
    assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
    assert decisions.asked == []


async def test_an_unknown_metric_name_is_answered() -> None:
    async with serving(MemoryDecisions({FIRST: BUSY})) as served:
        reply = await served.stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref(), metricName="s0-other"))
    assert [(value.metricName, value.metricValueFloat) for value in reply.metricValues] == [("s0-other", 1.0)]


async def received(stream: Any, *, within_s: float = 30.0) -> bool:
    return bool((await asyncio.wait_for(stream.read(), within_s)).result)


async def stays_silent(stream: Any, *, for_s: float = 0.15) -> bool:
    done, _ = await asyncio.wait({asyncio.ensure_future(stream.read())}, timeout=for_s)
    return not done


async def test_a_stream_reports_changes_to_active_only() -> None:
    decisions = MemoryDecisions({FIRST: IDLE})
    async with serving(decisions) as served:
        stream = served.stub.StreamIsActive(ref())
        assert await received(stream) is False
        decisions.put(*FIRST, BUSY)
        assert await received(stream) is True
        decisions.put(*FIRST, BUSY)
        decisions.put(*FIRST, IDLE)
        decisions.put(*FIRST, STALE)
        assert await stays_silent(stream)


@pytest.mark.parametrize(
    ("decisions", "metadata"),
    [(MemoryDecisions({FIRST: BUSY}), {"idleAfter": "soon"}), (BrokenDecisions(), {})],
    ids=["unusable metadata", "a cache that fails"],
)
async def test_a_stream_that_cannot_say_anything_stays_open(decisions: Any, metadata: dict[str, str]) -> None:
    async with serving(decisions) as served:
        stream = served.stub.StreamIsActive(ref(**metadata))
        assert await stays_silent(stream)
        assert served.observed == []


async def test_a_stream_whose_client_left_listens_no_more() -> None:
    decisions = MemoryDecisions({FIRST: BUSY})
    async with serving(decisions) as served:
        streams = [served.stub.StreamIsActive(ref()) for _ in range(20)]
        await asyncio.gather(*(received(stream) for stream in streams))
        assert decisions.listeners == 20
        for stream in streams:
            stream.cancel()
        async with asyncio.timeout(300):
            while decisions.listeners or len(served.observed) < 20:  # noqa: ASYNC110 -- the server signals nothing
                await asyncio.sleep(0.01)
        assert {record.code for record in served.observed} == {"CANCELLED"}


async def test_the_metric_spec_is_streamed_at_once_and_then_unchanged() -> None:
    async with serving(BrokenDecisions()) as served:
        stream = served.stub.StreamMetricSpec(ref(idleAfter="soon"))
        assert await stream.read() == await served.stub.GetMetricSpec(ref())
        assert await stays_silent(stream)


async def test_every_rpc_is_observed_with_its_status_and_duration() -> None:
    decisions = MemoryDecisions({FIRST: BUSY})
    async with serving(decisions, max_stream_life=timedelta(seconds=0.1)) as served:
        await poll(served.stub, ref())
        await refusal(served.stub.IsActive(ref(name="unheard-of")))
        assert await served.stub.StreamIsActive(ref()).read()
        stream = served.stub.StreamIsActive(ref())
        assert [message.result async for message in stream] == [True]
        seen = [(record.method, record.code) for record in served.observed]
        assert seen[:4] == [
            ("GetMetricSpec", "OK"),
            ("GetMetrics", "OK"),
            ("IsActive", "OK"),
            ("IsActive", "UNAVAILABLE"),
        ]
        assert ("StreamIsActive", "OK") in seen
        assert all(record.seconds >= 0.05 for record in served.observed if record.method == "StreamIsActive")
        assert all(0 <= record.seconds < 1 for record in served.observed if record.method != "StreamIsActive")


def test_every_rpc_of_the_contract_is_served() -> None:
    methods = [method.name for method in pb.DESCRIPTOR.services_by_name["ExternalScaler"].methods]
    assert sorted(methods) == ["GetMetricSpec", "GetMetrics", "IsActive", "StreamIsActive", "StreamMetricSpec"]
    assert [name for name in methods if not callable(getattr(ExternalScalerServicer, name, None))] == []
