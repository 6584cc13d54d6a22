"""Grading by answers, not verdicts. The threat: a submission written by a model under pressure to be paid.

What it cannot do, and which layer sees to that:
- decide. The process that runs it holds no verdict, no expected value and no test; the grader compares answers by
  exact type and never calls model code (`oracle`, `wire`). Forged, early and duplicate lines need a nonce, void the
  stream or come too late.
- reach the grader or the next submission. It runs in a fork of its own with one descriptor, the answer pipe; its job is
  read after the fork, so nothing of another job is in its memory, and its folder is new (`worker`). Channels are read
  when every process of it is dead (`executor`).
- reach the machine. Landlock: only the Python library and /usr/lib can be read, only its marker file and /dev/null
  written. seccomp: no socket, no new process, no signal to another one, no ptrace, no mount, no attribute change, no
  system call newer than 2019. Another uid as root. Limits of CPU, memory, file size, descriptors, threads; the grader's
  wall clock (`sandbox`, `landlock`, `seccomp`: tier B).
- see the machine. In tier A all of that happens inside namespaces without network, other processes, /proc or host
  files, where the worker itself has no more than three capabilities (`bubblewrap`).
- be graded without isolation unnoticed. Every grade says which tier it was graded under (`tiers`).

What is not covered:
- a bug in the kernel or in Python's JSON parser; in tier A the kernel's namespaces are one more thing to break;
- a submission that knows the right answers, or finds the inputs of one problem and memorises its outputs;
- the channels inside the submission's own process (`run_tests`, `sentinel`, `eq_override`): walking frames to the nonce
  forges them, and pays what their by-design exploit pays. The assertions of the weaker class can be fooled as well;
- what it may use: the Python library and other world-readable files of /usr/lib, `stat` of any path in tier B, its CPU
  seconds, its memory, and time: clocks are readable and the load of the machine shows;
- the memory of a parallel submission of the same uid: an ordinary user has one uid, and only Landlock, seccomp and (in
  tier A) the namespaces stand between two of his submissions.
"""

from replay_pools.grading.execution import InfrastructureError
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.labels import Submission

__all__ = ["Grader", "InfrastructureError", "Submission", "canary"]
