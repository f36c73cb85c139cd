"""vLLM's own connector, watched: how often each case of the issue was really met.

Nothing is decided here. The subclass looks before and after each of vLLM's methods and
counts, so that a differential run can show that it went through the cases it claims.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector


class CountingConnector(AuxOutputSchedulerConnector):
    """vLLM's connector with a `Counter` beside it."""

    def __init__(self, kv_cache_manager: Any, kv_connector: Any, met: Counter) -> None:
        super().__init__(kv_cache_manager, kv_connector)
        self.met = met

    def max_cache_hit(self, request: Any) -> int:
        order = list(self._kv_cached)
        hit = super().max_cache_hit(request)
        self.met["lookups"] += 1
        self.met["lookups that hit"] += hit > 0
        self.met["lookups that reordered"] += order != list(self._kv_cached)
        return hit

    def cap_external_hit(self, request: Any, num_local: int, num_external: int) -> int:
        accepted = super().cap_external_hit(request, num_local, num_external)
        if num_external:
            end = num_local + num_external
            if accepted:
                self.met["offers accepted"] += 1
            elif end % self._block_size:
                self.met["refused: unaligned"] += 1
            elif end == request.num_tokens and self._run(request) >= end:
                self.met["refused: last token"] += 1
            else:
                self.met["refused: not retained"] += 1
        return accepted

    def _run(self, request: Any) -> int:
        """Tokens of the leading blocks with rows, without touching any."""
        end = 0
        for block, keys in self._kv_blocks(request.block_hashes):
            if block not in self._kv_cached and not self._gpu_cached(keys[-1]):
                break
            end += self._block_size
        return end

    def request_loading(self, request: Any, num_tokens: int) -> None:
        super().request_loading(request, num_tokens)
        self.met["loads"] += 1
        blocks = self._loading[request.request_id]
        others = (
            keys
            for request_id, keys in self._loading.items()
            if request_id != request.request_id
        )
        self.met["loads of a block that another loads"] += any(
            blocks & keys for keys in others
        )

    def _release_unheld(self) -> None:
        loading = set().union(*self._loading.values())
        excess = len(self._kv_cached) - self._capacity
        loose = [
            block
            for block, keys in self._kv_cached.items()
            if not self._gpu_cached(keys[-1])
        ]
        # Without the protection, the oldest `excess` of these would have gone.
        if excess > 0:
            self.met["blocks spared because they load"] += sum(
                block in loading for block in loose[:excess]
            )
            self.met["releases with nothing to release"] += not loose
            self.met["blocks spared because they are on the GPU"] += len(
                self._kv_cached
            ) - len(loose)
        before = len(self._kv_cached)
        super()._release_unheld()
        self.met["blocks released"] += before - len(self._kv_cached)

    def request_finished(self, request: Any) -> None:
        before = len(self._kv_cached)
        retained = len(self._retained_hashes)
        super().request_finished(request)
        self.met["retained"] += len(self._retained_hashes) > retained
        self.met["over capacity after a finish"] += len(
            self._kv_cached
        ) > self._capacity and before <= len(self._kv_cached)

    def reset(self) -> None:
        self.met["blocks released by a reset"] += len(self._kv_cached)
        super().reset()
