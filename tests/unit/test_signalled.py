"""Waiting for the signal that ends a command."""

import os
import signal
import threading
import time

import pytest

from auxconn.signalled import Signalled


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with Signalled() as ended:
        assert not ended.wait(0)
        signal.raise_signal(number)
        assert ended.wait()
        assert ended.wait(0)
        assert ended.number == number
        signal.raise_signal(signal.SIGINT)
        assert ended.number == number
    assert signal.getsignal(number) is before


def test_a_signal_wakes_whoever_waits():
    with Signalled() as ended:
        sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        sender.start()
        began = time.monotonic()
        assert ended.wait(20)
        assert time.monotonic() - began < 10
        sender.join()
