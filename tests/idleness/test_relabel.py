import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ConfigurationError
from scaler.idleness.relabel import DEFAULT_RULES, parse_rules, relabel

Rules = Sequence[Mapping[str, Any]]
Labels = dict[str, str]

POD: Labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "namespace": "team-a", "pod": "ray-head-x7k2", "gpu": "0"}


def applied(*rules: Mapping[str, Any], to: Mapping[str, str] = POD) -> Labels | None:
    return relabel(to, parse_rules(rules))


CASES: dict[str, tuple[Rules, Labels, Labels | None]] = {
    "replace writes the replacement to the target": (
        [{"source_labels": ["pod"], "regex": "(.+)-head-.*", "target_label": "cluster", "replacement": "$1"}],
        {"pod": "ray-head-x7k2"},
        {"pod": "ray-head-x7k2", "cluster": "ray"},
    ),
    "replace without a match changes nothing": (
        [{"source_labels": ["pod"], "regex": "head", "target_label": "pod", "replacement": ""}],
        {"pod": "ray-head"},
        {"pod": "ray-head"},
    ),
    "replace by default copies the joined sources": (
        [{"source_labels": ["a", "b", "c"], "target_label": "d"}],
        {"a": "1", "c": "3"},
        {"a": "1", "c": "3", "d": "1;;3"},
    ),
    "replace with an empty result deletes the target": (
        [{"source_labels": ["gone"], "target_label": "pod"}],
        {"pod": "x", "a": "1"},
        {"a": "1"},
    ),
    "replace without sources sets a constant": (
        [{"target_label": "cluster", "replacement": "prod"}],
        {"a": "1"},
        {"a": "1", "cluster": "prod"},
    ),
    "replace expands the target": (
        [{"source_labels": ["a"], "regex": "(.+)=(.+)", "target_label": "x_${1}", "replacement": "${2}"}],
        {"a": "k=v"},
        {"a": "k=v", "x_k": "v"},
    ),
    "replace to a target that is no label name changes nothing": (
        [{"source_labels": ["a"], "regex": "(.+)", "target_label": "$1", "replacement": "v"}],
        {"a": "not-a-name"},
        {"a": "not-a-name"},
    ),
    "the longest name is read, so $1x is a group that is not there": (
        [{"source_labels": ["a"], "regex": "(.+)", "target_label": "b", "replacement": "$1x|${1}x|$$1|$"}],
        {"a": "v"},
        {"a": "v", "b": "|vx|$1|$"},
    ),
    "named groups, missing groups and malformed references": (
        [{"source_labels": ["a"], "regex": "(?P<n>v)(w)?", "target_label": "b", "replacement": "$n.$2.$7.${n.$01.${}"}],
        {"a": "v"},
        {"a": "v", "b": "v...${n..${}"},
    ),
    "of groups that share a name the first that took part counts": (
        [
            {
                "source_labels": ["a"],
                "regex": r"[(](?:\Q(\E(?P<n>v)|(?<n>w))",
                "target_label": "b",
                "replacement": "$n.$2",
            }
        ],
        {"a": "(w"},
        {"a": "(w", "b": "w.w"},
    ),
    "quoted parentheses are no groups": (
        [{"source_labels": ["a"], "regex": r"\(\Q(\E[()](.)", "target_label": "b", "replacement": "$1"}],
        {"a": "(()x"},
        {"a": "(()x", "b": "x"},
    ),
    "keep drops what does not match": ([{"source_labels": ["a"], "regex": "x", "action": "keep"}], {"a": "y"}, None),
    "keep keeps what matches": ([{"source_labels": ["a"], "regex": "y", "action": "keep"}], {"a": "y"}, {"a": "y"}),
    "drop drops what matches": ([{"source_labels": ["a"], "regex": "y", "action": "drop"}], {"a": "y"}, None),
    "drop without fields drops everything": ([{"action": "drop"}], {"a": "y"}, None),
    "a missing label is empty": ([{"source_labels": ["no"], "regex": "", "action": "keep"}], {"a": "y"}, {"a": "y"}),
    "keepequal keeps equals": (
        [{"source_labels": ["a"], "target_label": "b", "action": "keepequal"}],
        {"a": "1", "b": "1"},
        {"a": "1", "b": "1"},
    ),
    "keepequal joins its sources": (
        [{"source_labels": ["a", "a"], "target_label": "b", "action": "keepequal"}],
        {"a": "1", "b": "1"},
        None,
    ),
    "dropequal drops equals": (
        [{"source_labels": ["a"], "target_label": "b", "action": "dropequal"}],
        {"a": "1", "b": "1"},
        None,
    ),
    "dropequal drops when both are missing": (
        [{"source_labels": ["x"], "target_label": "y", "action": "dropequal"}],
        {"a": "1"},
        None,
    ),
    "labelmap copies labels": (
        [{"regex": "exported_(.+)", "action": "labelmap"}],
        {"exported_pod": "p", "pod": "exporter"},
        {"exported_pod": "p", "pod": "p"},
    ),
    "labelmap takes a replacement": (
        [{"regex": "(.)_(.)", "replacement": "${2}_$1", "action": "labelmap"}],
        {"a_b": "1"},
        {"a_b": "1", "b_a": "1"},
    ),
    "labelmap swaps from the labels as they were": (
        [{"regex": "(.)_(.)", "replacement": "${2}_$1", "action": "labelmap"}],
        {"a_b": "1", "b_a": "2"},
        {"a_b": "2", "b_a": "1"},
    ),
    "of two labels mapped to one name the last in the alphabet wins": (
        [{"regex": "[xy]", "replacement": "z", "action": "labelmap"}],
        {"y": "2", "x": "1"},
        {"x": "1", "y": "2", "z": "2"},
    ),
    "labelmap to no name leaves the label alone": (
        [{"regex": "a_(.*)", "action": "labelmap"}],
        {"a_": "1"},
        {"a_": "1"},
    ),
    "labeldrop removes labels": ([{"regex": "a|b", "action": "labeldrop"}], {"a": "1", "ab": "2"}, {"ab": "2"}),
    "labelkeep removes the others": ([{"regex": "a.*", "action": "labelkeep"}], {"a": "1", "b": "2"}, {"a": "1"}),
    "lowercase": (
        [{"source_labels": ["a", "b"], "target_label": "c", "action": "lowercase"}],
        {"a": "ÄB", "b": "C"},
        {"a": "ÄB", "b": "C", "c": "äb;c"},
    ),
    "uppercase changes single characters only": (
        [{"source_labels": ["a"], "target_label": "a", "action": "uppercase"}],
        {"a": "straße"},
        {"a": "STRAßE"},
    ),
    "lowercase of nothing deletes": (
        [{"source_labels": ["x"], "target_label": "a", "action": "lowercase"}],
        {"a": "1"},
        {},
    ),
    "actions are written in any case": ([{"regex": "a", "action": "LabelDrop"}], {"a": "1"}, {}),
    "rules see what the ones before them did": (
        [
            {"source_labels": ["a"], "target_label": "b"},
            {"regex": "a", "action": "labeldrop"},
            {"source_labels": ["b"], "regex": "1", "action": "keep"},
        ],
        {"a": "1"},
        {"b": "1"},
    ),
    "the first rule that drops ends it": (
        [{"action": "drop"}, {"target_label": "a", "replacement": "1"}],
        {"a": "0"},
        None,
    ),
    "empty labels are missing labels": ([], {"a": "", "b": "1"}, {"b": "1"}),
}


@pytest.mark.parametrize(("rules", "before", "after"), CASES.values(), ids=CASES.keys())
def test_relabels(rules: Rules, before: Labels, after: Labels | None) -> None:
    assert relabel(before, parse_rules(rules)) == after


def test_hashmod_takes_the_last_eight_bytes_of_md5() -> None:
    # md5("team-a;0") as hexadecimal; its last 16 digits are the last 8 bytes
    expected = int(hashlib.md5(b"team-a;0").hexdigest()[16:], 16) % 8
    labels = applied({"source_labels": ["namespace", "gpu"], "modulus": 8, "target_label": "s", "action": "hashmod"})
    assert labels == {**POD, "s": str(expected)}


REFUSED: dict[str, tuple[Any, str]] = {
    "an unknown field": ({"source_label": ["a"]}, "did you mean 'source_labels'?"),
    "a field in the spelling of prometheus-operator": ({"targetLabel": "a"}, "did you mean 'target_label'?"),
    "an unknown action": ({"action": "remove"}, "known are replace, keep"),
    "a misspelt action": ({"action": "label_drop"}, "did you mean 'labeldrop'?"),
    "an action that is empty": ({"action": ""}, "unknown action ''"),
    "a bad regex": ({"regex": "(", "action": "drop"}, "missing )"),
    "a regex that matches single bytes": ({"regex": r"[ab]\C", "action": "drop"}, "single bytes"),
    "a group whose name is not ASCII": ({"regex": "(?P<é>a)", "action": "drop"}, "ASCII"),
    "a regex that is a number": ({"regex": 8080, "action": "drop"}, "put it in quotes"),
    "a regex that is nothing": ({"regex": None, "action": "drop"}, "put it in quotes"),
    "replace without a target": ({"source_labels": ["a"]}, "needs a target_label"),
    "hashmod without a modulus": ({"action": "hashmod", "target_label": "a"}, "needs a modulus"),
    "hashmod without a target": ({"action": "hashmod", "modulus": 2}, "needs a target_label"),
    "a negative modulus": ({"action": "hashmod", "target_label": "a", "modulus": -1}, "whole number above 0"),
    "a modulus that is text": ({"action": "hashmod", "target_label": "a", "modulus": "2"}, "whole number above 0"),
    "lowercase without a target": ({"action": "lowercase", "source_labels": ["a"]}, "needs a target_label"),
    "keepequal without a target": ({"action": "keepequal", "source_labels": ["a"]}, "needs a target_label"),
    "a target that is no name": ({"target_label": "a-b"}, "is not a label name"),
    "a target that starts with a digit": ({"target_label": "1a"}, "is not a label name"),
    "hashmod to an expanded target": ({"action": "hashmod", "modulus": 2, "target_label": "$1"}, "not a label name"),
    "uppercase to an expanded target": ({"action": "uppercase", "target_label": "${1}"}, "is not a label name"),
    "uppercase with a replacement": ({"action": "uppercase", "target_label": "a", "replacement": "x"}, "remove it"),
    "labelmap to no name": ({"action": "labelmap", "regex": "a", "replacement": "-"}, "does not make a label name"),
    "labeldrop with a source": ({"action": "labeldrop", "source_labels": ["a"]}, "source_labels means nothing"),
    "labelkeep with a target": ({"action": "labelkeep", "target_label": "a"}, "target_label means nothing"),
    "labelkeep with a separator": ({"action": "labelkeep", "separator": ","}, "separator means nothing"),
    "keepequal with a regex": ({"action": "keepequal", "target_label": "a", "regex": "x"}, "regex means nothing"),
    "dropequal with a separator": ({"action": "dropequal", "target_label": "a", "separator": "-"}, "means nothing"),
    "sources that are one text": ({"source_labels": "pod", "target_label": "a"}, "must be a list"),
    "a source that is no text": ({"source_labels": [1], "target_label": "a"}, "not a label name"),
    "a rule that is no mapping": ("drop", "a rule is a mapping"),
}


@pytest.mark.parametrize(("rule", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_rule_is_refused_with_its_index_and_the_reason(rule: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_rules([{"action": "keep"}, rule])
    assert str(refused.value).startswith("relabel rule [1]: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize("rules", ["drop", {"action": "drop"}, None, 3])
def test_rules_that_are_no_list_are_refused(rules: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a list"):
        parse_rules(rules)


def test_the_default_rules_put_the_workload_in_place_of_the_exporter() -> None:
    scraped = {**POD, "pod": "dcgm-exporter-9", "exported_pod": "train-0", "exported_namespace": "team-b"}
    labels = relabel(scraped, DEFAULT_RULES)
    assert labels is not None
    assert (labels["namespace"], labels["pod"]) == ("team-b", "train-0")
    assert labels["exported_pod"] == "train-0"


LABEL_SETS = st.dictionaries(st.sampled_from(["pod", "namespace", "gpu", "a", "b", "a_b"]), st.text(min_size=1))


@given(LABEL_SETS)
def test_the_default_rules_are_harmless_without_exported_labels(labels: Labels) -> None:
    assert relabel(labels, DEFAULT_RULES) == relabel({**labels, "exported_pod": ""}, DEFAULT_RULES) == labels


ANY_RULE = st.sampled_from([rule for rules, _, _ in CASES.values() for rule in rules])


@given(LABEL_SETS, st.lists(ANY_RULE, max_size=5))
def test_relabelling_never_changes_its_input_and_never_leaves_empty_labels(labels: Labels, rules: Rules) -> None:
    before = dict(labels)
    after = relabel(labels, parse_rules(rules))
    assert labels == before
    assert after is None or all(after.values())


@given(st.text(alphabet=r"ab1(|)[]{}*+?.,^$\-:isPQECpL<=! é", max_size=14))
def test_every_expression_is_used_or_refused_and_nothing_else(text: str) -> None:
    rule = {"source_labels": ["a"], "regex": text, "target_label": "b", "replacement": "$1${2}$n"}
    refusal = "relabel rule [0]: regex "
    try:
        relabel({"a": "ab1é"}, parse_rules([rule]))
    except ConfigurationError as error:
        refusal = str(error)
    assert refusal.startswith("relabel rule [0]: regex ")
