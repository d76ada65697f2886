import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from scaler.samples.exposition import ExpositionSeries, parse_exposition

METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")

PAGE = r"""# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-11",modelName="NVIDIA A100",Hostname="node-a",namespace="ml",pod="t-0"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-12",modelName="NVIDIA A100",Hostname="node-a"} 0
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-11"} 40960
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-11"} 9223372036854775794
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-11",GPU_I_PROFILE="3g.40gb",GPU_I_ID="2",pod=""} 0.914512
DCGM_FI_DEV_GPU_UTIL_OTHER{gpu="0"} 1
"""


def parse(page: str | bytes, *metrics: str) -> list[ExpositionSeries]:
    data = page.encode() if isinstance(page, str) else page
    return parse_exposition(data, metrics=metrics or METRICS, instance="10.0.0.7:9400", scraped_at_s=100.0)


def test_a_page_of_the_exporter_is_read() -> None:
    busy, idle, slice_ = parse(PAGE)
    assert busy.labels() == {
        "__name__": "DCGM_FI_DEV_GPU_UTIL",
        "instance": "10.0.0.7:9400",
        "gpu": "0",
        "UUID": "GPU-11",
        "modelName": "NVIDIA A100",
        "Hostname": "node-a",
        "namespace": "ml",
        "pod": "t-0",
    }
    assert busy.samples() == [(100.0, 97.0)]
    assert (idle.labels()["gpu"], idle.samples()) == ("1", [(100.0, 0.0)])
    assert slice_.labels()["GPU_I_ID"] == "2"
    assert slice_.samples() == [(100.0, 0.914512)]


LINES: dict[str, tuple[str, dict[str, str], float, float]] = {
    "no labels": ("m 1", {}, 1.0, 100.0),
    "white space everywhere": ('  m { a = "b" ,\tc="d", } \t1\t2000 ', {"a": "b", "c": "d"}, 1.0, 2.0),
    "escapes": (r'm{a="\\n\"\n}{, \t"} 1', {"a": '\\n"\n}{, \\t'}, 1.0, 100.0),
    "its own instance": ('m{instance="node-a"} 1', {"instance": "node-a"}, 1.0, 100.0),
}


@pytest.mark.parametrize(("line", "labels", "value", "at_s"), LINES.values(), ids=LINES.keys())
def test_lines_are_read(line: str, labels: dict[str, str], value: float, at_s: float) -> None:
    (series,) = parse(f"{line}\n", "m")
    assert series.labels() == {"instance": "10.0.0.7:9400", "__name__": "m", **labels}
    assert series.samples() == [(at_s, value)]


BROKEN = {
    "no value": "m{}",
    "no value at all": "m",
    "a word": "m{} idle",
    "an unclosed label": 'm{a="b} 1',
    "an unclosed brace": 'm{a="b" 1',
    "labels without a comma": 'm{a="b"c="d"} 1',
    "two commas": 'm{a="b",,} 1',
    "a label without quotes": "m{a=b} 1",
    "more than a timestamp": "m 1 2 3",
    "a timestamp with a fraction": "m 1 2.5",
    "a label whose name is none": 'm{odd.label="x",gpu="0"} 1',
    "a label whose name is quoted": 'm{"odd.label"="x",gpu="0"} 1',
    "digits that only Python reads": "m 0_0",
    "digits of another script": "m \u0660",
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN.keys())
def test_a_wanted_line_that_cannot_be_read_makes_the_page_unusable(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 "):
        parse(f"m 1\n{line}\n", "m")
    assert parse(f"m 1\n{line}\n", "n") == []


NO_LINE_END = st.characters(exclude_categories=["Cs"], exclude_characters="\n")


@given(st.text(st.sampled_from("abc019_:.é-\"'}"), min_size=1, max_size=4), st.text(NO_LINE_END, max_size=30))
def test_a_line_of_another_metric_costs_nothing_however_odd_it_is(suffix: str, rest: str) -> None:
    """Its name begins like that of a wanted one; labels and values that nobody reads may be anything."""
    others = [f"m{suffix}{{odd.label={rest}", f"m{suffix} {rest}", f'm{suffix}{{"{rest}"}} 1', rest and f"# {rest}"]
    page = "".join(f"{line}\n" for line in ("m 1", *others, "m 2"))
    assert [each.value for each in parse(page, "m")] == [1.0, 2.0]


_FRAGMENTS = st.sampled_from(
    ["m", "{", "}", " ", "\t", ",", "gpu", "=", '"', "\\", "0", "1", ".", "e", "_", "nan", "é", "-"]
)
_READABLE = re.compile(
    r'm[ \t]*(\{[ \t]*(\w+[ \t]*=[ \t]*"(\\.|[^"\\])*"[ \t]*(,[ \t]*|(?=\})))*\})?'
    r"[ \t]*[+-]?(nan|inf|[0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?)([ \t]+-?[0-9]+)?"
)


@given(st.lists(_FRAGMENTS, max_size=14))
def test_no_sample_comes_of_a_line_that_is_not_readable(fragments: list[str]) -> None:
    """Above all none that is quiet. The grammar is that of the text format, written a second time."""
    line = "".join(["m", *fragments])
    if re.split(r"[ \t{]", line.strip())[0] != "m":
        assert parse(f"{line}\n", "m") == []
    elif _READABLE.fullmatch(line.strip()):
        assert len(parse(f"{line}\n", "m")) == 1
    else:
        with pytest.raises(ValueError, match="line 1 "):
            parse(f"{line}\n", "m")


@pytest.mark.parametrize("unit", ["a", r"\\", r"\"", r"\n", "é", "}"])
def test_a_label_as_long_as_a_page_may_be_is_read_in_linear_time(unit: str) -> None:
    """Tenants write labels, too, and all of them wait for this: 16 MiB took 5 s."""
    value = unit * (2**24 // len(unit.encode()))
    begin = time.process_time()
    (series,) = parse(f'm{{gpu="0",x="{value}"}} 1\n', "m")
    assert series.labels()["x"][:1] == {"\\n": "\n"}.get(unit, unit[-1])
    assert time.process_time() - begin < 2


@given(st.text(st.sampled_from('n\\"a'), max_size=12))
def test_a_label_is_read_as_it_was_written(value: str) -> None:
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    (series,) = parse(f'm{{x="{text}"}} 1\n', "m")
    assert series.labels()["x"] == value


@pytest.mark.parametrize(("digits", "at_s"), [("9" * 400, float("inf")), ("-" + "9" * 5000, float("-inf"))])
def test_a_timestamp_of_any_length_is_one(digits: str, at_s: float) -> None:
    """Whether it can be right is decided by who knows what time it is."""
    assert [each.at_s for each in parse(f"m 1 {digits}\n", "m")] == [at_s]


def test_text_that_is_not_utf_8_makes_the_page_unusable() -> None:
    with pytest.raises(ValueError, match="line 1 holds no number, or text that is not UTF-8"):
        parse(b'm{a="\xff"} 1\n', "m")


@pytest.mark.parametrize("cut", [1, 5])
def test_a_page_whose_end_is_missing_is_unusable(cut: int) -> None:
    # "… 0.95" cut to "… 0" would be an idle GPU.
    with pytest.raises(ValueError, match="breaks off"):
        parse("m 0.95001\n"[:-cut], "m")


def test_keys_tell_series_and_instances_apart() -> None:
    page, metrics = b'm{a="1"} 1\nm{a="2"} 1\n', ("m",)
    keys = {
        series.key
        for instance in ("x:1", "y:1")
        for series in parse_exposition(page, metrics=metrics, instance=instance, scraped_at_s=0)
    }
    assert len(keys) == 4
    again = parse_exposition(b'm{a="1"} 7\n', metrics=metrics, instance="x:1", scraped_at_s=9)
    assert again[0].key in keys


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


LABEL_NAMES = st.sampled_from(["gpu", "UUID", "_x", "GPU_I_ID", "a1"])
LABEL_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=8)
NUMBERS = st.one_of(st.floats(allow_nan=False).map(repr), st.integers().map(str), st.sampled_from(["+Inf", "NaN"]))
SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(["m", "m_total", "other"]),
        st.dictionaries(LABEL_NAMES, LABEL_TEXT, max_size=3),
        NUMBERS,
        st.none() | st.integers(min_value=0, max_value=4 * 10**12),
    ),
    max_size=4,
)


@given(SAMPLES)
def test_reads_what_the_reference_parser_reads(samples: list[tuple[str, dict[str, str], str, int | None]]) -> None:
    page = "".join(
        f"{name}{{{','.join(f'{label}={chr(34)}{_escaped(text)}{chr(34)}' for label, text in labels.items())}}} {value}"
        f"{'' if at_ms is None else f' {at_ms}'}\n"
        for name, labels, value, at_ms in samples
    )
    ours = [(each.labels(), each.samples()[0]) for each in parse(page, "m", "m_total")]
    theirs = [
        (
            {"instance": "10.0.0.7:9400", "__name__": each.name, **each.labels},
            (100.0 if each.timestamp is None else float(each.timestamp), float(each.value)),
        )
        for family in text_string_to_metric_families(page)
        for each in family.samples
        if each.name in ("m", "m_total")
    ]
    assert [labels for labels, _ in ours] == [labels for labels, _ in theirs]
    assert repr([sample for _, sample in ours]) == repr([sample for _, sample in theirs])
