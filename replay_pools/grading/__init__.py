"""Grading of untrusted, model-written code: an isolated process computes answers, and the grader alone judges them.

The invariant: no process that runs a submission ever holds an expected value or a canonical solution; canonicals run in
workers that run nothing else and end (`grade`).

- The verdict: the grader compares answers with expected values by Python's `==` and never calls model code (`oracle`,
  `wire`). A line on the answer pipe without the nonce voids the whole stream, and so does one before its turn.
- The machine (tier B): Landlock gives a submission the Python library and /usr/lib to read, its marker file to write.
  seccomp permits the calls that honest code makes: no socket to anywhere, no lock or lease, no process, no signal to
  another one. CPU, memory, file size, descriptors and threads are limited; root's submissions get another uid
  (`sandbox`, `landlock`, `seccomp`).
- The sight (tier A): all of this inside namespaces without network, other processes, /proc or host files (`tiers`).
- Weaker isolation is never silent: every grade records its tier.

Each submission runs in a fork of its own, and its process tree is dead before anything that it left is read
(`executor`, `worker`). spec/guide/grader.md says what is not stopped.
"""
