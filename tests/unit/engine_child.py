"""A child that starts a process, which ignores what ends others, and waits."""

import subprocess
import sys
import time

print(sys.stdin.readline().strip())
code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
print(subprocess.Popen([sys.executable, "-c", code]).pid)
time.sleep(60)
