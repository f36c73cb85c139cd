"""A real engine's run on the disk: recorded, cut off by a kill, opened and replayed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

from auxconn import Recording
from auxconn.lab import Lab, LabConfig, LabProcess, WorkloadSpec, workloads
from auxconn.recording import Recorder
from auxconn.recording.layout import RecordingError
from auxconn.records import TABLES
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.snapshot import Window
from tests.unit.recording_made import same

pytest.importorskip("pyarrow")

CONFIG = LabConfig(
    num_blocks=120,
    kv_tier_blocks=400,
    capacity=150,
    num_layers=6,
    num_experts=32,
    top_k=4,
)
GRPO = {"prompts": 12, "samples": 3, "prompt_tokens": 200, "output_tokens": 24}


def test_the_frames_of_a_labs_recording_are_those_of_its_store(tmp_path):
    with Lab(CONFIG, workloads.grpo(**GRPO)) as lab:
        with Recorder(lab, tmp_path / "r", flush_seconds=0.2):
            lab.run(requests=15)
            lab.set_capacity(40)
            lab.reconfigure(block_size=32)
            lab.run(requests=15)
        found = Recording(tmp_path / "r")
        assert found.complete
        assert found.gaps.empty
        assert all(found.rows(table) > 0 for table in TABLES)
        same(found.frames, lab.frames)
        assert found.facts() == {**lab.facts}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_recorder_is_killed_and_what_it_had_written_is_replayed(tmp_path):
    """`auxconn record` beside an engine's own process; the engine does not notice its end."""
    folder, flush = tmp_path / "r", 1.0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    command = [
        sys.executable, "-m", "auxconn.cli", "record", str(folder),
        "--collector-bind", address, "--flush", str(flush),
    ]  # fmt: skip
    spec = WorkloadSpec("grpo", {**GRPO, "prompts": 4000})
    with (
        LabProcess(CONFIG, spec, address, steps_per_s=50.0) as lab,
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as recorder,
    ):
        try:
            steps_on_disk(folder, lab, 150)
        finally:
            recorder.send_signal(signal.SIGKILL)
            killed = time.time()
            recorder.wait()
        assert lab.alive, lab.output
    found = Recording(folder)
    assert not found.complete
    assert found.problems == ()
    steps = found.frames.steps()
    first = steps.step.iloc[0]
    assert steps.step.tolist() == list(range(first, first + len(steps)))
    # At most one interval is lost, and what the machine took to write and to send.
    assert killed - steps.t.iloc[-1].timestamp() < flush + 1.0
    assert found.facts("lab")["capacity"] == CONFIG.capacity
    with Hub.replay(found, speed=100.0) as hub:
        hub.player.seek(found.ends)
        end = time.monotonic() + 20
        while hub.player.playing or hub.store.version("steps") < len(steps):
            assert time.monotonic() < end, hub.player.problem
            time.sleep(0.02)
        same(found.frames, hub.store)
        snapshot = hub.snapshot("lab", Window(60))
    assert snapshot.link.state == "replay"
    assert snapshot.totals["steps"] == len(steps)
    assert snapshot.fact("num_blocks") == CONFIG.num_blocks
    assert snapshot.level("steps", "retained") == steps.retained.iloc[-1]


def steps_on_disk(folder, lab, wanted):
    """Wait until so many steps are on the disk."""
    end = time.monotonic() + 150
    while True:
        assert lab.alive, lab.output
        try:
            found = Recording(folder)
            if found.rows("steps") >= wanted:
                return
        except RecordingError:
            pass
        assert time.monotonic() < end, lab.output
        time.sleep(0.1)
