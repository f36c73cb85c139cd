"""Nonsense at the collector's door for a minute, beside an engine that means well.

Random bytes, messages cut, flipped, repeated and glued together, numbers where texts belong,
from many connections at once. The collector must count what it cannot use and go on: no
failure in its thread, no memory that grows, and every row of the good engine arrives.

Exit status 1 when one of these does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

import msgspec
import zmq

from auxconn.channel import Channel
from auxconn.collector import Collector
from auxconn.encoding import encoder
from auxconn.records import SCHEMA_VERSION
from auxconn.wire import Ack, Batch, Beat, Bye, Hello, Progress
from bench.cluster import rss_mib, step

PEERS = 8
MOST_MIB = 128
"""What the process may grow by; its rings fill meanwhile."""


def samples(draw: random.Random) -> list[bytes]:
    """Messages as engines send them."""
    tables: dict[str, list[Any]] = {}
    for table, record in step(1.7e9, draw.randrange(10**6)):
        tables.setdefault(table, []).append(record)
    name = f"engine {draw.randrange(40)}"
    messages = [
        Hello(SCHEMA_VERSION, name, draw.randrange(4), "engine", f"{draw.random()}"),
        Batch(draw.randrange(10), {}, **tables),
        Beat(time.time()),
        Progress("loading", draw.random(), "text"),
        Ack(draw.randrange(5), True, "text", 0.0),
        Bye("done"),
    ]
    return [encoder().encode(message) for message in messages]


def spoilt(draw: random.Random, good: list[bytes]) -> bytes:
    """One message that is probably none."""
    message = bytearray(draw.choice(good))
    match draw.randrange(7):
        case 0:
            return draw.randbytes(draw.randrange(200))
        case 1:
            return bytes(message[: draw.randrange(len(message))])
        case 2:
            for _ in range(draw.randrange(1, 8)):
                message[draw.randrange(len(message))] = draw.randrange(256)
        case 3:
            return bytes(message) + draw.choice(good)
        case 4:
            return msgspec.msgpack.encode(["batch", nested(draw), {}, nested(draw)])
        case 5:
            return msgspec.msgpack.encode(nested(draw))
        case _:
            pass  # as it is, at the wrong time or once more
    return bytes(message)


def nested(draw: random.Random, depth: int = 0) -> Any:
    """Something msgpack can say."""
    kind = draw.randrange(8 if depth < 4 else 6)
    if kind < 6:
        return draw.choice(
            [None, True, -1, 2**63, 1e308, "\x1b[31m<script>", b"\0" * 9]
        )
    if kind == 6:
        return [nested(draw, depth + 1) for _ in range(draw.randrange(6))]
    return {str(one): nested(draw, depth + 1) for one in range(draw.randrange(6))}


def main() -> int:
    """Fuzz, count, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sent = emitted = 0
    with Collector() as collector:
        channel = Channel(collector.address, "means well")
        peers = [context.socket(zmq.DEALER) for _ in range(PEERS)]
        for peer in peers:
            peer.connect(collector.address)
        if not channel.wait_connected(20):
            raise RuntimeError("the collector did not come up")
        resident = 0.0
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            good = samples(draw)
            for _ in range(200):
                peer = draw.choice(peers)
                parts = [spoilt(draw, good) for _ in range(draw.choice((1, 1, 1, 2)))]
                try:
                    peer.send_multipart(parts, zmq.NOBLOCK)
                    sent += 1
                except zmq.Again:
                    time.sleep(0.001)
            emitted += 1
            channel.emit("steps", step(1.7e9, emitted)[0][1])
            # Beyond what the rings and the interpreter take when they begin.
            resident = resident or (rss_mib() if sent > 50_000 else 0.0)
        arrived = collector.store.wait("steps", 1, 5)
        channel.close(timeout=10)
        grown = rss_mib() - (resident or rss_mib())
        until = time.monotonic() + 10
        mine = 0
        while mine < min(emitted, 100) and time.monotonic() < until:
            frame = collector.store.steps(engine="means well")
            mine = len(frame)
        last = int(frame["step"].max()) if mine else 0
        lost = sum(channel.dropped.values())
        print(
            f"{sent:,} messages of nonsense in {arguments.seconds:g} s; counted: "
            f"{collector.malformed:,} malformed, {collector.refused:,} greetings refused, "
            f"{len(collector.sources())} sources; the thread failed "
            f"{collector.failures} times, memory grew by {grown:.0f} MiB; the good "
            f"engine's row {last:,} of {emitted:,} arrived, {lost} dropped"
        )
        met = arrived and not collector.failures and not lost
        met &= grown <= MOST_MIB and last == emitted and collector.malformed > 0
    for peer in peers:
        peer.close(0)
    context.term()
    print("met" if met else "MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
