from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.decision.trigger_metadata import (
    KEDA_KEYS,
    _likeness,
    _parse,
    by_source,
    foreign_keys,
    parse_metadata,
    resolve_policy,
    sources_of,
)
from scaler.errors import MetadataError
from scaler.idleness.policy import EnforcementMode, GpuRule, Overrides, Reclaim

EVENING = datetime(2026, 12, 1, 18, tzinfo=UTC)


def problem(**metadata: str) -> str:
    with pytest.raises(MetadataError) as caught:
        parse_metadata(metadata)
    return str(caught.value)


def test_every_key_sets_its_field() -> None:
    metadata = {
        "idleAfter": "45m",
        "warmUp": "0s",
        "activeAbove": "5%",
        "gpus": "quorum:0.8",
        "mode": "observe",
        "reclaim": "OnPressure",
        "idleAfterUnderPressure": "5m",
        "keepUntil": "2026-12-01T18:00:00Z",
    }
    assert parse_metadata(metadata) == Overrides(
        idle_after=timedelta(minutes=45),
        warm_up=timedelta(0),
        active_above_ratio=0.05,
        gpus=GpuRule(share=0.8),
        mode=EnforcementMode.OBSERVE,
        reclaim=Reclaim.ON_PRESSURE,
        idle_after_under_pressure=timedelta(minutes=5),
        keep_until=EVENING,
    )


def test_what_is_left_out_is_left_to_the_next_source() -> None:
    assert parse_metadata({}) == Overrides()
    assert parse_metadata({"gpus": " any "}) == Overrides(gpus=GpuRule(share=0.0))


def test_kedas_keys_and_those_of_other_tools_have_no_effect() -> None:
    others = {
        "pricing": "spot",
        "model": "llama-3",
        "claim": "pvc",
        "node": "a",
        "queryFromEnv": "Q",
        "keepalive": "1",
        "": "x",
    }
    metadata = dict.fromkeys(KEDA_KEYS, "") | others | {"idleAfter": "5m"}
    assert parse_metadata(metadata) == Overrides(idle_after=timedelta(minutes=5))
    assert foreign_keys(metadata) == ("", "claim", "keepalive", "model", "node", "pricing", "queryFromEnv")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("idle_after", "idleAfter"),
        ("idle-after", "idleAfter"),
        ("idleafter", "idleAfter"),
        ("IdleAfter", "idleAfter"),
        ("idelAfter", "idleAfter"),
        ("idleAfterSeconds", "idleAfter"),
        ("idleFor", "idleAfter"),
        ("idleAfterFromEnv", "idleAfter"),
        ("warmup", "warmUp"),
        ("warm", "warmUp"),
        ("activeAbovePercent", "activeAbove"),
        ("activeAbvoe", "activeAbove"),
        ("gpu", "gpus"),
        ("GPUs", "gpus"),
        ("moed", "mode"),
        ("mod", "mode"),
        ("keepUntill", "keepUntil"),
        ("reclaims", "reclaim"),
        ("wakeUp", "wake"),
        ("reclaimPolicy", "reclaim"),
        ("idle_after_under_pressure", "idleAfterUnderPressure"),
        ("idleAfterPressure", "idleAfterUnderPressure"),
        ("idleAfterUnderPresure", "idleAfterUnderPressure"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_right_one(key: str, meant: str) -> None:
    assert problem(**{key: "5m"}) == f"trigger metadata {key!r}: is not a key of this scaler; did you mean {meant!r}?"
    assert foreign_keys({key: "5m"}) == ()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("idleAfter", "5 minutes", "'5 minutes' is not a duration; write '5m'"),
        ("idleAfter", "300", "'300' is not a duration; write '300s'"),
        ("idleAfter", "", "the value is empty; write for example '30m' or leave the key out"),
        ("idleAfter", " ", "the value is empty; write for example '30m' or leave the key out"),
        ("idleAfter", "0s", "'0s' leaves no time to be idle in; write a duration above 0, for example '30m'"),
        ("idleAfter", "31d", "'31d' is too long; write at most '30d'"),
        ("idleAfter", "9" * 50 + "d", f"'{'9' * 50}d' is too long; write at most '30d'"),
        ("warmUp", "-5m", "'-5m' is not a duration; write for example '30m', '90s' or '1h30m'"),
        ("activeAbove", "1", "'1' is ambiguous without a % sign; write for example '1%'"),
        ("activeAbove", "0 %", "'0 %' is out of range; write a percentage above 0% and up to 100%"),
        ("activeAbove", "101%", "'101%' is out of range; write a percentage above 0% and up to 100%"),
        ("activeAbove", "nan%", "'nan%' is not a percentage; write for example '1%'"),
        ("gpus", "most", "'most' is not a GPU rule; write 'all', 'any' or 'quorum:0.8' (a share above 0, up to 1)"),
        ("mode", "dry-run", "'dry-run' is unknown; write 'observe' or 'enforce'"),
        (
            "reclaim",
            "onpressure",
            "'onpressure' is unknown; write 'Always' or 'OnPressure' or 'PriorityBoost'",
        ),
        ("idleAfterUnderPressure", "5", "'5' is not a duration; write '5s'"),
        ("allowedDuring", "at night", "'at night' are no hours; write for example 'Mon-Fri 19:00-07:00 Europe/Berlin'"),
        ("wakeAt", "8", "'8' is no time of day; write for example 'Mon-Fri 08:00 Europe/Berlin'"),
        ("requireDelivery", "yes", "'yes' is unknown; write 'true' or 'false'"),
        ("wake", "whenFree", "'whenFree' is unknown; write 'OnRequest' or 'WhenFree'"),
        (
            "beforeSuspend",
            "https://x",
            "'https://x' is no name of a hook; write one of the settings' hooks, such as 'checkpoint'",
        ),
        ("beforeSuspendOnFailure", "hold", "'hold' is unknown; write 'Hold' or 'Continue'"),
        ("keepsPerWeek", "few", "'few' is not a number up to 99; write for example '3'"),
        ("keepUsers", "anna,", "'anna,' has an empty name; write for example '*@example.com, alice'"),
        ("suspendedPerPeriod", "5", "'5' is not a number in a period; write for example '5 per 24h'"),
        (
            "idleAfterUnderPressure",
            "0s",
            "'0s' leaves no time to be idle in; write a duration above 0, for example '30m'",
        ),
        (
            "keepUntil",
            "tomorrow",
            "'tomorrow' is not an RFC 3339 time with a zone; write for example '2026-12-01T18:00:00Z'",
        ),
        (
            "keepUntil",
            "2026-12-01T18:00:00",
            "'2026-12-01T18:00:00' is not an RFC 3339 time with a zone; write for example '2026-12-01T18:00:00Z'",
        ),
        (
            "keepUntil",
            "2026-12-24",
            "'2026-12-24' is not an RFC 3339 time with a zone; write for example '2026-12-01T18:00:00Z'",
        ),
        (
            "keepUntil",
            "9999-12-31T23:59:59-01:00",
            "'9999-12-31T23:59:59-01:00' is not an RFC 3339 time with a zone; write for example '2026-12-01T18:00:00Z'",
        ),
        (
            "mode",
            "x" * 100,
            f"'{'x' * 59}…' is too long to be a value; write for example 'observe'",
        ),
    ],
)
def test_an_unusable_value_is_explained(key: str, value: str, text: str) -> None:
    assert problem(**{key: value}) == f"trigger metadata {key!r}: {text}"


def test_all_problems_are_reported_at_once() -> None:
    text = problem(idleAfter="5 minutes", gpus="some", idle_after="3m", warmUp="1m")
    assert [part.split(":")[0] for part in text.split(" | ")] == [
        "trigger metadata 'gpus'",
        "trigger metadata 'idleAfter'",
        "trigger metadata 'idle_after'",
    ]


def test_to_wait_longer_under_pressure_is_reported_with_all_else() -> None:
    assert problem(idleAfter="30m", idleAfterUnderPressure="1h", gpus="some").split(" | ")[1] == (
        "trigger metadata 'idleAfterUnderPressure': 1h is longer than idleAfter (30m); write at most '30m'"
    )
    assert parse_metadata({"idleAfterUnderPressure": "1h"}).idle_after_under_pressure == timedelta(hours=1), (
        "with which idleAfter it goes is known only where all sources are"
    )


@pytest.mark.parametrize(("text", "ratio"), [("1%", 0.01), ("1 %", 0.01), ("0.5%", 0.005), ("100 %", 1.0)])
def test_a_percentage_is_a_ratio(text: str, ratio: float) -> None:
    assert parse_metadata({"activeAbove": text}).active_above_ratio == ratio


@pytest.mark.parametrize("text", ["2026-12-01T18:00:00Z", "2026-12-01t18:00:00.000z", "2026-12-01 20:00:00+02:00"])
def test_one_instant_is_one_policy_however_it_is_written(text: str) -> None:
    parsed = parse_metadata({"keepUntil": text})
    assert parsed == Overrides(keep_until=EVENING)
    assert hash(parsed) == hash(Overrides(keep_until=EVENING))


KEYS = ["idleAfter", "warmUp", "activeAbove", "gpus", "mode", "reclaim", "idleAfterUnderPressure", "keepUntil"]


@given(st.dictionaries(st.sampled_from(KEYS), st.text()))
def test_whatever_is_written_is_either_used_or_refused(metadata: dict[str, str]) -> None:
    try:
        parsed = parse_metadata(metadata)
    except MetadataError:
        return
    assert len(parsed.given()) == len(metadata), "no key is ignored silently"


@given(st.dictionaries(st.text(), st.text()))
def test_every_key_is_foreign_or_used_or_refused(metadata: dict[str, str]) -> None:
    foreign = foreign_keys(metadata)
    try:
        parsed = parse_metadata(metadata)
    except MetadataError:
        return
    assert len(parsed.given()) + len(foreign) == len(metadata.keys() - KEDA_KEYS)


# ----------------------------------------------------------------------------------------------- what IdlePolicies set


def test_a_value_that_an_idle_policy_set_is_from_it_and_any_other_from_the_trigger() -> None:
    written = '{"idleAfter": "IdlePolicy/a", "gpus": "ClusterIdlePolicy/b", "other": "x", "mode": "IdlePolicy/a"}'
    given = parse_metadata({"idleAfter": "20m", "gpus": "any", "warmUp": "1m"})
    layers = by_source(given, sources_of(written))
    found = resolve_policy(layers, (), defaults=Overrides(), longest=timedelta(days=1), shortest=timedelta(seconds=30))
    assert found.sources == {
        "idle_after": "IdlePolicy/a",
        "gpus": "ClusterIdlePolicy/b",
        "warm_up": "trigger metadata",
    }
    assert (found.idle_after, found.warm_up, str(found.gpus)) == (timedelta(minutes=20), timedelta(minutes=1), "any")


@pytest.mark.parametrize("written", ["", "{", "[]", '{"idleAfter": 1}', '"IdlePolicy/a"'])
def test_sources_that_cannot_be_read_name_none(written: str) -> None:
    assert sources_of(written) == {}
    [(source, _)] = by_source(parse_metadata({"idleAfter": "20m"}), sources_of(written))
    assert source == "trigger metadata"


def test_a_source_is_shown_and_must_not_fill_a_page() -> None:
    [source] = sources_of(f'{{"mode": "{"x" * 5_000}"}}').values()
    assert len(source) == 128
    assert sources_of(f'{{"mode": "{"x" * 50_000}"}}') == {}


# ------------------------------------------------------------------------------------------ as much as a tenant writes

NUMBERS = st.integers(0, 10**6)
HOSTILE_KEY = st.one_of(
    st.sampled_from(KEYS),
    NUMBERS.map(lambda n: f"idleAfter{n}"),
    NUMBERS.map(lambda n: f"other{n}"),
    st.integers(0, 10_000).map(lambda n: "idleAfter" + "x" * n),
)
HOSTILE_VALUE = st.one_of(st.just("5m"), st.integers(0, 10_000).map(lambda n: "9" * n), st.text(max_size=600))


def hostile(count: int) -> dict[str, str]:
    return {f"idleAfter{number}": "v" for number in range(count)}


@given(
    metadata=st.one_of(
        st.dictionaries(HOSTILE_KEY, HOSTILE_VALUE, max_size=120), st.sampled_from([100, 101, 40_000]).map(hostile)
    )
)
def test_work_and_words_are_bounded_however_much_is_written(metadata: dict[str, str]) -> None:
    before = _likeness.cache_info()
    foreign, text = foreign_keys(metadata), ""
    try:
        parse_metadata(metadata)
    except MetadataError as error:
        text = str(error)
    after = _likeness.cache_info()
    assert after.misses + after.hits - before.misses - before.hits <= 3 * 100, "keys that were compared with ours"
    assert len(text) <= 6_000
    assert sum(map(len, foreign)) <= 100 * 60


def test_what_was_refused_is_not_read_again() -> None:
    texts, before = [problem(idleAfter="again and again") for _ in range(3)], _parse.cache_info()
    assert len({*texts}) == 1
    problem(idleAfter="again and again")
    after = _parse.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)


def test_what_is_remembered_of_metadata_is_bounded() -> None:
    longest = dict.fromkeys(KEYS, "9" * 10000) | {f"idleAfter{n}": "9" * 10_000 for n in range(50)}
    before = _parse.cache_info().misses
    assert problem(**longest) == ("trigger metadata: keys of this scaler have 29670 characters; write shorter values")
    problem(**{"idleAfter" + "x" * 10_000: "5m", "idleAfter": "5 minutes and more"})
    assert _parse.cache_info().misses == before + 1, "of the second, what is ours"


def test_the_longest_sensible_metadata_is_read() -> None:
    hours = "; ".join(["Mon-Fri 19:00-07:00 Europe/Berlin"] * 14)
    users = ", ".join(["*@" + "x" * 60] * 7)
    found = parse_metadata({"allowedDuring": hours, "keepUsers": users, "idleAfter": "0" * 55 + "30m"})
    assert len(found.given()) == 3
