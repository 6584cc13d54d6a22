"""Landlock by ctypes: which files, TCP ports and signals a process may reach, enforced by the kernel.

The ruleset handles every right that the running kernel knows (ABI 1 to 7 and later), so an older kernel confines less
and never fails: below ABI 4 it leaves TCP, below ABI 6 signals and abstract sockets, to the seccomp filter.
Not covered at any ABI: stat, chmod, chown, xattr (the seccomp filter refuses the ones that write).
Standard library only: runs inside the worker.
"""

import ctypes
import os
import stat
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1
_NUM_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # by ABI; 16 from ABI 5 on
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_TCP_RIGHTS = 0b11  # bind, connect
_SCOPES = 0b11  # abstract unix sockets, signals

_libc = ctypes.CDLL(None, use_errno=True)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _call(number: int, *arguments: object) -> int:
    """A raw system call; OSError on failure."""
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock call {number}: {os.strerror(code)}")
    return result


def landlock_abi() -> int:
    """The kernel's Landlock ABI; 0 when it has none or it is disabled."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    except OSError:
        return 0


def create_ruleset(*, listable: Iterable[str], readable: Iterable[str], writable: Iterable[str]) -> int:
    """A ruleset descriptor: list folders beneath `listable`, read beneath `readable`, rewrite files beneath `writable`.

    A path that does not exist grants nothing. Nothing can be created, removed, renamed, linked or executed anywhere.
    """
    abi = landlock_abi()
    handled = (1 << _NUM_FS_RIGHTS.get(abi, 16)) - 1
    words = [handled, _TCP_RIGHTS, _SCOPES][: 1 if abi < 4 else 2 if abi < 6 else 3]
    attributes = (ctypes.c_uint64 * len(words))(*words)
    ruleset = _call(
        _CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)), ctypes.c_uint32(0)
    )
    for path in listable:
        _allow(ruleset, path, _READ_DIR)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & handled)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Grant `rights` beneath `path`; a path that does not exist grants nothing."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_DIR
        rule = _PathBeneath(rights, descriptor)
        _call(
            _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    finally:
        os.close(descriptor)


def restrict_self(ruleset: int) -> None:
    """Enforce the ruleset on this thread and its descendants, for ever, and close it. Needs no_new_privs."""
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
