"""What telling of blocks costs the engine's thread: vLLM's KV events beside our probes.

A real block pool is churned: each turn a prompt of `BLOCKS` blocks takes the place of the
one that was evicted longest ago, is cached, and ends. Three of them do the same in turn:
one that tells nobody, one with vLLM's KV events and its ZeroMQ publisher, one with our
probes and stream, each with somebody in another process who listens. What the second and
third take longer than the first is what telling costs the engine's thread, over the blocks
that came and went. Then both senders pour the same blocks out as fast as they are taken in.

Exit status 1 when ours costs more than `TARGET` of vLLM's on the engine's thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from time import thread_time_ns
from types import SimpleNamespace
from typing import Any

from auxconn.attach import attach
from auxconn.channel import Channel
from bench.collecting import Collecting
from bench.connector import Bed
from bench.stream import blocks as blocks_record

TARGET = 0.5
BLOCKS = 128
"""Blocks of a prompt: as many come and as many go with each turn."""
POOL = 4 * BLOCKS + 1
ENDPOINT = "tcp://127.0.0.1:{port}"

_SUBSCRIBER = """
import sys, time, zmq, msgspec
from vllm.distributed.kv_events import KVEventBatch, BlockStored
socket = zmq.Context().socket(zmq.SUB)
socket.set_hwm(0)
port = socket.bind_to_random_port("tcp://127.0.0.1")
socket.setsockopt(zmq.SUBSCRIBE, b"")
print(port, flush=True)
decode = msgspec.msgpack.Decoder(KVEventBatch).decode
wanted, blocks, began = int(sys.argv[1]), 0, 0.0
while blocks < wanted:
    batch = decode(socket.recv_multipart()[-1])
    began = began or time.perf_counter()
    blocks += sum(len(one.block_hashes) for one in batch.events if type(one) is BlockStored)
print(blocks / (time.perf_counter() - began), flush=True)
"""


class Listening:
    """Somebody who subscribes to vLLM's events, and counts blocks until enough came."""

    def __init__(self, wanted: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SUBSCRIBER, str(wanted)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self.endpoint = ENDPOINT.format(port=int(self._lines.readline()))

    def rate(self) -> float:
        """Blocks a second, once all came."""
        return float(self._lines.readline())

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


class Churn:
    """One pool and what is told of it: "nothing", "events" or "probes"."""

    def __init__(self, telling: str, address: str) -> None:
        self.bed = Bed(POOL)
        self.pool = self.bed.manager.block_pool
        scheduler = self.bed.scheduler
        self.connector = scheduler.aux_output_connector
        self.attachment = None
        self.publisher: Any = None
        if telling == "probes":
            self.attachment = attach(scheduler=scheduler, to=address, engine=telling)
        elif telling == "events":
            from vllm.distributed.kv_events import ZmqEventPublisher

            self.pool.enable_kv_cache_events = True
            self.publisher = ZmqEventPublisher(0, address)
        self._number = 0

    def turn(self) -> int:
        """A prompt comes and goes; returns nanoseconds of the thread."""
        from vllm.distributed.kv_events import KVEventBatch

        self._number += 1
        bed, manager = self.bed, self.bed.manager
        request = bed.request(bed.prompt(BLOCKS * 16, self._number))
        step = SimpleNamespace(
            num_scheduled_tokens={},
            total_num_scheduled_tokens=0,
            scheduled_new_reqs=[],
        )
        started = thread_time_ns()
        manager.allocate_slots(request, BLOCKS * 16)
        manager.free(request)
        # As the end of vLLM's step does it.
        events = manager.take_events()
        if events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
        self.connector.build_connector_meta(step, {})
        return thread_time_ns() - started

    def close(self) -> None:
        """End it."""
        if self.attachment is not None:
            self.attachment.detach()
        if self.publisher is not None:
            self.publisher.shutdown()


def engine_thread(turns: int) -> bool:
    """Measure what telling costs the engine's thread; False when ours costs too much."""
    listening = Listening(10**12)
    with Collecting() as collecting:
        sides = {
            "nothing": Churn("nothing", ""),
            "events": Churn("events", listening.endpoint),
            "probes": Churn("probes", collecting.address),
        }
        found: dict[str, list[int]] = {name: [] for name in sides}
        names = list(sides)
        gc.collect()
        for turn in range(turns):
            for name in names[turn % 3 :] + names[: turn % 3]:
                spent = sides[name].turn()
                if turn >= 20:
                    found[name].append(spent)
            time.sleep(0.002)  # the GPU's turn, and that of who sends
        for side in sides.values():
            side.close()
    listening.close()
    bare = statistics.median(found["nothing"])
    cost = {
        name: (statistics.median(found[name]) - bare) / (2 * BLOCKS)
        for name in ("events", "probes")
    }
    print(
        f"a prompt of {BLOCKS} blocks comes, and as many leave: {bare / 1e3:.1f} us\n"
        f"  vLLM's KV events add {cost['events']:6.1f} ns a block\n"
        f"  our probes add       {cost['probes']:6.1f} ns a block"
    )
    ratio = cost["probes"] / cost["events"]
    print(f"  ratio {ratio:.2f}: {'met' if ratio <= TARGET else 'MISSED'} ({TARGET})")
    return ratio <= TARGET


def rates(runs: int, batches: int) -> None:
    """Blocks a second through either socket into the memory of another process."""
    from vllm.distributed.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

    per_batch = 512
    theirs, ours = [], []
    for _ in range(runs):
        listening = Listening(batches * per_batch)
        publisher = ZmqEventPublisher(0, listening.endpoint)
        time.sleep(0.5)  # a publisher that connects has no way to see that it is heard
        hashes = [2**63 + at for at in range(per_batch)]
        tokens = [at * 7 % 30_000 for at in range(per_batch * 16)]
        for _ in range(batches):
            event = BlockStored(
                block_hashes=hashes,
                parent_block_hash=None,
                token_ids=tokens,
                block_size=16,
                lora_id=None,
                medium="GPU",
                lora_name=None,
            )
            publisher.publish(KVEventBatch(ts=time.time(), events=[event]))
        theirs.append(listening.rate())
        publisher.shutdown()
        listening.close()
        with Collecting() as collecting:
            channel = Channel(collecting.address, "bench", capacity_rows=10_000_000)
            if not channel.wait_connected(10):
                raise RuntimeError("the collector did not come up")
            began = time.perf_counter()
            for at in range(batches):
                channel.emit("blocks", blocks_record(at))
            while collecting.rows("blocks") < batches * per_batch:
                time.sleep(0.002)
            ours.append(batches * per_batch / (time.perf_counter() - began))
            channel.close()
    print(
        f"blocks a second into another process: vLLM's events with their tokens "
        f"{statistics.median(theirs):,.0f}, our `blocks` rows "
        f"{statistics.median(ours):,.0f}, ratio "
        f"{statistics.median(ours) / statistics.median(theirs):.1f}"
    )


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=700)
    parser.add_argument("--runs", type=int, default=7, help="at least 7")
    arguments = parser.parse_args()
    met = engine_thread(arguments.turns)
    rates(arguments.runs, 2000)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
