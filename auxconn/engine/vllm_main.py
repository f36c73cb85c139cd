"""`vllm serve`, as a process that ends with its supervisor: `-m auxconn.engine.vllm_main`.

vLLM's engine processes end when its server tells them to, and the server when it gets
SIGTERM. A supervisor that was killed can send none, so the kernel is asked to.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run vLLM's command line; the first argument is the supervisor's process id."""
    supervisor = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        # It has ended in the meantime.
        sys.exit(1)
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv[0] = "vllm"
    vllm()


if __name__ == "__main__":
    main()
