"""The page kept up to date: built in the background, given out at once as it last was."""

import gzip
import hashlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.errors import OrchError

LOOK_SECONDS = 2.0
SHARE_LOOKING, SHARE_BUILDING = 0.05, 0.25
"""At most this share of the time is spent looking for changes, and building pages."""


class Page(NamedTuple):
    """The report as it is given out."""

    html: bytes
    markdown: bytes
    zipped: bytes = b""
    """`html` compressed: plotly.js is megabytes, and many readers come through a tunnel."""


class Seen(NamedTuple):
    """One look at what is on disk."""

    digest: str
    """Differs when the page would."""
    line: str
    """How far the experiment is, in a line."""
    live: bool
    """Whether anything is still to come."""


@dataclass(frozen=True)
class Source:
    """Where pages come from. Both may raise OrchError; neither changes anything on disk."""

    look: Callable[[], Seen]
    build: Callable[[], Page]


class Board:
    """The last page and its version. `close` ends the thread that keeps it."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic):
        self.builds = 0
        self.fault = ""
        """Why the newest page could not be made; the one before it is still given out."""
        self.line = ""
        self.live = True
        self._source, self._clock = source, clock
        self._page: Page | None = None
        self._version = ""
        self._there, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="board", daemon=True)
        self._thread.start()

    @property
    def version(self) -> str:
        """Changes with the page; empty until there is one."""
        return self._version

    def page(self, seconds: float | None = 0.0) -> Page | None:
        """The last page; waits so long for the first."""
        self._there.wait(seconds)
        return self._page

    def close(self) -> None:
        """Ends the thread; a page that is being built is left to it."""
        self._over.set()
        self._thread.join(1.0)

    def _keep(self) -> None:
        shown, next_build = "", 0.0
        while True:
            began = self._clock()
            seen = self._looked()
            looked = self._clock() - began
            if seen is not None and seen.digest != shown and self._clock() >= next_build:
                began = self._clock()
                self._build()
                shown = seen.digest
                cost = self._clock() - began
                next_build = self._clock() + cost * (1 / SHARE_BUILDING - 1)
            if self._over.wait(max(LOOK_SECONDS, looked / SHARE_LOOKING)):
                return

    def _looked(self) -> Seen | None:
        try:
            seen = self._source.look()
        except OrchError as error:
            self.fault = str(error)
            return None
        self.line, self.live = seen.line, seen.live
        return seen

    def _build(self) -> None:
        try:
            page = self._source.build()
        except OrchError as error:
            self.fault = str(error)
        except Exception:
            traceback.print_exc()
            self.fault = "the page could not be built; the terminal of `orch dashboard` says why"
        else:
            self.fault = ""
            version = hashlib.sha256(page.html).hexdigest()[:16]
            if version != self._version:
                head = b'<html lang="en"'
                html = page.html.replace(head, head + f' data-version="{version}"'.encode(), 1)
                self._page = page._replace(html=html, zipped=gzip.compress(html, 5, mtime=0))
                self._version = version
        self.builds += 1
        self._there.set()
