"""Which setting counts? flag > environment > file > default. Every problem is reported at once."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from scaler.app.settings.model import Settings
from scaler.documents import document, read_text
from scaler.errors import ConfigurationError

ENV_PREFIX = "IDLE_GPU_SCALER__"
"""The prefix of a setting's path, levels separated by two underscores: IDLE_GPU_SCALER__PROMETHEUS__URL."""


def load(path: Path | None, *, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """The settings that result. `flags` maps dotted paths (`prometheus.url`) to values; None means not given.

    Raises: ConfigurationError that names every bad setting, where it was set, and what to do.
    """
    found = _read(path) if path else {}
    origin: dict[str, str] = {}
    for dotted, text in _from_environment(environ).items():
        _set(found, dotted, text, origin, f"environment variable {_env_name(dotted)}")
    for dotted, value in flags.items():
        if value is not None:
            _set(found, dotted, value, origin, _flag(dotted))
    try:
        return Settings.model_validate(found, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, path, origin)) from None


def _flag(dotted: str) -> str:
    return "--" + dotted.removeprefix("kubernetes.").replace(".", "-").replace("endpoints", "endpoint")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"settings file {error}; check --config") from None
    found = document(text, f"settings file {path}")
    if not isinstance(found, dict | None):
        raise ConfigurationError(f"settings file {path} must hold a mapping at its top level")
    return found or {}


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    given = {}
    for name, text in environ.items():
        if name.startswith(ENV_PREFIX):
            parts = name.removeprefix(ENV_PREFIX).lower().split("__")
            given[".".join(to_camel(part) for part in parts)] = _list_or_map(text) if text[:1] in "[{" else text
    return given


def _list_or_map(text: str) -> Any:
    """What the JSON or YAML means; where it means nothing the text itself, which is then refused with the rest."""
    try:
        return document(text, "")
    except ConfigurationError:
        return text


def _env_name(dotted: str) -> str:
    levels = ("".join(f"_{c}" if c.isupper() else c for c in part).upper() for part in dotted.split("."))
    return ENV_PREFIX + "__".join(levels)


def _set(settings: dict[str, Any], dotted: str, value: Any, origin: dict[str, str], source: str) -> None:
    *sections, last = dotted.split(".")
    level: Any = settings
    for section in sections:
        inner = level.get(section)
        if not isinstance(inner, dict | None):
            raise ConfigurationError(f"{source}: {dotted}: {section} is not a section")
        level[section] = level = {} if inner is None else inner
    level[last] = value
    origin[dotted] = source


def _explain(error: ValidationError, path: Path | None, origin: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        dotted = _dotted(problem["loc"])
        where = _origin(problem["loc"], origin) or (str(path) if path else "settings")
        lines.append(f"{where}: {dotted or 'document'}: {_words(problem['msg'], problem['type'], problem['loc'])}")
    return "\n".join(lines)


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _origin(location: tuple[int | str, ...], origin: Mapping[str, str]) -> str:
    """Which variable or flag set it, or the list or map that it lies in; empty where none did."""
    around = (_dotted(location[:length]) for length in range(len(location), 0, -1))
    return next((origin[dotted] for dotted in around if dotted in origin), "")


def _words(message: str, kind: str, location: tuple[int | str, ...]) -> str:
    if kind != "extra_forbidden":
        return _SENTENCES.get(kind, message.removeprefix("Value error, ").replace("Input should be", "it has to be"))
    known = _known_keys(location[:-1])
    close = get_close_matches(str(location[-1]), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
    return f"unknown setting; {hint}"


_NO_MAPPING, _NO_LIST = "it is no mapping; write names with values", "it is no list; write '- ' before each item"
_SENTENCES = {
    "model_type": _NO_MAPPING,
    "dict_type": _NO_MAPPING,
    "tuple_type": _NO_LIST,
    "list_type": _NO_LIST,
    "string_type": "it is no text; write it in quotes",
    "path_type": "it is no text; write the path in quotes",
    "int_type": "it is no whole number",
    "int_parsing": "it is no whole number",
    "float_type": "it is no number",
    "float_parsing": "it is no number",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
}
"""What is said in place of pydantic's words, which are about its types, by the kind of the problem."""


def _known_keys(section: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in section:
        if isinstance(part, str):
            by_alias = {field.alias: field.annotation for field in model.model_fields.values()}
            model = _model_in(by_alias.get(part)) or model
    return sorted(str(field.alias) for field in model.model_fields.values())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds: as it is, or optional, or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
