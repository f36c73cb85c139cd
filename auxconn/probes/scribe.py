"""Making rows of notes: the part of the scheduler's probe that can wait.

Notes are worked up in order and in batches, by a thread many times a second (`Ticker`) or
by whoever calls `flush`. Work that follows work of the same kind finds its code and data
in the caches, so a batch costs a fraction of what its steps would cost one by one in the
middle of the scheduler, and an engine that waits for its GPU does not pay for it at all.

The scribe must not fall behind without bound. When `NOTES` of them wait, the scheduler's
thread works them up itself if nobody else is at it; if somebody is, the step goes without
rows, is counted and told of, and the next note carries a snapshot to begin from again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from itertools import compress
from typing import Any

import numpy as np

from auxconn.probes.absent import AbsentBlocks
from auxconn.probes.access import ConnectorView
from auxconn.probes.batch import Batch, Entry, batches
from auxconn.probes.calls import CAP, FINISHED, HIT, LOADING, PROBE
from auxconn.probes.guard import Guard
from auxconn.probes.hooks import price
from auxconn.probes.ledger import MEMORY, Ledger
from auxconn.probes.lives import LifeLog
from auxconn.probes.loads import LoadLog
from auxconn.probes.lookups import Admission
from auxconn.probes.notes import Ended, Note, Snapshot
from auxconn.probes.packed import Packed, low64, nans, zeros
from auxconn.records import BlockEvent, Blocks, Steps
from auxconn.sink import Sink

NOTES = 1024
"""Notes that wait at most; twice as many with requests that ended."""


_RETAINED: BlockEvent = "retained"
_EVICTED: BlockEvent = "gpu_evicted"
_RELEASED: BlockEvent = "released"


class Scribe:
    """Works up the notes of one scheduler's probe, any thread, one at a time.

    Parameters
    ----------
    view
        The connector the notes are of.
    sink, guard
        Where records and failures go.
    deferred
        True leaves the notes for whoever calls `flush`; False works up each as it is put.
    """

    def __init__(
        self, view: ConnectorView, sink: Sink, guard: Guard, deferred: bool
    ) -> None:
        self.wants_snapshot = True
        """True when the next note must say what the connector holds."""
        self.missed = 0
        """Steps that were left out since the last note was taken."""
        self.missed_requests = 0
        """Requests that ended and were left out."""
        self.ledger = Ledger(max(MEMORY, view.capacity))
        self.loads = LoadLog()
        self.lives = LifeLog()
        self.absent = AbsentBlocks(view.group_id, view.num_groups > 1)
        self._block_size = view.block_size
        self._step = view.step
        self._usable = view.pool.num_gpu_blocks - 1
        """Blocks of the pool; vLLM takes one off the queue for good, its null block."""
        self._sink = sink
        self._guard = guard
        self._notes: deque[Note | Ended] = deque()
        self._begun = self._done = 0
        # Re-entered when a failure switches the probe off in the middle of a note.
        self._lock = threading.RLock()
        self._deferred = deferred
        self._price = price()
        self._ns_per_take = 0.0
        self._scheduled = 0
        """Requests of the newest step."""
        self._emptied = 0

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
        if not self._deferred:
            # Whoever else is at it right now will come to this note too, or its reader.
            self._try_drain()

    def end(self, request: Any, t: float, step: int) -> None:
        """A request has ended at `t` (s), after `step`."""
        if len(self._notes) >= 2 * NOTES and not self._try_drain():
            self.missed_requests += 1
            return
        self._notes.append(Ended(request, t, step))
        if not self._deferred:
            self._try_drain()

    def flush(self) -> None:
        """Work up all notes that wait, in this thread."""
        with self._lock:
            self._drain()

    def _try_drain(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._drain()
        finally:
            self._lock.release()
        return True

    def _drain(self) -> None:
        while self._notes:
            try:
                for batch in batches(
                    self._entries(), self.ledger.is_lost, self._block_size
                ):
                    self.work_up(batch)
            except Exception:  # noqa: BLE001 - never raises into the engine
                # Half a batch may have been taken in: begin from a snapshot again.
                self.missed += self._begun - self._done
                self._begun = self._done
                self.wants_snapshot = True
                self._guard.failed("the rows of steps")

    def _entries(self) -> Iterator[Entry]:
        notes, step, clean = self._notes, self._step, self.absent.clean
        size, lives = self._block_size, self.lives
        for _ in range(len(notes)):
            note = notes.popleft()
            if isinstance(note, Ended):
                self._sink.emit("requests", lives.ended(*note))
                continue
            self._begun += 1
            entry = Entry(note, size, step, clean)
            for one in entry.admissions:
                lives.admitted(one)
            for request_id, keys in note.loads:
                if keys is not None:
                    lives.loading(request_id)
            lives.scheduled(note.output.scheduled_new_reqs, note.t)
            yield entry

    # -- one batch ------------------------------------------------------------------------

    def work_up(self, batch: Batch) -> None:
        """Make the rows of some steps."""
        first = batch.entries[0].note
        if first.snapshot is not None:
            self._begin(first.snapshot)
        ledger = self.ledger
        # The order in which things come about: blocks are retained between two steps,
        # looked up when one begins, evicted and released as requests get their room.
        retained, times = batch.of("retained")
        if retained:
            ledger.retain(retained, times)
        touched, times = batch.of("touched")
        if touched:
            ledger.touch(touched, times)
        loads = self._work_up_loads(first) if first.loads else []
        left, left_times = batch.of("left")
        released, times = batch.of("released")
        keys = retained + left + released
        away: set[bytes] = set()
        packed = Packed(b"", b"", b"", b"")
        if keys:
            if left:
                if isinstance(times, np.ndarray):
                    times = np.concatenate((left_times, times))
                still, numbers = ledger.lose(left, released, times)
                away.update(compress(left, still.tolist()))
            else:
                _, numbers = ledger.lose(left, released, times)
            count = len(retained)
            new = zeros(count), nans(count), zeros(count)
            packed = Packed(low64(keys), *map(bytes.__add__, new, numbers))
        at = [0, len(retained), len(retained) + len(left)]
        for entry in batch.entries:
            self._write(entry, packed, at, away, loads)

    def _write(
        self,
        entry: Entry,
        packed: Packed,
        at: list[int],
        away: set[bytes],
        loads: list[Blocks],
    ) -> None:
        """Write the rows of one step; `at` says where its blocks begin in `packed`."""
        note = entry.note
        t, step, emit = note.t, note.step, self._sink.emit
        for kind, event, keys in (
            (0, _RETAINED, entry.retained),
            (1, _EVICTED, entry.left),
            (2, _RELEASED, entry.released),
        ):
            if keys:
                begin = at[kind]
                at[kind] = end = begin + len(keys)
                emit("blocks", Blocks(t, step, event, "", *packed.part(begin, end)))
            if kind == 0:
                for load in loads:
                    emit("blocks", load)
        self.absent.follow(entry.log, away, entry.released, self.ledger.retained)
        for one, reason in zip(entry.admissions, entry.reasons, strict=True):
            emit("lookups", one.row(t, step, self._block_size, reason))
            if reason == "evicted":
                self._write_wanted(one, note)
        emit("steps", self._step_row(note, len(entry.retained), len(entry.released)))
        self._done += 1

    def _step_row(self, note: Note, retained: int, released: int) -> Steps:
        ns, free = note.ns, note.free
        hashes_sent = 0
        for hashes in note.metadata.block_hashes.values():
            hashes_sent += len(hashes.data) // hashes.item_size
        scheduled = len(note.output.num_scheduled_tokens)
        taken, own = self._taken(note)
        self._scheduled = scheduled
        return Steps(
            note.t,
            note.step,
            note.metadata.generation,
            scheduled,
            note.output.total_num_scheduled_tokens,
            note.waiting,
            note.running,
            self._usable - free,
            free - note.empty,
            note.empty,
            note.retained,
            note.retained - len(self.absent),
            note.capacity,
            self.loads.blocks,
            self.loads.requests,
            hashes_sent,
            retained * self._step,
            released * self._step,
            note.build_ns,
            ns[HIT],
            ns[CAP],
            ns[LOADING],
            taken,
            ns[FINISHED],
            ns[PROBE] + note.own_ns + own,
        )

    def _taken(self, note: Note) -> tuple[int, int]:
        """Nanoseconds in `take_output`, and what hooks that are not timed have added."""
        emptied, self._emptied = note.emptied - self._emptied, note.emptied
        if note.taken is None:
            # One call for each request of the step before.
            return round(self._ns_per_take * self._scheduled), emptied * self._price
        spent, calls = note.taken
        if calls:
            self._ns_per_take = spent / calls
        return spent, (emptied + calls) * self._price

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

    def _work_up_loads(self, note: Note) -> list[Blocks]:
        """Follow the loads of a step that is alone in its batch; their events."""
        made = []
        for request_id, keys in note.loads:
            if keys is None:
                ended = self.loads.end(request_id)
            else:
                ended = self.loads.start(request_id, keys)
            if ended:
                made.append(self._load(note, "load_ended", request_id, ended))
            if keys:
                made.append(self._load(note, "load_started", request_id, keys))
        return made

    def _load(
        self, note: Note, event: BlockEvent, request_id: str, keys: list[bytes]
    ) -> Blocks:
        ledger = self.ledger
        slots = ledger.find(keys)
        known = np.where(ledger.are_retained(slots), slots, -1)
        numbers = ledger.numbers(known, note.now)
        return Blocks(note.t, note.step, event, request_id, low64(keys), *numbers)

    def _write_wanted(self, one: Admission, note: Note) -> None:
        """Released blocks that a look-up would have hit."""
        keys, slots = self.ledger.released_run(one.keys[one.run :])
        if keys:
            numbers = self.ledger.numbers(slots, note.now)
            self._sink.emit(
                "blocks",
                Blocks(
                    note.t,
                    note.step,
                    "wanted_again",
                    one.request_id,
                    low64(keys),
                    *numbers,
                ),
            )
