"""The chart takes no values that the program, or Kubernetes, refuses: its schema knows how each of them is written."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import jsonschema_rs
import pytest
import yaml
from app.settings.test_settings_refused import SETTINGS
from helm_python import HelmError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from deploy import helm_chart
from deploy.generate import _OF_THE_CHART, pattern, values
from deploy.helm_chart import FOLDER, Json, merged
from scaler.app.settings.fields import Duration, DurationOrZero, Ratio
from scaler.app.settings.model import Settings
from scaler.idleness.durations import format_duration

SCHEMA: Json = json.loads((FOLDER / "values.schema.json").read_text(encoding="utf-8"))
VALUES = values()
VALIDATOR = jsonschema_rs.Draft7Validator(SCHEMA)
PROMETHEUS = {"prometheus": {"url": "http://p:9090"}}
FITS_NOWHERE = (
    *("five minutes", "30 minutes", "lots", "", "5", "-5m", "0s", "120 %", "0 %"),
    *(-1, 0, 3.7, True, {}, [], ["a"], [""], {"a": 1}),
)
"""Each is a mistake for most settings: a duration in words, a bare number, another type."""
ONLY_THE_PROGRAM_KNOWS = (
    # What two settings are to each other.
    *("document: idleAfter is", "kubernetes.lease:", "defaults: idleAfterUnderPressure", "document: two signals"),
    *("reclaim.fairSharing.preemptionStrategies: Kueue", "is no target"),
)
"""Its words for what no schema can say. It ends at its start then, and the replicas before it stay."""


def takes(given: Json) -> bool:
    """Whether the chart takes these values, beside those that it has."""
    if not VALIDATOR.is_valid(merged(VALUES, given)):
        return False
    try:
        helm_chart.texts(given)
    except HelmError:
        return False
    return True


def refuses(settings: Json) -> bool:
    """Whether the program does, beside what the chart has by default, for what a schema could say."""
    try:
        Settings.model_validate(merged(PROMETHEUS, settings), by_alias=True, by_name=False)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, each['loc'])) or 'document'}: {each['msg']}" for each in error.errors()]
        said = [each.replace(": Value error, ", ": ") for each in said]
        return not all(any(words in each for words in ONLY_THE_PROGRAM_KNOWS) for each in said)
    return False


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """The settings that users of the chart write, by their paths."""
    for field in model.model_fields.values():
        name = f"{path}{field.alias}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{name}.")
        elif name not in _OF_THE_CHART:
            yield name


def at(path: str, value: Any) -> Json:
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


# ------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("path", [*leaves(Settings)])
def test_no_setting_that_the_program_refuses_is_taken(path: str) -> None:
    wrong = [each for each in FITS_NOWHERE if refuses(at(path, each))]
    assert [each for each in wrong if takes({"settings": at(path, each)})] == []


@pytest.mark.parametrize("text", [text for text, _ in SETTINGS])
def test_what_cannot_be_used_is_taken_only_where_no_schema_could_say_so(text: str) -> None:
    settings = yaml.load(text, yaml.CSafeLoader)
    assert not takes({"settings": settings}) or not refuses(settings)


def test_what_the_program_has_by_default_is_taken() -> None:
    dumped = Settings().model_dump(mode="json", by_alias=True, exclude_none=True)
    given = [(path, found) for path in leaves(Settings) if (found := _found(dumped, path)) is not None]
    given = [(path, found) for path, found in given if not path.startswith("page.")]  # which are nothing alone
    assert len(given) > 50
    assert [path for path, found in given if not takes({"settings": at(path, found)})] == []


def _found(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = (document or {}).get(part)
    return document


WRITTEN: dict[str, Any] = {
    "Duration": Duration,
    "DurationOrZero": DurationOrZero,
    "Ratio": Ratio,
}


@pytest.mark.parametrize("name", WRITTEN)
@given(data=st.data())
def test_whatever_text_the_schema_takes_the_program_takes(name: str, data: st.DataObject) -> None:
    # With more digits numbers are as good as 0, or longer than any calendar.
    short = pattern(name).replace("[0-9]*", "[0-9]{0,2}").replace("[0-9]+", "[0-9]{1,2}")
    TypeAdapter(WRITTEN[name]).validate_python(data.draw(st.from_regex(short, fullmatch=True)))


@given(st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=400)))
def test_whatever_duration_the_program_writes_the_schema_takes(duration: timedelta) -> None:
    given = {"settings": {"evaluation": {"interval": format_duration(duration)}}}
    assert VALIDATOR.is_valid(merged(VALUES, given))


# --------------------------------------------------------------------------------------------------------- other values

BAD: dict[str, Json] = {
    "no metrics source": {"settings": {"prometheus": {"url": None}}},
    "an empty one": {"settings": {"prometheus": {"url": ""}}},
    "no endpoints": {"settings": {"prometheus": {"url": None}, "dcgm": {"endpoints": []}}},
    "two sources": {"settings": {"dcgm": {"endpoints": ["http://dcgm-exporter:9400/metrics"]}}},
    "lots of memory": {"resources": {"limits": {"memory": "lots"}}},
    "memory in words": {"resources": {"requests": {"memory": "256 MB"}}},
    "less than no processor": {"resources": {"requests": {"cpu": -1}}},
    "a certificate's time in days": {"tls": {"certManager": {"duration": "90d"}}},
    "a sidecar without an image": {"extraContainers": [{"name": "token"}]},
    "a sidecar that takes the program's place": {"extraContainers": [{"name": "scaler", "image": "token:1"}]},
    "metrics without a unit": {"settings": {"signals": [{"name": "a", "metrics": ["m"]}]}},
    "metrics with two units": {"settings": {"signals": [{"name": "a", "metrics": {"m": "ratio"}, "unit": "ratio"}]}},
    "a unit that is no share": {"settings": {"signals": [{"name": "a", "metrics": ["m"], "unit": "watt"}]}},
    "a mode that nobody has": {"mode": "dry-run"},
    "the mode by another name": {"settings": {"mode": "observe"}},
}
GOOD: dict[str, Json] = {
    "exporters alone": {"settings": {"prometheus": {"url": None}, "dcgm": {"endpoints": ["http://e:9400/metrics"]}}},
    "the source by the environment": {
        "settings": {"prometheus": {"url": None}},
        "extraEnv": [{"name": "IDLE_GPU_SCALER__PROMETHEUS__URL", "value": "http://p:9090"}],
    },
    "quantities": {
        "resources": {"limits": {"memory": "1.5Gi", "cpu": 2, "ephemeral-storage": "1e9"}, "requests": {"cpu": "100m"}}
    },
    "a unit for each metric": {"settings": {"signals": [{"name": "a", "metrics": {"m": "ratio", "n": "percent"}}]}},
    "a sidecar": {"extraContainers": [{"name": "token", "image": "token@sha256:0", "volumeMounts": []}]},
    "sections whose lines are all comments": {"settings": {"trust": None, "reclaim": {"search": None}}},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_a_mistake_is_refused(given: Json) -> None:
    assert not takes(given)


@pytest.mark.parametrize("given", GOOD.values(), ids=GOOD)
def test_what_makes_sense_is_taken(given: Json) -> None:
    assert takes(given)
