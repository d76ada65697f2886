"""Which objects does a list answer with, page by page? Every page shows the state of the first page's revision.

A continue token names a revision and the last key handed out. The first page keeps its snapshot (references, no copies)
for those that follow; a snapshot that is forgotten is answered with 410, as after etcd's compaction.
"""

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass

from scaler_sandbox.kubeapi.errors import bad_request, expired, from_the_future
from scaler_sandbox.kubeapi.schema.resources import View
from scaler_sandbox.kubeapi.storage.selectors import Predicate, everything
from scaler_sandbox.kubeapi.storage.store import Key, Stored
from scaler_sandbox.kubeapi.verbs import ApiVerbs

_SNAPSHOTS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """What a list asks for."""

    namespace: str | None
    matches: Predicate = everything
    limit: int = 0
    token: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer to a list."""

    items: list[Stored]
    revision: int
    token: str = ""
    remaining: int | None = None


class Lister:
    """Lists, with the snapshots of the lists that are under way."""

    def __init__(self, cluster: ApiVerbs) -> None:
        self._cluster = cluster
        self._snapshots: OrderedDict[tuple[tuple[str, str], str | None, int], list[Stored]] = OrderedDict()

    def forget(self) -> None:
        """Lose all snapshots: lists that are under way have to start anew."""
        self._snapshots.clear()

    def page(self, view: View, query: ListQuery) -> Page:
        """The asked-for page. Raises: ApiError 400, 410, 504."""
        if query.token:
            return self._continued(view, query)
        revision = self._checked_revision(query)
        items = self._cluster.store.collection(view.resource).ordered(query.namespace)
        # Revision 0 means "whatever the cache has": real servers answer it whole, whatever the limit.
        limit = 0 if query.revision == "0" else query.limit
        return self._cut(view, query, items, revision, limit)

    def _checked_revision(self, query: ListQuery) -> int:
        present = self._cluster.store.revision
        if not query.revision:
            return present
        asked = parse_revision(query.revision)
        if asked > present:
            raise from_the_future(asked, present)
        return present

    def _continued(self, view: View, query: ListQuery) -> Page:
        if query.revision not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        revision, start = _read_token(query.token)
        snapshot = self._snapshots.get((view.resource.key, query.namespace, revision))
        if snapshot is None:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        rest = snapshot[bisect_right(snapshot, start, key=_key) :]
        return self._cut(view, query, rest, revision, query.limit)

    def _cut(self, view: View, query: ListQuery, items: list[Stored], revision: int, limit: int) -> Page:
        if query.matches is everything and not limit:
            return Page(items=items, revision=revision)
        page: list[Stored] = []
        for index, stored in enumerate(items):
            if limit and len(page) == limit:
                self._keep(view, query, items, revision)
                remaining = len(items) - index if query.matches is everything else None
                return Page(items=page, revision=revision, token=_token(revision, page[-1]), remaining=remaining)
            if query.matches is everything or query.matches(stored.as_served(view)):
                page.append(stored)
        return Page(items=page, revision=revision)

    def _keep(self, view: View, query: ListQuery, items: list[Stored], revision: int) -> None:
        place = (view.resource.key, query.namespace, revision)
        # Only the first page brings all items; later pages find the snapshot there.
        self._snapshots.setdefault(place, items)
        self._snapshots.move_to_end(place)
        while len(self._snapshots) > _SNAPSHOTS_KEPT:
            self._snapshots.popitem(last=False)


def _key(stored: Stored) -> Key:
    return stored.key


def parse_revision(text: str) -> int:
    """A resourceVersion as a number. Raises: ApiError 400."""
    if not text.isdecimal():
        raise bad_request(f"invalid resource version {text!r}; it is a number that the server handed out")
    return int(text)


def _token(revision: int, last: Stored) -> str:
    return "/".join([str(revision), *last.key])


def _read_token(text: str) -> tuple[int, Key]:
    revision, _, key = text.partition("/")
    if not revision.isdecimal() or "/" not in key:
        raise bad_request("continue key is not valid")
    namespace, _, name = key.partition("/")
    return int(revision), (namespace, name)
