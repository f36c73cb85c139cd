"""A browser as far as the server goes: it takes what it is sent, and draws nothing.

`python -m bench.watching URL SECONDS` says `connected`, and after that time, as JSON, how
often the server beat and drew. The server beats five times a second whatever it draws, so
the longest gap between two messages is how long it answered nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import statistics
import sys
import time
import urllib.request

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

DRAWING = 5_000
"""Bytes from which on a message is one of a drawing: it carries columns of a plot."""

STILL = 0.05
"""Seconds of silence after which a message belongs to the next tick."""


async def watch(url: str, seconds: float) -> dict[str, float]:
    """Open the page at `url` and look at it for some time."""
    html = urllib.request.urlopen(url).read().decode()
    token = re.search(r'"token":"([^"]+)"', html)
    assert token is not None
    path, _, query = url.partition("?")
    socket = await websocket_connect(
        HTTPRequest(f"{path.replace('http', 'ws', 1)}ws?{query}"),
        subprotocols=["bokeh", token.group(1)],
    )
    ready = {"type": "event", "name": "document_ready", "values": {"type": "map"}}
    said = {"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": ready}
    for frame in ({"msgid": "1", "msgtype": "PATCH-DOC"}, {}, {"events": [said]}):
        await socket.write_message(json.dumps(frame))
    print("connected", flush=True)
    times: list[float] = []
    drawn: list[float] = []
    took = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        message = await socket.read_message()
        assert message is not None, "the server closed the connection"
        now = time.monotonic()
        times.append(now)
        took += len(message)
        if len(message) > DRAWING and (not drawn or now - drawn[-1] > STILL):
            drawn.append(now)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    between = [b - a for a, b in itertools.pairwise(drawn)]
    return {
        "longest_silence_s": max(gaps),
        "drawings": len(drawn),
        "between_drawings_s": statistics.median(between) if between else seconds,
        "bytes_per_s": took / seconds,
    }


def main() -> None:
    """Watch, and print what was seen."""
    print(json.dumps(asyncio.run(watch(sys.argv[1], float(sys.argv[2])))), flush=True)


if __name__ == "__main__":
    main()
