"""A recording beside the store it was made of, whatever is written, flushed and lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxconn.recording import track
from auxconn.recording.player import Player
from auxconn.records import TABLES
from tests.unit import stream_made as made
from tests.unit.recording_made import Taped, same

pytest.importorskip("pyarrow")

TEXTS = st.text(max_size=20) | st.just("\ud800 half") | st.just("x" * 2000)
WRITES = st.tuples(
    st.sampled_from(list(TABLES)),
    st.sampled_from(["a", "b", "ü<script>"]),
    st.integers(0, 2),
    st.integers(0, 12),
    TEXTS,
)
ACTS = st.lists(
    WRITES | st.sampled_from(["read", "flush", "clear", "time"]), max_size=25
)


def records(table, count, start, text):
    found = [made.MAKERS[table](start + i) for i in range(count)]
    for one in found:
        for name in ("request", "text", "error", "reason"):
            if hasattr(one, name):
                setattr(one, name, text)
        if table == "blocks" and start % 3 == 0:
            one.hash = one.age = one.idle = one.uses = b""
    return found


def written(taped, acts, copies=()):
    """Do what was drawn; the stores in `copies` get the same rows."""
    for number, act in enumerate(acts):
        match act:
            case "read":
                taped.recorder.read()
            case "flush":
                taped.recorder.flush()
            case "clear":
                taped.store.clear()
            case "time":
                taped.clock.pass_(track.PART_SECONDS)
            case (table, engine, rank, count, text):
                for store in (taped.store, *copies):
                    store.append(
                        table, records(table, count, number, text), engine, rank
                    )


@settings(max_examples=30)
@given(ACTS.filter(lambda acts: "clear" not in acts), st.integers(1, 40))
def test_what_is_written_is_read_back(acts, part_rows):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(track, "PART_ROWS", part_rows)
        taped = Taped(Path(folder) / "r")
        written(taped, acts)
        found = taped.close()
        assert found.problems == ()
        assert found.gaps.empty
        same(found.frames, taped.store)
        same(found.frames, taped.store, engine="a", last=5)
        # Played to its end, it fills another store with the same.
        player = Player(found, start=False)
        player.seek(found.ends)
        player.tick()
        for table in TABLES:
            pd.testing.assert_frame_equal(
                player.store.frame(table),
                taped.store.frame(table),
                check_categorical=False,
            )


@settings(max_examples=30)
@given(ACTS, st.integers(1, 15))
def test_each_row_is_written_or_named_as_missing(acts, kept):
    """The store forgets and is cleared: what is not there is a gap, to the row if known."""
    with tempfile.TemporaryDirectory() as folder:
        taped = Taped(Path(folder) / "r", rows=kept)
        written(taped, acts)
        found = taped.close()
        for table in TABLES:
            gaps = found.gaps_of(table)
            rows = len(found.frames.frame(table))
            clears = acts.count("clear")
            ever = taped.store.version(table) - clears
            known = sum(gap.rows or 0 for gap in gaps)
            if any(gap.rows is None for gap in gaps) or (clears and not rows):
                assert rows + known <= ever
            else:
                assert rows + known == ever, (table, gaps)
