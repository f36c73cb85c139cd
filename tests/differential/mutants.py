"""Our connector with one mistake each: what the differential test must notice."""

from __future__ import annotations

from typing import Any

from auxconn.connector import AuxOutputSchedulerConnector


class NoTouch(AuxOutputSchedulerConnector):
    """A look-up leaves the order of the held blocks as it is."""

    def __init__(self, kv_cache_manager: Any, kv_connector: Any = None) -> None:
        super().__init__(kv_cache_manager, kv_connector)
        coordinator = kv_cache_manager.coordinator
        self.group = getattr(coordinator, "full_attention_group_id", None) or 0
        self.pool = coordinator.single_type_managers[self.group].block_pool

    def max_cache_hit(self, request: Any) -> int:
        held = set(self.held())
        step = self.block_size // self.hash_block_size
        count = 0
        for key in request.block_hashes[step - 1 :: step]:
            if self._shown(key) not in held and not self.pool.get_cached_block(
                key, [self.group]
            ):
                break
            count += 1
        return min(count * self.block_size, request.num_tokens - 1)


class NoProtection(AuxOutputSchedulerConnector):
    """Blocks that load may be released."""

    def request_loading(self, request: Any, num_tokens: int) -> None:
        pass


class OneTooFew(AuxOutputSchedulerConnector):
    """A release stops one block too early."""

    def _release(self) -> None:
        self._blocks.release(self.capacity + 1)


class CapIgnored(AuxOutputSchedulerConnector):
    """Whatever a KV connector offers is taken."""

    def cap_external_hit(self, request: Any, num_local: int, num_external: int) -> int:
        super().cap_external_hit(request, num_local, num_external)
        return num_external


class SentTwice(AuxOutputSchedulerConnector):
    """Each batch of hashes begins with the last one of the batch before."""

    def _new_hashes(self, request: Any, computed: int) -> Any:
        sent = self._sent[request.request_id]
        packed = super()._new_hashes(request, computed)
        if packed is None or not sent:
            return packed
        again = request.block_hashes[sent - 1]
        return type(packed)(again + packed.data, packed.item_size)


MUTANTS = (NoTouch, NoProtection, OneTooFew, CapIgnored, SentTwice)
