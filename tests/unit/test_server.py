"""The page's server: what it says when it is up, and when a browser goes."""

import logging
import signal
import sys
import threading
import types

import pytest
from tornado.ioloop import IOLoop

from auxconn_dashboard import server


@pytest.fixture
def panel(monkeypatch):
    """Stands in for Panel and its loop: what would run when the server is up."""
    later, done = [], []
    loop = types.SimpleNamespace(
        add_callback=lambda do, *args, **how: later.append((do, args, how)),
        start=lambda: [do(*args, **how) for do, args, how in later],
        asyncio_loop=types.SimpleNamespace(
            add_signal_handler=lambda *_: None, remove_signal_handler=lambda _: None
        ),
    )
    made = types.SimpleNamespace(io_loop=loop, start=lambda: done.append("started"))

    def serve(pages, **how):
        assert how["start"] is False
        return made

    state = types.SimpleNamespace(cache={}, as_cached=lambda key, make: make())
    fake = types.SimpleNamespace(serve=serve, state=state)
    monkeypatch.setitem(sys.modules, "panel", fake)
    for name in ("app", "session"):
        module = types.SimpleNamespace(page=None, HUB_KEY="hub")
        monkeypatch.setitem(sys.modules, f"auxconn_dashboard.{name}", module)
    monkeypatch.setattr(server, "_quieten", lambda: None)
    return done


def test_the_address_is_told_once_the_page_is_there(panel, capsys):
    server.serve(object(), 5999, show=False)
    assert panel == ["started"]
    told = capsys.readouterr().out
    assert told == "auxconn is at http://127.0.0.1:5999/  (Ctrl-C ends it)\n"


def test_a_server_that_is_not_started_says_nothing(panel, capsys):
    server.serve(object(), 5999, show=False, start=False)
    assert panel == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_a_signal_ends_it_between_two_callbacks_and_not_within_one(number, raised):
    loop = IOLoop(make_current=False)
    before = signal.getsignal(number)
    lock = threading.Lock()
    held = []

    def callback():
        with lock:
            signal.raise_signal(number)
            # What Python would have raised by now could have left the lock taken.
            held.append(lock.locked())

    loop.add_callback(callback)
    with pytest.raises(raised) as ended:
        server.run_until_signal(loop)
    loop.close()
    assert held == [True]
    assert signal.getsignal(number) is before
    if raised is SystemExit:
        assert ended.value.code == 128 + number


def test_a_loop_that_is_stopped_ends_without_a_signal():
    loop = IOLoop(make_current=False)
    loop.add_callback(loop.stop)
    server.run_until_signal(loop)
    loop.close()


def test_messages_lost_with_a_browser_are_one_line(caplog, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    logger = logging.getLogger("test.closed")
    logger.addFilter(server._Closed())
    for _ in range(1000):
        logger.warning("Failed sending message as connection was closed")
    logger.warning("something else")
    now += server.TELL_SECONDS
    logger.warning("Failed sending message as connection was closed")
    assert [record.getMessage() for record in caplog.records] == [
        "a browser was closed while it was sent something (1 messages lost so far)",
        "something else",
        "a browser was closed while it was sent something (1001 messages lost so far)",
    ]
