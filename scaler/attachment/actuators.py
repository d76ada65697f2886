"""How does a job change from KEDA to Direct and back, without being suspended or resumed by that? Pure.

| to Direct, one step a plan                          | to KEDA, one step a plan                             |
|-----------------------------------------------------|------------------------------------------------------|
| the ScalableWorkload becomes Direct                 | the ScaledObject is created; KEDA scales from then on |
| annotations of the ScaledObject are copied to it    | (with the annotations of the ScalableWorkload)       |
| the ScaledObject is set not to restore replicas     | the ScalableWorkload becomes KEDA's                  |
| the ScaledObject is deleted; once it is gone the    | the annotations that were copied are removed from it |
| leader scales                                       |                                                      |

Laws:

* While a ScaledObject is there, KEDA scales and the leader does not (`scaler/app/scaling_objects.py`).
* What its owner has asked for by annotations is not lost: of two ends the later one stays.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime

from scaler.decision.trigger_metadata import SOURCES_ANNOTATION
from scaler.errors import MetadataError
from scaler.targets.workloads import EXCLUDE, KEEP_UNTIL, MARK_PREFIX, NOTIFY_ANNOTATION, keep_overrides

_PREFIX = "idlegpu.io/"
_UNREADABLE = datetime.max.replace(tzinfo=UTC)
_NEVER = datetime.min.replace(tzinfo=UTC)


def copied(of: Mapping[str, str], to: Mapping[str, str], *, own: Collection[str]) -> dict[str, str]:
    """Annotations that are to be set so that nothing is lost that one object asks for and the other does not.

    `own` are those that are written on both anyway.
    """
    return {key: value for key, value in _moving(of, own) if value != to.get(key) and _is_later(key, value, to)}


def removed(of: Mapping[str, str], to: Mapping[str, str], *, own: Collection[str]) -> dict[str, None]:
    """Annotations that are on the other object as well, and not needed here any more."""
    return {key: None for key, value in _moving(of, own) if to.get(key) == value}


def _moving(annotations: Mapping[str, str], own: Collection[str]) -> Iterator[tuple[str, str]]:
    """Marks stay where the history is."""
    stays = {*own, SOURCES_ANNOTATION, NOTIFY_ANNOTATION}
    for key, value in annotations.items():
        if key.startswith(_PREFIX) and not key.startswith(MARK_PREFIX) and key not in stays:
            yield key, value


def _is_later(key: str, value: str, to: Mapping[str, str]) -> bool:
    return key not in to or (key in (KEEP_UNTIL, EXCLUDE) and _end(key, value) > _end(key, to[key]))


def _end(key: str, value: str) -> datetime:
    """One that cannot be read suspends nothing, and so lasts for ever."""
    try:
        asked = keep_overrides({key: value}, where="")
    except MetadataError:
        return _UNREADABLE
    return asked.keep_until or asked.exclude_until or _NEVER
