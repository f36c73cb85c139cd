"""Stores and recordings made up for tests, on clocks that are turned by hand."""

from __future__ import annotations

import msgspec
import pandas as pd

from auxconn.frames import FrameStore
from auxconn.recording.opened import Recording
from auxconn.recording.recorder import Recorder
from auxconn.records import TABLES
from tests.unit import stream_made as made
from tests.unit.stream_made import T0, Clock


class Taped:
    """A store and a recorder whose reading and writing the test does."""

    def __init__(self, folder, rows=10_000, **how):
        self.store = FrameStore(rows)
        self.clock = Clock()
        self.folder = folder
        self.recorder = Recorder(
            self.store, folder, clock=self.clock, wall=self.wall, start=False, **how
        )

    def wall(self):
        return T0 + self.clock.now - 1000.0

    def steps(self, numbers, engine="a", rank=0, tables=("steps",)):
        """Rows of the seconds `numbers`, read a tenth of a second after the last of them."""
        numbers = list(numbers)
        for table in tables:
            records = [made.MAKERS[table](i) for i in numbers]
            self.store.append(table, records, engine, rank)
        if numbers:
            self.clock.now = max(self.clock.now, 1000.1 + numbers[-1])
        self.recorder.read()

    def close(self):
        self.recorder.close()
        return Recording(self.folder)


def same(frames, store, **how):
    """Assert that every frame is that of the store."""
    for table in TABLES:
        pd.testing.assert_frame_equal(
            frames.frame(table, **how), store.frame(table, **how)
        )


def rewritten(path, change):
    """Write a part again with another footer or other columns, as somebody else would."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    footer = msgspec.json.decode(table.schema.metadata[b"auxconn"])
    table, footer = change(table, footer)
    table = table.replace_schema_metadata({b"auxconn": msgspec.json.encode(footer)})
    pq.write_table(table, path)
