"""A process that runs `probe` and is killed as it writes."""

# python -c KILLER PART ARGS...: `probe ARGS...`, killed when it is about to sync a file whose path holds PART.
KILLER = """
import os, signal, sys
real = os.fsync
def sync(descriptor):
    if sys.argv[1] in os.readlink(f"/proc/self/fd/{descriptor}"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = sync
from probe.cli import cli
from probe.cli._frame import run
sys.exit(run(cli, sys.argv[2:]))
"""
