"""The entry point that vLLM calls in each of its processes (`vllm.general_plugins`).

Whoever starts vLLM switches it on with the environment:

- `AUXCONN_COLLECTOR`: address of the collector that takes the rows, `tcp://host:port`;
- `AUXCONN_CONNECTOR`: `auxconn` puts our scheduler connector in the place of vLLM's, `vllm`
  (the default) leaves it;
- `AUXCONN_KEY_FILE`: the engines' key file, for a collector that has keys;
- `AUXCONN_ENGINE`: name under which the engine appears; by default its host and vLLM's own
  id of the instance.

With neither of the first two set nothing happens: nothing else is imported, nothing is
wrapped. This module is loaded in every process of every vLLM on the machine, so it imports
nothing but the standard library.
"""

from __future__ import annotations

import os

COLLECTOR = "AUXCONN_COLLECTOR"
CONNECTOR = "AUXCONN_CONNECTOR"
KEY_FILE = "AUXCONN_KEY_FILE"
ENGINE = "AUXCONN_ENGINE"


def register() -> None:
    """Watch, from this process on, what the environment asks to be watched.

    May be called more than once. Never raises: a mistake in a variable costs one line in
    vLLM's log, and the engine goes on.
    """
    if not (os.environ.get(COLLECTOR) or os.environ.get(CONNECTOR)):
        return
    from auxconn.installing import install

    install(dict(os.environ))
