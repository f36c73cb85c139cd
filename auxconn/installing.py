"""Putting the probes into vLLM's own processes, as their objects come into being.

The plugin is called before vLLM has made its scheduler or its worker connector, and in
processes that will have neither. So it waits: when the module of the scheduler is imported,
the class's `__init__` is made to hand over each scheduler once it is complete; when the
module of the model runner is imported, so is the function that makes the worker connector.
These two are the only names of vLLM that are replaced, and only when it was asked for. What
is watched then are instances (`auxconn.attach`).

In vLLM's log there is one line for each scheduler and each worker: what is watched, or what
is not and why. Nothing here ever raises into vLLM.
"""

from __future__ import annotations

import functools
import inspect
import logging
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from auxconn.plugin import COLLECTOR, CONNECTOR, ENGINE, KEY_FILE

if TYPE_CHECKING:
    from auxconn.attach import Attachment

SCHEDULER = "vllm.v1.core.sched.scheduler"
RUNNER = "vllm.v1.worker.gpu.model_runner"
"""Modules of vLLM whose import is waited for."""

KNOWN = ("0.33.",)
"""Versions of vLLM that this was made with."""

CONNECTORS = ("vllm", "auxconn")

# A child of vLLM's logger: its lines look like vLLM's and go where those go.
_log = logging.getLogger("vllm.auxconn")


class Plan:
    """What the environment asks for.

    Parameters
    ----------
    environment
        Variables of the process.

    Raises
    ------
    ValueError
        When a variable says what cannot be; the text names it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        from auxconn.address import check_connect, check_engine

        self.collector = environment.get(COLLECTOR) or None
        self.engine = environment.get(ENGINE) or None
        try:
            if self.collector is not None:
                check_connect(self.collector)
        except ValueError as problem:
            raise ValueError(f"{COLLECTOR}: {problem}") from None
        wanted = environment.get(CONNECTOR) or "vllm"
        if wanted not in CONNECTORS:
            raise ValueError(
                f"{CONNECTOR}={wanted!r} is no connector; it is one of "
                f"{', '.join(CONNECTORS)}"
            )
        self.ours = wanted == "auxconn"
        self.key_file = environment.get(KEY_FILE) or None
        if self.key_file is not None:
            from auxconn.keys import load

            try:
                load(self.key_file, "engine")
            except ValueError as problem:
                raise ValueError(f"{KEY_FILE}: {problem}") from None
        try:
            if self.engine is not None:
                check_engine(self.engine, 0, "engine")
        except ValueError as problem:
            raise ValueError(f"{ENGINE}: {problem}") from None

    def name_of(self, vllm_config: Any) -> str:
        """Name of the engine: the same in all its processes, another for each start."""
        if self.engine is not None:
            return self.engine
        # vLLM's id of an instance is the time of its start in nanoseconds.
        instance = str(vllm_config.instance_id)
        short = instance if len(instance) <= 6 else instance[-9:-3]
        return f"{socket.gethostname()}-{short}"


_plan: Plan | None = None
_attached: dict[tuple[str, int], Attachment] = {}
"""By role and rank; the engine of a process can be made anew."""


def install(environment: Mapping[str, str]) -> None:
    """Watch what vLLM makes in this process from now on; the first call counts."""
    global _plan
    if _plan is not None:
        return
    try:
        _plan = Plan(environment)
        from wrapt import register_post_import_hook

        register_post_import_hook(_on_scheduler_module, SCHEDULER)
        register_post_import_hook(_on_runner_module, RUNNER)
    except Exception as problem:  # noqa: BLE001 - the engine goes on
        _log.warning("auxconn watches nothing: %s", problem)


def _on_scheduler_module(module: Any) -> None:
    try:
        kind = module.Scheduler
        kind.__init__ = _then(kind.__init__, _on_scheduler)
    except Exception as problem:  # noqa: BLE001 - the engine goes on
        _log.warning("auxconn cannot watch this vLLM's scheduler: %s", problem)


def _on_runner_module(module: Any) -> None:
    try:
        make = module.get_aux_output_connector

        @functools.wraps(make)
        def get_aux_output_connector(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            _guarded("worker", _watch_worker, made, make, args, kwargs)
            return made

        module.get_aux_output_connector = get_aux_output_connector
    except Exception as problem:  # noqa: BLE001 - the engine goes on
        _log.warning("auxconn cannot watch this vLLM's worker: %s", problem)


def _then(make: Callable[..., None], follow: Callable[[Any], None]) -> Any:
    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        follow(self)

    return __init__


def _on_scheduler(scheduler: Any) -> None:
    _guarded("scheduler", _watch_scheduler, scheduler)


def _guarded(what: str, call: Callable[..., None], *args: Any) -> None:
    try:
        call(*args)
    except Exception as problem:  # noqa: BLE001 - the engine goes on
        _log.warning(
            "auxconn does not watch this %s%s: %s", what, _version_note(), problem
        )


def _watch_scheduler(scheduler: Any) -> None:
    assert _plan is not None
    if getattr(scheduler, "aux_output_connector", None) is None:
        _log.warning(
            "auxconn watches nothing: this engine returns no routed experts (start it "
            "with --enable-return-routed-experts)"
        )
        return
    if _plan.ours:
        from auxconn.connector import AuxOutputSchedulerConnector

        scheduler.aux_output_connector = AuxOutputSchedulerConnector(
            scheduler.kv_cache_manager, scheduler.connector
        )
    whose = "auxconn's connector" if _plan.ours else "vLLM's connector"
    if _plan.collector is None:
        _log.info("auxconn: %s is in place, nobody watches it", whose)
        return
    _attach("scheduler", scheduler.vllm_config, scheduler=scheduler)
    _log.info(
        "auxconn watches the scheduler and %s%s; rows go to %s",
        whose,
        _version_note(),
        _plan.collector,
    )


def _watch_worker(
    connector: Any, make: Callable[..., Any], args: Any, kwargs: Any
) -> None:
    assert _plan is not None
    if _plan.collector is None or connector is None or connector._store is None:
        return  # only the first rank of a tensor-parallel group has rows
    given = inspect.signature(make).bind(*args, **kwargs).arguments
    _attach("worker", given["vllm_config"], worker=connector)
    _log.info(
        "auxconn watches the worker's rows and their store%s; rows go to %s",
        _version_note(),
        _plan.collector,
    )


def _attach(role: str, vllm_config: Any, **what: Any) -> None:
    from auxconn.attach import attach

    assert _plan is not None
    assert _plan.collector is not None
    rank = int(vllm_config.parallel_config.data_parallel_rank)
    before = _attached.pop((role, rank), None)
    if before is not None:
        before.detach()
    _attached[role, rank] = attach(
        **what,
        to=_plan.collector,
        engine=_plan.name_of(vllm_config),
        rank=rank,
        key_file=_plan.key_file,
    )


def _version_note() -> str:
    """Words about a version of vLLM that is not one of those we know."""
    from vllm import __version__

    if str(__version__).startswith(KNOWN):
        return ""
    return f" (vLLM {__version__}; auxconn was made with {KNOWN[0]}x)"
