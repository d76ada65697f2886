"""Which certificate is served now? The newest one that works, while its files are replaced.

Laws of this file:

* Content decides, not times or names: every look reads the files and compares what is in them. That sees Kubernetes'
  swap of a Secret volume, a file that is written in place and one that is moved to its place alike.
* What works is not given up for what does not. A pair that is half written, that does not fit, that is over or still
  to come, leaves the one that is served. It is looked at again every time, for it may be completed, or its time come.
* Each problem is logged once, however often it is seen.

At the start there is nothing to keep: files that cannot be used end the process. An expired certificate alone does
not: it is read again once it is renewed, without a restart.

Not inotify: it does not see what happens on the other side of a symbolic link or on a network file system.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.errors import ConfigurationError
from scaler.tls.material import CertificateFiles, ServerCertificate, read_material


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateChange:
    """The certificate or its files have changed.

    | is_new | problem |                                                                     |
    |--------|---------|---------------------------------------------------------------------|
    | yes    | –       | it is served from now on                                            |
    | yes    | why     | the same, but clients refuse it; only ever at the start             |
    | no     | why     | what the files hold cannot be served, so that the one before is     |
    | no     | –       | the files hold what is served, after a while in which they did not  |
    """

    use: str
    served: ServerCertificate
    is_new: bool
    problem: str = ""


class Rotation:
    """The certificate of one server. `material` may be read from any thread, at any time."""

    def __init__(
        self,
        files: CertificateFiles,
        *,
        use: str,
        every: timedelta = timedelta(seconds=10),
        observe: Callable[[CertificateChange], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Raises: ConfigurationError where the files cannot be used."""
        self._files = files
        self._use = use
        self._every_s = every.total_seconds()
        self._observe = observe
        self._clock = clock
        self._problem = ""
        self.material = read_material(files)
        self._tell(is_new=True, problem=self.material.why_out_of_date(clock.now()))

    @property
    def is_mutual(self) -> bool:
        """Whether clients need a certificate. Never changes."""
        return self._files.client_authorities is not None

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._every_s)
            self.take(await asyncio.to_thread(self.look))

    def look(self) -> ServerCertificate | str:
        """What the files hold now, or why it cannot be served."""
        try:
            found = read_material(self._files)
        except ConfigurationError as error:
            return str(error)
        if found != self.material and (problem := found.why_out_of_date(self._clock.now())):
            return f"{self._files.certificate}: {problem}"
        return found

    def take(self, found: ServerCertificate | str) -> None:
        """Serve what was found, where it can be served and is something else."""
        if isinstance(found, str):
            if found != self._problem:
                self._tell(is_new=False, problem=found)
            self._problem = found
            return
        was_broken, self._problem = bool(self._problem), ""
        if found != self.material:
            self.material = found
            self._tell(is_new=True)
        elif was_broken:
            self._tell(is_new=False)

    def _tell(self, *, is_new: bool, problem: str = "") -> None:
        self._observe(CertificateChange(use=self._use, served=self.material, is_new=is_new, problem=problem))
