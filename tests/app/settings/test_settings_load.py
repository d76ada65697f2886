from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import minutes

from scaler.app.settings.load import ENV_PREFIX, load
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.idleness.gpu import DEFAULT_SIGNALS, Unit
from scaler.idleness.policy import GpuRule, Overrides, Trust


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def loaded(text: str = "", *, file: Path, environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    """Settings from the file's text, variables without their prefix, and flags with `__` for dots."""
    file.write_text(text)
    variables = {ENV_PREFIX + name: value for name, value in (environ or {}).items()}
    return load(file, environ=variables, flags={name.replace("__", "."): value for name, value in flags.items()})


def problems(text: str = "", *, file: Path, environ: dict[str, str] | None = None, **flags: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as refusal:
        loaded(text, file=file, environ=environ, **flags)
    return str(refusal.value).replace(str(file), "settings.yaml").splitlines()


# ------------------------------------------------------------------------------------------------------------- sources

NEARER = "prometheus: {url: 'http://file:9090', timeout: 7s}"


def test_a_flag_wins_over_the_environment_and_that_over_the_file_and_that_over_the_default(file: Path) -> None:
    environ = {"PROMETHEUS__URL": "http://environment:9090", "KUBERNETES__MAX_VIEW_AGE": "4m"}
    everything = loaded(NEARER, file=file, environ=environ, prometheus__url="http://flag:9090")
    assert everything.prometheus.url == "http://flag:9090"
    assert loaded(NEARER, file=file, environ=environ).prometheus.url == "http://environment:9090"
    assert loaded(NEARER, file=file).prometheus.url == "http://file:9090"
    assert loaded(file=file).prometheus.url is None
    assert everything.prometheus.timeout == timedelta(seconds=7), "field by field, not section by section"
    assert everything.kubernetes.max_view_age == minutes(4)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "prometheus:\n  # url: http://p:9090\nlog:\n"])
def test_an_empty_file_and_a_section_whose_lines_are_all_comments_are_the_defaults(file: Path, text: str) -> None:
    assert loaded(text, file=file) == Settings()
    environ = {"PROMETHEUS__URL": "http://prometheus:9090"}
    assert loaded(text, file=file, environ=environ).prometheus.url == "http://prometheus:9090"


def test_lists_and_maps_are_written_as_json_in_the_environment(file: Path) -> None:
    environ = {
        "COMPONENTS": '["scaler"]',
        "KEDA__SCALER_ADDRESSES": "[a.example:9090, b.example:9090]",
        "PROMETHEUS__HEADERS": '{"X-Scope-OrgID": "team-a"}',
    }
    found = loaded(file=file, environ=environ)
    assert found.components == ("scaler",)
    assert found.keda.scaler_addresses == ("a.example:9090", "b.example:9090")
    assert found.prometheus.headers == {"X-Scope-OrgID": "team-a"}


def test_a_list_in_the_environment_that_cannot_be_read_is_a_problem_and_not_a_crash(file: Path) -> None:
    (problem,) = problems(file=file, environ={"COMPONENTS": "[scaler"})
    assert problem.startswith("environment variable IDLE_GPU_SCALER__COMPONENTS: components: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", "must hold a mapping at its top level"),
        ("a: [", "is not YAML"),
        ("a: b: c", "is not YAML"),
        ("\x00", "is not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_by_name(file: Path, text: str, expected: str) -> None:
    assert expected in problems(text, file=file)[0]
    assert problems(text, file=file)[0].startswith("settings file settings.yaml")


@pytest.mark.parametrize(
    "line",
    [
        "  password: [S3CR3T",
        "  password: {S3CR3T: S3CR3T",
        "  password: *S3CR3T",
        "  password: !S3CR3T x",
        "  password: !S3!CR3T S3CR3T",
        "  password: 'S3CR3T",
        "  password: S3CR3T: x",
        "  password: %S3CR3T\x07",
        "\tpassword: S3CR3T",
        "  password: 2026-02-31 # S3CR3T",
    ],
)
def test_what_is_no_yaml_is_refused_without_a_word_of_it(file: Path, line: str) -> None:
    (problem,) = problems(f"prometheus:\n  url: http://p\n{line}\nlog: {{}}\n", file=file)
    assert problem.startswith("settings file settings.yaml is not YAML")
    assert "S3CR3T" not in problem.replace("S3!CR3T", "S3CR3T")


def test_a_file_that_is_not_there_is_refused_with_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml: No such file or directory; check --config"):
        load(tmp_path / "nowhere.yaml", environ={}, flags={})


# ------------------------------------------------------------------------------------------------------------ problems


def test_all_problems_are_told_at_once_and_where_each_was_set(file: Path) -> None:
    text = "trust: {minCoverage: 80, maxAgeIntervals: 0}\nevaluation: {interval: 15}\n"
    found = problems(text, file=file, environ={"PROMETHEUS__TIMEOUT": "10"}, grpc__drain="soon")
    assert sorted(found) == sorted(
        [
            "settings.yaml: trust.minCoverage: 80 has no unit; write it in percent, such as '80 %'",
            "settings.yaml: trust.maxAgeIntervals: it has to be greater than or equal to 1",
            "settings.yaml: evaluation.interval: 15 has no unit; write it with one, such as '15s'",
            "environment variable IDLE_GPU_SCALER__PROMETHEUS__TIMEOUT: prometheus.timeout: "
            "'10' is not a duration; write '10s'",
            "--grpc-drain: grpc.drain: 'soon' is not a duration; write for example '30m', '90s' or '1h30m'",
        ]
    )


def test_a_problem_within_what_one_variable_set_is_that_variables(file: Path) -> None:
    (problem,) = problems(
        file=file, environ={"PROMETHEUS__URL": "http://p:9090", "WAKE": '[{"name": "inbox", "query": ""}]'}
    )
    assert problem.startswith("environment variable IDLE_GPU_SCALER__WAKE: wake.0.query: ")


def test_an_unknown_variable_is_named(file: Path) -> None:
    assert problems(file=file, environ={"PROMETHEUS__ULR": "http://p:9090"}) == [
        "environment variable IDLE_GPU_SCALER__PROMETHEUS__ULR: prometheus.ulr: unknown setting; did you mean 'url'?"
    ]


def test_a_variable_below_something_that_is_no_section_is_refused(file: Path) -> None:
    assert problems("prometheus: here", file=file, environ={"PROMETHEUS__URL": "http://p:9090"}) == [
        "environment variable IDLE_GPU_SCALER__PROMETHEUS__URL: prometheus.url: prometheus is not a section"
    ]


# ----------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("30", id="a bare number: minutes for its author, seconds for a machine"),
        pytest.param("1:30", id="sixty-based to YAML, and so 90"),
        pytest.param("0s", id="nothing"),
        pytest.param("99999999999d", id="beyond all calendars"),
        pytest.param("true", id="a word that YAML takes for a truth"),
        pytest.param("[30m]", id="a list"),
    ],
)
def test_what_is_no_duration_is_refused(file: Path, text: str) -> None:
    (problem,) = problems(f"defaults: {{idleAfter: {text}}}", file=file)
    assert problem.startswith("settings.yaml: defaults.idleAfter: ")


def test_only_the_warm_up_may_be_nothing(file: Path) -> None:
    assert loaded("defaults: {warmUp: 0s}", file=file).defaults.warm_up == timedelta(0)


@pytest.mark.parametrize(("text", "expected"), [("80 %", 0.8), ("0.5%", 0.005), ("'1 %'", 0.01), ("100%", 1.0)])
def test_shares_are_written_in_percent(file: Path, text: str, expected: float) -> None:
    defaults = loaded(f"defaults: {{activeAbove: {text}}}", file=file).defaults
    assert defaults.active_above_ratio == pytest.approx(expected)


@pytest.mark.parametrize("text", ["0.01", "1", "'0.01'", "0 %", "101 %", "-1 %", "nan %", "one %", "true", "'%'"])
def test_what_is_no_share_is_refused(file: Path, text: str) -> None:
    (problem,) = problems(f"defaults: {{activeAbove: {text}}}", file=file)
    assert problem.startswith("settings.yaml: defaults.activeAbove: ")
    assert "could not convert" not in problem


def test_a_relabel_rule_that_cannot_be_used_is_refused_with_its_index(file: Path) -> None:
    text = "relabel: [{action: labeldrop, regex: 'a'}, {action: replase}]"
    (problem,) = problems(text, file=file)
    assert problem.startswith("settings.yaml: relabel: ")
    assert "replase" in problem
    assert "1" in problem.split("relabel: ", 1)[1], "the second rule"


# ------------------------------------------------------------------------------------------------------------- secrets


def test_secrets_are_paths_and_never_values(file: Path) -> None:
    """So that the whole document may be printed and logged."""
    fields = {
        name
        for section in (Settings().prometheus, Settings().kubernetes, Settings().grpc)
        for name in type(section).model_fields
    }
    suspicious = {name for name in fields if any(word in name for word in ("token", "password", "secret", "key"))}
    assert {name for name in suspicious if not name.endswith("_file")} == set()


def test_a_problem_never_repeats_what_was_written_where_a_secret_could_be(file: Path) -> None:
    text = "prometheus: {basic: {username: u, password: hunter2}, bearerToken: hunter2}"
    assert "hunter2" not in "\n".join(problems(text, file=file))


# ---------------------------------------------------------------------------------------------- into the core's words


def test_the_defaults_are_the_cores_own() -> None:
    assert Settings().trust.into(Trust) == Trust()
    assert tuple(signal.signal() for signal in Settings().signals) == DEFAULT_SIGNALS
    assert Settings().defaults.overrides() == Overrides()


def test_settings_become_the_cores_values(file: Path) -> None:
    text = """
    defaults: {idleAfter: 20m, warmUp: 5m, activeAbove: 2 %, gpus: 'quorum:0.8'}
    trust: {collectionInterval: 10s, minCoverage: 90 %, maxAgeIntervals: 5, maxGapIntervals: 9, maxClockSkew: 1s}
    """
    found = loaded(text, file=file)
    assert found.defaults.overrides() == Overrides(
        idle_after=minutes(20),
        warm_up=minutes(5),
        active_above_ratio=0.02,
        gpus=GpuRule(share=0.8),
    )
    assert found.trust.into(Trust) == Trust(
        interval=timedelta(seconds=10),
        min_coverage_ratio=0.9,
        max_age_intervals=5,
        max_gap_intervals=9,
        max_clock_skew=timedelta(seconds=1),
    )


@pytest.mark.parametrize(
    ("written", "units", "by_unit"),
    [
        ("metrics: [a, b], unit: percent", {"a": Unit.PERCENT, "b": Unit.PERCENT}, [("a", "b")]),
        ("metrics: {a: percent, b: percent}", {"a": Unit.PERCENT, "b": Unit.PERCENT}, [("a", "b")]),
        ("metrics: {a: ratio, b: percent, c: ratio}", {"a": Unit.RATIO, "b": Unit.PERCENT}, [("a", "c"), ("b",)]),
    ],
)
def test_a_signal_has_one_unit_or_one_for_each_metric(
    file: Path, written: str, units: dict[str, Unit], by_unit: list[tuple[str, ...]]
) -> None:
    [found] = loaded(f"signals: [{{name: util, {written}}}]", file=file).signals
    signal = found.signal()
    assert {name: signal.unit_of(name) for name in units} == units
    assert [each.metrics for each in signal.by_unit] == by_unit
    assert [each.unit for each in signal.by_unit] == [signal.unit_of(each.metrics[0]) for each in signal.by_unit]


def test_settings_that_were_printed_can_be_loaded_again(file: Path) -> None:
    text = "signals: [{name: util, metrics: {a: ratio, b: percent}}]\nprometheus: {url: 'http://p:9090'}"
    made = loaded(f"defaults: {{idleAfter: 20m, activeAbove: 0.5 %}}\n{text}", file=file)
    assert loaded(made.model_dump_json(by_alias=True), file=file) == made
