"""Making rows of notes: the part of the scheduler's probe that can wait.

Notes are worked up in order and in batches, by the scribe's own thread many times a second
or by whoever calls `flush`. Work that follows work of the same kind finds its code and data
in the caches, so a batch costs a fraction of what its steps would cost one by one in the
middle of the scheduler, and an engine that waits for its GPU does not pay for it at all.

The scribe must not fall behind without bound. When `NOTES` of them wait, the scheduler's
thread works them up itself if nobody else is at it; if somebody is, the step goes without
rows, is counted and told of, and the next note carries a snapshot to begin from again.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import compress

import numpy as np

from auxconn.probes.absent import AbsentBlocks
from auxconn.probes.access import ConnectorView
from auxconn.probes.guard import Guard
from auxconn.probes.ledger import MEMORY, Ledger
from auxconn.probes.loads import LoadLog
from auxconn.probes.lookups import Admission
from auxconn.probes.notes import Note, Snapshot
from auxconn.probes.packed import last_hashes, low64, nans, zeros
from auxconn.records import BlockEvent, Blocks
from auxconn.sink import Sink

SECONDS = 0.025
"""How long a note waits at most for the scribe's thread to look."""

NOTES = 512
"""Notes that wait at most."""

Numbers = tuple[bytes, bytes, bytes]
"""Age, idle time and uses of some blocks, packed."""


class Scribe:
    """Works up the notes of one scheduler's probe, any thread, one at a time.

    Parameters
    ----------
    view
        The connector the notes are of.
    sink, guard
        Where records and failures go.
    deferred
        True gives it a thread; False works up each note as it is put.
    """

    def __init__(
        self, view: ConnectorView, sink: Sink, guard: Guard, deferred: bool
    ) -> None:
        self.wants_snapshot = True
        """True when the next note must say what the connector holds."""
        self.missed = 0
        """Steps that were left out since the last note was taken."""
        self.ledger = Ledger(max(MEMORY, view.capacity))
        self.loads = LoadLog()
        self.absent = AbsentBlocks(view.group_id, view.num_groups > 1)
        self._block_size = view.block_size
        self._step = view.step
        self._sink = sink
        self._guard = guard
        self._notes: deque[Note] = deque()
        # Re-entered when a failure switches the probe off in the middle of a note.
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if deferred:
            self._thread = threading.Thread(
                target=self._run, name="auxconn-scribe", daemon=True
            )
            self._thread.start()

    def has_room(self) -> bool:
        """True when a note can be put; False when its step must be left out.

        Then the step is counted in `missed`, and the next note must have a snapshot.
        """
        if len(self._notes) < NOTES or self._try_drain():
            return True
        self.missed += 1
        self.wants_snapshot = True
        return False

    def put(self, note: Note) -> None:
        """Take a note; ask `has_room` before it is made."""
        self._notes.append(note)
        if self._thread is None:
            # Whoever else is at it right now will come to this note too, or its reader.
            self._try_drain()

    def flush(self) -> None:
        """Work up all notes that wait, in this thread."""
        with self._lock:
            self._drain()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stopping.set()

    def close(self) -> None:
        """End the thread and work up what is left."""
        self.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.flush()

    def _run(self) -> None:
        while not self._stopping.wait(SECONDS):
            if self._notes:
                self.flush()

    def _try_drain(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._drain()
        finally:
            self._lock.release()
        return True

    def _drain(self) -> None:
        notes = self._notes
        while notes:
            note = notes.popleft()
            try:
                self.work_up(note)
            except Exception:  # noqa: BLE001 - never raises into the engine
                # Half a note may have been taken in: begin from a snapshot again.
                self.wants_snapshot = True
                self._guard.failed("a step's rows")

    # -- one note -------------------------------------------------------------------------

    def work_up(self, note: Note) -> None:
        """Make the rows of one step."""
        if note.snapshot is not None:
            self._begin(note.snapshot)
        row, metadata, now, ledger = note.row, note.metadata, note.now, self.ledger
        t, step = row.t, row.step

        # The order in which things came about: blocks are retained between two steps,
        # looked up when one begins, evicted and released as requests get their room.
        retained = last_hashes(metadata.retained_block_hashes, self._step)
        released = last_hashes(metadata.released_block_hashes, self._step)
        if retained:
            ledger.retain(retained, now)
        for one in note.admissions:
            if one.run:
                ledger.touch(one.keys[: one.run], now)
        moved = self.absent.read(note.pool)
        left = moved.left
        if left or retained or released:
            hashes = low64(retained + left + released)
            at = 8 * len(retained)
            if retained:
                count = len(retained)
                new = (zeros(count), nans(count), zeros(count))
                self._emit(t, step, "retained", "", hashes[:at], new)
            self._write_loads(note)
            if left:
                slots, still = ledger.evict(left)
                if moved.away:
                    self.absent.add(
                        moved.away.intersection(compress(left, still.tolist()))
                    )
                numbers = ledger.numbers(np.where(still, slots, -1), now)
                end = at + 8 * len(left)
                self._emit(t, step, "gpu_evicted", "", hashes[at:end], numbers)
                at = end
            if released:
                numbers = ledger.numbers(ledger.release(released), now)
                self._emit(t, step, "released", "", hashes[at:], numbers)
                self.absent.remove(released)
        else:
            self._write_loads(note)
        if moved.wiped:
            self.absent.replace(set(ledger.retained()) - moved.came)
        for one in note.admissions:
            self._write_lookup(one, t, step, now)

        row.retained_on_gpu = row.retained - len(self.absent)
        row.loading_blocks = self.loads.blocks
        row.loading_requests = self.loads.requests
        hashes_sent = 0
        for packed in metadata.block_hashes.values():
            hashes_sent += len(packed.data) // packed.item_size
        row.hashes_sent = hashes_sent
        row.hashes_retained = len(retained) * self._step
        row.hashes_released = len(released) * self._step
        self._sink.emit("steps", row)

    def _begin(self, snapshot: Snapshot) -> None:
        """Take what the connector holds in place of what was noted before."""
        ledger = self.ledger
        held = ledger.find(snapshot.held)
        known = ledger.are_retained(held)
        ledger.keep_only(held[known])
        unknown = list(compress(snapshot.held, (~known).tolist()))
        if unknown:
            ledger.retain(unknown, float("nan"))
        self.absent.replace(snapshot.absent)
        self.loads.clear()
        for request_id, keys in snapshot.loading:
            if keys is not None:
                self.loads.start(request_id, keys)

    def _write_loads(self, note: Note) -> None:
        for request_id, keys in note.loads:
            if keys is None:
                ended = self.loads.end(request_id)
            else:
                ended = self.loads.start(request_id, keys)
            if ended:
                self._write_load(note, "load_ended", request_id, ended)
            if keys:
                self._write_load(note, "load_started", request_id, keys)

    def _write_load(
        self, note: Note, event: BlockEvent, request_id: str, keys: list[bytes]
    ) -> None:
        ledger = self.ledger
        slots = ledger.find(keys)
        known = np.where(ledger.are_retained(slots), slots, -1)
        self._emit(
            note.row.t,
            note.row.step,
            event,
            request_id,
            low64(keys),
            ledger.numbers(known, note.now),
        )

    def _write_lookup(self, one: Admission, t: float, step: int, now: float) -> None:
        size, ledger = self._block_size, self.ledger
        reason = one.reason(size, ledger)
        self._sink.emit("lookups", one.row(t, step, size, reason))
        if reason == "evicted":
            keys, slots = ledger.released_run(one.keys[one.run :])
            if keys:
                numbers = ledger.numbers(slots, now)
                self._emit(
                    t, step, "wanted_again", one.request_id, low64(keys), numbers
                )

    def _emit(
        self,
        t: float,
        step: int,
        event: BlockEvent,
        request_id: str,
        hashes: bytes,
        numbers: Numbers,
    ) -> None:
        self._sink.emit("blocks", Blocks(t, step, event, request_id, hashes, *numbers))
