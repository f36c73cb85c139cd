"""Which block hash is in which slot of the host tier, and which slots must not be reused."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class TierIndex:
    """LRU of block hashes over a fixed number of slots.

    Parameters
    ----------
    slots
        How many there are.
    """

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._pins: Counter[int] = Counter()
        self._pinned: dict[str, list[int]] = {}
        self._cleared: set[int] = set()
        """Slots that lost their hash while pinned; free once nobody needs them."""

    def __len__(self) -> int:
        return len(self._slots)

    def held(self) -> list[bytes]:
        """Hashes, least recently used first."""
        return list(self._slots)

    def run(self, hashes: Iterable[bytes]) -> int:
        """Count the leading hashes that are here, and note that they were wanted."""
        found = 0
        for key in hashes:
            if key not in self._slots:
                break
            self._slots.move_to_end(key)
            found += 1
        return found

    def put(self, key: bytes) -> int | None:
        """Give a hash a slot to be filled; None when it has one or none can be had."""
        if key in self._slots:
            self._slots.move_to_end(key)
            return None
        slot = self._free.pop() if self._free else self._evict()
        if slot is not None:
            self._slots[key] = slot
        return slot

    def pin(self, name: str, hashes: Sequence[bytes]) -> list[int]:
        """Keep the slots of these hashes for a request, in place of those kept before.

        Raises
        ------
        KeyError
            When one of them is not here.
        """
        slots = [self._slots[key] for key in hashes]
        self._pins.update(slots)
        self.unpin(name)
        if slots:
            self._pinned[name] = slots
        return slots

    def unpin(self, name: str) -> None:
        """Let go of what is kept for a request, if anything is."""
        for slot in self._pinned.pop(name, ()):
            self._pins[slot] -= 1
            if not self._pins[slot]:
                del self._pins[slot]
                if slot in self._cleared:
                    self._cleared.remove(slot)
                    self._free.append(slot)

    def clear(self) -> None:
        """Forget all hashes; pinned slots are reused when they are let go of."""
        for slot in self._slots.values():
            if slot in self._pins:
                self._cleared.add(slot)
            else:
                self._free.append(slot)
        self._slots.clear()

    def _evict(self) -> int | None:
        for key, slot in self._slots.items():
            if slot not in self._pins:
                del self._slots[key]
                return slot
        return None
