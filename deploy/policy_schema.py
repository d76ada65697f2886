"""The fields of a policy in the definitions of IdlePolicy and ClusterIdlePolicy, of `Policy`: what JSON they are, and
what the API server refuses. Their meanings are the strings below the fields."""

import re
from collections.abc import Mapping

from deploy.helm_chart import Json
from docs.settings_page import strings_below
from scaler.idleness import policy_fields as kinds
from scaler.idleness.policy import FIELDS, GPU_RULE, LIMIT, PER_PERIOD, Policy
from scaler.idleness.policy_fields import Kind, PolicyField

_DURATION: Json = {"type": "string", "maxLength": 32, "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"}
_NUMBER: Json = {"type": "integer", "format": "int32", "minimum": 0, "maximum": 99}
_LIMIT: Json = {
    "x-kubernetes-int-or-string": True,
    "minimum": 0,
    "maximum": 99,
    "maxLength": 16,
    "pattern": r"^(100(\.0+)?|[1-9][0-9]?(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)%$",
}
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_DAYS: Json = {
    "type": "array",
    "maxItems": 7,
    "items": {"type": "string", "enum": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]},
    "description": "Days of the week; of hours those on which they begin. Empty: every day.",
}
_ZONE: Json = {"type": "string", "minLength": 1, "maxLength": 64, "description": "IANA name, such as Europe/Berlin."}


def _time(pattern: str, description: str) -> Json:
    return {"type": "string", "maxLength": 5, "pattern": f"^{pattern}$", "description": description}


def _several(item: Json, most: int = 8) -> Json:
    return {"type": "array", "maxItems": most, "items": item}


def _object(required: list[str], properties: Json, **more: object) -> Json:
    return {"type": "object", "required": required, **more, "properties": properties}


_HOURS = {
    "rule": "!has(self.from) || !has(self.to) || self.from != self.to || self.from == '00:00'",
    "message": "from and to are the same; for whole days leave both out",
}
_OF_KIND: Mapping[Kind, Json] = {
    kinds.DURATION: _DURATION,
    kinds.LASTING: _DURATION,
    kinds.PERCENTAGE: {"type": "string", "maxLength": 16, "pattern": r"^[0-9]+(\.[0-9]+)?\s*%$"},
    GPU_RULE: {"type": "string", "maxLength": 32, "pattern": r"^(all|any|quorum:[01](\.[0-9]+)?)$"},
    kinds.YES_OR_NO: {"type": "boolean"},
    kinds.HOOK: {"type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    kinds.NUMBER: _NUMBER,
    LIMIT: _LIMIT,
    kinds.NAMES: _several({"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[^,]+$"}, 16),
    kinds.HOURS: _several(
        _object(
            ["timeZone"],
            {
                "days": _DAYS,
                "from": _time(_CLOCK, "Begin, in quotes, such as '19:00'. Absent, 00:00."),
                "to": _time(
                    f"({_CLOCK}|24:00)",
                    "End, exclusive, in quotes. At or before from it is on the next day. Absent, 24:00.",
                ),
                "timeZone": _ZONE,
            },
            **{"x-kubernetes-validations": [_HOURS]},
        )
    ),
    kinds.DAY_TIMES: _several(
        _object(
            ["time", "timeZone"],
            {"days": _DAYS, "time": _time(_CLOCK, "In quotes, such as '08:00'."), "timeZone": _ZONE},
        )
    ),
    PER_PERIOD: _object(
        ["count", "period"],
        {
            "count": {**_LIMIT, "description": "How many jobs, or which share of them, such as 20%."},
            "period": {**_DURATION, "description": "Such as 24h."},
        },
    ),
}
_OF_KEY: Mapping[str, Json] = {
    "mode": {
        "enum": ["Observe", "Enforce"],
        "description": "Observe says what would be suspended, Enforce suspends it. Where no policy of a job says it, "
        "Observe.",
    },
    "keepsPerWeek": {"maximum": 20},
}
"""What differs from others of the kind."""
_GROUPS: Mapping[str, Json] = {
    "beforeSuspend": {
        "required": ["hook"],
        "description": "What has to end before the job is suspended, such as saving its state. Absent, nothing.",
    },
    "keep": {"description": "How far owners may have jobs kept or excluded by annotations. Absent, without limits."},
    "budget": {
        "description": "How many of the jobs that follow this policy may be suspended, together. Absent, all of them."
    },
}
"""What several fields stand below."""
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


def meanings() -> Mapping[str, str]:
    """The meanings by field, as Markdown."""
    return {name: text.replace("None: ", "Left out: ") for name, text in strings_below(Policy).items()}


def without_links(text: str) -> str:
    return _LINK.sub(r"\1", text)


def properties() -> Json:
    """The fields, as properties of the spec."""
    found: Json = {}
    for name, each in FIELDS.items():
        at = found
        for part in each.place[:-1]:
            at = at.setdefault(part, {"type": "object", **_GROUPS[part], "properties": {}})["properties"]
        for part in each.place[-1:]:
            at[part] = {"description": without_links(meanings()[name]).translate(_PLAIN)} | _schema(each)
    return found


_PLAIN = str.maketrans("", "", "`*")


def _schema(each: PolicyField) -> Json:
    known = each.kind.words
    schema = _OF_KIND[each.kind] if known is None else {"type": "string", "enum": [*map(str, known)]}
    return schema | _OF_KEY.get(each.key, {})
