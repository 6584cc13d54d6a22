"""Grading of untrusted, model-written code: an isolated process computes answers, and the grader alone judges them.

The invariant: no process that runs a submission ever holds an expected value or a canonical solution; canonicals run in
workers that run nothing else and end (`grade`).

- Verdict: the grader compares answers with expected values by Python's `==` and never calls model code (`oracle`,
  `wire`). A line without the nonce, or before its turn, voids the whole answer stream.
- Tier B: Landlock lets a submission read Python's library and write its marker file. seccomp permits the calls that
  honest code makes: no connection, lock or lease, no process, no signal to another process. Limits bound CPU, memory,
  file size, descriptors and threads. Submissions of root get another uid (`sandbox`, `landlock`, `seccomp`).
- Tier A: tier B inside namespaces without network, other processes, /proc or host files (`tiers`).
- Every grade records its tier.

Each submission runs in a new fork. The grader reads what it left when its whole process tree is dead (`executor`,
`worker`). spec/guide/grader.md lists the limits of this protection.
"""
