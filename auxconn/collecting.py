"""`auxconn collect`: one collector for a cluster, without a page, and what is wanted of it.

It takes in rows; it may record them, serve them to Prometheus and let operators steer. What
changes among the engines is told in a line each, so that its log says who came and went.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from auxconn.ctl import plain
from auxconn.listening import Listening
from auxconn.signalled import Signalled
from auxconn.source import Source

LOOK_SECONDS = 0.2


def collect(
    listening: Listening,
    tell: Callable[[str], None],
    *,
    record: Path | None = None,
    metrics: int | None = None,
) -> None:
    """Collect until a signal ends it.

    Parameters
    ----------
    tell
        Takes what is said, line by line.
    record
        Folder to record into; None for no recording.
    metrics
        Port of `/metrics` on loopback; None for none.

    Raises
    ------
    AuxConnError, ValueError, OSError
        When it cannot listen, record or serve so.
    """
    with contextlib.ExitStack() as stack:
        ended = stack.enter_context(Signalled())
        collector = listening.collector()
        if record is not None:
            from auxconn.recording.recorder import Recorder

            # Closed after the collector, so that its last words are kept too.
            stack.callback(Recorder(collector, record).close)
        stack.callback(collector.close)
        operators = listening.operating(collector)
        if operators is not None:
            stack.callback(operators.close)
        tell(f"Engines connect to {collector.address}")
        if record is not None:
            tell(f"Recording into {record}")
        if metrics is not None:
            from auxconn.exporter.server import Exporter

            exporter = stack.enter_context(Exporter(collector.store, collector))
            at = exporter.serve(metrics)
            tell(f"Prometheus scrapes http://localhost:{at}/metrics")
        if operators is not None:
            tell(f"Orders are taken at {operators.address}")
        tell("Ctrl-C ends it.")
        known: dict[tuple[str, int, str, str], str] = {}
        while not ended.wait(LOOK_SECONDS):
            known = _tell_changes(collector.sources(), known, tell)


def _tell_changes(
    sources: list[Source],
    before: dict[tuple[str, int, str, str], str],
    tell: Callable[[str], None],
) -> dict[tuple[str, int, str, str], str]:
    """Tell of sources that came, went or are in another state; returns their states."""
    now: dict[tuple[str, int, str, str], str] = {
        (one.engine, one.rank, one.role, one.incarnation): one.state for one in sources
    }
    for key in {**before, **now}:
        state = now.get(key, "forgotten")
        if state != before.get(key):
            engine, rank, role, _ = key
            tell(f"{plain(engine)}, rank {rank}, {role}: {state}")
    return now
