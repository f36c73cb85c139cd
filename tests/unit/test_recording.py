"""What is recorded: whole, on time, with its holes named, whatever happens to the disk."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from auxconn import FrameStore, Recording, cli
from auxconn.collector import Collector
from auxconn.recording import parts, track
from auxconn.recording.layout import MissingError, RecordingError
from auxconn.recording.opened import RecordingWarning
from auxconn.recording.recorder import Recorder
from auxconn.records import TABLES, columns
from auxconn.source import Source
from tests.unit import stream_made as made
from tests.unit.recording_made import Taped, rewritten, same
from tests.unit.stream_made import T0

pq = pytest.importorskip("pyarrow.parquet")


def test_all_tables_are_read_back_as_the_store_has_them(tmp_path):
    taped = Taped(tmp_path / "r")
    for start in (0, 5, 9):
        taped.steps(range(start, start + 4), "b", tables=TABLES)
        taped.steps(range(start, start + 4), "a", rank=3, tables=TABLES)
        taped.recorder.flush()
    found = taped.close()
    assert found.problems == ()
    assert found.complete
    assert found.gaps.empty
    same(found.frames, taped.store)
    same(found.frames, taped.store, engine="a")
    same(found.frames, taped.store, engine="a", last=3, columns=["step", "engine"])
    same(found.frames, taped.store, since_t=T0 + 6, last=9)
    same(found.frames, taped.store, engine="nobody")
    assert found.engines == ["b", "a"]
    assert found.ranks == [("a", 3), ("b", 0)]
    assert (found.start, found.end.round("ms")) == (
        pd.Timestamp(T0, unit="s", tz="UTC"),
        pd.Timestamp("2023-11-14 22:13:32.1", tz="UTC"),
    )
    with pytest.raises(ValueError, match="no column 'nope' in 'steps'"):
        found.frames.steps(columns=["nope"])
    with pytest.raises(ValueError, match="no table 'nope'"):
        found.frames.frame("nope")


def test_other_tools_read_the_parts_too(tmp_path):
    taped = Taped(tmp_path / "r")
    taped.steps(range(3), tables=("steps", "blocks"))
    taped.close()
    frame = pd.read_parquet(tmp_path / "r" / "blocks-000001.parquet")
    assert frame["event"].tolist() == ["released"] * 9
    assert frame["hash"].dtype == np.uint64


def test_there_is_nothing_in_the_files_but_what_the_schema_says(tmp_path):
    """Hashes, lengths and counters: no column could hold a prompt or its tokens."""
    taped = Taped(tmp_path / "r")
    taped.steps(range(3), tables=TABLES)
    taped.close()
    for table in TABLES:
        names = pq.read_schema(tmp_path / "r" / f"{table}-000001.parquet").names
        assert names == ["engine", "rank", *(one.name for one in columns(table))]
    files = {path.name for path in (tmp_path / "r").iterdir()}
    assert files == {"recording.json", *(f"{table}-000001.parquet" for table in TABLES)}


def test_a_full_part_is_left_alone_and_the_next_one_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(track, "PART_ROWS", 10)
    taped = Taped(tmp_path / "r")
    taped.steps(range(6))
    taped.recorder.flush()
    taped.steps(range(6, 12))
    taped.recorder.flush()
    first = (tmp_path / "r" / "steps-000001.parquet").read_bytes()
    taped.steps(range(12, 15))
    taped.recorder.flush()
    assert (tmp_path / "r" / "steps-000001.parquet").read_bytes() == first
    taped.clock.pass_(track.PART_SECONDS)
    taped.steps(range(200, 202))
    found = taped.close()
    assert [part.footer.rows for part in found.parts("steps")] == [12, 3, 2]
    same(found.frames, taped.store)


def test_what_the_store_lost_is_told(tmp_path):
    taped = Taped(tmp_path / "r", rows=10)
    taped.steps(range(5))
    taped.recorder.flush()
    taped.steps(range(5, 40))
    taped.store.clear("steps")
    taped.steps(range(40, 42))
    found = taped.close()
    assert [(one.rows, one.why) for one in found.gaps_of("steps")] == [
        (25, "overwritten in the store before they could be written"),
        (None, "the store was cleared"),
    ]
    assert found.gaps.table.tolist() == ["steps", "steps"]
    assert found.gaps.rows[0] == 25
    assert found.gaps.rows.isna().tolist() == [False, True]
    assert [gap.after for gap in found.gaps_of("steps")] == [5, 15]
    assert found.frames.steps().step.tolist() == [*range(5), *range(30, 40), 40, 41]
    assert taped.recorder.status.lost == 25
    assert "gaps: 2, at least 25 rows" in repr(found)


def test_rows_that_are_there_already_are_recorded_and_what_came_before_them_told(
    tmp_path,
):
    store = FrameStore(10)
    store.append("steps", [made.steps(i) for i in range(15)], "a")
    Recorder(store, tmp_path / "r", start=False).close()
    found = Recording(tmp_path / "r")
    same(found.frames, store)
    assert found.begins == T0 + 5
    assert found.gaps.why.tolist() == [
        "overwritten in the store before the recording began"
    ]


def test_the_sources_and_their_facts_are_kept_when_they_change(tmp_path):
    def source(state, capacity, rows=0):
        return Source(
            "a", 1, "engine", "x1", {"capacity": capacity, "model": "<b>"}, ("pause",),
            state, 0.0, 0.0, None, rows, {"steps": 3}, 2, 0, 1, "bad",
        )  # fmt: skip

    now = [source("starting", None)]
    taped = Taped(tmp_path / "r", sources=lambda: now)
    taped.steps([0], rank=1)
    now[:] = [source("live", 100, rows=1)]
    taped.steps([1], rank=1)
    now[:] = [source("live", 100, rows=2)]
    taped.steps([2], rank=1)
    taped.steps([2], "b")
    found = taped.close()
    assert [one.state for one in found.sources_at(T0 + 0.5)] == ["starting", "live"]
    last = found.sources[0]
    assert (last.engine, last.rank, last.state, last.rows_lost) == (
        "a",
        1,
        "live",
        {"steps": 3},
    )
    assert last.facts == found.facts("a") == {"capacity": 100, "model": "<b>"}
    # A change of the count of rows alone is none.
    assert found.rows("sources") == 2
    # The engine that only has rows is there too.
    assert (found.sources[1].engine, found.sources[1].facts) == ("b", {})


def test_a_full_disk_loses_nothing_until_there_is_no_room_in_memory(
    tmp_path, monkeypatch, caplog
):
    taped = Taped(tmp_path / "r", rows=50)
    taped.steps(range(10))
    taped.recorder.flush()
    whole = parts.write_whole

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parts, "write_whole", full)
    monkeypatch.setattr(track, "MOST_WAITING", 30)
    for start in range(10, 100, 10):
        taped.steps(range(start, start + 10))
        taped.recorder.flush()
    status = taped.recorder.status
    assert status.problem.startswith("cannot write: No space left on device")
    assert (status.rows, status.waiting, status.lost) == (10, 30, 0)
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1
    # What is there opens, and the place of the new part was not touched.
    assert Recording(taped.folder).frames.steps().step.tolist() == list(range(10))
    monkeypatch.setattr(parts, "write_whole", whole)
    taped.recorder.flush()
    assert taped.recorder.status.problem == ""
    found = taped.close()
    assert found.frames.steps().step.tolist() == [*range(40), *range(50, 100)]
    assert found.gaps.rows.tolist() == [10]


def test_a_limit_on_files_is_a_problem_told_and_leaves_no_half_file(tmp_path):
    """The system itself refuses to write, as it does when a disk or a quota is full."""
    code = f"""
        import resource, signal
        from pathlib import Path
        from tests.unit.recording_made import Taped
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        taped = Taped(Path({str(tmp_path / "r")!r}))
        taped.steps(range(10))
        taped.recorder.flush()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
        taped.steps(range(10, 5000))
        taped.recorder.flush()
        print(taped.recorder.status.problem)
        assert len(list(taped.folder.iterdir())) == 2, list(taped.folder.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        taped.recorder.flush()
        print(len(taped.close().frames.steps()))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    told, rows = done.stdout.splitlines()
    assert told.startswith("cannot write: File too large")
    assert rows == "5000"


@pytest.fixture
def three(tmp_path, monkeypatch):
    """A recording of three parts of ten steps each, and some events."""
    monkeypatch.setattr(track, "PART_ROWS", 10)
    taped = Taped(tmp_path / "r")
    for start in (0, 10, 20):
        taped.steps(range(start, start + 10), tables=("steps", "events"))
        taped.recorder.flush()
    taped.recorder.close()
    return taped.folder


def damaged(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def flipped(path):
    """A bit in the middle of the data, which no footer shows."""
    data = bytearray(path.read_bytes())
    data[300] ^= 0x10
    path.write_bytes(data)


def opened(folder):
    found = Recording(folder)
    return found.frames.steps(), found


@pytest.mark.parametrize("hurt", [damaged, empty, flipped])
def test_a_damaged_part_is_named_and_the_rest_opens(three, hurt):
    hurt(three / "steps-000002.parquet")
    with pytest.warns(RecordingWarning, match=r"steps-000002.parquet is damaged"):
        steps, found = opened(three)
    assert steps.step.tolist() == [*range(10), *range(20, 30)]
    assert found.gaps.rows.tolist() == [10]
    assert "steps-000002.parquet is damaged" in found.gaps.why[0]
    assert len(found.frames.events()) == 30
    assert len(found.problems) == 1
    assert "! steps-000002.parquet is damaged" in repr(found)


def test_a_last_part_that_is_damaged_or_a_part_that_is_not_there_is_a_gap(three):
    empty(three / "steps-000003.parquet")
    (three / "events-000001.parquet").unlink()
    with pytest.warns(RecordingWarning, match="steps-000003"):
        found = Recording(three)
    gaps = {(one.table, one.why[:20]): one.rows for one in found.gaps.itertuples()}
    assert gaps == {
        ("steps", "steps-000003.parquet"): pd.NA,
        ("events", "a part of the record"): 10,
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "recording.json is missing"), (b"{", "recording.json is damaged")],
)
def test_a_head_that_is_gone_is_made_up_for_by_the_parts(three, content, told):
    (three / "recording.json").unlink()
    if content is not None:
        (three / "recording.json").write_bytes(content)
    with pytest.warns(RecordingWarning, match=told):
        found = Recording(three)
    assert len(found.frames.steps()) == 30
    assert not found.complete


def test_a_newer_schema_is_told_and_what_can_be_read_is_read(three):
    def with_more(table, footer):
        return table.append_column("joules", table.column("t")), footer | {"schema": 99}

    def with_less(table, footer):
        return table.drop_columns(["generation"]), footer | {"schema": 99}

    def laid_out_anew(table, footer):
        return table, {"format": 99, "schema": 99}

    rewritten(three / "steps-000001.parquet", with_more)
    rewritten(three / "steps-000002.parquet", with_less)
    rewritten(three / "steps-000003.parquet", laid_out_anew)
    head = (three / "recording.json").read_text()
    (three / "recording.json").write_text(head.replace('"format": 1', '"format": 99'))
    with pytest.warns(RecordingWarning, match="upgrade auxconn"):
        found = Recording(three)
    assert found.frames.steps().step.tolist() == list(range(10))
    assert len(found.frames.events()) == 30
    first, second, third, fourth = found.problems
    assert "a newer auxconn" in first
    assert second == (
        "steps-000001.parquet: a newer auxconn wrote it (schema 99, format 1; this one "
        f"reads {parts.SCHEMA_VERSION} and 1): upgrade auxconn; left out: joules"
    )
    assert "steps-000002.parquet cannot be read" in third
    assert third.endswith("it lacks generation")
    assert "steps-000003.parquet cannot be read" in fourth
    assert len(found.gaps) == 1


def test_a_category_nobody_knows_costs_its_part(three):
    def strange(table, footer):
        kinds = ["mark"] * 9 + ["earthquake"]
        place = table.column_names.index("kind")
        return table.set_column(place, "kind", [kinds]), footer

    rewritten(three / "events-000002.parquet", strange)
    with pytest.warns(RecordingWarning, match="'earthquake' is none of"):
        assert len(Recording(three).frames.events()) == 20


def test_a_folder_that_cannot_be_recorded_into_is_refused(three, tmp_path):
    store = FrameStore(10)
    with pytest.raises(RecordingError, match="holds a recording already"):
        Recorder(store, three)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="is a file"):
        Recorder(store, tmp_path / "file")
    with pytest.raises(ValueError, match=r"flush_seconds=0: give 0\.1 to 3600"):
        Recorder(store, tmp_path / "new", flush_seconds=0)
    with pytest.raises(TypeError, match="a int cannot be recorded"):
        Recorder(3, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(RecordingError, match="nothing was recorded there"):
        Recording(tmp_path / "nowhere")
    with pytest.raises(
        RecordingError, match=r"no recording in .*recording\.json and parts are missing"
    ):
        Recording(tmp_path)


def test_without_pyarrow_the_advice_is_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for make in (
        lambda: Recorder(FrameStore(10), tmp_path / "r"),
        lambda: Recording(tmp_path),
    ):
        with pytest.raises(MissingError, match=r"pip install 'auxconn\[recording\]'"):
            make()
    assert not (tmp_path / "r").exists()


CHILD = """
import sys, time
from auxconn.frames import FrameStore
from auxconn.recording import Recorder
from tests.unit import stream_made as made

store = FrameStore()
Recorder(store, sys.argv[1], flush_seconds=float(sys.argv[2]))
began = time.monotonic()
for i in range(10_000_000):
    record = made.steps(i)
    record.t = time.time()
    store.append("steps", [record], "a")
    if i == 0:
        print("runs", flush=True)
    time.sleep(0.002)
"""


def test_a_recorder_that_is_killed_loses_one_flush_interval_at_most(tmp_path):
    flush = 1.0
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "r"), str(flush)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout.readline() == "runs\n"
        end = time.monotonic() + 40
        while len(seen := steps_in(tmp_path / "r")) < 300:
            assert time.monotonic() < end, len(seen)
            time.sleep(0.05)
    finally:
        child.send_signal(signal.SIGKILL)
        killed = time.time()
        child.wait()
        child.stdout.close()
    found = Recording(tmp_path / "r")
    assert found.problems == ()
    assert not found.complete
    assert "cut off" in repr(found)
    steps = found.frames.steps()
    assert steps.step.tolist() == list(range(len(steps)))
    assert found.gaps.empty
    # A write takes its time too, on a machine that is busy.
    lost = killed - steps.t.iloc[-1].timestamp()
    assert lost < flush + 0.5, lost
    assert list(tmp_path.glob("r/*.parquet")) == [
        tmp_path / "r" / "steps-000001.parquet"
    ]


def steps_in(folder):
    """Steps that are on the disk now, whatever is happening there."""
    try:
        return Recording(folder).frames.steps()
    except RecordingError:
        return []


def test_a_collector_is_recorded_by_a_thread_of_its_own(tmp_path):
    with (
        Collector() as collector,
        Recorder(collector, tmp_path / "r", flush_seconds=0.1) as recorder,
    ):
        collector.store.append("steps", [made.steps(i) for i in range(100)], "a")
        end = time.monotonic() + made.PATIENCE
        while recorder.status.rows < 100:
            assert time.monotonic() < end, recorder.status
            time.sleep(0.01)
        assert len(Recording(tmp_path / "r").frames.steps()) == 100
        assert recorder.status.bytes > 1000
    same(Recording(tmp_path / "r").frames, collector.store)
    assert not recorder.status.running
    recorder.close()


def test_what_cannot_be_read_does_not_keep_the_rest_from_the_disk(tmp_path, caplog):
    def sources():
        raise RuntimeError("gone")

    store = FrameStore()
    with Recorder(
        store, tmp_path / "r", flush_seconds=0.1, sources=sources
    ) as recorder:
        store.append("steps", [made.steps(1)], "a")
        end = time.monotonic() + made.PATIENCE
        while recorder.status.rows < 1:
            assert time.monotonic() < end, recorder.status
            time.sleep(0.01)
        assert recorder.status.problem == "cannot be read: RuntimeError: gone"
    assert len(Recording(tmp_path / "r").frames.steps()) == 1
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1


def test_the_commands_say_in_words_what_is_wrong(three, tmp_path):
    run = CliRunner()
    done = run.invoke(cli.app, ["replay", str(tmp_path / "nowhere")])
    assert done.exit_code == 1
    assert "nothing was recorded there" in done.stderr
    bind = ["--collector-bind", "tcp://127.0.0.1:*"]
    done = run.invoke(cli.app, ["record", str(three), *bind])
    assert done.exit_code == 1
    assert "holds a recording already" in done.stderr
    done = run.invoke(cli.app, ["record", str(tmp_path / "new"), *bind, "--flush", "0"])
    assert done.exit_code == 1
    assert "give 0.1 to 3600 seconds" in done.stderr
    assert not (tmp_path / "new").exists()
    done = run.invoke(cli.app, ["replay", str(three), "--speed", "0", "--port", "0"])
    assert done.exit_code == 1
    assert "give a number from 0.25 to 100" in done.stderr
