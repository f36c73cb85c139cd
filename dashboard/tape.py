"""The recording that a server makes of what it shows, begun and ended from the page.

All browsers share one: it is of the server's store, whoever pressed the button. No Panel in
here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auxconn.frames import FrameStore
    from auxconn.recording.recorder import Recorder, Status

FOLDER = Path("recordings")
"""Where recordings go, below the folder that the server was started in."""


class Tape:
    """Begins and ends recordings of one store. Any thread may call it.

    Parameters
    ----------
    store
        What is recorded.
    sources
        Says who sends the rows.
    folder
        A folder for each recording is made in it.
    """

    def __init__(
        self,
        store: FrameStore,
        sources: Callable[[], Iterable[Any]] | None,
        folder: Path = FOLDER,
    ) -> None:
        self.folder = folder
        self.problem = ""
        """Why a recording could not be begun, in words."""
        self._store, self._sources = store, sources
        self._recorder: Recorder | None = None
        self._ending: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        """True while it records."""
        return self._recorder is not None and self._ending is None

    @property
    def ending(self) -> bool:
        """True while the last rows are written."""
        return self._ending is not None and self._ending.is_alive()

    @property
    def status(self) -> Status | None:
        """How the recording stands, or how the last one ended; None before the first."""
        return None if self._recorder is None else self._recorder.status

    def toggle(self) -> None:
        """Begin a recording, or end the one that runs, without making anybody wait."""
        with self._lock:
            if self.ending:
                return
            if self.running:
                recorder = self._recorder
                assert recorder is not None
                self._ending = threading.Thread(
                    target=recorder.close, name="auxconn-recorder-end", daemon=True
                )
                self._ending.start()
                return
            self._begin()

    def close(self) -> None:
        """End the recording, if there is one, and wait until it is written."""
        with self._lock:
            if self._recorder is not None:
                self._recorder.close()

    def _begin(self) -> None:
        from auxconn.recording import Recorder

        now = datetime.now(UTC)
        name = f"{now:%Y-%m-%dT%H-%M-%S}.{now.microsecond // 1000:03d}Z"
        try:
            self._recorder = Recorder(
                self._store, self.folder / name, sources=self._sources
            )
            self._ending, self.problem = None, ""
        except (ImportError, OSError, ValueError) as problem:
            self.problem = str(problem)
