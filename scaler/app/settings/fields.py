"""How values are written in settings: durations with their unit, shares in percent, sections in camelCase."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.alias_generators import to_camel

from scaler.idleness.durations import format_duration, parse_duration


def _duration(value: Any) -> Any:
    """`30m` → 30 minutes. A bare number is refused: its author means minutes as often as seconds."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value!r} has no unit; write it with one, such as '{value}s'")
    if not isinstance(value, str):
        raise ValueError(f"'{value}' is not a duration; write for example '30m'")
    try:
        return parse_duration(value)
    except OverflowError:
        raise ValueError(f"{value!r} is too long for a duration; write for example '30m'") from None


def _lasting(duration: timedelta) -> timedelta:
    if duration <= timedelta(0):
        raise ValueError(f"'{format_duration(duration)}' is no time at all; write a duration above 0, such as '30s'")
    return duration


def _ratio(value: Any) -> Any:
    """`80 %` → 0.8. A bare number is refused: 1 could mean 1 % or all."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip().removesuffix("%")) / 100
        except ValueError:
            raise ValueError(f"{value!r} is not a percentage; write for example '80 %'") from None
    if isinstance(value, str | bool):
        raise ValueError(f"{value!r} is not a percentage; write for example '80 %'")
    if isinstance(value, int | float):
        raise ValueError(f"{value!r} has no unit; write it in percent, such as '{value} %'")
    return value


Duration = Annotated[
    timedelta, BeforeValidator(_duration), AfterValidator(_lasting), PlainSerializer(format_duration, return_type=str)
]
DurationOrZero = Annotated[
    timedelta, BeforeValidator(_duration), Field(ge=timedelta(0)), PlainSerializer(format_duration, return_type=str)
]
Ratio = Annotated[
    float, BeforeValidator(_ratio), Field(gt=0, le=1), PlainSerializer(lambda r: f"{r * 100:g} %", return_type=str)
]


T = TypeVar("T")
NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""The pattern of a name that Kubernetes accepts."""


def twice(names: Iterable[str]) -> str:
    """The names that are there more than once, for a sentence; empty where none is."""
    return ", ".join(sorted(name for name, count in Counter(names).items() if count > 1))


class Section(BaseModel):
    """A part of the settings: camelCase in YAML, and no unknown keys.

    Fields are named as in the value that a section becomes; an alias has the name in YAML where that differs.
    """

    gone: ClassVar[Mapping[str, str]] = {}
    """What to write instead, by the name of a section or value that there was."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_defaults(cls, value: Any) -> Any:
        """YAML reads a section whose lines are all comments as null."""
        return {} if value is None else value

    @model_validator(mode="before")
    @classmethod
    def _has_nothing_that_is_gone(cls, given: Any) -> Any:
        for name in cls.gone.keys() & (given if isinstance(given, dict) else {}):
            raise ValueError(f"{name} was removed: leave it out, and {cls.gone[name]}")
        return given

    def into(self, kind: type[T], **others: Any) -> T:
        """This dataclass, with the fields that this section has under the same name, and with the others as given."""
        names = [each.name for each in fields(kind) if each.name in type(self).model_fields]  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in names} | others)
