"""Grading of untrusted, model-written code: an isolated process computes answers, and the grader alone judges them.

The threat is a submission by a model that is rewarded for passing and attacks the grader. What is protected, and where:

- The verdict. The process that runs a submission holds no verdict, no expected value and no test. The grader compares
  the answers by exact type and never calls model code (`oracle`, `wire`). A line on the answer pipe without the nonce
  voids the whole stream, and so does one that comes before its turn; a repeated one is ignored.
- The grader and the next submission. A submission runs in a fork of its own whose only descriptor is the answer pipe.
  The fork reads its job itself, so its memory holds nothing of another job (`worker`). What a submission printed or
  wrote is read when all its processes are dead (`executor`). What executions share, one cannot change so that another
  sees it: files read-only and without access times, no shared page, futex or pipe, process numbers of its own
  (`namespaces`, `seccomp`). A worker ends after it has shown an expected value or a canonical solution (`grade`).
- The machine. Landlock: a submission can read only the Python library and /usr/lib, and write only its marker file and
  /dev/null. seccomp: the calls that honest code makes and no other: no socket, no lock or lease, no new process, no
  signal to another process. As root, it gets another uid, which reads a copy of the library where it cannot reach the
  original (`folders`). Limits of CPU, memory, file size, descriptors and threads; the wall clock is the grader's
  (`sandbox`, `landlock`, `seccomp`). All of this is tier B.
- What it can see. In tier A, all of this happens inside namespaces without network, other processes, /proc or host
  files, where the worker itself has at most four capabilities (`tiers`).
- Weaker isolation is never silent: every grade records its tier (`tiers`).
- Honest submissions. What they may use is listed and tried, part of it when a grader starts, all by `probe doctor`
  (`honest`).

What is not covered:
- a bug in the kernel or in Python's JSON parser; in tier A the kernel's namespaces are one more thing to break;
- a submission that knows the right answers, or finds the inputs of one problem and memorises its outputs;
- the channels inside the submission's own process (`run_tests`, `sentinel`, `eq_override`): a submission that finds the
  nonce by walking frames forges them, and earns what their by-design exploit earns. Assertions of the weaker class
  (`assertions`) can be fooled as well;
- what a submission may use: the Python library and other world-readable files of /usr/lib, `stat` of any path in
  tier B, its CPU seconds, its memory, and time: it can read clocks, and they show the load of the machine, and which
  files the kernel has in its cache;
- tier B without the right to make namespaces (an ordinary user where the system forbids them, root in a container that
  lacks CAP_SYS_ADMIN): there, the numbers of processes and the access times of files that are a day old pass on a few
  bits from one execution to the next;
- the memory of a parallel submission with the same uid: an ordinary user has one uid, and only Landlock, seccomp and
  (in tier A) the namespaces stand between two of his submissions.
"""
