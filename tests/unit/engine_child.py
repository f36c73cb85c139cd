"""A child that starts a process, which ignores what ends others and has shared memory."""

import subprocess
import sys
import time

GRANDCHILD = """
import signal, time
from multiprocessing import shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = shared_memory.SharedMemory(create=True, size=1000)
print(memory.name, flush=True)
time.sleep(60)
"""

print(sys.stdin.readline().strip())
print(subprocess.Popen([sys.executable, "-c", GRANDCHILD]).pid)
time.sleep(60)
