"""One collector for a cluster: what it says of engines that come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from auxconn.channel import Channel
from auxconn.operators import Ask, Order, ask
from tests.unit import stream_made as made

SECONDS = 20.0


class Said:
    """The lines that a process has said so far."""

    def __init__(self, process):
        self.lines = []
        self._reader = threading.Thread(target=self._read, args=(process.stdout,))
        self._reader.start()

    def _read(self, stream):
        with stream:
            self.lines.extend(line.rstrip("\n") for line in stream)

    def end(self):
        """Wait for the end of what it says."""
        self._reader.join(SECONDS)

    def wait(self, text):
        """The first line with `text`, once it is there."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for line in list(self.lines):
                if text in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in {self.lines}")


def test_it_records_serves_steers_and_says_who_comes_and_goes(tmp_path):
    from auxconn import Recording

    folder = tmp_path / "run"
    process = subprocess.Popen(
        [
            sys.executable, "-u", "-m", "auxconn.cli", "collect", "--bind",
            "tcp://127.0.0.1:*", "--record", str(folder), "--metrics", "0",
            "--allow-control", "--control-bind", "tcp://127.0.0.1:*",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    said = Said(process)
    try:
        address = said.wait("Engines connect to").split()[-1]
        orders = said.wait("Orders are taken at").split()[-1]
        said.wait("Ctrl-C ends it.")
        channel = Channel(
            address,
            "gpu1",
            on_command=lambda command: channel.ack(command, True, "so be it"),
        )
        channel.hello({}, ("set_capacity",))
        channel.emit("steps", made.steps(1))
        said.wait("gpu1, rank 0, engine: live")
        assert [one.engine for one in ask(Ask(), orders).engines] == ["gpu1"]
        order = Order("gpu1", "set_capacity", None, {"blocks": 5})
        assert ask(order, orders).text == "so be it"
        channel.close("done")
        said.wait("gpu1, rank 0, engine: gone")
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        said.end()
    assert Recording(folder).frames.steps()["step"].tolist() == [1]
