"""Which certificate is served now? The newest one that works, while its files are replaced.

Laws of this file:

* Content decides, not times or names: every look reads the files and compares what is in them. That sees Kubernetes'
  swap of a Secret volume, a file that is written in place and one that is moved to its place alike.
* What works is not given up for what does not. A pair that is half written, that does not fit, that is over or still
  to come, leaves the one that is served. It is looked at again every time, for it may be completed, or its time come.
* Each problem is told once, however often it is seen.

At the start there is nothing to keep: files that cannot be used end the process. A certificate that is merely over does
not: whoever renews it does that sooner than anybody could start the process again.

Tempting: inotify. It does not see what happens on the other side of a symbolic link, and a network file system tells
nothing; three small files every ten seconds cost next to nothing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scaler.tls.material import Files, Material, UnusableError, read_material


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A certificate is served from now on."""

    use: str
    material: Material
    problem: str
    """Why clients refuse it all the same; empty where they do not. Only ever at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the files hold cannot be served, so that the one before is."""

    use: str
    material: Material
    """The one before."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """The files hold what is served, after a while in which they did not."""

    use: str
    material: Material


Observe = Callable[[Taken | Kept | Mended], None]


def _now() -> datetime:
    return datetime.now(UTC)


class Rotation:
    """The certificate of one server. `material` may be read from any thread, at any time."""

    def __init__(
        self,
        files: Files,
        *,
        use: str,
        every: timedelta = timedelta(seconds=10),
        observe: Observe = lambda _: None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """Raises: UnusableError where the files cannot be used."""
        self._files = files
        self._use = use
        self._every_s = every.total_seconds()
        self._observe = observe
        self._clock = clock
        self._problem = ""
        self.material = read_material(files)
        self._observe(Taken(use=use, material=self.material, problem=self.material.why_out_of_date(clock())))

    @property
    def is_mutual(self) -> bool:
        """Whether clients need a certificate. Never changes."""
        return self._files.client_authorities is not None

    async def run(self) -> None:
        """Look at the files for ever."""
        while True:
            await asyncio.sleep(self._every_s)
            self.take(await asyncio.to_thread(self.look))

    def look(self) -> Material | str:
        """What the files hold now, or why it cannot be served."""
        try:
            found = read_material(self._files)
        except UnusableError as error:
            return str(error)
        if found != self.material and (problem := found.why_out_of_date(self._clock())):
            return f"{self._files.certificate}: {problem}"
        return found

    def take(self, found: Material | str) -> None:
        """Serve what was found, where it can be served and is something else."""
        if isinstance(found, str):
            if found != self._problem:
                self._observe(Kept(use=self._use, material=self.material, problem=found))
            self._problem = found
            return
        was_broken, self._problem = bool(self._problem), ""
        if found != self.material:
            self.material = found
            self._observe(Taken(use=self._use, material=found, problem=""))
        elif was_broken:
            self._observe(Mended(use=self._use, material=self.material))
