"""How good is a copy of the API's objects at the moment? One of four answers; all but the best one say why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reflecting:
    """The copy is complete and being kept up to date."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The API server does not know the resource, as when its CRD is not installed: there are no such objects."""

    message: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The credentials or their RBAC rules do not allow to read the resource."""

    message: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The copy, if there is one, is not being kept up to date at the moment."""

    message: str


State = Reflecting | Absent | Denied | Disconnected
