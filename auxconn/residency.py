"""Learning which blocks leave the GPU, instead of asking about each one.

A held block may be released once its KV has left the GPU. vLLM's connector finds out by
looking up every held block at every release, which is the larger part of its cost. But the
pool itself says so: whatever leaves its prefix cache goes through `pop` of the map from
hashes to blocks. A hook there notes the hashes that somebody wants to know about.

The hook has to be exact and to get along with others:

- It is an attribute of the map object that calls what it hides, so other people's wrappers
  may be below or above it, in any order.
- There is one per map, however many connectors have come and gone.
- A reset of the prefix cache gives the pool a new map, and somebody may put back a `pop`
  from before our hook. Both are noticed before the notes are next used, and then it is as
  if everything had left: every block is looked at again.

What comes (back) to the GPU isn't noted. A block that is believed gone is looked up before
that decides anything.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any

HEARTBEAT = b""
"""No block has the empty hash: popping it changes nothing and shows that the hook is there."""

HUB = "_auxconn_hub"
"""Attribute of a map under which its hub is found again."""


class _Hub:
    """The one hook of a map, and those who listen to it."""

    def __init__(self, blocks: Any) -> None:
        self.blocks = blocks
        self.listeners: tuple[_Notes, ...] = ()
        self._beats = 0
        self._install()

    def _install(self) -> None:
        original = self.blocks.pop
        hub = self

        # Called for every block that is handed out with content: nothing is decided here.
        def pop(key: bytes, block_id: int) -> Any:
            for notes in hub.listeners:
                if key in notes.known:
                    notes.left.add(key)
            if not key:
                hub._beats += 1
            return original(key, block_id)

        self._before = vars(self.blocks).get("pop")
        self.hook = self.blocks.pop = pop

    def join(self, notes: _Notes) -> None:
        self.check()
        self.listeners = (*self.listeners, notes)

    def leave(self, notes: _Notes) -> None:
        """Tell a watcher no more; the last one takes the hook away if nobody is above it."""
        self.listeners = tuple(one for one in self.listeners if one is not notes)
        state = vars(self.blocks)
        if self.listeners or state.get("pop") is not self.hook:
            return
        del state[HUB]
        if self._before is None:
            del state["pop"]
        else:
            state["pop"] = self._before

    def check(self) -> None:
        """Put the hook back if somebody took it away; the notes are torn then."""
        blocks = self.blocks
        if blocks.pop is self.hook:
            return
        # Below another wrapper, or gone? Popping nothing tells.
        beats = self._beats
        blocks.pop(HEARTBEAT, -1)
        if self._beats == beats:
            self._install()
            for notes in self.listeners:
                notes.torn = True


class _Notes:
    """What one watcher wants to know of, and what it has not read yet."""

    __slots__ = ("hub", "known", "left", "torn")

    def __init__(self, known: Mapping[bytes, Any]) -> None:
        self.known = known
        self.left: set[bytes] = set()
        self.torn = False
        """True when something may have left without a note."""
        self.hub: _Hub | None = None

    def leave(self) -> None:
        if self.hub is not None:
            self.hub.leave(self)
            self.hub = None


class GpuWatch:
    """Which of the known blocks have left the prefix cache of a pool.

    Parameters
    ----------
    pool
        vLLM's block pool.
    known
        Blocks one wants to know of, by their key in the pool: the hash and the group. Read
        at each eviction, never written.

    Attributes
    ----------
    cache
        The pool's dictionary: a block is on the GPU when its key is in it. Good until the
        next `settle`.
    """

    def __init__(self, pool: Any, known: Mapping[bytes, Any]) -> None:
        self._pool = pool
        self._notes = _Notes(known)
        self._join()
        # A connector that was replaced must cost nothing, and its blocks must go.
        weakref.finalize(self, self._notes.leave).atexit = False

    @staticmethod
    def fits(pool: Any) -> bool:
        """True when the pool is built as it has to be for this."""
        blocks = getattr(pool, "cached_block_hash_to_block", None)
        return (
            isinstance(getattr(blocks, "_cache", None), dict)
            and callable(getattr(blocks, "pop", None))
            and hasattr(blocks, "__dict__")
        )

    def _join(self) -> None:
        self._notes.leave()
        self._map = self._pool.cached_block_hash_to_block
        self.cache: Mapping[bytes, Any] = self._map._cache
        hub = vars(self._map).get(HUB)
        if hub is None:
            hub = _Hub(self._map)
            setattr(self._map, HUB, hub)
        hub.join(self._notes)
        self._hub: _Hub = hub
        self._notes.hub = hub

    def settle(self) -> Collection[bytes] | None:
        """Keys that left since the last call, some of which may be back by now.

        Returns
        -------
        Keys, in no order; None when any known block may have left.
        """
        blocks = self._map
        notes = self._notes
        if (
            self._pool.cached_block_hash_to_block is not blocks
            or blocks._cache is not self.cache
        ):
            self._join()
            notes.torn = True
        elif blocks.pop is not self._hub.hook:
            self._hub.check()
        if notes.torn:
            notes.torn = False
            notes.left.clear()
            return None
        left = notes.left
        if left:
            notes.left = set()
        return left
