"""A worker of a sweep whose commands are Python expressions, the first argument each; their value is the exit code."""

import sys

_CODE = """
import os, sys, time
import probe.cli._worker as worker
worker.run = lambda _cli, args: eval(args[0])
sys.exit(worker.main())
"""
STAND_IN = (sys.executable, "-c", _CODE)
